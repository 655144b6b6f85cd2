"""Which state dicts are found in what a file holds, what is kept beside them and what is left."""

from typing import Any

import numpy as np
import pytest

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.state_dicts import StateCandidate, find_state_dicts

W, B = np.ones((2, 3)), np.ones(2)
STATE = {"fc.weight": W, "fc.bias": B}
LAYERS = {"fc1": {"weight": W, "bias": B}, "fc2": {"weight": W, "bias": B}}
TREE = {"Block_0": {"Conv_0": {"kernel": W}, "Norm_0": {"scale": B, "bias": B}}, "Dense_0": {"kernel": W}}


def states(root: Any, limits: Limits | None = None) -> list[StateCandidate]:
    return find_state_dicts(root, location="f.pt", limits=limits or Limits())


def keys(root: Any) -> dict[str, list[str]]:
    return {state.key: list(state.tensors) for state in states(root)}


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        (STATE, {"": ["fc.weight", "fc.bias"]}),
        ({"state_dict": STATE}, {"": ["fc.weight", "fc.bias"]}),
        ({"whatever": STATE, "epoch": 3}, {"": ["fc.weight", "fc.bias"]}),
        ({"model": STATE, "ema": STATE}, {"model": list(STATE), "ema": list(STATE)}),
        ({"encoder": STATE, "decoder": STATE}, {"encoder": list(STATE), "decoder": list(STATE)}),
        ([STATE, STATE], {"0": list(STATE), "1": list(STATE)}),
        ({"models": [STATE, STATE]}, {"models.0": list(STATE), "models.1": list(STATE)}),
        ({"a": {"model": STATE, "lr": 1}, "b": {"model": STATE}}, {"a.model": list(STATE), "b.model": list(STATE)}),
        (LAYERS, {"": ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]}),
        ({"model": LAYERS}, {"": ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]}),
        ({"model": {"weight": W, "bias": B}, "ema": {"weight": W, "bias": B}}, {"model": ["weight", "bias"], "ema": ["weight", "bias"]}),
        (TREE, {"": ["Block_0.Conv_0.kernel", "Block_0.Norm_0.scale", "Block_0.Norm_0.bias", "Dense_0.kernel"]}),
        ([W, B], {"": ["0", "1"]}),
        ({0: W, 1: B}, {"": ["0", "1"]}),
    ],
)  # fmt: skip
def test_state_dicts_are_found_where_they_stand(root: Any, expected: dict[str, list[str]]) -> None:
    assert keys(root) == expected


def test_what_stands_beside_is_a_fact_or_left_and_named() -> None:
    optimizer = {"state": {0: {"step": W}, 1: {"step": W}}, "param_groups": [{"lr": 0.1}]}
    beside: dict[str, Any] = {
        "epoch": 3, "acc": 0.5, "name": "lenet", "done": False, "best": np.array(0.25), "optimizer": optimizer,
        "sgd": optimizer, "lr_scheduler": {"step": 1}, "rng_state": W, "args": {"a": 1}, "nothing": None, "raw": b"abc",
        "long": "x" * 2000, "bell": "\a", "history": [1, 2], "empty": {}, "huge": 2**70,
    }  # fmt: skip
    (state,) = states({**beside, "state_dict": STATE})
    assert state.facts == {"epoch": 3, "acc": 0.5, "name": "lenet", "done": False, "best": 0.25, "args.a": 1}
    assert dict(one.split(": ", 1) for one in state.left_out) == {
        "optimizer": "2 entries", "sgd": "2 entries", "lr_scheduler": "1 entry", "rng_state": "an array of shape (2, 3)",
        "nothing": "None", "raw": "3 bytes", "long": "a text of 2000 characters",
        "bell": "a text of 1 characters", "history": "2 items", "empty": "0 entries", "huge": "a int",
    }  # fmt: skip
    (state,) = states({**STATE, "epoch": 3, "optimizer": optimizer})
    assert (
        list(state.tensors) == list(STATE)
        and state.facts == {"epoch": 3}
        and state.left_out == ("optimizer: 2 entries",)
    )


def test_settings_are_facts_by_dotted_names() -> None:
    settings = {"optim": {"lr": 0.1, "betas": (0.9, 0.99)}, "activations": ["relu", "tanh"], "net": object()}
    (state,) = states({"model": STATE, "config": settings})
    assert state.facts == {
        "config.optim.lr": 0.1,
        "config.optim.betas": (0.9, 0.99),
        "config.activations": ("relu", "tanh"),
    }
    assert state.left_out == ("config.net: a object",)
    nest: Any = {"x": 1}
    for _ in range(40):
        nest = dict.fromkeys("abcdefgh", nest)
    (state,) = states({"model": STATE, "config": nest})
    assert len(state.facts) <= 256 and len(state.left_out) <= 65


def test_cycles_and_shared_nests_end() -> None:
    around: dict[str, Any] = {"model": STATE}
    around["again"] = around
    (state,) = states(around)
    assert list(state.tensors) == list(STATE) and state.left_out == ("again: leads back",)
    both: dict[str, Any] = {"x": dict(STATE)}
    both["x"]["back"] = both
    (state,) = states(both)
    assert list(state.tensors) == list(STATE) and state.left_out == ("x.back: leads back",)
    nest: Any = {"x": W}
    for _ in range(40):
        nest = dict.fromkeys("abcdefgh", nest)
    with pytest.raises(IntegrityError, match="expected a state dict"):
        states(nest)
    near: Any = {"x": W}
    for _ in range(5):
        near = dict.fromkeys("abcdefgh", near)
    with pytest.raises(IntegrityError, match="expected at most 100 containers"):
        states(near, Limits(states=100))
    with pytest.raises(IntegrityError, match="expected at most 1 names"):
        states(STATE, Limits(tensors=1))


@pytest.mark.parametrize(
    ("root", "got"),
    [
        ({}, "0 entries"), ([], "0 items"), (3, "a int"), (None, "None"), (W, "an array of shape (2, 3)"), ("x", "a text"),
        ({"optimizer": {"state": {}, "param_groups": []}}, "optimizer: "), ({"epoch": 3}, "1 entry"),
    ],
)  # fmt: skip
def test_where_there_is_none_it_is_said_what_there_is(root: Any, got: str) -> None:
    with pytest.raises(IntegrityError, match="expected a state dict: names and tensors, got") as caught:
        states(root)
    assert got in str(caught.value)


@pytest.mark.parametrize(
    ("root", "got"), [({1: W, "1": W}, "two keys"), ({(1, 2): W}, "a tuple"), ({"": W}, "empty"), ({"a\n": W}, "'a")]
)
def test_names_that_cannot_be_used_are_refused(root: Any, got: str) -> None:
    with pytest.raises(IntegrityError, match=got):
        states(root)
