"""The page of a zoo on another machine is that of the zoo here, and fetches only the layers that it shows."""

from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import derive
from ckptzoo.explorer import page
from tests.support.derived_zoos import files_of
from tests.support.explorer_pages import rows_with_gaps
from tests.support.serving import Served, running

COUNT = 60


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """Perceptrons with one layer of many weights and one of few."""
    name = "mlp-100-40-3"
    arch, rng = archs.architecture(name), np.random.default_rng(0)
    weights = {item.name: rng.normal(size=(COUNT, *item.shape)).astype(np.float32) for item in arch.tensors}
    with ckptzoo.create(tmp_path / "zoo", arch=arch, symmetry=archs.symmetry(name)) as writer:
        writer.add(weights, rows_with_gaps(COUNT))
    derive(tmp_path / "zoo", certify="none")
    ckptzoo.compact(tmp_path / "zoo")
    return tmp_path / "zoo"


def test_only_the_layers_shown_are_fetched(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / "cache"))
    last = list(ckptzoo.open(zoo).layers)[-1]
    page(ckptzoo.open(zoo), tmp_path / "here.html", layers=[last])
    with running(Served({f"/zoo/{name}": data for name, data in files_of(zoo).items()})) as web:
        page(ckptzoo.open(f"{web.url}/zoo"), tmp_path / "there.html", layers=[last])
        assert web.sent < 0.3 * sum(len(data) for data in files_of(zoo).values())
    assert (tmp_path / "there.html").read_bytes() == (tmp_path / "here.html").read_bytes()
