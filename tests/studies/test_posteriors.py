"""The study of posteriors on planted draws: distances, scores, what is left out, and the published figures beside."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import derive, predict
from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.measure.predictions import accuracy, average_precision, brier, ece, fpr, nll
from ckptzoo.studies import mmd, published
from ckptzoo.studies.ensemble_scores import log_softmax
from ckptzoo.studies.posteriors import PERFORMANCE, REMOVALS, STATISTICS, Posteriors, posteriors
from ckptzoo.studies.shared.draws import draw_groups
from tests.support.printed import printed

ARCH = archs.architecture("mlp-6-3-4")
INPUTS = np.random.default_rng(5).normal(size=(50, 6)).astype(np.float32)
OTHERS = np.random.default_rng(6).normal(size=(30, 6)).astype(np.float32) * 3
TARGETS = np.random.default_rng(7).integers(0, 4, 50)
MEMBERS, STARTS = 60, 3


def weights(count: int, seed: int, around: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """Independent networks, or networks close to one."""
    generator = np.random.default_rng(seed)
    drawn = {item.name: generator.normal(size=(count, *item.shape)).astype(np.float32) for item in ARCH.tensors}
    return drawn if around is None else {name: around[name] + 0.05 * drawn[name] for name in drawn}


def finish(path: Path) -> ckptzoo.Zoo:
    for variant in set(REMOVALS.values()) - {"raw"}:
        derive(path, gauge=variant)
    predict(path, INPUTS, set="own/test", targets=TARGETS)
    predict(path, OTHERS, set="other/test")
    return ckptzoo.open(path)


def write_target(path: Path, outlier: float = 1.0) -> ckptzoo.Zoo:
    members = weights(MEMBERS, 0)
    for tensor in members.values():
        tensor[:STARTS] *= outlier
    with ckptzoo.create(path, arch=ARCH, symmetry=archs.symmetry("mlp-6-3-4")) as writer:
        writer.add(members, [{"id": f"m{row}-9", "member": f"m{row}", "dataset": "planted"} for row in range(MEMBERS)])
    return finish(path)


def write_samples(path: Path) -> ckptzoo.Zoo:
    """``near`` draws around three members, ``far`` is independent networks under the same names."""
    members = weights(MEMBERS, 0)
    with ckptzoo.create(path, arch=ARCH, symmetry=archs.symmetry("mlp-6-3-4")) as writer:
        for mode in range(STARTS):
            for method in ("swag", "sghmc"):
                centre = {name: tensor[mode] for name, tensor in members.items()} if method == "swag" else None
                rows = [
                    {
                        "id": f"{method}-{mode}-{draw}",
                        "method": method,
                        "mode": f"m{mode}",
                        "draw": draw,
                        "recipe_digest": f"sha256:{method}",
                        "diverged": method == "sghmc" and draw == 1,
                    }
                    for draw in range(12 if mode == 0 else 6)
                ]
                writer.add(weights(len(rows), 100 + mode + 10 * (method == "swag"), centre), rows)
    return finish(path)


@pytest.fixture(scope="module")
def zoos(tmp_path_factory: pytest.TempPathFactory) -> tuple[ckptzoo.Zoo, ckptzoo.Zoo]:
    folder = tmp_path_factory.mktemp("posteriors")
    return write_target(folder / "target"), write_samples(folder / "samples")


@pytest.fixture(scope="module")
def found(zoos: tuple[ckptzoo.Zoo, ckptzoo.Zoo]) -> Posteriors:
    return posteriors(*zoos, modes=2, draws=5, ensemble=8, replicates=2)


def test_draws_around_a_member_are_far_and_independent_networks_are_not(found: Posteriors) -> None:
    for family in REMOVALS:
        figure = f"{family}_median"
        near, several = found.entry("swag", "one").figures[figure], found.entry("swag", "multi").figures[figure]
        assert near.mean > several.mean > 10
        assert abs(found.entry("sghmc", "multi").figures[figure].mean) < 8
        assert abs(found.entry("ensemble", "multi").figures[figure].mean) < 8
    assert [(entry.label, entry.modes) for entry in found.entries] == [
        *(("swag", "one"), ("sghmc", "one")),
        *(("swag", "multi"), ("sghmc", "multi"), ("ensemble", "multi")),
    ]


def test_entries_have_the_modes_and_draws_that_were_asked_for(found: Posteriors) -> None:
    one, several = found.entry("swag", "one"), found.entry("swag", "multi")
    assert (one.mode_count, one.draws, one.replicates) == (1, 12, 1)  # one mode alone has twelve draws
    assert (several.mode_count, several.draws, several.replicates) == (2, 10, 1)  # three modes are one pair
    ensemble = found.entry("ensemble", "multi")
    assert (ensemble.draws, ensemble.replicates) == (8, 2)
    assert found.diverged == {"swag": 0, "sghmc": 3}


def test_the_distances_are_those_of_mmd(found: Posteriors, zoos: tuple[ckptzoo.Zoo, ckptzoo.Zoo]) -> None:
    target, samples = zoos
    draws = samples.where("method == 'swag' and mode == 'm0'")
    # what the ensembles left: found by the number of members, and by the same seed
    free = np.arange(STARTS, MEMBERS)
    used = np.random.default_rng(0).permutation(free)[:16]
    rest = target.take(np.setdiff1d(free, used))
    assert found.members == len(rest) == MEMBERS - STARTS - 16 and found.starts == STARTS
    for family, variant in REMOVALS.items():
        compared = mmd(rest, draws, variant)
        for name, value in zip(STATISTICS, (compared.median, compared.mean, compared.most), strict=True):
            assert found.entry("swag", "one").figures[f"{family}_{name}"].mean == pytest.approx(100 * value)
        for layer in compared.layers:
            item = found.entry("swag", "one").layers[family][layer.name]
            figures = item.median, item.spread, item.offset, *item.kernels
            assert figures == pytest.approx((100 * layer.median, layer.spread, layer.offset, *(100 * layer.mmd2)))


@pytest.mark.exhaustive
def test_members_that_modes_were_started_from_do_not_count(
    found: Posteriors, zoos: tuple[ckptzoo.Zoo, ckptzoo.Zoo], tmp_path: Path
) -> None:
    other = posteriors(write_target(tmp_path / "target", 50.0), zoos[1], modes=2, draws=5, ensemble=8, replicates=2)
    assert [entry.figures for entry in other.entries] == [entry.figures for entry in found.entries]


def test_the_scores_are_those_of_mean_probabilities(found: Posteriors, zoos: tuple[ckptzoo.Zoo, ckptzoo.Zoo]) -> None:
    draws = zoos[1].where("method == 'sghmc' and mode == 'm0'")
    own, other = (log_softmax(draws.predictions(name).logits[:]) for name in ("own/test", "other/test"))
    means = {name: np.exp(logs).mean(0) for name, logs in (("own", own), ("other", other))}
    entropies = {name: -(np.exp(logs) * logs).sum(-1).mean(0) for name, logs in (("own", own), ("other", other))}
    information = {name: (-(mean * np.log(mean)).sum(-1) - entropies[name]).mean() for name, mean in means.items()}
    logs, doubt = np.log(means["own"]), {name: -np.log(mean).max(-1) for name, mean in means.items()}
    expected = {
        **{name: score(logs, TARGETS) for name, score in {"acc": accuracy, "nll": nll, "ece": ece}.items()},
        "brier": brier(logs, TARGETS),
        "idmi": information["own"],
        "oodmi": information["other"],
        "aupr": average_precision(doubt["other"], doubt["own"]),
        "fpr95": fpr(doubt["other"], doubt["own"]),
    }
    figures = found.entry("sghmc", "one").figures
    assert set(PERFORMANCE) == set(expected)
    for name, value in expected.items():
        assert figures[name].mean == pytest.approx(100 * float(value), rel=1e-9), name


def test_published_figures_are_read_with_their_doubts() -> None:
    figures = published.posterior_figures("mnist", "optunet")
    assert figures["ensemble", "multi"]["acc"].printed == 95.3
    swag = figures["swag", "one"]
    assert (swag["ece"].read_as, swag["brier"].read_as) == (4.9, 17.7)
    for (method, modes), items in figures.items():
        # a Brier score summed over classes is at least half the share of errors, as read if not as printed
        floor = (100 - items["acc"].printed) / 2
        assert items["brier"].read_as is not None
        assert items["brier"].read_as >= floor, (method, modes)
        assert bool(items["brier"].doubt) == ((method, modes) != ("bnn", "one"))
    assert published.posterior_figures("mnist", "resnet18-10") == {}
    assert len(published.posterior_figures("cifar100", "resnet18-100")) == 10


def test_it_prints_draws_and_writes_tables(
    found: Posteriors, zoos: tuple[ckptzoo.Zoo, ckptzoo.Zoo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckptzoo.studies import posteriors as module

    monkeypatch.setattr(module, "_published_for", lambda zoo, ood: published.posterior_figures("mnist", "optunet"))
    beside = posteriors(*zoos, modes=2, draws=5, ensemble=8, replicates=2)
    text = printed(beside)
    assert "…" not in text  # every cell is whole in a window of usual width
    assert "published" in text and "difference" in text and "17.7*" in text
    assert "ECE and Brier score are exchanged" in text and "3 draws of sghmc" in text
    swag = beside.entry("swag", "one")
    assert swag.difference("brier") == pytest.approx(swag.figures["brier"].mean - 17.7)
    assert found.entry("swag", "one").difference("brier") is None
    paths = beside.plot(tmp_path)
    assert [path.name for path in paths] == ["posteriors.png", "posteriors.json", "posteriors.csv", "posteriors.tex"]
    rows = list(csv.DictReader((tmp_path / "posteriors.csv").read_text().splitlines()))
    (row,) = [r for r in rows if (r["method"], r["modes"], r["figure"]) == ("swag", "one", "brier")]
    assert float(row["difference"]) == pytest.approx(swag.figures["brier"].mean - 17.7, rel=1e-3)
    stored = json.loads((tmp_path / "posteriors.json").read_text())
    assert stored["members"] == found.members and len(stored["entries"]) == 5
    assert r"\bottomrule" in (tmp_path / "posteriors.tex").read_text()


def test_figures_on_another_set_are_compared_on_that_set_alone() -> None:
    whole = published.posterior_figures("mnist", "optunet")
    assert published.comparable_figures("mnist", "optunet", "fashion-mnist/test-2000") == whole
    for ood in (None, "svhn/test", "mine", "fashion-mnist-3x32x32/test", "fashion-mnist-own/test"):
        some = published.comparable_figures("mnist", "optunet", ood)
        assert some.keys() == whole.keys()
        assert all({*some[key]} == {*whole[key]} - {"aupr", "fpr95", "oodmi"} for key in whole)


def test_of_many_layers_some_are_printed(found: Posteriors, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [*found.entries[0].layers["mmd"]]
    whole = printed(found).partition("what removing symmetries does")[2]
    assert all(f" {layer} " in whole for layer in layers) and "not shown" not in whole
    monkeypatch.setattr("ckptzoo.studies.posteriors.MAX_LAYERS", 1)
    some = printed(found).partition("what removing symmetries does")[2]
    assert sum(f" {layer} " in some for layer in layers) == 1 and f"{len(layers) - 1} more layer" in some


def test_figures_of_another_width_say_so(found: Posteriors) -> None:
    assert published.published_architecture("resnet18-8-100") == "resnet18-100"
    assert published.published_architecture("resnet18-100") == "resnet18-100"
    assert published.published_architecture("mlp-8-100") == "mlp-8-100"
    figures = published.posterior_figures("cifar100", "resnet18-100")
    entries = tuple(
        dataclasses.replace(entry, published=figures.get((entry.method, entry.modes), {})) for entry in found.entries
    )
    narrow = dataclasses.replace(
        found, entries=entries, architecture="resnet18-8-100", published_of="resnet18-100", ood=found.ood[:1]
    )
    text = printed(narrow)
    assert "…" not in text
    assert "figures are those of resnet18-100; the target is resnet18-8-100" in text
    assert "  of resnet18-100" in text and "of resnet18-100" in narrow.to_latex()
    assert narrow.to_json()["published_of"] == "resnet18-100"


def test_what_is_missing_is_named_with_the_command_that_makes_it(
    zoos: tuple[ckptzoo.Zoo, ckptzoo.Zoo], tmp_path: Path
) -> None:
    target, _ = zoos

    def refused(match: str, error: type[Exception] = ZooError, **options: Any) -> None:
        with pytest.raises(error, match=match):
            posteriors(*options.pop("zoos", zoos), **{"ensemble": 8, "modes": 2, **options})

    refused("rows that name a method, got none. Make some with python -m builders posterior", zoos=(target, target))
    refused(r"members: expected 200 or more from which no mode was started, got 57", ensemble=100)
    refused("no such|own/test", UnknownNameError, set="else/test")
    bare = tmp_path / "bare"
    with ckptzoo.create(bare, arch=ARCH, symmetry=archs.symmetry("mlp-6-3-4")) as writer:
        rows = [{"id": f"d{draw}", "method": "swag", "mode": "m0", "draw": draw} for draw in range(4)]
        writer.add(weights(4, 3), rows)
    refused("ckptzoo predict .*bare", zoos=(target, ckptzoo.open(bare)))
    predict(bare, INPUTS, set="own/test", targets=TARGETS)
    refused("ckptzoo derive .*bare --gauge unit-norm", zoos=(target, ckptzoo.open(bare)))


@pytest.mark.usefixtures("any_rows")
def test_settings_that_are_no_numbers_tell_nothing_apart(tmp_path: Path) -> None:
    """Rows are written by anybody: figures beyond double precision, thousands of brackets, text that is no JSON."""
    odd = [
        "9" * 401,
        "[" * 3000 + "]" * 3000,
        "[" * 40 + "]" * 40,
        "NaN",
        "1e999",
        "2e400",
        '"\\ud800"',
        "true",
        "{",
        "",
    ]
    with ckptzoo.create(tmp_path / "zoo", arch=ARCH) as writer:
        for at, value in enumerate(["1", "2", *odd]):
            row = {"id": f"{at}", "method": "bnn", "mode": "m0", "draw": 0, "recipe_digest": f"sha256:{at:08d}"}
            writer.add(weights(1, at), [{**row, "extra": f'{{"settings": {{"width": {value}}}}}'}])
    labels = [group.label for group in draw_groups(ckptzoo.open(tmp_path / "zoo"))]
    assert labels[0].startswith("bnn width=1") and labels[1] == "bnn width=2" and len(set(labels)) == len(odd) + 2
    assert [label for label in labels if "width" not in label] == [
        f"bnn {at:08d}" for at in range(2, len(odd) + 2) if odd[at - 2] != "true"
    ]


def test_settings_tell_the_draws_of_one_method_apart(tmp_path: Path) -> None:
    extras = [
        ("a", '{"settings": {"kl_weight": 1e-06, "prior": 0.1}}'),
        ("b", '{"settings": {"kl_weight": 0.001, "prior": 0.1, "x y": 2, "note": "text"}}'),
        ("c", '{"settings": {"kl_weight": 0.001, "prior": 0.1}}'),  # the same settings of another recipe
        ("d", None),
    ]
    with ckptzoo.create(tmp_path / "zoo", arch=ARCH) as writer:
        for digest, extra in extras:
            row = {"id": digest, "method": "bnn", "mode": "m0", "draw": 0, "recipe_digest": f"sha256:{digest * 12}"}
            writer.add(weights(1, 0), [{**row, "extra": extra} if extra else row])
        writer.add(weights(1, 1), [{"id": "e", "method": "swag", "mode": "m0", "draw": 0, "recipe_digest": "sha256:e"}])
    labels = [group.label for group in draw_groups(ckptzoo.open(tmp_path / "zoo"))]
    assert labels == [
        "bnn kl_weight=1e-06",
        "bnn kl_weight=0.001 bbbbbbbb",
        "bnn kl_weight=0.001 cccccccc",
        "bnn",
        "swag",
    ]
