"""A pull that leaves no tensor and no checkpoint out: every part is the same bytes as afar."""

import os
from collections.abc import Iterable
from pathlib import Path

from ckptzoo.errors import IntegrityError
from ckptzoo.format import snapshot, table
from ckptzoo.format.durable import locked, sync, write_file
from ckptzoo.format.files import Folder
from ckptzoo.format.listing import LISTING
from ckptzoo.format.reader import list_trees, read_documents
from ckptzoo.hub.pulling.asked import Asked
from ckptzoo.hub.pulling.blocks import Blocks
from ckptzoo.hub.pulling.cards import read_cards, read_some, replace, write_cards
from ckptzoo.hub.pulling.held import Held
from ckptzoo.hub.pulling.meter import Meter, Progress
from ckptzoo.hub.pulling.place import Place, need_room, publish, saying_what_is_needed, taken
from ckptzoo.hub.pulling.whole import Copier, groups, nbytes_of
from ckptzoo.loader.afar import Afar
from ckptzoo.remote.listing import decode
from ckptzoo.spec import layout
from ckptzoo.spec.card import may_change
from ckptzoo.spec.document import digest_of

_RETRACTED = f"{layout.DERIVED}/{layout.RETRACTED}"


def copied(files: Afar, asked: Asked, root: Path, progress: Progress | None) -> tuple[list[str], int, int]:
    """Copy what the folder lacks; returns the parts that came, how many were there, and the bytes fetched."""
    identity, _, _ = read_documents(files)
    trees = list_trees(files)
    known = [name.partition("/")[2] for name in trees if name not in (layout.PARTS, _RETRACTED)]
    gauges = asked.gauges(known, where=files.name)
    wanted = [layout.PARTS, _RETRACTED, *(f"{layout.DERIVED}/{gauge}" for gauge in gauges)]
    documents, cards = read_some(files, layout.DOCUMENTS), read_cards(files)
    listing = read_some(files, (LISTING,)) if asked.everything else {}
    selection = {**asked.to_json(), "zoo": digest_of(identity.to_json())}
    with taken(root, documents[layout.ZOO], selection, partial=not asked.everything) as place:
        remote = files.remote
        remote.cache = blocks = Blocks(place.blocks, remote.cache, keeps=False)
        for name, data in documents.items():
            if not (root / name).exists():
                write_file(root / name, data)
        held = Held(root)
        there = held.parts()
        afar = [f"{tree}/{name}" for tree in wanted for name in trees.get(tree, ())]
        paths = [path for path in afar if path not in there]
        total = nbytes_of(remote, paths)
        needed = max(0, total - _allocated(place.parts))
        need_room(root, needed)
        with saying_what_is_needed(root, needed):
            copier = Copier(remote, blocks, files, place.parts, Meter(total, progress))
            for group in groups(remote, paths):
                for part, rows in copier.fetch(group):
                    with locked(root):
                        held.add(part.tree, rows.select(["id"]).to_pylist())
                        publish(place.parts / part.path, root / part.path)
            if asked.everything:
                _copy_snapshot(files, place)
            write_cards(files, cards, root, asked, of=held.count(layout.PARTS))
            if asked.everything:
                _copy_listing(listing.get(LISTING, b""), root)
        place.finish()
    return paths, len(afar) - len(paths), blocks.fetched


def _copy_snapshot(files: Afar, place: Place) -> None:
    """The newest snapshot that is sound, in place of those that cover no more."""
    for name in snapshot.listed(files):
        path = f"{layout.SNAPSHOTS}/{name}"
        target, staged = place.root / path, place.parts / path
        if not target.is_file():
            staged.parent.mkdir(parents=True, exist_ok=True)
            staged.write_bytes(files.read(path, max_bytes=table.MAX_FILE))
            try:
                snapshot.Snapshot(Folder(place.parts), name).check()
            except IntegrityError:
                continue
            target.parent.mkdir(exist_ok=True)
            sync(staged)
            staged.replace(target)
            sync(target.parent)
        for other in snapshot.listed(Folder(place.root)):
            if other != name and other[:6] <= name[:6]:
                (target.parent / other).unlink(missing_ok=True)
        return


def _copy_listing(afar: bytes, root: Path) -> None:
    """The listing for web servers, unless it names files that are not there; an older one that does is removed."""
    path = root / LISTING
    for data in (afar, path.read_bytes() if path.is_file() else b""):
        try:
            named, _ = decode(data, where=LISTING)
        except IntegrityError:
            continue
        sizes = {name: entry.size for name, entry in named.items() if not may_change(name)}
        if all((root / name).is_file() and (root / name).stat().st_size == size for name, size in sizes.items()):
            replace(path, data)
            return
    path.unlink(missing_ok=True)


def _allocated(root: Path) -> int:
    """Bytes on the disk that unfinished parts have taken already."""
    return sum(path.stat().st_blocks * 512 for path in _files(root))


def _files(root: Path) -> Iterable[Path]:
    return (Path(folder) / name for folder, _, names in os.walk(root) for name in names)
