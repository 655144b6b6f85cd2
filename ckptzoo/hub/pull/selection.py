"""What is asked of a pull: which variants, which tensors, which checkpoints.

How far a pull is, counted by several threads.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ckptzoo.errors import Problem, UnknownNameError, ZooError
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.documents import Document
from ckptzoo.schema.layout import RAW
from ckptzoo.text import Progress


@dataclass(frozen=True)
class PullSelection:
    """A selection from a zoo; None stands for all there is.

    Parameters
    ----------
    variants : ``raw`` and gauges, sorted.
    layers : modules and tensors, sorted.
    where : a condition on the metadata, as ``Zoo.where`` takes it.
    """

    variants: tuple[str, ...] | None = None
    layers: tuple[str, ...] | None = None
    where: Any = None

    @classmethod
    def of(cls, variants: Sequence[str] | None, layers: Sequence[str] | None, where: Any) -> "PullSelection":
        """From the arguments of ``pull``.

        Raises
        ------
        ZooError
            Variants or layers are named, and there are none among them.
        """
        return cls(_names("variants", variants), _names("layers", layers), where)

    @property
    def raw(self) -> bool:
        """Whether the weights as trained are asked for."""
        return self.variants is None or RAW in self.variants

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self.variants is None and self.layers is None and self.where is None

    def gauges(self, known: Sequence[str], *, location: str) -> tuple[str, ...]:
        """The gauges that are asked for among those that the zoo has.

        Raises
        ------
        UnknownNameError
            The zoo has no such variant.
        """
        for name in self.variants or ():
            if name != RAW and name not in known:
                raise UnknownNameError(location, "variant", name, (RAW, *known))
        return tuple(name for name in known if self.variants is None or name in self.variants)

    def tensors(self, arch: Architecture, *, location: str) -> tuple[Tensor, ...]:
        """The tensors that are asked for, in the architecture's order; a name means what it means to ``Zoo.stream``.

        Raises
        ------
        UnknownNameError
            The architecture has no such module and no such tensor.
        """
        if self.layers is None:
            return arch.tensors
        aliases = {alias: tensor.name for tensor in arch.tensors for alias in tensor.aliases}
        wanted = set[str]()
        for name in self.layers:
            if name in arch:
                wanted.add(name)
            elif name in arch.layers:
                wanted.update(arch.layers[name])
            elif name in aliases:
                wanted.add(aliases[name])
            else:
                raise UnknownNameError(location, "layer", name, [*arch.layers, *arch.names, *aliases])
        return tuple(tensor for tensor in arch.tensors if tensor.name in wanted)

    def to_json(self) -> Document:
        """As it is kept beside what was pulled; a condition that is no text is kept as Python writes it."""
        where = self.where if self.where is None or isinstance(self.where, str) else repr(self.where)
        variants, layers = (None if names is None else list(names) for names in (self.variants, self.layers))
        return {"variants": variants, "layers": layers, "where": where}


def described(selection: Document) -> str:
    """A selection in words, from its JSON."""
    pieces = [
        f"{name} {', '.join(value) if isinstance(value, list) else value}"
        for name in ("variants", "layers", "where")
        if (value := selection.get(name)) is not None
    ]
    return "; ".join(pieces) or "everything"


def _names(what: str, names: Sequence[str] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    made = (names,) if isinstance(names, str) else tuple(sorted(set(names)))
    if not made:
        raise ZooError(Problem("pull", what, "one name or more", "none", "Leave them out to pull all."))
    return made


class Meter:
    """Bytes of a pull.

    Parameters
    ----------
    total : of all that is to come to its place.
    progress : is told whenever that changes.
    """

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress
        self._lock = threading.Lock()
        self._tell()

    def moved(self, nbytes: int) -> None:
        """So many bytes more are in their place."""
        with self._lock:
            self._done += nbytes
            self._tell()

    def there(self, nbytes: int) -> None:
        """So many bytes need not come, because an earlier call brought them."""
        with self._lock:
            self._total -= nbytes
            self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self._total)
