"""Files cut off at every k-th byte and files with one flipped byte: read as they were, or refused; never a hang."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.untrusted import Limits, read_all
from tests.support.checkpoint_files import saved, written
from tests.support.effort import ALL, examples

LIMITS = Limits(tensor_bytes=2**24, memory_bytes=2**29, seconds=30)
ARRAYS = {
    "fc.weight": np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32),
    "fc.bias": np.arange(5, dtype=np.float64),
    "n": np.array(7),
}


def whole(kind: str) -> bytes:
    if kind == "safetensors":
        return save(ARRAYS)
    if kind == "npz":
        out = io.BytesIO()
        np.savez(out, **ARRAYS)
        return out.getvalue()
    state = {name: torch.from_numpy(array) for name, array in ARRAYS.items()}
    return saved({"state_dict": state, "epoch": 3}, zipped=kind == "pt")


def outcomes(folder: Path, kind: str, files: list[bytes]) -> list[bool]:
    """Whether each was read; what was read must be the same numbers where the format has checksums."""
    made = []
    for one in read_all(written(folder, {f"{at}.{kind}": data for at, data in enumerate(files)}), limits=LIMITS):
        assert one.error is None or isinstance(one.error, IntegrityError)
        assert str(one.error).replace("\n", "").isprintable()
        made.append(one.error is None)
        if one.error is None and kind in ("pt", "npz"):
            (found,) = one.states
            assert {name: array.tobytes() for name, array in found.tensors.items()} == {
                name: array.tobytes() for name, array in ARRAYS.items()
            }
    return made


@pytest.mark.parametrize("kind", ["pt", "th", "npz", "safetensors"])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, kind: str) -> None:
    data = whole(kind)
    # safetensors are read in this process, the others each in one of its own
    step = 1 if kind == "safetensors" else max(1, len(data) // (50 if ALL else 8))
    assert not any(outcomes(tmp_path / "cut", kind, [data[:at] for at in range(0, len(data), step)]))
    assert outcomes(tmp_path / "whole", kind, [data]) == [True]


@pytest.mark.parametrize(("kind", "many"), [("pt", 100), ("th", 100), ("npz", 80), ("safetensors", 400)])
def test_a_flipped_byte_is_refused_or_does_no_harm(tmp_path: Path, kind: str, many: int) -> None:
    draw = np.random.default_rng(1)
    data = whole(kind)
    files = []
    for at in draw.integers(0, len(data), many if ALL or kind == "safetensors" else many // 4):
        changed = bytearray(data)
        changed[at] ^= int(draw.integers(1, 256))
        files.append(bytes(changed))
    assert not all(outcomes(tmp_path / "flipped", kind, files))


def test_noise_behind_the_right_first_bytes(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    for kind in ("pt", "th", "npz"):
        head = whole(kind)[:40]
        files = [
            head[: int(draw.integers(4, 40))] + draw.bytes(int(draw.integers(1, 3000))) for _ in range(examples(20, 8))
        ]
        assert not any(outcomes(tmp_path / kind, kind, files))
