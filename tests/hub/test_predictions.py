"""Predictions are published and fetched with the zoo that they belong to."""

from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive, predict
from ckptzoo.errors import HubError, UnknownNameError
from ckptzoo.hub.pull import pull
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import ARCH, assert_same_except_generated, downloaded, files_of, grown, pushed, zoo_of

INPUTS = np.random.default_rng(0).standard_normal((9, *(ARCH.input_shape or ()))).astype(np.float32)
TREE = "derived/predictions-mnist--test"


def predicted(path: Path) -> ckptzoo.Zoo:
    predict(path, INPUTS, set="mnist/test", targets=np.arange(9))
    return ckptzoo.open(path)


@pytest.mark.exhaustive
def test_push_and_pull_bring_them(server: Hosted, tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (3, 2))
    predicted(path)
    first = pushed(server, path)
    assert len(first.parts) == 4
    assert_same_except_generated(path, down := downloaded(server, tmp_path))
    assert ckptzoo.verify(down) == []
    pull(ZOO, tmp_path / "got", endpoint=server.url)
    assert_same_except_generated(path, tmp_path / "got")

    grown(path, (4,), start=2)
    near = predicted(path)
    assert [part.rpartition("/")[0] for part in pushed(server, path).parts] == ["parts", TREE]
    pulled = pull(ZOO, tmp_path / "got", endpoint=server.url)
    assert len(pulled.parts) == 2 and pulled.there == 4 and pulled.variants == ("raw",)
    got = ckptzoo.open(tmp_path / "got").predictions("mnist/test")
    np.testing.assert_array_equal(np.asarray(got.logits), np.asarray(near.predictions("mnist/test").logits))
    assert ckptzoo.verify(tmp_path / "got") == []
    assert pushed(server, path).parts == ()


@pytest.mark.exhaustive
def test_a_part_of_a_zoo_leaves_them_behind_and_can_be_predicted_again(server: Hosted, tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (3, 2))
    whole = predicted(path)
    pushed(server, path)
    pull(ZOO, tmp_path / "few", endpoint=server.url, where="test_accuracy > 0.905")
    few = ckptzoo.open(tmp_path / "few")
    assert few.predicted == () and 0 < len(few) < 5
    again = predicted(tmp_path / "few").predictions("mnist/test")
    theirs = whole.take([whole.ids.index(name) for name in again.ids]).predictions("mnist/test")
    np.testing.assert_array_equal(np.asarray(again.logits), np.asarray(theirs.logits))
    assert ckptzoo.verify(tmp_path / "few") == []


def test_a_part_of_a_zoo_keeps_those_that_are_named(server: Hosted, tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (3, 2))
    whole = predicted(path)
    predict(path, -INPUTS, set="other/test", others=[({"m0-0", "m0-2"}, 2 * INPUTS)])
    derive(path, certify="none")
    pushed(server, path)
    asked = {"few": {"where": "test_accuracy > 0.905"}, "layers": {"variants": ["canonical"], "layers": ["conv1"]}}
    asked |= {"mirror": {"variants": ["raw"]}}
    for name, options in asked.items():
        result = pull(ZOO, tmp_path / name, endpoint=server.url, predictions=["mnist/test"], **options)
        assert (result.predicted, result.left_out) == (("mnist/test",), ("other/test",))
        assert ckptzoo.verify(tmp_path / name) == []
        got = ckptzoo.open(tmp_path / name)
        theirs = whole.take([whole.ids.index(id) for id in got.ids]).predictions("mnist/test")
        own = got.predictions("mnist/test")
        np.testing.assert_array_equal(np.asarray(own.logits), np.asarray(theirs.logits))
        np.testing.assert_array_equal(own.targets, np.arange(9))
    with pytest.raises(UnknownNameError, match="all"):
        pull(ZOO, tmp_path / "wrong", endpoint=server.url, predictions=["mnist/train"], where="seed < 1")
    every = pull(ZOO, tmp_path / "every", endpoint=server.url, predictions="all", where="seed < 1")
    assert every.predicted == ("mnist/test", "other/test") and every.left_out == ()
    parts = ckptzoo.open(tmp_path / "every").contents.derived("predictions-other--test").parts
    assert [part.facts.get("others") for part in parts] == [dict.fromkeys(whole_others(path)), None]
    assert ckptzoo.verify(tmp_path / "every") == []
    again = pull(ZOO, tmp_path / "every", endpoint=server.url, predictions="all", where="seed < 1")
    assert again.parts == () and again.there == 8
    everything = pull(ZOO, tmp_path / "whole", endpoint=server.url, predictions="all")
    assert everything.left_out == () and ckptzoo.open(tmp_path / "whole").predicted == ("mnist/test", "other/test")


def whole_others(path: Path) -> dict[str, int]:
    return ckptzoo.open(path).contents.derived("predictions-other--test").parts[0].facts["others"]


@pytest.mark.exhaustive
def test_checkpoints_that_somebody_else_predicted_meanwhile_are_refused(server: Hosted, tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (3,))
    pushed(server, path)
    pull(ZOO, tmp_path / "other", endpoint=server.url)
    predicted(path)
    pushed(server, path)
    predict(tmp_path / "other", INPUTS + 1, set="mnist/test")
    before = files_of(downloaded(server, tmp_path))
    with pytest.raises(HubError, match=r"checkpoints of derived/predictions-mnist--test/.*which it has"):
        pushed(server, tmp_path / "other")
    assert files_of(downloaded(server, tmp_path)) == before


def test_outputs_for_other_inputs_are_not_mixed_with_those_that_are_there(server: Hosted, tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (3,))
    pushed(server, path)
    pull(ZOO, tmp_path / "other", endpoint=server.url)
    predicted(path)
    pushed(server, path)
    grown(tmp_path / "other", (2,), start=1)
    part = sorted((tmp_path / "other" / "parts").iterdir())[0]
    part.rename(tmp_path / "apart")
    predict(tmp_path / "other", INPUTS + 1, set="mnist/test", targets=np.arange(9))
    (tmp_path / "apart").rename(part)
    with pytest.raises(
        HubError, match=r"inputs of derived/predictions-mnist--test/.*expected sha256:.*same ckptzoo and"
    ):
        pushed(server, tmp_path / "other")
