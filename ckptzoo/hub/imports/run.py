"""``import_zoo``: published checkpoints become a zoo, member by member, without unpacking anything."""

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import ckptzoo
from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, SpecError, ZooError
from ckptzoo.format import durable
from ckptzoo.hub.contributions.evaluation import Factory, network_factory, trace_symmetry
from ckptzoo.hub.imports.adapters import Adapter, FoundCheckpoints, Options
from ckptzoo.hub.imports.adapters.adapter import (
    Broken,
    FoundArrays,
    PassedOver,
    Picked,
    check_options,
    checkpoint_id,
    identifier,
)
from ckptzoo.hub.imports.adapters.files import OF_A_RUN
from ckptzoo.hub.imports.choice import AUTO, chosen_adapter
from ckptzoo.hub.imports.exported import OWN_ARCHITECTURE, OWN_ID, OWN_MEMBER
from ckptzoo.hub.imports.facts import Row, merged
from ckptzoo.hub.imports.one_network import are_surely_one
from ckptzoo.hub.imports.opened import JUNK, OpenedSource
from ckptzoo.hub.imports.reading import Contents, Reader, States, differences
from ckptzoo.hub.imports.report import LEFT_OUT, ImportResult, NumberedFiles, RunsOfPaths, passed_over_files
from ckptzoo.hub.imports.same_architecture import Saved
from ckptzoo.hub.imports.same_source import file_unit, label_of, unit_with
from ckptzoo.hub.imports.source_lists import open_sources
from ckptzoo.hub.imports.sources import ImportSource
from ckptzoo.hub.imports.target import Declaration, NewCheckpoint, TargetZoos, check_folder, unit_of
from ckptzoo.hub.untrusted import Limits, StateDict
from ckptzoo.hub.untrusted.errors import NoNetworkError
from ckptzoo.hub.untrusted.formats import FileForm
from ckptzoo.hub.untrusted.process import ReadingProcess
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.documents import canonical
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import common
from ckptzoo.text import Progress, excerpt

if TYPE_CHECKING:
    from torch import nn

BATCH_FILES, BATCH_BYTES = 256, 64 * 2**20
"""Files that are read together; two such batches are in memory."""
_MAX_LISTED = 20
_MAX_NOTES, _MAX_FOLDERS = 200, 10_000
# what is left out of files is counted by its text, where the number of entries differs from file to file
_OPTIMISER = re.compile(r"(\w+\.)*(optim|optimi[sz]er)(_state(_dict)?)?: \d+ entr", re.IGNORECASE)


