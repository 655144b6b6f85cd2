"""``files``: checkpoint files of any program, wherever they are, with their facts in a table."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.hub.imports.adapters.adapter import (
    SUFFIXES,
    Broken,
    FoundCheckpoints,
    Options,
    PassedOver,
    Picked,
    every_state,
    identifier,
    reader,
)
from ckptzoo.hub.imports.adapters.gaussians import cut_gaussian, gaussian_of, moments_of, pairs_of
from ckptzoo.hub.imports.adapters.several import (
    copies_of,
    cut,
    layout_in,
    networks_of,
    refuse_stacked,
    refuse_vectors,
    side_by_side,
    unstacked,
)
from ckptzoo.hub.imports.adapters.side_files import SideFiles
from ckptzoo.hub.imports.array_folders import ArrayFolders, is_tensor_name
from ckptzoo.hub.imports.exported import OWN_ID, OWN_MEMBER
from ckptzoo.hub.imports.facts import flattened, merged, row_of, together
from ckptzoo.hub.imports.opened import OpenedFile, OpenedSource
from ckptzoo.hub.imports.shards import ShardIndex, Shards, Whole
from ckptzoo.hub.imports.tables import Slice, read_layout
from ckptzoo.hub.untrusted import Limits, StateDict
from ckptzoo.hub.untrusted.errors import reject_without_network
from ckptzoo.hub.untrusted.facts import columns_of
from ckptzoo.hub.untrusted.hdf5_files import DRAWS
from ckptzoo.hub.untrusted.layer_trees import WRAPPER_NAMES, is_copy_name
from ckptzoo.hub.untrusted.runs import (
    Run,
    facts_of,
    id_of,
    run_of,
    searched,
    step_of,
    without_plain_name,
    without_suffixes,
)
from ckptzoo.hub.untrusted.siblings import said_of_file

OF_A_RUN = "one of several checkpoints of a run, by its path"
"""A note of a checkpoint whose path says which run it belongs to; the report says how many members and which steps."""


class CheckpointFiles:
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
        """Return True: files are recognised by their content, so that any source may be of this format."""
        return True

    def checkpoints(self, source: OpenedSource, options: Options) -> Iterator[FoundCheckpoints | PassedOver | Broken]:
        """Yield every file whose form is read; shards, and arrays of one folder, as one file."""
        reading = _Reading.of(source.name, options, SideFiles(source))
        yield from reading.beside.passed_over
        shards, arrays = Shards(source.address, reading.beside.indices), ArrayFolders()
        for file in source.files():
            if arrays.has_any:
                yield from (reading.joined(whole) for whole in arrays.left(file.folder))
            if not file.form.is_read:
                if file.path not in source.opened:  # facts beside checkpoints, which were read before
                    yield _not_read(file, source.address)
            elif shards.has(file.path):
                try:
                    whole = shards.add(file)
                except ZooError as error:
                    yield Broken(file.path, error)
                    continue
                if whole is not None:
                    yield reading.shards(whole, f"shards: {file.form.words}")
            elif file.form.name == "npy" and options.layout is None and is_tensor_name(file.name):
                arrays.add(file)
            else:
                checkpoint_file = reading.found(
                    file.path, file.size, reader(file, Limits().file_bytes), file.form.words
                )
                others: list[FoundCheckpoints] = []
                for other in file.others:
                    if other.form.is_read:
                        read = reader(other, Limits().file_bytes)
                        others.append(replace(checkpoint_file, path=other.path, size=other.size, read=read))
                    else:
                        yield PassedOver(other.path, other.form.reason)
                yield replace(checkpoint_file, others=others) if others else checkpoint_file
        yield from (reading.joined(whole) for whole in arrays.left(None))
        yield from (Broken(paths[0], error, paths) for error, paths in shards.missing())
        reading.rows.check_used()


def _not_read(file: OpenedFile, source: str) -> PassedOver | Broken:
    """Report a file that is not read; refuse it where its name says that it should be, and its form is unknown."""
    form = file.form
    is_damaged = form.name in ("unknown", "empty", "text", "web-page") and file.name.lower().endswith(SUFFIXES)
    if form.name != "git-lfs" and not form.name.endswith("-parts") and not is_damaged:
        return PassedOver(file.path, form.reason)
    step = form.step or "Leave it out."
    problem = Problem(f"{source}: {file.path}", "content", "a checkpoint, as its name says", form.words, step)
    return Broken(file.path, IntegrityError(problem))


@dataclass(frozen=True)
class _Reading:
    """The options for the files of a source."""

    source: str
    options: Options
    rows: "_MetadataRows"
    slices: Sequence[Slice] | None
    member: re.Pattern[str] | None
    step: re.Pattern[str] | None
    beside: SideFiles

    @classmethod
    def of(cls, source: str, options: Options, beside: SideFiles) -> "_Reading":
        slices = None if options.layout is None else read_layout(options.layout.encode(), "--layout")
        member, step = (
            None if text is None else _pattern(flag, text)
            for flag, text in (("--member", options.member_pattern), ("--step", options.step_pattern))
        )
        return cls(source, options, _MetadataRows(options.metadata), slices, member, step, beside)

    def joined(self, whole: Whole) -> FoundCheckpoints:
        """Return a folder of arrays as one checkpoint."""
        return self.found(whole.path, whole.size, whole.read, "arrays of numpy.save, a tensor each", whole.parts)

    def shards(self, whole: Whole, form: str) -> FoundCheckpoints:
        """Return a network in shards, which is checked against their index."""
        found = self.found(whole.path, whole.size, whole.read, form, whole.parts)
        return found if whole.index is None else replace(found, pick=partial(_pick_indexed, found.pick, whole.index))

    def found(
        self, path: str, size: int, read: Callable[[], Sequence[bytes]], form: str, parts: Sequence[str] = ()
    ) -> FoundCheckpoints:
        """Return a file, with its run and its facts."""
        facts = {**self.beside.of(path), **self.rows.of(path)}
        is_named = self.member is not None or "member" in facts
        run = self.run(path, facts)
        row = row_of(facts, location=path, percent=self.options.percent, shared=self.beside.shared(path))
        of_a_run = facts_of(path)
        if "seed" in of_a_run:
            by_path = of_a_run.pop("seed")
            if row.get("seed", by_path) != by_path and not self.says_seed(path):
                row["extra"] = merged(row["extra"], {"seed_in_settings": row["seed"]})
                row["seed"] = by_path
            row.setdefault("seed", by_path)
        row["extra"] = merged(of_a_run, row["extra"])
        if run.epoch is not None:
            row.setdefault("epoch", float(run.epoch))
        if self.options.id_pattern is None:
            if (exported := self.beside.exported(path)) is not None:
                row = together(row, exported)
            elif "/" not in path and self.beside.names_network(path):
                row |= {OWN_ID: identifier(self.source), OWN_MEMBER: identifier(self.source)}
        name = _id(path, self.options.id_pattern)
        member = identifier(run.member.replace("/", "-")) if run.member else self.source

        def pick(states: Sequence[StateDict]) -> Sequence[Picked]:
            picked = _picked(states, self.slices, path, self.options)
            is_networks = self.slices is not None and not any("method" in item.row for item in picked)
            return picked if is_networks else _with_runs(picked, run, member, None if is_named else self.source)

        return FoundCheckpoints(path, member, run.step, row, size, read, pick, name, form, parts)

    def says_seed(self, path: str) -> bool:
        """Tell whether the seed in a path is that of a folder in which something else says the seed, too: settings
        of a folder around several seeds are further away than the path.
        """
        parts = path.split("/")
        # the last part alone has a suffix
        folders = [at for at, part in enumerate(parts[:-1]) if "seed" in facts_of(f"{part}/")]
        last = len(parts) - 1 if "seed" in facts_of(parts[-1]) or not folders else folders[-1]
        near = {**self.beside.of(path, within="/".join(parts[: last + 1])), **self.rows.of(path)}
        return "seed" in columns_of(flattened(near))

    def run(self, path: str, facts: dict[str, Any]) -> Run:
        """Return the run of a file: as a row of ``--metadata`` says, else as a pattern finds, else as its path says."""
        by_path = run_of(path)
        member, step = facts.pop("member", None), facts.pop("step", step_of(facts))
        if isinstance(step, float) and step.is_integer():
            step = int(step)
        if step is not None and not (type(step) is int and 0 <= step < 2**63):
            problem = Problem(path, "step, as a file beside it says", "a whole number", repr(step)[:80], "Correct it.")
            raise ZooError(problem)
        if member is None and self.member is not None:
            member = _searched(self.member, "--member", path)
        if step is None and self.step is not None:
            text = _searched(self.step, "--step", path)
            # 18 digits fit into the int64 of the column
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


def _pick_indexed(
    pick: Callable[[Sequence[StateDict]], Sequence[Picked]], index: ShardIndex, states: Sequence[StateDict]
) -> Sequence[Picked]:
    """Refuse a network that lacks tensors which the index of its shards names."""
    there = {name for state in states for name in (*state.tensors, *state.aliases)}
    absent = sorted(frozenset[str]().union(*index.names.values()) - there)
    # other formats than safetensors may hold tensors under names that say how they were wrapped
    if absent and all(file.lower().endswith(".safetensors") for file in index.names):
        file = next(file for file, names in index.names.items() if absent[0] in names)
        got = f"{len(absent)} absent, such as {absent[0][:80]!r}"
        step = "Fetch the shards and the index again, from one release, or leave the index out."
        raise IntegrityError(Problem(file, "tensors", f"those of {index.path}", got, step))
    return pick(states)


def _pattern(flag: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        step = "Correct it: a regular expression, whose first group is taken where it has one."
        raise ZooError(Problem(flag, "pattern", "a regular expression", f"{text[:80]!r} ({error})", step)) from None


def _searched(pattern: re.Pattern[str], flag: str, path: str) -> str:
    text = searched(pattern, path)
    if text is None:
        raise ZooError(Problem(path, flag, f"what {pattern.pattern[:80]!r} finds", "nothing", "Correct the pattern."))
    return text


def _with_runs(picked: Sequence[Picked], run: Run, member: str, source: str | None) -> list[Picked]:
    """Return checkpoints of a file, each with the member and step that its own facts add to those of the path."""
    if len(picked) == 1 and not picked[0].suffix and not run.is_part and not picked[0].row.get("extra"):
        (item,) = picked  # most files: one network, of which nothing more is known
        if "method" not in item.row and "epoch" not in item.row:
            item.row["member"] = member
            return [item]
    keys = [tuple(item.suffix.split(".")) if item.suffix else () for item in picked]
    short = [
        key[:-1] if len(key) > 1 and key[-1] in WRAPPER_NAMES and not is_copy_name(key[-1]) else key for key in keys
    ]
    keys = short if len(set(short)) == len(short) else keys
    own = [_Own.of(item, key, alone=len(picked) == 1) for item, key in zip(picked, keys, strict=True)]
    if (
        source is not None
        and not run.is_part
        and (before := _before_its_step(run.member, [item.step for item in own])) is not None
    ):
        # a number at the end of its name that the file itself says is when it was saved: model_0005000.pth
        run, member = (
            replace(run, is_part=True, member=before),
            identifier(before.replace("/", "-")) if before else source,
        )
    with_copies = {item.base for item in own if item.copy}
    groups: dict[tuple[str, ...], list[_Own]] = {}
    for item in own:
        groups.setdefault(item.parent, []).append(item)
    with_runs: list[Picked] = []
    for item in own:
        if OWN_ID in item.picked.row:  # of an export, which says all of it
            with_runs.append(item.picked)
            continue
        row, group = dict(item.picked.row), groups[item.parent]
        is_trajectory = _is_trajectory(group)
        base = item.parent if is_trajectory else item.base
        if not item.copy and item.parent in with_copies:
            # an average of a run's weights is no run of its own
            base = item.parent
        network = ".".join(item.picked.suffix.split(".")[len(base) :]) if item.picked.suffix else ""
        if item.copy or (base in with_copies and network):
            row["extra"] = merged(row.get("extra", {}), {"network": network})
        if of_a_run := facts_of(item.picked.suffix.replace(".", "/")):
            if "seed" in of_a_run:
                row.setdefault("seed", of_a_run.pop("seed"))
            row["extra"] = merged(of_a_run, row.get("extra", {}))
        if item.step is not None and (run.step is None or is_trajectory or item.step != row.get("epoch")):
            row["step"] = item.step
        name, seed = f"{member}/{identifier('.'.join(base))}" if base else member, row.get("seed")
        # several runs may have saved files of the same names beside one another
        if run.is_part and type(seed) is int and not re.search(r"\d", run.member):
            name += f"-seed{seed}"
        if "method" in row:
            row["mode"] = f"{member}/{row['mode']}" if "mode" in row else member
        row["member"] = name
        with_runs.append(replace(item.picked, row=row, note=item.picked.note or (OF_A_RUN if run.is_part else "")))
    return with_runs


@dataclass(frozen=True)
class _Own:
    """The facts in the key of a checkpoint among several of a file.

    ``parts`` are the words of the key without those of its time; ``copy`` is how many of the last ones say that it is a
    copy of another network, such as an average, or at which end of its run it was kept; ``step`` is when it was saved,
    None where nothing says it.
    """

    picked: Picked
    parts: tuple[str, ...]
    copy: int
    step: int | None

    @classmethod
    def of(cls, picked: Picked, parts: tuple[str, ...], *, alone: bool) -> "_Own":
        if len(parts) > 1 and parts[-1] in ("params", "parameters") and is_copy_name(parts[-2]):
            parts = parts[:-1]
        of_the_run = (at for at, part in enumerate(reversed(parts)) if not is_copy_name(part) and not _is_moment(part))
        copy = next(of_the_run, len(parts))
        moment = _MOMENTS.search(parts[-1].lower()) if parts and not alone else None
        if moment is not None:
            picked = _at_its_moment(picked, is_first=moment[0] != "best")
        step, by_key = _step_of(picked, of_its_own=moment is not None), run_of("/".join(parts)) if parts else None
        if by_key is not None and by_key.step is not None and not alone:
            row = dict(picked.row)
            if by_key.epoch is not None:
                row.setdefault("epoch", by_key.epoch)
            return cls(
                replace(picked, row=row),
                tuple(by_key.member.split("/")) if by_key.member else (),
                0,
                by_key.step if step is None else step,
            )
        return cls(picked, parts, copy, step)

    @property
    def base(self) -> tuple[str, ...]:
        """The words without those of a copy."""
        return self.parts[: len(self.parts) - self.copy]

    @property
    def parent(self) -> tuple[str, ...]:
        """The words that it shares with its siblings: for one that is no copy all but the last."""
        return self.base if self.copy else self.base[:-1]


_MOMENTS = re.compile(r"(?<![a-z])(best|init|initial)(?![a-z])")
"""Words of keys for states that were kept from another time than that at which their file was written."""
_MOMENT_NAMES = {"init", "initial", "start", "final", "last", "latest", "end"}


def _is_moment(part: str) -> bool:
    """Tell whether a word of a key says only at which end of a run its network was kept."""
    return part.lower() in _MOMENT_NAMES


def _at_its_moment(picked: Picked, *, is_first: bool) -> Picked:
    """Return a checkpoint without the facts that are about the time at which its file was written."""
    row = {name: value for name, value in picked.row.items() if not name.startswith(("claimed_", "epoch", "step"))}
    best = picked.row.get("extra", {}).get("best_epoch")
    if is_first or type(best) in (int, float):
        row["epoch"] = 0.0 if is_first else float(best)
    return replace(picked, row=row)


def _is_trajectory(group: Sequence[_Own]) -> bool:
    """Whether they are checkpoints of one run that were saved together, and no folds or seeds."""
    steps = [item.step for item in group]
    is_one = len({_which(item.picked) for item in group}) == 1
    return len(group) > 1 and None not in steps and len(set(steps)) == len(steps) and is_one


def _before_its_step(name: str, steps: Sequence[int | None]) -> str | None:
    """Return a name without the number at its end, where that is when all of a file's checkpoints were saved."""
    matched = _NUMBER_AT_END.fullmatch(name)
    return without_plain_name(matched[1]) if matched is not None and set(steps) == {int(matched[2])} else None


