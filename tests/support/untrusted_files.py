"""Untrusted contributions to a zoo of OptuNets: files, a test set, and a card."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from ckptzoo import archs
from ckptzoo.hub.contributions.evaluation import CheckpointEvaluator
from ckptzoo.image_sets import ImageSet
from ckptzoo.image_sets.evaluation import Evaluation
from tests.support.hub_zoos import ARCH, weights_of

CARD = """
contributor = "Ada Stranger"
license = "cc-by-4.0"
source = "https://example.org/runs"
dataset = "mnist"
recipe = "sgd"
training = "SGD for ten epochs | with a <b>bar</b>"

[evaluation]
mean = 0.1307
std = 0.3081
"""
EVALUATION = Evaluation("mnist", (0.1307,), (0.3081,))


def card_of(folder: Path, more: str = "", text: str = CARD) -> Path:
    """A contribution.toml; ``more`` are keys of the top."""
    path = folder / "contribution.toml"
    path.write_text(more + text)
    return path


def heldout_in(folder: Path, count: int = 300) -> Path:
    """A folder with a test set that goes by the name of mnist, of random blocks."""
    rng = np.random.default_rng(7)
    images = rng.integers(0, 256, (count, 7, 7), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
    folder.mkdir(exist_ok=True)
    np.savez(folder / "mnist_test.npz", images=images, labels=rng.integers(0, 10, count))
    return folder


def state_of(seed: int) -> dict[str, np.ndarray]:
    """The state dict of an OptuNet."""
    return {name: array[0] for name, array in weights_of(1, seed).items()}


def saved(path: Path, state: dict[str, np.ndarray], prefix: str = "") -> Path:
    """A state dict as a .safetensors file."""
    save_file({prefix + name: np.ascontiguousarray(array) for name, array in state.items()}, path)
    return path


def accuracy_of(state: dict[str, np.ndarray], data: Path) -> float:
    """The accuracy of an OptuNet on the test set of a folder."""
    with np.load(data / "mnist_test.npz") as held:
        images, labels = held["images"], held["labels"]
    judge = CheckpointEvaluator(ARCH, archs.get("optunet"), ImageSet("mnist", images[:, None], labels), EVALUATION)
    return float(judge.columns({name: array[None] for name, array in state.items()})["test_accuracy"][0])


def keys(**values: Any) -> str:
    """Lines of TOML."""
    shown = {key: str(value).lower() if isinstance(value, bool) else repr(value) for key, value in values.items()}
    return "".join(f"{key} = {value}\n" for key, value in shown.items())
