"""What the study of barriers finds between networks whose barriers are known."""

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs, symmetry
from ckptzoo.derive.evaluation import Evaluator
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.measure.gaussians import joined, wasserstein
from ckptzoo.schema.documents import canonical
from ckptzoo.studies.barriers import BY_ACTIVATIONS, LEAST, Lines, barriers
from ckptzoo.studies.least_barrier import _losses, _tables, least_midpoints
from ckptzoo.studies.plots.barriers import widths
from ckptzoo.studies.shared.networks import ALIGNED, RAW
from tests.support.derived_zoos import weights_of, written
from tests.support.printed import line_of

RNG = np.random.default_rng(0)
OPTUNET = "optunet"


def labelled(shape: tuple[int, ...], classes: int, count: int = 60) -> Labelled:
    inputs = RNG.standard_normal((count, *shape)).astype(np.float32)
    return Labelled("made/test", inputs, RNG.integers(0, classes, count))


def disguised(name: str, count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """One network and copies of it under random permutations, stacked."""
    table, weights = archs.symmetry(name), weights_of(1, seed, arch=archs.architecture(name))
    elements = symmetry.GroupElement.random(table, count, np.random.default_rng(seed), spread=0.0)
    return dict(symmetry.apply(elements, {key: value.repeat(count, 0) for key, value in weights.items()}, table))


def test_copies_have_no_barrier_once_aligned(tmp_path: Path) -> None:
    name = "mlp-4-8-3"
    weights, given = disguised(name, 8), labelled((4,), 3)
    zoo = ckptzoo.open(written(tmp_path / "copies", archs.architecture(name), weights))
    answers = Evaluator(zoo.arch, given).outputs(weights)
    given = Labelled(given.set, given.inputs, answers[0].argmax(1))
    found = barriers([(zoo, given)], pairs=4, simplex=3, recorded=50, seed=1)
    (only,) = found.zoos
    assert list(only.lines) == [RAW, ALIGNED, BY_ACTIVATIONS, "aligned, unit-norm", "aligned, min-mass"]
    assert (only.width, only.members, only.usable, only.inputs) == (8, 8, 8, 60)
    assert len(only.pairs) == 4 and len({id for pair in only.pairs for id in pair}) == 8, "disjoint"
    assert only.lines[RAW].barriers.height.min() > 0.01
    for way, lines in only.lines.items():
        if way != RAW:
            np.testing.assert_allclose(lines.barriers.height, 0, atol=1e-6)
            np.testing.assert_allclose(lines.distances, 0, atol=1e-5)
    assert only.simplices[RAW].greatest_rise.min() > 0.01
    np.testing.assert_allclose(only.simplices[ALIGNED].greatest_rise, 0, atol=1e-6)
    said = line_of(found, 110)
    for words in ("copies: 8 members", "4, on made/test: 60 inputs", "aligned 0.000 ± 0.000", "2 of 3"):
        assert words in said
    assert canonical(found.to_json()) == canonical(json.loads(canonical(found.to_json())))


def test_gaussians_are_joined_and_measured_as_such(tmp_path: Path) -> None:
    name = "gaussian-mlp-4-5-3"
    arch = archs.architecture(name)
    weights = weights_of(4, 1, arch=arch)
    weights = {key: np.abs(value) + 0.01 if key.endswith("_std") else value for key, value in weights.items()}
    zoo = ckptzoo.open(written(tmp_path / "gaussians", arch, weights))
    found = barriers([(zoo, labelled((4,), 3))], pairs=2, draws=3, gauges=[])
    (only,) = found.zoos
    assert "Gaussians" in only.kind and "means over 3 draws" in line_of(found, 110)
    rows = np.array([[zoo.ids.index(id) for id in pair] for pair in only.pairs])
    both = [joined({key: value[rows[:, side]] for key, value in weights.items()}) for side in (0, 1)]
    np.testing.assert_allclose(only.lines[RAW].distances, wasserstein(*both[0], *both[1]), rtol=1e-6)
    assert (only.lines[ALIGNED].distances <= only.lines[RAW].distances + 1e-9).all()


def test_the_least_of_all_permutations(tmp_path: Path) -> None:
    """Losses halfway are those of the networks themselves, and none of 400 permutations has a lower one."""
    arch, table = archs.architecture(OPTUNET), archs.symmetry(OPTUNET)
    first, second = weights_of(1, 1, arch=arch), weights_of(1, 2, arch=arch)
    images = labelled((1, 28, 28), 10, 70)
    evaluator = Evaluator(arch, images)
    elements = symmetry.GroupElement.random(table, 400, np.random.default_rng(3), spread=0.0)
    best = least_midpoints(evaluator, first, second, table, images.targets)

    def halfway(element: Any, count: int) -> np.ndarray:
        moved = symmetry.apply(element, {key: value.repeat(count, 0) for key, value in second.items()}, table)
        weights = {key: ((first[key] + moved[key]) / 2).astype(np.float32) for key in first}
        (scores,) = evaluator.scores([weights])
        return scores.loss

    losses, least = halfway(elements, 400), halfway(best, 1)
    assert least[0] <= losses.min() + 1e-6
    tables = _tables(evaluator, first, second)
    orders = np.array(list(permutations(range(5))))
    every = _losses(*tables, orders, images.targets)
    assert every.shape == (2, 120, 120) and least[0] == pytest.approx(every.min(), rel=1e-5)
    places = {tuple(order): place for place, order in enumerate(orders.tolist())}
    for member in range(400):
        swapped, order = int(elements.perms["conv1"][member, 0]), np.asarray(elements.perms["conv2"][member]) % 5
        expected = every[swapped, places[tuple(order[:5].tolist())], places[tuple(order[5:].tolist())]]
        assert losses[member] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("scale", [1, 100, 1000, 1e5])
def test_losses_of_permutations_are_finite_and_right_for_any_logits(scale: float) -> None:
    rng, orders = np.random.default_rng(0), np.array(list(permutations(range(5))))
    # (a, b, i, j, N, classes), as _tables gives them
    tables, bias = (scale * rng.normal(size=(2, 2, 5, 5, 6, 3))).astype(np.float32), rng.normal(size=3)
    targets = rng.integers(0, 3, 6)
    every = _losses(tables, bias, orders, targets)
    for swapped, one, other in zip(*(rng.integers(0, high, 50) for high in every.shape), strict=True):
        logits = bias + sum(
            tables[0, swapped, channel, orders[one][channel]].astype(float)
            + tables[1, 1 - swapped, channel, orders[other][channel]]
            for channel in range(5)
        )
        losses = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(6), targets]
        assert every[swapped, one, other] == pytest.approx(losses.mean(), rel=1e-12, abs=1e-12)


