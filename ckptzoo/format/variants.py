"""What the parts of a variant must hold: group elements of the zoo's table, and weights or none."""

from collections.abc import Iterator, Mapping

import numpy as np

from ckptzoo.errors import Problem
from ckptzoo.format.files import Files
from ckptzoo.format.tree import Tree, places_of
from ckptzoo.spec.document import REFETCH, Document
from ckptzoo.spec.layout import INDEX, SYMMETRY
from ckptzoo.spec.symmetry import Symmetry

Kind = tuple[str, tuple[int, ...]]
"""The dtype and the shape of one tensor in one checkpoint."""


def variant_dtype(dtype: str) -> str:
    """The dtype in which a variant has a tensor: half precisions become float32, all others stay."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def element_problems(
    where: str,
    symmetry: Symmetry | None,
    digest: str | None,
    facts: Document,
    elements: Mapping[str, Kind],
    *,
    weights: bool,
) -> Iterator[Problem]:
    """What is wrong with the group elements of one part of a variant.

    Parameters
    ----------
    where : the part.
    symmetry, digest : the zoo's table and its digest; None where it has none.
    facts : the part's.
    elements : what its ``g`` shards hold.
    weights : whether the part stores the variant's weights; if not, they are computed with the zoo's table.
    """
    named = facts.get("symmetry")
    if symmetry is None or named != digest:
        if not weights:
            step = f"Restore {SYMMETRY} from a copy."
            yield Problem(f"{where}/{INDEX}", f"digest of {SYMMETRY}", str(named), str(digest or "no such file"), step)
        return
    expected: dict[str, Kind] = {}
    for group in symmetry.groups:
        found, _ = elements.get(f"{group.id}.perm", ("int32", ()))
        expected[f"{group.id}.perm"] = (found if found.startswith(("int", "uint")) else "int32", (group.n,))
        if group.scale != "none":
            expected[f"{group.id}.scale"] = ("float64", (group.n,))
    for name in sorted({*expected, *elements}):
        if expected.get(name) != elements.get(name):
            wanted, got = (
                "no such tensor" if side.get(name) is None else "{} {}".format(*side[name])
                for side in (expected, elements)
            )
            yield Problem(f"{where}/g-*.safetensors", f"tensor {name!r}", wanted, got, REFETCH)


def origin_problems(files: Files, raw: Tree, tree: Tree) -> Iterator[Problem]:
    """Parts of a variant whose rows stand in another raw part than the one that they were derived from."""
    bounds = np.cumsum([0, *(part.rows for part in raw.parts)])
    owner = np.searchsorted(bounds, places_of(tree.rows["id"], raw.rows["id"]), side="right") - 1
    at = 0
    for part in tree.parts:
        held = np.unique(owner[at : at + part.rows])
        at += part.rows
        named = str(part.facts.get("raw"))
        others = {raw.parts[number].digest for number in held[held >= 0].tolist()} - {named}
        if others:
            step = "Remove the part and derive it anew."
            yield Problem(f"{files.name}/{part.path}", "raw part of its rows", named, min(others), step)
