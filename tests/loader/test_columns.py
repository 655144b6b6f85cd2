"""Metadata columns that go along with streams, datasets for torch and for Hugging Face datasets, and their types."""

from datetime import UTC, datetime
from multiprocessing.reduction import ForkingPickler

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import ckptzoo
from ckptzoo.errors import UnknownNameError, ZooError
from tests.conftest import MIXED, weights_of

COUNT = 23
COLUMNS = ["test_accuracy", "seed", "step", "diverged", "finite", "dataset", "created"]
DAY = datetime(2024, 1, 31, 12, tzinfo=UTC)


def row(at: int) -> dict:
    """Steps, truth values, names and times are missing in some rows; seeds and ``finite`` in none."""
    return {
        "id": f"m{at:02d}",
        "seed": 2**60 + at,
        "step": None if at == 7 else at,
        "test_accuracy": None if at % 5 == 0 else at / 100,
        "diverged": None if at == 3 else at % 2 == 0,
        "dataset": None if at % 3 == 0 else f"set-{at % 3}",
        "created": DAY if at % 2 else None,
    }


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    path, weights = tmp_path_factory.mktemp("columns") / "zoo", weights_of(MIXED, COUNT)
    writer = ckptzoo.create(path, arch=MIXED)
    for part in (slice(0, 15), slice(15, COUNT)):
        writer.add({name: array[part] for name, array in weights.items()}, [row(at) for at in range(COUNT)[part]])
        writer.commit()
    return ckptzoo.open(path)


def expected(id: str) -> dict:
    return {**row(int(id[1:])), "finite": True}


@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_values_belong_to_the_checkpoints_of_the_batch(zoo, shuffle):
    kinds = dict.fromkeys(("test_accuracy", "step", "diverged"), float) | {"seed": np.int64, "finite": bool}
    seen = []
    for batch in zoo.stream("flag", columns=COLUMNS, batch_size=4, shuffle=shuffle, seed=3, remainder="keep"):
        assert list(batch.columns) == COLUMNS and set(batch.tensors) == {"flag"}
        wanted = [expected(id) for id in batch.ids]
        for name in COLUMNS:
            values, truth = batch[name], [item[name] for item in wanted]
            if name in kinds:
                assert values.dtype == kinds[name] and values.shape == (len(batch),)
                assert np.array_equal(values, np.array([np.nan if value is None else value for value in truth]), True)
            else:
                assert values == truth
        seen += batch.ids
    assert sorted(seen) == zoo.ids


def test_types_are_those_of_the_whole_selection(zoo):
    for rows, kind in ((slice(None), float), ([1, 2, 4, 5], np.int64)):
        for batch in zoo.take(rows).stream("flag", columns="step", batch_size=2, remainder="keep"):
            assert batch["step"].dtype == kind
    assert [batch["step"].size for batch in zoo[:0].stream("flag", columns=["step"])] == []


def test_columns_change_neither_order_nor_state(zoo):
    options = {"batch_size": 4, "shuffle": True, "seed": 1, "remainder": "keep"}
    plain, wide = zoo.stream("conv", **options), zoo.stream("conv", columns=["seed", "dataset"], **options)
    pairs = list(zip(plain, wide, strict=True))
    for one, two in pairs:
        assert one.ids == two.ids and one.state == two.state and one.columns == {}
        assert one["conv.weight"].tobytes() == two["conv.weight"].tobytes()
    again = zoo.stream("conv", columns=["step"], **options)
    again.load_state_dict(pairs[2][0].state)
    rest = list(again)
    assert [batch.ids for batch in rest] == [one.ids for one, _ in pairs[3:]]
    for batch in rest:
        assert np.array_equal(batch["step"], [np.nan if id == "m07" else int(id[1:]) for id in batch.ids], True)
    sent = ForkingPickler.loads(ForkingPickler.dumps(wide))  # at the start of the second epoch, as wide is
    assert [batch["dataset"] for batch in sent] == [batch["dataset"] for batch in wide]


