"""Zoos of linear layers in a row, in version 6 of ``canonical``, and in version 5, which is read on."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.errors import SymmetryError
from ckptzoo.symmetry import canonicalize

FOLDER = Path(__file__).parent
CONTENT = {6: "f54fda72ff6241cf", 5: "1f1b22569ce3d64c"}
"""Three networks of one table: random weights, the same in a disguise, and others."""


@pytest.mark.parametrize("version", CONTENT)
def test_the_golden_zoos_are_sound_and_read_the_same(version: int) -> None:
    path = FOLDER / f"v{version}-canonical"
    assert ckptzoo.verify(path) == []
    zoo = ckptzoo.open(path)
    assert zoo.revision == "sha256:ea1570accaf9918b6835fed81a01a295ba768cc1326601e3883ae0790725e04f"
    assert zoo.symmetry is not None
    assert zoo.symmetry.digest == "sha256:e04bbc8e2d4b1a1ad2a876b014f2f43a52e9e1f643008405367f579f09406266"
    (part,) = zoo.contents.derived("canonical").parts
    assert part.facts["version"] == version
    content = b"".join(np.asarray(zoo[name, "canonical"]).tobytes() for name in zoo.arch.names)
    assert hashlib.sha256(content).hexdigest()[:16] == CONTENT[version]
    assert zoo.variant_metadata("canonical")["degenerate"].to_pylist() == [0, 0, 0]


def test_the_disguise_has_the_same_form_and_the_gauge_still_gives_it() -> None:
    for version in CONTENT:
        zoo = ckptzoo.open(FOLDER / f"v{version}-canonical")
        made = canonicalize({name: np.asarray(zoo[name]) for name in zoo.arch.names}, zoo.symmetry).weights
        stored = {name: np.asarray(zoo[name, "canonical"]) for name in zoo.arch.names}
        for name, value in made.items():
            np.testing.assert_allclose(value[0], value[1], rtol=1e-4, atol=1e-5)
            if version == 6:
                np.testing.assert_allclose(value, stored[name], rtol=1e-5, atol=1e-6)
        apart = max(np.abs(value[0] - value[1]).max() for value in stored.values())
        assert (apart < 1e-4) == (version == 6)


def test_versions_are_not_mixed(tmp_path: Path) -> None:
    path = Path(shutil.copytree(FOLDER / "v5-canonical", tmp_path / "zoo"))
    with pytest.raises(SymmetryError, match="version of the variant: expected 6, got 5"):
        derive(path, certify="none")
