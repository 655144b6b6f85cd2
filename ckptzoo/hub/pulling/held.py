"""What the folder holds already of what is pulled into it, and what must not come into it."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from ckptzoo.errors import Problem, ZooError
from ckptzoo.format.files import Folder
from ckptzoo.format.part import Part
from ckptzoo.format.reader import list_trees, read_tree
from ckptzoo.format.tree import Tree, empty_tree
from ckptzoo.spec.layout import DERIVED, PARTS, RETRACTED


class Held:
    """The parts of a zoo's folder.

    Attributes
    ----------
    trees : every tree's parts and rows, as they were at the start.
    sources : the parts that were cut from others, under their tree and the digest of the part they were cut from.
    """

    def __init__(self, root: Path) -> None:
        files = Folder(root)
        self._root = root
        self.trees: dict[str, Tree] = {
            tree: read_tree(files, tree, names, None) for tree, names in list_trees(files).items() if names
        }
        self._ids = {tree: set(found.rows["id"].to_pylist()) for tree, found in self.trees.items()}
        self.sources: dict[tuple[str, str], Part] = {}
        for tree, found in self.trees.items():
            for part in found.parts:
                if isinstance(pulled := part.facts.get("pulled"), dict):
                    self.sources[tree, str(pulled.get("part"))] = part

    def parts(self) -> set[str]:
        """The parts' folders, from the zoo's."""
        return {part.path for found in self.trees.values() for part in found.parts}

    def count(self, tree: str) -> int:
        """How many checkpoints a tree has."""
        return len(self._ids.get(tree, ()))

    def add(self, tree: str, rows: list[dict[str, Any]]) -> None:
        """Note the rows of a part that is about to appear.

        Raises
        ------
        ZooError
            The folder has one of the checkpoints from elsewhere.
        """
        held = self._ids.setdefault(tree, set())
        ids = {str(row["id"]) for row in rows}
        if tree != f"{DERIVED}/{RETRACTED}" and (again := sorted(ids & held)):
            where, got = (
                f"{self._root}/{tree}",
                f"{len(again)} that this folder has from elsewhere, such as {again[0]!r}",
            )
            step = "Pull into another folder."
            raise ZooError(str(Problem(where, "checkpoints", "new ones", got, step)))
        held.update(ids)

    def lacking_tombstones(self, retracted: Tree) -> pa.Table:
        """Retractions of checkpoints that this folder holds, which it does not know yet."""
        held = self._ids.get(PARTS, set())
        known = set(self.trees.get(f"{DERIVED}/{RETRACTED}", empty_tree()).rows["id"].to_pylist())
        ids = retracted.rows["id"].to_pylist()
        wanted = [at for at, name in enumerate(ids) if name in held and name not in known]
        return retracted.metadata.take(pa.array(wanted, pa.int64()))
