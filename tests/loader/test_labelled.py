"""Zoos for xarray and ArviZ, and tensors for libraries with DLPack: the bits of a stream, read when they are needed."""

import random
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch

import ckptzoo
from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.loader.readers import MmapReader
from ckptzoo.measure.convergence import convergence
from tests.conftest import MIXED
from tests.support.derived_parts import ARCH, TABLE, elements_of, raw_of, write_raw, write_variant
from tests.support.effort import examples
from tests.support.serving import Served, running

xr = pytest.importorskip("xarray")


PARTS = (7, 1, 9, 4)


@pytest.fixture(params=["with dask", "without dask"])
def dask(request, monkeypatch):
    from ckptzoo.loader import labelled

    if request.param == "without dask":
        monkeypatch.setattr(labelled, "find_spec", lambda name: None)
    else:
        pytest.importorskip("dask")
        # chunks of some checkpoints
        monkeypatch.setattr(labelled, "CHUNK_BYTES", 1000)
    return request.param == "with dask"


@pytest.fixture
def reads(monkeypatch):
    """The numbers of rows that were read of shards on this machine."""
    counted = []
    gather = MmapReader.gather

    def counting(self, rows, key=(), **options):
        counted.append(len(rows))
        return gather(self, rows, key, **options)

    monkeypatch.setattr(MmapReader, "gather", counting)
    return counted


def same(first, second):
    first, second = np.asarray(first), np.asarray(second)
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


def stacked(zoo, *names, **options):
    batches = list(zoo.batches(*names, **options))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0].tensors}


def some_key(draw, size):
    """An index of one axis: an integer, a slice in any direction, or positions in any order."""
    kind = draw.randrange(4)
    if kind == 0 and size:
        return draw.randrange(-size, size)
    if kind == 1 and size:
        return np.array([draw.randrange(-size, size) for _ in range(draw.randrange(1, 4))])
    ends = [None if draw.random() < 0.4 else draw.randrange(-size - 1, size + 2) for _ in range(2)]
    key = slice(*ends, draw.choice([None, 1, 2, -1, -3]))
    # xarray 2026.9 and dask 2026.8 take other elements for slices downwards that are empty, or begin below the axis
    is_odd = key.step in (-1, -3) and (not len(range(size)[key]) or (key.start or 0) < -size)
    return slice(key.start, key.stop) if is_odd else key


