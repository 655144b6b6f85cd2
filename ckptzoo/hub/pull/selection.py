"""The selection of a pull (variants, tensors, checkpoints), and the count of the bytes that it has fetched."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ckptzoo.errors import Problem, UnknownNameError, ZooError
from ckptzoo.format.files import Files
from ckptzoo.format.reader import read_contents
from ckptzoo.schema.architecture import Architecture, Tensor
from ckptzoo.schema.documents import Document, Identity
from ckptzoo.schema.layout import RAW
from ckptzoo.text import Progress, shortened

ALL = "all"
"""Every set of predictions."""
OPTIONS = ("variants", "layers", "where", "predictions")
"""Keys of a selection in its JSON."""


@dataclass(frozen=True)
class PullSelection:
    """A selection from a zoo; None selects everything. Lists are sorted.

    ``variants`` are ``raw`` and gauges, ``where`` a condition on the metadata, as ``Zoo.where`` takes it,
    ``predictions`` sets of inputs: ``("all",)`` selects all of them, and None all if all else is selected.
    """

    variants: tuple[str, ...] | None = None
    layers: tuple[str, ...] | None = None
    where: Any = None
    predictions: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        variants: str | Sequence[str] | None,
        layers: str | Sequence[str] | None,
        where: Any,
        predictions: str | Sequence[str] | None = None,
    ) -> "PullSelection":
        """Make a selection from arguments of ``pull``; raise ``ZooError`` for an empty list of variants or layers."""
        names = (
            _sorted_names(what, given)
            for what, given in (("variants", variants), ("layers", layers), ("predictions", predictions))
        )
        selected_variants, selected_layers, selected_sets = names
        if selected_sets == (ALL,) and all(part is None for part in (variants, layers, where)):
            selected_sets = None
        return cls(selected_variants, selected_layers, where, selected_sets)

    @property
    def includes_raw(self) -> bool:
        """Whether the weights as trained are selected."""
        return self.variants is None or RAW in self.variants

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        # a condition may be a pyarrow expression, whose == makes another
        return all(part is None for part in (self.variants, self.layers, self.where, self.predictions))

    def gauges(self, known: Sequence[str], *, location: str) -> tuple[str, ...]:
        """Return the selected ones among the zoo's gauges; raise ``UnknownNameError`` where it has no such variant."""
        for name in self.variants or ():
            if name != RAW and name not in known:
                raise UnknownNameError(location, "variant", name, (RAW, *known))
        return tuple(name for name in known if self.variants is None or name in self.variants)

    def sets(self, known: Sequence[str], *, location: str) -> tuple[str, ...]:
        """Return the selected sets of inputs with stored outputs; raise ``UnknownNameError`` where the zoo lacks
        one.
        """
        if self.predictions is None:
            return tuple(known) if self.is_everything else ()
        if self.predictions == (ALL,):
            return tuple(known)
        for name in self.predictions:
            if name not in known:
                raise UnknownNameError(location, "set of predictions", name, (*known, ALL))
        return self.predictions

    def tensors(self, arch: Architecture, *, location: str) -> tuple[Tensor, ...]:
        """Return the selected tensors, in the architecture's order; names mean what they mean to ``Zoo.stream``.

        Raises ``UnknownNameError`` where the architecture has no such module and no such tensor.
        """
        if self.layers is None:
            return arch.tensors
        selected = set[str]()
        for name in self.layers:
            names = arch.named(name)
            if not names:
                aliases = [alias for tensor in arch.tensors for alias in tensor.aliases]
                raise UnknownNameError(location, "layer", name, [*arch.layers, *arch.names, *aliases])
            selected.update(names)
        return tuple(tensor for tensor in arch.tensors if tensor.name in selected)

    def to_json(self) -> Document:
        """Return the JSON that is stored beside the zoo; a condition that is not text is stored as its ``repr``."""
        where = self.where if self.where is None or isinstance(self.where, str) else repr(self.where)
        variants, layers = (None if names is None else list(names) for names in (self.variants, self.layers))
        # as it was before sets could be selected, so that an earlier pull is carried on
        sets = {} if self.predictions is None else {"predictions": list(self.predictions)}
        return {"variants": variants, "layers": layers, "where": where, **sets}


def refuse_references(identity: Identity, files: Files) -> None:
    """Raise ``ZooError`` for a zoo that refers to files of another place, which are not fetched."""
    if identity.references:
        step = "Pull it whole, and copy of it what you need: ckptzoo materialize ZOO --to NEWZOO --follow public."
        if not read_contents(files).references.is_remote.all():
            step = "Where the files are on this machine, copy their weights with ckptzoo materialize ZOO --to NEWZOO."
        raise ZooError(
            Problem(files.name, "zoo to pull", "one that holds its weights", "one that refers to files", step)
        )


def refuse_local_references(identity: Identity, files: Files) -> None:
    """Raise ``ZooError`` for a zoo that refers to files of the machine that it was made on."""
    if identity.references and not read_contents(files).references.is_remote.all():
        refuse_references(identity, files)


def describe(selection: Document) -> str:
    """Return a selection in words, from its JSON.

    >>> describe({"variants": ["raw"], "layers": None, "where": "seed < 2"})
    'variants raw; where seed < 2'
    """
    options = [
        f"{name} {shortened(', '.join(value) if isinstance(value, list) else value, 200)}"
        for name in OPTIONS
        if (value := selection.get(name)) is not None
    ]
    return "; ".join(options) or "everything"


def _sorted_names(what: str, names: Sequence[str] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    unique = (names,) if isinstance(names, str) else tuple(sorted(set(names)))
    if not unique:
        raise ZooError(Problem("pull", what, "one name or more", "none", "Leave them out to pull all."))
    return unique


class ProgressMeter:
    """Counts the bytes of a pull out of ``total``, from any thread; ``progress`` is called whenever a count changes."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress
        self._lock = threading.Lock()
        self._report()

    def add(self, nbytes: int) -> None:
        """Count bytes that were put in place."""
        with self._lock:
            self._done += nbytes
            self._report()

    def reduce_total(self, nbytes: int) -> None:
        """Count bytes that need not be fetched, because an earlier call put them in place."""
        with self._lock:
            self._total -= nbytes
            self._report()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self._total)
