"""OptuNet's declaration against its module, and the registry."""

import subprocess
import sys

import pytest
import torch

from ckptzoo import archs
from ckptzoo.errors import UnknownNameError
from ckptzoo.spec.architecture import Architecture


def test_the_declared_tensors_are_those_of_the_module() -> None:
    model = archs.get("optunet")()
    declared = archs.architecture("optunet")
    read = Architecture.of(model.state_dict(), name="optunet", forward="optunet", input_shape=(1, 28, 28))
    assert declared == read
    assert declared.parameters == 392
    assert [tensor.size for tensor in declared.tensors] == [32, 250, 100, 10]


def test_the_forward_is_the_documented_chain_of_layers() -> None:
    torch.manual_seed(0)
    model = archs.get("optunet")()
    chain = torch.nn.Sequential(
        model.conv1,
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(3, 3),
        model.conv2,
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        model.fc,
    )
    images = torch.randn(5, 1, 28, 28)
    torch.testing.assert_close(model(images), chain(images))
    assert model(images).shape == (5, 10)


def test_the_symmetry_table_fits_every_declared_architecture() -> None:
    for name in archs.names():
        table = archs.symmetry(name)
        if table is not None:
            table.check(archs.architecture(name))


@pytest.mark.parametrize("look_up", [archs.get, archs.architecture, archs.symmetry])
def test_an_unknown_name_lists_the_near_ones(look_up) -> None:
    with pytest.raises(UnknownNameError, match="optunet"):
        look_up("optunett")


def test_declarations_need_no_torch() -> None:
    code = (
        "import sys, ckptzoo.archs as archs\n"
        "archs.architecture('optunet'), archs.symmetry('optunet')\n"
        "assert not {'torch', 'numpy'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
