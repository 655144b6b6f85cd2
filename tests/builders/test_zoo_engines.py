"""A zoo's members and draws of a recipe are all made by one engine, because ids do not say by which."""

import json
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

import ckptzoo
from builders import engines, planted, sources, zoo_engines
from builders.build import build
from builders.checkpointing import WORK_FOLDER
from builders.posterior.build import build as build_draws
from builders.recipe import Recipe
from builders.shared import merge, plan, work
from builders.train import open_trainer
from ckptzoo.errors import ZooError
from tests.support.builds import QUIET
from tests.support.effort import examples

TOY = Recipe.load("toy").shortened(1)
FASTEST = engines.fastest(TOY)


def engines_in(zoo: Path) -> list[str | None]:
    return [json.loads(text or "{}").get("engine") for text in ckptzoo.open(zoo).metadata["extra"].to_pylist()]


def rewritten(zoo: Path, to: Path, extra: Any) -> Path:
    """A copy whose rows have another ``extra``, as other programs write them."""
    old = ckptzoo.open(zoo)
    ckptzoo.create(to, arch=old.arch, symmetry=old.symmetry)
    with ckptzoo.append(to) as writer:
        rows = [{**row, "extra": json.dumps(extra)} for row in old.metadata.to_pylist()]
        writer.add({name: old[name][:] for name in old.arch.names}, rows)
    return to


