"""Zoos of attentions: queries, keys and values in one tensor, with exponents of their own; and rotary embeddings with
shared heads of keys, whose blocks are fixed inside, and whose groups are inside channels."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.schema.groups import Segment, Wreath
from ckptzoo.schema.symmetry import Symmetry
from ckptzoo.symmetry import canonicalize

ATTENTION = Path(__file__).parent / "v1-attention"
"""Two heads of two channels: random weights, the same in a disguise, and others."""
ROTARY = Path(__file__).parent / "v1-rotary"
"""Four heads of queries and two of keys, of two pairs of channels: random weights, the same in a disguise, and others."""


@pytest.mark.parametrize(
    ("golden", "revision", "digest", "canonical"),
    [
        (
            ATTENTION,
            "sha256:bc94c83d2eb956c1fb658aee682f2672c0bd6018accb968f7feac0d3de57e69b",
            "sha256:eed7a0b0a2447dc9521abea4434e9e723a919db72c8d2a452c6b2f7d7e3d6963",
            "a98b0ee42f081aec",
        ),
        (
            ROTARY,
            "sha256:0f6f20426f4e64538f276cc3d8a65e06fa762df8fc689e0d41696366db8d84b1",
            "sha256:b87d8380daac3edc145f8ff02222a430385f7cecdb5c90236f82d06de659e4e3",
            "608b6bce633ff5d0",
        ),
    ],
    ids=["one tensor", "rotary"],
)
def test_a_golden_zoo_is_sound_reads_the_same_and_its_disguise_is_found(
    golden: Path, revision: str, digest: str, canonical: str
) -> None:
    assert ckptzoo.verify(golden) == []
    zoo = ckptzoo.open(golden)
    assert zoo.symmetry is not None
    assert (zoo.revision, zoo.symmetry.digest) == (revision, digest)
    content = b"".join(np.asarray(zoo[name, "canonical"]).tobytes() for name in zoo.arch.names)
    assert hashlib.sha256(content).hexdigest()[:16] == canonical
    prints = zoo.variant_metadata("canonical")["fingerprint"].to_pylist()
    assert prints[0] == prints[1] != prints[2]
    made = canonicalize({name: np.asarray(zoo[name]) for name in zoo.arch.names}, zoo.symmetry).weights
    for name, value in made.items():
        np.testing.assert_allclose(value[0], value[1], rtol=1e-5, atol=1e-6)
        assert value.tobytes() == np.asarray(zoo[name, "canonical"]).tobytes()


def table_of(golden: Path) -> Symmetry:
    table = ckptzoo.open(golden).symmetry
    assert table is not None
    return table


def test_segments_have_exponents_of_their_own() -> None:
    (rows,) = (action for action in table_of(ATTENTION).actions_on("qkv.weight") if action.axis == 0)
    assert rows.segments == (Segment("qkv", 0, 1, 4), Segment("qkv", 4, 1, 4, -1), Segment("qkv:2", 8, 1, 4))


def test_blocks_are_fixed_inside_and_groups_are_inside_channels() -> None:
    table = table_of(ROTARY)
    assert table["qk"].perm == Wreath("kv", 2, 2, "fixed") and table["vo"].perm == Wreath("kv", 2, 4)
    (columns,) = table.actions_on("o")
    assert columns.segments == (Segment("q", 0, 4, 4, within="vo"),)
