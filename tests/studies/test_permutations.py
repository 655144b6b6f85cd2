"""What a study of permutations finds where the keys of every step are planted."""

import itertools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import derive
from ckptzoo.errors import MissingExtraError, UnknownNameError, ZooError
from ckptzoo.measure.ranks import kendall, noise_tau, normal_tau
from ckptzoo.schema.documents import canonical
from ckptzoo.studies import permutations as module
from ckptzoo.studies.order_movement import AS, ENOUGH, LESS, MORE, UNKNOWN, Movement
from ckptzoo.studies.permutations import Permutations, permutations
from ckptzoo.studies.plots import permutations as permutation_pictures
from ckptzoo.studies.shared import plots
from tests.support import effort
from tests.support.pictures import share
from tests.support.printed import printed

Make = Callable[..., ckptzoo.Zoo]


def followed(make: Make, keys: np.ndarray, steps: tuple[int, ...], *, name: str = "units") -> ckptzoo.Zoo:
    """A zoo whose members have these keys (members, steps, units), each step as a checkpoint of its own."""
    count = len(steps)

    def row(at: int) -> dict[str, Any]:
        return {"member": f"m{at // count}", "step": steps[at % count]}

    return make(keys.reshape(-1, keys.shape[-1]), rows=row, name=name)


def one(found: Permutations, first: int, second: int) -> Movement:
    """The movement between two steps, of the only order."""
    (item,) = [item for item in found.movements if (item.first, item.second) == (first, second)]
    return item


def test_planted_orders_are_followed(sorted_units: Make) -> None:
    ranks = np.array(
        [
            [[0, 1, 2, 3], [1, 0, 2, 3], [1, 0, 3, 2]],
            [[0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 3, 0]],
        ]
    )
    found = permutations(followed(sorted_units, ranks / 4 - 0.4, (0, 10, 100)), "first-weight")
    assert (found.members, found.steps, found.left_out, found.explained) == (2, (0, 10, 100), 0, 1)
    assert [(item.first, item.second) for item in found.movements] == [(0, 10), (0, 100), (10, 100)]
    swapped, later, last = (one(found, *pair) for pair in ((0, 10), (0, 100), (10, 100)))
    assert (swapped.tau, swapped.transpositions) == (pytest.approx((2 / 3 + 1) / 2), 0.5)
    assert (later.tau, later.transpositions) == (pytest.approx((1 / 3 + 0) / 2), (2 + 3) / 2)
    assert (last.tau, last.transpositions) == (pytest.approx((2 / 3 + 0) / 2), (1 + 3) / 2)
    assert swapped.tau_se == pytest.approx(np.std([2 / 3, 1], ddof=1) / 2**0.5)
    assert later.transpositions_se == pytest.approx(0.5)
    assert {name: [(item.first, item.second) for item in items] for name, items in found.of("units").items()} == {
        "from the one before": [(0, 10), (10, 100)],
        "from the first": [(0, 10), (0, 100)],
        "to the last": [(0, 100), (10, 100)],
    }


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ((1, 0, 0, 0), "at most 50% from 0 to 1, in the end 0% from 3 to 4"),
        ((0, 1, 0, 0), "0% from 0 to 1, at most 50% from 1 to 2, in the end 0% from 3 to 4"),
        ((0, 0, 0, 1), "0% from 0 to 1, in the end 50% from 3 to 4"),
        ((0, 0, 0, 0), "at most 0% from 0 to 1, in the end 0% from 3 to 4"),
    ],
)
def test_spans_are_told_once(sorted_units: Make, changes: tuple[int, ...], shown: str) -> None:
    swaps = np.cumsum([0, *changes]) % 2
    ranks = np.array([[[1, 0, 2, 3] if swap else [0, 1, 2, 3] for swap in swaps], [[0, 1, 2, 3]] * 5])
    found = permutations(followed(sorted_units, ranks / 4 - 0.4, (0, 1, 2, 3, 4)), "first-weight")
    assert f"Orders of units that changed at all: {shown}." in printed(found, 200)