@pytest.mark.exhaustive
def test_the_least_barrier_and_variants_in_a_study(tmp_path: Path) -> None:
    path = written(tmp_path / "zoo", archs.architecture(OPTUNET), weights_of(6, 5, arch=archs.architecture(OPTUNET)))
    zoo = ckptzoo.open(path)
    ckptzoo.derive.align_zoo(path, zoo.ids[0], label="first", certify="none")
    zoo = ckptzoo.open(path)
    found = barriers(
        [(zoo, labelled((1, 28, 28), 10))], pairs=3, points=3, gauges=["min-mass"], variants=["aligned-first"], least=2
    )
    (only,) = found.zoos
    assert list(only.lines) == [RAW, ALIGNED, "aligned, min-mass", "aligned-first", LEAST]
    assert len(only.lines[LEAST].losses) == 2 == only.least_pairs
    for way in (RAW, ALIGNED):
        assert (only.lines[LEAST].losses[:, 1] <= only.lines[way].losses[:2, 1] + 1e-6).all()
    assert "least of all permutations (2 pairs)" in line_of(found, 110)
    files = {file.name for file in found.plot(tmp_path / "pictures")}
    assert files == {"barriers.png", "barriers.json"}


@pytest.mark.exhaustive
def test_zoos_of_several_widths_are_drawn_together(tmp_path: Path) -> None:
    zoos = []
    for width in (2, 4, 8):
        arch = archs.architecture(f"mlp-4-{width}-3")
        zoos.append(
            (ckptzoo.open(written(tmp_path / f"w{width}", arch, weights_of(4, width, arch=arch))), labelled((4,), 3))
        )
    counted: list[tuple[int, int]] = []
    found = barriers(zoos, pairs=6, points=3, progress=lambda done, total: counted.append((done, total)))
    assert [zoo.width for zoo in found.zoos] == [2, 4, 8]
    assert all(len(set(zoo.pairs)) == 6 for zoo in found.zoos), "all pairs of 4"
    assert counted[-1][0] == counted[-1][1] == 3 * 6 * 4
    assert {file.name for file in found.plot(tmp_path / "pictures")} == {"barriers.png", "widths.png", "barriers.json"}
    again = barriers(zoos, pairs=6, points=3)
    assert again.to_json() == found.to_json()


