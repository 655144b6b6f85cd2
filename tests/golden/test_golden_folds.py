"""A zoo of decoders whose table has folds of every kind: random weights, the same folded, and others."""

import hashlib
from pathlib import Path

import numpy as np

import ckptzoo
from ckptzoo.schema.folds import KINDS, dimensions
from ckptzoo.symmetry import fold

GOLDEN = Path(__file__).parent / "v1-folds"


def test_the_golden_zoo_is_sound_and_reads_the_same() -> None:
    assert ckptzoo.verify(GOLDEN) == []
    zoo = ckptzoo.open(GOLDEN)
    assert zoo.revision == "sha256:eb1c60b0bb63063d5377ba029d3e6c0eb0db1c09beafb7de9b8f23a0dfe18e15"
    assert zoo.symmetry is not None
    assert zoo.symmetry.digest == "sha256:d9d9103bfabb3ddcbb6f1ce12b85aa634320826eb85bcddcd8babef831d1f26a"
    assert {item.kind for item in zoo.symmetry.folds} == set(KINDS)
    # One layer without hidden units: by hand 4 shifts, 12 rows, 2 * 4 biases, 4 of the last norm, 3 + 5 + 3 + 4 + 1.
    assert sum(dimensions(zoo.symmetry.folds)) == 4 + 12 + 8 + 4 + 3 + 5 + 3 + 4 + 1
    content = b"".join(np.asarray(zoo[name]).tobytes() for name in zoo.arch.names)
    assert hashlib.sha256(content).hexdigest()[:16] == "f4f9a4a2aa724d56"


def test_the_folded_one_is_found_from_the_random_one() -> None:
    zoo = ckptzoo.open(GOLDEN)
    assert zoo.symmetry is not None
    folded = fold({name: np.asarray(zoo[name]) for name in zoo.arch.names}, zoo.symmetry)
    for name, value in folded.items():
        np.testing.assert_allclose(value[0], np.asarray(zoo[name])[1], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(value[1], value[0], rtol=1e-5, atol=1e-6)
