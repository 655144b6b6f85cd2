"""Numbers that are read at their places are those of the whole file, and damaged files are refused."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ckptzoo.errors import ZooError
from ckptzoo.hub.audits.places import Place, safetensors_places, torch_places
from ckptzoo.hub.untrusted import Limits
from ckptzoo.hub.untrusted.process import ReadingProcess
from tests.support.effort import examples


def tensors(number: int) -> dict[str, torch.Tensor]:
    """Tensors of several dtypes, some of them views of others."""
    made = torch.Generator().manual_seed(number)
    dtypes = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
    found = {
        f"layer{at}.weight": torch.randn(3 + at, 5, generator=made).to(dtypes[(at + number) % 4]) for at in range(4)
    }
    found["tied.weight"] = found["layer0.weight"]
    found["rows.weight"] = found["layer3.weight"][2:5]
    found["turned.weight"] = found["layer3.weight"].T
    found["count"] = torch.tensor(number)
    return found


@pytest.fixture(scope="module")
def process() -> Iterator[ReadingProcess]:
    with ReadingProcess(Limits()) as started:
        yield started


def places_in(path: Path, process: ReadingProcess) -> dict[str, Place]:
    data = path.read_bytes()

    def fetch(start: int, stop: int) -> bytes:
        return data[start:stop]

    if path.suffix == ".safetensors":
        return safetensors_places(data[:100], fetch, len(data), path.name)[0]
    return torch_places(fetch, len(data), path.name, process)[0]


def check(path: Path, expected: dict[str, torch.Tensor], process: ReadingProcess) -> None:
    data = path.read_bytes()
    found = places_in(path, process)
    assert found.keys() == expected.keys()
    for name, place in found.items():
        own = expected[name].contiguous()
        values = place.read(lambda start, stop: data[start:stop], own.numel(), path.name)
        assert place.shape == tuple(own.shape)
        assert values.tobytes() == own.reshape(-1).view(torch.uint8).numpy().tobytes(), name


@pytest.mark.parametrize("number", range(examples(20, 2)))
def test_numbers_are_those_of_the_file(tmp_path: Path, process: ReadingProcess, number: int) -> None:
    expected = tensors(number)
    torch.save({"model": expected, "optimizer": {"state": {0: {"exp_avg": torch.ones(7)}}}}, tmp_path / "net.pt")
    # numbers that are not one after another in the file have no place
    check(tmp_path / "net.pt", {name: tensor for name, tensor in expected.items() if name != "turned.weight"}, process)
    plain = {name: tensor.clone().contiguous() for name, tensor in expected.items()}
    save_file(plain, tmp_path / "net.safetensors")
    check(tmp_path / "net.safetensors", plain, process)


@pytest.mark.parametrize("name", ["net.pt", "net.safetensors"])
def test_damaged_files_are_refused(tmp_path: Path, process: ReadingProcess, name: str) -> None:
    plain = {name: tensor.clone().contiguous() for name, tensor in tensors(0).items()}
    torch.save(plain, tmp_path / "net.pt")
    save_file(plain, tmp_path / "net.safetensors")
    data, rng = (tmp_path / name).read_bytes(), np.random.default_rng(0)
    for _ in range(examples(200, 12)):
        damaged, at = bytearray(data), int(rng.integers(len(data)))
        if rng.random() < 0.5:
            damaged = damaged[:at]
        else:
            damaged[at] ^= int(rng.integers(1, 256))
        (tmp_path / f"damaged-{name}").write_bytes(damaged)
        try:
            found = places_in(tmp_path / f"damaged-{name}", process)
            for place in found.values():
                place.read(lambda start, stop: bytes(damaged[start:stop]), int(np.prod(place.shape)), name)  # noqa: B023
        except ZooError as error:
            assert str(error).endswith(".")
