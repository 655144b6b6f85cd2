"""Real checkpoint files of others, with known answers; without them the toys of the other tests stand in."""

import os
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.cli.app import run
from ckptzoo.hub.imports import import_zoo

DATA = Path(os.environ.get("CKPTZOO_DATA") or Path(__file__).parents[4] / "shared" / "data")
SAMPLES = DATA.parent / "checkpoints" / "import-samples"
BNN = SAMPLES / "bnn-mnist-mlp"
pytestmark = pytest.mark.skipif(not SAMPLES.is_dir(), reason="no samples")
MLP = "mlp-784-64-64-10"


@pytest.mark.exhaustive
def test_every_checkpoint_file_among_the_samples_is_imported_by_one_command(tmp_path: Path) -> None:
    for name, count in (("bnn-mnist-mlp", 43), ("ray-tune-toy", 12), ("wild-park-toy", 6), ("haiku-hmc-toy", 6)):
        result = import_zoo(SAMPLES / name, tmp_path / name, license="MIT")
        assert result.added == count, name
        paths = [tmp_path / name / part for part in result.zoos]
        assert sum(len(ckptzoo.open(path)) for path in paths) == count
        for path in paths:
            assert ckptzoo.verify(path) == []


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("ensemble_5", (0.9750, 0.9779, 0.9783, 0.9772, 0.9770)),
     ("ensemble_10", (0.9764, 0.9756, 0.9762, 0.9757, 0.9783, 0.9777, 0.9755, 0.9754, 0.9784, 0.9774))],
)  # fmt: skip
@pytest.mark.sampled(2)
@pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="no MNIST")
def test_ensembles_have_the_accuracies_that_are_known(tmp_path: Path, folder: str, expected: tuple[float, ...]) -> None:
    scaling = ((0.1307,), (0.3081,))
    import_zoo(
        BNN / "results" / "mnist" / folder, tmp_path / "zoo", license="MIT", arch=MLP, names="order", dataset="mnist",
        scaling=scaling,
    )  # fmt: skip
    assert run(["predict", str(tmp_path / "zoo"), "mnist/test", "--data", str(DATA)]) == 0
    predictions = ckptzoo.open(tmp_path / "zoo").predictions("mnist/test")
    targets = predictions.targets
    assert targets is not None
    found = (np.asarray(predictions.logits[:]).argmax(axis=2) == targets).mean(axis=1)
    # float16 outputs of float32 weights: an image or two of the 10,000
    assert np.abs(found - expected).max() <= 2e-4


@pytest.mark.exhaustive
def test_what_single_files_hold(tmp_path: Path) -> None:
    result = import_zoo(BNN / "models", tmp_path / "copies", license="MIT")
    ((first, others),) = result.repeated.items()
    assert (first, len(others)) == ("deep_ensemble-mnist_20/0", 19)
    import_zoo(BNN / "results" / "mnist" / "laplace", tmp_path / "laplace", license="MIT", arch=MLP, names="order")
    assert len(ckptzoo.open(tmp_path / "laplace")) == 1
    for number, folder in enumerate(("meanfield", "multiswag_5")):
        path = tmp_path / str(number)
        import_zoo(BNN / "results" / "mnist" / "old" / folder, path, license="MIT", arch=MLP, names="order")
        zoo = ckptzoo.open(path)
        assert zoo.arch.forward == f"gaussian-{MLP}" and len(zoo) == (1, 5)[number]
        assert all((zoo[name][:] > 0).all() for name in zoo.arch.names if name.endswith("_std"))


def test_facts_of_the_samples(tmp_path: Path) -> None:
    import_zoo(SAMPLES / "ray-tune-toy", tmp_path / "ray")
    rows = ckptzoo.open(tmp_path / "ray").metadata.to_pylist()
    assert {row["step"] for row in rows} == {1, 2, 3} and all(0 < row["claimed_test_accuracy"] < 1 for row in rows)
    assert not any(word in str(rows) for word in ("hostname", "192.0.2.", "node_ip", "'pid'"))
    result = import_zoo(SAMPLES / "wild-park-toy", tmp_path / "park", license="MIT")
    assert sorted(result.zoos.values()) == [2, 4]
    park = ckptzoo.open_collection(tmp_path / "park").where("claimed_test_accuracy > 0.2")
    assert sum(map(len, park)) == len(park) > 0
