"""``files``: checkpoint files of any program, wherever they are, with their facts in a table."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.archs.gaussian_spec import STD
from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.imports.adapters.adapter import (
    SUFFIXES,
    Found,
    Options,
    PassedOver,
    Picked,
    every_state,
    identifier,
    reader,
)
from ckptzoo.hub.imports.facts import merged, row_of
from ckptzoo.hub.imports.runs import Run, facts_of, run_of, searched, step_of, without_suffixes
from ckptzoo.hub.imports.shards import Shards, is_shard
from ckptzoo.hub.imports.side_files import SideFiles
from ckptzoo.hub.imports.sources import Source
from ckptzoo.hub.imports.tables import Slice, read_layout
from ckptzoo.hub.untrusted import Limits, StateDict
from ckptzoo.hub.untrusted.errors import reject_without_network
from ckptzoo.hub.untrusted.layer_trees import is_copy_name
from ckptzoo.hub.untrusted.other_contents import other_content

_JUNK = re.compile(r"(^|/)(__MACOSX|\.ipynb_checkpoints)/|(^|/)(\._|\.#|\.DS_Store$)|~$")
"""What systems, notebooks and editors leave beside files."""
_NORMAL = (("loc", "scale"), ("mu", "sigma"), ("mu", "rho"))
"""What Pyro, torch.distributions and Bayes by backprop call the parameters of a normal distribution."""
_MEANS = re.compile(r"[._](loc|mu)$")
_PARAMETER = re.compile(r"(.+)([._])(loc|scale|mu|sigma|rho)")
_NOTES = {"rho": "standard deviations are softplus(rho), as in Bayes by backprop"}
_SAMPLES = "samples"
"""The method of draws of which a file does not say how they were drawn."""
_OF_A_RUN = "taken by its name for one of several checkpoints of a run; --member and --step say otherwise"
_CONSTRAINTS = "constraints."
_LOWER_BOUND = re.compile(r"_GreaterThan(?:Eq)?\(lower_bound=([0-9.e-]+)\)")


class Files:
    """Files with state dicts, lists of them, whole modules, parameters of Gaussians, or vectors.

    A file's path says which run it belongs to and at which step it was saved (``runs``). Networks of a list are members
    of their own, ``<file>/0``, ``<file>/1``, ..., unless they were saved at several steps. Tensors ``T.loc`` and
    ``T.scale``, or state dicts ``loc`` and ``scale``, are a Gaussian with the mean ``T`` and the standard deviation
    ``T_std``.
    """

    name = "files"
    license: str | None = None
    by_order = False

    def recognises(self, paths: Sequence[str]) -> bool:
        """Whether there is a file with the suffix of a checkpoint."""
        return any(path.lower().endswith(SUFFIXES) for path in paths)

    def checkpoints(self, source: Source, options: Options) -> Iterator[Found | PassedOver]:
        """Every file with the suffix of a checkpoint, and shards as one file."""
        reading = _Reading.of(source.name, options, SideFiles(source))
        yield from reading.beside.passed_over
        shards = Shards(source.address)
        for file in source.files():
            if _JUNK.search(file.path):
                yield PassedOver(file.path, "left by a system, a notebook or an editor")
            elif is_shard(file.path):
                if (whole := shards.add(file)) is not None:
                    path, contents = whole
                    yield reading.found(path, sum(map(len, contents)), lambda contents=contents: contents)
            elif file.name.lower().endswith(SUFFIXES):
                yield reading.found(file.path, file.size, reader(file, Limits().file_bytes))
        shards.check_whole()
        reading.rows.check_used()


@dataclass(frozen=True)
class _Reading:
    """What a person says about the files of a source."""

    source: str
    options: Options
    rows: "_Rows"
    slices: Sequence[Slice] | None
    member: re.Pattern[str] | None
    step: re.Pattern[str] | None
    beside: SideFiles

    @classmethod
    def of(cls, source: str, options: Options, beside: SideFiles) -> "_Reading":
        """Check the options."""
        slices = None if options.layout is None else read_layout(options.layout.encode(), "--layout")
        member, step = (
            None if text is None else _pattern(flag, text)
            for flag, text in (("--member", options.member_pattern), ("--step", options.step_pattern))
        )
        return cls(source, options, _Rows(options.metadata), slices, member, step, beside)

    def found(self, path: str, size: int, read: Callable[[], Sequence[bytes]]) -> Found:
        """A file, with its run and its facts."""
        facts = {**self.beside.of(path), **self.rows.of(path)}
        run = self.run(path, facts)
        row = row_of(facts, location=path, percent=self.options.percent)
        of_a_run = facts_of(path)
        if "seed" in of_a_run:
            row.setdefault("seed", of_a_run.pop("seed"))
        row["extra"] = merged(of_a_run, row["extra"])
        if run.epoch is not None:
            row.setdefault("epoch", float(run.epoch))
        name = _id(path, self.options.id_pattern)
        member = identifier(run.member.replace("/", "-")) if run.member else self.source

        def pick(states: Sequence[StateDict]) -> Sequence[Picked]:
            picked = _picked(states, self.slices, path, self.options)
            return picked if self.slices is not None else _with_runs(picked, run, member)

        return Found(path, member, run.step, row, size, read, pick, name)

    def run(self, path: str, facts: dict[str, Any]) -> Run:
        """The run of a file: as a row of ``--metadata`` says, else as a pattern finds, else as its path says."""
        by_path = run_of(path)
        member, step = facts.pop("member", None), facts.pop("step", step_of(facts))
        if member is None and self.member is not None:
            member = _searched(self.member, "--member", path)
        if step is None and self.step is not None:
            text = _searched(self.step, "--step", path)
            if not re.fullmatch(r"\d{1,18}", text):
                raise ZooError(Problem(path, "--step", "a number", repr(text[:80]), "Put a group around the number."))
            step = int(text)
        if member is None and step is None:
            return by_path
        is_said = member is not None
        return Run(
            str(member) if is_said else by_path.member,
            by_path.step if step is None else step,
            by_path.epoch,
            by_path.is_part and not is_said,
        )


def _pattern(flag: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        step = "Correct it: a regular expression, whose first group is taken where it has one."
        raise ZooError(Problem(flag, "pattern", "a regular expression", f"{text[:80]!r} ({error})", step)) from None


def _searched(pattern: re.Pattern[str], flag: str, path: str) -> str:
    found = searched(pattern, path)
    if found is None:
        raise ZooError(Problem(path, flag, f"what {pattern.pattern[:80]!r} finds", "nothing", "Correct the pattern."))
    return found


def _with_runs(picked: Sequence[Picked], run: Run, member: str) -> list[Picked]:
    """The checkpoints of a file, each with the member and the step that its own facts add to those of the path."""
    if len(picked) == 1 and not picked[0].suffix and not run.is_part and not picked[0].row.get("extra"):
        (item,) = picked  # most files: one network, of which nothing more is known
        if "draw" not in item.row and "epoch" not in item.row:
            item.row["member"] = member
            return [item]
    steps = [_step_of(item) for item in picked]
    # checkpoints of one run, saved together
    is_trajectory = len(picked) > 1 and None not in steps and len(set(steps)) == len(steps)
    ends = [tuple(item.suffix.rpartition(".")[::2]) for item in picked]
    with_copies = {before for before, last in ends if is_copy_name(last)}
    made: list[Picked] = []
    for item, step, (before, last) in zip(picked, steps, ends, strict=True):
        row, own = dict(item.row), "" if is_trajectory else item.suffix
        if before in with_copies and item.suffix:
            # an average of a run's weights is no run of its own
            own = "" if is_trajectory else before
            row["extra"] = merged(row.get("extra", {}), {"network": last})
        if step is not None and (run.step is None or is_trajectory or step != row.get("epoch")):
            row["step"] = step
        name, seed = f"{member}/{identifier(own)}" if own else member, row.get("seed")
        # several runs may have saved files of the same names beside one another
        if run.is_part and type(seed) is int and not re.search(r"\d", run.member):
            name += f"-seed{seed}"
        if "draw" in row:
            row["mode"] = member
        row["member"] = name
        made.append(replace(item, row=row, note=item.note or (_OF_A_RUN if run.is_part else "")))
    return made


def _step_of(picked: Picked) -> int | None:
    """The step that a checkpoint's facts name; else its epoch, which orders checkpoints of which no more is known."""
    step, epoch = step_of(picked.row.get("extra", {})), picked.row.get("epoch")
    if step is None and isinstance(epoch, float) and epoch.is_integer() and epoch >= 0:
        return int(epoch)
    return step


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