@checked
def import_zoo(
    source: str | Path | Sequence[str | Path],
    to: str | Path,
    *,
    adapter: str = AUTO,
    names: Mapping[str, str] | str | None = None,
    arch: str | None = None,
    module: str | Factory | Sequence[str | Factory] | None = None,
    input_shape: Sequence[int] | None = None,
    split_by: str | None = None,
    skip_bad: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    license: str | None = None,
    dataset: str | None = None,
    scaling: tuple[Sequence[float], Sequence[float]] | None = None,
    options: Options | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    progress: Progress | None = None,
) -> ImportResult:
    """Bring published checkpoints into a zoo.

    Parameters
    ----------
    source
        a folder, an archive (tar, also packed, or zip) or a file, here, ``https://...``, ``hf://datasets/org/name`` or
        ``hf://org/model``; ``hf://org/model@step*`` for all branches and tags that fit; a text file (``.txt``) of such
        addresses, one on a line; or several of these.
    to
        the zoo's folder, new or there already: what it has is not read again. Where the source holds several
        architectures, a collection with a zoo for each.
    adapter
        a name of ``ADAPTERS``; ``auto`` recognises the format by the paths in the source, and takes any other source
        for ``files``, which are told by their content.
    names
        old to new names of tensors; ``"order"`` matches them by order where all shapes agree.
    arch
        the forward function, a name of ``ckptzoo.archs``: gives names, symmetries and the shape of inputs.
    module
        ``FILE.py:NAME`` or what makes the network: its symmetries are traced; needs ``input_shape``. Several where
        members differ in their activations: the zoo gets the symmetries that all of them share.
    input_shape
        of one example, without the batch.
    split_by
        ``extra.<name>`` or a column: members that differ in it go to zoos of their own.
    skip_bad
        leave out what cannot be read, and say so; otherwise the first such file ends the import.
    include, exclude
        patterns of the shell (``*.pt``, ``seed0``) that paths, their last parts or their folders fit; by default all
        files are looked at.
    license
        SPDX identifier; needed where the format has none of its own.
    dataset
        the data set that the networks were trained on.
    scaling
        mean and standard deviation of the inputs, ``(pixel / 255 - mean) / std``, one number or one a channel;
        ``derive.predict`` scales images so.
    options
        what single formats take; what the format does not take is refused.
    endpoint, token
        of the hub of a source ``hf://...``, if they are not those that huggingface_hub uses.
    progress
        called with bytes of the source that were read, and all of them.

    Raises
    ------
    ZooError
        A file cannot be read, or does not fit, and is named; what was read before it is in the zoo, and the same call
        goes on from there.

    Notes
    -----
    Memory: two batches of at most 256 files and 64 MiB, or one file that is larger. Files are data: nothing in them
    is executed (``ckptzoo.hub.untrusted``). Killed at any moment and called again, it ends with the same zoo.

    Examples
    --------
    >>> done = ckptzoo.import_zoo("net.safetensors", "zoos/published", arch="optunet", license="CC-BY-4.0")
    >>> done.adapter, done.added
    ('files', 1)
    """
    return bring(
        open_sources(source, endpoint=endpoint, token=token),
        to,
        adapter=adapter,
        names=names,
        arch=arch,
        module=module,
        input_shape=input_shape,
        split_by=split_by,
        skip_bad=skip_bad,
        include=include,
        exclude=exclude,
        license=license,
        dataset=dataset,
        scaling=scaling,
        options=options,
        progress=progress,
    )


def bring(
    source: ImportSource,
    to: str | Path,
    *,
    target: Callable[..., TargetZoos] = TargetZoos,
    importer: "type[Importer] | None" = None,
    adapter: str,
    names: Mapping[str, str] | str | None,
    arch: str | None,
    module: str | Factory | Sequence[str | Factory] | None,
    input_shape: Sequence[int] | None,
    split_by: str | None,
    skip_bad: bool,
    include: Sequence[str],
    exclude: Sequence[str],
    license: str | None,
    dataset: str | None,
    scaling: tuple[Sequence[float], Sequence[float]] | None,
    options: Options | None,
    progress: Progress | None,
) -> ImportResult:
    """Bring the checkpoints of an open source into a zoo, as ``import_zoo``, by the classes that do it."""
    start = time.monotonic()
    folder = Path(to).absolute()
    opened = OpenedSource(source, include, exclude)
    check_folder(folder)
    chosen, options = chosen_adapter(opened, adapter), options or Options()
    check_options(chosen.name, options)
    license = licence_of(opened.address, chosen, license)
    shape = None if input_shape is None else tuple(input_shape)
    declaration = Declaration(folder.name, names or {}, arch, shape, _tracer(module), license, dataset)
    zoos = target(folder, declaration, by_order=chosen.by_order)
    defaults: Row = {"license": license} | ({"dataset": dataset} if dataset is not None else {})
    if scaling is not None:
        _check_scaling(scaling)
    known: dict[str, Any] = {} if scaling is None else {"mean": list(scaling[0]), "std": list(scaling[1])}
    if known:
        defaults["extra"] = known
    run = (importer or Importer)(opened, chosen, zoos, defaults, split_by, skip_bad=skip_bad)
    run.run(options, progress)
    run.note_runs()
    zoos.note_unused_names()
    zoos.end(run.label)
    if zoos.has_several:
        ckptzoo.write_collection(folder)
    result = ImportResult(
        str(to), opened.address, chosen.name, zoos.zoos, run.added, run.present, tuple(run.skipped),
        run.passed_over, {first: tuple(others) for first, others in run.repeated.items()},
        {**zoos.notes, **run.notes}, dict(run.reader.forms),
        time.monotonic() - start, opened.nbytes,
    )  # fmt: skip
    if skip_bad:
        durable.write_file(report_path(folder), canonical(result.to_json()))
    return result


