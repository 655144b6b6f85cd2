"""A zoo of gated units with ReLU: axes whose scales are products of two, and channels that nothing writes."""

import hashlib
import shutil
from pathlib import Path

import numpy as np

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.schema.groups import Like, Segment
from ckptzoo.symmetry import canonicalize

GOLDEN = Path(__file__).parent / "v1-gates"
"""Random weights, the same in a disguise, others of which nothing writes two gates and two values (one channel has
both), and these in a disguise."""


def test_the_golden_zoo_is_sound_and_reads_the_same() -> None:
    assert ckptzoo.verify(GOLDEN) == []
    zoo = ckptzoo.open(GOLDEN)
    assert zoo.revision == "sha256:cce35b305281e96e9b89c8aa72f0c0e3baf400984c5628431938b30d533e58e5"
    assert zoo.symmetry is not None
    assert zoo.symmetry.digest == "sha256:6251105e82fc3cbe04f2b04aeb6fb079146db9a3ced457310f3f3fb834653b81"
    assert [(group.perm, group.scale) for group in zoo.symmetry.groups[1:]] == [(Like("gate"), "nonzero")]
    (columns,) = zoo.symmetry.actions_on("down.weight")
    assert (columns.segments, columns.gates) == ((Segment("up", 0, 1, 5),), (Segment("gate", 0, 1, 5),))
    content = b"".join(np.asarray(zoo[name, "canonical"]).tobytes() for name in zoo.arch.names)
    assert hashlib.sha256(content).hexdigest()[:16] == "db42d5de84099d60"


def test_disguises_are_found() -> None:
    zoo = ckptzoo.open(GOLDEN)
    metadata = zoo.variant_metadata("canonical")
    prints = metadata["fingerprint"].to_pylist()
    assert prints[0] == prints[1] != prints[2] == prints[3]
    assert metadata["dead"].to_pylist() == [0, 0, 4, 4] and not any(metadata["unresolved"].to_pylist())
    assert zoo.symmetry is not None
    made = canonicalize({name: np.asarray(zoo[name]) for name in zoo.arch.names}, zoo.symmetry).weights
    for name, value in made.items():
        np.testing.assert_allclose(value[::2], value[1::2], rtol=1e-5, atol=1e-6)
        assert value.tobytes() == np.asarray(zoo[name, "canonical"]).tobytes()


def test_weights_computed_from_stored_elements_are_the_stored_ones(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "zoo", ignore=shutil.ignore_patterns("derived"))
    derive(tmp_path / "zoo", store="element", certify="none")
    assert ckptzoo.verify(tmp_path / "zoo") == []
    computed, stored = ckptzoo.open(tmp_path / "zoo"), ckptzoo.open(GOLDEN)
    for name in stored.arch.names:
        assert np.asarray(computed[name, "canonical"]).tobytes() == np.asarray(stored[name, "canonical"]).tobytes()