def _id(path: str, pattern: str | None) -> str:
    whole = without_suffixes(path)
    if pattern is None:
        return identifier(whole.replace("/", "-"))
    parent, _, stem = whole.rpartition("/")
    fields = {"stem": stem, "name": path.rpartition("/")[2], "parent": parent.rpartition("/")[2], "path": whole}
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
        _refuse_vectors(picked.tensors, path)
        row = row_of(state.facts, location=path, percent=options.percent)
        gaussian = _gaussian(picked.tensors, state.facts, path)
        if options.stacked is None:
            _refuse_stacked(picked.tensors, path)
        if gaussian is not None:
            made.append(replace(gaussian, suffix=picked.suffix, row=row))
        elif options.stacked:
            made += _unstacked(replace(picked, row=row), path)
        else:
            made.append(replace(picked, row=row))
    return made


def _refuse_vectors(tensors: Mapping[str, NDArray[Any]], path: str) -> None:
    """Refuse arrays that are no tensors of a network: one without a name, or vectors of one length without names.

    Raises
    ------
    NoNetworkError
        The file's name says that its one array is something else.
    ZooError
        What it is is not known.
    """
    shapes = {array.shape for array in tensors.values()}
    if list(tensors) == ["array"]:
        stem = without_suffixes(path).rpartition("/")[2]
        if (what := other_content({stem: tensors["array"].dtype.name})) is not None:
            reject_without_network(path, what, "Leave it out.")
        got = f"one array of shape {next(iter(shapes))} without a name"
    elif len(tensors) > 1 and len(shapes) == 1 and len(next(iter(shapes))) == 1 and all(map(str.isdigit, tensors)):
        got = f"{len(tensors)} vectors of {next(iter(shapes))[0]} numbers without names"
    else:
        return
    step = (
        "Say with --layout which of its numbers are which tensor; tensors in files of their own belong into one .npz."
    )
    raise ZooError(Problem(path, "tensors", "those of a network, by name", got, step))


