"""The registry: which names there are, and declarations that agree with their modules."""

import itertools
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo import archs
from ckptzoo.errors import UnknownNameError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.schema.groups import Fixed

NAMES = (
    "optunet",
    "optunet-3-5-2-7-4-1",
    "optunet-4-4-3-6-5-2",
    "optunet-3-7-4-9-5-3-8",
    "optunet-1-28-1-1-1-1",
    "mlp-3-2",
    "mlp-784-100-50-10",
    "mlp-tanh-4-3-1",
    "resnet18-7",
    "resnet18-4-10",
    "resnet18-1-2",
    "resnet20-conv-10",
    "resnet20-pad-10",
    "resnet8-pad-1",
    "resnet44-conv-5",
    "resnet56-pad-100",
)
ODD = (
    "",
    "optunett",
    "optunet-2-4-3-10-5",
    "optunet-2-4-3-10-5-2-3-4",
    "optunet-2-4-3-10-5-3",
    "optunet-3-4-3-10-5-2",
    "optunet-2-4-3-10-9-2",
    "optunet-2-4-26-10-1-2",
    "optunet-2-29-1-10-1-2",
    "optunet-32769-4-3-32769-5-1",
    "optunet-2-4-3-10-5-2-0",
    "mlp",
    "mlp-3",
    "mlp-0-2",
    "mlp-3-02",
    "mlp-3--2",
    "mlp-3-2-",
    "mlp-3-2\n",
    "mlp-٣-2",
    "mlp-relu-3-2",
    "mlp-tanh-3",
    "mlp-32769-2",
    "mlp-1000000-2",
    "mlp" + "-2" * 102,
    "resnet18",
    "resnet18-0",
    "resnet18-0-10",
    "resnet18-4-0",
    "resnet18-04-10",
    "resnet18-4097-10",
    "resnet18-4-10-2",
    "resnet18-pad-10",
    "resnet2-pad-10",
    "resnet21-pad-10",
    "resnet1202-pad-10",
    "resnet20-10",
    "resnet20-pool-10",
    "RESNET18-10",
)


def _agrees(name: str) -> None:
    declared, module = archs.architecture(name), archs.get(name)()
    read = Architecture.of(module.state_dict(), name=name, forward=name, input_shape=declared.input_shape)
    assert declared == read
    assert {tensor.name for tensor in declared.tensors if tensor.kind == "parameter"} == {
        item for item, _ in module.named_parameters()
    }
    table = archs.symmetry(name)
    table.check(declared)
    assert not any(isinstance(group.perm, Fixed) for group in table.groups)


@pytest.mark.parametrize("name", NAMES)
def test_the_declaration_is_that_of_the_module(name: str) -> None:
    assert archs.known(name)
    _agrees(name)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=8), st.sampled_from(["mlp-", "mlp-tanh-"]))
def test_every_perceptron_is_declared_as_it_is_made(widths: list[int], family: str) -> None:
    name = family + "-".join(map(str, widths))
    _agrees(name)
    arch, table = archs.architecture(name), archs.symmetry(name)
    assert arch.parameters == sum((a + 1) * b for a, b in itertools.pairwise(widths))
    assert [group.n for group in table.groups] == widths[1:-1]
    assert {group.scale for group in table.groups} <= {"sign" if "tanh" in family else "positive"}


def test_parameters_as_published() -> None:
    sizes = {name: archs.architecture(name).parameters for name in NAMES}
    assert sizes["resnet18-7"] == 11_173_962 - 3 * 513
    assert sizes["resnet20-pad-10"] == 269_722
    assert archs.architecture("resnet18-100").parameters == 11_220_132
    assert archs.architecture("resnet56-pad-10").parameters == 853_018


def test_the_largest_names_are_known_and_declared() -> None:
    deep = "mlp" + "-2" * 101
    assert len(archs.architecture(deep).tensors) == 200
    assert archs.architecture("mlp-32768-1").parameters == 32_769
    assert archs.known("-".join(["mlp", *["32768"] * 101]))
    archs.architecture("-".join(["mlp", *["32768"] * 101]))
    assert len(archs.symmetry("resnet200-pad-1").groups) == 400


@pytest.mark.parametrize("name", ODD)
def test_other_names_are_unknown(name: str) -> None:
    assert not archs.known(name)
    for look_up in (archs.get, archs.architecture, archs.symmetry):
        with pytest.raises(UnknownNameError, match="optunet, mlp-<in>"):
            look_up(name)


def test_no_name_is_not_known_either() -> None:
    assert not archs.known(None)
    assert not archs.known(3)


def test_an_unknown_name_says_which_is_near() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean optunet\?"):
        archs.get("optunett")
    with pytest.raises(UnknownNameError, match="Did you mean resnet18-<classes>"):
        archs.get("resnet18")


def test_a_resnet18_of_width_64_has_one_name() -> None:
    assert not archs.known("resnet18-64-100") and not archs.known("gaussian-resnet18-64-100")
    assert archs.known("resnet18-63-100") and archs.known("resnet18-65-100")
    for look_up in (archs.get, archs.architecture, archs.symmetry):
        with pytest.raises(UnknownNameError, match=r"expected one of resnet18-100, got .*resnet18-64-100'"):
            look_up("resnet18-64-100")


def test_the_published_optunet_has_one_name() -> None:
    assert not archs.known("optunet-2-4-3-10-5-2") and archs.optunet_name(2, 4, 3, 10, 5, 2) == "optunet"
    with pytest.raises(UnknownNameError, match="expected one of optunet, got 'optunet-2-4-3-10-5-2'"):
        archs.architecture("optunet-2-4-3-10-5-2")
    assert archs.architecture(archs.optunet_name(2, 4, 3, 10, 5, 2, 10)).parameters == 392 + 110


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_every_network_of_optunets_family_is_declared_as_it_is_made(data: st.DataObject) -> None:
    def draw(least: int, most: int) -> int:
        return data.draw(st.integers(least, most))

    groups, kernel1 = draw(1, 4), draw(1, 27)
    pool = draw(1, 29 - kernel1)
    numbers = [groups * draw(1, 3), kernel1, pool, groups * draw(1, 3), draw(1, (29 - kernel1) // pool), groups]
    name = archs.optunet_name(*numbers, *([draw(1, 9)] if draw(0, 1) else []))
    _agrees(name)
    assert archs.get(name)()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_a_resnet18_has_the_shapes_of_the_published_one_at_any_width() -> None:
    wide, narrow = archs.architecture("resnet18-10"), archs.architecture("resnet18-4-10")
    assert wide.names == narrow.names
    for tensor in wide.tensors:
        scaled = tuple(size // 16 if size >= 64 else size for size in tensor.shape)
        assert narrow[tensor.name].shape == scaled and narrow[tensor.name].kind == tensor.kind


def test_modules_are_freshly_initialised() -> None:
    make = archs.get("mlp-3-4-2")
    assert not torch.equal(make().fc1.weight, make().fc1.weight)


def test_declarations_need_no_torch() -> None:
    code = (
        "import sys, ckptzoo.archs as archs\n"
        f"for name in {NAMES}: archs.architecture(name), archs.symmetry(name), archs.known(name)\n"
        "assert not {'torch', 'numpy'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