def test_a_device_gets_tensors_and_lists(zoo):
    stream = zoo.stream("flag", columns=COLUMNS, batch_size=5, device="cpu", remainder="keep")
    for batch, plain in zip(stream, zoo.stream("flag", columns=COLUMNS, batch_size=5, remainder="keep"), strict=True):
        assert batch.ids == plain.ids and batch.state == plain.state
        for name in COLUMNS:
            if isinstance(plain[name], list):
                assert batch[name] == plain[name]
            else:
                assert torch.equal(batch[name].nan_to_num(-1), torch.from_numpy(plain[name]).nan_to_num(-1))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_loaders_get_columns_and_refuse_to_batch_batches(zoo, workers):
    dataset = zoo.to_torch("flag", columns=["seed", "dataset"], batch_size=4, remainder="keep", shuffle=True, seed=2)
    batches = list(DataLoader(dataset, batch_size=None, num_workers=workers))
    stream = zoo.stream("flag", columns=["seed", "dataset"], batch_size=4, remainder="keep", shuffle=True, seed=2)
    for batch, plain in zip(batches, stream, strict=True):
        assert batch.ids == plain.ids and batch.state == plain.state
        assert torch.equal(batch["seed"], torch.from_numpy(plain["seed"])) and batch["dataset"] == plain["dataset"]
    with pytest.raises(ZooError, match=r"expected one with batch_size=None, .* got one that puts 3 batches") as caught:
        next(iter(DataLoader(dataset, batch_size=3, num_workers=workers)))
    assert "Write DataLoader(dataset, batch_size=None), and the size in zoo.to_torch" in str(caught.value)


def test_columns_that_are_not_there(zoo, tmp_path):
    for make in (zoo.stream, zoo.to_torch, zoo.to_datasets):
        with pytest.raises(UnknownNameError, match="Did you mean test_accuracy"):
            make(columns=["test_acuracy"])
    arch = ckptzoo.Architecture("odd", (ckptzoo.Tensor("step", (2,)),))
    with ckptzoo.create(tmp_path / "zoo", arch=arch) as writer:
        writer.add({"step": np.zeros((1, 2), "float32")}, [{"id": "a"}])
    with pytest.raises(ZooError, match="column 'step': expected another name than a tensor's"):
        ckptzoo.open(tmp_path / "zoo").stream(columns=["step"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shards", [1, 4])
def test_datasets_have_features_and_values(zoo, shards):
    found = zoo.to_datasets(columns=COLUMNS, shards=shards)
    value = datasets.Value
    assert found.features == datasets.Features(
        {
            "id": value("string"),
            "conv.weight": datasets.Array3D((3, 2, 2), "float32"),
            "norm.running_var": datasets.Sequence(value("float64"), length=3),
            "norm.num_batches_tracked": value("int64"),
            "half.weight": datasets.Sequence(value("float16"), length=5),
            "brain.weight": datasets.Array2D((2, 3), "float32"),
            "flag": datasets.Sequence(value("bool"), length=1),
            **dict.fromkeys(("test_accuracy",), value("float64")),
            **dict.fromkeys(("seed", "step"), value("int64")),
            **dict.fromkeys(("diverged", "finite"), value("bool")),
            "dataset": value("string"),
            "created": value("string"),
        }
    )
    examples = list(found)
    assert [example["id"] for example in examples] == zoo.ids
    for at, example in enumerate(examples):
        wanted = {name: expected(example["id"])[name] for name in COLUMNS}
        wanted["created"] = wanted["created"] and wanted["created"].isoformat()
        assert {name: example[name] for name in COLUMNS} == wanted
        for name in MIXED.names:
            array = zoo[name][at]
            if name == "brain.weight":
                array = array.astype(np.float32)
            assert np.asarray(example[name]).dtype == array.dtype and np.array_equal(example[name], array)


@pytest.mark.exhaustive
def test_formats_of_datasets_take_the_features(zoo):
    plain = zoo.to_datasets("conv", "norm", "half", columns=["seed", "created"])
    for example, at in zip(plain.with_format("numpy"), range(3), strict=False):
        for name in ("conv.weight", "norm.running_var", "half.weight"):
            # the format has all floats in float32
            assert example[name].dtype == np.float32 and np.array_equal(example[name], zoo[name][at].astype("float32"))
    examples = list(plain.with_format("torch"))
    assert [example["created"] for example in examples][:2] == [None, DAY.isoformat()]
    example = examples[0]
    assert torch.equal(example["conv.weight"], torch.from_numpy(zoo["conv.weight"][0].copy()))
    table = datasets.Dataset.from_list(list(plain), features=plain.features)
    assert table.features == plain.features and table["seed"][:] == zoo.metadata["seed"].to_pylist()


def test_more_axes_than_datasets_has_arrays_for(tmp_path):
    arch = ckptzoo.Architecture("deep", (ckptzoo.Tensor("w", (1, 2, 1, 2, 1, 2)),))
    array = np.arange(16, dtype="float32").reshape(2, 1, 2, 1, 2, 1, 2)
    with ckptzoo.create(tmp_path / "zoo", arch=arch) as writer:
        writer.add({"w": array}, [{"id": "a"}, {"id": "b"}])
    found = ckptzoo.open(tmp_path / "zoo").to_datasets()
    assert found.features["w"] == datasets.Sequence(datasets.Array5D((2, 1, 2, 1, 2), "float32"), length=1)
    assert np.array_equal([example["w"] for example in found], array)