def _refuse_stacked(tensors: Mapping[str, NDArray[Any]], path: str) -> None:
    """Refuse tensors whose first axis may count samples: weights and biases share it, and no bias has one axis."""
    shapes = [array.shape for array in tensors.values()]
    lengths = {shape[0] if shape else None for shape in shapes}
    biases = {shape for shape in shapes if len(shape) == 2}
    is_like_samples = (
        len(shapes) > 1
        and len(lengths) == 1
        and min(map(len, shapes)) == 2
        and any(len(shape) > 2 and shape[:2] in biases for shape in shapes)
    )
    if is_like_samples:
        got = f"one of {shapes[0][0]} in all of them, as of samples"
        step = "Give --stacked where it counts samples of one network, --no-stacked where it does not."
        raise ZooError(Problem(path, "first axis of the tensors", "one that is clear", got, step))


def _unstacked(picked: Picked, path: str) -> Iterator[Picked]:
    """The samples along the first axis of every tensor."""
    lengths = {array.shape[:1] for array in picked.tensors.values()}
    if len(lengths) != 1 or lengths == {()}:
        got = ", ".join(str(array.shape) for array in list(picked.tensors.values())[:5])
        expected, step = "one first axis for all tensors, as --stacked says", "Leave --stacked out."
        raise ZooError(Problem(path, "shapes", expected, got, step))
    for number in range(next(iter(lengths))[0]):
        suffix = f"{picked.suffix}-{number}" if picked.suffix else str(number)
        tensors = {name: array[number] for name, array in picked.tensors.items()}
        yield replace(picked, suffix=suffix, tensors=tensors, row={**picked.row, "method": _SAMPLES, "draw": number})


