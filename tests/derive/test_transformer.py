"""A vision transformer from its training to the loader: traced, packed, disguised by matrices, derived, read back."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import ckptzoo
from ckptzoo.derive import dedupe, derive
from ckptzoo.image_sets.digits import DIGITS_TEST, read_digits
from ckptzoo.image_sets.lookup import load
from ckptzoo.symmetry import GroupElement, apply, fold, trace
from tests.support.vision_transformer import VisionTransformer, accuracy, trained

DATA = Path(os.environ.get("CKPTZOO_DATA") or Path(__file__).parents[3] / "shared" / "data")
needs_mnist = pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="no MNIST under $CKPTZOO_DATA")
Weights = dict[str, np.ndarray]
Images = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Those to train on with their labels, and those to test on."""


def digits() -> Images:
    """Scaled images and labels to train on, and to test on: scikit-learn's digits."""
    pytest.importorskip("sklearn")
    found = read_digits()
    assert found is not None
    images, labels = ((found[0] / 255 - 0.3) / 0.3).astype(np.float32), found[1]
    return images[:-DIGITS_TEST], labels[:-DIGITS_TEST], images[-DIGITS_TEST:], labels[-DIGITS_TEST:]


def mnist() -> Images:
    """The same of MNIST, from a fifth of its training images."""
    train, test = (load("mnist", split, DATA) for split in ("train", "test"))
    images = [
        ((pixels / 255 - 0.13) / 0.31).astype(np.float32) for pixels in (train.images[:12_000], test.images[:2000])
    ]
    return images[0], train.labels[:12_000], images[1], test.labels[:2000]


def outputs(weights: Weights, images: np.ndarray) -> np.ndarray:
    """Logits (K, B, 10) in float64."""
    module, found = VisionTransformer().double().eval(), []
    for row in range(len(weights["token"])):
        module.load_state_dict({name: torch.from_numpy(value[row].astype(float)) for name, value in weights.items()})
        with torch.no_grad():
            found.append(module(torch.from_numpy(images.astype(float))).numpy())
    return np.stack(found)


def apart(one: Weights, other: Weights) -> float:
    """The largest relative distance of a tensor of one network from that of another."""
    pairs = ((one[name], other[name]) for name in one)
    return max(float(np.linalg.norm(a - b) / max(np.linalg.norm(a), 1e-3)) for a, b in pairs)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("source", "epochs", "least"),
    [(digits, 8, 0.8), pytest.param(mnist, 5, 0.85, marks=[pytest.mark.slow, needs_mnist])],
)
def test_a_transformer_from_training_to_the_loader(
    tmp_path: Path, source: Callable[[], Images], epochs: int, least: float
) -> None:
    images, labels, test_images, test_labels = source()
    modules = []
    for seed in (0, 1):
        module, steps = trained(images, labels, seed=seed, epochs=epochs)
        assert accuracy(module, test_images, test_labels) > least
        modules.append((module, steps))
    found = trace(modules[0][0], torch.zeros(2, 1, 28, 28))
    assert {"linear", "orthogonal_mean"} <= {group.scale for group in found.symmetry.groups}
    names = found.architecture.names
    raw = {name: np.stack([module.state_dict()[name].numpy() for module, _ in modules]) for name in names}

    path = tmp_path / "transformers"
    with ckptzoo.create(path, arch=found.architecture, symmetry=found.symmetry) as writer:
        rows = [{"id": f"vit-{seed}", "seed": seed, "step": steps} for seed, (_, steps) in enumerate(modules)]
        writer.add(raw, rows)
        # matrices of the stream keep the function of folded weights alone
        folded = fold({name: value.astype(np.float64) for name, value in raw.items()}, found.symmetry)
        for number in range(2):
            element = GroupElement.random(found.symmetry, 2, np.random.default_rng(number), spread=0.3)
            disguised = {
                name: value.astype(np.float32) for name, value in apply(element, folded, found.symmetry).items()
            }
            writer.add(disguised, [{"id": f"disguise-{number}-{seed}"} for seed in range(2)])

    done = derive(path, module=modules[0][0], inputs=test_images[:8])
    assert (done.version, done.checkpoints, done.untouched, done.unresolved) == (5, 6, 0, 0)
    (checked,) = done.certified
    assert checked.checkpoints == 6 and checked.random < 1e-5 and checked.real < 1e-5
    assert ckptzoo.verify(path) == []

    zoo = ckptzoo.open(path)
    held = {name: np.asarray(zoo[name, "canonical"]) for name in names}
    stored = {name: np.asarray(zoo[name]) for name in names}
    wanted, given = (outputs(weights, test_images[:64]) for weights in (stored, held))
    assert np.abs(given - wanted).max() < 1e-5 * np.abs(wanted).max()
    one, *others = ({name: value[row] for name, value in held.items()} for row in (0, 2, 4))
    assert max(apart(one, other) for other in others) < 1e-4
    assert apart(*({name: value[row] for name, value in stored.items()} for row in (0, 2))) > 0.5
    assert apart(one, {name: value[1] for name, value in held.items()}) > 0.5
    assert [sorted(ids) for ids in dedupe(zoo).groups] == [
        [f"disguise-0-{seed}", f"disguise-1-{seed}", f"vit-{seed}"] for seed in range(2)
    ]
    # by the loader, one checkpoint
    checkpoint = zoo.checkpoint("disguise-1-0", variant="canonical")
    assert all(np.array_equal(checkpoint[name], held[name][4]) for name in names)
