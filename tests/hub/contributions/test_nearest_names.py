"""The table of names that is proposed: an optimal assignment by similar names and equal shapes."""

import itertools
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ckptzoo import archs
from ckptzoo.hub.contributions.matching import (
    NamesError,
    assignment,
    match_names,
    names_table,
    nearest_names,
    proposed_names,
    similarity,
)
from ckptzoo.schema.architecture import Architecture, Tensor


@given(st.tuples(st.integers(1, 5), st.integers(1, 5)).flatmap(lambda s: arrays(float, s, elements=st.floats(-9, 9))))
def test_no_other_assignment_gains_more(gain: np.ndarray) -> None:
    pairs = assignment(gain)
    assert len(pairs) == min(gain.shape) == len({row for row, _ in pairs}) == len({column for _, column in pairs})
    wide = gain if gain.shape[0] <= gain.shape[1] else gain.T
    every = itertools.permutations(range(wide.shape[1]), wide.shape[0])
    best = max(sum(wide[row, column] for row, column in enumerate(chosen)) for chosen in every)
    assert np.isclose(sum(gain[row, column] for row, column in pairs), best, rtol=1e-9, atol=1e-9)


def test_names_of_other_frameworks_are_found() -> None:
    wanted = {tensor.name: tensor.shape for tensor in archs.architecture("mlp-8-8-8-3").tensors}
    found = {
        f"layers.{2 * at}.{kind}": shape for at in range(3) for kind, shape in (("weight", (8, 8)), ("bias", (8,)))
    }
    found |= {"layers.4.weight": (3, 8), "layers.4.bias": (3,)}
    assert nearest_names(found, wanted) == {
        f"layers.{2 * at}.{kind}": f"fc{at + 1}.{kind}" for at in range(3) for kind in ("weight", "bias")
    }


def test_a_resnet_of_torchvision_is_mostly_found() -> None:
    """ResNet-20 with ``downsample`` and ``fc`` in place of ``shortcut`` and ``linear``."""
    arch = archs.architecture("resnet20-conv-10")
    wanted = {tensor.name: tensor.shape for tensor in arch.tensors}
    found = {name.replace("shortcut", "downsample").replace("linear", "fc"): shape for name, shape in wanted.items()}
    assert nearest_names(found, wanted) == dict(zip(found, wanted, strict=True))


def normalized(*numbers: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of pairs of a linear layer and BatchNorm in a sequence, by the number of the linear one."""
    shapes: dict[str, tuple[int, ...]] = {}
    for number in numbers:
        shapes |= {f"{number}.weight": (8, 8), f"{number}.bias": (8,)}
        shapes |= {f"{number + 1}.{kind}": (8,) for kind in ("weight", "bias", "running_mean", "running_var")}
    return shapes


def test_numbers_that_dropout_shifted_are_matched_by_order() -> None:
    """``4.bias`` is of a linear layer in the file and of BatchNorm in the zoo, and has the same shape in both."""
    given, wanted = normalized(0, 4), normalized(0, 3)
    first, second = proposed_names(given, wanted)
    assert first == {old: new for old, new in zip(given, wanted, strict=True) if old != new}
    assert first["4.bias"] == "3.bias" and first["5.bias"] == "4.bias"
    assert "4.bias" not in second and set(second) | set(first) <= set(given)
    arch = Architecture("normalized", tuple(Tensor(name, shape) for name, shape in wanted.items()))
    with pytest.raises(NamesError, match="can be matched in two ways") as error:
        match_names(given, arch, {}, location="file")
    assert error.value.proposals == (first, second)
    assert tomllib.loads(error.value.tables) == {"names": first} and '# "4.weight" = ' in error.value.tables
    pasted = str(error.value).partition("that is.\n")[2]
    assert tomllib.loads(pasted) == {"names": first}
    # what is proposed leads on
    note, by_new = match_names(given, arch, first, location="file")
    assert note == "" and by_new == {new: old for old, new in zip(given, wanted, strict=True)}


def test_one_proposal_where_order_and_names_agree() -> None:
    given, wanted = normalized(0, 3), {f"net_{name}": shape for name, shape in normalized(0, 3).items()}
    assert proposed_names(given, wanted) == [dict(zip(given, wanted, strict=True))]


def test_shapes_must_be_equal() -> None:
    assert nearest_names({"conv1.weight": (3, 3)}, {"conv1.weight": (3, 4)}) == {}
    assert nearest_names({"a": (2,), "b": (2,)}, {"c": (2,)}) in ({"a": "c"}, {"b": "c"})


@given(st.dictionaries(st.text(min_size=1), st.text(min_size=1), min_size=1))
def test_what_is_proposed_can_be_pasted(names: dict[str, str]) -> None:
    assert tomllib.loads(names_table(names)) == {"names": names}


def test_similar_names() -> None:
    assert similarity("conv1.weight", "conv1.weight") == 2
    assert similarity("features.conv1.weight", "conv1.weight") > similarity("features.conv1.weight", "conv2.weight")
    assert similarity("a.bias", "b.bias") > similarity("a.bias", "a.weight")
