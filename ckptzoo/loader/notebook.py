"""HTML of zoos, tensors and checkpoints for notebooks, from what was read when the zoo was opened."""

from typing import Any

from ckptzoo import html
from ckptzoo.format.reader import Contents
from ckptzoo.format.splits import split_names
from ckptzoo.html import Grid
from ckptzoo.schema import layout
from ckptzoo.schema.architecture import Architecture
from ckptzoo.text import counted, size


def zoo_html(title: str, address: str, contents: Contents, chosen: int) -> str:
    """HTML of a zoo, or of a selection of one.

    ``contents`` is what was read at opening, and nothing else is read; ``chosen`` is the number of selected
    checkpoints.
    """
    arch, total = contents.architecture, len(contents.raw.rows)
    parts = contents.raw.parts
    bare = bool(parts) and all(part.facts.get("bare") is True for part in parts)
    # by their names: what kind a tree is may have to be fetched
    predicted = [name for tree in contents.derived_parts if (name := layout.set_name(tree)) is not None]
    groups = "not declared" if contents.symmetry is None else counted(len(contents.symmetry.groups), "group")
    facts = [
        ("address", address),
        ("revision", contents.revision),
        ("checkpoints", f"{chosen:,}" if chosen == total else f"{chosen:,} of {total:,}"),
        ("variants", html.listed([*([] if bare else [layout.RAW]), *contents.variants]) or "none"),
        ("predictions", html.listed(predicted) or "none"),
        ("splits", html.listed(split_names(contents.files)) or "none"),
        ("symmetries", groups),
        ("columns", html.listed(contents.raw.rows.schema.names)),
    ]
    return html.fragment(title, Grid(facts), tensors(arch))


def tensor_html(name: str, shape: tuple[int, ...], dtype: Any, nbytes: int, source: str) -> str:
    """HTML of a stacked tensor.

    ``name``, ``shape``, ``dtype`` and ``nbytes`` are those of the tensor; ``source`` describes where its rows come
    from.
    """
    facts = [("shape", _shape(shape)), ("dtype", str(dtype)), ("size", size(nbytes)), ("rows", source)]
    return html.fragment(f"tensor {name} of {counted(shape[0], 'checkpoint')}", Grid(facts))


def checkpoint_html(title: str, arch: Architecture, row: dict[str, Any]) -> str:
    """HTML of a checkpoint.

    Missing values of ``row`` are left out.
    """
    values = [(name, str(value)) for name, value in row.items() if value is not None]
    return html.fragment(title, Grid(values, title=counted(len(values), "value") + " of metadata"), tensors(arch))


def tensors(arch: Architecture) -> Grid:
    """The tensors of a checkpoint."""
    rows = [(tensor.name, tensor.dtype, _shape(tensor.shape), f"{tensor.size:,}") for tensor in arch.tensors]
    what = f"{counted(len(rows), 'tensor')}, {counted(arch.parameters, 'parameter')}, {size(arch.nbytes)}"
    header = ("tensor", "dtype", "shape", "elements")
    return Grid(rows, header, frozenset({3}), title=f"{what} a checkpoint")


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "scalar"