def test_orders_by_the_largest_weight_are_followed(sorted_units: Make) -> None:
    # of each unit the first weight, what first-weight goes by, rises, while the largest changes places
    keys = np.array([[[-0.9, -0.8, -0.7], [-0.9, -0.8, -0.7], [-0.9, -0.8, -0.7]]])
    largest = np.array([[[1.0, 2, 3], [2, 1, 3], [3, 2, 1]]])
    # sorted_units writes (key, sqrt(1 - key^2)) over the scale, of which the second is the largest
    scales = np.sqrt(1 - keys**2) / largest
    zoo = sorted_units(keys.reshape(3, 3), scales.reshape(3, 3), lambda at: {"member": "m", "step": at}, name="largest")
    found = permutations(zoo, key="largest-weight")
    assert (found.key, found.variant, found.explained) == ("largest-weight", "raw", 1)
    assert [one(found, *pair).transpositions for pair in ((0, 1), (0, 2), (1, 2))] == [1, 1, 2]
    assert [one(found, *pair).tau for pair in ((0, 1), (0, 2))] == [pytest.approx(1 / 3), -1]
    assert [item.transpositions for item in permutations(zoo, "first-weight").movements] == [0, 0, 0]
    text = printed(found, 200)
    assert "order: by the largest incoming weight as trained" in text
    assert "Orders of units that changed at all: 100% from 0 to 1, 100% from 1 to 2." in text
    # no variant is needed for it
    with ckptzoo.create(zoo.path.parent / "bare", arch=zoo.arch, symmetry=zoo.symmetry) as writer:
        rows = [{"id": f"u{at}", "member": "m", "step": at} for at in range(3)]
        writer.add({name: np.asarray(zoo[name]) for name in ("hidden.weight", "out.weight")}, rows)
    bare = permutations(ckptzoo.open(zoo.path.parent / "bare"), key="largest-weight")
    assert bare.movements == found.movements
    with pytest.raises(ZooError, match="key: expected gauge or largest-weight, got 'largest'"):
        permutations(zoo, key="largest")  # type: ignore[arg-type]


def test_the_share_that_changed_counts_orders(sorted_units: Make) -> None:
    ranks = np.array([[[0, 1, 2], [0, 1, 2], [2, 1, 0]], [[0, 1, 2], [1, 0, 2], [2, 0, 1]]])
    found = permutations(followed(sorted_units, ranks / 4 - 0.4, (0, 10, 100)), "first-weight")
    assert [one(found, *pair).changed for pair in ((0, 10), (10, 100), (0, 100))] == [0.5, 1, 1]


def test_every_figure_is_its_definition(sorted_units: Make) -> None:
    rng = np.random.default_rng(0)
    keys = rng.uniform(-0.9, 0.9, (11, 2, 7))
    item = one(permutations(followed(sorted_units, keys, (3, 8)), "first-weight"), 3, 8)
    before, after = keys[:, 0], keys[:, 1]
    taus = kendall(before, after)
    assert (item.n, item.orders, item.members, item.label) == (7, 1, 11, "units")
    assert item.tau == pytest.approx(taus.mean()) and item.tau_se == pytest.approx(taus.std(ddof=1) / 11**0.5)
    x, y = (values - values.mean(axis=1, keepdims=True) for values in (before, after))
    assert item.distance == pytest.approx(math.sqrt(((y - x) ** 2).sum() / (x**2).sum()))
    assert item.correlation == pytest.approx((x * y).sum() / math.sqrt((x**2).sum() * (y**2).sum()))
    assert item.noise == pytest.approx(noise_tau(item.distance))
    assert item.normal == pytest.approx(normal_tau(item.correlation))
    without = []
    for member in range(11):
        rest = np.arange(11) != member
        d = math.sqrt(((y - x)[rest] ** 2).sum() / (x[rest] ** 2).sum())
        without.append(taus[rest].mean() - noise_tau(d))
    jackknife = math.sqrt(10 / 11 * ((np.array(without) - np.mean(without)) ** 2).sum())
    assert item.noise_error is not None and item.noise_error >= jackknife * (1 - 1e-9)
    assert item.noise_error == pytest.approx(jackknife, rel=0.5)


@pytest.mark.parametrize("d", [0.23, 0.9])
def test_noise_is_read_as_noise(sorted_units: Make, d: float) -> None:
    rng = np.random.default_rng(17)
    start = 0.08 * rng.normal(size=(80, 1, 12))
    keys = np.concatenate([start, start + d * 0.08 * rng.normal(size=start.shape)], axis=1)
    found = permutations(followed(sorted_units, keys, (0, 5)), "first-weight")
    item = one(found, 0, 5)
    assert item.distance == pytest.approx(d, rel=0.06) and item.noise_error is not None
    assert item.than_noise == AS and item.than_normal == AS
    assert item.tau == pytest.approx(noise_tau(d), abs=0.03) and 0.003 < item.noise_error < 0.02
    assert "says only that the keys moved so far" in printed(found, 200)


