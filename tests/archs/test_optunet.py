"""OptuNet's declaration against its module."""

import torch

from ckptzoo import archs


def test_optunet_has_392_parameters() -> None:
    declared = archs.architecture("optunet")
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
