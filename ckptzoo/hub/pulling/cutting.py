"""A pull that leaves tensors, variants or checkpoints out: parts are written anew from blocks that are fetched."""

import warnings
from pathlib import Path

from ckptzoo.format.durable import write_file
from ckptzoo.format.reader import read_contents
from ckptzoo.hub.pulling.asked import Asked
from ckptzoo.hub.pulling.blocks import Blocks
from ckptzoo.hub.pulling.cards import read_cards, write_cards
from ckptzoo.hub.pulling.held import Held
from ckptzoo.hub.pulling.made import Cuts, write_tombstones
from ckptzoo.hub.pulling.meter import Meter, Progress
from ckptzoo.hub.pulling.place import need_room, saying_what_is_needed, taken
from ckptzoo.loader.afar import Afar
from ckptzoo.loader.retracted import left_out, standing
from ckptzoo.loader.zoo import Zoo
from ckptzoo.spec import layout
from ckptzoo.spec.document import digest_of, seal
from ckptzoo.spec.identity import Identity


def cut_out(files: Afar, asked: Asked, root: Path, progress: Progress | None) -> tuple[list[str], int, int]:
    """Write what the folder lacks; returns the parts that came, how many were there, and the bytes fetched."""
    zoo = _standing(files)
    selected = zoo if asked.where is None else zoo.where(asked.where)
    cuts = Cuts(selected, asked)
    symmetry = zoo.contents.identity.symmetry if cuts.whole else None
    identity = seal(Identity(zoo.name, cuts.arch.digest, symmetry).to_json())
    cards = read_cards(files)
    documents = {layout.ARCHITECTURE: seal(cuts.arch.to_json())}
    if cuts.whole and files.size(layout.SYMMETRY) is not None:
        documents[layout.SYMMETRY] = files.read(layout.SYMMETRY)
    documents[layout.ZOO] = identity
    selection = {**asked.to_json(), "zoo": digest_of(zoo.contents.identity.to_json())}
    with taken(root, identity, selection, partial=True) as place:
        remote = files.remote
        shared = remote.cache
        remote.cache = blocks = Blocks(place.blocks, shared, keeps=shared is not None)
        for name, data in documents.items():
            if not (root / name).exists():
                write_file(root / name, data)
        held = Held(root)
        parts: list[str] = []
        todo = [[cut for cut in one if (cut.tree, cut.source.digest) not in held.sources] for one in cuts.cuts]
        sizes = [sum(cut.nbytes for cut in some) for some in todo]
        needed = sum(sizes) + (max(sizes, default=0) if shared is not None else 0)
        need_room(root, needed)
        with saying_what_is_needed(root, needed):
            meter = Meter(sum(sizes), progress)
            for (first, *_), some in zip(cuts.cuts, todo, strict=True):
                for cut in some:
                    raw = None if cut is first else held.sources[layout.PARTS, first.source.digest].digest
                    part = cuts.write(cut, root, raw, refuse=held.add, meter=meter)
                    held.sources[cut.tree, cut.source.digest] = part
                    parts.append(part.path)
                blocks.clear()
            if len(tombs := held.lacking_tombstones(zoo.contents.retracted)):
                parts.append(write_tombstones(tombs, root, refuse=held.add).path)
            write_cards(files, cards, root, asked, of=len(zoo))
        place.finish()
    return parts, sum(map(len, cuts.cuts)) - sum(map(len, todo)), blocks.fetched


def _standing(files: Afar) -> Zoo:
    """The checkpoints that were not retracted."""
    contents = read_contents(files)
    rows = standing(contents)
    if told := left_out(contents, rows):
        warnings.warn(f"{files.name}: {told}.", UserWarning, stacklevel=4)
    return Zoo(contents, {}, rows)