@pytest.mark.exhaustive
def test_kinds_of_one_width_are_not_drawn_against_it(tmp_path: Path) -> None:
    zoos = []
    for width, recipe in ((2, "one"), (4, "one"), (8, "other")):
        arch, folder = archs.architecture(f"mlp-4-{width}-3"), tmp_path / f"w{width}"
        with ckptzoo.create(folder, arch=arch, symmetry=archs.symmetry(arch.name)) as writer:
            writer.add(weights_of(4, width, arch=arch), [{"id": f"m{at}", "recipe": recipe} for at in range(4)])
        zoos.append((ckptzoo.open(folder), labelled((4,), 3)))
    found = barriers(zoos, pairs=2, points=3)
    figure = widths(found.zoos)
    (panel,), (key,) = figure.axes, figure.legends
    assert panel.get_title(loc="left") == "one" and "1 more kind not shown" in key.get_title().get_text()
    assert panel.get_ylim()[1] >= 10 * panel.get_ylim()[0], "also where all barriers are 0"
    assert key._ncols == 4, "four ways are in one line"
    assert {file.name for file in found.plot(tmp_path / "one")} == {"barriers.png", "widths.png", "barriers.json"}
    uneven = Lines(np.array([0, 0.5, 1]), np.array([[0, 1.0, 0], [0, 0, 0]]), np.zeros((2, 3)), np.ones(2))
    figure = widths([replace(zoo, lines={RAW: uneven}) for zoo in found.zoos])
    assert figure.axes[0].get_ylim()[0] > 1e-4, "an error as large as its mean reaches down to 0"
    two = replace(found, zoos=found.zoos[1:])
    assert {file.name for file in two.plot(tmp_path / "two")} == {"barriers.png", "barriers.json"}


def test_a_single_pair_has_no_deviation(tmp_path: Path) -> None:
    arch = archs.architecture(OPTUNET)
    zoo = ckptzoo.open(written(tmp_path / "zoo", arch, weights_of(2, 1, arch=arch)))
    found = barriers([(zoo, labelled((1, 28, 28), 10))], points=3, gauges=[], simplex=2, least=1)
    said = line_of(found, 110)
    assert "least of all permutations (1 pair)" in said and "±" in said and "± 0." not in said
    assert said.count("± -") == 3 * 4 + 2 * 2


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"gauges": ["nothing"]}, UnknownNameError, "gauge"),
        ({"variants": ["aligned-no"]}, UnknownNameError, "variant"),
        (
            {"points": 2, "pairs": 0},
            ZooError,
            "points: expected an integer, 3 or more, got int 2",
        ),
        ({"simplex": 1}, ZooError, "simplex: expected 2 or more, got 1"),
        ({"simplex": 9}, ZooError, "members: expected 9 or more that are finite and did not diverge, got 3 of 3"),
        ({"least": 1}, ZooError, "least barrier: expected OptuNets"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Path, options: dict[str, Any], error: type, words: str) -> None:
    arch = archs.architecture("mlp-4-5-3")
    zoo = ckptzoo.open(written(tmp_path / "zoo", arch, weights_of(3, 1, arch=arch)))
    with pytest.raises(error, match=words):
        barriers([(zoo, labelled((4,), 3))], **options)


def test_members_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    arch = archs.architecture("mlp-4-5-3")
    weights = weights_of(4, 1, arch=arch)
    weights["fc1.bias"][2] = np.inf
    zoo = ckptzoo.open(written(tmp_path / "zoo", arch, weights))
    found = barriers([(zoo, labelled((4,), 3))], gauges=[])
    assert (found.zoos[0].members, found.zoos[0].usable, len(found.zoos[0].pairs)) == (4, 3, 3)
    assert "1 not finite or diverged" in line_of(found, 110)


def test_counters_of_batch_norm_go_along(tmp_path: Path) -> None:
    """They are in no gauge, and the network takes them."""
    import torch
    from torch import nn

    def network(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).eval()

    traced = symmetry.trace(network(0), torch.zeros(3, 2))
    with ckptzoo.create(tmp_path / "zoo", arch=traced) as writer:
        for seed in range(3):
            writer.add(network(seed).state_dict(), {"id": f"n{seed}"})
    rng = np.random.default_rng(0)
    given = Labelled("mine", rng.normal(size=(20, 2)).astype(np.float32), rng.integers(0, 3, 20))
    found = barriers(
        [(ckptzoo.open(tmp_path / "zoo"), given)], pairs=2, points=3, gauges=("unit-norm",), module=network(0)
    )
    assert np.isfinite(found.zoos[0].lines["aligned, unit-norm"].losses).all()
