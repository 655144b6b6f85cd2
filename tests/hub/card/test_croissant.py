"""croissant.json: mlcroissant reads it without a warning and gives the rows, and whatever texts hold they are data."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import ckptzoo
from ckptzoo.hub.card import write
from ckptzoo.hub.card.croissant import croissant
from ckptzoo.hub.client import Client
from ckptzoo.hub.imports import link_zoo
from ckptzoo.schema.card import MAX_TEXT
from tests.support.effort import FEW_EXAMPLES, examples
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import grown, pushed

mlcroissant = pytest.importorskip("mlcroissant")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*retracted:UserWarning"),
    # mlcroissant 1.1.1 uses what rdflib and pandas will remove
    pytest.mark.filterwarnings("ignore:ConjunctiveGraph is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame"),
]
ROOT = Path(__file__).parents[3]
ARCH = ckptzoo.Architecture("tiny", (ckptzoo.Tensor("w", (2,)),))
RESPONSIBLE = {
    "use_cases": "Statistics.", "limitations": "Few.", "biases": "None known.", "social_impact": "Small.",
    "personal_information": "None.",
}  # fmt: skip


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What mlcroissant has warned of, which it logs by absl."""
    logger = logging.getLogger("absl")
    logger.addHandler(caplog.handler)
    yield lambda: [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    logger.removeHandler(caplog.handler)


def read(path: Path) -> tuple[Any, list[dict[str, Any]]]:
    """The metadata and the records, by the names of their columns."""
    found = mlcroissant.Dataset(str(path / "croissant.json"))
    issues = found.metadata.ctx.issues
    assert (issues.errors, issues.warnings) == (set(), set())
    records = [
        {name.removeprefix("checkpoints/"): value for name, value in record.items()}
        for record in found.records("checkpoints")
    ]
    return found.metadata, records


def as_stored(value: Any) -> Any:
    """A value as the metadata has it: mlcroissant gives texts as bytes, and NaN for what is not there."""
    if isinstance(value, bytes):
        return value.decode()
    return None if value is None or value != value else value


@pytest.mark.parametrize(
    "name",
    [
        "cifar100-resnet18-w8",
        pytest.param("mnist-optunet-trajectories", marks=pytest.mark.exhaustive),
        pytest.param("mnist-optunet", marks=pytest.mark.exhaustive),
        pytest.param("mnist-optunet-posteriors", marks=pytest.mark.exhaustive),
    ],
)
def test_a_shipped_zoo_gives_its_rows(name: str, warned: Callable[[], list[str]]) -> None:
    path = ROOT / "cards" / name
    metadata, records = read(path)
    rows = ckptzoo.open(path).metadata.to_pylist()
    assert len(records) == len(rows) and warned() == []
    for record, row in zip(records, rows, strict=True):
        assert {column: as_stored(value) for column, value in record.items()} == {
            column: row[column] for column in record
        }
    assert {column for row in rows[:1] for column, value in row.items() if value is not None} <= set(records[0])
    assert metadata.license and metadata.version == f"{len(ckptzoo.open(path).contents.raw.parts)}.0.0"


def test_older_parts_nulls_and_tombstones(tmp_path: Path) -> None:
    path = shutil.copytree(ROOT / "tests/golden/v1", tmp_path / "v1")
    arch = ckptzoo.open(path).arch
    with ckptzoo.append(path) as writer:
        weights = {tensor.name: np.zeros((2, *tensor.shape), tensor.dtype) for tensor in arch.tensors}
        writer.add(weights, [{"id": "new-0"}, {"id": "new-1", "seed": 4, "diverged": True, "method": "swag"}])
    ckptzoo.retract(path, ["new-0"], reason="a test")
    write(path, ckptzoo.Card(ckptzoo.open(path).name, license="mit", **RESPONSIBLE))
    metadata, records = read(path)
    *_, zero, one = records
    # the golden part's file has no column method
    assert as_stored(zero["seed"]) is None and one["seed"] == 4 and "method" not in one and as_stored(one["diverged"])
    assert metadata.version.split(".")[1] == "2" and "2 checkpoints retracted" in metadata.data_collection_missing_data
    stated = (metadata.data_use_cases, metadata.data_biases, metadata.personal_sensitive_information)
    assert stated == (["Statistics."], ["None known."], ["None."]) and metadata.data_social_impact == "Small."


TEXTS = st.text(st.characters(codec="utf-8"), max_size=40) | st.sampled_from(
    ["</script><script>alert(1)</script>", "\x00\x1b[2J\u2028", "\\u003c", '"}],"@context":"http://127.0.0.1/', "$ref"]
)


@settings(max_examples=examples(60, FEW_EXAMPLES))
@given(title=TEXTS, summary=TEXTS, author=TEXTS, notes=TEXTS, dataset=TEXTS, recipe=TEXTS, network=TEXTS)
def test_texts_are_data(
    tmp_path_factory: pytest.TempPathFactory, network: str, dataset: str, recipe: str, **texts: str
) -> None:
    path = tmp_path_factory.mktemp("hostile") / "zoo"
    arch = ckptzoo.Architecture(network or "n", ARCH.tensors)
    author = texts.pop("author")
    card = ckptzoo.Card("tiny", authors=(author,), license="mit", **texts)
    with ckptzoo.create(path, arch=arch, card=card) as writer:
        rows = [{"id": "a", "dataset": dataset, "recipe": recipe}]
        writer.add({"w": np.zeros((1, 2), np.float32)}, rows)
    data = croissant(ckptzoo.open(path), card)
    assert data.isascii() and not set(b"<>&") & set(data) and all(letter >= 32 or letter == 10 for letter in data)
    content = json.loads(data)
    assert len(content["recordSet"]) == 1 and content["recordSet"][0]["@id"] == "checkpoints"
    (path / "croissant.json").write_bytes(data)
    _, (record,) = read_without_date(path)
    assert as_stored(record["dataset"]) == dataset and as_stored(record["recipe"]) == recipe


def read_without_date(path: Path) -> tuple[Any, list[dict[str, Any]]]:
    """As ``read``, of a zoo whose rows say no time, which mlcroissant warns of."""
    found = mlcroissant.Dataset(str(path / "croissant.json"))
    (warning,) = found.metadata.ctx.issues.warnings
    assert "datePublished" in warning and not found.metadata.ctx.issues.errors
    return found.metadata, [
        {name.removeprefix("checkpoints/"): value for name, value in record.items()}
        for record in found.records("checkpoints")
    ]


def test_long_texts_are_bounded_and_read(tmp_path: Path) -> None:
    long = "</script>" * (MAX_TEXT // 9)
    card = ckptzoo.Card("tiny", summary=long, notes=long, training=long, license="mit", authors=(long,))
    with ckptzoo.create(tmp_path / "zoo", arch=ARCH, card=card) as writer:
        rows = [{"id": f"a{n}", "dataset": "x" * 2**20, "recipe": f"\x00{n}" * 1000} for n in range(20)]
        writer.add({"w": np.zeros((20, 2), np.float32)}, rows)
    data = croissant(ckptzoo.open(tmp_path / "zoo"), card)
    assert b"<" not in data and len(data) < 20 * MAX_TEXT
    (tmp_path / "zoo/croissant.json").write_bytes(data)
    assert len(read_without_date(tmp_path / "zoo")[1]) == 20


def test_card_writes_and_compares_it_and_pull_brings_it(tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    ckptzoo.pull(ROOT / "cards/mnist-optunet-trajectories", path)
    assert write(path, check=True).changes == ()
    content = json.loads((path / "croissant.json").read_text())
    (path / "croissant.json").write_text(json.dumps({**content, "name": "other"}, indent=1, sort_keys=True) + "\n")
    changes = write(path, check=True).changes
    assert '- "name": "other",' in changes and ckptzoo.verify(path) == []
    write(path)
    assert write(path, check=True).changes == ()
    ckptzoo.release(path, "2026-12")
    assert write(path, check=True).changes == ()
    ckptzoo.pull(ROOT / "cards/mnist-optunet-trajectories", tmp_path / "part", where="seed < 2 and step == 0")
    assert len(read(tmp_path / "part")[1]) == 2


def test_a_zoo_of_references_has_no_files_of_weights(tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    for name in "ab":
        save_file({"w": np.zeros(2, np.float32)}, tmp_path / f"nets/{name}.safetensors")
    link_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")
    write(tmp_path / "zoo")
    # without a time in the rows it has no date of publication, of which mlcroissant warns
    metadata = mlcroissant.Dataset(str(tmp_path / "zoo/croissant.json")).metadata
    assert not metadata.ctx.issues.errors and [item.name for item in metadata.distribution] == [
        "metadata",
        "references",
    ]
    for item in metadata.distribution:
        assert [*(tmp_path / "zoo").glob(str(item.includes[0] if isinstance(item.includes, list) else item.includes))]


def test_push_makes_it_for_what_the_repository_holds(
    server: Hosted, make_zoo: Callable[..., Path], tmp_path: Path
) -> None:
    zoo = make_zoo("zoo", (3,))
    card = ckptzoo.Card(ckptzoo.open(zoo).name, license="mit")
    write(zoo, card)
    assert "croissant.json" in pushed(server, zoo).documents
    grown(zoo, (2,), start=1)
    assert "croissant.json" in pushed(server, zoo).documents and pushed(server, zoo).commits == ()
    client = Client(server.url, server.tokens["write"])
    found = json.loads(client.read(ZOO, "croissant.json", client.listing(ZOO)))
    assert found["url"] == f"hf://datasets/{ZOO}" and "5 checkpoints" in found["description"]
    ckptzoo.pull(ZOO, tmp_path / "down", endpoint=server.url, token=server.tokens["read"])
    assert len(read_without_date(tmp_path / "down")[1]) == 5
