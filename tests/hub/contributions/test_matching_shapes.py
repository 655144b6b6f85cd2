"""``fit``: names, shapes and dtypes of untrusted state dicts are brought to those of a zoo, or reported."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptzoo import archs
from ckptzoo.errors import SpecError
from ckptzoo.hub.contributions.matching import NamesError, fit, names_table
from ckptzoo.schema.architecture import Architecture, Tensor
from tests.support.hub_zoos import ARCH, weights_of
from tests.support.untrusted_files import state_of

RESNET = archs.architecture("resnet8-pad-10")
State = dict[str, np.ndarray]


def resnet() -> State:
    rng = np.random.default_rng(0)
    return {tensor.name: rng.standard_normal(tensor.shape).astype(tensor.dtype) for tensor in RESNET.tensors}


def fitted(state: State, arch: Architecture = ARCH, *, cast: bool = False, **names: str):
    return fit(state, arch, names, cast=cast, location="file")


def same(found: State, state: State) -> bool:
    return list(found) == list(state) and all(found[key][0].tobytes() == state[key].tobytes() for key in state)


@given(st.lists(st.sampled_from(["module.", "_orig_mod.", "model.", "net.", "a."]), max_size=3))
def test_prefixes_that_all_names_share_are_left_out(prefixes: list[str]) -> None:
    state = state_of(0)
    found = fitted({"".join(prefixes) + name: array for name, array in state.items()})
    assert same(found.weights, state) and len(found.notes) == bool(prefixes)


def test_wrappers_in_the_middle_and_words_in_front() -> None:
    state = resnet()
    inner = {name.replace("layer1.", "layer1.module."): array for name, array in state.items()}
    assert same(fitted(inner, RESNET).weights, state)
    arch = Architecture("wrapped", tuple(Tensor(f"net.{item.name}", item.shape) for item in ARCH.tensors))
    found = fitted(state_of(0), arch)
    assert found.notes == ("net. put in front of names",) and list(found.weights) == list(arch.names)


def test_a_table_comes_first() -> None:
    state = state_of(0)
    odd = {name.replace("fc", "head").replace("conv1", "stem.0"): array for name, array in state.items()}
    found = fit(odd, ARCH, {"head.*": "fc.*", "stem.0.weight": "conv1.weight"}, cast=False, location="file")
    assert same(found.weights, state)
    with pytest.raises(NamesError, match=r"names: 'heed\.\*': expected a tensor of the file"):
        fit(odd, ARCH, {"heed.*": "fc.*", "stem.0.*": "conv1.*"}, cast=False, location="file")
    # of several files the table may be about others: names that are right are left alone
    for weights in (odd, state, {name.replace("fc", "heed"): array for name, array in state.items()}):
        table = {"heed.*": "fc.*", "head.*": "fc.*", "stem.0.*": "conv1.*"}
        assert same(fit(weights, ARCH, table, cast=False, location="file").weights, state)
    with pytest.raises(NamesError, match=r"several for fc\.bias"):
        fit(state, ARCH, {"fc.weight": "fc.bias"}, cast=False, location="file")


def test_the_nearest_names_are_proposed() -> None:
    odd = {name.replace("fc", "head").replace("conv1", "stem"): array for name, array in state_of(0).items()}
    with pytest.raises(NamesError, match="instead of") as raised:
        fitted(odd)
    names = {"stem.weight": "conv1.weight", "head.weight": "fc.weight", "head.bias": "fc.bias"}
    assert raised.value.proposals == (names,)
    assert names_table(names) in str(raised.value)


def test_what_is_missing_or_too_much_is_named() -> None:
    state = state_of(0)
    with pytest.raises(NamesError, match=r"got none for fc\.bias\. Bring a file that holds every tensor") as raised:
        fitted({name: array for name, array in state.items() if name != "fc.bias"})
    assert raised.value.proposals == ()
    with pytest.raises(NamesError, match=r"got also head\.bias\. Leave them out of the file") as raised:
        fitted({**state, "head.bias": np.zeros(3, np.float32)})
    assert raised.value.proposals == ()
    with pytest.raises(NamesError, match=r"head\.bias instead of fc\.bias\. Add a table \[names\], if"):
        fitted({name.replace("fc.bias", "head.bias"): array[..., None] if name == "fc.bias" else array
                for name, array in state.items()})  # fmt: skip
    odd = {name.replace("fc.", "head."): array for name, array in state.items() if name != "fc.bias"}
    with pytest.raises(NamesError, match="not the same tensors: bring it to a zoo of its own") as raised:
        fitted(odd)
    assert raised.value.proposals == ()
    with pytest.raises(NamesError):
        fitted({})


def test_a_deeper_network_gets_no_table_and_its_own_layers_are_named() -> None:
    """Names in a wrapper fit one by one, but no table makes the network one of the zoo's architecture."""
    state = resnet()
    deeper = {f"module.{name}": array for name, array in state.items()}
    deeper |= {f"module.layer9.{name}": array for name, array in state.items() if name.startswith("conv1")}
    with pytest.raises(NamesError, match=r"got also layer9\.conv1\.weight\. Leave them out of the file, or") as raised:
        fitted(deeper, RESNET)
    assert raised.value.proposals == ()


