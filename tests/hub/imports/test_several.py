"""Several networks in one state dict come apart as they are said to, and nothing of them is lost."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import ZooError
from ckptzoo.hub.imports.adapters.adapter import Picked
from ckptzoo.hub.imports.adapters.several import (
    copies_of,
    cut,
    layout_in,
    networks_of,
    refuse_stacked,
    refuse_vectors,
    side_by_side,
    unstacked,
)
from ckptzoo.hub.imports.tables import Slice
from ckptzoo.hub.untrusted import StateDict
from tests.support.effort import examples
from tests.support.published_zoos import network

SLICES = (Slice("w", 0, 6, (2, 3)), Slice("b", 6, 8, (2,)))


def state(tensors: dict[str, Any], **facts: Any) -> StateDict:
    return StateDict("a.pt", tensors, {}, facts, ())


def under(**networks: dict[str, Any]) -> dict[str, Any]:
    return {f"{key.replace('__', '.')}.{name}": array for key, own in networks.items() for name, array in own.items()}


@settings(max_examples=examples(60, 15), deadline=None)
@given(
    chosen=st.lists(st.sampled_from(["actor", "critic", "members.0", "members.1", "members.10"]), min_size=1, unique=True),
    rest=st.integers(0, 2),
)  # fmt: skip
def test_every_tensor_is_of_a_network_or_said(chosen: list[str], rest: int) -> None:
    tensors = under(**{key.replace(".", "__"): network(at) for at, key in enumerate(chosen)})
    tensors |= {f"log_std{number}": np.ones(2) for number in range(rest)}
    prefixes = list(dict.fromkeys("members.*" if key.startswith("members") else key for key in chosen))
    found = list(networks_of(state(tensors, epoch=3), prefixes, "a.pt"))
    assert [item.source.partition("#")[2] for item in found] == chosen
    for at, item in enumerate(found):
        assert all(np.array_equal(item.tensors[name], array) for name, array in network(at).items())
        assert len(item.tensors) == 4 and item.facts == {"epoch": 3}
        assert bool(item.left_out) == bool(rest) and all(
            f"log_std{number}" in item.left_out[0] for number in range(rest)
        )
    with pytest.raises(ZooError, match="--networks nothing: expected tensors whose names begin so"):
        list(networks_of(state(tensors), [*prefixes, "nothing"], "a.pt"))


def test_averages_come_apart_and_layers_do_not() -> None:
    both = under(online_model=network(0), ema_model=network(1)) | {"initted": np.array(True), "step": np.array(4)}
    found = copies_of(state(both))
    assert [item.source for item in found] == ["a.pt#online_model", "a.pt#ema_model"]
    assert found[0].facts == {"initted": True, "step": 4} and set(found[1].tensors) == set(network(1))
    for whole in (
        under(actor=network(0), critic=network(1)),
        under(fc_mu={"weight": np.ones((2, 2))}, fc_logvar={"weight": np.ones((2, 2))}),
        under(q=network(0), q_target=network(1)) | {"table": np.ones(5)},
        under(q=network(0), q_target=network(1, width=6)),
    ):
        assert [item.tensors.keys() for item in copies_of(state(whole))] == [whole.keys()]
    assert "--networks 'members.*'" in side_by_side(under(members__0=network(0), members__1=network(1)))
    assert not side_by_side(under(layers__0=network(0), layers__1=network(1)))


def test_samples_and_chains_are_cut_along_their_axes() -> None:
    chains = {
        name: np.stack([np.stack([network(c, s)[name] for s in range(5)]) for c in range(2)]) for name in network(0)
    }
    with pytest.raises(ZooError, match="--stacked"):
        refuse_stacked(chains, "a.pt")
    found = list(unstacked(Picked("", chains, {"seed": 3}), "a.pt"))
    assert [(item.row["mode"], item.row["draw"], item.suffix) for item in found] == [
        (f"chain-{c}", s, f"{c}-{s}") for c in range(2) for s in range(5)
    ]
    assert all(np.array_equal(found[7].tensors[name], array) for name, array in network(1, 2).items())
    samples = list(unstacked(Picked("", {name: array[0] for name, array in chains.items()}), "a.pt"))
    assert [item.row for item in samples] == [{"method": "samples", "draw": s} for s in range(5)]


@pytest.mark.parametrize(("shape", "modes"), [((8,), 1), ((3, 8), 1), ((2, 3, 8), 2)])
@pytest.mark.parametrize("are_samples", [True, False])
def test_vectors_are_networks_or_samples(shape: tuple[int, ...], modes: int, are_samples: bool) -> None:
    array = np.arange(np.prod(shape), dtype=float).reshape(shape)
    found = list(cut(Picked("", {"array": array}), SLICES, "a.pt", are_samples=are_samples))
    rows = array.reshape(-1, 8)
    assert len(found) == len(rows) and len({item.suffix for item in found}) == len(rows)
    for item, row in zip(found, rows, strict=True):
        assert np.array_equal(np.concatenate([item.tensors["w"].ravel(), item.tensors["b"]]), row)
        assert ("draw" in item.row) == are_samples
    if are_samples:
        assert len({(item.row.get("mode"), item.row["draw"]) for item in found}) == len(rows)
        assert len({item.row.get("mode") for item in found}) == modes
    with pytest.raises(ZooError, match="vectors of 8 numbers"):
        list(cut(Picked("", {"array": array[..., :7]}), SLICES, "a.pt", are_samples=are_samples))


@pytest.mark.parametrize("name", ["array", "samples", "posterior_samples", "theta", "chain"])
def test_samples_without_a_layout_are_refused_with_the_option(name: str) -> None:
    with pytest.raises(ZooError, match="--layout"):
        refuse_vectors({name: np.ones((5, 8))}, "a.pt")


def test_names_and_shapes_beside_an_array_are_its_layout() -> None:
    array = np.arange(16.0).reshape(2, 8)
    found = layout_in(state({"samples": array}, names=("w", "b"), shapes=("(2, 3)", "(2,)")))
    assert found == SLICES
    for facts in ({"names": ("w", "b"), "shapes": ("(2, 3)", "(3,)")}, {"names": ("w", "w"), "shapes": ("(2, 3)", "(2,)")},
                  {"names": ("w", "b"), "shapes": ("x", "(2,)")}, {"names": ("w",), "shapes": ("(2, 3)", "(2,)")}, {}):  # fmt: skip
        assert layout_in(state({"samples": array}, **facts)) is None
