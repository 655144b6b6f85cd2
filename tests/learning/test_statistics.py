"""Statistics: those of numpy in float64, the same for permuted copies, and the same again from a file."""

import numpy as np
import pytest
import torch

import ckptzoo
from ckptzoo import archs, learning
from ckptzoo.derive import declare
from ckptzoo.errors import UnknownNameError, ZooError
from ckptzoo.symmetry import GroupElement, apply
from tests.conftest import rows_of, weights_of

ARCH = archs.architecture("mlp-5-7-6-3")
TABLE = archs.symmetry("mlp-5-7-6-3")


def zoo_of(folder, weights, arch=ARCH, **columns):
    count = len(next(iter(weights.values())))
    with ckptzoo.create(folder, arch=arch) as writer:
        writer.add(weights, rows_of(count, **columns))
    return ckptzoo.open(folder)


@pytest.fixture
def weights():
    return {name: 3 + array * np.float32(1.7) for name, array in weights_of(ARCH, 40).items()}


@pytest.fixture
def zoo(tmp_path, weights):
    zoo_of(tmp_path / "zoo", weights)
    declare(tmp_path / "zoo", TABLE)
    return ckptzoo.open(tmp_path / "zoo")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Several batches of other sizes, so that they are joined."""
    monkeypatch.setattr("ckptzoo.loader.zoo.BATCH_BYTES", 3000)
    monkeypatch.setattr(ckptzoo.Zoo.batches, "__kwdefaults__", {"variant": "raw", "max_bytes": 3000})


def close(found, expected):
    assert np.allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_positions_and_tensors_are_those_of_numpy(zoo, weights):
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    position, tensor = (learning.statistics(zoo, per=per) for per in ("position", "tensor"))
    for name, array in wide.items():
        close(position.mean[name], array.mean(axis=0))
        close(position.deviation[name], array.std(axis=0))
        close(tensor.mean[name], array.mean())
        close(tensor.deviation[name], array.std())
        assert tensor.mean[name].shape == () and position.mean[name].shape == array.shape[1:]
    assert position.count == 40 and not position.constant


def test_orbits_share_one(zoo, weights):
    found = learning.statistics(zoo, per="orbit")
    first = weights["fc1.weight"].astype(np.float64)  # rows are exchanged, inputs are not
    close(found.mean["fc1.weight"], np.broadcast_to(first.mean(axis=(0, 1)), (7, 5)))
    close(found.deviation["fc1.weight"], np.broadcast_to(first.std(axis=(0, 1)), (7, 5)))
    second = weights["fc2.weight"].astype(np.float64)
    close(found.deviation["fc2.weight"], np.full((6, 7), second.std()))
    last = weights["fc3.bias"].astype(np.float64)
    close(found.mean["fc3.bias"], last.mean(axis=0))


@pytest.mark.parametrize("per", ["tensor", "orbit", "sane"])
def test_permutations_commute_with_standardisation_bit_for_bit(zoo, weights, per):
    found = learning.statistics(zoo, per=per)
    assert found.commutes
    drawn = GroupElement.random(TABLE, 40, np.random.default_rng(0))
    element = GroupElement(drawn.perms, GroupElement.identity(TABLE, 40).scales)
    one = found.apply(apply(element, weights, TABLE))
    two = apply(element, found.apply(weights), TABLE)
    assert all((one[name] == two[name]).all() for name in weights)


@pytest.mark.parametrize("per", ["tensor", "orbit"])
def test_statistics_of_permuted_copies_are_the_same(tmp_path, zoo, weights, per):
    drawn = GroupElement.random(TABLE, 40, np.random.default_rng(1))
    element = GroupElement(drawn.perms, GroupElement.identity(TABLE, 40).scales)
    zoo_of(tmp_path / "copies", apply(element, weights, TABLE))
    declare(tmp_path / "copies", TABLE)
    one, two = learning.statistics(zoo, per=per), learning.statistics(ckptzoo.open(tmp_path / "copies"), per=per)
    for name in weights:
        close(one.mean[name], two.mean[name])
        close(one.deviation[name], two.deviation[name])
    assert one.digest != two.digest


def test_sane_is_that_of_its_authors(zoo, weights):
    """The loop of DatasetTokens.standardize_data_checkpoints (HSG-AIML/SANE), in float64."""
    found = learning.statistics(zoo, per="sane")
    for layer in ("fc1", "fc2", "fc3"):
        means, deviations = [], []
        for member in range(40):
            weight = torch.from_numpy(weights[f"{layer}.weight"][member]).double()
            bias = torch.from_numpy(weights[f"{layer}.bias"][member]).double()
            both = torch.cat([weight, bias.unsqueeze(dim=1)], dim=1)
            means.append(both.mean())
            deviations.append(both.std())
        mean = torch.stack(means).mean()
        deviation = torch.sqrt(torch.mean(torch.stack(deviations) ** 2))
        for tensor in (f"{layer}.weight", f"{layer}.bias"):
            close(found.mean[tensor], mean)
            close(found.deviation[tensor], deviation)


def test_zero_deviations_count_as_one_and_are_named(tmp_path, weights):
    weights["fc1.bias"][:, 2] = 0.1
    weights["fc3.bias"][:] = np.float32(0.1)
    zoo = zoo_of(tmp_path / "zoo", weights)
    found = learning.statistics(zoo, per="position")
    assert found.constant == {"fc1.bias": 1, "fc3.bias": 3}
    assert "fc1.bias (1), fc3.bias (3)" in str(found)
    assert found.deviation["fc1.bias"][2] == 1
    assert learning.statistics(zoo, per="tensor").constant == {"fc3.bias": 3}
    assert (found.apply(weights)["fc3.bias"] == 0).all()


@pytest.mark.parametrize("per", learning.PER)
def test_inversion_and_files(tmp_path, zoo, weights, per):
    found = learning.statistics(zoo, per=per)
    back = found.invert(found.apply(weights))
    assert all(np.allclose(back[name], weights[name], rtol=1e-5, atol=1e-5) for name in weights)
    found.save(tmp_path / "statistics.safetensors")
    read = learning.Statistics.load(tmp_path / "statistics.safetensors")
    assert (read.per, read.count, read.digest, read.constant) == (per, 40, found.digest, found.constant)
    standard = found.apply(weights)
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    for name, array in read.apply(tensors).items():
        assert array.dtype == torch.float32 and (array.numpy() == standard[name]).all()


def test_other_files_are_refused(tmp_path, zoo):
    (tmp_path / "text").write_text("no")
    for path in (tmp_path / "text", tmp_path / "none", next(zoo.path.glob("parts/*/raw-00.safetensors"))):
        with pytest.raises(ZooError, match="expected statistics of weights"):
            learning.Statistics.load(path)


def test_bad_input(tmp_path, zoo, weights):
    with pytest.raises(UnknownNameError, match="'layer'"):
        learning.statistics(zoo, per="layer")
    with pytest.raises(ZooError, match="expected one checkpoint or more"):
        learning.statistics(zoo[:0])
    found = learning.statistics(zoo[:3], per="position")
    with pytest.raises(ZooError, match=r"tensor 'fc1\.bias'"):
        found.apply({"fc1.bias": np.zeros((2, 8), np.float32)})
    with pytest.raises(ZooError, match="tensor 'other'"):
        found.apply({"other": np.zeros((2, 8), np.float32)})
    weights["fc2.bias"][3, 1] = np.nan
    diverged = zoo_of(tmp_path / "nan", weights)
    with pytest.raises(
        ZooError, match=r"statistics of 'fc2\.bias': expected finite weights.*where\('finite == True'\)"
    ):
        learning.statistics(diverged)
    diverged.where("finite == True")


def test_what_never_changes_has_no_deviation_in_float64_either(tmp_path):
    arch = ckptzoo.Architecture("wide", (ckptzoo.Tensor("w", (3,), "float64"),))
    zoo = zoo_of(tmp_path / "zoo", {"w": np.full((700, 3), 0.1)}, arch)
    for per in ("tensor", "position"):
        found = learning.statistics(zoo, per=per)
        assert found.constant == {"w": 3} and (found.deviation["w"] == 1).all() and (found.mean["w"] == 0.1).all()


def test_a_zoo_without_a_table_has_no_orbits(tmp_path, make_zoo):
    zoo = ckptzoo.open(make_zoo((4, 3))[0])
    with pytest.raises(ZooError, match=r"expected a zoo with a table of symmetries, got none\. Declare one"):
        learning.statistics(zoo, per="orbit")
    found = learning.statistics(zoo, per="tensor")
    assert set(found.mean) == {"conv.weight", "norm.running_var", "half.weight", "brain.weight"}
