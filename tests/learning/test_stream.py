"""Augmented streams: the same function, the same bits for every reader, and what is refused."""

from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import ckptzoo
from ckptzoo import archs, image_sets, learning
from ckptzoo.derive import declare
from ckptzoo.errors import StateError, UnknownNameError, ZooError
from ckptzoo.learning import Augment
from ckptzoo.learning.group_action import Buffers
from ckptzoo.symmetry import GroupElement, apply
from tests.conftest import rows_of
from tests.support.effort import FEW_EXAMPLES, examples

ROOT = Path(__file__).parents[2]
MEMBERS, NARROW = ROOT / "cards/mnist-optunet", ROOT / "cards/cifar100-resnet18-w8"
BOTH = Augment(scales=0.3)


@pytest.fixture(scope="module")
def zoo():
    return ckptzoo.open(MEMBERS)[:96]


def flattened(x):
    return np.concatenate([np.asarray(array).reshape(len(array), -1) for array in x.values()], axis=1)


def by_id(batches, view=None):
    found = {}
    for batch in batches:
        for id, row in zip(batch.ids, flattened(batch.x if view is None else batch.x[view]), strict=True):
            found[id] = row.tobytes()
    return found


def test_every_view_gives_the_stored_predictions(zoo):
    digits, outputs = image_sets.find("digits"), archs.stacked("optunet", (1, 28, 28))
    assert digits is not None and outputs is not None
    images = torch.from_numpy(((digits.images[:16] / 255 - 0.1307) / 0.3081).astype(np.float32))
    stored = dict(zip(zoo.ids, zoo.predictions("digits/test-16").logits[:], strict=True))
    raw = dict(zip(zoo.ids, flattened({name: zoo[name][:] for name in zoo.arch.names}), strict=True))
    for batch in learning.stream(zoo, views=3, augment=BOTH, device="cpu"):
        assert len({view["fc.bias"].data_ptr() for view in batch.x}) == 3  # nothing acts on it
        for view in batch.x:
            found = outputs(view, images).numpy()
            np.testing.assert_allclose(found, np.stack([stored[id] for id in batch.ids]), rtol=2**-10, atol=1e-3)
            for id, row in zip(batch.ids, flattened(view), strict=True):
                assert (row != raw[id]).mean() > 0.5


def test_networks_with_batch_normalisation_stay_the_same_functions():
    zoo = ckptzoo.open(NARROW)[:4]
    module, images = archs.get(zoo.arch.name)().eval(), torch.randn(3, 3, 32, 32, generator=torch.manual_seed(0))
    raw = {name: torch.from_numpy(zoo[name][:].copy()) for name in zoo.arch.names}

    def outputs(weights, at):
        state = {
            name: array[at].double() if array.is_floating_point() else array[at] for name, array in weights.items()
        }
        with torch.inference_mode():
            return torch.func.functional_call(module, state, (images.double(),))

    module.double()
    augment = Augment(scales=2.0, signs=True)
    (batch,) = learning.stream(zoo, augment=augment, shuffle=False, device="cpu", views=2)
    for view in batch.x:
        assert min(view[name].min() for name in view if name.endswith("running_var")) >= 0
        for at in range(4):
            expected = outputs(raw, at)
            assert (outputs(view, at) - expected).abs().max() < 2e-4 * expected.abs().max()


def test_elements_are_those_of_augment(zoo):
    (batch,) = learning.stream(zoo[:5], augment=BOTH, shuffle=False, seed=4)
    weights = {name: zoo[:5][name][:] for name in zoo.arch.names}
    element = BOTH.element(zoo.symmetry, zoo.ids[:5], seed=4, epoch=0)
    expected = apply(element, weights, zoo.symmetry)
    for name, array in expected.items():
        np.testing.assert_allclose(batch.x[name], array, rtol=1e-6)


