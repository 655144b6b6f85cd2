"""The new parts of a pull request, fetched into a folder that has the zoo's documents."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from ckptzoo.hub.client import Client
from ckptzoo.hub.reviewing.changes import Changes
from ckptzoo.remote import open_remote

_PIECE = 16 * 2**20


def fetch(
    client: Client, repo: str, found: Changes, folder: Path, progress: Callable[[int, int], None] | None = None
) -> None:
    """Write the files of new parts, pinned to the pull request's commit; digests are for the caller to check.

    Only names that are those of parts are written; sizes are those of the listing, which were checked. What came
    otherwise than the hub lists it is fetched once more, so that a damaged line is not taken for a damaged part.
    """
    afar = open_remote(f"hf://datasets/{repo}@{found.head.commit}", endpoint=client.endpoint, token=client.token)
    done = 0
    for name, stored in found.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % stored.size, usedforsecurity=False)
            with path.open("wb") as file:
                for start in range(0, stored.size, _PIECE):
                    data = afar.span(name, start, min(start + _PIECE, stored.size))
                    for taker in (file.write, sha256.update, git.update):
                        taker(data)
                    if progress is not None:
                        progress(done + start + len(data), found.nbytes)
            came = git.hexdigest() if stored.sha256 is None else sha256.hexdigest()
            if came == (stored.sha256 or stored.oid):
                break
        done += stored.size
