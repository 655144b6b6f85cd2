"""Zoos aligned in version 3, where gains take signs of the stream that they normalise, and in older ones, read on."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import align_zoo
from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry import align

FOLDERS = {
    number: Path(__file__).parent / name
    for number, name in ((3, "v3-aligned"), (2, "v2-aligned"), (1, "v1-moved-signs"))
}
VARIANT = "aligned-golden-0"
"""Three networks of one table: random weights, the same in a disguise, and others, aligned with the first."""


def apart(weights: dict[str, np.ndarray], row: int) -> float:
    return max(float(np.abs(value[row] - value[0]).max()) for value in weights.values())


@pytest.mark.parametrize(
    ("version", "digest"), [(3, "d21506bc743c27fb"), (2, "372367cdada8eb91"), (1, "a4b6da60ec7c811b")]
)
def test_the_golden_zoos_are_sound_and_read_the_same(version: int, digest: str) -> None:
    assert ckptzoo.verify(FOLDERS[version]) == []
    zoo = ckptzoo.open(FOLDERS[version])
    assert zoo.revision == "sha256:cee3899ee32fba7f28a15f3cc0551857fb1f5de2920c522df81185474177462a"
    assert zoo.symmetry is not None
    assert zoo.symmetry.digest == "sha256:b5025efde181f07709df31cdf10b25dfe665d4b38c7f83ca17c3d93ab38a81cd"
    (part,) = zoo.contents.derived(VARIANT).parts
    assert part.facts["version"] == version
    content = b"".join(np.asarray(zoo[name, VARIANT]).tobytes() for name in zoo.arch.names)
    assert hashlib.sha256(content).hexdigest()[:16] == digest


def test_the_disguise_comes_back_as_the_first_network() -> None:
    for version, path in FOLDERS.items():
        zoo = ckptzoo.open(path)
        stored = {name: np.asarray(zoo[name, VARIANT]) for name in zoo.arch.names}
        assert (apart(stored, 1) < 1e-6) == (version > 1)
        raw = {name: np.asarray(zoo[name]) for name in zoo.arch.names}
        assert apart(raw, 1) > 1
        assert zoo.symmetry is not None
        made = align(raw, {name: value[0] for name, value in raw.items()}, zoo.symmetry).weights
        assert apart(made, 1) < 1e-6
        if version == 3:
            for name, value in made.items():
                np.testing.assert_allclose(value, stored[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("version", [1, 2])
def test_versions_are_not_mixed(version: int, tmp_path: Path) -> None:
    path = Path(shutil.copytree(FOLDERS[version], tmp_path / "zoo"))
    with pytest.raises(SymmetryError, match=f"version of the variant: expected 3, got {version}"):
        align_zoo(path, "golden-0", label="golden-0", certify="none")
