"""One thing that was looked at, for the commands ``doctor`` and ``serve doctor``; and the type of a file system."""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

Outcome = Literal["ok", "note", "problem"]
OK: Outcome = "ok"
NOTE: Outcome = "note"
PROBLEM: Outcome = "problem"
NETWORK_FILE_SYSTEMS = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "fuse.sshfs",
    "fuse.s3fs",
    "lustre",
    "ceph",
)
"""Types of file systems of other machines, as /proc/mounts has them."""
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
"""A user's name and password within an address."""
_LEAST_SECRET = 8
"""Characters; a shorter text is no token, and may be a part of any word."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Parameters
    ----------
    name
        What was looked at.
    outcome
        ``ok``, ``note`` for what one may want to know, or ``problem``.
    detail
        What was found.
    step
        What to do next; empty where there is nothing to do.
    """

    name: str
    outcome: Outcome
    detail: str
    step: str = ""

    def without(self, secrets: Collection[str]) -> "Check":
        """The same, with each secret and all credentials within addresses replaced by three stars.

        Parameters
        ----------
        secrets
            Texts that are shown to nobody, such as tokens.
        """

        def public(text: str) -> str:
            for secret in secrets:
                text = text.replace(secret, "***") if len(secret) >= _LEAST_SECRET else text
            return _CREDENTIALS.sub("***@", text)

        return replace(self, detail=public(self.detail), step=public(self.step))


def file_system_of(path: Path) -> str:
    """The type of the file system in /proc/mounts; empty where that does not list it."""
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return ""
    # a line is device, folder, type and options; spaces in names are written \040 (fstab(5))
    mounts = [(Path(place.replace("\\040", " ")), kind) for _, place, kind, *_ in map(str.split, lines)]
    resolved = path.resolve()
    holding = [(len(place.parts), kind) for place, kind in mounts if resolved.is_relative_to(place)]
    # of several that are mounted on one folder the last one counts
    return max(reversed(holding), key=lambda item: item[0], default=(0, ""))[1]
