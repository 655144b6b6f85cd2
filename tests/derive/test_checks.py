"""Which checkpoints are checked for equivalence, in which precision, and what the part records about it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import checks, derive
from ckptzoo.derive.checks import SAMPLE, CheckPolicy
from tests.support.derived_zoos import ARCH, fill, inputs_of, weights_of, written, zoo_of
from tests.support.effort import examples

LARGE = archs.architecture("mlp-784-1500-10")
"""4.8 MB a checkpoint."""


@given(st.lists(st.booleans(), max_size=60))
@settings(max_examples=examples(60), deadline=None)
def test_a_sample_is_of_the_finite_has_its_ends_and_is_spread_evenly(finite: list[bool]) -> None:
    found = CheckPolicy("float32", "float64").precisions(np.array(finite, bool))
    assert [precision is not None for precision in found] == finite
    rows = np.flatnonzero(finite).tolist()
    places = [rows.index(at) for at, precision in enumerate(found) if precision == "float64"]
    assert len(places) == min(SAMPLE, len(rows))
    if rows:
        assert (places[0] == 0 and places[-1] == len(rows) - 1) or len(rows) == 1
        assert np.ptp(np.diff(places)) <= 1 if len(places) > 1 else True


def test_the_rules_of_small_and_large_networks() -> None:
    assert LARGE.nbytes > checks.SMALL_BYTES > ARCH.nbytes
    expected = {
        "all": (CheckPolicy("float64", None), CheckPolicy("float32", "float64")),
        "sample": (CheckPolicy(None, "float64"), CheckPolicy(None, "float64")),
        "none": (CheckPolicy(None, None), CheckPolicy(None, None)),
    }
    for certify, (small, large) in expected.items():
        assert (CheckPolicy.of(certify, ARCH), CheckPolicy.of(certify, LARGE)) == (small, large)
    assert (CheckPolicy.of("auto", ARCH), CheckPolicy.of("auto", LARGE)) == (expected["all"][0], expected["sample"][1])


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven large networks, of which the third is not finite."""
    weights = weights_of(11, 0, arch=LARGE)
    weights["fc2.bias"][2, 4] = np.inf
    return written(tmp_path_factory.mktemp("large") / "zoo", LARGE, weights)


@pytest.mark.slow
@pytest.mark.parametrize(("certify", "others"), [("auto", None), ("sample", None), ("all", "float32"), ("none", None)])
@pytest.mark.sampled(4)
def test_large_networks_are_checked_by_the_policy(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certify: str, others: str | None
) -> None:
    path = tmp_path / "zoo"
    path.mkdir()
    for folder in ("zoo.json", "architecture.json", "README.md", "parts"):
        (path / folder).symlink_to(large / folder)
    monkeypatch.setattr(checks, "SAMPLE", 4)
    done = derive(path, certify=certify, inputs=None if certify == "none" else inputs_of(LARGE, 3))
    rows = ckptzoo.open(path).variant_metadata("canonical")
    sample = [0, 4, 7, 10]
    expected = [others] * 11
    for at in sample if certify != "none" else []:
        expected[at] = "float64"
    expected[2] = None
    assert rows["certified"].to_pylist() == expected
    for column in ("certificate_random", "certificate_real"):
        gaps = rows[column].to_pylist()
        assert [gap is not None for gap in gaps] == [precision is not None for precision in expected]
        assert all(0 < gap < 1e-5 for gap in gaps if gap is not None)
    counts = {item.precision: item.checkpoints for item in done.certified}
    assert counts == {name: expected.count(name) for name in ("float64", "float32") if name in expected}
    facts = ckptzoo.open(path).contents.derived("canonical").parts[0].facts["certificate"]
    if certify == "none":
        assert facts == {}
    else:
        assert set(facts) == {"random", "real", "rule"}
        assert facts["rule"] == {"every": others, "sample": "float64", "checkpoints": 4}
        assert facts["real"]["inputs"] == 3


def test_every_part_has_its_own_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SAMPLE", 3)
    path = zoo_of(tmp_path / "zoo", (7, 2))
    assert derive(path, certify="sample").certified[0].checkpoints == 5
    certified = ckptzoo.open(path).variant_metadata("canonical")["certified"].to_pylist()
    assert [at for at, precision in enumerate(certified) if precision] == [0, 3, 6, 7, 8]
    fill(path, (1,), start=2)
    every = derive(path, certify="all")
    assert (every.checkpoints, every.checked_later, every.certified[0].checkpoints) == (1, 4, 5)
    parts = ckptzoo.open(path).contents.derived("canonical").parts
    assert [part.facts["certificate"]["rule"]["every"] for part in parts] == [None, None, "float64"]


def test_outputs_that_overflow_are_not_compared(tmp_path: Path) -> None:
    weights = weights_of(3, 0)
    weights["fc.weight"][1] *= np.float32(1e38)
    weights["conv2.weight"][1] *= np.float32(1e38)
    half = weights_of(2, 1, arch=LARGE)
    half["fc2.weight"][1] *= np.float32(1e37)
    half["fc1.weight"][1] *= np.float32(1e37)
    for name, arch, made, precision in (("small", ARCH, weights, "float64"), ("large", LARGE, half, "float32")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checks, "SAMPLE", 1)
            path = written(tmp_path / name, arch, made)
            derive(path, gauge="unit-norm", certify="all")
        rows = ckptzoo.open(path).variant_metadata("unit-norm")
        there = [gap is not None for gap in rows["certificate_random"].to_pylist()]
        assert there == ([True] * 3 if precision == "float64" else [True, False])
        assert [found is not None for found in rows["certified"].to_pylist()] == there
