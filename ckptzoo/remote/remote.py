"""``open_remote``: from an address to a ``Remote``, which reads names, whole files and blocks through the cache."""

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ckptzoo.environment import cache_limit, cache_root, is_offline
from ckptzoo.errors import AbsentError, IntegrityError, OfflineError, Problem, RemoteError, ZooError
from ckptzoo.remote.address import Address, FolderAddress, HubAddress, WebAddress, candidates
from ckptzoo.remote.cache import Cache, RevisionRecord, is_right
from ckptzoo.remote.fetch import AsReady, InOrder, plan
from ckptzoo.remote.hub_store import HubStore, default_endpoint, hub_address
from ckptzoo.remote.retry import RetryPolicy, read_range
from ckptzoo.remote.stores import CancelToken, FileEntry, FilesystemStore, FolderStore, OfflineStore, Store, find_entry
from ckptzoo.remote.web_store import StaticStore
from ckptzoo.schema.layout import ZOO, Span

WORKERS = 8
"""Requests at a time."""
AHEAD = 256 * 2**20
"""Bytes that are received before the reader takes them."""
GUESS_SECONDS = 8.0
"""The retry deadline for opening an address such as ``org/zoo``, which may be the mistyped name of a folder."""
OPENING_SECONDS = 20.0
"""The retry deadline for opening any other address."""
LATEST = "latest"
"""The revision, in the cache, of places that have no names for revisions."""


