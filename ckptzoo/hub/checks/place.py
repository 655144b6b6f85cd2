"""Where a contribution goes: the repository, the zoo in it, and a folder with that zoo's documents alone."""

from pathlib import Path

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.hub.checks.standing import Standing
from ckptzoo.hub.client import Client, Listing
from ckptzoo.loader.zoo import Zoo
from ckptzoo.remote import candidates
from ckptzoo.remote.address import MAIN, HubAddress
from ckptzoo.spec import layout

MAX_DOCUMENT = 64 * 2**20


def repository(address: str) -> str:
    """``org/zoo`` of an address.

    Raises
    ------
    ZooError
        It is no repository, or names a revision or a folder in it.
    """
    for place in candidates(address):
        if isinstance(place, HubAddress) and place.revision == MAIN and not place.folder:
            return place.repo
    raise ZooError(f"{address}: repository: expected org/zoo, got another address. Write org/zoo.")


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