def licence_of(source: str, chosen: Adapter, license: str | None) -> str:
    """Return the licence of rows, the one that was named or that of the format; raise ``ZooError`` without one."""
    if (licence := license or chosen.license) is not None:
        return licence
    step = "Give --license with the SPDX identifier that its authors name, or LicenseRef-unknown."
    got = f"none: the format `{chosen.name}` has no licence of its own"
    raise ZooError(Problem(source, "licence", "one", got, step))


def _check_scaling(scaling: tuple[Sequence[float], Sequence[float]]) -> None:
    mean, std = scaling
    fits = {len(mean), len(std)} <= {1, max(len(mean), len(std))} and len(mean) * len(std) > 0
    if not fits or not all(map(math.isfinite, (*mean, *std))) or min(std) <= 0:
        expected = "finite means, and positive standard deviations, one or one a channel"
        raise ZooError(Problem("import", "scaling", expected, f"{list(mean)}, {list(std)}", "Correct them."))


def report_path(folder: Path) -> Path:
    """Return the path of an import's report, beside the zoo."""
    return folder.with_name(f"{folder.name}-import-report.json")


def _tracer(
    module: str | Factory | Sequence[str | Factory] | None,
) -> Callable[[Architecture], Symmetry | None] | None:
    """Return a function that makes the symmetry table that all modules share; None without a module."""
    modules = [] if module is None else [module] if isinstance(module, str) or callable(module) else list(module)

    def symmetry_of(arch: Architecture) -> Symmetry | None:
        tables: list[Symmetry] = []
        for item in modules:
            factory = network_factory(arch, item)
            assert factory is not None
            table, reason = trace_symmetry(arch, partial(_with_tensors_of, arch, factory))
            if table is None:
                step = "Name networks with these tensors in --module, and the shape of their inputs in --input-shape."
                raise SpecError(Problem(arch.name, "symmetry table", "one of each module", reason, step))
            tables.append(table)
        return common(tables)

    return symmetry_of if modules else None


def _with_tensors_of(arch: Architecture, factory: Factory) -> "nn.Module":
    """Make a network, without hooks and parametrizations that normalise weights where the zoo has no such tensors."""
    module = factory()
    if not any(name not in arch for name in module.state_dict()):
        return module
    from torch.nn import utils

    # parametrizations are those of torch 1.9 and later; weight_norm and spectral_norm of before are hooks, and remove_*
    # raises ValueError where a layer has no such hook
    for layer in module.modules():
        for name in list(getattr(layer, "parametrizations", {})):
            utils.parametrize.remove_parametrizations(layer, name)
        for remove in (utils.remove_weight_norm, utils.remove_spectral_norm):
            # only hooks tell the names of weights that they make
            for hook in list(layer._forward_pre_hooks.values()):  # pyright: ignore[reportPrivateUsage]
                with suppress(ValueError):
                    remove(layer, getattr(hook, "name", ""))
    return module


@dataclass
class _Batch:
    found: list[list[Contents]] = field(default_factory=list)
    """Files, each followed by those that may hold its network in other formats."""
    nbytes: int = 0
    ends_member: bool = False


