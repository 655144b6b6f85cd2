"""References that lie are refused before a file is opened, and every changed byte of them is found."""

import os
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import ckptzoo
from ckptzoo.errors import IntegrityError, ZooError
from ckptzoo.format.references import Reference, TensorPlace, encode
from ckptzoo.hub.imports import link_zoo
from tests.support.effort import examples
from tests.support.published_zoos import network

Rows = list[list[Reference]]


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    (tmp_path / "nets").mkdir()
    for number in range(3):
        save_file(network(number), tmp_path / f"nets/n{number}.safetensors")
    return tmp_path / "nets"


def with_places(item: Reference, change: Callable[[TensorPlace], TensorPlace | None]) -> list[Reference]:
    places = tuple(place for each in item.layout.tensors if (place := change(each)) is not None)
    return [item._replace(layout=replace(item.layout, tensors=places))]


LIES: dict[str, tuple[Callable[[Reference], list[Reference]], str]] = {
    "twice": (lambda item: [item, item], "references to"),
    "none": (lambda item: [], "references to"),
    "lacking": (lambda item: with_places(item, lambda place: place if place.tensor != "2.bias" else None), "'2.bias'"),
    "behind": (lambda item: with_places(item, lambda place: place._replace(offset=place.offset + 4)), "references to"),
    "far": (lambda item: with_places(item, lambda place: place._replace(offset=2**61)), "references to"),
    "before": (lambda item: with_places(item, lambda place: place._replace(offset=-4)), "layout"),
    "unknown": (lambda item: with_places(item, lambda place: place._replace(tensor="x")), "one of the architecture"),
    "start": (lambda item: [item._replace(start=-1)], "start"),
    "base": (lambda item: [item._replace(base=item.start + 1)], "size of a header"),
    "size": (lambda item: [item._replace(size=item.start)], "references to"),
    "pieces": (lambda item: [item._replace(layout=replace(item.layout, header=((0, 2**40),)))], "layout"),
    "nowhere": (lambda item: [item._replace(path="")], "path"),
    "absolute": (lambda item: [item._replace(path="/etc/hosts")], "path"),
    "above": (lambda item: [item._replace(path="../nets/n0.safetensors")], "path"),
    "other tensor": (
        lambda item: with_places(item, lambda place: place._replace(name="0.bias") if place.tensor == "2.bias" else place),
        "header: expected the tensors that were linked",
    ),
    "other dtype": (lambda item: [item._replace(header=bytes(32))], "sha256 of the header"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_references_that_lie_are_refused(nets: Path, lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, words = LIES[lie]

    def crafted(rows: Rows) -> bytes:
        return encode([*rows[:1], *([made for item in row for made in change(item)] for row in rows[1:])])

    monkeypatch.setattr("ckptzoo.format.writer.encode", crafted)
    link_zoo(nets, nets.parent / "zoo", license="MIT")
    zoo = ckptzoo.open(nets.parent / "zoo")
    assert len(zoo.ids) == 3
    with pytest.raises(IntegrityError, match=words):
        [zoo[name][:] for name in zoo.arch.names]
    assert any(words in str(problem) for problem in ckptzoo.verify(nets.parent / "zoo"))


def test_every_changed_byte_of_references_is_found(nets: Path) -> None:
    link_zoo(nets, nets.parent / "zoo", license="MIT")
    (path,) = (nets.parent / "zoo").glob("parts/*/references.parquet")
    sound, draw = path.read_bytes(), np.random.default_rng(0)
    for at in draw.integers(0, len(sound), examples(200, 12)).tolist():
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << draw.integers(8)]) + sound[at + 1 :])
        assert ckptzoo.verify(nets.parent / "zoo", deep=False) != [], at
        with pytest.raises(ZooError):
            ckptzoo.open(nets.parent / "zoo")["0.bias"][:]
    path.write_bytes(sound[:-1])
    assert ckptzoo.verify(nets.parent / "zoo", deep=False) != []
    path.unlink()
    assert ckptzoo.verify(nets.parent / "zoo", deep=False) != []


def test_more_files_are_read_than_may_be_open(nets: Path) -> None:
    one = nets / "n0.safetensors"
    for number in range(300):
        folder = nets / f"run{number}"
        folder.mkdir()
        os.link(one, folder / "net.safetensors")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # those that other tests of this process left open do not count
    resource.setrlimit(resource.RLIMIT_NOFILE, (sum(1 for _ in Path("/dev/fd").iterdir()) + 230, limits[1]))
    try:
        assert link_zoo(nets, nets.parent / "zoo", license="MIT").added == 303
        zoo: Any = ckptzoo.open(nets.parent / "zoo")
        assert len(np.unique(zoo["0.weight"][:], axis=0)) == 3 and ckptzoo.verify(nets.parent / "zoo") == []
        assert ckptzoo.materialize(nets.parent / "zoo", nets.parent / "held").checkpoints == 303
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
