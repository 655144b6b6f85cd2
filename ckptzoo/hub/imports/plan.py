"""``plan_import``: what an import would take each file for, without reading networks and without writing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ckptzoo.arguments import checked
from ckptzoo.console import PrintedResult, columns
from ckptzoo.console import say as say_lines
from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.imports.adapters import Options
from ckptzoo.hub.imports.adapters.adapter import Broken, FoundArrays, PassedOver, check_options, checkpoint_id
from ckptzoo.hub.imports.choice import AUTO, chosen_adapter
from ckptzoo.hub.imports.exported import OWN_ID, OWN_MEMBER
from ckptzoo.hub.imports.opened import OpenedSource
from ckptzoo.hub.imports.report import passed_over_files, passed_over_lines
from ckptzoo.hub.imports.run import licence_of
from ckptzoo.hub.imports.source_lists import open_sources
from ckptzoo.schema.documents import JsonFields
from ckptzoo.text import Progress, counted, excerpt

if TYPE_CHECKING:
    from rich.console import Console

_MAX_LISTED = 100
_MAX_SHOWN = 60
_MAX_FACTS = 8


@dataclass(frozen=True)
class PlannedFile:
    """One file of a plan.

    Parameters
    ----------
    file
        its path in the source.
    taken_for
        what it is.
    id, member
        that its network would get; of a file with several they begin so.
    step
        that its name says; None where it says none.
    """

    file: str
    taken_for: str
    id: str
    member: str
    step: int | None


@dataclass(frozen=True)
class ImportPlan(PrintedResult, JsonFields, named={"adapter": "format"}):
    """The files that an import would read and pass over.

    Parameters
    ----------
    source, adapter
        what was looked at, and as which format.
    files
        those that would be read.
    passed_over
        the others, each with the reason.
    problems
        files that cannot be read, each with the problem.
    refused
        why the import would be refused as it is; empty where nothing is known.
    facts
        files whose facts rows get, and where they have them.
    """

    source: str
    adapter: str
    files: Sequence[PlannedFile]
    passed_over: Sequence[Mapping[str, str]]
    problems: Sequence[Mapping[str, str]]
    refused: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)

    def print(self, console: "Console | None" = None) -> None:
        """Print a table of the files, and what is passed over.

        Parameters
        ----------
        console
            a rich console; None for the standard output.
        """
        from rich.console import Console

        out = console or Console()
        members = len({item.member for item in self.files})
        of_members = f" of {counted(members, 'member')}" if self.files else ""
        say_lines(out, f"{self.source} ({self.adapter}): {counted(len(self.files), 'file')} to read{of_members}")
        table = columns("file")
        for name in ("taken for", "member", "step"):
            table.add_column(name, overflow="fold")
        for item in self.files[:_MAX_LISTED]:
            cells = (item.file, item.taken_for, item.member, "" if item.step is None else str(item.step))
            table.add_row(*(excerpt(cell, _MAX_SHOWN) for cell in cells))
        if self.files:
            out.print(table)
        if len(self.files) > _MAX_LISTED:
            say_lines(out, f"... and {len(self.files) - _MAX_LISTED:,} more; --json lists every file")
        read = [f"facts are read from {excerpt(path, _MAX_SHOWN)}: {to}" for path, to in self.facts.items()]
        more = [f"... and from {len(read) - _MAX_FACTS:,} more; --json lists them"] if len(read) > _MAX_FACTS else []
        say_lines(out, *read[:_MAX_FACTS], *more)
        say_lines(out, *passed_over_lines(self.passed_over))
        say_lines(out, *(f"cannot be read: {item['problem']}" for item in self.problems[:_MAX_LISTED]))
        say_lines(out, *([f"the import would be refused: {self.refused}"] if self.refused else []))


@checked
def plan_import(
    source: str | Path | Sequence[str | Path],
    *,
    adapter: str = AUTO,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    license: str | None = None,
    options: Options | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    progress: Progress | None = None,
) -> ImportPlan:
    """Tell how ``import_zoo`` would read each file of a source; networks are not read, and nothing is written.

    Parameters
    ----------
    source, adapter, include, exclude, license, options, endpoint, token, progress
        as for ``import_zoo``.

    Raises
    ------
    ZooError
        The source cannot be opened, or options do not fit it.

    Notes
    -----
    The first bytes of every file are read, those of a hub only where its name does not tell what it is.

    Examples
    --------
    >>> np.savez("net.npz", weight=np.ones((2, 3)))
    >>> plan = ckptzoo.hub.plan_import("net.npz")
    >>> [(item.file, item.taken_for, item.member) for item in plan.files]
    [('net.npz', 'an .npz archive', 'net')]
    """
    opened = OpenedSource(open_sources(source, endpoint=endpoint, token=token), include, exclude)
    chosen, options = chosen_adapter(opened, adapter), options or Options()
    check_options(chosen.name, options)
    files, passed, problems = list[PlannedFile](), dict[str, str](), list[dict[str, str]]()
    named = set[str]()
    try:
        for entry in chosen.checkpoints(opened, options):
            if progress is not None:
                progress(min(opened.position, opened.nbytes), opened.nbytes)
            if isinstance(entry, PassedOver):
                passed[entry.path] = entry.reason
            elif isinstance(entry, Broken):
                problems.append({"file": entry.path, "problem": str(entry.error)})
                named.update(entry.parts)
            elif isinstance(entry, FoundArrays):
                files += [
                    PlannedFile(entry.path, f"a row of {chosen.name}", checkpoint_id(member, step), member, step)
                    for member, step in zip(entry.members, entry.steps, strict=True)
                ]
            else:
                name = entry.row.get(OWN_ID) or entry.id or checkpoint_id(entry.member, entry.step)
                form = entry.form or (opened.forms[entry.path].words if entry.path in opened.forms else chosen.name)
                files.append(PlannedFile(entry.path, form, name, entry.row.get(OWN_MEMBER, entry.member), entry.step))
                named.update(entry.parts)
    except ZooError as error:  # an archive that ends in its middle, a row without a file
        problems.append({"file": opened.address, "problem": str(error)})
    problems += [{"file": path, "problem": str(error)} for path, error in opened.broken]
    problems += _repeated(files, opened.address)
    refused = ""
    try:
        licence_of(opened.address, chosen, license)
    except ZooError as error:
        refused = str(error)
    named |= {item.file for item in files} | {item["file"] for item in problems}
    passed_over = passed_over_files(opened, chosen.name, named, passed)
    return ImportPlan(opened.address, chosen.name, files, passed_over, problems, refused, opened.facts)


def _repeated(files: Sequence[PlannedFile], address: str) -> list[dict[str, str]]:
    """Return the files whose ids came before."""
    seen, planned = set[str](), list[dict[str, str]]()
    for item in files:
        if item.id in seen:
            step = "Leave one of the files out, with --exclude."
            problem = Problem(f"{address}: {item.file}", "id", "each once", f"{item.id!r} twice", step)
            planned.append({"file": item.file, "problem": str(ZooError(problem))})
        seen.add(item.id)
    return planned
