"""Reads in another dtype, lazy tensors in arithmetic, sorted zoos, and what is printed of arrays."""

import copy
import operator

import numpy as np
import pytest
import torch

import ckptzoo
from ckptzoo import archs, learning
from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.symmetry import GroupElement, align, canonicalize
from tests.conftest import MIXED, rows_of, weights_of

FLOATS = ("norm.running_var", "half.weight", "brain.weight", "conv.weight")


@pytest.fixture
def zoo(make_zoo):
    path, _ = make_zoo((4, 3))
    return ckptzoo.open(path)


@pytest.mark.parametrize("dtype", ["float64", np.float32, torch.float16, np.dtype("float64"), "bfloat16", float])
def test_every_way_to_read_casts_floats_alone(zoo, dtype):
    plain = next(iter(zoo.stream(batch_size=7)))
    cast = zoo.stream(batch_size=7, dtype=dtype)
    batch = next(iter(cast))
    wanted = zoo["half.weight"].astype(dtype).dtype
    ensemble = zoo.ensemble(dtype=dtype)
    for name in MIXED.names:
        kept = plain[name].dtype if name not in FLOATS else wanted
        assert batch[name].dtype == kept and np.array_equal(batch[name], plain[name].astype(kept))
        assert np.array_equal(np.asarray(ensemble[name].double()), batch[name].astype("f8"))
        assert next(zoo.batches(dtype=dtype))[name].dtype == kept
    for name in FLOATS:
        lazy = zoo[name].astype(dtype)
        assert lazy.nbytes == lazy.size * wanted.itemsize
        for key in (slice(None), 2, [3, 1], slice(None, None, 2), (slice(1, 3), 0)):
            assert np.array_equal(lazy[key], zoo[name][key].astype(wanted)) and lazy[key].dtype == wanted
        assert np.array_equal(np.concatenate(list(lazy.views())), lazy[:])
    tensors = next(iter(zoo.to_torch(dtype=dtype, batch_size=7)))
    assert str(tensors["conv.weight"].dtype) == f"torch.{wanted}"


def test_a_stream_in_another_dtype_continues_from_the_same_state(zoo):
    options = {"batch_size": 2, "shuffle": True, "seed": 3, "remainder": "keep"}
    plain, cast = zoo.stream(**options), zoo.stream(**options, dtype="float64")
    first = next(iter(plain))
    cast.load_state_dict(first.state)
    assert [batch.ids for batch in cast] == [batch.ids for batch in zoo.stream(**options)][1:]


@pytest.mark.parametrize("dtype", ["int8", "flaot32", 3, object, np.int64])
def test_other_dtypes_are_refused(zoo, dtype):
    for read in (lambda: zoo.stream(dtype=dtype), lambda: zoo.ensemble(dtype=dtype), lambda: zoo["flag"].astype("f4")):
        with pytest.raises(ZooError, match="dtype: expected"):
            read()


OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.matmul, operator.pow, operator.lt]
ATTRIBUTES = ("mean", "T", "std", "reshape", "numpy", "sum", "max", "detach", "flatten", "copy", "any_name")


def test_lazy_tensors_say_how_to_read_them(zoo):
    lazy = zoo["conv.weight"]
    for apply in [*OPERATORS, operator.eq, operator.ne, operator.floordiv, operator.mod, operator.ge]:
        for pair in ((lazy, 1), (lazy, np.ones(3)), (lazy, lazy), (lazy, None)):
            with pytest.raises(TypeError, match=r"conv\.weight: operator .*Read it first: zoo\['conv\.weight'\]\[:\]"):
                apply(*pair)
    for apply in OPERATORS[:6]:
        for left in (1, torch.ones(2)):
            with pytest.raises(TypeError, match="Read it first"):
                apply(left, lazy)
    for apply in (operator.neg, abs, float, int):
        with pytest.raises(TypeError, match="Read it first"):
            apply(lazy)
    for name in ATTRIBUTES:
        with pytest.raises(AttributeError, match=rf"zoo\['conv\.weight'\]\[:\]\.{name}\."):
            getattr(lazy, name)
        assert not hasattr(lazy, name)


def test_lazy_tensors_are_still_arrays_to_numpy_and_can_be_copied(zoo):
    lazy = zoo["conv.weight"]
    assert np.array_equal(np.add(lazy, 1), lazy[:] + 1) and np.mean(lazy) == lazy[:].mean()
    assert np.array_equal(np.ones(2, "f4") + lazy, lazy[:] + 1)
    for other in (copy.copy(lazy), copy.deepcopy(lazy)):
        assert np.array_equal(other[:], lazy[:])
    assert len({lazy, zoo["conv.weight"]}) == 2


def test_positions_of_torch_and_without_axes(zoo):
    for key in (2, np.int64(2), np.array(2), torch.tensor(2)):
        assert zoo[key].id == zoo.ids[2]
    for key in ([3, 1], np.array([3, 1]), torch.tensor([3, 1])):
        assert zoo[key].ids == [zoo.ids[3], zoo.ids[1]]
    assert zoo[torch.arange(7) > 4].ids == zoo.ids[5:]