def test_readings_are_rarely_wrong_where_noise_is_all_there_is(sorted_units: Make) -> None:
    rng = np.random.default_rng(5)
    steps = tuple(range(9))
    start = 0.1 * rng.normal(size=(400, 1, 4))
    moved = start + 0.1 * rng.uniform(0.05, 1.5, (1, 8, 1)) * rng.normal(size=(400, 8, 4))
    found = permutations(
        followed(sorted_units, np.concatenate([start, moved], axis=1).clip(-0.99, 0.99), steps), "first-weight"
    )
    assert [item.than_noise for item in found.movements if item.first == 0] == [AS] * 8


def test_keys_that_spread_out_keep_more_than_noise(sorted_units: Make) -> None:
    start = np.random.default_rng(1).uniform(-0.2, 0.2, (20, 1, 9))
    found = permutations(followed(sorted_units, np.concatenate([start, 3 * start], axis=1), (0, 1)), "first-weight")
    item = one(found, 0, 1)
    assert (item.tau, item.transpositions, item.than_noise) == (1, 0, MORE)
    assert item.distance == pytest.approx(2) and item.correlation == pytest.approx(1)
    assert "More in 1 of 1" in printed(found, 200)


def test_keys_that_keep_their_spread_keep_less_than_noise(sorted_units: Make) -> None:
    rng = np.random.default_rng(2)
    start, other = 0.1 * rng.normal(size=(2, 150, 1, 8))
    keys = np.concatenate([start, 0.2 * start + math.sqrt(1 - 0.04) * other], axis=1)
    found = permutations(followed(sorted_units, keys, (0, 1)), "first-weight")
    item = one(found, 0, 1)
    assert item.than_noise == LESS and item.than_normal == AS
    assert item.tau == pytest.approx(normal_tau(0.2), abs=0.06)
    text = printed(found, 200)
    assert "Less in 1 of 1" in text and "The correlation of the keys accounts for tau in 1 of 1." in text


def test_orders_that_never_change_are_not_certain_of_themselves(sorted_units: Make) -> None:
    keys = np.tile(np.array([-0.3, 0.3]), (40, 2, 1)) + 0.02 * np.random.default_rng(3).normal(size=(40, 2, 2))
    item = one(permutations(followed(sorted_units, keys, (0, 1)), "first-weight"), 0, 1)
    assert (item.tau, item.tau_se) == (1, 0)
    assert item.noise < 1 and item.noise_error is not None
    assert item.noise_error >= math.sqrt((1 - item.noise**2) / 40) * (1 - 1e-9)
    assert item.than_noise == AS


def test_few_members_have_no_reading(sorted_units: Make) -> None:
    keys = np.random.default_rng(4).uniform(-0.9, 0.9, (ENOUGH, 2, 5))
    few = permutations(followed(sorted_units, keys[1:], (0, 1)), "first-weight")
    assert one(few, 0, 1).than_noise == UNKNOWN and "a comparison takes 8 members" in printed(few, 200)
    assert (
        one(permutations(followed(sorted_units, keys, (0, 1), name="more"), "first-weight"), 0, 1).than_noise != UNKNOWN
    )
    item = one(single := permutations(followed(sorted_units, keys[:1], (0, 1), name="single"), "first-weight"), 0, 1)
    assert item.tau_se is None and item.noise_error is None and item.tau == kendall(keys[0, 0], keys[0, 1])
    assert "±" not in printed(single, 200).split("tau: ")[0]


