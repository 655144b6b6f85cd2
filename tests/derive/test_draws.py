"""Draws from zoos of Gaussians: moments, rows, determinism, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import derive, draws
from ckptzoo.errors import ZooError

BASE = "mlp-3-4-2"
Make = Callable[..., ckptzoo.Zoo]


@pytest.fixture
def gaussians(tmp_path: Path) -> Make:
    """Three Gaussians over the weights of a small network; ``change`` may spoil their weights."""

    def make(change: Callable[[dict[str, np.ndarray]], None] = lambda _: None, base: str = BASE) -> ckptzoo.Zoo:
        arch, rng = archs.architecture(f"gaussian-{base}"), np.random.default_rng(0)
        weights = {t.name: rng.standard_normal((3, *t.shape)).astype(t.dtype) for t in arch.tensors}
        weights |= {name: np.abs(array) for name, array in weights.items() if name.endswith(("_std", "_var"))}
        change(weights)
        methods = ({"method": "bnn", "dataset": "digits"}, {}, {"method": "laplace"})
        path = tmp_path / f"gaussians-{base}"
        with ckptzoo.create(path, arch=arch, symmetry=archs.symmetry(f"gaussian-{base}")) as writer:
            writer.add(weights, [{"id": f"net-{at}", **row} for at, row in enumerate(methods)])
        return ckptzoo.open(path)

    return make


def flat(zoo: ckptzoo.Zoo, ending: str = "") -> np.ndarray:
    """(K, parameters) of a zoo, of its means or of its deviations."""
    names = archs.architecture(BASE).names
    return np.concatenate([np.asarray(zoo[f"{name}{ending}"]).reshape(len(zoo), -1) for name in names], axis=1)


def test_rows_name_method_mode_and_draw(gaussians: Make, tmp_path: Path) -> None:
    source = gaussians()
    zoo = draws(source, 4, seed=1, to=tmp_path / "draws")
    assert ckptzoo.verify(zoo.path) == [] and zoo.arch == archs.architecture(BASE)
    assert zoo.symmetry == archs.symmetry(BASE) and len(zoo.contents.raw.parts) == 1
    rows = zoo.metadata.select(["method", "mode", "draw"]).to_pylist()
    methods = ("bnn", "gaussian", "laplace")
    assert [tuple(row.values()) for row in rows] == [(methods[m], f"net-{m}", d) for m in range(3) for d in range(4)]
    assert zoo.where("method == 'bnn'").metadata["dataset"].unique().to_pylist() == ["digits"]
    assert len(set(zoo.ids)) == 12 and zoo.where("method == 'laplace' and draw < 2").metadata.num_rows == 2
    assert derive(zoo.path).checkpoints == 12, "an ordinary zoo"


def test_means_and_covariances_are_those_of_the_gaussian(gaussians: Make, tmp_path: Path) -> None:
    """Within five standard errors: of a mean sigma / sqrt(n), of a covariance sigma_i sigma_j sqrt((1 + d_ij) / n)."""
    source, n = gaussians(), 4000
    zoo = draws(source, n, seed=2, to=tmp_path / "draws")
    for at, (mean, deviation) in enumerate(zip(flat(source), flat(source, "_std"), strict=True)):
        held = (flat(zoo.where(f"mode == 'net-{at}'")).astype(np.float64) - mean) / deviation
        assert np.abs(held.mean(axis=0)).max() < 5 / np.sqrt(n)
        errors = np.sqrt((1 + np.eye(held.shape[1])) / n)
        assert (np.abs(held.T @ held / n - np.eye(held.shape[1])) < 5 * errors).all()
        assert np.abs((held**3).mean(axis=0)).max() < 5 * np.sqrt(15 / n)


def test_the_bytes_follow_from_the_seed_alone(gaussians: Make, tmp_path: Path) -> None:
    source = gaussians()
    one = draws(source, 7, seed=3, to=tmp_path / "one")
    nbytes = archs.architecture(BASE).nbytes
    for name, size in (("single", 1), ("some", 3 * nbytes)):
        again = draws(source, 7, seed=3, to=tmp_path / name, batch_bytes=size)
        assert again.revision == one.revision, "the same rows and the same shards"
    fewer = draws(source.take([2, 0]), 2, seed=3, to=tmp_path / "fewer")
    chosen = one.take([one.ids.index(name) for name in fewer.ids])
    np.testing.assert_array_equal(flat(fewer), flat(chosen), "neither on n nor on the other Gaussians")
    other = draws(source, 7, seed=4, to=tmp_path / "other")
    assert (flat(other) != flat(one)).all()
    assert len(np.unique(flat(one), axis=0)) == 21


def test_buffers_are_those_of_the_gaussian(gaussians: Make, tmp_path: Path) -> None:
    source = gaussians(base="resnet8-pad-2")
    zoo = draws(source, 2, seed=0, to=tmp_path / "draws")
    for tensor in zoo.arch.tensors:
        drawn = np.asarray(zoo[tensor.name]).reshape(3, 2, *tensor.shape)
        same = (drawn == np.asarray(source[tensor.name])[:, None]).all()
        assert same == (tensor.kind == "buffer"), tensor.name


@pytest.mark.parametrize("value", [-0.1, np.nan, np.inf])
def test_odd_deviations_are_refused_and_nothing_is_written(gaussians: Make, tmp_path: Path, value: float) -> None:
    def spoil(weights: dict[str, np.ndarray]) -> None:
        weights["fc1.bias_std"][1, 2] = value

    source = gaussians(spoil)
    with pytest.raises(ZooError, match=r"fc1\.bias_std of net-1: expected finite standard deviations"):
        draws(source, 2, seed=0, to=tmp_path / "draws")
    assert not (tmp_path / "draws").exists()
    assert len(draws(source.take([0, 2]), 2, seed=0, to=tmp_path / "draws")) == 4


def test_a_deviation_of_0_gives_the_mean(gaussians: Make, tmp_path: Path) -> None:
    def still(weights: dict[str, np.ndarray]) -> None:
        weights |= {name: 0 * array for name, array in weights.items() if name.endswith("_std")}

    source = gaussians(still)
    np.testing.assert_array_equal(flat(draws(source, 1, seed=0, to=tmp_path / "draws")), flat(source))


def test_other_zoos_and_odd_numbers_are_refused(gaussians: Make, tmp_path: Path) -> None:
    source = gaussians()
    plain = draws(source, 1, seed=0, to=tmp_path / "plain")
    with pytest.raises(ZooError, match="expected gaussian-<base>, got 'mlp-3-4-2'"):
        draws(plain, 1, seed=0, to=tmp_path / "draws")
    for n, seed in ((0, 0), (1, -1)):
        with pytest.raises(ZooError, match="n from 1, seed from 0"):
            draws(source, n, seed, to=tmp_path / "draws")
    assert not (tmp_path / "draws").exists()
