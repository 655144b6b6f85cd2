"""``Ingestor``: reads a contributor's files one after another, and makes stacked weights and metadata rows of each."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

import ckptzoo
from ckptzoo.errors import Problem, SpecError
from ckptzoo.hub.contributions.file_names import distinct_names
from ckptzoo.hub.contributions.matching import NamesError, State, fit
from ckptzoo.hub.contributions.submission import CheckpointDescription, Row, Submission
from ckptzoo.hub.contributions.target_zoo import batches
from ckptzoo.hub.untrusted import StateDict, read_all
from ckptzoo.hub.untrusted.facts import own_columns
from ckptzoo.hub.untrusted.runs import id_of, identifier
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.metadata import MAX_ID, parse_extra


@dataclass(frozen=True)
class IngestedBatch:
    """Checkpoints of one source.

    ``sources`` says where each comes from, such as ``net.pt#ema``; ``weights`` are stacked as the zoo stores them;
    ``rows`` include ids; ``notes`` says how they were made to fit, ``left_out`` what their file holds besides
    checkpoints.
    """

    sources: tuple[str, ...]
    weights: Mapping[str, NDArray[Any]]
    rows: list[Row]
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass
class Ingestor:
    """Reads files one after another, so that memory holds one of them, and collects problems.

    ``names`` maps old to new names, for all files. ``namespace`` is the start of ids and members, before a slash; None
    where they stay as they are. ``problems`` has the files that do not fit, ``misnamed`` the first state dict whose
    names do not fit and the tables that may be right; None where all fit.
    """

    submission: Submission
    names: Mapping[str, str]
    namespace: str | None = None
    problems: list[Problem] = field(default_factory=list)
    misnamed: tuple[State, tuple[Mapping[str, str], ...]] | None = None
    _used_descriptions: set[str] = field(default_factory=set)
    _digests: dict[Path, str] = field(default_factory=dict)

    def ingest(self, paths: Sequence[Path], arch: Architecture) -> Iterator[IngestedBatch]:
        """Yield the checkpoints of files and of zoos; files that do not fit are left out, and ``problems`` says why."""
        for path in paths:
            if (path / layout.ZOO).is_file():
                yield from self._ingest_zoo(path, arch)
        for path, state in self.read_states([path for path in paths if not (path / layout.ZOO).is_file()]):
            pattern = self.submission.pattern
            if pattern is not None and pattern.columns(path.name) is None:
                step = "Rename it, correct the pattern, or bring it in a contribution of its own."
                self.problems.append(Problem(path.name, "name", pattern.text, "another form", step))
                continue
            try:
                yield self.fit_state(path, state, arch)
            except SpecError as error:
                self._note(error, state.tensors)
        for item in self.submission.checkpoints:
            if item.file not in self._used_descriptions:
                step = "Correct its name, or bring the file."
                location = "contribution: checkpoint"
                self.problems.append(Problem(location, "file", "one of the files", repr(item.file)[:120], step))

    def _note(self, error: SpecError, state: State) -> None:
        self.problems += error.problems
        if self.misnamed is None and isinstance(error, NamesError) and error.proposals:
            self.misnamed = state, error.proposals

    def read_states(self, paths: Sequence[Path]) -> Iterator[tuple[Path, StateDict]]:
        """Yield the state dicts of files; files that cannot be read are problems."""
        names = distinct_names(paths)
        for file in read_all(paths):
            if file.error is not None:
                step = str(file.error)
                self.problems += file.error.problems or [Problem(file.path.name, "file", "checkpoints", "none", step)]
            for state in file.states:
                _, mark, key = state.source.partition("#")
                yield file.path, replace(state, source=f"{names[file.path]}{mark}{key}")

    def fit_state(self, path: Path, state: StateDict, arch: Architecture) -> IngestedBatch:
        """Fit one state dict of a file, or K of them stacked, to the names of an architecture."""
        fitted = fit(state.tensors, arch, self.names, cast=self.submission.cast, location=state.source)
        count = len(next(iter(fitted.weights.values())))
        sources = tuple(f"{state.source}#{number}" for number in range(count)) if fitted.stacked else (state.source,)
        origin: Row = {"file": state.source, "file_sha256": self._digest(path)}
        if state.facts:
            origin["facts"] = dict(state.facts)
        if fitted.rounded:
            origin["rounded_from"] = dict(fitted.rounded)
        rows = [self._row(source, {}, origin, count=len(sources)) for source in sources]
        return IngestedBatch(sources, fitted.weights, rows, fitted.notes, state.left_out)

    def _digest(self, path: Path) -> str:
        if path not in self._digests:  # the last file's alone: the state dicts of a file follow one another
            self._digests = {path: file_digest(path)}
        return self._digests[path]

    def _ingest_zoo(self, path: Path, arch: Architecture) -> Iterator[IngestedBatch]:
        """Yield every checkpoint of a zoo; its rows are kept, and what they lack is added."""
        zoo = ckptzoo.open(path)
        rows = {row["id"]: row for row in zoo.metadata.to_pylist()}
        for ids, weights in batches(zoo):
            try:
                fitted = fit(weights, arch, self.names, cast=self.submission.cast, location=zoo.name)
            except SpecError as error:
                self._note(error, weights)
                return
            sources = tuple(f"{path.name}#{name}" for name in ids)
            origin = {"zoo": zoo.name}
            filled = [self._row(source, rows[name], origin) for source, name in zip(sources, ids, strict=True)]
            yield IngestedBatch(sources, fitted.weights, filled, fitted.notes)

    def _row(self, source: str, zoo_row: Row, origin: Row, *, count: int = 1) -> Row:
        """Make a row: what the contributor says of the checkpoint or of its file, else what the file's name says, else
        the zoo's row, else the defaults, else the file's own entries.
        """
        submission, file = self.submission, source.partition("#")[0]
        described = _description_of(submission, source) or _description_of(submission, file)
        pattern, name = submission.pattern, file.rpartition("/")[2]
        values: Row = (pattern.columns(name) if pattern is not None else None) or {}
        if described is not None:
            self._used_descriptions.add(described.file)
            values |= described.values
        if count > 1 and (described is None or described.file != source):
            for key in ("id", "member"):
                if key in values:
                    values[key] = f"{values[key]}-{source.rpartition('#')[2]}"
            if "draw" in values:  # of the first of them
                values["draw"] += int(source.rpartition("#")[2])
        # A checkpoint's unit is the digest of its weights in the zoo that it goes to; the writer finds what is finite.
        from_zoo = {key: value for key, value in zoo_row.items() if value is not None and key not in ("unit", "finite")}
        own = own_columns(file, origin.get("facts", {})) if "file" in origin else {}
        if count > 1:  # networks that are stacked are no steps of one run
            own.pop("member", None)
        row = {**own, **submission.defaults, **from_zoo, **values}
        row.setdefault("id", id_from_source(source))
        extras = [submission.defaults.get("extra"), parse_extra(from_zoo.get("extra")), values.get("extra"), origin]
        if submission.training:
            extras.append({"training": submission.training})
        if self.namespace is not None:
            extras.append({"contributed_as": self._move_into_namespace(row, self.namespace)})
        row["extra"] = {key: value for extra in extras for key, value in (extra or {}).items()}
        return row

    @staticmethod
    def _move_into_namespace(row: Row, namespace: str) -> Row:
        """Give a row an id and a member that no builder of the zoo's owner allots; return those that it had."""
        before = {key: row[key] for key in ("id", "member") if row.get(key) is not None}
        for key, name in before.items():
            # those of a zoo whose checkpoints the same contributor brought to another zoo have theirs already
            row[key] = name if name.startswith(f"{namespace}/") else f"{namespace}/{name}"
        return before


def _description_of(submission: Submission, source: str) -> CheckpointDescription | None:
    return next((item for item in submission.checkpoints if item.file == source), None)


def id_from_source(source: str) -> str:
    """Return an id from the name of a source.

    >>> id_from_source("run 1/net 3.pth.tar#ema")
    'run-1-net-3-ema'
    """
    name, _, key = source.partition("#")
    return (id_of(name) + (f"-{identifier(key)}" if key else ""))[:MAX_ID]


def file_digest(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
