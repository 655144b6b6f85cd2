"""The report of an import: what was added, left out and passed over."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import TYPE_CHECKING, Any

from ckptzoo.console import PrintedResult
from ckptzoo.hub.imports.opened import OpenedSource
from ckptzoo.hub.untrusted.runs import PLAIN_NAMES, facts_of, without_suffixes
from ckptzoo.schema.documents import Document, JsonFields
from ckptzoo.text import counted, excerpt, size

if TYPE_CHECKING:
    from rich.console import Console

_MAX_LISTED = 20
LEFT_OUT = "left out: "
"""Notes of files that hold more than networks begin so."""


@dataclass(frozen=True)
class ImportResult(PrintedResult, JsonFields, named={"adapter": "format", "nbytes": "bytes"}):
    """The result of an import.

    Parameters
    ----------
    to
        the zoo, or the collection of zoos.
    source, adapter
        what was read, and as which format.
    zoos
        folder inside ``to`` (``.`` for itself) and how many checkpoints were added to each.
    added, present
        checkpoints that were added, and files whose checkpoints the zoo had.
    skipped
        files that were left out, each with its problem.
    passed_over
        files that hold no network or were not opened, each with the reason.
    repeated
        ids of one network that came several times, by the first of them.
    notes
        what was done to how many kinds of files, or to how many files.
    forms
        what files were taken for, and how many of each.
    seconds, nbytes
        time taken, bytes of the source.
    """

    to: str
    source: str
    adapter: str
    zoos: Mapping[str, int]
    added: int
    present: int
    skipped: Sequence[Mapping[str, str]]
    passed_over: Sequence[Mapping[str, str]]
    repeated: Mapping[str, Sequence[str]]
    notes: Mapping[str, int]
    forms: Mapping[str, int]
    seconds: float
    nbytes: int

    @classmethod
    def joined(cls, results: Sequence["ImportResult"]) -> "ImportResult":
        """Return what several calls did, one after the other, with one zoo.

        Parameters
        ----------
        results
            of the calls; one at least.
        """
        if len(results) == 1:
            return results[0]

        def summed(name: str) -> dict[str, int]:
            return dict(sum((Counter(getattr(result, name)) for result in results), Counter[str]()))

        last = results[-1]
        return replace(
            last,
            source=", ".join(result.source for result in results),
            adapter=", ".join(dict.fromkeys(result.adapter for result in results)),
            zoos={**last.zoos, **summed("zoos")},
            added=sum(result.added for result in results),
            present=sum(result.present for result in results),
            skipped=[item for result in results for item in result.skipped],
            passed_over=[item for result in results for item in result.passed_over],
            repeated={first: others for result in results for first, others in result.repeated.items()},
            notes=summed("notes"),
            forms=summed("forms"),
            seconds=sum(result.seconds for result in results),
            nbytes=sum(result.nbytes for result in results),
        )

    def to_json(self) -> Document:
        """Every figure by name."""
        return {**super().to_json(), "seconds": round(self.seconds, 3)}

    def print(self, console: "Console | None" = None) -> None:
        """Print what was done, in a few lines.

        Parameters
        ----------
        console
            a rich console; None for the standard output.
        """
        done = f"{counted(self.added, 'checkpoint')} added to {self.to}"
        lines = [f"{self.source} ({self.adapter}): {done} in {self.seconds:.1f} s, {size(self.nbytes)} read"]
        if self.forms:
            lines.append(
                "read: " + ", ".join(f"{words} ({counted(count, 'file')})" for words, count in self.forms.items())
            )
        if self.present:
            lines.append(f"{counted(self.present, 'file')} left out, whose checkpoints the zoo has")
        if len(self.zoos) > 1:
            lines += [f"  {path}: {counted(count, 'checkpoint')}" for path, count in self.zoos.items()]
        lines += [
            f"note: {note} in {counted(count, 'file')}"
            if note.startswith(LEFT_OUT)
            else f"note: {note} ({counted(count, 'time')})"
            for note, count in self.notes.items()
        ]
        for first, others in list(self.repeated.items())[:_MAX_LISTED]:
            lines.append(f"note: one network {len(others) + 1} times: {first} and {_listed(others)}")
        lines += passed_over_lines(self.passed_over)
        # a member of a damaged archive, and then the archive, meet one problem
        problems = list(dict.fromkeys(item["problem"] for item in self.skipped))
        lines += [f"skipped: {problem}" for problem in problems[:_MAX_LISTED]]
        if len(problems) > _MAX_LISTED:
            lines.append(f"... and {len(problems) - _MAX_LISTED:,} more that were skipped")
        for line in lines:
            (print if console is None else console.print)(line)


@dataclass
class RunsOfPaths:
    """The number of members, and the first and last steps and epochs, that the paths of files give."""

    members: set[str] = field(default_factory=set)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    files: int = 0

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Count a file with its rows."""
        self.files += 1
        for row in rows:
            self.members.add(str(row.get("member", "")))
            for name in ("step", "epoch"):
                if isinstance(time := row.get(name), int):
                    first, last = self.ranges.get(name, (time, time))
                    self.ranges[name] = min(first, time), max(last, time)

    def __str__(self) -> str:
        times = (
            f"{name}s {first:,} to {last:,}" if first < last else f"{name} {first:,}"
            for name, (first, last) in self.ranges.items()
        )
        return ", ".join([counted(len(self.members), "member"), *times]) + (
            ", taken from the paths; --member and --step take others"
        )