def _pairs(states: Sequence[StateDict]) -> list[Picked] | None:
    """State dicts ``0.loc``, ``0.scale``, ... as Gaussians; None where they are others."""
    by_key = {state.source.partition("#")[2]: state for state in states}
    for mean, deviation in _NORMAL:
        stems = [key.removesuffix(mean) for key in by_key if key.rpartition(".")[2] == mean]
        if not stems or {f"{stem}{end}" for stem in stems for end in (mean, deviation)} != set(by_key):
            continue
        pairs = [(stem, by_key[f"{stem}{mean}"].tensors, by_key[f"{stem}{deviation}"].tensors) for stem in stems]
        if all(set(means) == set(deviations) for _, means, deviations in pairs):
            return [
                Picked(
                    stem.strip("."),
                    _interleaved(means, {name: _deviation(deviation, array) for name, array in deviations.items()}),
                    gaussian=True,
                    note=_NOTES.get(deviation, ""),
                )
                for stem, means, deviations in pairs
            ]
    return None


def _gaussian(tensors: Mapping[str, NDArray[Any]], facts: Mapping[str, Any], path: str) -> Picked | None:
    """Tensors ``T.loc`` and ``T.scale``, or ``T_mu`` and ``T_rho``, as a Gaussian; None where they are others.

    Raises
    ------
    ZooError
        There are deviations of some tensors alone, or such that are negative.
    """
    if not any(map(_MEANS.search, tensors)):
        return None
    names = {found.groups(): name for name in tensors if (found := _PARAMETER.fullmatch(name)) is not None}
    for mean, deviation in _NORMAL:
        stems = [
            (stem, between)
            for stem, between, word in names
            if word == mean
            and (other := names.get((stem, between, deviation))) is not None
            and tensors[other].shape == tensors[names[stem, between, mean]].shape
        ]
        if not stems:
            continue
        if 2 * len(stems) < len(tensors):
            if deviation != "rho":  # layers of flows and of noisy networks have such parameters
                return None
            pairs = {names[stem, between, word] for stem, between in stems for word in (mean, deviation)}
            other = next(name for name in tensors if name not in pairs)
            step = "Save means and deviations of all tensors; those of one that has none are zeros."
            got = f"{other!r} beside {len(stems)} with {mean} and {deviation}"
            raise ZooError(
                Problem(path, "parameters of a Gaussian", "a mean and a deviation of each tensor", got, step)
            )
        means = {stem: tensors[names[stem, between, mean]] for stem, between in stems}
        deviations = {
            stem: _deviation_of(tensors, names[stem, between, deviation], deviation, facts, path)
            for stem, between in stems
        }
        first = next(iter(means)).partition(".")[0]
        prefix = f"{first}." if all(name.startswith(f"{first}.") and name.count(".") > 1 for name in means) else ""
        both = _interleaved(
            {name.removeprefix(prefix): array for name, array in means.items()},
            {name.removeprefix(prefix): array for name, array in deviations.items()},
        )
        return Picked("", both, gaussian=True, note=_NOTES.get(deviation, ""))
    return None


def _deviation_of(
    tensors: Mapping[str, NDArray[Any]], name: str, word: str, facts: Mapping[str, Any], path: str
) -> NDArray[Any]:
    """The standard deviation that a parameter stands for."""
    array = tensors[name]
    if any(fact.startswith(_CONSTRAINTS) for fact in facts):
        array = _constrained(array, facts.get(f"{_CONSTRAINTS}{name}"), f"{path}: {name}")
    found = _deviation(word, array)
    if (found < 0).any():
        step = "Say so in a file of another form: what these numbers are is not known."
        raise ZooError(Problem(path, f"tensor {name!r}", "standard deviations from 0", f"{found.min():g}", step))
    return found


def _deviation(word: str, array: NDArray[Any]) -> NDArray[Any]:
    """``rho`` is brought to a standard deviation by softplus (Blundell et al. 2015, arXiv 1505.05424, section 3.2)."""
    return np.logaddexp(0, array.astype(np.float64)).astype(array.dtype) if word == "rho" else array


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