class Remote:
    """A zoo as its readers need it: names, whole files and blocks of a store, through its cache.

    Parameters
    ----------
    store
        where the zoo is.
    cache
        None reads everything from the store, as is right for folders of this machine.
    offline
        only the cache is read.
    retry_policy
        how long to go on asking.
    workers
        requests at a time.
    ahead
        bytes that are received before the reader takes them.
    """

    def __init__(
        self,
        store: Store,
        cache: Cache | None,
        *,
        offline: bool = False,
        retry_policy: RetryPolicy | None = None,
        workers: int = WORKERS,
        ahead: int = AHEAD,
    ) -> None:
        self.store, self.cache, self.offline = store, cache, offline
        self._retry_policy, self._workers, self._ahead = retry_policy or RetryPolicy(), workers, ahead

    @property
    def name(self) -> str:
        """The zoo's name in messages."""
        return self.store.address

    @property
    def revision(self) -> str:
        """The revision that was pinned at opening."""
        return self.store.revision

    @property
    def entries(self) -> dict[str, FileEntry]:
        """Every file by name."""
        return dict(self.store.entries)

    def read(self, name: str, *, max_bytes: int) -> bytes:
        """A whole file, checked where the store knows its digest.

        Parameters
        ----------
        name
            of the file, from the zoo's folder.
        max_bytes
            of a file that is accepted.

        Raises
        ------
        AbsentError
            There is no such file.
        IntegrityError
            It is larger than ``max_bytes``, or came twice with a wrong digest.
        OfflineError
            The cache lacks it, and it may not be fetched.
        """
        entry = find_entry(self.store.entries, name, location=self.name)
        if entry.size > max_bytes:
            step = "Do not use this zoo; tell whoever publishes it."
            raise IntegrityError(
                Problem(f"{self.name}/{name}", "size", f"at most {max_bytes} bytes", f"{entry.size} bytes", step)
            )
        if self.cache is not None and entry.digest and (data := self.cache.read(entry.digest)) is not None:
            return data
        if self.offline:
            raise self._offline_error([name], entry.size)
        data = b""
        # once more, because a proxy or a cache on the way may have damaged it
        for _ in range(2):
            data = self._range(name, 0, entry.size)
            if not entry.digest or is_right(entry.digest, data):
                break
        else:
            step = "Open the zoo again; if that does not help, tell whoever publishes it."
            raise IntegrityError(Problem(f"{self.name}/{name}", "digest", str(entry.digest), "another, twice", step))
        if self.cache is not None and entry.digest:
            self.cache.write(entry.digest, data)
        return data

    def read_many(self, names: Sequence[str], *, max_bytes: int) -> list[bytes]:
        """Several whole files at once, as ``read``.

        Parameters
        ----------
        names
            of the files, from the zoo's folder.
        max_bytes
            of each file that is accepted.
        """
        if len(names) < 2:
            return [self.read(name, max_bytes=max_bytes) for name in names]
        with ThreadPoolExecutor(min(self._workers, len(names)), "ckptzoo-read") as pool:
            return list(pool.map(lambda name: self.read(name, max_bytes=max_bytes), names))

    def span(self, name: str, start: int, stop: int) -> bytes:
        """Bytes of a file for which there is no digest: nothing is checked, and nothing is cached.

        Parameters
        ----------
        name
            of the file, from the zoo's folder.
        start
            the first byte.
        stop
            the byte behind the last one.

        Notes
        -----
        For headers and footers, by callers that compare a whole file with its digest afterwards.
        """
        if self.offline:
            raise self._offline_error([name], stop - start)
        return self._range(name, start, stop)

    def in_order(self, wanted: Sequence[Span]) -> Generator[memoryview]:
        """Blocks in the order in which they are asked for, fetched ahead; closing the generator stops all requests.

        Parameters
        ----------
        wanted
            blocks with their digests.

        Raises
        ------
        IntegrityError
            A block came twice with a wrong digest; none of its bytes is handed out.
        RemoteError
            The retry policy has ended; the message has the last failure.
        OfflineError
            Some are not in the cache and may not be fetched; raised before the first is handed out, with their number.
        """
        missing = self._missing_places(wanted)
        with InOrder(self.store, wanted, plan(wanted, missing, split_limit=self._ahead), **self._options) as fetching:
            fetched = set(missing)
            for place, block in enumerate(wanted):
                yield fetching.take(place) if place in fetched else self._cached(block)

    def as_ready(self, wanted: Sequence[Span]) -> Generator[tuple[int, memoryview]]:
        """Blocks with their places in ``wanted`` as they come, those in the cache first; else as ``in_order``.

        This is the faster way to fill an array, because every request runs at full speed.

        Parameters
        ----------
        wanted
            blocks with their digests.
        """
        missing = self._missing_places(wanted)
        # the reader takes blocks in any order, so both halves of a split request may run ahead of it
        requests = plan(wanted, missing, split_limit=2**63)
        requests.sort(key=lambda request: request.start - request.stop)  # the longest first, because they take longest
        with AsReady(self.store, wanted, requests, **self._options) as fetching:
            fetched = set(missing)
            for place, block in enumerate(wanted):
                if place not in fetched:
                    yield place, self._cached(block)
            for _ in missing:
                yield fetching.take()

    def _range(self, name: str, start: int, stop: int) -> bytes:
        pieces = read_range(self.store, name, start, stop, retry_policy=self._retry_policy, cancel=CancelToken())
        with closing(pieces):
            return b"".join(pieces)

    @property
    def _options(self) -> dict[str, Any]:
        """The options of ``Fetching``."""
        return {"retry_policy": self._retry_policy, "workers": self._workers, "ahead": self._ahead, "keep": self._keep}

    def _key(self, block: Span) -> str:
        """Return the name of a block in the cache."""
        return f"sha256:{block.sha256.hex()}"

    def _keep(self, block: Span, data: memoryview) -> None:
        if self.cache is not None:
            self.cache.write(self._key(block), data)

    def _missing_places(self, wanted: Sequence[Span]) -> list[int]:
        """Places of the blocks that are to be fetched; raises where they may not be."""
        for block in wanted:
            entry = find_entry(self.store.entries, block.name, location=self.name)
            if not 0 <= block.start < block.stop <= entry.size:
                expected, got = f"blocks within {entry.size} bytes", f"{block.start} to {block.stop}"
                step = "Tell whoever publishes the zoo: its index does not fit its files."
                raise IntegrityError(Problem(f"{self.name}/{block.name}", "size", expected, got, step))
        cache = self.cache
        missing = [place for place, block in enumerate(wanted) if cache is None or not cache.holds(self._key(block))]
        if missing and self.offline:
            blocks = [wanted[place] for place in missing]
            nbytes = sum(block.stop - block.start for block in blocks)
            raise self._offline_error(sorted({block.name for block in blocks}), nbytes, len(blocks))
        return missing

    def _cached(self, block: Span) -> memoryview:
        """Return a block that the cache had; fetched if it was removed since, or is damaged."""
        if self.cache is not None and (data := self.cache.read(self._key(block))) is not None:
            return memoryview(data)
        if self.offline:
            raise self._offline_error([block.name], block.stop - block.start, 1)
        with InOrder(self.store, [block], plan([block], [0], split_limit=self._ahead), **self._options) as fetching:
            return fetching.take(0)

    def _offline_error(self, names: list[str], nbytes: int, blocks: int | None = None) -> OfflineError:
        what = f"{blocks} blocks" if blocks is not None else names[0]
        files = ", ".join(names[:3]) + (f" and {len(names) - 3} files more" if len(names) > 3 else "")
        got = f"{nbytes} bytes missing" + (f" of {files}" if blocks is not None else "")
        step = "Unset CKPTZOO_OFFLINE and HF_HUB_OFFLINE to fetch them."
        return OfflineError(Problem(self.name, what, "in the cache", got, step))


