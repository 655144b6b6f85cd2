"""Where a contribution goes: the zoo in a repository, and a folder with that zoo's documents alone."""

from pathlib import Path

import ckptzoo
from ckptzoo.hub.checks.standing import Standing
from ckptzoo.hub.client import Client, Listing
from ckptzoo.loader.zoo import Zoo
from ckptzoo.spec import layout

MAX_DOCUMENT = 64 * 2**20


def opened(client: Client, repo: str, listing: Listing) -> Zoo:
    """A zoo on a hub as it was at a commit."""
    return ckptzoo.open(f"hf://datasets/{repo}@{listing.commit}", endpoint=client.endpoint, token=client.token)


def skeleton(standing: Standing, folder: Path) -> Path:
    """Write a zoo's documents into a new folder."""
    files = standing.zoo.contents.files
    folder.mkdir(parents=True)
    for name in (layout.ZOO, layout.ARCHITECTURE, layout.SYMMETRY):
        if files.size(name) is not None:
            (folder / name).write_bytes(files.read(name, max_bytes=MAX_DOCUMENT))
    return folder
