"""``audit``: whether the published steps of training runs are what they say they are, without downloading them."""

import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ckptzoo.arguments import checked
from ckptzoo.console import PrintedResult, columns, say
from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.audits.judgement import Finding, judged
from ckptzoo.hub.audits.sources import Transfer, said, steps_of
from ckptzoo.hub.audits.steps import ROUNDS, Piece, PublishedStep, pieces_of
from ckptzoo.hub.audits.zoos import steps_of_zoo
from ckptzoo.hub.imports.source_lists import open_sources
from ckptzoo.schema import layout
from ckptzoo.schema.documents import JsonFields
from ckptzoo.text import Progress, counted, excerpt, size

if TYPE_CHECKING:
    from rich.console import Console

_WORKERS = 16
_MAX_LISTED = 100
_MOVING = 0.5
"""Share of the tensors of a sample that must move in some run; else other tensors are read too."""


@dataclass(frozen=True)
class Audit(PrintedResult, JsonFields):
    """The result of an audit.

    Parameters
    ----------
    sources
        what was looked at.
    runs, checkpoints
        how many there are.
    findings
        what is wrong.
    notes
        differences that may be right, and questions that were left open.
    passed_over
        files that were not looked into, each with the reason.
    bytes_read, bytes_stored
        what was read of files, of each at most as many bytes as it has, and the size of those that hold checkpoints;
        0 for zoos.
    """

    sources: Sequence[str]
    runs: int
    checkpoints: int
    findings: Sequence[Finding]
    notes: Sequence[Finding]
    passed_over: Sequence[dict[str, str]]
    bytes_read: int
    bytes_stored: int

    def print(self, console: "Console | None" = None) -> None:
        """Print a table of what was found.

        Parameters
        ----------
        console
            a rich console; None for the standard output.
        """
        from rich.console import Console

        out = console or Console()
        for title, items in (("found", self.findings), ("note", self.notes)):
            if not items:
                continue
            table = columns(title)
            for name in ("run", "what"):
                table.add_column(name, overflow="fold")
            for item in items[:_MAX_LISTED]:
                table.add_row(item.kind, excerpt(item.run, 60), item.detail)
            out.print(table)
            if len(items) > _MAX_LISTED:
                say(out, f"... and {len(items) - _MAX_LISTED:,} more; --json lists all")
        steps: dict[str, dict[str, None]] = defaultdict(dict)
        for item in (*self.findings, *self.notes):
            if item.next_step:
                steps[item.next_step][item.kind] = None
        for step, kinds in steps.items():
            say(out, f"{', '.join(kinds)}: {step}")
        for item in self.passed_over[:_MAX_LISTED]:
            say(out, f"not looked into: {excerpt(item['file'], 120)}: {item['reason']}")
        read = f"; {size(self.bytes_read)} read of {size(self.bytes_stored)}" if self.bytes_stored else ""
        found = counted(len(self.findings), "finding") if self.findings else "nothing found"
        say(out, f"{counted(self.checkpoints, 'checkpoint')} of {counted(self.runs, 'run')}: {found}{read}.")