@settings(max_examples=examples(60, FEW_EXAMPLES), deadline=None)
@given(
    batch=st.integers(1, 40),
    world=st.integers(1, 3),
    shuffle=st.sampled_from([False, True, "global"]),
    scales=st.sampled_from([0.0, 0.3]),
    per=st.sampled_from([None, "position", "orbit"]),
    views=st.integers(1, 3),
    stop=st.integers(0, 3),
)
def test_bits_are_the_same_for_any_batch_size_ranks_views_and_resume(batch, world, shuffle, scales, per, views, stop):
    zoo = ckptzoo.open(MEMBERS)[:96]
    options = {
        "augment": Augment(scales=scales),
        "standardize": None if per is None else learning.statistics(zoo, per=per),
        "seed": 3,
    }
    whole = learning.stream(zoo, batch_size=96, shuffle=False, **options)
    whole.set_epoch(2)
    expected = by_id(whole)
    found = {}
    for rank in range(world):
        sizes = {"batch_size": batch, "rank": rank, "world_size": world, "remainder": "keep"}
        first = learning.stream(zoo, views=views, shuffle=shuffle, **options, **sizes)
        first.set_epoch(2)
        taken = [item for item, _ in zip(first, range(stop), strict=False)]
        then = learning.stream(zoo, views=1, shuffle=shuffle, **options, **sizes)
        if taken:
            then.load_state_dict(taken[-1].state)
        else:
            then.set_epoch(2)
        found |= by_id(taken, None if views == 1 else 0)
        if then.state_dict()["epoch"] == 2:
            found |= by_id(then)
    assert found == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_workers_of_a_loader_see_the_same_bits(zoo, workers):
    options = {"target": "test_accuracy", "augment": BOTH, "views": 2, "batch_size": 10}
    stream, dataset = learning.stream(zoo, **options), learning.to_torch(zoo, **options)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        batches = list(loader)
        expected = list(stream)
        assert [batch.ids for batch in batches] == [batch.ids for batch in expected]
        for view in (0, 1):
            assert by_id(batches, view) == by_id(expected, view)
        assert all((one.y.numpy() == two.y).all() for one, two in zip(batches, expected, strict=True))
    dataset.load_state_dict(batches[2].state)
    assert [batch.ids for batch in loader] == [batch.ids for batch in expected[3:]]


def test_a_loader_with_a_batch_size_says_what_to_write(zoo):
    with pytest.raises(ZooError, match="batch_size=None"):
        next(iter(DataLoader(learning.to_torch(zoo), batch_size=2)))


def test_epochs_views_ids_and_seeds_differ(zoo):
    stream = learning.stream(zoo, views=2, augment=BOTH, shuffle=False)
    epochs = [list(stream) for _ in range(2)]
    other = list(learning.stream(zoo, augment=BOTH, shuffle=False, seed=1))
    rows = [by_id(epoch, view) for epoch in epochs for view in (0, 1)] + [by_id(other)]
    for id in zoo.ids:
        assert len({found[id] for found in rows}) == 5
    again = learning.stream(zoo, views=1, augment=BOTH, shuffle=False)
    assert by_id(again) == rows[0]


def test_devices_and_numpy_hold_the_same(zoo):
    options = {"target": "test_accuracy", "augment": BOTH, "standardize": learning.statistics(zoo, per="orbit")}
    for one, two in zip(learning.stream(zoo, **options), learning.stream(zoo, device="cpu", **options), strict=True):
        assert one.ids == two.ids and (one.y == two.y.numpy()).all() and two.y.dtype == torch.float32
        assert all((array == two.x[name].numpy()).all() for name, array in one.x.items())


def test_standardisation_acts_between_scales_and_permutations(zoo):
    statistics = learning.statistics(zoo, per="position")
    (batch,) = learning.stream(zoo[:6], augment=BOTH, standardize=statistics, shuffle=False)
    element = BOTH.element(zoo.symmetry, zoo.ids[:6], seed=0, epoch=0)
    whole = GroupElement.identity(zoo.symmetry, 6)
    back = element.inverse().perms
    scales = {name: np.take_along_axis(scale, back[name], 1) for name, scale in element.scales.items()}
    weights = {name: zoo[:6][name][:] for name in zoo.arch.names}
    scaled = apply(GroupElement(whole.perms, scales), weights, zoo.symmetry)
    expected = apply(GroupElement(element.perms, whole.scales), statistics.apply(scaled), zoo.symmetry)
    for name, array in expected.items():
        np.testing.assert_allclose(batch.x[name], array, rtol=1e-5, atol=1e-6)


