"""Two sources of one name get names of their own, and a source that comes again, moved or packed too, adds nothing."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.hub.imports import import_zoo
from tests.support.effort import examples
from tests.support.hosted import Hosted
from tests.support.published_zoos import FORMATS, network, packed, save

SUFFIXES = ["", ".tar", ".zip"]


def rows_of(zoo: Path) -> list[dict[str, Any]]:
    paths = [zoo] if (zoo / "zoo.json").is_file() else sorted(path.parent for path in zoo.glob("*/zoo.json"))
    return [row for path in paths for row in ckptzoo.open(path).metadata.to_pylist()]


@settings(max_examples=examples(40, 1), deadline=None)
@given(
    imports=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(SUFFIXES)), min_size=2, max_size=4),
    shared=st.integers(0, 2),
    layout=st.sampled_from(["net{}.pt", "seed{}/ckpt_2.pt", "run/epoch_{}.pt"]),
)
def test_each_source_is_there_once_whatever_comes_in_which_order(
    tmp_path_factory: pytest.TempPathFactory, imports: list[tuple[str, str]], shared: int, layout: str
) -> None:
    root = tmp_path_factory.mktemp("sources")
    seen: dict[str, list[dict[str, Any]]] = {}
    for at, (place, suffix) in enumerate(imports):
        source = root / place / "run"
        for number in range(5):
            path = source / layout.format(number)
            if not path.is_file():
                save(path, network(number if number < shared else 10 * ord(place) + number))
        # an archive lies somewhere else
        given_ = packed(source, root / f"run{suffix}") if suffix else source
        done = import_zoo(given_, root / "zoo", license="MIT")
        assert (done.added, done.present) == ((0, 5) if place in seen else (5, 0)), at
        rows = rows_of(root / "zoo")
        known = {row["id"] for before in seen.values() for row in before}
        seen.setdefault(place, [row for row in rows if row["id"] not in known])
        assert len(rows) == 5 * len(seen) == sum(map(len, seen.values()))
    members = Counter(member for own in seen.values() for member in {row["member"] for row in own})
    assert set(members.values()) == {1}  # no member is of two sources
    assert len({row["source"] for own in seen.values() for row in own}) == len(seen)


@pytest.mark.exhaustive
def test_a_source_that_grew_or_changed_in_a_few_files_is_still_the_same(tmp_path: Path) -> None:
    for place in "ab":
        for number in range(4):
            save(tmp_path / place / "run" / f"net{number}.pt", network(10 * ord(place) + number))
        import_zoo(tmp_path / place / "run", tmp_path / "zoo", license="MIT")
    save(tmp_path / "b" / "run" / "net0.pt", network(1))  # a last.pt, for example
    save(tmp_path / "b" / "run" / "more.pt", network(2))
    done = import_zoo(tmp_path / "b" / "run", tmp_path / "zoo", license="MIT")
    assert (done.added, done.present) == (1, 4)
    assert {row["id"]: row["source"] for row in rows_of(tmp_path / "zoo")}["more"] == "b/run"


def test_rows_of_a_matrix_too(tmp_path: Path) -> None:
    expected = FORMATS["small-cnn"](tmp_path / "a" / "published")
    FORMATS["small-cnn"](tmp_path / "b" / "published")
    (weights,) = (tmp_path / "b").rglob("weights.npy")
    np.save(weights, np.load(weights) + 1)
    for place, added in (("a", len(expected)), ("b", len(expected)), ("a", 0), ("b", 0)):
        assert import_zoo(tmp_path / place / "published", tmp_path / "zoo").added == added


def test_revisions_of_one_repository(tmp_path: Path, server: Hosted) -> None:
    api, names = server.api("write"), ("main", "step1000", "step2000")
    api.create_repo("lab/run")
    for number, revision in enumerate(names):
        if number:
            api.create_branch("lab/run", branch=revision)
        save(tmp_path / revision / "pytorch_model.bin", network(number))
        (tmp_path / revision / "config.json").write_text(json.dumps({"model_type": "mlp", "architectures": ["MLP"]}))
        api.upload_folder(repo_id="lab/run", folder_path=tmp_path / revision, revision=revision)
    pinned = api.repo_info("lab/run", revision="main").sha
    for revision, added in (("step1000", 1), ("step2000", 1), ("step1000", 0), ("main", 1), ("main", 0), (pinned, 0)):
        address = f"hf://lab/run@{revision}"
        assert import_zoo(address, tmp_path / "zoo", license="MIT", endpoint=server.url).added == added, revision
    rows = {row["id"]: (row["member"], row["step"]) for row in rows_of(tmp_path / "zoo")}
    ids = ("run", "step1000-pytorch_model", "step2000-pytorch_model")
    assert rows == dict(zip(ids, (("run", None), ("run", 1000), ("run", 2000)), strict=True))
    zoo = ckptzoo.open(tmp_path / "zoo")
    for number, id in enumerate(ids):
        for name, value in network(number).items():
            np.testing.assert_array_equal(zoo.checkpoint(id)[name], value)


@pytest.mark.exhaustive
def test_repositories_of_one_name(tmp_path: Path, server: Hosted) -> None:
    api, addresses = server.api("write"), {"model": "hf://lab/p0", "dataset": "hf://datasets/lab/p0"}
    for number, kind in enumerate(addresses):
        for file in range(2):
            save(tmp_path / kind / f"net{file}.pt", network(10 * number + file))
        api.create_repo("lab/p0", repo_type=kind)
        api.upload_folder(repo_id="lab/p0", repo_type=kind, folder_path=tmp_path / kind)
    for kind, added in (("model", 2), ("dataset", 2), ("dataset", 0), ("model", 0)):
        done = import_zoo(addresses[kind], tmp_path / "zoo", license="MIT", endpoint=server.url)
        assert done.added == added
    rows = rows_of(tmp_path / "zoo")
    assert sorted(row["id"] for row in rows) == ["lab-p0/net0", "lab-p0/net1", "net0", "net1"]
    assert all(json.loads(row["extra"])["repository"].startswith("hf://") for row in rows)
