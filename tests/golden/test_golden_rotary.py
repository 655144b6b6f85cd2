"""A zoo of attentions with rotary embeddings and shared heads of keys: blocks fixed inside, and groups inside channels."""

import hashlib
from pathlib import Path

import numpy as np

import ckptzoo
from ckptzoo.schema.groups import Segment, Wreath
from ckptzoo.symmetry import canonicalize

GOLDEN = Path(__file__).parent / "v1-rotary"
"""Four heads of queries and two of keys, of two pairs of channels: random weights, the same in a disguise, and others."""


def test_the_golden_zoo_is_sound_and_reads_the_same() -> None:
    assert ckptzoo.verify(GOLDEN) == []
    zoo = ckptzoo.open(GOLDEN)
    assert zoo.revision == "sha256:0f6f20426f4e64538f276cc3d8a65e06fa762df8fc689e0d41696366db8d84b1"
    assert zoo.symmetry is not None
    assert zoo.symmetry.digest == "sha256:b87d8380daac3edc145f8ff02222a430385f7cecdb5c90236f82d06de659e4e3"
    assert zoo.symmetry["qk"].perm == Wreath("kv", 2, 2, "fixed") and zoo.symmetry["vo"].perm == Wreath("kv", 2, 4)
    (columns,) = zoo.symmetry.actions_on("o")
    assert columns.segments == (Segment("q", 0, 4, 4, within="vo"),)
    content = b"".join(np.asarray(zoo[name, "canonical"]).tobytes() for name in zoo.arch.names)
    assert hashlib.sha256(content).hexdigest()[:16] == "608b6bce633ff5d0"


def test_the_disguise_is_found() -> None:
    zoo = ckptzoo.open(GOLDEN)
    prints = zoo.variant_metadata("canonical")["fingerprint"].to_pylist()
    assert prints[0] == prints[1] != prints[2]
    assert zoo.symmetry is not None
    made = canonicalize({name: np.asarray(zoo[name]) for name in zoo.arch.names}, zoo.symmetry).weights
    for name, value in made.items():
        np.testing.assert_allclose(value[0], value[1], rtol=1e-5, atol=1e-6)
        assert value.tobytes() == np.asarray(zoo[name, "canonical"]).tobytes()
