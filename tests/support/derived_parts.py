"""A zoo with every kind of tensor and action, and its variants written with or without their weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ckptzoo
from ckptzoo.format import table
from ckptzoo.format.files import Folder
from ckptzoo.format.part import PartWriter
from ckptzoo.format.reader import read_contents
from ckptzoo.format.writer import Writer
from ckptzoo.schema.groups import AxisAction, Group, Like, Segment, Sym, Wreath
from ckptzoo.schema.metadata import VARIANT_COLUMNS
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import GroupElement, apply
from tests.conftest import Weights, rows_of, weights_of

ARCH = ckptzoo.Architecture(
    "every",
    (
        ckptzoo.Tensor("conv.weight", (4, 3, 2)),
        ckptzoo.Tensor("norm.weight", (4,)),
        ckptzoo.Tensor("norm.bias", (4,), "float16"),
        ckptzoo.Tensor("norm.running_mean", (4,), "float64", "buffer"),
        ckptzoo.Tensor("norm.running_var", (4,), "float32", "buffer"),
        ckptzoo.Tensor("norm.num_batches_tracked", (), "int64", "buffer"),
        ckptzoo.Tensor("fc.weight", (6, 8), "bfloat16", aliases=("tied.weight",)),
        ckptzoo.Tensor("fc.order", (6,), "int32", "buffer"),
        ckptzoo.Tensor("blocks.weight", (4, 6)),
        ckptzoo.Tensor("grouped.weight", (4, 2, 3)),
        ckptzoo.Tensor("head.weight", (5, 4), "float16"),
        ckptzoo.Tensor("free.weight", (3,), "float16"),
        ckptzoo.Tensor("free.scale", (2, 2)),
    ),
)


def _on(
    tensor: str, axis: int, group: str, n: int, exponent: int, role: str, *, inner: int = 1, **other: Any
) -> AxisAction:
    return AxisAction(tensor, axis, (Segment(group, 0, inner, n),), exponent, role in ("out", "in"), role, **other)


TABLE = Symmetry(
    (
        Group("conv", 4, Sym(), "nonzero"),
        Group("norm", 4, Like("conv"), "positive"),
        Group("fc", 6, Sym(), "sign"),
        Group("blocks", 4, Wreath("outer", 2, 2), "positive"),
        Group("grouped", 4, Wreath("outer", 2, 2), "none"),
    ),
    (
        _on("conv.weight", 0, "conv", 4, 1, "out"),
        _on("norm.running_mean", 0, "conv", 4, 1, "mean"),
        _on("norm.running_var", 0, "conv", 4, 2, "variance", eps=1e-5),
        _on("norm.weight", 0, "norm", 4, 1, "gain", signs=(Segment("conv", 0, 1, 4),)),
        _on("norm.bias", 0, "norm", 4, 1, "shift"),
        _on("fc.weight", 1, "norm", 4, -1, "in", inner=2),
        _on("fc.weight", 0, "fc", 6, 1, "out"),
        _on("fc.order", 0, "fc", 6, 0, "bias"),
        _on("blocks.weight", 1, "fc", 6, -1, "in"),
        _on("blocks.weight", 0, "blocks", 4, 1, "out"),
        _on("grouped.weight", 1, "blocks", 4, -1, "in", blocks=2),
        _on("grouped.weight", 0, "grouped", 4, 0, "out"),
        _on("head.weight", 1, "grouped", 4, 0, "in"),
    ),
)
"""Permutations, blocks, scales of every kind; a group that is like another; integers; a running variance and a gain."""


def raw_of(count: int, seed: int = 0) -> Weights:
    """Random stacked weights whose running variances are positive."""
    weights = weights_of(ARCH, count, seed)
    weights["norm.running_var"] = np.abs(weights["norm.running_var"]) + 1
    return weights


def elements_of(count: int, *, ungauged: Sequence[int] = (), seed: int = 1) -> GroupElement:
    """Random elements, the identity on some rows."""
    element = GroupElement.random(TABLE, count, np.random.default_rng(seed), spread=0.3)
    unmoved = GroupElement.identity(TABLE, count)
    for held, other in ((element.perms, unmoved.perms), (element.scales, unmoved.scales)):
        for name, array in held.items():
            array[list(ungauged)] = other[name][list(ungauged)]
    return element


def write_raw(path: Path, parts: Sequence[int], weights: Weights, *, rows_a_shard: int = 1000) -> None:
    """A zoo of parts of these sizes, in shards of so many rows."""
    ckptzoo.create(path, arch=ARCH, symmetry=TABLE)
    at = 0
    for number, count in enumerate(parts):
        with Writer(path, ARCH, shard_bytes=rows_a_shard * ARCH.nbytes) as writer:
            rows = slice(at, at + count)
            writer.add(
                {name: array[rows] for name, array in weights.items()}, rows_of(count, at, unit=f"unit-{number}")
            )
        at += count


def write_variant(
    path: Path,
    element: GroupElement,
    *,
    bare: Sequence[bool],
    order: Sequence[int] | None = None,
    ungauged: Sequence[int] = (),
    rows_a_shard: int = 1000,
) -> None:
    """The variant ``made``: one derived part for each raw part, in any order of them, some without weights.

    Parameters
    ----------
    element
        of every checkpoint of the zoo, in its order.
    bare
        for each raw part whether the weights are left out.
    """
    contents, zoo = read_contents(Folder(path)), ckptzoo.open(path)
    starts = np.cumsum([0, *(part.rows for part in contents.raw.parts)]).tolist()
    for number in order or range(len(contents.raw.parts)):
        rows = slice(starts[number], starts[number + 1])
        arrays = {"g": element[rows].to_tensors()}
        if not bare[number]:
            arrays["made"] = apply(element[rows], {name: zoo[name][rows] for name in ARCH.names}, TABLE)
        listed = [{"id": zoo.ids[at], "gauged": at not in ungauged} for at in range(rows.start, rows.stop)]
        write_part(path, number, arrays, listed, rows_a_shard=rows_a_shard)


def write_part(
    path: Path,
    number: int,
    arrays: dict[str, Weights],
    rows: list[dict[str, Any]],
    *,
    rows_a_shard: int = 1000,
    **facts: Any,
) -> Path:
    """One part of the variant ``made`` with these shards, derived from a raw part; returns its folder."""
    raw = read_contents(Folder(path)).raw.parts[number]
    own = {"kind": "variant", "gauge": "made", "version": 1, "symmetry": TABLE.digest, "raw": raw.digest}
    sets = {
        stem: [ckptzoo.Tensor(name, array.shape[1:], array.dtype.name) for name, array in stacked.items()]
        for stem, stacked in arrays.items()
    }
    weights = sets.get("made", sets.get("g", ()))
    writer = PartWriter(
        path / "derived" / "made",
        sets=sets,
        schema=table.schema_of(VARIANT_COLUMNS),
        facts=own | facts,
        shard_bytes=rows_a_shard * sum(tensor.nbytes for tensor in weights),
    )
    writer.add(arrays, [{"unit": raw.digest, **row} for row in rows])
    return path / writer.commit(path, refuse=lambda _: None).path
