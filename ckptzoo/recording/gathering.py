"""Gathering: recorded checkpoints become parts of their zoo."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.arguments import checked
from ckptzoo.console import PrintedResult
from ckptzoo.errors import IntegrityError, Problem, SpecError, ZooError
from ckptzoo.format.durable import make_folder, write_file
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import read_contents, read_documents
from ckptzoo.format.writer import append
from ckptzoo.recording import unit_files
from ckptzoo.recording.claims import Claims, sweep_old
from ckptzoo.recording.merging import add_units, one_merge
from ckptzoo.recording.units import (
    RECORDER,
    WORK_FOLDER,
    Row,
    checkpoint_id,
    decode_rows,
    member_folder,
    recorded_folder,
    recorded_steps,
)
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.card import CARD_TOML
from ckptzoo.schema.documents import JsonFields, canonical, parse, unseal
from ckptzoo.text import Progress, counted, counter, excerpt

_STACKED_BYTES, _STACKED_ROWS = 8 * 2**20, 1024
"""Checkpoints are written together up to this size and number; one by one, small ones take their time in calls."""
_SET_ASIDE = "Move the file away, and look at what wrote it; the others are gathered without it."
"""The next step for a file that is not what the recorder wrote."""
_AGAIN = "Remove the file; a run of this member that passes its step again saves it again."
"""The next step for a file that is damaged."""
_ROW_BYTES = 2**18
"""Bytes that small checkpoints count as, so that a part has at most 131,072: their rows are in one table, of 1 GiB."""
PROPOSED = "proposed.json"
"""The file, in the folder of unfinished work, with the parts that were proposed to zoos on hubs."""


@dataclass(frozen=True)
class Gathered(PrintedResult, JsonFields):
    """The result of ``gather``.

    Parameters
    ----------
    zoo
        the zoo's folder as it was given.
    parts
        names of the new parts.
    checkpoints, members
        numbers of what was added.
    there
        checkpoints that the zoo had already, of a call that was killed; their files are removed.
    problems
        why files were left.
    """

    zoo: str
    parts: tuple[str, ...]
    checkpoints: int
    members: int
    there: int
    problems: tuple[Problem, ...]

    def print(self, console: Any = None) -> None:
        """Print what was added, and every problem.

        Parameters
        ----------
        console
            by default that of the standard output.
        """
        from rich.console import Console

        screen = console or Console()
        for problem in self.problems:
            screen.print(str(problem), markup=False, highlight=False, soft_wrap=True)
        text = f"{self.zoo}: {counted(self.checkpoints, 'checkpoint')} of {counted(self.members, 'member')} added"
        left = "nothing else waits" if self.problems else "nothing waits"
        text += f" in {counted(len(self.parts), 'part')}." if self.parts else f"; {left}."
        if self.there:
            text += f" {counted(self.there, 'checkpoint')} were there already, from a call that was killed."
        screen.print(text, markup=False, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class _RecordedFile:
    """The file of a recorded checkpoint, by what its name says."""

    path: Path
    step: int


@checked
def gather(path: str | Path, *, progress: Progress | None = None) -> Gathered:
    """Make parts of what was recorded, and remove its files.

    Runs that still record go on, and what they save later is gathered by a later call. The files are read as those of
    somebody else: regular ones only, all bytes compared with their seals, tensors and rows checked as ``Writer.add``
    does. One that is damaged, or of another zoo, stays where it is and is among the problems; the others are added,
    sorted by member and step. A call that was killed at any moment is repeated; nothing is added twice.

    Parameters
    ----------
    path
        the zoo's folder.
    progress
        called with the number of checkpoints read and of all.

    Raises
    ------
    IntegrityError
        ``path`` is no zoo.
    ZooError
        Another process gathers.

    Notes
    -----
    Memory is that of some checkpoints, up to 8 MiB of them or one. A part has at most 32 GiB of weights.

    Examples
    --------
    >>> with ckptzoo.record("zoos/gathered", arch={"w": np.ones(3, np.float32)}, member="a") as run:
    ...     run.save({"w": np.ones(3, np.float32)}, step=1)
    True
    >>> result = ckptzoo.gather("zoos/gathered")
    >>> result.checkpoints, result.members
    (1, 1)
    """
    root = Path(path).absolute()
    _, arch, _ = read_documents(Folder(root))
    folder = recorded_folder(root)
    if not folder.is_dir():
        return Gathered(str(path), (), 0, 0, 0, ())
    plan = unseal((root / layout.ZOO).read_bytes(), location=str(root / layout.ZOO))[1]
    with one_merge(folder, root):
        job = _Gathering(root, arch, plan)
        parts = job.run(folder, progress)
        for member in folder.iterdir():
            if member.is_dir() and not member.is_symlink():
                _remove_if_empty(member)
    for empty in (folder, folder.parent):
        # rmdir refuses a folder with files: others record, or a build is unfinished
        with contextlib.suppress(OSError):
            empty.rmdir()
    return Gathered(str(path), tuple(parts), job.added, len(job.members), job.there, tuple(job.problems))


@contextmanager
def parts_alone(root: Path, parts: Sequence[str]) -> Iterator[Path]:
    """Yield a zoo of some parts of another, in a temporary folder; without parts the zoo itself."""
    if not parts:
        yield root
        return
    # links are read from the temporary folder
    root = root.absolute()
    with tempfile.TemporaryDirectory(prefix="ckptzoo-parts-") as scratch:
        zoo = Path(scratch) / root.name
        zoo.mkdir()
        for name in (*layout.DOCUMENTS, CARD_TOML):
            if (root / name).is_file():
                shutil.copyfile(root / name, zoo / name)
        for part in parts:
            folder = zoo / layout.PARTS / part
            folder.mkdir(parents=True)
            for path in (root / layout.PARTS / part).iterdir():
                # a link to a file is read as the file; copies of large shards would fill the disk of temporary files
                (folder / path.name).symlink_to(path)
        yield zoo


def parts_to_propose(root: Path, repository: str) -> list[str]:
    """Return the parts of a zoo that were not proposed to a zoo on a hub, by ``note_proposed``."""
    names = [path.name for path in (root / layout.PARTS).iterdir()] if (root / layout.PARTS).is_dir() else []
    done = _proposed(root).get(repository, [])
    return sorted(name for name in names if layout.PART_NAME.fullmatch(name) and name not in done)


def note_proposed(root: Path, repository: str, parts: Sequence[str]) -> None:
    """Note that parts were proposed to a zoo on a hub."""
    proposed = _proposed(root)
    proposed[repository] = sorted({*proposed.get(repository, []), *parts})
    make_folder(root / WORK_FOLDER)
    write_file(root / WORK_FOLDER / PROPOSED, canonical(proposed))


def _proposed(root: Path) -> dict[str, list[str]]:
    path = root / WORK_FOLDER / PROPOSED
    if not path.is_file():
        return {}
    content = parse(unit_files.read_small(path), location=str(path))
    return {name: [str(part) for part in parts] for name, parts in content.items() if isinstance(parts, list)}


class _Gathering:
    """One call of ``gather``: which files are added, and which are not and why."""

    def __init__(self, root: Path, arch: Architecture, plan: str) -> None:
        self.root, self.arch, self.plan = root, arch, plan
        self.problems: list[Problem] = []
        self.members = set[str]()
        self.added = self.there = 0
        self._done = set[Path]()
        # compares checkpoints with the architecture, and is not written to
        self._checks = append(root)

    def run(self, folder: Path, progress: Progress | None) -> list[str]:
        """Add everything that waits; return the names of the new parts."""
        files = [
            _RecordedFile(path, step)
            for member in sorted(folder.iterdir())
            if member.is_dir() and not member.is_symlink()
            for step, path in recorded_steps(member).items()
        ]
        known = _created_by_id(self.root) if files else {}
        tick = counter(len(files), progress)
        size = max(1, min(_STACKED_ROWS, _STACKED_BYTES // max(1, self.arch.nbytes)))
        batches = [files[start : start + size] for start in range(0, len(files), size)]
        parts: list[str] = []
        for part in add_units(
            self.root,
            batches,
            nbytes=lambda batch: len(batch) * max(self.arch.nbytes, _ROW_BYTES),
            read=lambda batch: self._read_batch(batch, known, tick),
            forget=self._forget,
        ):
            parts.append(part.name)
            self.added += part.checkpoints
        return parts

    def _read_batch(
        self, batch: Sequence[_RecordedFile], known: Mapping[str, Any], tick: Callable[[], None]
    ) -> Iterator[tuple[dict[str, NDArray[Any]], list[Row]]]:
        """Yield the checkpoints of a batch that are to be added; note the problems of others."""
        weights: list[dict[str, NDArray[Any]]] = []
        rows: list[Row] = []
        for file in batch:
            tick()
            try:
                read = self._read(file)
            except ZooError as error:
                self.problems.extend(error.problems)
                continue
            except OSError as error:
                got = error.strerror or str(error)
                self.problems.append(Problem(str(file.path), "file", "a readable one", got, _SET_ASIDE))
                continue
            if read is None:
                continue
            arrays, row = read
            if row["id"] in known:
                if known[row["id"]] == row["created"]:
                    self.there += 1
                    self._done.add(file.path)
                else:
                    got = f"another, made at {known[row['id']]}"
                    what, expected = f"checkpoint {row['id']!r}", "one that the zoo lacks"
                    self.problems.append(Problem(str(file.path), what, expected, got, _SET_ASIDE))
                continue
            weights.append(arrays)
            rows.append(row)
            self.members.add(row["member"])
            self._done.add(file.path)
        if rows:
            stacked = {name: np.concatenate([arrays[name] for arrays in weights]) for name in weights[0]}
            yield stacked, rows

    def _read(self, file: _RecordedFile) -> tuple[dict[str, NDArray[Any]], Row] | None:
        """Return the tensors, (1, *shape) each, and the row of a file; None where it was removed meanwhile."""
        location = str(file.path)
        try:
            read = unit_files.read(file.path, {"kind": "kept", "number": str(file.step), "plan": self.plan})
        except IntegrityError as error:
            # the step that builds advise is none here
            raise IntegrityError([replace(problem, next_step=_AGAIN) for problem in error.problems]) from error
        if read is None:
            if not file.path.exists():
                return None
            raise IntegrityError(Problem(location, "saved work", "a file with a seal", "none", _SET_ASIDE))
        arrays, facts = read
        member, text = facts.get("unit", ""), facts.get("rows", "")
        if member_folder(self.root, member) != file.path.parent:
            got = f"the folder {file.path.parent.name}"
            raise IntegrityError(Problem(location, f"file of member {member!r}", "its folder", got, _SET_ASIDE))
        rows = decode_rows(text, location=location)
        expected = {"id": checkpoint_id(member, file.step), "member": member, "step": file.step}
        if len(rows) != 1 or {name: rows[0].get(name) for name in expected} != expected:
            got = f"{counted(len(rows), 'row')}, {excerpt(rows[:1])}"
            raise IntegrityError(Problem(location, "row", f"one of {expected['id']!r}", got, _SET_ASIDE))
        if any(len(array.shape) == 0 or len(array) != 1 for array in arrays.values()):
            raise IntegrityError(Problem(location, "tensors", "those of one checkpoint", "others", _SET_ASIDE))
        try:
            checked_arrays, row = self._checks.check({name: array[0] for name, array in arrays.items()}, rows[0])
        except ZooError as error:
            # the zoo's name is no place to look at
            raise SpecError([replace(problem, location=location) for problem in error.problems]) from error
        return checked_arrays, row

    def _forget(self, batch: Sequence[_RecordedFile]) -> None:
        """Remove the files whose checkpoints are in the zoo."""
        for file in batch:
            if file.path in self._done:
                file.path.unlink(missing_ok=True)


def _created_by_id(root: Path) -> dict[str, Any]:
    """Return when each checkpoint of a zoo was made, by its id; those of retracted ones, too."""
    created: dict[str, Any] = {}
    for _, run in read_contents(Folder(root)).raw.rows.runs(["id", "created"]):
        created.update(zip(run["id"].to_pylist(), run["created"].to_pylist(), strict=True))
    return created


def _remove_if_empty(folder: Path) -> None:
    """Remove a member's folder that has no checkpoints and no recorder that is alive."""
    sweep_old(folder)
    claims = Claims(folder)
    newest, holder = claims.newest(RECORDER), claims.holder(RECORDER)
    if recorded_steps(folder) or (holder is not None and holder.alive):
        return
    with contextlib.suppress(OSError):
        # a recorder that takes over meanwhile makes a claim with the next number, and keeps the folder
        if newest is not None and holder is not None:
            newest.unlink(missing_ok=True)
        folder.rmdir()