def open_remote(
    address: str | os.PathLike[str],
    *,
    endpoint: str | None = None,
    token: str | None = None,
    retry_policy: RetryPolicy | None = None,
) -> Remote:
    """The zoo at an address, pinned to the revision that it has now.

    Parameters
    ----------
    address
        a folder, ``org/zoo``, ``hf://datasets/org/zoo@revision``, ``https://host/path/zoo`` or an fsspec address. A
        folder that exists wins over a repository of the same name.
    endpoint, token
        of the hub, if they are not those that huggingface_hub uses.
    retry_policy
        how long to go on asking.

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
    retry_policy = retry_policy or RetryPolicy()
    seconds = OPENING_SECONDS if len(places) == 1 else GUESS_SECONDS
    opening_policy = replace(retry_policy, deadline=min(retry_policy.deadline, seconds))
    tried: list[str] = []
    kind: type[RemoteError] = AbsentError  # in the end that of the place tried last
    for place in places:
        try:
            return _open_place(place, endpoint, token, retry_policy, opening_policy)
        except RemoteError as error:
            if isinstance(place, FolderAddress) and (near := _near_folder(place.path)):
                on_hub = f" A zoo of the hub is hf://datasets/{address}." if len(places) > 1 else ""
                step = f"Did you mean {near}?{on_hub}"
                raise AbsentError(Problem(str(address), "a zoo", "a folder", "nothing", step)) from None
            # a name like org/zoo goes on to the hub
            if len(places) == 1 or _is_file(place):  # no repository is meant by the path of a file
                raise
            kind = type(error)
            tried.append(f"{place} ({error.problem.got})")
    step = {
        AbsentError: "Check the name, the revision and HF_TOKEN; private zoos need hf auth login.",
        OfflineError: "Unset CKPTZOO_OFFLINE and HF_HUB_OFFLINE to look for it.",
    }.get(kind, "Check the name and the network.")
    raise kind(Problem(str(address), "a zoo", "a folder or a repository", f"neither: {'; '.join(tried)}", step))


def _near_folder(path: Path) -> Path | None:
    """Return a zoo's folder beside the path of an absent one, whose name is spelt nearly the same."""
    names = [] if path.exists() else [found.parent.name for found in path.parent.glob(f"*/{ZOO}")]
    near = get_close_matches(path.name, names, n=1, cutoff=0.8)
    return path.parent / near[0] if near else None


def _open_place(
    place: Address, endpoint: str | None, token: str | None, retry_policy: RetryPolicy, opening_policy: RetryPolicy
) -> Remote:
    match place:
        case FolderAddress(path=path):
            if not path.is_dir():
                got = "a file" if path.exists() else "nothing"
                step = "Make one with ckptzoo.create or python -m builders build."
                if _is_file(place):
                    step = "Bring checkpoints of a file into a zoo with ckptzoo import."
                    if path.name == ZOO:
                        step = f"Name the folder that it is in: {path.parent}."
                raise AbsentError(Problem(str(path), "a zoo", "a folder", got, step))
            return Remote(FolderStore(path), None, retry_policy=retry_policy)
        case HubAddress():
            hub = _checked_endpoint(endpoint or default_endpoint())

            def open_store(cache: Cache) -> Store:
                known = cache.remembered(place.revision)
                if known is not None and known.revision == place.revision:  # a commit never changes
                    return HubStore(place, known.revision, known.entries, endpoint=hub, token=token)
                return HubStore.opened(place, retry_policy=opening_policy, endpoint=hub, token=token)

            return _with_cache(hub_address(place, hub), place.revision, open_store, retry_policy)
        case WebAddress(url=url):
            return _with_cache(
                url, LATEST, lambda _: StaticStore.opened(url, retry_policy=opening_policy), retry_policy
            )
        case _:
            return _with_cache(place.url, LATEST, lambda _: FilesystemStore(place.url), retry_policy)


def _checked_endpoint(endpoint: str) -> str:
    """Return a hub's address, without a final slash."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        expected = "http://... or https://..."
        raise ZooError(Problem("HF_ENDPOINT", "address of the hub", expected, endpoint, "Correct it."))
    return endpoint.rstrip("/")


def _with_cache(address: str, revision: str, open_store: Callable[[Cache], Store], retry_policy: RetryPolicy) -> Remote:
    """Open a store with its cache; offline, the listing that the cache remembers."""
    offline = is_offline()
    cache = Cache(cache_root(), address, limit=cache_limit(), evicts=not offline)
    if offline:
        known = cache.remembered(revision)
        if known is None:
            got, step = "nothing", "Unset CKPTZOO_OFFLINE and HF_HUB_OFFLINE to look for it."
            raise OfflineError(Problem(address, f"revision {revision}", "in the cache", got, step))
        return Remote(
            OfflineStore(address, known.revision, known.entries), cache, offline=True, retry_policy=retry_policy
        )
    try:
        store = open_store(cache)
        cache.remember(revision, RevisionRecord(store.revision, dict(store.entries)))
    except AbsentError:
        if cache.remembered(revision) is not None:
            cache.mark_gone()  # so that its blobs, which may be the last copy, stay when room is made
        raise
    return Remote(store, cache, retry_policy=retry_policy)


def _is_file(place: Address) -> bool:
    return isinstance(place, FolderAddress) and place.path.is_file()
