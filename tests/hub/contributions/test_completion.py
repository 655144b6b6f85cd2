"""What a merge leaves to do: figures, variants and predictions of the new checkpoints."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive, predict
from ckptzoo.errors import HubError
from ckptzoo.hub.contributions.finish import finish
from ckptzoo.hub.contributions.review import Review
from ckptzoo.hub.push import push
from ckptzoo.image_sets.evaluation import EVALUATION_KEY
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import assert_generated_page, downloaded, weights_of
from tests.support.pages import Browser
from tests.support.tampering import Tamper

SCALING = {"dataset": "mnist", "mean": 0.0, "std": 1.0}


@pytest.fixture
def tamper(server: Hosted, make_zoo: Callable[..., Path], tmp_path: Path) -> Tamper:
    """A zoo that has two variants, one of them computed when read, and a set of predictions."""
    made = Tamper(server, make_zoo("zoo"), tmp_path)
    derive(made.zoo)
    derive(made.zoo, gauge="first-weight", store="element", certify="none")
    return made


def predicted(tamper: Tamper) -> None:
    """Add the predictions on the test set, scaled as by a row."""
    with np.load(tamper.data / "mnist_test.npz") as held:
        inputs = (held["images"][:, None] / 255.0).astype(np.float32)
        predict(tamper.zoo, inputs, set="mnist/test", targets=held["labels"])


def published(tamper: Tamper) -> None:
    push(tamper.zoo, ZOO, endpoint=tamper.server.url, token=tamper.server.tokens["write"])


def proposed(tamper: Tamper, seed: int = 50, number: int = 3) -> int:
    """A pull request of one checkpoint whose row has no accuracy, but says how its pixels are scaled."""
    weights = weights_of(1, seed)
    from ckptzoo.hub.contributions.duplicates import units

    (unit,) = units(weights)
    row = {"id": f"stranger/net{seed}", "unit": unit, "license": "mit", "dataset": "mnist"}
    extra = f'{{"{EVALUATION_KEY}":{{"dataset":"mnist","mean":[0.0],"std":[1.0]}}}}'
    return tamper.propose(
        tamper.written(weights, [{**row, "extra": extra, "contributor": "Ada Stranger"}], number=number)
    )


@pytest.mark.exhaustive
def test_figures_that_were_measured_are_kept_with_who_measured_them(tamper: Tamper, tmp_path: Path) -> None:
    published(tamper)
    found = tamper.review(proposed(tamper))
    assert found.merged is not None and found.notes == ()
    zoo = ckptzoo.open(ZOO, endpoint=tamper.server.url)
    row = zoo.metadata.to_pylist()[-1]
    assert row["id"] == "stranger/net50" and row["test_accuracy"] == found.entries[0].measured
    (measured,) = zoo.measured.to_pylist()
    assert measured["by"] == "lab" and measured["test_accuracy"] == row["test_accuracy"] and row["test_nll"] > 0
    assert len(zoo.having("canonical")) == 5  # nothing was derived
    down = downloaded(tamper.server, tmp_path)
    assert_generated_page(down)
    assert ckptzoo.verify(down) == []


@pytest.mark.exhaustive
def test_the_last_of_several_figures_counts(tamper: Tamper) -> None:
    """Also where the zoo has later figures already, in parts of the same numbers."""
    published(tamper)
    assert tamper.review(proposed(tamper)).merged is not None
    assert tamper.review(proposed(tamper, 51, 4)).merged is not None
    zoo = ckptzoo.open(ZOO, endpoint=tamper.server.url)
    assert [part.name[:6] for part in zoo.contents.measured.parts] == ["000001", "000002"]
    assert zoo.metadata["test_accuracy"].null_count == 0 and len(zoo.measured) == 2


def test_a_zoo_is_whole_after_a_merge(tamper: Tamper, tmp_path: Path) -> None:
    predicted(tamper)
    published(tamper)
    stages: list[str] = []
    found = tamper.review(proposed(tamper), derive=True, progress=lambda stage, done, total: stages.append(stage))
    assert found.merged is not None and found.notes == ()
    assert {"deriving canonical", "deriving first-weight", "predicting mnist/test", "uploading"} <= set(stages)
    down = downloaded(tamper.server, tmp_path)
    assert ckptzoo.verify(down) == []
    zoo = ckptzoo.open(down)
    assert len(zoo) == 6 and zoo.variants == ("raw", "canonical", "first-weight")
    for gauge in zoo.gauges:
        assert len(zoo.having(gauge)) == 6
        assert sorted(part.name[:6] for part in zoo.contents.derived(gauge).parts) == ["000001", "000002", "000003"]
    folder = tmp_path / "again"
    ckptzoo.pull(ZOO, folder, endpoint=tamper.server.url)
    (folder / "derived" / "canonical").rename(tmp_path / "was")
    derive(folder)
    assert np.array_equal(ckptzoo.open(folder)["conv1.weight", "canonical"][:], zoo["conv1.weight", "canonical"][:])
    outputs = zoo.predictions("mnist/test")
    assert len(outputs) == 6 and outputs.targets is not None
    correct = outputs.logits[:][-1].argmax(-1) == outputs.targets
    assert correct.mean() == found.entries[0].measured
    assert zoo.variant_metadata("canonical")["certified"].to_pylist() == ["float64"] * 6


@pytest.mark.exhaustive
def test_what_cannot_be_derived_is_said(tamper: Tamper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predicted(tamper)
    published(tamper)
    (tamper.data / "mnist_test.npz").rename(tmp_path / "away.npz")
    monkeypatch.delenv("CKPTZOO_DATA", raising=False)
    found = tamper.review(proposed(tamper), derive=True)
    assert found.merged is not None
    (note,) = found.notes
    assert note.startswith("merged, but mnist/test was not made for the new checkpoints: ") and "--data" in note
    assert note.endswith(
        f"later with ckptzoo pull {ZOO} -o FOLDER, ckptzoo predict FOLDER mnist/test and ckptzoo push FOLDER {ZOO}."
    )
    zoo = ckptzoo.open(ZOO, endpoint=tamper.server.url)
    assert len(zoo.having("canonical")) == 6 and len(zoo.having("mnist/test")) == 5


def merged_on_the_page(tamper: Tamper, number: int) -> None:
    """Checks are posted, and somebody presses the button."""
    assert tamper.review(number, merge=False, post=True).passed
    browser = Browser(tamper.server)
    browser.sign_in("write")
    text = browser.get(f"/datasets/{ZOO}/discussions/{number}").text
    fields = dict(re.findall(r'name="(head|target)" value="([0-9a-f]{40})"', text))
    page = browser.post(f"/datasets/{ZOO}/discussions/{number}/merge", **fields)
    assert page.status == 303, page.text


def finished(tamper: Tamper, number: int) -> Review:
    return finish(ZOO, number, data=tamper.data, endpoint=tamper.server.url, token=tamper.server.tokens["write"])


@pytest.mark.exhaustive
def test_finish_does_all_but_the_merge(tamper: Tamper, tmp_path: Path) -> None:
    """The files are those of ``review --merge --derive``, but for when and by which name they were made."""
    predicted(tamper)
    published(tamper)
    number = proposed(tamper)
    with pytest.raises(HubError, match="expected one that is merged, got open"):
        finished(tamper, number)
    merged_on_the_page(tamper, number)
    zoo = ckptzoo.open(ZOO, endpoint=tamper.server.url)
    assert len(zoo) == 6 and len(zoo.having("canonical")) == 5
    found = finished(tamper, number)
    assert found.passed and found.notes == () and found.merged is not None
    down = downloaded(tamper.server, tmp_path)
    assert ckptzoo.verify(down) == []
    assert_generated_page(down)
    zoo = ckptzoo.open(down)
    assert all(len(zoo.having(name)) == 6 for name in ("canonical", "first-weight", "mnist/test"))
    assert zoo.metadata["test_accuracy"].null_count == 0 and len(zoo.measured) == 1
    # the same again, and the page says nothing more
    before = tamper.server.api().list_repo_commits(ZOO, repo_type="dataset")
    assert finished(tamper, number).notes == ()
    after = tamper.server.api().list_repo_commits(ZOO, repo_type="dataset")
    assert [item.commit_id for item in after] == [item.commit_id for item in before]
    browser = Browser(tamper.server)
    browser.sign_in("write")
    assert "--finish" not in browser.get(f"/datasets/{ZOO}").text


@pytest.mark.exhaustive
def test_finish_after_one_that_derived_nothing(tamper: Tamper) -> None:
    published(tamper)
    number = proposed(tamper)
    assert tamper.review(number).merged is not None
    assert finished(tamper, number).notes == ()
    zoo = ckptzoo.open(ZOO, endpoint=tamper.server.url)
    assert len(zoo.having("canonical", "first-weight")) == 6 and len(zoo.measured) == 1


def test_what_cannot_be_finished(tamper: Tamper, tmp_path: Path) -> None:
    published(tamper)
    number = proposed(tamper)
    merged_on_the_page(tamper, number)
    api = tamper.server.api()
    (name,) = {path.rpartition("/")[0] for path in api.list_repo_files(ZOO, repo_type="dataset") if "000003" in path}
    api.delete_folder(name, ZOO, repo_type="dataset")
    with pytest.raises(HubError, match="expected parts that the zoo has, got parts/000003"):
        finished(tamper, number)
    discussion = api.create_discussion(ZOO, title="Only words", repo_type="dataset")
    with pytest.raises(HubError, match="a discussion without changes"):
        finished(tamper, discussion.num)
