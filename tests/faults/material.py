"""A tiny zoo, what is added to it, and its files as bytes."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import ckptzoo
from ckptzoo.schema.card import Card

ARCH = ckptzoo.Architecture(
    "tiny",
    (
        ckptzoo.Tensor("conv.weight", (24, 16)),
        ckptzoo.Tensor("fc.weight", (10, 24)),
        ckptzoo.Tensor("fc.bias", (10,)),
    ),
)
CONTRIBUTION = 'contributor = "Ada Stranger"\nlicense = "cc-by-4.0"\nsource = "https://example.org/runs"\n'


def weights_of(count: int, seed: int) -> dict[str, np.ndarray]:
    """Random weights of K checkpoints, stacked."""
    rng = np.random.default_rng(seed)
    return {item.name: rng.standard_normal((count, *item.shape), np.float32) for item in ARCH.tensors}


def grown(path: Path, parts: tuple[int, ...], *, label: str, seed: int) -> Path:
    """Add parts of so many checkpoints to a zoo."""
    writer = ckptzoo.append(path)
    for number, count in enumerate(parts):
        rows = [
            {"id": f"{label}{number}-{at}", "seed": at, "license": "cc0-1.0", "test_accuracy": at % 100 / 100}
            for at in range(count)
        ]
        writer.add(weights_of(count, 1000 * seed + number), rows)
        writer.commit()
    return path


def zoo_of(path: Path, parts: tuple[int, ...] = (48, 24), *, label: str = "m", seed: int = 1) -> Path:
    """A zoo of tiny networks."""
    ckptzoo.create(path, arch=ARCH, card=Card("tiny", summary="Tiny networks with random weights."))
    return grown(path, parts, label=label, seed=seed)


def strangers(folder: Path, count: int = 2, *, seed: int = 77) -> tuple[list[Path], Path]:
    """Files of a stranger's checkpoints, and the card of the contribution."""
    folder.mkdir(parents=True, exist_ok=True)
    stacked = weights_of(count, seed)
    files = [folder / f"run{at}.safetensors" for at in range(count)]
    for at, file in enumerate(files):
        save_file({name: np.ascontiguousarray(array[at]) for name, array in stacked.items()}, file)
    card = folder / "contribution.toml"
    card.write_text(CONTRIBUTION)
    return files, card
