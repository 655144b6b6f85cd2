"""A zoo of attentions whose queries, keys and values are one tensor: segments with exponents of their own."""

import hashlib
from pathlib import Path

import numpy as np

import ckptzoo
from ckptzoo.schema.groups import Segment
from ckptzoo.symmetry import canonicalize

GOLDEN = Path(__file__).parent / "v1-attention"
"""Two heads of two channels: random weights, the same in a disguise, and others."""


def test_the_golden_zoo_is_sound_and_reads_the_same() -> None:
    assert ckptzoo.verify(GOLDEN) == []
    zoo = ckptzoo.open(GOLDEN)
    assert zoo.revision == "sha256:bc94c83d2eb956c1fb658aee682f2672c0bd6018accb968f7feac0d3de57e69b"
    assert zoo.symmetry is not None
    assert zoo.symmetry.digest == "sha256:eed7a0b0a2447dc9521abea4434e9e723a919db72c8d2a452c6b2f7d7e3d6963"
    (rows,) = (action for action in zoo.symmetry.actions_on("qkv.weight") if action.axis == 0)
    assert rows.segments == (Segment("qkv", 0, 1, 4), Segment("qkv", 4, 1, 4, -1), Segment("qkv:2", 8, 1, 4))
    content = b"".join(np.asarray(zoo[name, "canonical"]).tobytes() for name in zoo.arch.names)
    assert hashlib.sha256(content).hexdigest()[:16] == "a98b0ee42f081aec"


def test_the_disguise_is_found() -> None:
    zoo = ckptzoo.open(GOLDEN)
    prints = zoo.variant_metadata("canonical")["fingerprint"].to_pylist()
    assert prints[0] == prints[1] != prints[2]
    assert zoo.symmetry is not None
    made = canonicalize({name: np.asarray(zoo[name]) for name in zoo.arch.names}, zoo.symmetry).weights
    for name, value in made.items():
        np.testing.assert_allclose(value[0], value[1], rtol=1e-5, atol=1e-6)
        assert value.tobytes() == np.asarray(zoo[name, "canonical"]).tobytes()