_NUMBER_AT_END = re.compile(r"(|.*?[^\d])[-_. ]?(\d{1,18})")


def _which(picked: Picked) -> tuple[Any, ...]:
    """Return what tells a checkpoint's run from others: its seed, its fold, a number in its key."""
    of_a_run = facts_of(picked.suffix.replace(".", "/"))
    extra = picked.row.get("extra", {})
    return (picked.row.get("seed"), extra.get("fold"), *sorted(of_a_run.items()))


def _step_of(picked: Picked, *, of_its_own: bool) -> int | None:
    """Return the step that a checkpoint's facts name; else its epoch, which orders checkpoints without other facts.

    With ``of_its_own`` the facts are about another time than its own.
    """
    extra, epoch = picked.row.get("extra", {}), picked.row.get("epoch")
    inside = [extra, *(extra[name] for name in ("meta", "train_state") if isinstance(extra.get(name), dict))]
    step = None if of_its_own else next((fact for facts in inside if (fact := step_of(facts)) is not None), None)
    if step is None and isinstance(epoch, float) and epoch.is_integer() and epoch >= 0:
        return int(epoch)
    return step


class _MetadataRows:
    """The rows of ``--metadata`` by the path that they are about, or by its last part."""

    def __init__(self, metadata: Mapping[str, Mapping[str, Any]] | None) -> None:
        self.rows, self.unused = metadata, set(metadata or ())

    def of(self, path: str) -> Mapping[str, Any]:
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
    if pattern is None:
        return id_of(path)
    whole = without_suffixes(path)
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
    if options.networks is not None:
        parts = [part for state in states for part in networks_of(state, options.networks, path)]
        without = replace(options, networks=None)
        return [
            replace(item, note="; ".join(filter(None, (item.note, *(f"left out: {text}" for text in part.left_out)))))
            for part in parts
            for item in _picked([part], slices, path, without)
        ]
    if slices is not None:
        return [item for state in states for item in _of_vectors(state, slices, path, options)]
    if (pairs := pairs_of(states, path)) is not None:
        return [_with_facts(item, states, path, options) for item in pairs]
    if len(states) == 1 and (written := layout_in(states[0])) is not None:
        return list(_of_vectors(states[0], written, path, options))
    if meaning := said_of_file(without_suffixes(path).rpartition("/")[2]):
        reject_without_network(path, f"{meaning}, by its name", "Leave it out.")
    states = [part for state in states for part in copies_of(state)]
    checkpoints: list[Picked] = []
    for picked, state in zip(every_state(states), states, strict=True):
        refuse_vectors(picked.tensors, path)
        by_chain = DRAWS in state.facts and options.stacked is not False
        facts = {name: value for name, value in state.facts.items() if name != DRAWS} if by_chain else state.facts
        row = row_of(facts, location=path, percent=options.percent)
        gaussian = gaussian_of(picked.tensors, state.facts, path)
        if options.stacked is None and not by_chain:
            refuse_stacked(picked.tensors, path)
        if gaussian is not None and gaussian.gaussian:
            checkpoints.append(replace(gaussian, suffix=picked.suffix, row={**row, **gaussian.row}))
        elif options.stacked or by_chain:
            checkpoints += unstacked(replace(picked, row=row), path, by_chain=by_chain)
        else:
            note = side_by_side(picked.tensors) if gaussian is None else gaussian.note
            checkpoints.append(
                Picked(picked.suffix, picked.tensors, row, note=note, ties=picked.ties, buffers=picked.buffers)
            )
    return checkpoints


def _with_facts(item: Picked, states: Sequence[StateDict], path: str, options: Options) -> Picked:
    """Return a Gaussian with what stands beside the state dicts that it is of."""
    facts: dict[str, Any] = {}
    for state in states:
        if state.source.partition("#")[2].startswith(item.suffix):
            facts |= state.facts
    row = row_of(facts, location=path, percent=options.percent)
    return replace(item, row=together(row, item.row))


def _of_vectors(state: StateDict, slices: Sequence[Slice], path: str, options: Options) -> Iterator[Picked]:
    """Yield what vectors hold: the moments of a posterior, samples, or networks."""
    (picked,) = every_state([state])
    if (moments := moments_of(picked.tensors, state.facts, path)) is not None:
        gaussian = cut_gaussian(moments, slices, path)
        yield replace(
            gaussian,
            suffix=picked.suffix,
            row={**row_of(state.facts, location=path, percent=options.percent), **gaussian.row},
        )
        return
    are_samples = options.stacked if options.stacked is not None else DRAWS in state.facts
    yield from cut(picked, slices, path, are_samples=are_samples)