def test_members_with_other_steps_are_followed_as_far_as_they_go(sorted_units: Make) -> None:
    rows = [("a", 0), ("b", 0), ("a", 9), ("c", 9), ("a", 20), ("c", 20), ("d", 7), ("e", None)]
    keys = np.random.default_rng(6).uniform(-0.9, 0.9, (len(rows), 4))
    zoo = sorted_units(keys, rows=lambda at: {"member": rows[at][0], "step": rows[at][1]})
    found = permutations(zoo, "first-weight")
    assert (found.members, found.steps, found.left_out) == (2, (0, 9, 20), 1)
    assert [(item.first, item.second, item.members) for item in found.movements] == [(0, 9, 1), (0, 20, 1), (9, 20, 2)]
    assert one(found, 0, 9).tau == kendall(keys[0], keys[2])
    assert one(found, 9, 20).tau == pytest.approx((kendall(keys[2], keys[4]) + kendall(keys[3], keys[5])) / 2)
    assert "members" in printed(found, 200).splitlines()[5], "their number differs, so it has a column"


def test_the_order_of_the_rows_does_not_matter(sorted_units: Make) -> None:
    keys = np.random.default_rng(7).uniform(-0.9, 0.9, (6, 3, 5))
    zoo = followed(sorted_units, keys, (0, 4, 8))
    shuffled = zoo.take(np.random.default_rng(8).permutation(18))
    for item, other in zip(
        permutations(zoo, "first-weight").movements, permutations(shuffled, "first-weight").movements, strict=True
    ):
        assert (item.tau, item.distance) == (pytest.approx(other.tau), pytest.approx(other.distance))


