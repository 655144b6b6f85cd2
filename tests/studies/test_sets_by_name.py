"""Labels of a set of inputs that is known by its name: where its classes are the networks', and only there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs, derive
from ckptzoo.cli.app import run
from ckptzoo.derive.predictions import Predicted
from ckptzoo.errors import ZooError
from ckptzoo.hub.contributions.inputs import inputs_of, labelled_of
from ckptzoo.image_sets.lookup import have_same_classes
from ckptzoo.studies.ensembles import ensembles
from ckptzoo.studies.shared.selection import default_sets, labels_of
from tests.support.derived_zoos import weights_of
from tests.support.effort import examples

pytest.importorskip("torch")
pytest.importorskip("sklearn")
ARCH = archs.architecture("mlp-784-3-10")
SETS = ("digits/test-40", "digits/train-30", "mnist/test", "mnist/test-25", "fashion-mnist/test", "letters/test")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng, folder = np.random.default_rng(7), tmp_path / "data"
    folder.mkdir()
    for name in ("mnist", "fashion-mnist", "letters"):
        images = rng.integers(0, 256, (50, 28, 28), dtype=np.uint8)
        np.savez(folder / f"{name}_test.npz", images=images, labels=rng.integers(0, 10, 50))
    monkeypatch.setenv("CKPTZOO_DATA", str(folder))
    return folder


def zoo_of(path: Path, dataset: str, scalings: list[tuple[float, float]]) -> Path:
    rows = [
        {"id": f"m{at}", "dataset": dataset, "extra": {"mean": mean, "std": std}}
        for at, (mean, std) in enumerate(scalings)
    ]
    with ckptzoo.create(path, arch=ARCH) as writer:
        writer.add(weights_of(len(rows), 1, arch=ARCH), rows)
    return path


def stored(path: Path, name: str, *, labels: bool) -> Predicted:
    """As ``ckptzoo predict`` stores them, or as it did before it knew the labels."""
    seen = inputs_of(ckptzoo.open(path), name)
    targets = seen.targets if labels else None
    return derive.predict(path, seen.inputs, set=name, targets=targets, others=seen.others)


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("seed", range(examples(30, 3)))
@pytest.mark.sampled(2)
def test_any_set_of_the_same_classes_is_scored_however_it_was_stored(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(np.random.SeedSequence((3, seed)))
    dataset = str(rng.choice(["mnist", "ylecun/mnist", "digits", "fashion-mnist", "letters"]))
    scalings = [(0.0, 1.0)] * 3 if rng.random() < 0.5 else [(0.1307, 0.3081), (0.0, 1.0), (0.5, 0.5)]
    root = zoo_of(tmp_path / "zoo", dataset, scalings)
    for name in rng.permutation(SETS)[: int(rng.integers(1, 4))].tolist():
        labels = bool(rng.random() < 0.5)
        stored(root, name, labels=labels)
        zoo, other = ckptzoo.open(root), name.partition("/")[0]
        assert run(["predict", str(root), name]) == 0  # the same again adds nothing, whatever is stored
        if have_same_classes(dataset, other):
            targets = labels_of(zoo, name)
            assert np.array_equal(targets, ckptzoo.image_sets.find(name).labels)
            hits = np.asarray(zoo.predictions(name).logits).argmax(-1) == targets
            found = ensembles(zoo, name)
            assert np.isclose(found.figure("accuracy")[1].mean, hits.mean()) and found.inputs == len(targets)
            if len(set(scalings)) == 1:
                assert np.array_equal(labelled_of(zoo, name).targets, targets)
            assert name not in default_sets(zoo)[1]
        else:
            with pytest.raises(ZooError, match=f"labels of {name}: expected some"):
                ensembles(zoo, name)
    labelled = [name for name in zoo.predicted if zoo.predictions(name).targets is not None]
    own, others = default_sets(zoo)
    assert (own in labelled) if labelled else own is None
    assert own is None or own.partition("/")[0] == dataset.rpartition("/")[2] or not [
        name for name in labelled if name.startswith(f"{dataset.rpartition('/')[2]}/") and "-" not in name.partition("/")[2]
    ]  # fmt: skip
    assert all(not have_same_classes(dataset, name.partition("/")[0]) for name in others)


@pytest.mark.usefixtures("data")
def test_other_inputs_of_the_name_have_no_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = zoo_of(tmp_path / "zoo", "mnist", [(0.0, 1.0)] * 2)
    inputs = np.random.default_rng(0).random((40, 784), np.float32)
    derive.predict(root, inputs, set="digits/test-40")
    with pytest.raises(ZooError, match="outputs on the images of digits/test-40 here, got on others"):
        ensembles(ckptzoo.open(root), "digits/test-40")
    stored(root, "mnist/test", labels=False)
    monkeypatch.delenv("CKPTZOO_DATA")
    with pytest.raises(ZooError, match=r"its files on this machine, got none\. Name the folder that holds mnist with"):
        ensembles(ckptzoo.open(root), "mnist/test")


def test_classes() -> None:
    pairs: dict[tuple[str, str], Any] = {
        ("mnist", "MNIST"): True, ("mnist", "svhn"): True, ("mnist", "fashion-mnist"): False,
        ("cifar10", "cifar100"): False, ("cifar100-c", "cifar100"): True, ("cifar10-c", "cifar100"): False,
        ("mine", "mine"): True, ("mine", "mine-c"): False, ("mnist-14x14", "digits"): True,
        ("svhn", "cifar10"): False, ("uoft-cs/cifar10", "cifar10-c"): True,
    }  # fmt: skip
    for (one, other), same in pairs.items():
        assert have_same_classes(one, other) == have_same_classes(other, one) == same, (one, other)
