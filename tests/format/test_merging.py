"""A zoo of few parts answers what the zoo of many does, and nothing is half made or changed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive, predict
from ckptzoo.errors import IntegrityError, ZooError
from ckptzoo.format import merging, table
from ckptzoo.format.files import Folder
from ckptzoo.format.part import PartWriter, part_digest, stored_rows
from ckptzoo.loader.zoo import Zoo
from tests.support.derived_zoos import ARCH, files_of, fill, inputs_of, weights_of, zoo_of


def answers(zoo: Zoo) -> dict[str, Any]:
    """Every answer of a zoo, to the last bit."""
    variants = {
        f"{variant} {name}": zoo.having(variant)[name, variant][:].tobytes()
        for variant in zoo.gauges
        for name in zoo.arch.names
    }
    elements = {
        f"{variant} element {name}": tensor[:].tobytes()
        for variant in zoo.gauges
        for name, tensor in zoo.having(variant).group_element(variant).items()
    }
    rows = {variant: zoo.having(variant).variant_metadata(variant).drop_columns(["unit"]) for variant in zoo.gauges}
    outputs = {name: np.asarray(zoo.having(name).predictions(name).logits[:]).tobytes() for name in zoo.predicted}
    return {
        "ids": zoo.ids,
        "rows": zoo.metadata,
        **{name: zoo[name][:].tobytes() for name in zoo.arch.names},
        **variants,
        **elements,
        "variants": rows,
        **outputs,
        "retracted": zoo.retracted,
        "splits": {name: zoo.split(name, "one").ids for name in zoo.splits},
        "measured": zoo.contents.measured.rows.table().drop_columns(["unit", "created"]),
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.sampled(6)
def test_a_merged_zoo_answers_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng, path = np.random.default_rng(seed), zoo_of(tmp_path / "zoo", (1,))
    inputs = inputs_of(ARCH, 3)
    for step in range(1, 4):
        fill(path, tuple(rng.integers(1, 4, 2).tolist()), start=2 * step)
        for kind in rng.choice(["canonical", "unit-norm", "predict", "retract", "split", "checks", "compact"], 2):
            if kind in ("canonical", "unit-norm"):
                derive(path, gauge=kind, store=str(rng.choice(["weights", "element"])), certify="none")
            elif kind == "predict":
                predict(path, inputs, set="mine/test", targets=np.zeros(3, np.int64))
            elif kind == "retract":
                ckptzoo.retract(path, [str(rng.choice(ckptzoo.open(path).ids))], reason="a test")
            elif kind == "split" and not ckptzoo.open(path).splits:
                ids = ckptzoo.open(path).ids
                ckptzoo.write_split(path, "mine", {"one": ids[:1], "two": ids[1:2]}, by="id")
            elif kind == "checks" and "canonical" in ckptzoo.open(path).gauges:
                derive(path, certify="sample")
            elif kind == "compact":
                ckptzoo.compact(path)
    monkeypatch.setattr(merging, "_BATCH_ROWS", int(rng.integers(1, 5)))
    before, expected = files_of(path), answers(ckptzoo.open(path))
    counts = ckptzoo.merge_parts(path, tmp_path / "merged")
    merged = ckptzoo.open(tmp_path / "merged")
    assert files_of(path) == before and ckptzoo.verify(tmp_path / "merged") == []
    for name, answer in answers(merged).items():
        assert answer == expected[name], name
    assert counts["parts"] == (7, len(merged.contents.raw.parts)) and counts["parts"][1] < 7
    assert f"from 7 parts of revision `{ckptzoo.open(path).revision}`" in (tmp_path / "merged/card.toml").read_text()
    # once more there is nothing left to merge
    again = ckptzoo.merge_parts(tmp_path / "merged", tmp_path / "again")
    assert all(count == (count[0], count[0]) for count in again.values())
    assert ckptzoo.open(tmp_path / "again").revision == merged.revision


def test_a_merged_zoo_is_the_zoo_that_was_written_at_once(tmp_path: Path) -> None:
    whole = {name: np.concatenate([weights_of(3, at)[name] for at in range(4)]) for name in ARCH.names}
    many = zoo_of(tmp_path / "many", (3, 3, 3, 3))
    with ckptzoo.create(tmp_path / "whole", arch=ARCH, symmetry=ckptzoo.open(many).symmetry) as writer:
        writer.add(whole, [{"id": f"{at}-{row}", "unit": f"u{at}"} for at in range(4) for row in range(3)])
    for zoo in (many, tmp_path / "whole"):
        derive(zoo, certify="none")
    ckptzoo.merge_parts(many, tmp_path / "merged")
    merged, expected = files_of(tmp_path / "merged"), files_of(tmp_path / "whole")
    parts = {name for name in expected if "/" in name}
    assert len(parts) == 7 and {name: merged[name] for name in parts} == {name: expected[name] for name in parts}


@pytest.mark.parametrize("at", [1, 2, 3])
def test_what_is_stopped_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    path = zoo_of(tmp_path / "zoo", (2, 2))
    derive(path, certify="none")
    before, commits, commit = files_of(path), list[int](), PartWriter.commit

    def stopped(self: PartWriter, *args: Any, **options: Any) -> Any:
        commits.append(1)
        if len(commits) == at:
            raise KeyboardInterrupt
        return commit(self, *args, **options)

    monkeypatch.setattr(PartWriter, "commit", stopped)
    if at < 3:
        with pytest.raises(KeyboardInterrupt):
            ckptzoo.merge_parts(path, tmp_path / "merged")
        assert sorted(file.name for file in tmp_path.iterdir()) == ["zoo"]
    else:
        ckptzoo.merge_parts(path, tmp_path / "merged")
    assert files_of(path) == before


def test_what_is_refused(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (2, 2))
    with pytest.raises(ZooError, match="expected no folder or an empty one, got one with files"):
        ckptzoo.merge_parts(path, path)
    (tmp_path / "secret").write_text("x")
    (path / "pictures").mkdir()
    (path / "pictures" / "a.png").symlink_to(tmp_path / "secret")
    with pytest.raises(IntegrityError, match=r"pictures/a.png: file: expected one in the zoo's folder, got a link"):
        ckptzoo.merge_parts(path, tmp_path / "linked")
    (path / "pictures" / "a.png").unlink()
    (tmp_path / "secret").unlink()
    shard = min(path.glob("parts/*/raw-*"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(IntegrityError, match="sha256 of the whole file"):
        ckptzoo.merge_parts(path, tmp_path / "damaged")
    assert not (tmp_path / "damaged").exists() and len(list(tmp_path.iterdir())) == 1


def test_a_zoo_is_not_merged_into_itself(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (1, 1))
    (tmp_path / "link").symlink_to(path)
    for target in (path / "sub", tmp_path / "link" / "sub"):
        with pytest.raises(ZooError, match=r"a folder apart from .* Name another folder"):
            ckptzoo.merge_parts(path, target)
    assert not (path / "sub").exists()


def test_counts_of_parts_are_summed() -> None:
    listed: list[Any] = [{"others": {"a": 1}}, {}, {"others": {"a": 2, "b": None}}]
    assert merging._summed(listed) == {"others": {"a": 3, "b": None}}
    rules: list[Any] = [{"certificate": {"rule": {"every": None, "checkpoints": count}}} for count in (2, 3)]
    assert merging._summed(rules) == {"certificate": {"rule": {"every": None, "checkpoints": 5}}}


@pytest.mark.parametrize("seed", range(2))
def test_the_order_of_blocks_in_an_index_changes_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("ckptzoo.format.shard.BLOCK_BYTES", 64)
    path, rng = zoo_of(tmp_path / "zoo", (3, 2)), np.random.default_rng(seed)
    expected = ckptzoo.open(path)
    weights = {name: expected[name][:].tobytes() for name in ARCH.names}
    for held in merging._held(expected.contents.raw):
        order = [0, *(1 + rng.permutation(len(held.index) - 1)).tolist()]
        index, part = held.index.take(order), held.part
        rows = stored_rows(Folder(path), part)
        digest = part_digest(rows, index, part.facts)
        footer = {"version": 1, "digest": digest, "rows": part.rows, "facts": part.facts}
        (path / part.path / "index.parquet").write_bytes(table.encode([index], footer, sealed=True))
        (path / part.path).rename(path / part.tree / f"{part.name[:6]}-{digest[7:15]}")
    assert ckptzoo.verify(path) == []
    assert ckptzoo.merge_parts(path, tmp_path / "merged")["parts"] == (2, 1)
    for zoo in (ckptzoo.open(path), ckptzoo.open(tmp_path / "merged")):
        assert {name: zoo[name][:].tobytes() for name in ARCH.names} == weights
