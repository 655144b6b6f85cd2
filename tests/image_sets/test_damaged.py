"""Bytes that were changed or lost anywhere give a refusal or a sound image set, and never another error."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptzoo.errors import ZooError
from ckptzoo.image_sets import lookup
from ckptzoo.image_sets.image_set import KnownSet
from tests.support import image_set_files as made
from tests.support.effort import examples


def binary(folder: Path) -> tuple[KnownSet, Path]:
    made.write_binary(folder / "cifar100", 100, made.cifar_arrays(100))
    return made.small("cifar100"), folder / "cifar100" / "test.bin"


def npz(folder: Path) -> tuple[KnownSet, Path]:
    made.write_npz(folder / "cifar10", 10, made.cifar_arrays(10))
    return made.small("cifar10"), folder / "cifar10" / "cifar10_test.npz"


def parquet(folder: Path) -> tuple[KnownSet, Path]:
    made.write_parquet(
        folder / "cifar10", {"test": made.table("cifar10", made.cifar_arrays(10))["test"].select(range(1))}
    )
    return made.small("cifar10", counts={"test": 1}), next((folder / "cifar10").glob("test-*.parquet"))


def mat(folder: Path, packed: bool = False) -> tuple[KnownSet, Path]:
    content: dict[str, Any] = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [10]], np.uint8)}
    scipy.io.savemat(folder / "test_32x32.mat", content, do_compression=packed)
    return made.small("svhn", counts={"test": 2}), folder / "test_32x32.mat"


def packed_mat(folder: Path) -> tuple[KnownSet, Path]:
    return mat(folder, packed=True)


def tiny(folder: Path) -> tuple[KnownSet, Path]:
    known = made.write_tiny_imagenet(folder / "tinyimagenet", images=1)
    return known, folder / "tinyimagenet" / "val" / "images" / "val_2.JPEG"


@pytest.mark.parametrize("form", [binary, npz, parquet, mat, packed_mat, tiny])
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_refused(
    form: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("set")
    monkeypatch.setenv("CKPTZOO_CACHE", str(folder / "cache"))
    known, path = form(folder)
    good = path.read_bytes()
    place = data.draw(st.integers(0, len(good) - 1))
    if data.draw(st.booleans()):
        path.write_bytes(good[:place])
    else:
        change = data.draw(st.binary(min_size=1, max_size=8))
        path.write_bytes(good[:place] + change + good[place + len(change) :])
    try:
        found = lookup.read(known, "test", folder)
    except ZooError as error:
        assert all(problem.got for problem in error.problems)
        return
    assert found is not None and len(found) == known.counts["test"] == len(found.images)
    assert found.images.dtype == np.uint8 and found.labels.min() >= 0
    assert known.classes is not None and found.labels.max() < known.classes
