"""A network that ckptzoo.archs does not know: its table is declared, it is checked with its module."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ckptzoo
from ckptzoo.derive import declare, dedupe, derive, predict
from ckptzoo.errors import SymmetryError, ZooError
from ckptzoo.hub.pull import pull
from ckptzoo.studies.symmetries import symmetries
from ckptzoo.symmetry import canonicalize, count, trace

INPUTS = np.random.default_rng(0).standard_normal((5, 3, 6, 6))


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    with ckptzoo.create(tmp_path / "mine", arch=network().state_dict(), card=ckptzoo.Card("mine", "Mine.")) as writer:
        for number in range(6):
            writer.add(network().state_dict(), {"id": f"net-{number}"})
    declare(tmp_path / "mine", trace(network(), torch.randn(2, 3, 6, 6)).symmetry)
    return tmp_path / "mine"


def test_a_module_checks_every_checkpoint(zoo: Path) -> None:
    module = network()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    (found,) = derive(zoo, module=module, inputs=INPUTS, certify="all").certified
    assert (found.precision, found.checkpoints, found.random) == ("float64", 6, None)
    assert found.real is not None and 0 < found.real < 1e-5
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_another_module_is_caught_before_anything_is_written(zoo: Path) -> None:
    other = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, 2))
    with pytest.raises(ZooError, match="random group elements"):
        derive(zoo, module=other, inputs=INPUTS)
    assert ckptzoo.open(zoo).variants == ("raw",)


def test_checks_that_cannot_be_made_are_refused_where_they_are_asked_for(zoo: Path) -> None:
    for certify in ("all", "sample"):
        with pytest.raises(ZooError, match=r"--module FILE\.py:NAME and --input-shape SHAPE"):
            derive(zoo, certify=certify)
    with pytest.raises(ZooError, match="or a module"):
        derive(zoo, inputs=INPUTS)
    assert derive(zoo).certified == ()


def test_what_trace_found_names_the_network() -> None:
    traced = trace(network(), torch.randn(2, 3, 6, 6))
    weights = {name: value[None] for name, value in network().state_dict().items()}
    assert count(traced) == count(traced.symmetry) and count(traced).softmax == 65
    assert canonicalize(weights, traced).report.gauged.all()
    with pytest.raises(ZooError, match=r"tensor '4.weight': expected shape \(K, 2, 64\), got \(K, 2, 65\)"):
        canonicalize({**weights, "4.weight": torch.zeros(1, 2, 65)}, traced)
    with pytest.raises(ZooError, match=r"tensor '0.weight': expected floats, got int64"):
        canonicalize({**weights, "0.weight": weights["0.weight"].long()}, traced)
    with pytest.raises(ZooError, match=r"got Sequential. Find a module's table with ckptzoo.symmetry.trace"):
        canonicalize(weights, network())  # type: ignore[arg-type]


def test_a_module_is_traced_for_a_table(tmp_path: Path) -> None:
    """Of a zoo without one whose forward function nobody knows, for variants and for copies."""
    traced = trace(network(), torch.randn(2, 3, 6, 6)).symmetry
    arch = ckptzoo.Architecture.of(network().state_dict(), name="mine", input_shape=(3, 6, 6))
    with ckptzoo.create(tmp_path / "mine", arch=arch) as writer:
        for number in range(3):
            writer.add(network().state_dict(), {"id": f"net-{number}"})
    for call in (lambda: derive(tmp_path / "mine"), lambda: dedupe(ckptzoo.open(tmp_path / "mine"))):
        with pytest.raises(
            SymmetryError,
            match=r"Name the network: ckptzoo derive .+ --module FILE\.py:NAME, which traces your network; or decl",
        ):
            call()
    with pytest.raises(
        SymmetryError, match=r"derive .*/mine --module FILE\.py:NAME, which traces your network; or declare"
    ):
        symmetries(ckptzoo.open(tmp_path / "mine"))
    nameless = ckptzoo.Architecture.of(network().state_dict(), name="shapeless")
    with ckptzoo.create(tmp_path / "shapeless", arch=nameless) as writer:
        writer.add(network().state_dict(), {"id": "net"})
    # a network whose inputs are of unknown shape is not traced before that is said
    for call in (lambda: derive(tmp_path / "shapeless"), lambda: symmetries(ckptzoo.open(tmp_path / "shapeless"))):
        with pytest.raises(SymmetryError, match=r"--module FILE\.py:NAME --input-shape SHAPE.*declare\('/.*shapeless'"):
            call()
    with pytest.raises(SymmetryError, match=r"Say the shape of one input: ckptzoo derive .+ --module"):
        derive(tmp_path / "shapeless", module=network())
    (found,) = derive(tmp_path / "shapeless", module=network(), input_shape=(3, 6, 6)).certified
    assert found.random is not None and ckptzoo.open(tmp_path / "shapeless").symmetry == traced
    with pytest.raises(ZooError, match=r"shape of one input: expected \(3, 6, 6\), got \(3, 7, 7\)"):
        derive(tmp_path / "mine", module=network(), input_shape=(3, 7, 7))
    assert dedupe(ckptzoo.open(tmp_path / "mine"), module=network()).groups == ()
    assert ckptzoo.open(tmp_path / "mine").symmetry is None
    (found,) = derive(tmp_path / "mine", module=network()).certified
    assert found.checkpoints == 3 and found.random is not None and found.random < 1e-5
    assert ckptzoo.open(tmp_path / "mine").symmetry == traced


def test_some_layers_alone_have_no_table(zoo: Path, tmp_path: Path) -> None:
    derive(zoo, certify="none")
    pull(zoo, tmp_path / "layers", variants=["canonical"], layers=["0"])
    layers = tmp_path / "layers"
    assert "layers `0`" in (layers / "README.md").read_text()
    calls: list[Callable[[], object]] = [
        lambda: symmetries(ckptzoo.open(layers)),
        lambda: derive(layers),
        lambda: predict(layers, INPUTS, set="mine/test"),
    ]
    for call in calls:
        with pytest.raises(
            ZooError, match=r"expected one.* README\.md says .* alone, pull the zoo .* without --layers; el"
        ):
            call()