def test_without_options_the_weights_are_as_they_are(zoo):
    (batch,) = learning.stream(zoo[:5], shuffle=False)
    assert batch.y is None and batch.ids == tuple(zoo.ids[:5]) and len(batch) == 5
    assert all((batch.x[name] == zoo[:5][name][:]).all() for name in zoo.arch.names)


class Doubled:
    """A form that can be seen."""

    def encode(self, tensors):
        return [2 * array for array in tensors.values()]

    def decode(self, encoded):
        raise NotImplementedError


def test_forms_are_applied_to_each_view(zoo):
    (batch,) = learning.stream(zoo[:5], form=Doubled(), views=2, shuffle=False, device="cpu")
    assert len(batch.x) == 2
    assert (batch.x[1][0] == 2 * torch.from_numpy(zoo[:5][zoo.arch.tensors[0].name][:].copy())).all()


def test_halves_come_as_float32(make_zoo):
    zoo = ckptzoo.open(make_zoo((4,))[0])
    (batch,) = learning.stream(zoo)
    assert {name: str(array.dtype) for name, array in batch.x.items()} == {
        "conv.weight": "float32",
        "norm.running_var": "float64",
        "norm.num_batches_tracked": "int64",
        "half.weight": "float32",
        "brain.weight": "float32",
        "flag": "bool",
    }


def test_what_cannot_be_augmented_is_refused(zoo, make_zoo):
    with pytest.raises(ZooError, match=r"expected a zoo with a table of symmetries, got none\. Declare one"):
        learning.stream(ckptzoo.open(make_zoo((4,))[0]), augment=BOTH)
    with pytest.raises(
        ZooError, match=r"variant 'canonical', which removed scales and permutations\. Stream variant='raw'"
    ):
        learning.stream(zoo, augment=BOTH, variant="canonical")
    learning.stream(zoo, augment=Augment(permutations=False), variant="canonical")
    with pytest.raises(ZooError, match="views: expected an integer from 1"):
        learning.stream(zoo, views=0)


def test_states_of_other_streams_are_refused(zoo):
    state = learning.stream(zoo, augment=BOTH).state_dict()
    with pytest.raises(StateError, match="plan of the saved state"):
        learning.stream(zoo[:5], augment=BOTH).load_state_dict(state)