def test_devices_that_are_not_there(zoo):
    for read in (zoo.stream, zoo.ensemble):
        for device in ("gpu", "cuda:99", 3.5, "mps" if not torch.backends.mps.is_available() else "gpu"):
            with pytest.raises(ZooError, match="device: expected one that torch has here, got"):
                read(device=device)


def test_draws_in_the_order_of_their_chains(tmp_path):
    arch = ckptzoo.Architecture("one", (ckptzoo.Tensor("w", (1,)),))
    rng = np.random.default_rng(0)
    chains = [("b", 2), ("a", 1), ("b", 0), (None, None), ("a", 0), ("b", 1), ("a", 10), ("a", 2)]
    with ckptzoo.create(tmp_path / "zoo", arch=arch) as writer:
        for at, (mode, draw) in enumerate(chains):
            row = {"id": f"{at}", "mode": mode, "draw": draw, "method": "hmc", "extra": {"lr": float(rng.integers(3))}}
            writer.add({"w": np.full(1, at, "f4")}, row)
    zoo = ckptzoo.open(tmp_path / "zoo")
    found = zoo.sorted("mode", "draw")
    assert found.ids == ["4", "1", "7", "6", "2", "5", "0", "3"]
    assert found["w"][:, 0].tolist() == [float(name) for name in found.ids]
    by_lr = zoo.sorted("extra.lr")
    rates = zoo.column("extra.lr").to_pylist()
    assert by_lr.ids == [name for _, name in sorted(zip(rates, zoo.ids, strict=True))]
    assert zoo.where("mode == 'b'").sorted("draw").ids == ["2", "5", "0"]
    assert zoo.sorted("-draw").ids == ["6", "0", "7", "1", "5", "2", "4", "3"]
    assert zoo.sorted("-mode", "draw").ids == ["2", "5", "0", "4", "1", "7", "6", "3"]
    for name, near in (("lr", "extra.lr"), ("drwa", "draw")):
        for read in (zoo.sorted, zoo.column, lambda name: zoo.where(f"{name} > 1"), lambda n: zoo.stream(columns=[n])):
            with pytest.raises(UnknownNameError, match=f"Did you mean {near}"):
                read(name)
    with pytest.raises(ZooError, match="columns to sort by: expected at least one"):
        zoo.sorted()


def test_a_column_is_suggested_before_a_key_that_is_spelt_in_part_alike(tmp_path):
    with ckptzoo.create(tmp_path / "zoo", arch=ckptzoo.Architecture("one", (ckptzoo.Tensor("w", (1,)),))) as writer:
        extra = {"test": 1.0, "seeds": 3, "learning_rate": 0.1, "batch": {"size": 8}}
        writer.add({"w": np.zeros(1, "f4")}, {"id": "a", "seed": 1, "extra": extra})
    zoo = ckptzoo.open(tmp_path / "zoo")
    expected = {
        "test_acc": "test_accuracy", "test_acuracy": "test_accuracy", "sed": "seed", "test": "extra.test",
        "seeds": "extra.seeds", "learning_rates": "extra.learning_rate", "batch.sizes": "extra.batch.size",
    }  # fmt: skip
    for name, near in expected.items():
        with pytest.raises(UnknownNameError, match=rf"Did you mean {near}\?"):
            zoo.where([(name, ">", 0.9)])
    with pytest.raises(UnknownNameError, match=r"Make one: ckptzoo splits make .*/zoo main"):
        zoo.split("main", "train")


def test_what_holds_arrays_is_printed_briefly(zoo):
    name = "mlp-30-40-10"
    arch, table = archs.architecture(name), archs.symmetry(name)
    weights = weights_of(arch, 3)
    element = GroupElement.random(table, 3, np.random.default_rng(0))
    shown = [
        next(iter(zoo.stream(columns=["seed", "id"]))),
        next(iter(zoo.stream(device="cpu"))),
        element,
        align(weights, {key: array[0] for key, array in weights.items()}, table),
        canonicalize(weights, table),
    ]
    for value in shown:
        assert len(repr(value)) < 1_200, repr(value)
    assert "conv.weight (7, 3, 2, 2) float32" in repr(shown[0]) and "seed (7,)" in repr(shown[0])


def test_batches_to_learn_from_are_printed_briefly(tmp_path):
    arch, table = archs.architecture("mlp-30-40-10"), archs.symmetry("mlp-30-40-10")
    with ckptzoo.create(tmp_path / "zoo", arch=arch, symmetry=table) as writer:
        writer.add(weights_of(arch, 4), rows_of(4))
    opened = ckptzoo.open(tmp_path / "zoo")
    for form in ("graph", "tokens", "tuples", "flat", None):
        batch = next(iter(learning.stream(opened, target="test_accuracy", form=form)))
        assert len(repr(batch)) < 1_200 and "(4," in repr(batch), repr(batch)
        assert len(repr(batch.x)) < 1_200 or form in ("flat", None)