@pytest.mark.parametrize("recipe", [TOY, Recipe.load("digits-optunet")], ids=["toy", "optunet"])
def test_no_two_engines_have_the_same_bits(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """So none counts as another one; one thread, so that the sums are those of every machine."""
    monkeypatch.delenv("CKPTZOO_DATA", raising=False)
    source, found = sources.load(recipe), dict[str, torch.Tensor]()
    for name in engines.usable(recipe):
        with open_trainer(recipe, source, engine=name, threads=1) as trainer:
            state = trainer.start(range(3))
            trainer.advance(state, 12)
            found[name] = torch.cat([tensor.flatten() for tensor in state.weights.values()])
    assert len(found) >= 3
    for first, second in combinations(found, 2):
        assert not torch.equal(found[first], found[second]), (first, second)
        torch.testing.assert_close(found[first], found[second], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* retracted and left out")
def test_more_members_are_trained_by_the_engine_of_the_zoo(tmp_path: Path) -> None:
    """Whatever verbs add them, in any order; another engine is refused with both names, and before any training."""
    draw = random.Random(0)
    for number in range(examples(5, 1)):
        zoo, first = tmp_path / str(number), draw.choice(engines.usable(TOY))
        other = draw.choice([name for name in engines.usable(TOY) if name != first])
        build(TOY, zoo, members=1, engine=first, console=QUIET)
        if draw.random() < 0.5:
            ckptzoo.retract(zoo, ckptzoo.open(zoo).ids, reason="a test")
        for members in range(2, 4):
            for verb in (build, plan):
                options: dict[str, Any] = {"console": QUIET} if verb is build else {}
                with pytest.raises(ZooError, match=rf"expected {first}, which made those of the zoo, got {other}\."):
                    verb(TOY, zoo, members=members, engine=other, **options)
            assert not (zoo / WORK_FOLDER).exists()
            asked = draw.choice((None, first))
            if draw.random() < 0.5:
                build(TOY, zoo, members=members, engine=asked, console=QUIET)
            else:
                plan(TOY, zoo, members=members, engine=asked)
                work(zoo, console=QUIET)
                merge(zoo)
        assert set(engines_in(zoo)) == {first}


def test_an_engine_that_does_not_train_here_is_named(tmp_path: Path) -> None:
    build(TOY, tmp_path / "made", members=1, console=QUIET)
    for engine in ("single-graph", "an engine of later versions"):
        zoo = rewritten(tmp_path / "made", tmp_path / engine, {"engine": engine})
        with pytest.raises(
            ZooError, match=rf"expected {engine}, which made .*, got {FASTEST}, the one that trains here"
        ):
            build(TOY, zoo, members=2, console=QUIET)


@pytest.mark.parametrize("extra", [{}, {"engine": None}, {"engine": 3}, {"engine": ["mlp"]}])
@pytest.mark.sampled(2)
def test_rows_that_name_no_engine_decide_nothing(tmp_path: Path, extra: Any) -> None:
    build(TOY, tmp_path / "made", members=1, engine="general", console=QUIET)
    zoo = rewritten(tmp_path / "made", tmp_path / "zoo", extra)
    build(TOY, zoo, members=2, console=QUIET)
    build(TOY, zoo, members=3, console=QUIET)
    assert engines_in(zoo)[1:] == 2 * [FASTEST]


def test_a_zoo_of_several_engines_grows_by_the_one_of_most(tmp_path: Path) -> None:
    assert zoo_engines.engines_of(['{"engine":"mlp"}', '{"engine":"single"}', None, '{"engine":"single"}', "3"]) == {
        "mlp": 1,
        "single": 2,
    }
    held = {"mlp": 1, "single": 2, "single-graph": 5}
    asked: dict[str, Any] = {"recipe": TOY, "device": "cpu", "location": "zoo", "unfinished": None}
    assert zoo_engines.engine_for(held, asked=None, **asked) == "single"
    assert zoo_engines.engine_for(held, asked="mlp", **asked) == "mlp"
    with pytest.raises(ZooError, match="expected mlp or single or single-graph, which made those of the zoo, got gen"):
        zoo_engines.engine_for(held, asked="general", **asked)


@pytest.mark.exhaustive
def test_a_zoo_that_another_engine_has_grown_meanwhile(tmp_path: Path) -> None:
    """As by a merge of what others trained: neither work nor merge add to it."""
    zoo, other = tmp_path / "zoo", tmp_path / "other"
    plan(TOY, zoo, members=2, engine="mlp", unit_size=1)
    work(zoo, share=(0, 2), console=QUIET)
    build(TOY, other, members=1, first_seed=5, engine="single", console=QUIET)
    found = ckptzoo.open(other)
    with ckptzoo.append(zoo) as writer:
        writer.add({name: found[name][:] for name in found.arch.names}, found.metadata.to_pylist())
    for command in (work, merge):
        with pytest.raises(ZooError, match="expected single, which made those of the zoo, got mlp"):
            command(zoo, TOY)
    assert engines_in(zoo) == ["single"]


def test_planted_members_too(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    planted.build(TOY, zoo, runs=1, transpositions=[0], engine="general", console=QUIET)
    with pytest.raises(ZooError, match="expected general, which made those of the zoo, got mlp"):
        planted.build(TOY, zoo, runs=2, transpositions=[0], engine="mlp", console=QUIET)
    planted.build(TOY, zoo, runs=2, transpositions=[0], console=QUIET)
    assert set(engines_in(zoo)) == {"general"}


def test_draws_are_taken_by_one_engine_around_the_same_members(tmp_path: Path) -> None:
    for engine in ("general", "mlp"):
        build(TOY, tmp_path / engine, members=2, engine=engine, console=QUIET)
    zoo, asked = tmp_path / "zoo", {"modes": 1, "console": QUIET}
    start = tmp_path / "general"
    build_draws("laplace", TOY, zoo, draws=1, start=start, engine="general", **asked)
    with pytest.raises(ZooError, match="expected general, which made those of the zoo, got mlp"):
        build_draws("laplace", TOY, zoo, draws=2, start=start, engine="mlp", **asked)
    with pytest.raises(ZooError, match=r"weights of mode toy-\S+: expected [0-9a-f]{16}, got [0-9a-f]{16} of a member"):
        build_draws("laplace", TOY, zoo, draws=2, start=tmp_path / "mlp", **asked)
    assert build_draws("laplace", TOY, zoo, draws=2, start=start, **asked).draws == 1
    assert set(engines_in(zoo)) == {"general"}
    # an unfinished one, too
    build_draws("laplace", TOY, tmp_path / "shared", draws=1, start=start, share=(0, 1), **asked)
    with pytest.raises(ZooError, match="unfinished build: expected starts"):
        build_draws("laplace", TOY, tmp_path / "shared", draws=1, start=tmp_path / "mlp", **asked)


def test_what_two_engines_made_under_the_same_ids_is_not_brought_together(tmp_path: Path) -> None:
    for engine in ("general", "mlp"):
        build(TOY, tmp_path / "both" / engine, members=2, engine=engine, console=QUIET)
    first, second = (ckptzoo.open(tmp_path / "both" / engine) for engine in ("general", "mlp"))
    assert first.ids == second.ids
    with (
        pytest.raises(ZooError, match=rf"expected new ones, got 2 there already, such as '{first.ids[0]}'"),
        ckptzoo.append(tmp_path / "both" / "general") as writer,
    ):
        writer.add({name: second[name][:] for name in second.arch.names}, second.metadata.to_pylist())
    ckptzoo.write_collection(tmp_path / "both")
    collection = ckptzoo.open_collection(tmp_path / "both")
    assert collection.metadata.num_rows == 4 and [zoo.ids for zoo in collection] == [first.ids, second.ids]
