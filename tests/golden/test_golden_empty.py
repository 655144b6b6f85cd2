"""Zoos with tensors that have no elements stay readable, here and from a server, and their bytes stay what they are."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.errors import SpecError
from ckptzoo.format.maintenance import compact
from ckptzoo.learning.forms import form_of
from tests.support.serving import Served, running

GOLDEN = Path(__file__).parent / "v1-empty"
ROWS = ["golden-0", "golden-1", "golden-2", "golden-3"]


def weights() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(2310_08287)
    return {
        "a.weight": draw.normal(size=(4, 3, 2)).astype("f4"),
        "o.weight": np.zeros((4, 0), "f4"),
        "m": np.zeros((4, 4, 0, 2), "f4"),
        "n": np.zeros((4, 0), "i8"),
        "b": draw.normal(size=(4, 3)).astype("f4"),
    }


def assert_reads(zoo: ckptzoo.Zoo) -> None:
    for name, expected in weights().items():
        for rows in (slice(None), [3, 0], slice(1, 2)):
            found = np.asarray(zoo[name][rows])
            assert found.shape == expected[rows].shape and found.tobytes() == expected[rows].tobytes(), name
        assert np.asarray(zoo[name][:, :0]).shape[:2] == (4, 0)
    batches = list(zoo.stream(batch_size=3, remainder="keep"))
    assert sum(len(batch["o.weight"]) for batch in batches) == 4
    assert [batch["m"].shape for batch in zoo.stream("m", batch_size=2)] == [(2, 4, 0, 2)] * 2


def test_the_golden_zoo_is_sound_and_reads_the_same(tmp_path: Path) -> None:
    assert ckptzoo.verify(GOLDEN) == []
    zoo = ckptzoo.open(GOLDEN)
    assert zoo.ids == ROWS and zoo.arch.parameters == 9
    assert zoo.revision == "sha256:4c4bb72d0ed6533cc144aa982b54c7627edff3d7259f8b4b61d3e19e8bb6af44"
    assert_reads(zoo)
    with ckptzoo.create(tmp_path / "again", arch=zoo.arch, card=GOLDEN / "card.toml") as writer:
        for start, stop in ((0, 3), (3, 4)):
            rows = [{"id": name} for name in ROWS[start:stop]]
            writer.add({name: array[start:stop] for name, array in weights().items()}, rows)
            writer.commit()
    for path in GOLDEN.rglob("raw-*"):
        assert path.read_bytes() == (tmp_path / "again" / path.relative_to(GOLDEN)).read_bytes()


def test_it_reads_the_same_from_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / "cache"))
    path = shutil.copytree(GOLDEN, tmp_path / "zoo")
    compact(path)
    files = {f"/{item.relative_to(tmp_path)}": item.read_bytes() for item in path.rglob("*") if item.is_file()}
    with running(Served(files)) as server:
        assert_reads(ckptzoo.open(f"{server.url}/zoo"))


@pytest.mark.parametrize("name", ["flat", "tokens"])
def test_forms_give_back_what_has_no_elements(name: str) -> None:
    form = form_of(name, ckptzoo.open(GOLDEN).arch, None)
    found = form.decode(form.encode(weights()))
    assert all(np.array_equal(np.asarray(found[key]), value) for key, value in weights().items())


def test_an_architecture_has_at_least_one_element() -> None:
    with pytest.raises(SpecError, match="elements of a checkpoint: expected at least one, got none"):
        ckptzoo.Architecture("none", (ckptzoo.Tensor("a", (0,)), ckptzoo.Tensor("b", (2, 0))))
    with pytest.raises(SpecError, match="integers from 0"):
        ckptzoo.Architecture("none", (ckptzoo.Tensor("a", (-1,)), ckptzoo.Tensor("b", (2, 1))))
