"""Zoos aligned in version 4, where a group is on two axes of a tensor, and in version 1, which left it, read on."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import align_zoo
from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry import align

FOLDERS = {4: Path(__file__).parent / "v4-aligned", 1: Path(__file__).parent / "v1-two-axes"}
VARIANT = "aligned-golden-0"
"""Three recurrent layers: random weights, the same under noise and a permutation, and others."""
PLANTED = [3, 1, 6, 7, 4, 5, 8, 2, 0]
"""The permutation that undoes that of the second."""


@pytest.mark.parametrize(("version", "digest"), [(4, "53de589da00499c7"), (1, "d81bb24a03ac103e")])
def test_the_golden_zoos_are_sound_and_read_the_same(version: int, digest: str) -> None:
    assert ckptzoo.verify(FOLDERS[version]) == []
    zoo = ckptzoo.open(FOLDERS[version])
    assert zoo.revision == "sha256:6739b2867ab2552b0f2b5f25295527c6f9966cd0ba92b820688b0284590c6af7"
    (part,) = zoo.contents.derived(VARIANT).parts
    assert part.facts["version"] == version
    content = b"".join(np.asarray(zoo[name, VARIANT]).tobytes() for name in zoo.arch.names)
    assert hashlib.sha256(content).hexdigest()[:16] == digest
    perm = np.asarray(zoo.group_element(VARIANT)["h.perm"])[1]
    assert (perm.tolist() == PLANTED) == (version == 4)


def test_aligning_again_gives_the_same() -> None:
    zoo = ckptzoo.open(FOLDERS[4])
    raw = {name: np.asarray(zoo[name]) for name in zoo.arch.names}
    assert zoo.symmetry is not None
    made = align(raw, {name: value[0] for name, value in raw.items()}, zoo.symmetry).weights
    for name, value in made.items():
        np.testing.assert_array_equal(value, np.asarray(zoo[name, VARIANT]))


def test_versions_are_not_mixed(tmp_path: Path) -> None:
    path = Path(shutil.copytree(FOLDERS[1], tmp_path / "zoo"))
    with pytest.raises(SymmetryError, match="version of the variant: expected 4, got 1"):
        align_zoo(path, "golden-0", label="golden-0", certify="none")
