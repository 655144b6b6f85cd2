"""Write a snapshot of everything a zoo holds now."""

from pathlib import Path

from ckptzoo.format import durable, snapshot
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import list_trees, read_documents, read_tree
from ckptzoo.spec.layout import SNAPSHOTS


def compact(path: str | Path) -> Path | None:
    """Write rows and index of all parts into one snapshot, and remove the snapshots it replaces.

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
    Opening a zoo of 128 parts then reads one file instead of 256. Cost: one read of every part's rows and index.
    """
    root = Path(path).absolute()
    files = Folder(root)
    read_documents(files)
    trees = {tree: read_tree(files, tree, names, None) for tree, names in list_trees(files).items() if names}
    if not trees:
        return None
    data, tail = snapshot.encode(trees)
    target = root / SNAPSHOTS / snapshot.file_name(data, tail, sum(len(tree.parts) for tree in trees.values()))
    target.parent.mkdir(exist_ok=True)
    durable.write_file(target, data)
    for name in snapshot.listed(files):
        if name != target.name and name[:6] <= target.name[:6]:
            (root / SNAPSHOTS / name).unlink(missing_ok=True)
    return target