def test_counters_may_lack_or_be_too_many() -> None:
    state = resnet()
    counters = [name for name in state if name.endswith("num_batches_tracked")]
    found = fitted({name: array for name, array in state.items() if name not in counters}, RESNET)
    assert found.notes == (f"{len(counters)} counters of batches, which the file lacks, are 0",)
    assert all(found.weights[name][0] == 0 for name in counters)
    found = fitted({**state_of(0), "bn.num_batches_tracked": np.int64(3)})
    assert found.notes == ("1 counters of batches, which the zoo lacks, are left out",)


def test_shapes_and_dtypes_are_all_reported() -> None:
    state = state_of(0)
    state["conv1.weight"] = state["conv1.weight"][:1]
    state["fc.weight"] = state["fc.weight"].astype(np.float64) + 1e-12
    with pytest.raises(SpecError) as raised:
        fitted(state)
    first, second = map(str, raised.value.problems)
    assert "shape (2, 1, 4, 4), got (1, 1, 4, 4)" in first and "cast = true" in second


def test_other_precisions() -> None:
    state = state_of(0)
    found = fitted({name: array.astype(np.float64) for name, array in state.items()})
    assert same(found.weights, state) and not found.rounded and "holds the same values" in found.notes[0]
    half = {name: array.astype(np.float16) for name, array in state.items()}
    assert not fitted(half).rounded
    double = {name: array.astype(np.float64) * 1.1 for name, array in state.items()}
    found = fitted(double, cast=True)
    assert found.rounded == dict.fromkeys(state, "float64") and "rounded" in found.notes[0]
    odd = {name: np.where(array > 0, np.nan, array).astype(np.float64) for name, array in state.items()}
    assert not fitted(odd).rounded
    with pytest.raises(SpecError, match="same architecture"):
        fitted({**resnet(), "bn1.num_batches_tracked": np.float32(0.5)}, RESNET, cast=True)


def test_stacked_files() -> None:
    weights = weights_of(3, 0)
    found = fitted(weights)
    assert found.stacked and all(found.weights[name].tobytes() == array.tobytes() for name, array in weights.items())
    one = fitted({name: array[:1] for name, array in weights.items()})
    assert one.stacked and one.weights["fc.bias"].shape == (1, 10)
    weights["fc.bias"] = weights["fc.bias"][:2]
    with pytest.raises(SpecError):
        fitted(weights)


def test_tied_tensors() -> None:
    tied = Architecture("tied", (Tensor("embed.weight", (4, 3), aliases=("head.weight",)), Tensor("fc.bias", (2,))))
    weight, bias = np.ones((4, 3), np.float32), np.zeros(2, np.float32)
    for names in (("embed.weight",), ("head.weight",), ("embed.weight", "head.weight")):
        found = fitted({**dict.fromkeys(names, weight), "fc.bias": bias}, tied)
        assert list(found.weights) == ["embed.weight", "fc.bias"]
    with pytest.raises(SpecError, match="tied to"):
        fitted({"embed.weight": weight, "head.weight": weight + 1, "fc.bias": bias}, tied)
    free = Architecture("free", (Tensor("embed.weight", (4, 3)), Tensor("head.weight", (4, 3))))
    assert fitted({"embed.weight": weight, "head.weight": weight}, free).weights["head.weight"].sum() == 12


def test_names_that_would_be_obeyed_by_a_terminal_are_escaped() -> None:
    with pytest.raises(NamesError) as raised:
        fitted({**state_of(0), "a\x1b[31m": np.zeros(2, np.float32)})
    assert "\x1b" not in str(raised.value)