@dataclass
class NumberedFiles:
    """Files that nothing tells the step of: by what their paths have before a number at the end, the two smallest
    numbers and the greatest common divisor of all.
    """

    numbers: dict[str, tuple[tuple[int, ...], int]] = field(default_factory=dict)

    def add(self, path: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Count a file with its rows."""
        matched = _NUMBERED.fullmatch(without_suffixes(path))
        if matched is None or any("step" in row or "epoch" in row for row in rows):
            return
        before, number = matched[1], int(matched[2])
        smallest, divisor = self.numbers.get(before, ((), 0))
        if before in self.numbers or len(self.numbers) < _MAX_FOLDERS:
            self.numbers[before] = tuple(sorted({*smallest, number})[:2]), gcd(divisor, number)

    def notes(self) -> dict[str, int]:
        """Return a note, with the number of folders that it is about, where numbers may say when files were saved: they
        are round ones, or stand in the folder of a seed, a fold or the like.
        """
        found = [
            (before, smallest)
            for before, (smallest, divisor) in self.numbers.items()
            if len(smallest) > 1 and (divisor >= _ROUND or facts_of(f"{before.rpartition('/')[0]}/"))
        ]
        if not found:
            return {}
        before, (first, second) = found[0]
        note = (
            f"files that differ in a number, such as {first} and {second} after {excerpt(before, 80)!r}, are members "
            "of their own; where the numbers are steps of one run, --member and --step say so"
        )
        return {note: len(found)}


_PLAIN = "|".join(sorted(PLAIN_NAMES))
_NUMBERED = re.compile(rf"((?:.*/)?(?:(?:{_PLAIN})[-_. ]?)?)(\d{{1,18}})", re.IGNORECASE)
"""A path whose last part says nothing but a number."""
_ROUND = 10
"""Numbers that are all multiples of this one, or of a larger one, are likelier steps than a count of members."""
_MAX_FOLDERS = 10_000


def passed_over_files(
    source: OpenedSource, adapter: str, passed: Collection[str], reasons: Mapping[str, str]
) -> tuple[dict[str, str], ...]:
    """Return files that hold no network, those that were not opened, and those that no adapter sees, each with the
    reason.

    ``passed`` are paths of files that were taken for checkpoints; ``reasons`` are those of single files.
    """
    by_name = f"no checkpoint of the format `{adapter}`, by its name"
    by_form = {
        path: by_name if form.is_read or form.is_container else form.reason
        for path, form in source.forms.items()
        if path not in source.opened and path not in passed and path not in source.passed_over
    }
    return tuple(
        {"file": path, "reason": text} for path, text in (source.passed_over | by_form | dict(reasons)).items()
    )


def passed_over_lines(files: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield a line for each reason for which files were passed over."""
    by_reason: dict[str, list[str]] = {}
    for item in files:
        by_reason.setdefault(item["reason"], []).append(item["file"])
    for reason, paths in list(by_reason.items())[:_MAX_LISTED]:
        yield f"passed over {counted(len(paths), 'file')}: {reason}: {_listed([excerpt(path, 80) for path in paths])}"
    if len(by_reason) > _MAX_LISTED:
        yield f"... and for {len(by_reason) - _MAX_LISTED:,} more reasons; --json lists every file"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4:,} more" if len(names) > 4 else "")