def outer(array, keys):
    """An array indexed axis by axis, as ``isel`` does it."""
    for axis in reversed(range(array.ndim)):
        array = array[(*[slice(None)] * axis, keys[axis])]
    return array


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A zoo in several shards of several parts, of which a variant is in part stored and in part computed."""
    path = tmp_path_factory.mktemp("labelled") / "zoo"
    write_raw(path, PARTS, raw_of(sum(PARTS)), rows_a_shard=3)
    write_variant(path, elements_of(sum(PARTS)), bare=[False, True, False, True])
    return ckptzoo.open(path)


@pytest.mark.parametrize("seed", range(examples(200, 4)))
def test_arrays_of_random_selections_are_those_of_a_stream(whole, dask, seed):
    draw = random.Random(seed)
    places = [draw.randrange(len(whole)) for _ in range(draw.randrange(1, 30))]
    zoo = draw.choice([whole, whole.take(places), whole[::-2]])
    names = draw.sample([*ARCH.names, "norm", "tied.weight"], draw.randrange(0, 4))
    variant = draw.choice(whole.variants)
    dtype = draw.choice([None, None, "float64", "float16"])
    found = zoo.to_xarray(*names, variant=variant, dtype=dtype)
    expected = stacked(zoo, *names, variant=variant, dtype=dtype)
    assert [*found.data_vars] == [*expected] and found.checkpoint.values.tolist() == zoo.ids
    for name, array in expected.items():
        lazy = found[name]
        assert (lazy.chunks is not None) == dask
        assert lazy.dtype == array.dtype and same(lazy.values, array)
        keys = [some_key(draw, size) for size in array.shape]
        part = lazy.isel(dict(zip(lazy.dims, keys, strict=True)))
        assert same(part.values, outer(array, keys)), (name, keys)
        again = [some_key(draw, size) for size in part.shape]
        assert same(part.isel(dict(zip(part.dims, again, strict=True))).values, outer(outer(array, keys), again))
    if dask:
        assert found.chunks  # the same for all variables
    assert same(ForkingPickler.loads(ForkingPickler.dumps(found))[name].values, array)


def test_axes_are_named_by_what_they_are():
    from ckptzoo.loader.labelled import axis_names

    names = axis_names(ARCH, TABLE)
    assert names["conv.weight"] == ("conv.out", "conv.in", "conv.length")
    assert names["fc.weight"] == ("fc.out", "fc.in") and names["fc.order"] == ("fc.out",)
    assert names["norm.running_var"] == ("norm.out",) and names["norm.num_batches_tracked"] == ()
    assert names["free.scale"] == ("free.scale.0", "free.scale.1") and names["free.weight"] == ("free.out",)
    tensors = {
        "conv.kernel": ((3, 5, 2, 4), ("conv.height", "conv.width", "conv.in", "conv.out")),
        "lstm.weight_ih_l0": ((8, 3), ("lstm.out", "lstm.weight_ih_l0.in")),
        "lstm.weight_hh_l0": ((8, 2), ("lstm.out", "lstm.weight_hh_l0.in")),
        "lstm.bias_ih_l0": ((8,), ("lstm.out",)),
        "token": ((1, 1, 6), ("token.0", "token.1", "token.2")),
        "weight": ((2, 6), ("weight.out", "weight.in")),
        # a tensor may be called as an axis would be
        "fc.weight": ((2, 6), ("fc.out_", "fc.in")),
        "fc.out": ((2, 2), ("fc.out.0", "fc.out.1")),
    }
    arch = ckptzoo.Architecture("odd", tuple(ckptzoo.Tensor(name, shape) for name, (shape, _) in tensors.items()))
    assert axis_names(arch, None) == {name: axes for name, (_, axes) in tensors.items()}


def test_a_table_says_which_axis_is_read():
    from ckptzoo.loader.labelled import axis_names
    from ckptzoo.schema.groups import AxisAction, Group, Segment, Sym
    from ckptzoo.schema.symmetry import Symmetry

    arch = ckptzoo.Architecture("gpt", (ckptzoo.Tensor("up.weight", (2, 3)), ckptzoo.Tensor("down.weight", (3, 2))))
    segments = (Segment("h", 0, 1, 3),)
    actions = [
        AxisAction("up.weight", 1, segments, 1, True, "out"),
        AxisAction("down.weight", 0, segments, -1, True, "in"),
    ]
    table = Symmetry((Group("h", 3, Sym(), "none"),), tuple(actions))
    assert axis_names(arch, table) == {"up.weight": ("up.in", "up.out"), "down.weight": ("down.in", "down.out")}


def test_coordinates_come_from_the_metadata(make_zoo):
    zoo = ckptzoo.open(make_zoo((4, 3))[0])
    found = zoo.to_xarray("conv")
    assert {*found.coords} == {"checkpoint", "member", "seed", "step", "test_accuracy", "finite"}
    assert found.test_accuracy.values.tolist() == zoo.column("test_accuracy").to_pylist()
    assert found["conv.weight"].where(found.test_accuracy > 0.02, drop=True).sizes["checkpoint"] == 4
    assert same(found["conv.weight"].sel(checkpoint=zoo.ids[5]).values, zoo["conv.weight"][5])
    asked = zoo.to_xarray("conv", columns=["created", "unit", "train_loss"])
    assert {*asked.coords} == {"checkpoint", "created", "unit", "train_loss"}
    assert asked.created.dtype.kind == "M" and np.isnan(asked.train_loss.values).all()
    assert asked.unit.values.tolist() == zoo.column("unit").to_pylist()
    assert {*zoo.to_xarray(columns=()).coords} == {"checkpoint"}
    assert found.attrs["revision"] == zoo.revision and found.attrs["variant"] == "raw"
    empty = zoo.take([]).to_xarray("conv")
    assert empty["conv.weight"].shape == (0, *MIXED["conv.weight"].shape)


def test_what_was_read_can_be_written_to_and_the_zoo_stays(make_zoo, dask):
    zoo = ckptzoo.open(make_zoo((4, 3))[0])
    before = zoo["conv.weight"][:].copy()
    found = zoo.to_xarray("conv").load()["conv.weight"]
    found[0] = 7
    assert (found.values[0] == 7).all() and same(zoo["conv.weight"][:], before)
    values = zoo.to_xarray("conv")["conv.weight"].values
    if values.flags.writeable:
        values[:] = 3
    assert same(zoo["conv.weight"][:], before)


def test_nothing_is_read_before_it_is_asked_for(make_zoo, dask, reads):
    zoo = ckptzoo.open(make_zoo((40, 40))[0])
    found = zoo.to_xarray()
    later = found["conv.weight"].isel(checkpoint=[3, 70]) * 2
    if dask:
        later = later.mean("checkpoint")
        repr(found), found.nbytes
        assert reads == []
        later.compute()
        assert sum(reads) < 50  # some chunks
        return
    assert sum(reads) == 2
    repr(found), found.nbytes, found["conv.weight"].isel(checkpoint=slice(5, 50))
    assert sum(reads) == 2


def test_a_layer_of_a_zoo_elsewhere_is_fetched_once(make_zoo, isolated_clients):
    path, weights = make_zoo((60, 60))
    ckptzoo.compact(path)
    files = {f"/zoo/{file.relative_to(path)}": file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with running(Served(files)) as served:
        zoo = ckptzoo.open(f"{served.url}/zoo")
        before = served.sent
        found = zoo.to_xarray("conv.weight", columns=())
        repr(found)
        shards = [item for item in served.seen if item.path.endswith("safetensors")]
        assert not shards
        mean = found["conv.weight"].astype("float64").mean("checkpoint").values
        assert np.allclose(mean, weights["conv.weight"].astype("f8").mean(0))
        shards = [item for item in served.seen if item.path.endswith("safetensors")]
        assert len(shards) == 2 and served.sent - before < 3 * weights["conv.weight"].nbytes


DRAWS = [("b", 2, 20), ("a", 1, 90), ("b", 0, 30), ("a", 0, 40), ("b", 1, 5), ("a", 2, 7)]


def chains_zoo(path, draws=DRAWS, method="hmc", **columns):
    arch = ckptzoo.Architecture("one", (ckptzoo.Tensor("w", (2,)),))
    with ckptzoo.create(path, arch=arch) as writer:
        for at, (mode, draw, step) in enumerate(draws):
            row = {"id": f"{at}", "mode": mode, "draw": draw, "step": step, "method": method, "test_loss": at / 4}
            writer.add({"w": np.full(2, at, "f4")}, {**row, **columns})
    return ckptzoo.open(path)


def test_chains_have_their_draws_in_the_order_in_which_they_were_made(tmp_path):
    tree = chains_zoo(tmp_path / "steps").to_arviz()
    assert tree.posterior.w[..., 0].values.tolist() == [[4, 0, 2], [5, 3, 1]]
    assert tree.posterior.w.dims == ("chain", "draw", "w.out") and tree.posterior.w.dtype == "float64"
    assert tree.posterior.chain.values.tolist() == ["b", "a"] and tree.posterior.draw.values.tolist() == [0, 1, 2]
    assert tree.posterior.checkpoint.values.tolist() == [["4", "0", "2"], ["5", "3", "1"]]
    assert tree.posterior.step.values.tolist() == [[5, 20, 30], [7, 40, 90]]
    assert tree.sample_stats.test_loss.values.tolist() == [[1.0, 0.0, 0.5], [1.25, 0.75, 0.25]]
    # draws of a Gaussian have the step of the member that they are taken around
    numbered = chains_zoo(tmp_path / "draws", [(mode, draw, 10) for mode, draw, _ in DRAWS]).to_arviz(columns="draw")
    assert numbered.posterior.checkpoint.values.tolist() == [["2", "4", "0"], ["3", "1", "5"]]
    assert [*numbered.children] == ["posterior"]


@pytest.mark.parametrize(
    ("draws", "method", "message"),
    [
        ([], "hmc", r"chains: expected draws of one method, got no checkpoints\."),
        ([(None, None, 1)], None, r"got independent runs\. Select some: zoo\.where\(\[\('method', '==', 'hmc'\)\]\)"),
        (DRAWS[:5], "hmc", r"as many draws in each, got 2 in 'a' and 3 in 'b'\. .*\('draw', '<=', 1\)"),
        ([("a", 1, 5), ("a", 1, 5)], "hmc", r"a step or a number .* of its own for each draw of a chain, got none, or"),
        ([("a", None, None), ("a", 1, 5)], "hmc", r"a step or a number .* Select those of one recipe: .*'r'"),
    ],
)
def test_draws_that_are_no_chains_are_named(tmp_path, draws, method, message):
    zoo = chains_zoo(tmp_path / "zoo", draws, method, recipe_digest="r")
    with pytest.raises(ZooError, match=message):
        zoo.to_arviz()


def test_r_hat_and_ess_of_arviz_are_ours_on_chains_that_come_with_a_clone():
    stats = pytest.importorskip("arviz_stats")
    zoo = ckptzoo.open("cards/mnist-optunet-posteriors").where("method == 'sghmc' and draw < 10")
    tree = zoo.to_arviz("fc.bias", variant="canonical")
    rhat, ess = stats.rhat(tree), stats.ess(tree)
    steps = np.array(zoo.column("step").to_pylist())
    modes = np.array(zoo.column("mode").to_pylist())
    order = [np.flatnonzero(modes == mode)[np.argsort(steps[modes == mode])] for mode in dict.fromkeys(modes.tolist())]
    ours = convergence(zoo["fc.bias", "canonical"][:].astype("f8")[np.stack(order)])
    assert np.array_equal(rhat["fc.bias"].values, ours.rhat) and np.array_equal(ess["fc.bias"].values, ours.ess)


@pytest.mark.parametrize("name", ["checkpoint", "chain", "draw", "step", "seed"])
def test_names_that_mean_something_else_there_are_refused(tmp_path, name):
    arch = ckptzoo.Architecture("odd", (ckptzoo.Tensor(name, (2,)), ckptzoo.Tensor("w", (1,))))
    with ckptzoo.create(tmp_path / "zoo", arch=arch) as writer:
        writer.add(
            {name: np.zeros((4, 2), "f4"), "w": np.zeros((4, 1), "f4")}, [{"id": str(at), "seed": 3} for at in range(4)]
        )
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert [*zoo.to_xarray("w").data_vars] == ["w"]
    if name == "seed":
        assert zoo.to_xarray()["seed"].dims == ("checkpoint", "seed.out")
        with pytest.raises(ZooError, match="column 'seed': expected another name than a tensor's"):
            zoo.to_xarray("seed", columns=["seed"])
    else:
        with pytest.raises(ZooError, match=f"tensor '{name}': expected another name .* Read it with zoo"):
            zoo.to_xarray()


def test_names_that_are_not_there(make_zoo):
    zoo = ckptzoo.open(make_zoo((4, 3))[0])
    for asked in ({"columns": ["sed"]}, {"variant": "canonicl"}):
        with pytest.raises(UnknownNameError):
            zoo.to_xarray("conv", **asked)
    with pytest.raises(UnknownNameError, match=r"Did you mean conv\.weight"):
        zoo.to_xarray("conv.wieght")


class OldArray(np.ndarray):
    """An array as of numpy before 2.1, whose export takes a stream alone."""

    def __dlpack__(self, *, stream=None):
        return self.view(np.ndarray).__dlpack__(stream=stream)


@pytest.mark.parametrize("name", MIXED.names)
def test_dlpack_of_older_libraries_takes_no_keywords(make_zoo, name, monkeypatch):
    lazy = ckptzoo.open(make_zoo((4, 3))[0])[name]
    gather = type(lazy._reader).gather
    monkeypatch.setattr(type(lazy._reader), "gather", lambda *a, **named: gather(*a, **named).view(OldArray))
    export = torch.Tensor.__dlpack__
    monkeypatch.setattr(torch.Tensor, "__dlpack__", lambda self, stream=-1: export(self, stream=stream))
    for asked in ({}, {"max_version": (1, 0)}, {"max_version": (1, 0), "dl_device": (1, 0), "copy": True}):
        assert "dltensor" in repr(lazy.__dlpack__(**asked))
    with pytest.raises(BufferError, match=r"device: expected \(1, 0\), the CPU, got \(2, 0\)"):
        lazy.__dlpack__(dl_device=(2, 0))


@pytest.mark.parametrize("name", MIXED.names)
def test_dlpack_reads_and_what_is_written_never_reaches_the_zoo(make_zoo, name):
    zoo = ckptzoo.open(make_zoo((4, 3))[0])
    for rows in (slice(0, 4), slice(None), [3, 1, 5]):
        lazy = zoo[rows][name]
        before = lazy[:].copy()
        tensor = torch.from_dlpack(lazy)
        kept = tensor.clone()
        assert tuple(tensor.shape) == lazy.shape
        bits = kept.contiguous().view(torch.uint8).numpy() if kept.ndim and kept.numel() else kept.numpy()
        assert bits.tobytes() == before.tobytes()
        tensor.zero_()
        assert same(lazy[:], before)
        assert same(ckptzoo.open(zoo.path)[rows][name][:], before)
        if lazy.dtype.name != "bfloat16":
            assert same(np.from_dlpack(lazy), before)
            assert same(np.from_dlpack(lazy, copy=True), before)
    assert np.from_dlpack(zoo[:4]["norm.running_var"], copy=False).shape == (4, 3)
    with pytest.raises(BufferError, match=r"norm\.running_var: a view: expected rows of one shard"):
        np.from_dlpack(zoo["norm.running_var"], copy=False)
    assert not hasattr(zoo[name], "__array_namespace__") and "read when used" in repr(zoo[name])