@checked
def audit(
    source: str | Path | Sequence[str | Path],
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    everything: bool = False,
    endpoint: str | None = None,
    token: str | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Look for steps of training runs that are not what they say they are.

    Parameters
    ----------
    source
        a zoo's folder or address, or what ``import_zoo`` takes: folders, files, repositories, patterns over their
        revisions, lists; or several of these.
    include, exclude
        as for ``import_zoo``.
    everything
        read every number: NaN is found everywhere, and equal weights are compared whole.
    endpoint, token
        of the hub of a source ``hf://...``, if they are not those that huggingface_hub uses.
    progress
        called with bytes of the sources that were looked at, and all of them.

    Returns
    -------
    Audit
        What was found, and notes on what may well be right.

    Raises
    ------
    ZooError
        A source cannot be opened, or holds no checkpoints.

    Notes
    -----
    Of each file, also of those that a zoo refers to, the header is read, and the first numbers of a few tensors: a part
    in 300, at least 16 KiB. Of a zoo that holds its weights these tensors are read whole. The digests of
    files come with the listing of a hub. Whether steps are in order is judged by the distances between them
    (``ckptzoo.measure.trajectories``).

    Examples
    --------
    >>> result = ckptzoo.hub.audit("cards/mnist-optunet-trajectories")
    >>> result.runs, list(result.findings)
    (32, [])
    """
    given = [source] if isinstance(source, str | Path) else list(source)
    zoos = [item for item in given if _is_zoo(item)]
    others = [item for item in given if item not in zoos]
    steps: list[PublishedStep] = [
        step for item in zoos for step in steps_of_zoo(item, everything=everything, endpoint=endpoint, token=token)
    ]
    transfer, unreadable, passed = Transfer(), dict[str, str](), dict[str, str]()
    if others:
        opened = open_sources(others, endpoint=endpoint, token=token)
        found = steps_of(opened, transfer, include=include, exclude=exclude, everything=everything, progress=progress)
        steps += found.steps
        unreadable, passed = found.unreadable, found.passed
    if not steps and not unreadable:
        got = "; ".join(f"{path}: {reason}" for path, reason in list(passed.items())[:3]) or "none"
        step = "Name a zoo, or a folder or repository with checkpoint files."
        raise ZooError(Problem(", ".join(map(str, given))[:300], "checkpoints", "at least one", got, step))
    with ThreadPoolExecutor(_WORKERS, "ckptzoo-audit") as pool:
        failed = dict[PublishedStep, str]()

        def read_all(items: Sequence[PublishedStep]) -> None:
            failed.update(filter(None, pool.map(_read_all, items)))

        if everything:
            read_all(steps)
        failed |= _sample([step for step in steps if step not in failed], pool)
        judgement = judged([step for step in steps if step not in failed], read_all, list(failed))
        unreadable |= {step.where: text for step, text in failed.items()}
    findings = [
        *judgement.findings,
        *(Finding("unreadable", path, (), text, "Fetch it again.") for path, text in unreadable.items()),
    ]
    listed = [{"file": path, "reason": reason} for path, reason in passed.items()]
    runs = len({step.run for step in steps})
    return Audit(
        [os.fspath(item) for item in given], runs, len(steps), findings, judgement.notes, listed,
        transfer.nbytes, transfer.stored,
    )  # fmt: skip


def _is_zoo(address: str | Path) -> bool:
    """Tell whether an address is that of a zoo: a folder with its document, or ``org/zoo`` of a hub."""
    path = Path(address)
    return (path / layout.ZOO).is_file() or ("://" not in str(address) and not path.exists())


def _read_all(step: PublishedStep) -> tuple[PublishedStep, str] | None:
    """Read every number of a step; return which it is and why where it cannot be read."""
    try:
        step.reader.read_all(step)
    except (ZooError, OSError) as error:
        return step, said(error)
    return None


def _sample(steps: Sequence[PublishedStep], pool: ThreadPoolExecutor) -> dict[PublishedStep, str]:
    """Read samples, and further ones where the numbers of a run do not move; return which cannot be read, and why."""
    failed = dict[PublishedStep, str]()
    alike: dict[object, list[PublishedStep]] = defaultdict(list)
    for step in steps:
        alike[step.layout].append(step)
    for own in alike.values():
        pieces = list[Piece]()
        for number in range(ROUNDS):
            new = [piece for piece in pieces_of(own[0].layout, number) if piece not in pieces]
            if not new or (number and _moves(own, pieces)):
                break
            pieces += new
            failed |= _read(own, new, pool)
            own = [step for step in own if step not in failed]
            if not own:
                break
    return failed


def _read(
    steps: Sequence[PublishedStep], pieces: Sequence[Piece], pool: ThreadPoolExecutor
) -> dict[PublishedStep, str]:
    by_reader: dict[int, list[PublishedStep]] = defaultdict(list)
    for step in steps:
        by_reader[id(step.reader)].append(step)
    found = pool.map(lambda own: _read_of_one(own, pieces), by_reader.values())
    return {step: text for some in found for step, text in some.items()}


def _read_of_one(steps: Sequence[PublishedStep], pieces: Sequence[Piece]) -> dict[PublishedStep, str]:
    """Read pieces of steps of one reader; where that fails, of one step after another."""
    try:
        steps[0].reader.read(steps, pieces)
    except (ZooError, OSError) as error:
        if len(steps) == 1:
            return {steps[0]: said(error)}
        return {failed: text for step in steps for failed, text in _read_of_one([step], pieces).items()}
    return {}


def _moves(steps: Sequence[PublishedStep], pieces: Sequence[Piece]) -> bool:
    """Tell whether enough of the tensors that were read move within a run."""
    runs: dict[str, list[PublishedStep]] = defaultdict(list)
    for step in steps:
        runs[step.run].append(step)
    several = [own for own in runs.values() if len(own) > 1]
    moving = sum(
        any(len({step.values[piece].tobytes() for step in own if piece in step.values}) > 1 for own in several)
        for piece in pieces
    )
    return not several or moving >= _MOVING * len(pieces)