class Importer:
    """The checkpoints of a source on their way into zoos.

    Collects a batch in one thread while the last one is read in another and the one before it added in a third.
    """

    @property
    def most(self) -> tuple[int, float]:
        """The number of files, and of their bytes, that are read together."""
        return BATCH_FILES, BATCH_BYTES

    @property
    def limits(self) -> Limits:
        """The bounds on a file."""
        return Limits()

    def __init__(
        self,
        source: OpenedSource,
        adapter: Adapter,
        target: TargetZoos,
        defaults: Row,
        split_by: str | None,
        *,
        skip_bad: bool,
    ) -> None:
        self.source, self.adapter, self.target, self.defaults = source, adapter, target, defaults
        self.split_by, self.skip_bad = split_by, skip_bad
        self.label = source.name
        self.added = self.present = 0
        self.skipped: list[dict[str, str]] = []
        self.notes: dict[str, int] = {}
        self._passed_over: dict[str, str] = {}
        self._found: set[str] = set()
        self._taken: set[str] = set()
        self._own_ids: set[str] = set()
        self._times: dict[str, dict[str, tuple[Any, Any]]] = {}
        self._of_runs, self._numbered = RunsOfPaths(), NumberedFiles()
        self.repeated: dict[str, list[str]] = {}
        self._first_ids: dict[bytes, str] = {}
        self._seen: set[str] = set()
        self._batch = _Batch()

    def run(self, options: Options, progress: Progress | None) -> None:
        """Import everything; what was read before an error is published."""
        with ExitStack() as stack:
            self.reader = Reader(stack.enter_context(ReadingProcess(self.limits)), self.source.address)
            # one thread each: parts have the source's order
            self.readers = stack.enter_context(ThreadPoolExecutor(1))
            self.writers = stack.enter_context(ThreadPoolExecutor(1))
            self._read_ahead: tuple[_Batch, Future[list[States | ZooError]]] | None = None
            self._writing: Future[None] | None = None
            try:
                self.label = label_of(self.source, self.adapter, options, self.target, self.reader)
                self.target.begin(self.label)
                self.reader.forms.clear()
                self._collect(options, progress)
                self._finish()
                self._check_found()
            except BaseException as error:
                self._finish_quietly()
                # a file that is refused says nothing against those before it; after a defect or an interrupt they are
                # read again
                if isinstance(error, ZooError):
                    self.target.commit()
                else:
                    self.target.discard()
                raise
            self.target.commit()

    def _collect(self, options: Options, progress: Progress | None) -> None:
        total = self.source.nbytes
        for item in self.adapter.checkpoints(self.source, options):
            if progress is not None:
                progress(min(self.source.position, total), total)
            self._skip_broken()
            self._take(item)
        self._skip_broken()
        self._submit()

    def _skip_broken(self) -> None:
        """Leave out archives that cannot be read to their end."""
        while self.source.broken:
            self._skip(*self.source.broken.pop(0))

    def _take(self, entry: FoundCheckpoints | FoundArrays | PassedOver | Broken) -> None:
        if isinstance(entry, PassedOver):
            self._passed_over[entry.path] = entry.reason
            return
        self._found.update(() if isinstance(entry, FoundArrays) else entry.parts, (entry.path,))
        if isinstance(entry, Broken):
            self._skip(entry.path, entry.error)
            return
        if isinstance(entry, FoundArrays):
            self._finish()
            self._add_arrays(entry)
            return
        unit = file_unit(entry, self.label)
        if unit in self._seen:
            got = entry.id or checkpoint_id(entry.member, entry.step)
            self._refuse(entry.path, "id" if entry.id else "member and step", "each once", got)
            return
        self._seen.add(unit)
        if unit in self.target.units:
            self.present += 1
            return
        batch = self._batch
        most_files, most_bytes = self.most
        if batch.found and (len(batch.found) >= most_files or batch.nbytes + entry.size > most_bytes):
            batch.ends_member = entry.member != batch.found[-1][0][0].member or bool(entry.id)
            self._submit()
        try:
            contents = entry.read()
        except ZooError as error:
            self._skip(entry.path, error)
            return
        files = [(entry, contents)]
        for other in entry.others:
            try:
                files.append((other, other.read()))
            except ZooError as error:
                self._passed_over[other.path] = str(error)
        self._batch.found.append(files)
        # what is packed is larger than its file
        self._batch.nbytes += sum(max(item.size, sum(map(len, data))) for item, data in files)

    def _submit(self) -> None:
        """Begin to read the batch, and to add the one that was read meanwhile."""
        batch, self._batch = self._batch, _Batch()
        self._advance()
        if batch.found:
            files = batch.found[0] if len(batch.found) == 1 else [item for files in batch.found for item in files]
            self._read_ahead = batch, self.readers.submit(self.reader.read, files)

    def _advance(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()
        if self._read_ahead is not None:
            (batch, reading), self._read_ahead = self._read_ahead, None
            states = reading.result()
            self._writing = self.writers.submit(self._add_files, batch, states)

    def _finish(self) -> None:
        self._advance()
        self._advance()

    def _finish_quietly(self) -> None:
        """Add what was read before an error; a second error is a consequence of the first."""
        with suppress(Exception):
            self._submit()
            self._finish()

    def _add_files(self, batch: _Batch, read: list[States | ZooError]) -> None:
        checkpoints: list[tuple[FoundCheckpoints, NewCheckpoint]] = []
        answers = iter(read)
        for files in batch.found:
            network_file, states, others = files[0][0], next(answers), list[tuple[str, str]]()
            if len(files) > 1:
                network_file, states, others = self._one_of(
                    [(network_file, states), *((file, next(answers)) for file, _ in files[1:])]
                )
            try:
                if isinstance(states, ZooError):
                    raise states
                self._note_left_out(states)
                checkpoints_of_file = network_file.pick(states)
                for note in dict.fromkeys(picked.note for picked in checkpoints_of_file):
                    if note and note != OF_A_RUN:
                        self._note(note)
                new = [self._checkpoint(network_file, picked) for picked in checkpoints_of_file]
                if any(picked.note == OF_A_RUN for picked in checkpoints_of_file):
                    self._of_runs.add([item.row for item in new])
                self._note_times(network_file, [item.row for item in new])
                if network_file.id:
                    self._numbered.add(network_file.path, [item.row for item in new])
                checkpoints += [(network_file, item) for item in new]
            except NoNetworkError as error:
                self._passed_over[network_file.path] = "; ".join(item.got for item in error.problems)
            except ZooError as error:
                if not self.skip_bad and checkpoints:
                    self._add(checkpoints)
                    checkpoints = []
                self._skip(network_file.path, error)
            for path, name in others:
                if not self.skip_bad and checkpoints:
                    self._add(checkpoints)
                    checkpoints = []
                self._refuse(path, "id", "each once", name)
        if checkpoints:
            self._add(checkpoints)
        if batch.ends_member:
            self.target.end_member()

    def _one_of(
        self, files: Sequence[tuple[FoundCheckpoints, States | ZooError]]
    ) -> tuple[FoundCheckpoints, States | ZooError, list[tuple[str, str]]]:
        """Return the first of several files of one network that holds it; what is known about the others is noted.

        The result is the file, what it holds, and the paths and ids of others that hold other networks.
        """
        (file, states), others = files[0], list[tuple[str, str]]()
        for item, answer in files[1:]:
            is_none = isinstance(states, NoNetworkError)
            if isinstance(states, ZooError) and (is_none or self.skip_bad) and not isinstance(answer, ZooError):
                if is_none:
                    self._passed_over[file.path] = "; ".join(problem.got for problem in states.problems)
                else:
                    self._skip(file.path, states)
                self._taken.add(item.path)
                file, states = item, answer
            elif isinstance(answer, ZooError):
                self._passed_over[item.path] = "; ".join(problem.got for problem in answer.problems)
            elif not isinstance(states, ZooError):
                differing, count = differences(states, answer)
                if (differing or not count) and not are_surely_one(file.path, item.path):
                    self._taken.add(item.path)
                    others.append((item.path, item.id))
                elif count:
                    known = f"other numbers in {differing} of {count} tensors" if differing else "the same numbers"
                    self._passed_over[item.path] = f"{self.source.reasons[item.path]}; it has {known}"
        return file, states, others

    def _note_left_out(self, states: Sequence[StateDict]) -> None:
        """Count what was left out of a file's networks, by what it is."""
        texts = (text for state in states for text in state.left_out)
        for text in dict.fromkeys("the optimiser's state" if _OPTIMISER.match(text) else text for text in texts):
            self._note(f"{LEFT_OUT}{text}")

    def _note(self, note: str) -> None:
        if note in self.notes or len(self.notes) < _MAX_NOTES:
            self.notes[note] = self.notes.get(note, 0) + 1

    def _note_times(self, file: FoundCheckpoints, rows: Sequence[Row]) -> None:
        """Remember when the files of a folder were saved, so that those of one run can be told from members."""
        if not file.id or len(self._times) >= _MAX_FOLDERS:
            return
        folder = self._times.setdefault(file.path.rpartition("/")[0], {})
        for row in rows:
            time = row.get("epoch", row.get("step"))
            if time is not None and len(folder) < _MAX_LISTED:
                folder.setdefault(row["member"], (time, row.get("seed")))

    def note_runs(self) -> None:
        """Note which members and steps paths say; and folders whose files are members of their own, and were saved at
        several epochs of what may be one run or have numbers that may be steps.
        """
        if self._of_runs.files:
            self.notes[str(self._of_runs)] = self._of_runs.files
        for folder, members in self._times.items():
            times = {time for time, _ in members.values()}
            seeds = [seed for _, seed in members.values()]
            if len(times) > 1 and (None in seeds or len(set(seeds)) < len(seeds)):
                where = f"in {excerpt(folder, 80)}" if folder else "of the source"
                self._note(
                    f"files {where} were saved at several epochs and are members of their own; "
                    "where they are checkpoints of one run, --member names it"
                )
        self.notes.update(self._numbered.notes())

    @property
    def passed_over(self) -> tuple[dict[str, str], ...]:
        """Files that hold no network, and those that were not opened."""
        files = passed_over_files(self.source, self.adapter.name, self._found, self._passed_over)
        return tuple(item for item in files if item["file"] not in self._taken) if self._taken else files

    def _check_found(self) -> None:
        """Raise ``ZooError`` where no file held a network: it names the first files, why they hold none, and the next
        step for those of another program.
        """
        if self.added or self.present or self.skipped:
            return
        passed = [item for item in self.passed_over if item["reason"] != JUNK]
        forms = self.source.forms
        first = sorted(passed, key=lambda item: _order(forms.get(item["file"])))
        got = "; ".join(f"{item['file'][:80]}: {item['reason'].partition('. ')[0][:160]}" for item in first[:3])
        got += f"; and {len(passed) - 3:,} more" if len(passed) > 3 else ""
        form = forms.get(first[0]["file"]) if first else None
        step = "Save model.state_dict() of each network, or say with --layout what vectors hold."
        step = form.next_step if form is not None and form.next_step and not form.is_read else step
        if first and all(item["reason"].startswith("left out by --") for item in first):
            step = "Correct the patterns of --include and --exclude."
        raise ZooError(Problem(self.source.address, "networks", "at least one", got or "no files", step))

    def _checkpoint(self, file: FoundCheckpoints, picked: Picked) -> NewCheckpoint:
        row: Row = {**self.defaults, **file.row, **picked.row}
        row["extra"] = merged(
            self._known(file.path),
            file.row.get("extra", {}),
            picked.row.get("extra", {}),
            {"file": file.path},
        )
        own = {key: row.pop(key, None) for key in (OWN_ID, OWN_MEMBER, OWN_ARCHITECTURE)}
        row["id"] = checkpoint_id(file.id or file.member, None if file.id else file.step, picked.suffix)
        if own[OWN_ID] is not None and not picked.suffix and self._is_free(own[OWN_ID]):
            row |= {"id": own[OWN_ID], "member": own[OWN_MEMBER]}
        row.setdefault("member", checkpoint_id(file.id or file.member, None, picked.suffix))
        if file.step is not None:
            row.setdefault("step", file.step)
        row["unit"] = unit_with(file_unit(file, self.label), picked)
        row["source"] = self.label
        self.target.name_apart(row)
        saved = Saved(picked.tensors, picked.ties, picked.buffers)
        return NewCheckpoint(saved, row, picked.gaussian, self._label(row, file.path), own[OWN_ARCHITECTURE])

    def _known(self, path: str) -> dict[str, Any]:
        """Return what is known of every network of a file: the scaling of its inputs, and its repository."""
        repository = self.source.repository_of(path)
        return {**self.defaults.get("extra", {}), **({"repository": repository} if repository else {})}

    def _is_free(self, id: str) -> bool:
        """Whether no other checkpoint of this source has an id, which is taken then."""
        if id in self._own_ids or self.target.ids.get(id) == self.label:
            return False
        self._own_ids.add(id)
        return True

    def _label(self, row: Row, location: str) -> str:
        """Return the zoo's name where ``split_by`` gives one to each value."""
        if self.split_by is None:
            return ""
        *parents, last = self.split_by.split(".")
        inner: Any = row
        for parent in parents:
            inner = inner.get(parent) if isinstance(inner, Mapping) else None
        value = inner.get(last) if isinstance(inner, Mapping) else None
        if value is None:
            step = "Name something that every row has."
            raise ZooError(Problem(location, f"--split-by {self.split_by}", "a value", "none", step))
        return identifier(f"{last}-{value if isinstance(value, str | int | float) else json.dumps(value)}")

    def _add(self, checkpoints: list[tuple[FoundCheckpoints, NewCheckpoint]]) -> None:
        """Add the checkpoints of a batch; with ``skip_bad`` those that do not fit are left out alone."""
        paths = {id(item): file.path for file, item in checkpoints}

        def refuse(item: NewCheckpoint, error: ZooError) -> None:
            self._skip(paths[id(item)], error)

        added = self.target.add([item for _, item in checkpoints], refuse if self.skip_bad else None)
        self.added += len(added)
        for item in added:
            self._note_repeated(item.saved.tensors.values(), item.row["id"])

    def _note_repeated(self, tensors: Iterable[NDArray[Any]], name: str) -> None:
        digest = _digest(tensors)
        first = self._first_ids.setdefault(digest, name)
        if first != name:
            self.repeated.setdefault(first, []).append(name)

    def _add_arrays(self, arrays: FoundArrays) -> None:
        rows: list[Row] = []
        kept: list[int] = []
        for number, (member, step, columns) in enumerate(zip(arrays.members, arrays.steps, arrays.rows, strict=True)):
            unit = unit_of(self.label, member, step)
            if unit in self.target.units:
                self.present += 1
                continue
            if unit in self._seen:
                self._refuse(arrays.path, "member and step", "each once", checkpoint_id(member, step))
                continue
            self._seen.add(unit)
            extra = merged(self._known(arrays.path), columns.get("extra", {}), {"file": arrays.path.partition("[")[0]})
            row: Row = {**self.defaults, **columns, "extra": extra, "unit": unit, "source": self.label}
            row |= {"id": checkpoint_id(member, step), "member": member}
            if step is not None:
                row.setdefault("step", step)
            self.target.name_apart(row)
            rows.append(row)
            kept.append(number)
        if not kept:
            return
        tensors = dict(arrays.tensors)
        if len(kept) < len(arrays.members):
            tensors = {name: array[kept] for name, array in tensors.items()}
        self.target.add_stacked(tensors, rows, self._label(rows[0], arrays.path))
        for number, row in enumerate(rows):
            self._note_repeated((array[number] for array in tensors.values()), row["id"])
        self.added += len(rows)
        self.target.end_member()

    def _refuse(self, path: str, what: str, expected: str, got: str) -> None:
        step = "Leave one of the files out, with --exclude."
        self._skip(path, ZooError(Problem(f"{self.source.address}: {path}", what, expected, f"{got!r} twice", step)))

    def _skip(self, path: str, error: ZooError) -> None:
        if not self.skip_bad:
            raise error
        self.skipped.append({"file": path, "problem": str(error)})


def _order(form: FileForm | None) -> int:
    """Return a file's rank among those of which none is read: networks of other programs, others, texts."""
    return 1 if form is None or form.is_read else 2 if form.is_text else 0 if form.next_step else 1


def _digest(arrays: Iterable[NDArray[Any]]) -> bytes:
    """Digest a checkpoint's numbers, whatever their names."""
    digest = sha256()
    for array in arrays:
        if array.flags.c_contiguous and array.dtype.kind in "fiu":
            digest.update(array)  # pyright: ignore[reportArgumentType]
        else:  # bfloat16 has no buffer
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))  # pyright: ignore[reportArgumentType]
    return digest.digest()[:16]
