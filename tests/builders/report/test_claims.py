"""Claims of papers beside figures: verdicts are computed, and every published figure has its table and cell."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.report import claims
from builders.report.claims import DIFFERS, IN_PART, LEAST_PERFORMANCE, OPEN, RELATIVE, REPRODUCED
from builders.report.parts import PARTS
from ckptzoo.measure.barriers import barriers
from ckptzoo.studies.barriers import BarrierStudy, Lines, ZooBarriers
from ckptzoo.studies.mass import Masses
from ckptzoo.studies.posteriors import MethodResult, Posteriors
from ckptzoo.studies.published import PublishedFigure, posterior_figures
from ckptzoo.studies.shared.result import Spread
from tests.support.effort import examples

FIGURES = st.floats(-200, 200, allow_nan=False)


def measured(*values: float) -> Spread:
    spread = Spread.of(values)
    assert spread is not None
    return spread


def entry(method: str, modes: str, values: dict[str, float], published: dict[str, PublishedFigure] | None = None):
    figures = {name: measured(value) for name, value in values.items()}
    return MethodResult(method, method, modes, 1, 10, figures, {}, {}, published or {})


def posterior_result(*entries: MethodResult, architecture: str = "optunet") -> Posteriors:
    return Posteriors("t", "s", 9, 0, 0, "mnist/test", (), entries, architecture, "optunet", {}, 0)


@settings(max_examples=examples(200), deadline=None)
@given(st.floats(0, 200), FIGURES, st.lists(FIGURES, max_size=3))
def test_agreement_is_lost_once_and_for_good_with_the_distance(
    published: float, value: float, more: list[float]
) -> None:
    item = PublishedFigure(published, published)

    def agrees(*values: float) -> bool | None:
        made = entry("swag", "one", {}, {"acc": item})
        return claims.agrees(replace(made, figures={"acc": measured(*values)}), "acc")

    assert agrees(published) is True
    nearer = published + (value - published) / 2
    assert agrees(nearer) or not agrees(value)
    assert agrees(value) is (abs(value - published) <= max(LEAST_PERFORMANCE, RELATIVE * published) + 1e-9)
    if more and abs(np.mean([value, *more]) - published) <= 2 * np.std([value, *more], ddof=1):
        assert agrees(value, *more)


def test_what_is_not_known_is_not_compared() -> None:
    doubtful = {"aupr": PublishedFigure(96.4, None, "cannot be")}
    assert claims.agrees(entry("dropout", "one", {"aupr": 96.4}, doubtful), "aupr") is None
    assert claims.agrees(entry("dropout", "one", {"nll": 30.0}, doubtful), "nll") is None
    assert claims.agrees(entry("dropout", "one", {}, doubtful), "aupr") is None


@pytest.mark.parametrize("dataset", ["mnist optunet", "cifar100 resnet18-100", "tinyimagenet resnet18-200"])
def test_every_published_figure_stands_in_the_row_of_its_table(dataset: str) -> None:
    name, architecture = dataset.split()
    published = posterior_figures(name, architecture)
    rows = {claim.where: claim.says for claim in claims.table_claims(name, architecture, "X")}
    assert len(rows) == 2 * len(published)
    said = [cell for text in rows.values() for cell in text.split(", ")]
    assert len(said) == sum(len(figures) for figures in published.values())
    row = rows["Table 1, X, several modes, DE"].split(", ")
    acc = published["ensemble", "multi"]["acc"].printed
    assert f"Acc {acc:g}" in row
    assert all(claim.judge is not None for claim in claims.table_claims(name, architecture, "X"))


def test_a_row_follows_its_draws() -> None:
    published = posterior_figures("mnist", "optunet")["swag", "one"]
    claim = next(
        item for item in claims.table_claims("mnist", "optunet", "X") if item.where == "Table 1, X, one mode, SWAG"
    )
    assert claim.judge is not None
    right = {name: item.read_as for name, item in published.items() if item.read_as is not None}
    for values, verdict in (
        (right, REPRODUCED),
        ({name: value + 50 for name, value in right.items()}, DIFFERS),
        ({**right, "acc": 20.0}, IN_PART),
    ):
        ours, found = claim.judge(posterior_result(entry("swag", "one", values, published)))
        assert found == verdict
        assert f"Acc {values['acc']:.1f}" in ours
    assert claim.judge(posterior_result(entry("laplace", "one", right, published)))[1] == OPEN
    other = {"aupr", "fpr95", "oodmi"}
    on_mine = entry("swag", "one", right, {name: item for name, item in published.items() if name not in other})
    ours, found = claim.judge(posterior_result(on_mine))
    assert found == REPRODUCED and ours.endswith("; AUPR, FPR95, OODMI of another set are not compared")
    assert not re.search(r"AUPR \d|FPR95 \d|OODMI \d", ours)
    narrow = posterior_result(entry("swag", "one", right, published), architecture="resnet18-8-100")
    assert claim.judge(narrow)[0].startswith("of resnet18-8-100: ")


def test_words_about_methods_are_counted() -> None:
    one = {"acc": 80.0, "nll": 60.0, "mmd_median": 50.0, "ns_median": 50.0, "ece": 2.0, "idmi": 1.0}
    several = {"acc": 90.0, "nll": 30.0, "mmd_median": 5.0, "ns_median": 5.0, "ece": 20.0, "idmi": 9.0}
    near, some = {"mmd_median": 1.0, "ns_median": 1.0}, {"acc": PublishedFigure(1, 1)}
    result = posterior_result(
        entry("swag", "one", one, some),
        entry("laplace", "one", {**one, "acc": 70.0, **near}, some),
        entry("csghmc", "one", {**one, **dict.fromkeys(near, 0.0)}),
        entry("swag", "multi", several, some),
        entry("laplace", "multi", {**several, "nll": 70.0}, some),
    )
    assert claims.several_modes_are_better(result) == (
        "in 4 of 6 comparisons of a method with itself, in MMD, accuracy and NLL",
        IN_PART,
    )
    assert claims.one_mode_is_better_calibrated(result)[1] == REPRODUCED
    assert claims.several_modes_are_more_diverse(result)[1] == REPRODUCED
    # csghmc is nearest of all, but the paper has no such method
    assert claims.laplace_is_nearest(result)[1] == IN_PART
    assert claims.laplace_predicts_worse_than_swag(result)[0].startswith("SWAG is better in 2 of 4")
    nothing = posterior_result()
    judges = [claim.judge for part in PARTS for claim in part.claims if claim.where in ("Section 4.3", "Appendix B.4")]
    assert len(judges) == 5
    assert {judge(nothing)[1] for judge in judges if judge is not None} == {OPEN}


def test_masses_of_the_papers_networks_and_of_others() -> None:
    rng = np.random.default_rng(0)
    after = rng.uniform(110, 160, 200)
    excess = np.clip(rng.normal(0.3, 0.03, 200), 0, 0.6)
    excess[0] = 0.6
    gap, degenerate = np.zeros(200), np.zeros(200, np.int64)
    result = Masses("z", "optunet", "optunet", "pinned", 200, 0, after * (1 + excess), after, gap, "a", degenerate, ())
    assert claims.mass_range(result)[1] == claims.mass_excess(result)[1] == REPRODUCED
    assert claims.mass_elements(result)[1] == OPEN
    heavy = replace(result, before=5 * result.before)
    assert claims.mass_range(heavy)[1] == claims.mass_excess(heavy)[1] == DIFFERS
    few = replace(result, before=result.before[:3], after=after[:3], members=3)
    assert claims.mass_excess(few)[1] == OPEN


def zoo_barriers(name: str, kind: str, width: int, raw: float, aligned: float) -> ZooBarriers:
    points = np.linspace(0, 1, 3)

    def lines(height: float) -> Lines:
        losses = np.array([[1.0, 1.0 + height, 1.0]])
        assert np.isclose(barriers(losses, points).height, max(height, 0)).all()
        return Lines(points, losses, np.ones((1, 3)), np.ones(1))

    ways = {"as trained": lines(raw), "aligned": lines(aligned)}
    return ZooBarriers(name, kind, width, "mnist/test", 10, 2, 2, (("a", "b"),), ways, {})


def test_barriers_of_widths_and_temperatures() -> None:
    kinds = ("Gaussians (bnn), temperature 1", "Gaussians (bnn), temperature 0.01")
    low = [zoo_barriers(f"z{kind}{width}", kind, width, 1 / width, 0.1 / width) for kind in kinds for width in (16, 64)]
    result = BarrierStudy(tuple(low), 4, 0)
    assert claims.zero_after_alignment(result)[1] == REPRODUCED
    assert claims.wider_is_lower(result)[1] == REPRODUCED
    assert claims.same_for_all("temperature")(result)[1] == REPRODUCED
    # what does not vary is not judged
    assert claims.same_for_all("prior")(result)[1] == OPEN
    rising = BarrierStudy((*low[:2], zoo_barriers("w", kinds[0], 256, 1.0, 0.5)), 4, 0)
    assert claims.wider_is_lower(rising)[1] == IN_PART
    assert claims.zero_after_alignment(rising)[1] == IN_PART
    assert claims.same_for_all("temperature")(rising)[1] == OPEN
    both = (*low, zoo_barriers("p", "Gaussians (bnn), prior 1, temperature 1", 64, 1.0, 0.5))
    grid = [replace(zoo, kind=zoo.kind.replace("(bnn)", "(bnn), prior 0.1")) for zoo in both[:-1]]
    for setting in ("prior", "temperature"):
        assert claims.same_for_all(setting)(BarrierStudy((*grid, both[-1]), 4, 0))[1] == IN_PART
    networks = BarrierStudy((zoo_barriers("mlp", "mnist-mlp", 16, 1.0, 0.5),), 4, 0)
    assert {claims.zero_after_alignment(networks)[1], claims.wider_is_lower(networks)[1]} == {OPEN}
