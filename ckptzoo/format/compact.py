"""Write a snapshot and a listing of everything a zoo holds now."""

from collections.abc import Iterable
from pathlib import Path

from ckptzoo.format import durable, listing, snapshot, snapshot_writer
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import list_trees, read_documents, read_tree
from ckptzoo.format.tree import Tree
from ckptzoo.spec.layout import SNAPSHOTS


def compact(path: str | Path) -> Path | None:
    """Write rows and index of all parts into one snapshot, remove those it replaces, and list the files.

    Parameters
    ----------
    path : the zoo's folder.

    Returns
    -------
    The snapshot's path, or None where the zoo has no parts.

    Raises
    ------
    IntegrityError
        The folder is not a zoo, or a part cannot be read.

    Notes
    -----
    Opening a zoo of 128 parts then reads one file instead of 256, and any web server that serves ranges can serve it:
    ``listing.json`` says which files there are. Cost: one read of every part's rows and index.
    """
    root = Path(path).absolute()
    files = Folder(root)
    read_documents(files)
    trees = {tree: read_tree(files, tree, names, None) for tree, names in list_trees(files).items() if names}
    if not trees:
        return None
    place, data = snapshot_writer.encode(trees)
    target = root / place
    target.parent.mkdir(exist_ok=True)
    durable.write_file(target, data)
    older = [name for name in snapshot.listed(files) if name != target.name and name[:6] <= target.name[:6]]
    leaving = {f"{SNAPSHOTS}/{name}" for name in older}
    listed = listing.describe(root, _shards(trees.values()), without=leaving)
    durable.write_file(root / listing.LISTING, listed)  # before they leave, so that it never names one that has left
    for name in leaving:
        (root / name).unlink(missing_ok=True)
    return target


def _shards(trees: Iterable[Tree]) -> dict[str, str]:
    """The sha256 of every shard, as the indices have it."""
    known: dict[str, str] = {}
    for tree in trees:
        index = tree.blocks.select(["file", "tensor", "sha256", "part"])
        for row in index.filter(index["tensor"].is_null()).to_pylist():
            known[f"{tree.parts[row['part']].path}/{row['file']}"] = row["sha256"].hex()
    return known
