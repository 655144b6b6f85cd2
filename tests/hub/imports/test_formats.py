"""A small zoo in each published layout becomes one of ours, the same from a folder and from every archive."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.hub.imports import ADAPTERS, import_zoo
from ckptzoo.schema.metadata import parse_extra
from tests.support.published_zoos import FORMATS, State, packed, ray_tune


def weights(zoo: ckptzoo.Zoo) -> dict[str, State]:
    return {name: {tensor: zoo[tensor][number] for tensor in zoo.arch.names} for number, name in enumerate(zoo.ids)}


def assert_same(found: dict[str, State], expected: dict[str, State]) -> None:
    assert set(found) == set(expected)
    for name, state in expected.items():
        assert set(found[name]) == set(state), name
        for tensor, array in state.items():
            assert found[name][tensor].dtype == array.dtype and np.array_equal(found[name][tensor], array), (
                name,
                tensor,
            )


def rows(zoo: ckptzoo.Zoo) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in zoo.metadata.to_pylist()}


def test_every_format_has_a_toy() -> None:
    assert set(FORMATS) == set(ADAPTERS)


@pytest.mark.parametrize("name", FORMATS)
def test_toys_are_recognised_and_imported_bit_for_bit(tmp_path: Path, name: str) -> None:
    expected = FORMATS[name](tmp_path / "published")
    result = import_zoo(tmp_path / "published", tmp_path / "zoo", license="MIT")
    assert result.adapter == name and result.added == len(expected) and not result.skipped
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert_same(weights(zoo), expected)
    assert ckptzoo.verify(tmp_path / "zoo") == []
    ours = ADAPTERS[name].license
    assert set(zoo.metadata["license"].to_pylist()) == {"MIT"} and (
        ours is None or ours in ("CC-BY-4.0", "MIT", "Apache-2.0")
    )


@pytest.mark.parametrize("suffix", ["tar", "tgz", "tar.xz", "zip"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.sampled(7)
def test_archives_give_the_same_rows_in_any_order(tmp_path: Path, name: str, suffix: str) -> None:
    FORMATS[name](tmp_path / "published")
    import_zoo(tmp_path / "published", tmp_path / "zoo", license="MIT")
    archive = packed(tmp_path / "published", tmp_path / f"published.{suffix}", reverse=True)
    import_zoo(archive, tmp_path / "other", license="MIT")
    folder, other = ckptzoo.open(tmp_path / "zoo"), ckptzoo.open(tmp_path / "other")
    assert_same(weights(other), weights(folder))
    assert rows(other) == rows(folder)
    # the same source again, in another form: everything is there
    again = import_zoo(archive, tmp_path / "zoo", license="MIT")
    assert again.added == 0 and again.present > 0


def test_facts_go_to_columns_and_what_is_private_does_not(tmp_path: Path) -> None:
    ray_tune(tmp_path / "published")
    import_zoo(tmp_path / "published", tmp_path / "zoo", dataset="mnist")
    zoo = ckptzoo.open(tmp_path / "zoo")
    row = rows(zoo)["T_00001_1_model_dropout=0.5000_2026-01-01_00-00-00@2"]
    assert row["claimed_test_accuracy"] == 0.2 and row["claimed_test_loss"] == 0.5 and row["test_accuracy"] is None
    assert (row["seed"], row["step"], row["epoch"], row["dataset"]) == (1, 2, 2.0, "mnist")
    extra = parse_extra(row["extra"])
    assert extra is not None and extra["optim"] == {"lr": 0.1} and extra["model"] == {"dropout": 0.5, "type": "MLP"}
    assert extra["train_acc"] == 0.1
    text = "".join(file.read_bytes().decode("latin-1") for file in (tmp_path / "zoo").rglob("*.parquet"))
    assert not any(word in row["extra"] + text for word in ("node1", "192.0.2.1", "/home", str(tmp_path)))


@pytest.mark.parametrize("first", [0, 1])
def test_both_ways_of_ray_to_number_checkpoints(tmp_path: Path, first: int) -> None:
    expected = ray_tune(tmp_path / "published", first=first)
    import_zoo(tmp_path / "published", tmp_path / "zoo")
    assert_same(weights(ckptzoo.open(tmp_path / "zoo")), expected)


def test_numbers_that_fit_neither_way_ask_for_the_offset(tmp_path: Path) -> None:
    expected = ray_tune(tmp_path / "published", members=1, first=5)
    with pytest.raises(ZooError, match="Give --checkpoint-offset"):
        import_zoo(tmp_path / "published", tmp_path / "zoo")
    from ckptzoo.hub.imports import Options

    import_zoo(tmp_path / "published", tmp_path / "zoo", options=Options(checkpoint_offset=-4))
    assert_same(weights(ckptzoo.open(tmp_path / "zoo")), expected)


def test_what_could_be_two_formats_is_asked(tmp_path: Path) -> None:
    ray_tune(tmp_path / "published" / "one", members=1)
    FORMATS["haiku"](tmp_path / "published" / "two")
    with pytest.raises(ZooError, match=r"got ray-tune and haiku.*Say which with --as"):
        import_zoo(tmp_path / "published", tmp_path / "zoo", license="MIT")
    result = import_zoo(tmp_path / "published", tmp_path / "zoo", license="MIT", adapter="haiku")
    assert result.added == 3
