"""A zoo with an aligned variant: read as it was written, refused for another reference, and right by brute force."""

import hashlib
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.cli.app import run
from ckptzoo.derive import align_zoo
from ckptzoo.errors import SymmetryError

GOLDEN = Path(__file__).parent / "v1-aligned"
"""Three perceptrons of three hidden units, aligned with the second."""
VARIANT = "aligned-golden-1"


def test_the_golden_zoo_is_sound_and_reads_the_same() -> None:
    assert ckptzoo.verify(GOLDEN) == []
    zoo = ckptzoo.open(GOLDEN)
    assert zoo.variants == ("raw", VARIANT)
    assert zoo.revision == "sha256:b004a41bfeae469c273eb2c964d3c804f7c4be4ed8c0a633d63b395d8837fb4f"
    content = b"".join(np.asarray(zoo[name, VARIANT]).tobytes() for name in zoo.arch.names)
    assert hashlib.sha256(content).hexdigest()[:16] == "7690aee25af0bc86"


def test_the_reference_is_that_of_the_page() -> None:
    """docs/format.md, without ckptzoo's own function: the digest of the second network."""
    zoo, digest = ckptzoo.open(GOLDEN), hashlib.sha256()
    for name in sorted(zoo.arch.names):
        array = np.asarray(zoo[name])[1]
        digest.update(f"{name} float32 {list(array.shape)}\n".encode() + array.astype("<f4").tobytes())
    (part,) = zoo.contents.derived(VARIANT).parts
    facts = {key: part.facts[key] for key in ("gauge", "version", "reference", "scales", "source")}
    assert facts == {
        "gauge": VARIANT,
        "version": 1,
        "reference": f"sha256:{digest.hexdigest()}",
        "scales": None,
        "source": "checkpoint golden-1 of v1-aligned",
    }


def test_no_permutation_is_closer() -> None:
    zoo = ckptzoo.open(GOLDEN)
    raw, aligned = ({name: np.asarray(zoo[name, form]) for name in zoo.arch.names} for form in ("raw", VARIANT))

    def product(network: dict[str, np.ndarray]) -> float:
        return sum(float(np.vdot(network[name], raw[name][1])) for name in raw)

    for row in range(3):
        others: list[float] = []
        for order in map(list, itertools.permutations(range(3))):
            moved = {name: array[row] for name, array in raw.items()}
            moved |= {name: moved[name][order] for name in ("fc1.weight", "fc1.bias")}
            moved["fc2.weight"] = moved["fc2.weight"][:, order]
            others.append(product(moved))
        assert product({name: array[row] for name, array in aligned.items()}) == max(others)


def test_the_page_names_the_reference(tmp_path: Path) -> None:
    path = shutil.copytree(GOLDEN, tmp_path / "zoo")
    assert run(["card", str(path)]) == 0
    line = next(line for line in (path / "README.md").read_text().splitlines() if line.startswith(f"| `{VARIANT}`"))
    assert "permuted to be closest to `checkpoint golden-1 of v1-aligned`" in line


def test_parts_for_another_reference_are_refused(tmp_path: Path) -> None:
    path = shutil.copytree(GOLDEN, tmp_path / "zoo")
    assert align_zoo(path, "golden-1", label="golden-1", certify="none").already == 3
    with pytest.raises(SymmetryError, match="expected checkpoint golden-1 of v1-aligned, got checkpoint golden-0"):
        align_zoo(path, "golden-0", label="golden-1", certify="none")
