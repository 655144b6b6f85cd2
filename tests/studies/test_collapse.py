"""What the study of functional collapse finds in zoos whose predictions are known."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ckptzoo
from ckptzoo.derive import predict
from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.measure.pairwise import pairwise_mutual_information
from ckptzoo.schema.documents import canonical
from ckptzoo.studies import collapse as module
from ckptzoo.studies.collapse import collapse
from ckptzoo.studies.pair_correlation import correlate_pairs
from ckptzoo.studies.plots import collapse as pictures
from tests.support.printed import line_of

OWN, OTHER, CLASSES = 40, 30, 3
Make = Callable[..., ckptzoo.Zoo]


@pytest.fixture
def predicted(tmp_path: Path) -> Make:
    """Make a zoo whose networks predict given logits (K, OWN + OTHER, CLASSES), the first OWN on ``own/test``.

    Each is a linear map, and input n the n-th unit vector, so the weights of input n are its logits.
    """

    def make(logits: np.ndarray, sets: tuple[str, ...] = ("own/test", "other/test"), **row: Any) -> ckptzoo.Zoo:
        K, N, C = logits.shape
        folder = tmp_path / "c"
        with ckptzoo.create(folder, arch=ckptzoo.Architecture("linear", (ckptzoo.Tensor("weight", (C, N)),))) as writer:
            weight = np.ascontiguousarray(logits.swapaxes(1, 2), np.float32)
            writer.add({"weight": weight}, [{"id": f"c{at}", **row} for at in range(K)])
        units, linear = np.eye(N, dtype=np.float32), torch.nn.Linear(N, C, bias=False)
        if "own/test" in sets:
            targets = np.arange(OWN) % C
            predict(folder, units[:OWN], set="own/test", targets=targets, module=linear)
        if "other/test" in sets:
            predict(folder, units[OWN:], set="other/test", module=linear)
        return ckptzoo.open(folder)

    return make


def spread_members(members: int, own: np.ndarray | float, other: np.ndarray | float, seed: int = 0) -> np.ndarray:
    """Logits whose distance from what all share is ``own`` and ``other`` for each member, in directions of its own."""
    rng = np.random.default_rng(seed)
    shared, alone = rng.normal(size=(OWN + OTHER, CLASSES)), rng.normal(size=(members, OWN + OTHER, CLASSES))
    sizes = [np.broadcast_to(size, members)[:, None, None] for size in (own, other)]
    return shared + np.concatenate([sizes[0] * alone[:, :OWN], sizes[1] * alone[:, OWN:]], axis=1)


def test_figures_are_those_of_the_pairs(predicted: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = spread_members(20, 0.5, 1.0).astype(np.float16)
    zoo = predicted(logits)
    found = collapse(zoo, permutations=99, resamples=49, seed=3)
    assert (found.set, found.ood, found.inputs, found.ood_inputs, found.classes) == (
        "own/test",
        "other/test",
        40,
        30,
        3,
    )
    assert (found.members, found.usable, found.not_finite) == (20, 20, 0)
    both = [pairwise_mutual_information(logits[:, rows]) for rows in (slice(OWN), slice(OWN, None))]
    above = np.triu_indices(20, 1)
    np.testing.assert_allclose(found.information, both[0][above], atol=1e-6)
    np.testing.assert_allclose(found.ood_information, both[1][above], atol=1e-6)
    assert found.correlations == correlate_pairs(*both, permutations=99, resamples=49, seed=3)
    monkeypatch.setattr(module, "READ_BYTES", 1)
    monkeypatch.setattr(module, "_STEP", 7)
    np.testing.assert_allclose(collapse(zoo, permutations=0, resamples=0).information, found.information, atol=1e-6)


def test_a_planted_relation_is_found(predicted: Make) -> None:
    sizes = np.linspace(0.2, 1.5, 40)
    found = collapse(predicted(spread_members(40, sizes, sizes)), permutations=99, resamples=99)
    for item in found.correlations.values():
        assert item.value > 0.8 and item.p_value == 0.01 and item.low is not None and item.low > 0.6
    assert "Pairs that differ more on own/test differ more on other/test: r^2 =" in line_of(found, 80)


def test_unrelated_differences_are_not_called_related(predicted: Make) -> None:
    rng = np.random.default_rng(9)
    sizes = rng.permuted(np.tile(np.linspace(0.2, 1.5, 40), (2, 1)), axis=1)
    found = collapse(predicted(spread_members(40, *sizes)), permutations=99, resamples=99)
    for item in found.correlations.values():
        assert item.p_value is not None and item.p_value > 0.05
        assert item.low is not None and item.high is not None and item.low < 0 < item.high
    assert "No more correlation than by chance" in line_of(found, 80)


def test_no_relation_is_not_stated_of_few_members(predicted: Make) -> None:
    rng = np.random.default_rng(9)
    found = collapse(predicted(spread_members(12, *rng.uniform(0.2, 1.5, (2, 12)))), permutations=99, resamples=0)
    p = found.correlations["pearson"].p_value
    assert p is not None and ("not resolved with 12 members" in line_of(found, 80)) == (p > 0.05)
    assert "No more correlation" not in line_of(found, 80)


def test_equal_members_have_collapsed(predicted: Make, tmp_path: Path) -> None:
    found = collapse(predicted(np.repeat(spread_members(1, 1.0, 1.0), 5, axis=0)))
    assert (found.information == 0).all() and (found.ood_information == 0).all() and found.correlations == {}
    assert "nothing to correlate" in line_of(found, 80) and "0.0000 ± 0.0000" in line_of(found, 80)
    assert found.to_json()["correlations"] == {}
    assert len(found.plot(tmp_path / "drawn")) == 2


def test_members_that_are_not_finite_are_left_out_and_many_are_thinned(
    predicted: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = spread_members(12, 0.5, 1.0)
    logits[2, 0, 0], logits[5, OWN, 1] = np.inf, 1e6  # float16 ends at 65,504
    zoo = predicted(logits)
    found = collapse(zoo, permutations=0, resamples=0)
    assert (found.members, found.usable, found.not_finite) == (10, 10, 2)
    monkeypatch.setattr(module, "MAX_MEMBERS", 4)
    found = collapse(zoo, permutations=0, resamples=0)
    assert (found.members, found.usable, len(found.information)) == (4, 10, 6)
    assert "4 members of 10, evenly spaced; 2 not finite and left out" in line_of(found, 80)
    expected = pairwise_mutual_information(logits[[0, 4, 8, 11], :OWN].astype(np.float16))[np.triu_indices(4, 1)]
    np.testing.assert_allclose(found.information, expected, atol=1e-6)
    with pytest.raises(
        ZooError, match="members: expected 3 or more with finite logits on own/test and other/test, got 1"
    ):
        collapse(zoo.take([1, 2, 5]))


def test_what_is_missing_is_said_with_the_command_that_makes_it(predicted: Make, tmp_path: Path) -> None:
    zoo = predicted(spread_members(4, 1.0, 1.0), (), dataset="mnist")
    # rows do not say how pixels are scaled, so that inputs are one's own: a file a set
    own = "--inputs FILE.npz --module FILE.py:NAME"
    place = f"ckptzoo predict {tmp_path / 'c'}"
    command = f"Run {place} mnist/test {own} and {place} fashion-mnist/test {own}, which writes into that folder"
    with pytest.raises(ZooError, match=rf"expected a set with labels among them, got none. {command}"):
        collapse(zoo)


def test_samples_stand_for_no_data_set(predicted: Make) -> None:
    """What zoos ship to be compared, the first examples of a set, is taken where it is named alone."""
    zoo = predicted(spread_members(4, 1.0, 1.0), dataset="own")
    units = np.eye(OWN + OTHER, dtype=np.float32)
    module = torch.nn.Linear(OWN + OTHER, CLASSES, bias=False)
    predict(zoo.path, units[:3], set="digits/test-3", module=module)
    predict(zoo.path, units[:4], set="a/test-4", targets=np.arange(4) % CLASSES, module=module)
    zoo = ckptzoo.open(zoo.path)
    found = collapse(zoo, permutations=0, resamples=0)
    assert (found.set, found.ood) == ("own/test", "other/test")
    assert "in distribution own/test" in line_of(found, 80) and "out of distribution other/test" in line_of(found, 80)
    named = collapse(zoo, "a/test-4", "digits/test-3", permutations=0, resamples=0)
    assert (named.set, named.ood) == ("a/test-4", "digits/test-3")


def test_a_sample_alone_is_no_other_set(predicted: Make) -> None:
    zoo = predicted(spread_members(4, 1.0, 1.0), ("own/test",), dataset="digits")
    module = torch.nn.Linear(OWN + OTHER, CLASSES, bias=False)
    predict(zoo.path, np.eye(OWN + OTHER, dtype=np.float32)[:3], set="digits/test-3", module=module)
    with pytest.raises(
        ZooError, match=r"without labels beside own/test, got digits/test-3 \(a sample\), own/test.*--ood"
    ):
        collapse(ckptzoo.open(zoo.path))


def test_the_other_set_and_one_set_twice_are_asked_for(predicted: Make) -> None:
    zoo = predicted(spread_members(4, 1.0, 1.0), ("own/test",), dataset="digits")
    with pytest.raises(ZooError, match=r"expected a set without labels beside own/test, got own/test.* OTHER/test"):
        collapse(zoo)
    with pytest.raises(ZooError, match="ood: expected another set than own/test"):
        collapse(zoo, ood="own/test")
    with pytest.raises(UnknownNameError, match="own/test"):
        collapse(zoo, ood="own/tset")


def test_progress_ends_at_all_inputs_permutations_and_resamples(predicted: Make) -> None:
    seen: list[tuple[int, int]] = []
    zoo = predicted(spread_members(4, 0.5, 1.0))
    collapse(zoo, permutations=5, resamples=6, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (OWN + OTHER + 11,) * 2 and [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.slow
def test_the_command_is_the_study_and_equal_results_give_equal_bytes(
    predicted: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ckptzoo.cli.app import run

    zoo = predicted(spread_members(15, 0.5, 1.0))
    words = ["study", "collapse", str(zoo.path), "--permutations", "20", "--resamples", "30", "--seed", "4"]
    assert run([*words, "--json", "-o", str(tmp_path / "one")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said.pop("files") == [str(tmp_path / "one" / name) for name in ("collapse.png", "collapse.json")]
    found = collapse(zoo, permutations=20, resamples=30, seed=4)
    assert said == json.loads(canonical(found.to_json()))
    for one, two in zip(
        *(sorted(folder.iterdir()) for folder in (tmp_path / "one", found.plot(tmp_path / "two")[0].parent)),
        strict=True,
    ):
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("members", [20, 60])
def test_the_histograms_and_the_density_hold_every_pair(members: int) -> None:
    rng, count = np.random.default_rng(0), members * (members - 1) // 2
    inside, outside = rng.normal(0.1, 0.01, count).clip(0), rng.normal(0.3, 0.05, count).clip(0)
    figure = pictures.pairs("$n_" * 30, members, {"own": inside, "other": outside}, 0.5)
    left, right, *bar = figure.axes
    for bars, values in zip(left.containers, (inside, outside), strict=True):
        area = sum(item.get_height() * item.get_width() for item in bars)  # type: ignore[attr-defined]
        assert area == pytest.approx(1), values
    if members == 20:
        assert not bar
        np.testing.assert_array_equal(right.lines[0].get_xydata(), np.stack([inside, outside], axis=1))
    else:
        hexagons = right.collections[0].get_array()
        assert hexagons is not None and hexagons.sum() == count == 1770
        figure.canvas.draw()
        labels = [tick.get_text() for tick in bar[0].get_yticklabels(which="both")]
        assert {"1", "2", "5"} <= set(labels) and not any("$" in label for label in labels)
