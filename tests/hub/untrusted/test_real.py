"""Public checkpoints are read bit for bit as torch reads them. Skipped where they are not.

Generated files are tested in test_torch_files.py.
"""

import os
from pathlib import Path

import pytest
import torch

from ckptzoo.hub.untrusted import Limits, read, read_all

DATA = Path(os.environ.get("CKPTZOO_DATA") or Path(__file__).parents[4] / "shared" / "data")
CHECKPOINTS = DATA.parent / "checkpoints"
FILES = sorted([*CHECKPOINTS.glob("*/*.th"), *CHECKPOINTS.glob("*/*.pt")])


@pytest.mark.skipif(not FILES, reason="no checkpoints")
def test_public_networks_are_read_bit_for_bit() -> None:
    assert len(FILES) == 10
    for made in read_all(FILES):
        assert made.error is None
        whole = torch.load(made.path, weights_only=True, map_location="cpu")
        expected = whole.get("state_dict", whole)
        (found,) = made.states
        assert found.source == made.path.name and list(found.tensors) == list(expected)
        for name, value in expected.items():
            array = value.numpy()
            assert found.tensors[name].dtype == array.dtype and found.tensors[name].shape == array.shape
            assert found.tensors[name].tobytes() == array.tobytes(), name
        assert found.facts == ({"best_prec1": float(whole["best_prec1"])} if "best_prec1" in whole else {})
        assert found.left_out == () and found.aliases == {}


@pytest.mark.skipif(not FILES, reason="no checkpoints")
def test_a_refused_file_does_not_keep_the_others(tmp_path: Path) -> None:
    cut = tmp_path / "cut.th"
    cut.write_bytes(FILES[0].read_bytes()[:5000])
    made = list(read_all([FILES[0], cut, tmp_path / "none.pt", FILES[1]]))
    assert [one.error is None for one in made] == [True, False, False, True]
    assert all(str(one.path) in str(one.error) for one in made[1:3])


@pytest.mark.skipif(not FILES, reason="no checkpoints")
def test_one_file_within_the_limits_that_it_needs() -> None:
    small = Limits(memory_bytes=256 * 2**20, seconds=60, tensor_bytes=2 * 2**20)
    assert read(FILES[0], limits=small)[0].tensors
