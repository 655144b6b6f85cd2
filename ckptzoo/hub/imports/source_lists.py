"""Several sources as one: arguments, text files that list addresses, and patterns over branches and tags of a hub."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from ckptzoo.errors import IntegrityError, Problem, ZooError
from ckptzoo.hub.imports.remote_sources import hub_place, open_source
from ckptzoo.hub.imports.sources import FileSource, ImportSource, SourceFile, natural, stem
from ckptzoo.hub.untrusted.runs import run_of
from ckptzoo.remote.address import HubAddress
from ckptzoo.remote.http import Connections
from ckptzoo.remote.hub_store import Refs, bearer, default_endpoint, hub_address, read_refs
from ckptzoo.remote.retry import RetryPolicy
from ckptzoo.text import excerpt

Address = str | os.PathLike[str]
Place = str | HubAddress
"""Where one source is: what a person wrote, or a revision that a pattern found."""

_LIST = ".txt"
_MAX_LIST = 2**24
"""Bytes of a text file that lists sources."""
_WORKERS = 8
"""Repositories that are listed at a time."""
_WILD = frozenset("*?[")
_SHOWN = 5


def open_sources(
    addresses: Address | Sequence[Address], *, endpoint: str | None = None, token: str | None = None
) -> ImportSource:
    """Open the sources at addresses as one.

    An address is one that ``open_source`` takes, ``hf://org/model@step*`` with a pattern over branches and tags, or the
    path of a text file (``.txt``) with one address on a line. Of several sources every path begins with what tells
    its folder or repository from the others; revisions come in the order of the steps that their names say.

    Raises ``ZooError``: nothing is at an address, a pattern fits no revision, two revisions of a run have one step, or
    a source is given twice.
    """
    given = [addresses] if isinstance(addresses, str | os.PathLike) else list(addresses)
    places = resolved(given, endpoint=endpoint, token=token)
    connections = None if len(places) == 1 else Connections(RetryPolicy().connection_deadline)
    opener = partial(open_source, endpoint=endpoint, token=token, connections=connections)
    return open_places(given, places, opener)


def open_places(
    given: Sequence[Address], places: Sequence[Place], opener: Callable[[Place], ImportSource]
) -> ImportSource:
    """Open the places of the sources that were given, as ``resolved`` returns them, as one source."""
    if len(places) == 1:
        return opener(places[0])
    with ThreadPoolExecutor(_WORKERS, "ckptzoo-sources") as pool:
        opened = list(pool.map(opener, places))
    name, prefixes = _prefixes(places)
    address = os.fspath(given[0]) if len(given) == 1 else f"{len(given)} sources"
    if len(given) == 1 and _is_list(given[0]):
        name = Path(address).stem
    return JoinedSource(address, name or "sources", list(zip(prefixes, opened, strict=True)))


def resolved(given: Sequence[Address], *, endpoint: str | None = None, token: str | None = None) -> list[Place]:
    """Return the place of each source: lists are read, and patterns are replaced by the revisions that fit."""
    places: list[Place] = []
    for address in given:
        for item in _listed(Path(address)) if _is_list(address) else [os.fspath(address)]:
            places += _revisions(item, endpoint, token)
    if not places:
        raise ZooError(Problem("import", "sources", "at least one", "none", "Name a folder, a file or an address."))
    _check_steps([place for place in places if isinstance(place, HubAddress)])
    return places


def _is_list(address: Address) -> bool:
    text = os.fspath(address)
    return text.lower().endswith(_LIST) and "://" not in text and Path(text).is_file()


def _listed(path: Path) -> list[str]:
    """Return the addresses in a text file; paths in it are relative to its folder."""
    step = "List one address on a line: folders, files, https:// or hf://; # begins a comment."
    size = path.stat().st_size
    if size > _MAX_LIST:
        raise ZooError(Problem(str(path), "list of sources", f"at most {_MAX_LIST} bytes", f"{size} bytes", step))
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise ZooError(Problem(str(path), "list of sources", "UTF-8 text", str(error)[:160], step)) from None
    found = [line if "://" in line else str(path.parent / line) for line in lines if line]
    if not found:
        raise ZooError(Problem(str(path), "list of sources", "at least one address", "none", step))
    if within := next((item for item in found if _is_list(item)), None):
        raise ZooError(Problem(str(path), "list of sources", "addresses", f"the list {excerpt(within)!r}", step))
    return found


def _revisions(text: str, endpoint: str | None, token: str | None) -> Sequence[Place]:
    """Return the revisions that a pattern fits, in order of their steps; any other address as it is."""
    if text.lower().startswith("hf://") and _WILD & set(text.partition("@")[0]):
        step = "List the repositories in a text file, an address on a line; a pattern may follow the @ of each."
        raise ZooError(Problem(text, "address", "a pattern over branches and tags alone", "one over names", step))
    place = hub_place(text)
    if place is None:
        return [text]
    if not _WILD & set(place.revision):
        return [place]
    endpoint = (endpoint or default_endpoint()).rstrip("/")
    refs = read_refs(place, endpoint, Connections(), bearer(endpoint, token), RetryPolicy())
    address, names = hub_address(place, endpoint, revision=place.revision), sorted(_names(refs, place), key=natural)
    chosen = [name for name in names if fnmatchcase(name, place.revision)]
    if not chosen:
        got = f"none among {len(names)}: {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
        step = "Correct the pattern; * is any text."
        raise ZooError(Problem(address, "pattern", "one that fits a branch or a tag", excerpt(got, 300), step))
    return sorted((replace(place, revision=name) for name in chosen), key=_by_step)


def _names(refs: Refs, place: HubAddress) -> set[str]:
    """Return the names of branches and tags; refuse one that stands for two commits."""
    for name in refs.branches.keys() & refs.tags.keys():
        if refs.branches[name] != refs.tags[name] and fnmatchcase(name, place.revision):
            got, step = f"a branch and a tag {name!r}", "Narrow the pattern; ask its owner to rename one of them."
            raise ZooError(Problem(str(place), "revision", "one commit for each name", got, step))
    return {*refs.branches, *refs.tags}


def _by_step(place: HubAddress) -> tuple[str, bool, int, object]:
    run = run_of(f"{place.revision}/model")
    return run.member, run.step is None, run.step or 0, natural(place.revision)


def _check_steps(places: Sequence[HubAddress]) -> None:
    """Refuse two revisions of a run that have one step, and one that is given twice."""
    found: dict[object, HubAddress] = {}
    for place in places:
        run = run_of(f"{place.revision}/model")
        key = place if run.step is None else (replace(place, revision=""), run.member, run.step)
        first = found.setdefault(key, place)
        if first is not place:
            what = "revisions" if run.step is None else f"revisions of step {run.step}"
            got = f"{first.revision} and {place.revision}"
            step = "Narrow the pattern, or list the revisions that you mean in a text file."
            raise ZooError(Problem(str(replace(place, revision="main")), what, "one", got, step))


def _prefixes(places: Sequence[Place]) -> tuple[str, list[str]]:
    """Return the last folder that all places share, empty for none, and the paths of all from there."""
    parts = [_parts(place) for place in places]
    kinds = sorted({item[0] for item in parts})
    shared = {kind: _beginning([item for item in parts if item[0] == kind]) for kind in kinds}
    inner, outer = sorted((item for item in parts if item[0] == "local"), key=len, reverse=True), shared.get("local")
    if len(inner) > 1 and outer in inner:
        got = " and ".join("/" + "/".join(item[1:]) for item in (inner[-1], inner[0]))
        raise ZooError(Problem("import", "sources", "none inside another", got, "Name the outer one alone."))
    rest = [item[len(shared[item[0]]) - (len(kinds) > 1) :] for item in parts]
    # folders without a common one are on different disks: their whole paths say something about this machine
    while len(shared[kinds[0]]) == 1 and min(map(len, rest)) > 1 and len({item[1:] for item in rest}) == len(rest):
        rest = [item[1:] for item in rest]
    name = shared[kinds[0]][-1] if len(kinds) == 1 and len(shared[kinds[0]]) > 1 else ""
    return name, ["/".join(item) for item in rest]


def _beginning(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return what all of several paths begin with."""
    first, last = min(parts), max(parts)
    equal = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:equal]


