"""What a pull request changes, file by file, and whether that is new parts and nothing else."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ckptzoo.errors import HubError, Problem
from ckptzoo.hub.checks.check import Check, judged
from ckptzoo.hub.client import Client, Listing, Stored
from ckptzoo.spec import layout
from ckptzoo.words import counted, printable, shortened, size

MAX_TABLE = 64 * 2**20
"""Bytes of a part's rows, and of its index."""
MAX_PARTS = 100
_FILE = re.compile(
    rf"{layout.PARTS}/({layout.PART_NAME.pattern})/"
    rf"({re.escape(layout.METADATA)}|{re.escape(layout.INDEX)}|{layout.RAW}-\d{{2,6}}\.safetensors)"
)
"""What a contribution may add. Nothing else is ever written to this machine."""


@dataclass(frozen=True)
class Changes:
    """A pull request's files against those of the commit that it starts from.

    Parameters
    ----------
    base, head, main : that commit, the pull request's last one, and the zoo's as it is now.
    added, changed, deleted : files by name.
    """

    base: Listing
    head: Listing
    main: Listing
    added: Mapping[str, Stored]
    changed: tuple[str, ...]
    deleted: tuple[str, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the folders that are new parts."""
        return tuple(sorted({found[1] for name in self.added if (found := _FILE.fullmatch(name))}))

    @property
    def files(self) -> dict[str, Stored]:
        """The added files that belong to parts."""
        return {name: stored for name, stored in self.added.items() if _FILE.fullmatch(name)}

    @property
    def nbytes(self) -> int:
        """Bytes of the files of new parts."""
        return sum(stored.size for stored in self.files.values())

    def check(self) -> Check:
        """That files of new parts are added, and nothing else happens."""
        wrong = [f"{_shown(name)} is changed" for name in self.changed]
        wrong += [f"{_shown(name)} is deleted" for name in self.deleted]
        wrong += [f"{_shown(name)} is added" for name in self.added if not _FILE.fullmatch(name)]
        held = {name.split("/")[1] for name in {**self.main.files, **self.base.files} if name.startswith("parts/")}
        wrong += [f"{part} is a part of the zoo already" for part in self.parts if part in held]
        if not self.parts:
            wrong.append("no new part")
        return judged("changes", wrong, f"{counted(len(self.parts), 'new part')} and nothing else")

    def sizes(self, most: int) -> Check:
        """That what has to be fetched is bounded."""
        wrong: list[str] = []
        for name, stored in self.files.items():
            if not name.endswith(".safetensors") and stored.size > MAX_TABLE:
                wrong.append(f"{name} has {size(stored.size)}, at most {size(MAX_TABLE)} are read")
        if self.nbytes > most:
            wrong.append(f"{size(self.nbytes)} in all, at most {size(most)} are fetched")
        if len(self.parts) > MAX_PARTS:
            wrong.append(f"{len(self.parts):,} parts, at most {MAX_PARTS} are read")
        return judged("sizes", wrong, size(self.nbytes))

    def order(self) -> Check:
        """Where the new parts come in the zoo's order; anywhere is right, at the end is best."""
        parts = sorted(name.split("/")[1] for name in self.main.files if name.startswith("parts/") and "/" in name[6:])
        last = max((part for part in parts if layout.PART_NAME.fullmatch(part)), default="")
        before = [part for part in self.parts if part < last]
        told = f"{before[0]} comes before {last}, which came meanwhile" if before else "behind the parts that are there"
        return Check("order", "passed", told)


def changes(client: Client, repo: str, number: int) -> Changes:
    """Compare a pull request with the commit that it starts from.

    Raises
    ------
    HubError
        There is no such pull request, or it does not start from a commit of the zoo.
    """
    revision = f"refs/pr/{number}"
    main, head = client.listing(repo), client.listing(repo, revision)
    held = set(client.commits(repo))
    start = next((commit for commit in client.commits(repo, head.commit) if commit in held), None)
    if start is None:
        step = "Close it; its contributor may open another one."
        problem = Problem(client.address(repo), f"pull request {number}", "one that starts from main", "another", step)
        raise HubError(problem)
    base = main if start == main.commit else client.listing(repo, start)
    before, after = base.files, head.files
    return Changes(
        base,
        head,
        main,
        {name: stored for name, stored in after.items() if name not in before},
        tuple(sorted(name for name, stored in after.items() if name in before and before[name] != stored)),
        tuple(sorted(name for name in before if name not in after)),
    )


def _shown(name: str) -> str:
    return shortened(printable(name), 120)
