"""From an address to what reads it: which of the candidates is there, through which store and cache."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from ckptzoo.errors import AbsentError, OfflineError, Problem, RemoteError, ZooError
from ckptzoo.remote.address import Address, FolderAddress, HubAddress, WebAddress, candidates
from ckptzoo.remote.cache import Cache, Remembered
from ckptzoo.remote.filesystem import FilesystemStore
from ckptzoo.remote.folder import FolderStore
from ckptzoo.remote.held import cache_limit, cache_root, is_offline
from ckptzoo.remote.hub import HubStore, default_endpoint, hub_address
from ckptzoo.remote.kept import KeptStore
from ckptzoo.remote.patience import Patience
from ckptzoo.remote.remote import Remote
from ckptzoo.remote.static import StaticStore
from ckptzoo.remote.store import Store

GUESS_SECONDS = 8.0
"""So long a hub is asked for a repository whose address may as well be that of a folder."""
OPENING_SECONDS = 20.0
"""So long any machine is asked for what it holds, before it is said that it gives no answer."""
LATEST = "latest"
"""What the cache calls the revision of places that have no names for revisions."""


def open_remote(
    address: str | os.PathLike[str],
    *,
    endpoint: str | None = None,
    token: str | None = None,
    patience: Patience | None = None,
) -> Remote:
    """The zoo at an address, pinned to the revision that it has now.

    Parameters
    ----------
    address : a folder, ``org/zoo``, ``hf://datasets/org/zoo@revision``, ``https://host/path/zoo`` or an fsspec address.
        A folder that exists wins over a repository of the same name.
    endpoint, token : of the hub, if they are not those that huggingface_hub uses.

    Raises
    ------
    AbsentError
        There is none; the message names every place that was tried.
    OfflineError
        The network is not to be used (``CKPTZOO_OFFLINE=1`` or ``HF_HUB_OFFLINE=1``), and the cache does not know it.

    Notes
    -----
    One request for repositories and web servers. A revision that is a commit is asked for once, then remembered.
    """
    places = [FolderAddress(Path(address))] if isinstance(address, os.PathLike) else candidates(address)
    patience = patience or Patience()
    # what may be a folder's name mistyped nobody wants to wait for
    first = replace(patience, grace=min(patience.grace, OPENING_SECONDS if len(places) == 1 else GUESS_SECONDS))
    tried: list[str] = []
    kind: type[RemoteError] = AbsentError
    for place in places:
        try:
            return _opened(place, endpoint, token, patience, first)
        except RemoteError as error:
            if len(places) == 1:
                raise
            kind = type(error)
            tried.append(f"{place} ({error.problem.got})")
    step = {
        AbsentError: "Check the name; make a zoo of your own with ckptzoo.create.",
        OfflineError: "Unset CKPTZOO_OFFLINE and HF_HUB_OFFLINE to look for it.",
    }.get(kind, "Check the name and the network.")
    raise kind(Problem(str(address), "a zoo", "a folder or a repository", f"neither: {'; '.join(tried)}", step))


def _opened(place: Address, endpoint: str | None, token: str | None, patience: Patience, first: Patience) -> Remote:
    match place:
        case FolderAddress(path=path):
            if not path.is_dir():
                got = "a file" if path.exists() else "nothing"
                step = "Make one with ckptzoo.create or python -m builders build."
                raise AbsentError(Problem(str(path), "a zoo", "a folder", got, step))
            return Remote(FolderStore(path), None, patience=patience)
        case HubAddress():
            hub = _checked(endpoint or default_endpoint())

            def from_hub(cache: Cache) -> Store:
                known = cache.remembered(place.revision)
                if known is not None and known.revision == place.revision:
                    return HubStore(place, known.revision, known.entries, endpoint=hub, token=token)
                return HubStore.opened(place, patience=first, endpoint=hub, token=token)

            return _through(hub_address(place, hub), place.revision, from_hub, patience)
        case WebAddress(url=url):
            return _through(url, LATEST, lambda _: StaticStore.opened(url, patience=first), patience)
        case _:
            return _through(place.url, LATEST, lambda _: FilesystemStore(place.url), patience)


def _checked(endpoint: str) -> str:
    """A hub's address, without a final slash."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ZooError(
            f"HF_ENDPOINT: address of the hub: expected http://... or https://..., got {endpoint}. Correct it."
        )
    return endpoint.rstrip("/")


def _through(address: str, asked: str, ask: Callable[[Cache], Store], patience: Patience) -> Remote:
    """A store with its cache; offline, what the cache remembers of it."""
    offline = is_offline()
    cache = Cache(cache_root(), address, limit=cache_limit(), evicts=not offline)
    if offline:
        known = cache.remembered(asked)
        if known is None:
            got, step = "nothing", "Unset CKPTZOO_OFFLINE and HF_HUB_OFFLINE to look for it."
            raise OfflineError(Problem(address, f"revision {asked}", "in the cache", got, step))
        return Remote(KeptStore(address, known.revision, known.entries), cache, offline=True, patience=patience)
    try:
        store = ask(cache)
        cache.remember(asked, Remembered(store.revision, dict(store.entries)))
    except AbsentError:
        if cache.remembered(asked) is not None:
            cache.mark_gone()
        raise
    return Remote(store, cache, patience=patience)