def test_diverged_members_and_those_not_in_the_gauge_are_left_out(sorted_units: Make) -> None:
    keys = np.random.default_rng(9).uniform(-0.9, 0.9, (4, 2, 3))
    keys[1, 0, 0] = np.nan
    rows = [{"member": f"m{at // 2}", "step": at % 2, "diverged": at // 2 == 2} for at in range(8)]
    found = permutations(sorted_units(keys.reshape(-1, 3), rows=lambda at: rows[at]), "first-weight")
    assert (found.members, found.left_out) == (2, 3)
    taus = kendall(keys[[0, 3], 0], keys[[0, 3], 1])
    assert one(found, 0, 1).tau == pytest.approx(taus.mean())


def test_blocks_and_what_is_within_them(tmp_path: Path) -> None:
    symmetry, arch = archs.symmetry("optunet"), archs.architecture("optunet")
    assert symmetry is not None
    rng = np.random.default_rng(10)
    weights = {tensor.name: rng.normal(size=(24, *tensor.shape)).astype(np.float32) for tensor in arch.tensors}
    with ckptzoo.create(tmp_path / "o", arch=arch, symmetry=symmetry) as writer:
        writer.add(weights, [{"id": f"o{at}", "member": f"m{at % 12}", "step": at // 12} for at in range(24)])
    derive(tmp_path / "o", gauge="first-weight", certify="none")
    found = permutations(ckptzoo.open(tmp_path / "o"), "first-weight")
    assert found.labels == ("blocks of conv1 and conv2", "conv2 within its 2 blocks") and found.explained == 1
    blocks, inside = found.movements
    unit = {name: weights[f"{name}.weight"].reshape(24, -1, size) for name, size in (("conv1", 16), ("conv2", 25))}
    keys = {name: array[:, :, 0] / np.linalg.norm(array, axis=2) for name, array in unit.items()}
    assert blocks.tau == pytest.approx(kendall(keys["conv1"][:12], keys["conv1"][12:]).mean())
    assert blocks.transpositions == pytest.approx((1 - blocks.tau) / 2)
    within = keys["conv2"].reshape(24, 2, 5)
    assert inside.tau == pytest.approx(kendall(within[:12], within[12:]).mean())
    assert (inside.n, inside.orders, inside.members) == (5, 2, 12)
    assert inside.tau_se == pytest.approx(kendall(within[:12], within[12:]).mean(axis=1).std(ddof=1) / 12**0.5)
    text = printed(found, 200)
    assert "conv2 within its 2 blocks, n = 5: at random tau 0, 2.72 transpositions" in text


def test_keys_that_do_not_explain_the_order_are_told(sorted_units: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = np.random.default_rng(11).uniform(-0.9, 0.9, (10, 2, 4))
    zoo = followed(sorted_units, keys, (0, 1))

    def other(weights: Any, symmetry: Any) -> dict[str, np.ndarray]:
        return {"units": weights["hidden.weight"][:, :, 1].astype(np.float64)}

    monkeypatch.setattr(module, "keys_of", lambda _: other)
    found = permutations(zoo, "first-weight")
    assert found.explained < 0.5 and f"{found.explained:.1%} of the orders are those of the keys" in printed(found, 200)
    assert one(found, 0, 1).tau == pytest.approx(kendall(keys[:, 0], keys[:, 1]).mean()), "tau is that of the gauge"


def test_small_batches_give_the_same(sorted_units: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = np.random.default_rng(12).uniform(-0.9, 0.9, (9, 3, 5))
    zoo = followed(sorted_units, keys, (0, 4, 8))
    whole = canonical(permutations(zoo, "first-weight").to_json())
    for checkpoints in (1, 4, 7):
        seen: list[tuple[int, int]] = []
        monkeypatch.setattr(module, "BATCH_BYTES", checkpoints * zoo.arch.nbytes)
        found = permutations(zoo, "first-weight", progress=lambda done, total, seen=seen: seen.append((done, total)))
        assert canonical(found.to_json()) == whole
        assert seen[-1] == (9, 9) and len(seen) == math.ceil(9 / max(1, checkpoints // 3))


def test_what_cannot_be_followed_is_said(sorted_units: Make) -> None:
    keys = np.random.default_rng(13).uniform(-0.9, 0.9, (4, 2, 3))
    zoo = followed(sorted_units, keys, (0, 1))
    with pytest.raises(ZooError, match=r"got one step of each of 4 members.*--keep-steps"):
        permutations(zoo.where("step == 1"), "first-weight")
    with pytest.raises(ZooError, match="got no checkpoint with a step"):
        unknown = sorted_units(keys[:, 0], rows=lambda at: {"member": f"m{at}"}, name="unknown")
        permutations(unknown, "first-weight")
    with pytest.raises(ZooError, match="expected a gauge that orders channels"):
        permutations(zoo, "unit-norm")
    with pytest.raises(UnknownNameError, match="raw"):
        permutations(zoo, "raw")
    again = sorted_units(keys.reshape(-1, 3), rows=lambda at: {"member": f"m{at // 4}", "step": at % 2}, name="again")
    with pytest.raises(ZooError, match="member 'm0': expected one checkpoint of step"):
        permutations(again, "first-weight")


def test_without_matplotlib_the_extra_is_named(
    sorted_units: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = permutations(followed(sorted_units, np.tile([[0.1, 0.2, 0.3]], (2, 2, 1)), (0, 1)), "first-weight")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"ckptzoo\[plot\]"):
        found.plot(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param((0, 1), marks=pytest.mark.exhaustive),
        (5, 10, 20),
        pytest.param((0, 1, 10, 100, 1000, 5000), marks=pytest.mark.exhaustive),
    ],
)
def test_the_picture_shows_measured_and_expected(sorted_units: Make, tmp_path: Path, steps: tuple[int, ...]) -> None:
    rng = np.random.default_rng(14)
    keys = np.cumsum(0.1 * rng.normal(size=(12, len(steps), 6)), axis=1).clip(-0.99, 0.99)
    found = permutations(followed(sorted_units, keys, steps), "first-weight")
    first = found.plot(tmp_path / "one")
    assert [path.name for path in first] == ["permutations.png", "permutations.json"]
    if effort.ALL:
        assert first[0].read_bytes() == found.plot(tmp_path / "two")[0].read_bytes()
    for colour in (plots.RAW_COLOUR, plots.DERIVED_COLOUR, permutation_pictures.NORMAL_COLOUR):
        assert share(first[0], colour) > 1e-4
    plain = json.loads(first[1].read_bytes())
    assert plain == json.loads(canonical(found.to_json())) and plain["steps"] == list(steps)
    assert len(plain["movements"]) == len(set(itertools.chain(*(items for items in found.of("units").values()))))


def test_many_orders_are_thinned_out(monkeypatch: pytest.MonkeyPatch, sorted_units: Make) -> None:
    keys = np.random.default_rng(15).uniform(-0.9, 0.9, (8, 2, 3))
    found = permutations(followed(sorted_units, keys, (0, 1)), "first-weight")
    held = {f"layer {at}": found.of("units") for at in range(10)}
    monkeypatch.setattr(permutation_pictures, "MAX_ORDERS", 2)
    figure = permutation_pictures.orders("a", 8, held)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title.partition(",")[0] for title in titles if "layer" in title] == ["layer 0", "layer 9"]
    assert "8 more orders not shown" in figure.legends[0].get_title().get_text()