def test_targets(make_zoo, tmp_path):
    extra = ['{"optim": {"lr": 0.1}, "a.b": 1}', '{"optim": {"lr": 3}}', '{"optim": 2}', None]
    rows = [row | {"extra": text} for row, text in zip(rows_of(4, test_loss=None), extra, strict=True)]
    rows[2]["test_accuracy"] = None
    arch = ckptzoo.Architecture("one", (ckptzoo.Tensor("w", (2,)),))
    with ckptzoo.create(tmp_path / "targets", arch=arch) as writer:
        writer.add({"w": np.zeros((4, 2), np.float32)}, rows)
    zoo = ckptzoo.open(tmp_path / "targets")
    assert learning.targets(zoo, "seed")[1].tolist() == [0, 1, 2, 3]
    assert learning.targets(zoo, "seed")[1].dtype == np.int64
    with pytest.raises(
        ZooError, match="expected one for all 4 checkpoints, got 1 without one, the first of them 'm00002'"
    ):
        learning.targets(zoo, "test_accuracy")
    kept, values = learning.targets(zoo, ["seed", "test_accuracy"], missing="drop")
    assert kept.ids == ["m00000", "m00001", "m00003"] and values.dtype == np.float32
    assert values.tolist() == np.float32([[0, 0], [1, 0.01], [3, 0.03]]).tolist()
    kept, values = learning.targets(zoo, "extra.optim.lr", missing="drop")
    assert kept.ids == ["m00000", "m00001"] and values.tolist() == np.float32([0.1, 3]).tolist()
    assert learning.targets(zoo, "extra.a.b", missing="drop")[0].ids == ["m00000"]
    kept, values = learning.targets(zoo, {"m00003": 1, "m00001": 0, "other": 7}, missing="drop")
    assert kept.ids == ["m00001", "m00003"] and values.tolist() == [0, 1] and values.dtype == np.int64
    assert learning.targets(zoo, {id: [1.5, 2] for id in zoo.ids})[1].shape == (4, 2)
    assert learning.targets(zoo, np.eye(4)[:, :3])[1].shape == (4, 3)
    with pytest.raises(ZooError, match=r"expected \(4,\) or \(4, m\) numbers, got \(3,\)"):
        learning.targets(zoo, np.zeros(3))
    with pytest.raises(ZooError, match="target 'member': expected numbers or truth values, got string"):
        learning.targets(zoo, "member")
    with pytest.raises(ZooError, match=r"extra\.optim: expected numbers, texts or truth values"):
        learning.targets(zoo, "extra.optim")
    with pytest.raises(ZooError, match="expected one column or more"):
        learning.targets(zoo, [])
    with pytest.raises(UnknownNameError, match="test_acuracy"):
        learning.targets(zoo, "test_acuracy")
    with pytest.raises(UnknownNameError, match="missing"):
        learning.targets(zoo, "seed", missing="no")
    batches = list(learning.stream(zoo, target="test_accuracy", missing="drop", batch_size=2))
    assert sum(map(len, batches)) == 3
    accuracies = dict(zip(zoo.ids, zoo.metadata["test_accuracy"].to_pylist(), strict=True))
    for batch in batches:
        assert batch.y.tolist() == np.float32([accuracies[id] for id in batch.ids]).tolist()


def test_batches_that_are_kept_are_not_written_to_again(zoo):
    stream = learning.stream(zoo, batch_size=8, augment=BOTH, device="cpu")
    kept, copies = [], []
    for batch in stream:
        kept.append(batch.x["conv2.weight"][2:, :1])  # a view alone keeps the batch's memory
        copies.append(kept[-1].clone())
        del batch
    assert all(torch.equal(one, two) for one, two in zip(kept, copies, strict=True))


def test_buffers_are_given_again_once_nobody_holds_them():
    buffers = Buffers()
    first = buffers((3, 4), np.dtype(np.float32))
    place = first.ctypes.data
    assert buffers((3, 4), np.dtype(np.float32)).ctypes.data != place
    view = torch.from_numpy(first[1:].reshape(-1))
    del first
    assert all(array.ctypes.data != place for array in [buffers((3, 4), np.dtype(np.float32))])
    del view
    assert buffers((3, 4), np.dtype(np.float32)).ctypes.data == place


@pytest.mark.parametrize("per", ["orbit", "position"])
def test_shards_and_order_of_rows_do_not_matter(zoo, tmp_path, per):
    weights = {name: zoo[name][:] for name in zoo.arch.names}
    with ckptzoo.create(tmp_path / "parts", arch=zoo.arch) as writer:
        for start, stop in ((0, 1), (1, 40), (40, 96)):
            writer.add(
                {name: array[start:stop] for name, array in weights.items()}, [{"id": id} for id in zoo.ids[start:stop]]
            )
            writer.commit()
    declare(tmp_path / "parts", zoo.symmetry)
    parts = ckptzoo.open(tmp_path / "parts")
    options = {"augment": BOTH, "standardize": learning.statistics(zoo, per=per)}
    expected = by_id(learning.stream(zoo, shuffle=False, **options))
    assert by_id(learning.stream(parts, batch_size=7, shuffle="global", **options)) == expected
    assert by_id(learning.stream(parts[::-1], shuffle=False, **options)) == expected


def test_datasets_are_sent_to_other_processes(zoo):
    dataset = learning.to_torch(zoo, target="seed", augment=BOTH, standardize=learning.statistics(zoo), batch_size=40)
    again = ForkingPickler.loads(ForkingPickler.dumps(dataset))
    assert by_id(again) == by_id(dataset)
