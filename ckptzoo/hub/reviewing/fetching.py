"""The new parts of a pull request, fetched into a folder that has the zoo's documents."""

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

    Only names that are those of parts are written; sizes are those of the listing, which were checked.
    """
    afar = open_remote(f"hf://datasets/{repo}@{found.head.commit}", endpoint=client.endpoint, token=client.token)
    done = 0
    for name, stored in found.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for start in range(0, stored.size, _PIECE):
                stop = min(start + _PIECE, stored.size)
                file.write(afar.span(name, start, stop))
                done += stop - start
                if progress is not None:
                    progress(done, found.nbytes)
