"""predict, and every other command on a zoo that has predictions."""

import gzip
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive.predictions import digest_of_inputs
from ckptzoo.hub.contributions.inputs import inputs_of
from tests.support.derived_zoos import ARCH, TABLE, weights_of

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (2, 12, 28, 28), dtype=np.uint8)
LABELS = RNG.integers(0, 10, 12)
EXTRA, OTHER = {"mean": 0.3, "std": 0.5}, {"mean": 0.0, "std": 1.0}


def idx(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """A test set as MNIST and Fashion-MNIST have it."""
    folder.mkdir(parents=True)
    for name, array in (("images-idx3", images), ("labels-idx1", labels.astype(np.uint8))):
        head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        (folder / f"t10k-{name}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))


def scaled(extra: dict[str, float]) -> np.ndarray:
    """The images of the first set as networks take them."""
    return ((PIXELS[0][:, None] / 255 - extra["mean"]) / extra["std"]).astype(np.float32)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    idx(tmp_path / "data" / "mnist", PIXELS[0], LABELS)
    idx(tmp_path / "data" / "fashion-mnist", PIXELS[1], LABELS)
    np.savez(tmp_path / "data" / "colours_test.npz", images=np.zeros((2, 4, 4, 3), np.uint8), labels=LABELS[:2])
    monkeypatch.setenv("CKPTZOO_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def zoo_of(path: Path, *extras: object, dataset: str | None = "ylecun/mnist") -> Path:
    """Two parts of three OptuNets each, whose rows say how they were evaluated."""
    writer = ckptzoo.create(path, arch=ARCH, symmetry=TABLE, card=ckptzoo.Card("nets", "Nets."))
    for part in range(2):
        rows = [
            {
                "id": f"net-{part}{at}",
                "unit": f"u{part}",
                "dataset": dataset,
                "extra": json.dumps(extras[at % len(extras)] if extras else EXTRA),
            }
            for at in range(3)
        ]
        writer.add(weights_of(3, part), rows)
        writer.commit()
    return path


def test_sets_are_stored_and_a_second_call_adds_nothing(cli: Any, data: Path, tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo")
    ended = cli("predict", path, "mnist/test", "fashion-mnist/test", "mnist/test")
    assert (ended.code, ended.err) == (0, "")
    assert "mnist/test: 6 checkpoints evaluated on 12 examples, 10 outputs each, 0 were there already." in ended.out
    assert ended.out.count("fashion-mnist/test:") == 1 and ended.out.count("took") == 2
    zoo = ckptzoo.open(path)
    assert zoo.predicted == ("fashion-mnist/test", "mnist/test")
    own, other = (zoo.predictions(name) for name in ("mnist/test", "fashion-mnist/test"))
    assert own.targets is not None and own.targets.tolist() == LABELS.tolist() and other.targets is None
    module = zoo.checkpoint("net-11").model()
    import torch

    for held, images in ((own, PIXELS[0]), (other, PIXELS[1])):
        seen = ((images[:, None] / 255 - 0.3) / 0.5).astype(np.float32)
        with torch.no_grad():
            np.testing.assert_allclose(held.logits[4], module(torch.from_numpy(seen)).numpy(), rtol=2e-3, atol=1e-3)
    again = cli("predict", path, "mnist/test", "--json").json
    assert again["sets"][0]["checkpoints"] == 0 and again["sets"][0]["already"] == 6
    assert cli("verify", path).code == 0


def test_a_few_examples_from_a_folder(cli: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CKPTZOO_DATA")
    path = zoo_of(tmp_path / "zoo")
    (found,) = cli("predict", path, "mnist/test-5", "--data", data, "--json").json["sets"]
    assert (found["examples"], found["classes"], len(found["parts"])) == (5, 10, 2)
    held = ckptzoo.open(path).predictions("mnist/test-5")
    assert held.logits.shape == (6, 5, 10) and held.targets is not None and held.targets.tolist() == LABELS[:5].tolist()
    refused = cli("predict", path, "mnist/test-1000", "--data", data)
    assert refused.code == 2 and "examples, got 1,000. Ask for fewer." in refused.line


@pytest.mark.parametrize(
    ("name", "extras", "dataset", "said"),
    [
        (
            "mnist",
            (),
            "mnist",
            "expected a data set and /test or /train, as mnist/test or mnist/train-100, got 'mnist'",
        ),
        ("mnist/other", (), "mnist", "got 'mnist/other'"),
        ("Mnist/test", (), "mnist", "got 'Mnist/test'"),
        ("svhn/test", (), "mnist", "expected its files on this machine, got none in"),
        ("minst/test", (), "mnist", "ckptzoo knows digits, mnist, fashion-mnist"),
        (
            "mnist/other-5",
            (),
            "mnist",
            "expected a data set and /test or /train, as mnist/test or mnist/train-100, got",
        ),
        ("colours/test", (), "mnist", "shape of the inputs"),
        ("mnist/test", ({"mean": [0.1, 0.2, 0.3], "std": 1},), "mnist", "images of 3 channels, as the networks take"),
        ("mnist/test", ({},), "mnist", "scaling of the pixels: expected one in the rows, got no row that says it"),
        ("mnist/test", (EXTRA, OTHER, {}), "mnist", "got 2 kinds, and 2 rows that say nothing, such as 'net-02'"),
        (
            "mnist/test",
            (EXTRA, {**OTHER, "dataset": "svhn"}),
            "mnist",
            "data set: expected one for all rows, got mnist",
        ),
        ("mnist/test", (), None, "got no row that says it"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    cli: Any, data: Path, tmp_path: Path, name: str, extras: tuple[object, ...], dataset: str | None, said: str
) -> None:
    path = zoo_of(tmp_path / "zoo", *extras, dataset=dataset)
    ended = cli("predict", path, name)
    assert ended.code == 2 and said in ended.line and not (path / "derived").exists()


def test_rows_that_say_nothing_follow_those_that_do(data: Path, tmp_path: Path) -> None:
    seen = inputs_of(ckptzoo.open(zoo_of(tmp_path / "zoo", EXTRA, {})), "mnist/test-4")
    assert seen.inputs.shape == (4, 1, 28, 28) and seen.inputs.dtype == np.float32 and seen.targets is not None
    assert np.array_equal(seen.inputs, scaled(EXTRA)[:4]) and seen.others == ()


def test_each_row_sees_pixels_scaled_as_it_says(cli: Any, data: Path, tmp_path: Path) -> None:
    """A part that was contributed with another scaling is shown the same images in its own."""
    import torch

    path = zoo_of(tmp_path / "zoo")
    assert cli("predict", path, "mnist/test").code == 0
    with ckptzoo.append(path) as writer:
        extras = [{"evaluation": {"dataset": "mnist", **OTHER}}, EXTRA, {"evaluation": {"dataset": "mnist", **OTHER}}]
        rows = [{"id": f"ada/{at}", "unit": f"ada{at}", "extra": json.dumps(extra)} for at, extra in enumerate(extras)]
        writer.add(weights_of(3, 7), [{**row, "dataset": "mnist", "contributor": "ada"} for row in rows])
    (found,) = cli("predict", path, "mnist/test", "--json").json["sets"]
    assert (found["checkpoints"], found["already"]) == (3, 6)
    zoo = ckptzoo.open(path)
    held = zoo.predictions("mnist/test")
    for row, extra in enumerate([EXTRA] * 6 + [OTHER, EXTRA, OTHER]):
        with torch.no_grad():
            expected = zoo.checkpoint(zoo.ids[row]).model()(torch.from_numpy(scaled(extra))).numpy()
        np.testing.assert_allclose(held.logits[row], expected, rtol=2e-3, atol=1e-3)
    facts = [part.facts.get("others") for part in zoo.contents.derived("predictions-mnist--test").parts]
    assert facts == [None, None, {digest_of_inputs(scaled(OTHER)): 2}]
    assert cli("verify", path).code == 0


def test_parts_are_chosen_by_what_their_rows_say(cli: Any, data: Path, tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", {})
    with ckptzoo.append(path) as writer:
        row = {"id": "ada/1", "unit": "a", "dataset": "mnist", "contributor": "ada", "extra": json.dumps(OTHER)}
        writer.add(weights_of(1, 7), [row])
        writer.commit()
        writer.add(
            weights_of(1, 8), [{**row, "id": "net-x", "unit": "b", "contributor": "bob", "extra": json.dumps(EXTRA)}]
        )
    refused = cli("predict", path, "mnist/test")
    assert refused.code == 2 and "got 2 kinds, and 6 rows that say nothing, such as 'net-00'. Choose" in refused.line
    (found,) = cli("predict", path, "mnist/test", "--where", "contributor == 'ada'", "--json").json["sets"]
    assert (found["checkpoints"], found["already"]) == (1, 0)
    zoo = ckptzoo.open(path).having("mnist/test")
    assert zoo.ids == ["ada/1"]
    part = cli("predict", path, "mnist/test", "--where", "id in ['net-00', 'ada/1']")
    assert part.code == 2 and "Choose" in part.line


NETWORK = """
import ckptzoo
def made():
    return ckptzoo.archs.get("optunet")()
"""


@pytest.mark.exhaustive
def test_a_network_of_ones_own(cli: Any, data: Path, tmp_path: Path) -> None:
    """For zoos whose forward function ckptzoo.archs does not know, derive and predict take --module."""
    known, path = zoo_of(tmp_path / "known"), tmp_path / "zoo"
    arch = replace(ARCH, name="mine", forward="mine")
    with ckptzoo.create(path, arch=arch, symmetry=TABLE) as writer:
        rows = [{"id": f"net-{at}", "dataset": "mnist", "extra": json.dumps(EXTRA)} for at in range(3)]
        writer.add(weights_of(3, 0), rows)
    (tmp_path / "net.py").write_text(NETWORK)
    module = ("--module", f"{tmp_path / 'net.py'}:made")
    refused = cli("predict", path, "mnist/test")
    assert refused.code == 2 and "--module FILE.py:NAME" in refused.line
    assert "--module FILE.py:NAME" in cli("derive", path, "--certify", "all").line
    assert cli("predict", path, "mnist/test", *module).code == 0
    derived = cli("derive", path, "--certify", "all", *module, "--json").json
    assert [item["checkpoints"] for item in derived["certified"]] == [3]
    assert cli("predict", known, "mnist/test").code == 0
    same = (ckptzoo.open(zoo).predictions("mnist/test").logits[:3] for zoo in (path, known))
    np.testing.assert_allclose(*same, rtol=2e-3, atol=1e-3)


@pytest.mark.exhaustive
def test_every_command_takes_a_zoo_with_predictions(cli: Any, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = zoo_of(tmp_path / "zoo")
    assert cli("predict", path, "mnist/test").code == 0
    assert cli("derive", path, "--certify", "none").code == 0
    info = cli("info", path, "--json").json
    assert [item["name"] for item in info["variants"]] == ["raw", "canonical"]
    assert [item["set"] for item in info["predictions"]] == ["mnist/test"]
    assert cli("card", path).code == 0 and "canonical" in (path / "README.md").read_text()
    assert "| `mnist/test` |" in (path / "README.md").read_text()
    assert cli("card", path, "--check").code == 0
    assert cli("dedupe", path).code == 0
    assert cli("export", path, "net-00", "-o", tmp_path / "net.safetensors").code == 0
    assert cli("show", path, "-o", tmp_path / "pictures").code == 0
    assert cli("mmd", path, path, "-o", tmp_path / "mmd").code == 0
    assert cli("retract", path, "net-01", "--reason", "a test").code == 0
    assert cli("compact", path).code == 0
    assert cli("verify", path).code == 0
    with pytest.warns(UserWarning, match="retracted"):
        zoo = ckptzoo.open(path)
    assert zoo.predictions("mnist/test").ids == ["net-00", "net-02", "net-10", "net-11", "net-12"]
    (listed,) = (path / "snapshots").iterdir()
    assert listed.is_file() and zoo.contents.snapshot is not None
    assert cli("pull", path, "-o", tmp_path / "whole").code == 0
    with pytest.warns(UserWarning, match="retracted"):
        assert ckptzoo.open(tmp_path / "whole").predicted == ("mnist/test",)
    assert cli("pull", path, "-o", tmp_path / "part", "--variant", "canonical").code == 0
    assert ckptzoo.open(tmp_path / "part").predicted == ()
    for folder in ("whole", "part"):
        assert cli("verify", tmp_path / folder).code == 0
