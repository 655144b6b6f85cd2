"""The forward functions against their definitions, written once more over the state dict."""

import pytest
import torch
from torch.nn import functional as F

from ckptzoo import archs

State = dict[str, torch.Tensor]


def _randomised(name: str, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = archs.get(name)().double()
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if key.endswith("running_var"):
                value.uniform_(0.5, 2.0)
            elif value.is_floating_point() and value.ndim == 1:
                value.normal_(std=0.5)
    return model.eval()


def _conv_norm(state: State, conv: str, norm: str, x: torch.Tensor, stride: int = 1) -> torch.Tensor:
    weight = state[f"{conv}.weight"]
    x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
    mean, var, gain, shift = (
        state[f"{norm}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / torch.sqrt(var + 1e-5) * gain + shift


def _resnet(state: State, blocks: list[int], x: torch.Tensor, head: str, shortcut: str) -> torch.Tensor:
    x = F.relu(_conv_norm(state, "conv1", "bn1", x))
    for stage, count in enumerate(blocks, 1):
        for number in range(count):
            block = f"layer{stage}.{number}"
            stride = 2 if stage > 1 and number == 0 else 1
            h = F.relu(_conv_norm(state, f"{block}.conv1", f"{block}.bn1", x, stride))
            h = _conv_norm(state, f"{block}.conv2", f"{block}.bn2", h)
            if stride == 2 and shortcut == "pad":
                planes = h.shape[1]
                x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, planes // 4, planes // 4))
            elif stride == 2:
                x = _conv_norm(state, f"{block}.{shortcut}.0", f"{block}.{shortcut}.1", x, 2)
            x = F.relu(h + x)
    return F.linear(x.mean((2, 3)), state[f"{head}.weight"], state[f"{head}.bias"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "blocks", "head", "shortcut", "size"),
    [
        ("resnet18-3", [2, 2, 2, 2], "fc", "downsample", 16),
        ("resnet18-4-3", [2, 2, 2, 2], "fc", "downsample", 16),
        ("resnet20-conv-3", [3, 3, 3], "linear", "shortcut", 16),
        ("resnet20-pad-3", [3, 3, 3], "linear", "pad", 16),
        ("resnet32-pad-2", [5, 5, 5], "linear", "pad", 8),
    ],
)
def test_residual_networks_are_what_they_say(name: str, blocks: list[int], head: str, shortcut: str, size: int) -> None:
    model = _randomised(name)
    images = torch.randn(2, 3, size, size, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model(images), _resnet(model.state_dict(), blocks, images, head, shortcut))


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("name", ["resnet18-11", "resnet8-pad-11", "resnet8-conv-11"])
def test_residual_networks_take_both_sizes_of_images(name: str, size: int) -> None:
    with torch.no_grad():
        assert archs.get(name)().eval()(torch.randn(1, 3, size, size)).shape == (1, 11)


@pytest.mark.parametrize(("name", "act"), [("mlp-5-4-3-2", torch.relu), ("mlp-tanh-5-4-3-2", torch.tanh)])
def test_perceptrons_are_what_they_say(name: str, act) -> None:
    state, inputs = archs.get(name)().state_dict(), torch.randn(7, 5)
    model = archs.get(name)()
    model.load_state_dict(state)
    first, second, third = (lambda x, at=at: x @ state[f"fc{at}.weight"].T + state[f"fc{at}.bias"] for at in (1, 2, 3))
    with torch.no_grad():
        torch.testing.assert_close(model(inputs), third(act(second(act(first(inputs))))))


def test_a_perceptron_without_hidden_units_is_linear() -> None:
    model, inputs = archs.get("mlp-5-2")(), torch.randn(7, 5)
    with torch.no_grad():
        torch.testing.assert_close(model(inputs), model.fc1(inputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optunet", "mlp-5-4-3", "resnet18-2", "resnet8-conv-2", "resnet8-pad-2"])
def test_stacked_weights_go_through_vmap(name: str) -> None:
    members = [_randomised(name, seed) for seed in range(2)]
    shape = archs.architecture(name).input_shape
    shape = (3, 8, 8) if len(shape) == 3 and shape[0] == 3 else shape
    inputs = torch.randn(2, *shape, dtype=torch.float64)
    states = [member.state_dict() for member in members]
    stack = {key: torch.stack([state[key] for state in states]) for key in states[0]}
    with torch.no_grad():
        made = torch.func.vmap(lambda state: torch.func.functional_call(members[0], state, (inputs,)))(stack)
        torch.testing.assert_close(made, torch.stack([member(inputs) for member in members]))


def test_the_names_of_published_checkpoints() -> None:
    names = archs.architecture("resnet20-pad-10").names
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert names[:6] == ("conv1.weight", *(f"bn1.{part}" for part in norm))
    assert names[6:18:6] == ("layer1.0.conv1.weight", "layer1.0.conv2.weight")
    assert names[-2:] == ("linear.weight", "linear.bias")
    assert len(names) == 19 * 6 + 2
    assert "layer2.0.shortcut.1.running_var" in archs.architecture("resnet20-conv-10")
    resnet18 = archs.architecture("resnet18-10")
    assert resnet18["layer2.0.downsample.0.weight"].shape == (128, 64, 1, 1)
    assert resnet18["layer4.1.bn2.num_batches_tracked"].shape == ()
    assert resnet18.names[-2:] == ("fc.weight", "fc.bias")
