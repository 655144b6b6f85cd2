"""``files``: checkpoint files of any program, wherever they are, with their facts in a table."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.archs.gaussian_spec import STD
from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.imports.adapters.adapter import Found, Options, Picked, every_state, identifier, reader
from ckptzoo.hub.imports.facts import row_of
from ckptzoo.hub.imports.sources import Source, SourceFile
from ckptzoo.hub.imports.tables import Slice, read_layout
from ckptzoo.hub.untrusted import SUFFIXES, Limits, StateDict

_SUFFIXES = (*SUFFIXES, ".pkl", ".pickle", ".npy")
_MEAN, _SCALE = "loc", "scale"
"""What Pyro and torch.distributions call the mean and the standard deviation of a normal distribution."""
_CONSTRAINTS = "constraints."
_LOWER_BOUND = re.compile(r"_GreaterThan(?:Eq)?\(lower_bound=([0-9.e-]+)\)")


class Files:
    """Files with state dicts, lists of them, whole modules, parameters of Gaussians, or vectors.

    A file is a member; those of a list are ``<file>/0``, ``<file>/1``, ... Tensors ``T.loc`` and ``T.scale``, or state
    dicts ``loc`` and ``scale``, are a Gaussian with the mean ``T`` and the standard deviation ``T_std``.
    """

    name = "files"
    license: str | None = None
    by_order = False

    def recognises(self, paths: Sequence[str]) -> bool:
        """Whether there is a file with the suffix of a checkpoint."""
        return any(path.lower().endswith(_SUFFIXES) for path in paths)

    def checkpoints(self, source: Source, options: Options) -> Iterator[Found]:
        """Every file with the suffix of a checkpoint."""
        slices = None if options.layout is None else read_layout(options.layout.encode(), "--layout")
        rows = _Rows(options.metadata)
        for file in source.files():
            if not file.name.lower().endswith(_SUFFIXES):
                continue
            member = _member(file, options.id_pattern)
            facts = rows.of(file.path)
            row = row_of(facts, location=file.path, percent=options.percent)

            def pick(states: Sequence[StateDict], path: str = file.path) -> Sequence[Picked]:
                return _picked(states, slices, path, options)

            yield Found(file.path, member, None, row, file.size, reader(file, Limits().file_bytes), pick)
        rows.check_used()


class _Rows:
    """The rows of ``--metadata`` by the path that they are about, or by its last part."""

    def __init__(self, metadata: Mapping[str, Mapping[str, Any]] | None) -> None:
        self.rows, self.unused = metadata, set(metadata or ())

    def of(self, path: str) -> Mapping[str, Any]:
        """The row of a file."""
        if self.rows is None:
            return {}
        key = next(
            (key for key in (path, path.rpartition("/")[2], str(PurePosixPath(path).stem)) if key in self.rows), None
        )
        if key is None:
            step = "Add a row for it; the column path has paths inside the source."
            raise ZooError(Problem(path, "row of --metadata", "one for every file", "none", step))
        self.unused.discard(key)
        return self.rows[key]

    def check_used(self) -> None:
        """Refuse rows about files that are not there."""
        if self.unused:
            got = f"{len(self.unused)} others, such as {min(self.unused)[:80]!r}"
            step = "Correct or remove these rows."
            raise ZooError(Problem("--metadata", "path", "files of the source", got, step))


def _member(file: SourceFile, pattern: str | None) -> str:
    path = PurePosixPath(file.path)
    if pattern is None:
        return identifier(str(path.with_suffix("")).replace("/", "-"))
    fields = {"stem": path.stem, "name": path.name, "parent": path.parent.name, "path": str(path.with_suffix(""))}
    try:
        return identifier(re.sub(r"\{(\w+)\}", lambda found: fields[found[1]], pattern))
    except KeyError as error:
        raise ZooError(
            Problem("--id", "field", ", ".join(f"{{{name}}}" for name in fields), f"{{{error.args[0]}}}", "Correct it.")
        ) from None


def _picked(
    states: Sequence[StateDict], slices: Sequence[Slice] | None, path: str, options: Options
) -> Sequence[Picked]:
    if slices is not None:
        return [cut for picked in every_state(states) for cut in _cut(picked, slices, path)]
    pairs = _pairs(states)
    if pairs is not None:
        return pairs
    made: list[Picked] = []
    for picked, state in zip(every_state(states), states, strict=True):
        row = row_of(state.facts, location=path, percent=options.percent)
        gaussian = _gaussian(picked.tensors, state.facts, path)
        made.append(Picked(picked.suffix, gaussian or picked.tensors, row, gaussian is not None))
    return made


def _pairs(states: Sequence[StateDict]) -> list[Picked] | None:
    """State dicts ``0.loc``, ``0.scale``, ... as Gaussians; None where they are others."""
    by_key = {state.source.partition("#")[2]: state for state in states}
    stems = [key.removesuffix(_MEAN) for key in by_key if key.rpartition(".")[2] == _MEAN]
    if not stems or {f"{stem}{end}" for stem in stems for end in (_MEAN, _SCALE)} != set(by_key):
        return None
    made: list[Picked] = []
    for stem in stems:
        means, scales = by_key[f"{stem}{_MEAN}"].tensors, by_key[f"{stem}{_SCALE}"].tensors
        if set(means) != set(scales):
            return None
        made.append(Picked(stem.strip("."), _interleaved(means, scales), gaussian=True))
    return made


def _gaussian(
    tensors: Mapping[str, NDArray[Any]], facts: Mapping[str, Any], path: str
) -> dict[str, NDArray[Any]] | None:
    """Tensors ``T.loc`` and ``T.scale`` as a Gaussian; None where they are others."""
    means, scales = (
        {name.removesuffix(f".{end}"): array for name, array in tensors.items() if name.endswith(f".{end}")}
        for end in (_MEAN, _SCALE)
    )
    if not means or set(means) != set(scales) or len(means) + len(scales) != len(tensors):
        return None
    if any(name.startswith(_CONSTRAINTS) for name in facts):
        scales = {
            name: _constrained(array, facts.get(f"{_CONSTRAINTS}{name}.{_SCALE}"), f"{path}: {name}.{_SCALE}")
            for name, array in scales.items()
        }
    if (negative := next((name for name, array in scales.items() if (array < 0).any()), None)) is not None:
        step = "Say so in a file of another form: what these numbers are is not known."
        expected, got = "standard deviations from 0", f"{scales[negative].min():g}"
        raise ZooError(Problem(path, f"tensor {negative + '.' + _SCALE!r}", expected, got, step))
    first = next(iter(means)).partition(".")[0]
    prefix = f"{first}." if all(name.startswith(f"{first}.") and name.count(".") > 1 for name in means) else ""
    return _interleaved(
        {name.removeprefix(prefix): array for name, array in means.items()},
        {name.removeprefix(prefix): array for name, array in scales.items()},
    )


def _constrained(array: NDArray[Any], constraint: Any, location: str) -> NDArray[Any]:
    """A parameter of Pyro, whose store keeps what its constraint is yet to be applied to.

    Of a lower bound it is the exponential and the bound added (``transform_to(greater_than(bound))`` of
    torch.distributions).
    """
    if constraint in ("_Real()", "_IndependentConstraint()"):
        return array
    matched = _LOWER_BOUND.fullmatch(str(constraint))
    if matched is None:
        step = "Import a file of plain means and standard deviations."
        raise ZooError(Problem(location, "constraint", "a lower bound", str(constraint), step))
    return (np.exp(array.astype(np.float64)) + float(matched[1])).astype(array.dtype)


def _interleaved(means: Mapping[str, NDArray[Any]], scales: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """As ``gaussian-<name>`` has them: of each module its means, then its standard deviations."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in means))
    made: dict[str, NDArray[Any]] = {}
    for layer in layers:
        own = [name for name in means if name.rpartition(".")[0] == layer]
        made |= {name: means[name] for name in own} | {f"{name}{STD}": scales[name] for name in own}
    return made


def _cut(picked: Picked, slices: Sequence[Slice], path: str) -> Iterator[Picked]:
    """Vectors, or the rows of a matrix, cut into tensors."""
    for name, array in picked.tensors.items():
        matrix = np.atleast_2d(array)
        if matrix.ndim != 2 or matrix.shape[1] != slices[-1].stop:
            expected = f"vectors of {slices[-1].stop} numbers, as --layout says"
            raise ZooError(Problem(path, f"array {name!r}", expected, f"shape {array.shape}", "Give its own layout."))
        several = len(matrix) > 1 or len(picked.tensors) > 1
        for number, vector in enumerate(matrix):
            parts = [picked.suffix, name if len(picked.tensors) > 1 else "", str(number) if len(matrix) > 1 else ""]
            tensors = {item.name: vector[item.start : item.stop].reshape(item.shape) for item in slices}
            yield Picked("-".join(part for part in parts if part) if several else picked.suffix, tensors)