def _parts(place: Place) -> tuple[str, ...]:
    """Return the kind of a place, and the folders that lead to it."""
    if isinstance(place, HubAddress):
        return (place.kind, *f"{place.repo}/{place.folder}".rstrip("/").split("/"))
    scheme, _, path = place.rpartition("://")
    return (scheme or "local", *(part for part in (path if scheme else str(Path(path).resolve())).split("/") if part))


class JoinedSource(ImportSource):
    """The files of several sources, one source after another; paths begin with the prefix of theirs."""

    def __init__(self, address: str, name: str, sources: Sequence[tuple[str, ImportSource]]) -> None:
        super().__init__(address, name, sum(source.nbytes for _, source in sources))
        self._sources = [(_inside(prefix, source), source) for prefix, source in sources]
        self.sources = [source for _, source in sources]
        self.is_local = all(source.is_local for _, source in sources)
        self.is_reopened = all(source.is_reopened for _, source in sources)
        self.in_order = any(source.in_order for _, source in sources)
        self.dangling = tuple(prefix + path for prefix, source in self._sources for path in source.dangling)
        self._repositories = {f"{prefix}{source.root}": source.repository for prefix, source in self._sources}

    def files(self) -> Iterator[SourceFile]:
        self.position = before = 0
        seen = set[str]()
        for prefix, source in self._sources:
            try:
                for file in source.files():
                    path = prefix + file.path
                    if path in seen:
                        step = "Name each source once."
                        raise ZooError(Problem(self.address, "files", "each once", f"{excerpt(path)!r} twice", step))
                    seen.add(path)
                    self.position = before + source.position
                    yield replace(file, path=path)
            except IntegrityError as error:  # of an archive, as of one in a folder
                self.broken.append((prefix.rstrip("/") or source.name, error))
            before += source.nbytes
            self.position = before

    def repository_of(self, path: str) -> str:
        """Return the address of the repository that holds a file, with its revision; empty where none does."""
        while path:
            path = path.rpartition("/")[0]
            if (found := self._repositories.get(f"{path}/" if path else "")) is not None:
                return found
        return ""


def _inside(prefix: str, source: ImportSource) -> str:
    """Return what paths of a source begin with: a file has its own name, and an archive's loses its suffix."""
    before, _, last = prefix.rpartition("/")
    if isinstance(source, FileSource):
        return f"{before}/" if before else ""
    return f"{before}/{stem(last)}/".lstrip("/") if prefix else ""
