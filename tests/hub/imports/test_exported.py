"""What ``export`` wrote comes back as the checkpoint that it was; other networks are named by their folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import ckptzoo
from ckptzoo.format.table import METADATA_SCHEMA, table_of
from ckptzoo.hub import export
from ckptzoo.hub.imports import import_zoo, plan_import
from ckptzoo.hub.imports.exported import exported_row, is_exported
from ckptzoo.schema.metadata import COLUMNS, value_problems
from tests.support.effort import examples
from tests.support.published_zoos import network, packed, save

ROWS: list[dict[str, Any]] = [
    {"id": "ada/m0@5", "member": "ada/m0", "seed": 3, "step": 5, "epoch": 1.5, "test_accuracy": 0.75, "diverged": False},
    {"id": "m1", "dataset": "mnist", "recipe": "own", "method": "swag", "mode": "m1", "draw": 2, "license": "cc-by-4.0"},
    {"id": "мережа", "claimed_test_loss": 0.5, "train_loss": 0.25, "extra": {"lr": 0.1, "act": {"name": "relu"}}},
]  # fmt: skip
MEASURED = {"train_loss", "train_accuracy", "test_loss", "test_accuracy", "test_nll", "test_brier", "test_ece"}
FORMS = ["folder", "shards", "file", "folders", "folders.tar"]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> ckptzoo.Zoo:
    path = tmp_path_factory.mktemp("from") / "mine"
    arch = ckptzoo.Architecture.of(network(0), name="my-net", input_shape=(4,))
    card = ckptzoo.Card("mine", license="MIT")
    with ckptzoo.create(path, arch=arch, card=card) as writer:
        for number, row in enumerate(ROWS):
            writer.add(network(number), row)
    return ckptzoo.open(path)


@settings(max_examples=examples(30, 2), deadline=None)
@given(forms=st.lists(st.sampled_from(FORMS), min_size=len(ROWS), max_size=len(ROWS)))
def test_exported_checkpoints_come_back_with_their_ids_columns_and_architecture(
    zoo: ckptzoo.Zoo, tmp_path_factory: pytest.TempPathFactory, forms: list[str]
) -> None:
    root = tmp_path_factory.mktemp("exported")
    for number, form in enumerate(forms):
        source = root / f"out{number}{'.safetensors' if form == 'file' else ''}"
        target = source / "inside" if form.startswith("folders") else source
        target.parent.mkdir(parents=True, exist_ok=True)
        export(zoo[number], target, zoo=zoo, max_shard_size=80 if form == "shards" else 10**9)
        source = packed(source, root / f"packed{number}.tar") if form.endswith(".tar") else source
        for added in (1, 0):
            assert import_zoo(source, root / "zoo", license="MIT").added == added
    made = ckptzoo.open(root / "zoo")
    rows = {row["id"]: row for row in made.metadata.to_pylist()}
    assert set(rows) == {row["id"] for row in ROWS}
    if not {"file", "folders.tar"} & set(forms):  # a header has the architecture's name alone
        assert made.arch == zoo.arch
    for number, row in enumerate(zoo.metadata.to_pylist()):
        own = rows[row["id"]]
        columns = {column.name for column in COLUMNS} - MEASURED - {"unit", "source", "extra", "claimed_test_accuracy"}
        assert {name: own[name] for name in columns if row[name] is not None} == {
            name: row[name] for name in columns if row[name] is not None
        }
        assert own["test_accuracy"] is None and own["claimed_test_accuracy"] == row["test_accuracy"]
        assert json.loads(row["extra"] or "{}").items() <= json.loads(own["extra"]).items()
        checkpoint = made.checkpoint(row["id"])
        assert all(np.array_equal(checkpoint[name], zoo[number][name]) for name in zoo.arch.names)


def test_networks_of_any_name_are_named_by_their_folder(tmp_path: Path) -> None:
    for number, name in enumerate(("bert", "gpt")):
        folder = tmp_path / name
        folder.mkdir()
        save_file(network(number), folder / "model.safetensors")
        save(folder / "pytorch_model.bin", network(number))
        (folder / "config.json").write_text(json.dumps({"model_type": name, "hidden_size": 4, "seed": number}))
        import_zoo(folder, tmp_path / "zoo", license="MIT")
    # the same of an archive, in which the settings come last
    import_zoo(packed(tmp_path / "gpt", tmp_path / "gpt.tar", reverse=True), tmp_path / "other", license="MIT")
    assert ckptzoo.open(tmp_path / "other").metadata.to_pylist()[0]["seed"] == 1
    (planned,) = plan_import(tmp_path / "gpt").files
    rows = ckptzoo.open(tmp_path / "zoo").metadata.to_pylist()
    assert [(row["id"], row["member"], row["seed"]) for row in rows] == [("bert", "bert", 0), ("gpt", "gpt", 1)]
    assert (planned.id, planned.member) == ("gpt", "gpt")
    assert json.loads(rows[1]["extra"])["config"] == {"model_type": "gpt", "hidden_size": 4}


def test_an_id_that_comes_twice_is_not_taken_twice(zoo: ckptzoo.Zoo, tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    for name in ("a", "b"):
        export(zoo[1], tmp_path / "all" / f"{name}.safetensors", zoo=zoo)
    done = import_zoo(tmp_path / "all", tmp_path / "zoo", license="MIT")
    assert sorted(ckptzoo.open(tmp_path / "zoo").ids) == ["b", "m1"] and done.added == 2
    export(zoo[1], tmp_path / "m1", zoo=zoo)
    import_zoo(tmp_path / "m1", tmp_path / "zoo", license="MIT")
    assert sorted(ckptzoo.open(tmp_path / "zoo").ids) == ["b", "m1", "m1/m1"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=examples(300, 10), deadline=None)
@given(
    facts=st.fixed_dictionaries(
        {"id": st.text() | JSON, "variant": st.text(max_size=4), "zoo": JSON, "architecture": JSON},
        optional={column.name: JSON for column in COLUMNS if column.name != "id"},
    )
)
def test_what_a_file_says_is_a_row_that_can_be_written_whatever_it_says(facts: dict[str, Any]) -> None:
    if not is_exported(facts):
        return
    row = exported_row(facts)
    id = row.pop("own_id")
    assert row.pop("own_member")
    row.pop("own_architecture", None)
    rows = [{**row, "id": id, "extra": json.dumps(row["extra"])}]
    assert list(value_problems(rows, location="rows")) == []
    table_of(rows, METADATA_SCHEMA, location="rows")


def test_a_config_of_another_network_is_no_architecture(zoo: ckptzoo.Zoo, tmp_path: Path) -> None:
    export(zoo[0], tmp_path / "out", zoo=zoo)
    save_file(network(0, width=6), tmp_path / "out" / "model.safetensors")
    import_zoo(tmp_path / "out", tmp_path / "zoo", license="MIT")
    made = ckptzoo.open(tmp_path / "zoo")
    assert made.ids == ["ada/m0@5"] and made.arch["0.bias"].shape == (6,) and made.arch.name == "zoo"
