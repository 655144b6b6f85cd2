"""Files of a contributor, one after another: which checkpoints each holds, and what its columns say."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

import ckptzoo
from ckptzoo.errors import Problem, SpecError
from ckptzoo.hub.contributions.matching import fit
from ckptzoo.hub.contributions.row_checks import extra_of
from ckptzoo.hub.contributions.submission import Described, Row, Submission
from ckptzoo.hub.contributions.target_zoo import batches
from ckptzoo.hub.untrusted import StateDict, read_all
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture


@dataclass(frozen=True)
class IngestedBatch:
    """Checkpoints of one source.

    Parameters
    ----------
    sources : where each comes from, such as ``net.pt#ema``.
    weights : stacked, as the zoo stores them.
    rows : what their columns say, ids included.
    notes : what was done to make them fit.
    left_out : what their file holds besides.
    """

    sources: tuple[str, ...]
    weights: Mapping[str, NDArray[Any]]
    rows: list[Row]
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass
class Ingestor:
    """Takes files one after another, so that the memory holds those of one; what is wrong with them is collected.

    Parameters
    ----------
    submission : what the contributor says.
    names : old to new names, for all files.
    """

    submission: Submission
    names: Mapping[str, str]
    problems: list[Problem] = field(default_factory=list)
    proposal: str = ""
    _used: set[str] = field(default_factory=set)
    _digests: dict[Path, str] = field(default_factory=dict)

    def take(self, paths: Sequence[Path], arch: Architecture) -> Iterator[IngestedBatch]:
        """The checkpoints of files and of zoos; files that do not fit are left out, and ``problems`` says why."""
        for path in paths:
            if (path / layout.ZOO).is_file():
                yield from self._of_zoo(path, arch)
        for path, found in self.read([path for path in paths if not (path / layout.ZOO).is_file()]):
            try:
                yield self.taken(path, found, arch)
            except SpecError as error:
                self.proposal = self.proposal or getattr(error, "proposal", "")
                self.problems += error.problems
        for item in self.submission.checkpoints:
            if item.file not in self._used:
                step = "Correct its name, or bring the file."
                where = "contribution: checkpoint"
                self.problems.append(Problem(where, "file", "one of the files", repr(item.file)[:120], step))

    def read(self, paths: Sequence[Path]) -> Iterator[tuple[Path, StateDict]]:
        """The state dicts of files; files that cannot be read are problems."""
        for one in read_all(paths):
            if one.error is not None:
                own = getattr(one.error, "problems", None)
                step = str(one.error)
                self.problems += own or [Problem(one.path.name, "file", "checkpoints", "none", step)]
            for found in one.found:
                yield one.path, found

    def taken(self, path: Path, found: StateDict, arch: Architecture) -> IngestedBatch:
        """One state dict of a file, or K of them stacked, under the names of an architecture."""
        fitted = fit(with_aliases(found), arch, self.names, cast=self.submission.cast, location=found.source)
        count = len(next(iter(fitted.weights.values())))
        sources = tuple(f"{found.source}#{number}" for number in range(count)) if fitted.stacked else (found.source,)
        told: Row = {"file": found.source, "file_sha256": self._digest(path)}
        if found.facts:
            told["facts"] = dict(found.facts)
        if fitted.rounded:
            told["rounded_from"] = dict(fitted.rounded)
        rows = [self._row(source, {}, told, count=len(sources)) for source in sources]
        return IngestedBatch(sources, fitted.weights, rows, fitted.notes, found.left_out)

    def _digest(self, path: Path) -> str:
        if path not in self._digests:
            self._digests = {path: digest_of(path)}
        return self._digests[path]

    def _of_zoo(self, path: Path, arch: Architecture) -> Iterator[IngestedBatch]:
        """Every checkpoint of a zoo; its rows stay, and what they lack is filled."""
        zoo = ckptzoo.open(path)
        rows = {row["id"]: row for row in zoo.metadata.to_pylist()}
        for ids, weights in batches(zoo):
            try:
                fitted = fit(weights, arch, self.names, cast=self.submission.cast, location=zoo.name)
            except SpecError as error:
                self.proposal = self.proposal or getattr(error, "proposal", "")
                self.problems += error.problems
                return
            sources = tuple(f"{path.name}#{name}" for name in ids)
            told = {"zoo": zoo.name}
            made = [self._row(source, rows[name], told) for source, name in zip(sources, ids, strict=True)]
            yield IngestedBatch(sources, fitted.weights, made, fitted.notes)

    def _row(self, source: str, given: Row, told: Row, *, count: int = 1) -> Row:
        """A row from what is said of the source, of its file, of its zoo and of all, in this order."""
        submission = self.submission
        own = _described(submission, source) or _described(submission, source.partition("#")[0])
        if own is not None:
            self._used.add(own.file)
        values = dict(own.values) if own is not None else {}
        if own is not None and count > 1 and own.file != source:
            for key in ("id", "member"):
                if key in values:
                    values[key] = f"{values[key]}-{source.rpartition('#')[2]}"
        kept = {key: value for key, value in given.items() if value is not None and key not in ("unit", "finite")}
        row = {**submission.defaults, **kept, **values}
        row.setdefault("id", id_of(source))
        extras = [submission.defaults.get("extra"), extra_of(kept.get("extra")), values.get("extra"), told]
        if submission.training:
            extras.append({"training": submission.training})
        row["extra"] = {key: value for extra in extras for key, value in (extra or {}).items()}
        return row


def _described(submission: Submission, source: str) -> Described | None:
    return next((item for item in submission.checkpoints if item.file == source), None)


def with_aliases(found: StateDict) -> dict[str, NDArray[Any]]:
    """Every tensor of a state dict, tied ones under each of their names."""
    return {**found.tensors, **{name: found.tensors[first] for name, first in found.aliases.items()}}


def id_of(source: str) -> str:
    """An id from the name of a source: ``runs/net 3.pt#ema`` is ``net-3-ema``."""
    name, _, key = source.rpartition("/")[2].partition("#")
    stem = re.sub(r"\.(safetensors|pt|pth|th|bin|ckpt|npz)$", "", name)
    made = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{stem}-{key}" if key else stem).strip("-.")
    return made[:200] or "checkpoint"


def digest_of(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
