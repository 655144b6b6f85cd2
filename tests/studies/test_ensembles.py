"""What the study of ensembles finds in zoos whose predictions are known, beside plain averages of these."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax

import ckptzoo
from ckptzoo.derive import predict
from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.measure.predictions import accuracy, auroc, brier, ece, fpr, nll
from ckptzoo.schema.documents import canonical
from ckptzoo.studies import ensembles as module
from ckptzoo.studies.ensembles import Ensembles, Size, ensembles
from ckptzoo.studies.plots import ensembles as pictures
from ckptzoo.studies.shared.result import Spread
from tests.support.printed import printed

OWN, OTHER = 60, 40
CLASSES = 4
TARGETS = np.arange(OWN) % CLASSES
SCORES: dict[str, Callable[..., Any]] = {"accuracy": accuracy, "nll": nll, "brier": brier, "ece": ece}

Make = Callable[..., tuple[ckptzoo.Zoo, np.ndarray]]


@pytest.fixture
def made(tmp_path: Path) -> Make:
    """Make a zoo whose networks predict given logits (K, N, C) on the inputs 0 .. N - 1.

    Each is a linear map, and input n the n-th unit vector, so the weights of input n are its logits.
    """

    def make(
        logits: np.ndarray, rows: Callable[[int], dict[str, Any]] = lambda _: {}, other: bool = True, name: str = "e"
    ) -> tuple[ckptzoo.Zoo, np.ndarray]:
        K, N, C = logits.shape
        with np.errstate(over="ignore"):
            held = logits.astype(np.float32).astype(np.float16)
        arch = ckptzoo.Architecture("linear", (ckptzoo.Tensor("weight", (C, N)),))
        with ckptzoo.create(tmp_path / name, arch=arch) as writer:
            writer.add(
                {"weight": np.ascontiguousarray(logits.swapaxes(1, 2), np.float32)},
                [{"id": f"e{at}", **rows(at)} for at in range(K)],
            )
        units, linear = np.eye(N, dtype=np.float32), torch.nn.Linear(N, C, bias=False)
        predict(tmp_path / name, units[:OWN], set="own/test", targets=TARGETS, module=linear)
        if other:
            predict(tmp_path / name, units[OWN:], set="other/test", module=linear)
        return ckptzoo.open(tmp_path / name), held.astype(np.float64)

    return make


def logits_of(members: int, seed: int = 0) -> np.ndarray:
    """Logits of members that are often right on their own inputs, and often sure of the others."""
    logits = np.random.default_rng(seed).normal(size=(members, OWN + OTHER, CLASSES))
    logits[:, np.arange(OWN), TARGETS] += 1
    return 2 * logits


def looped(p: np.ndarray) -> dict[str, dict[str, float]]:
    """Every figure of one ensemble from the probabilities (S, N, C) of its members."""
    mean = p.mean(0)
    information = -(mean * np.log(mean)).sum(-1) + (p * np.log(p)).sum(-1).mean(0)
    doubt = 1 - mean.max(-1)
    own = {name: float(score(np.log(mean[:OWN]), TARGETS)) for name, score in SCORES.items()}
    own["confidence"] = mean[:OWN].max(-1).mean()
    other = {"auroc": auroc(doubt[OWN:], doubt[:OWN]), "fpr95": fpr(doubt[OWN:], doubt[:OWN])}
    if len(p) > 1:
        own["mutual_information"] = information[:OWN].mean()
        other["mutual_information"] = information[OWN:].mean()
        other["information_auroc"] = auroc(information[OWN:], information[:OWN])
        other["information_fpr95"] = fpr(information[OWN:], information[:OWN])
    return {"own/test": own, "other/test": other}


def assert_is_looped(found: Ensembles, p: np.ndarray, sizes: list[int]) -> None:
    """Every figure of every size against the disjoint ensembles of members in this order, up to the most."""
    assert [item.size for item in found.sizes] == sizes
    for item in found.sizes:
        S = item.size
        number = len(p) // S if S == 1 else min(len(p) // S, module.SUBSETS)
        assert item.subsets == number
        each = [looped(p[at * S : (at + 1) * S]) for at in range(number)]
        for name, figures in each[0].items():
            assert item.scores[name].keys() == figures.keys()
            for figure in figures:
                values = np.array([one[name][figure] for one in each])
                spread = item.scores[name][figure]
                assert spread.count == number
                assert spread.mean == pytest.approx(values.mean(), abs=1e-9), (S, name, figure)
                assert spread.sd == pytest.approx(values.std(ddof=1) if number > 1 else 0, abs=1e-9)
                assert (spread.least, spread.most) == pytest.approx((values.min(), values.max()), abs=1e-9)


@pytest.mark.slow
def test_every_figure_is_that_of_plain_averages(made: Make) -> None:
    zoo, logits = made(logits_of(109))
    found = ensembles(zoo, seed=3)
    assert (found.set, found.ood, found.members, found.inputs, found.classes) == (
        "own/test",
        ("other/test",),
        109,
        60,
        4,
    )
    p = softmax(logits[np.random.default_rng(3).permutation(109)], axis=-1)
    assert_is_looped(found, p, [1, 2, 4, 8, 10, 16, 32, 64, 100, 109])
    assert found.sizes[1].subsets == module.SUBSETS < 54
    np.testing.assert_allclose(found.accuracies, (p[:, :OWN].argmax(-1) == TARGETS).mean(-1))
    chosen = p.argmax(-1)
    apart = [(chosen[s] != chosen[t]) for s in range(109) for t in range(s)]
    assert found.disagreement["own/test"] == pytest.approx(np.mean(apart, axis=0)[:OWN].mean())
    assert found.disagreement["other/test"] == pytest.approx(np.mean(apart, axis=0)[OWN:].mean())


def test_a_power_of_two_members_is_scored_once_and_batches_do_not_matter(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo, logits = made(logits_of(8))
    found = ensembles(zoo)
    assert_is_looped(found, softmax(logits[np.random.default_rng(0).permutation(8)], axis=-1), [1, 2, 4, 8])
    monkeypatch.setattr(module, "BATCH_BYTES", 1)
    assert canonical(ensembles(zoo).to_json()) == canonical(found.to_json())
    assert canonical(ensembles(zoo, seed=1).to_json()) != canonical(found.to_json())


def test_last_steps_count_diverged_too_and_not_finite_ones_do_not(made: Make) -> None:
    logits = logits_of(30)
    logits[25] = np.nan
    logits[26, OWN + 3, 1] = 1e6
    zoo, held = made(logits, lambda at: {"member": f"m{at % 10}", "step": at, "diverged": at in (3, 21)})
    assert (~zoo.metadata["finite"].to_numpy()).nonzero()[0].tolist() == [25]
    found = ensembles(zoo, ood=())
    last = [20, 21, 22, 23, 24, 26, 27, 28, 29]
    assert (found.members, found.not_finite, found.diverged.sum()) == (9, 1, 1)
    kept = np.random.default_rng(0).permutation(last)
    np.testing.assert_allclose(found.accuracies, (held[kept, :OWN].argmax(-1) == TARGETS).mean(-1))
    np.testing.assert_array_equal(found.diverged, kept == 21)
    assert ensembles(zoo.last_steps().where("diverged == False")).members == 8


@pytest.mark.slow
@pytest.mark.exhaustive
def test_members_not_finite_on_another_set_are_left_out_for_that_set_alone(made: Make, tmp_path: Path) -> None:
    logits = logits_of(9)
    logits[4, OWN + 3, 1] = 1e6
    zoo, held = made(logits)
    linear = torch.nn.Linear(OWN + OTHER, CLASSES, bias=False)
    predict(zoo.path, np.eye(OWN + OTHER, dtype=np.float32)[OWN + 4 :], set="third/test", module=linear)
    predict(zoo.path, np.full((3, OWN + OTHER), np.nan, np.float32), set="zeros/nan", module=linear)
    zoo = ckptzoo.open(zoo.path)
    found = ensembles(zoo)
    assert (found.members, found.not_finite, found.ood) == (9, 0, ("other/test", "third/test"))
    assert found.ood_not_finite == {"other/test": 1, "zeros/nan": 9}
    alone = ensembles(zoo, ood=["third/test"])
    for name in ("own/test", "third/test"):
        assert all(found.figure(figure, name) == alone.figure(figure, name) for figure in alone.sizes[1].scores[name])
    order = np.random.default_rng(0).permutation(9)
    p = softmax(held[order[order != 4]], axis=-1)
    assert list(found.figure("auroc", "other/test")) == [1, 2, 4, 8]
    for size, spread in found.figure("auroc", "other/test").items():
        each = [looped(p[at : at + size])["other/test"]["auroc"] for at in range(0, 8, size)]
        assert (spread.count, spread.mean) == (len(each), pytest.approx(np.mean(each), abs=1e-9))
    choices = p[:, OWN:].argmax(-1)
    apart = np.mean([(choices[s] != choices[t]).mean() for s in range(8) for t in range(s)])
    assert found.disagreement["other/test"] == pytest.approx(apart)
    text = printed(found)
    assert "other/test: 1 of 9 members not finite on it, left out for it" in text
    assert "zeros/nan: 9 of 9 members not finite on it, so it is left out" in text
    assert [path.name for path in found.plot(tmp_path / "drawn")][2] == "detection.png"
    seen: list[tuple[int, int]] = []
    ensembles(zoo, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]


def test_enough_is_where_the_gain_ends(made: Make) -> None:
    zoo, _ = made(logits_of(64))
    found = ensembles(zoo)
    means = {size: spread.mean for size, spread in found.figure("nll").items()}
    for share in (0.5, 0.9):
        size = found.enough("nll", share)
        assert size is not None
        gains = {S: (means[1] - mean) / (means[1] - means[64]) for S, mean in means.items()}
        assert all(gain >= share for gain in list(gains.values())[list(gains).index(size) :])
        smaller = list(gains.values())[: list(gains).index(size)]
        assert not smaller or smaller[-1] < share
    assert found.enough("accuracy", 0.0) == 1
    assert found.enough("nll", 1.0) is None, "all members are a single ensemble"
    same, _ = made(np.repeat(logits_of(1), 4, axis=0), name="same")
    assert [ensembles(same).enough(name, 0.9) for name in SCORES] == [None] * 4
    assert ensembles(same).disagreement == {"own/test": 0, "other/test": 0}


def test_what_noise_hides_is_not_told(made: Make) -> None:
    found = ensembles(made(logits_of(64))[0], ood=())
    figures = {1: (0.80, 0.04, 64), 2: (0.881, 0.04, 32), 32: (0.895, 0.0, 2), 64: (0.9, 0.0, 1)}

    def enough(share: float, name: str = "accuracy", **changed: tuple[float, float, int]) -> int | None:
        told = figures | {int(size[1:]): value for size, value in changed.items()}
        sizes = [
            Size(size, count, {found.set: {name: Spread(count, mean, sd, mean, mean, mean)}})
            for size, (mean, sd, count) in told.items()
        ]
        return replace(found, sizes=tuple(sizes)).enough(name, share)

    assert enough(0.8) == 2, "20 % of 0.1 are more than 0.04 / sqrt(32) and than one of 60 inputs"
    assert enough(0.8, _2=(0.881, 0.2, 32)) is None, "the standard error of that size"
    assert enough(0.8, _32=(0.895, 0.1, 2)) is None, "and of a larger one"
    assert enough(0.8, _2=(0.87, 0.04, 32)) == 32
    assert enough(0.95) is None, "5 % of 0.1 are less than one input"
    falling = {f"_{size}": (1 - mean, sd, count) for size, (mean, sd, count) in figures.items()}
    assert enough(0.94, "nll", **falling) == 32
    assert enough(0.99, "nll", **falling) is None, "a single ensemble"


def test_ensembles_that_are_less_sure_than_right_are_no_mistake(made: Make) -> None:
    logits = logits_of(64, seed=1)
    found = ensembles(made(logits)[0])
    ece, confidence, accuracy = (found.figure(name) for name in ("ece", "confidence", "accuracy"))
    assert ece[64].mean > ece[1].mean and confidence[64].mean < accuracy[64].mean
    said = f"mean confidence {100 * confidence[64].mean:.2f}%, accuracy {100 * accuracy[64].mean:.2f}%"
    text = " ".join(printed(found).split())
    assert "less sure than they are right" in text and said in text
    same = ensembles(made(np.repeat(logits[:1], 4, axis=0), name="same")[0])
    assert "less sure" not in printed(same)


def test_keys_read_along_their_rows(made: Make) -> None:
    found = ensembles(made(logits_of(12), lambda at: {"diverged": at == 3})[0])
    accuracy = found.figure("accuracy")
    figure = pictures.members("n", "s", found.inputs, found.accuracies, found.diverged, accuracy, {"a": 0.5, "b": 0.6})
    figure.draw_without_rendering()
    boxes = {
        text.get_text().split(":")[0]: text.get_window_extent()
        for legend in figure.legends
        for text in legend.get_texts()
    }
    left = sorted(boxes, key=lambda name: boxes[name].x0)
    rows = [
        ["12 single members", "1 of them diverged", "their mean"],
        ["10 together", "all 12 together", "a"],
        ["b"],
    ]
    for row in rows:
        top, low = max(boxes[name].y0 for name in row), min(boxes[name].y1 for name in row)
        assert top < low, "on one line"
        assert row == [name for name in left if top < (boxes[name].y0 + boxes[name].y1) / 2 < low]


def test_sets_are_chosen_by_their_labels_or_by_name(made: Make) -> None:
    zoo, _ = made(logits_of(4))
    alone = ensembles(zoo, ood=())
    assert alone.ood == () and list(alone.sizes[0].scores) == ["own/test"]
    assert ensembles(zoo, "own/test", ood=["other/test", "other/test"]).ood == ("other/test",)
    for chosen in ("own/test", None):
        with pytest.raises(ZooError, match="ood: expected other sets than own/test"):
            ensembles(zoo, chosen, ood=["other/test", "own/test"])
    with pytest.raises(ZooError, match="labels of other/test: expected some"):
        ensembles(zoo, "other/test")
    with pytest.raises(UnknownNameError, match="own/test"):
        ensembles(zoo, "own/tset")
    with pytest.raises(UnknownNameError, match="other/test"):
        ensembles(zoo, ood=["others/test"])


def test_what_cannot_be_scored_is_said(made: Make, tmp_path: Path) -> None:
    logits = logits_of(3)
    logits[0, 0] = np.nan
    zoo, _ = made(logits)
    with pytest.raises(ZooError, match="members: expected 2 or more with finite logits on own/test, got 1 of 2"):
        ensembles(zoo.take(slice(2)))
    with pytest.raises(ZooError, match="members: expected 2 or more with finite logits on own/test, got 0 of 0"):
        ensembles(zoo.take(slice(0)))
    with pytest.raises(ZooError, match="references: expected accuracies from 0 to 1"):
        ensembles(zoo, references={"percent": 95.3})
    with ckptzoo.create(tmp_path / "plain", arch=zoo.arch) as writer:
        writer.add({"weight": np.asarray(zoo["weight"])}, [{"id": f"{at}"} for at in range(3)])
    command = (
        rf"Run ckptzoo predict {tmp_path / 'plain'} mnist/test --inputs FILE.npz --module .*, which writes into that"
    )
    with pytest.raises(ZooError, match=command):
        ensembles(ckptzoo.open(tmp_path / "plain"))
    linear = torch.nn.Linear(OWN + OTHER, CLASSES, bias=False)
    predict(tmp_path / "plain", np.eye(OWN + OTHER, dtype=np.float32), set="own/test", module=linear)
    with pytest.raises(ZooError, match=rf"expected a set with labels among them, got own/test. {command}"):
        ensembles(ckptzoo.open(tmp_path / "plain"))
    with ckptzoo.create(tmp_path / "two words", arch=zoo.arch) as writer:
        writer.add({"weight": np.asarray(zoo["weight"])}, [{"id": f"{at}", "dataset": "digits"} for at in range(3)])
    with pytest.raises(ZooError, match=rf"ckptzoo predict '{tmp_path / 'two words'}' digits/test --inputs FILE"):
        ensembles(ckptzoo.open(tmp_path / "two words"))


def test_networks_with_one_output_are_no_classifiers(tmp_path: Path) -> None:
    arch = ckptzoo.Architecture("one", (ckptzoo.Tensor("weight", (1, 3)),))
    with ckptzoo.create(tmp_path / "one", arch=arch) as writer:
        writer.add({"weight": np.ones((2, 1, 3), np.float32)}, [{"id": "a"}, {"id": "b"}])
    linear = torch.nn.Linear(3, 1, bias=False)
    predict(tmp_path / "one", np.eye(3, dtype=np.float32), set="o/test", targets=np.zeros(3, np.int64), module=linear)
    with pytest.raises(ZooError, match="classes of o/test: expected 2 or more, got 1"):
        ensembles(ckptzoo.open(tmp_path / "one"))


def test_progress_ends_at_the_bytes_of_all_logits(made: Make) -> None:
    zoo, _ = made(logits_of(12))
    seen: list[tuple[int, int]] = []
    ensembles(zoo, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (12 * 100 * 4 * 2,) * 2 and [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_json_and_tables_agree(made: Make) -> None:
    zoo, _ = made(logits_of(20), lambda at: {"diverged": at == 3})
    found = ensembles(zoo, references={"elsewhere": 0.9})
    plain = json.loads(canonical(found.to_json()))
    assert [item["size"] for item in plain["sizes"]] == [1, 2, 4, 8, 10, 16, 20]
    assert plain["sizes"][1]["scores"][0]["accuracy"]["mean"] == found.figure("accuracy")[2].mean
    assert plain["references"] == [{"name": "elsewhere", "accuracy": 0.9}]
    text = printed(found, 80)
    one, whole = found.figure("accuracy")[1], found.figure("accuracy")[20]
    for words in (
        "20 members, 1 of them diverged",
        f"{100 * one.mean:.2f} ± {100 * one.sd:.2f}",
        f"{100 * whole.mean:.2f} % together",
        "other/test distinguished from own/test",
        "accuracy 90.00%: elsewhere",
        f"{found.disagreement['other/test']:.2%}",
    ):
        assert words in text, text
    assert "…" not in text


@pytest.mark.exhaustive
@pytest.mark.slow
def test_equal_results_give_equal_bytes(made: Make, tmp_path: Path) -> None:
    zoo, _ = made(logits_of(40), lambda at: {"diverged": at % 7 == 1})
    one, two = ensembles(zoo).plot(tmp_path / "one"), ensembles(zoo).plot(tmp_path / "two")
    assert [path.name for path in one] == ["ensembles.png", "members.png", "detection.png", "ensembles.json"]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


@pytest.mark.exhaustive
@pytest.mark.parametrize("members", [2, 3])
def test_few_members_and_odd_names_can_be_drawn(made: Make, tmp_path: Path, members: int) -> None:
    zoo, _ = made(logits_of(members), lambda at: {"diverged": at % 7 == 1})
    found = ensembles(zoo, references={"$x^2_": 0.5, "b" * 80: 1.0, "c": 0.0, "d": 0.1})
    assert len(found.plot(tmp_path / "drawn")) == 4
    alone = ensembles(zoo, ood=()).plot(tmp_path / "alone")
    assert [path.name for path in alone] == ["ensembles.png", "members.png", "ensembles.json"]


def test_the_histogram_holds_every_member_and_the_curve_every_size(made: Make) -> None:
    found = ensembles(made(logits_of(40), lambda at: {"diverged": at % 7 == 1})[0])
    accuracy = found.figure("accuracy")
    figure = pictures.members("n", "s", found.inputs, found.accuracies, found.diverged, accuracy, {})
    bars = figure.axes[0].containers
    assert [sum(bar.get_height() for bar in held) for held in bars] == [34, 6]  # type: ignore[attr-defined]
    panel = pictures.curves("n", "s", {name: found.figure(name) for name in SCORES}, {}).axes[0].lines[0]
    np.testing.assert_array_equal(panel.get_xdata(), [1, 2, 4, 8, 10, 16, 32, 40])
    np.testing.assert_allclose(panel.get_ydata(), [100 * spread.mean for spread in accuracy.values()])


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_command_is_the_study(made: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ckptzoo.cli.app import run

    zoo, _ = made(logits_of(9))
    words = ["study", "ensembles", str(zoo.path), "--reference", "a=b=0.95", "--seed", "4", "--ood", "other/test"]
    assert run([*words, "--json", "-o", str(tmp_path / "drawn")]) == 0
    said = json.loads(capsys.readouterr().out)
    files = [str(tmp_path / "drawn" / name) for name in ("ensembles.png", "members.png", "detection.png")]
    assert said.pop("files") == [*files, str(tmp_path / "drawn" / "ensembles.json")]
    assert said == json.loads(json.dumps(ensembles(zoo, seed=4, references={"a=b": 0.95}).to_json()))
    assert run(["study", "ensembles", str(zoo.path), "--reference", "0.95x"]) != 0
    assert "expected NAME=ACCURACY" in capsys.readouterr().err
