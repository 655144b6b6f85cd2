"""Whatever a file holds: every tensor arrives once, or the file is refused, or the tensor is named as left out."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.untrusted.errors import NoNetworkError
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.objects import is_aside
from ckptzoo.hub.untrusted.state_dicts import StateCandidate, find_state_dicts
from ckptzoo.hub.untrusted.torch_files import read_torch
from ckptzoo.hub.untrusted.values import Mapping
from tests.support.effort import examples


def states(root: Any) -> list[StateCandidate]:
    return find_state_dicts(root, location="f.pt", limits=Limits())


def tensors_in(value: Any, key: Any = None) -> Iterator[np.ndarray[Any, Any]]:
    """Every tensor that is no part of what stands aside, such as an optimiser."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict | list | tuple) and not is_aside(key, value):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from tensors_in(item, name)


NAMES = st.sampled_from(
    ["weight", "bias", "w", "b", "kernel", "W1", "b1", "cls", "conv1", "fc", "layer_0", "layer_1", "block", "encoder",
     "fc.weight", "fc.bias", "params", "ema_params", "target_params", "batch_stats", "model", "ema", "state_dict", "net",
     "online", "target", "optimizer", "args", "epoch", "step", "loss", "name", "heads", "mean", "var"]
)  # fmt: skip
LEAVES = st.one_of(
    st.tuples(st.integers(2, 4), st.integers(2, 3)).map(lambda shape: np.random.default_rng(0).standard_normal(shape)),
    st.integers(2, 4).map(lambda length: np.random.default_rng(1).standard_normal(length)),
    st.sampled_from([None, 3, 0.5, "relu", True, (), {}, []]),
)
OBJECTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(NAMES, inner, max_size=4), st.lists(inner, max_size=3), st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@settings(max_examples=examples(400, 100), deadline=None)
@given(root=OBJECTS)
def test_every_tensor_arrives_once_or_is_named(root: Any) -> None:
    present = {id(tensor): tensor for tensor in tensors_in(root)}
    try:
        found = states(root)
    except IntegrityError as error:
        # what holds tensors is no file without a network, unless these are known to be others
        assert not isinstance(error, NoNetworkError) or not present or "no weights" in str(error)
        return
    arrived = [id(tensor) for state in found for tensor in state.tensors.values()]
    shared = [name for name in ("batch_stats",) if name in str(root)]
    assert len(arrived) == len(set(arrived)) or shared  # statistics belong to every copy of the parameters
    # short vectors beside a whole state dict are facts, as the means of inputs are
    noted = [fact for state in found for fact in state.facts.values() if isinstance(fact, tuple)]
    missing = [
        tensor for key, tensor in present.items() if key not in set(arrived) and tuple(tensor.tolist()) not in noted
    ]
    named = found[0].left_out
    assert not missing or any("array of shape" in text or "item" in text or "entr" in text or "no weights" in text
                              or "deep" in text or "the state of" in text for text in named), (missing, named)  # fmt: skip


LAYERS = st.integers(2, 4).flatmap(
    lambda count: st.permutations(["linear", "conv", "norm", "head"]).map(lambda names: names[:count])
)


def network(names: list[str], seed: int, form: str) -> Any:
    """Parameters of some layers as programs keep them."""
    draw = np.random.default_rng(seed)
    layers = {
        name: {"w": draw.standard_normal((at + 2, 3)), "b": draw.standard_normal(at + 2)}
        for at, name in enumerate(names)
    }
    return {
        "tree": layers,
        "nested": {"backbone": dict(list(layers.items())[:-1]), "top": layers[names[-1]]},
        "list": [(layer["w"], layer["b"]) for layer in layers.values()],
        "stax": [piece for layer in layers.values() for piece in ((layer["w"], layer["b"]), ())],
        "lists": {
            "weights": [layer["w"] for layer in layers.values()],
            "biases": [layer["b"] for layer in layers.values()],
        },
        "flat": {f"{name}.{leaf}": tensor for name, layer in layers.items() for leaf, tensor in layer.items()},
        "holes": {
            name: layer
            for pair in ((name, layer) for name, layer in layers.items())
            for name, layer in (pair, (f"{pair[0]}_act", None))
        },
        "numbers": {name: {"w": layer["w"], "b": layer["b"].tolist()} for name, layer in layers.items()},
        "own": {"cls": draw.standard_normal((1, 3)), **layers},
    }[form]


FORMS = ["tree", "nested", "list", "stax", "lists", "flat", "holes", "numbers", "own"]


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(20), deadline=None)
@given(names=LAYERS, seed=st.integers(0, 99), facts=st.booleans(), wrapped=st.booleans())
def test_one_network_is_one_state_dict(form: str, names: list[str], seed: int, facts: bool, wrapped: bool) -> None:
    params = network(names, seed, form)
    root: Any = {"params": params} if wrapped or facts else params
    root = {**root, "epoch": 3, "optimizer": {"param_groups": [], "state": {}}} if facts else root
    (state,) = states(root)
    expected = 2 * len(names) + (form == "own")
    assert len(state.tensors) == expected and (state.facts == {"epoch": 3}) == facts


@pytest.mark.parametrize("copy", ["ema_params", "target_params", "params_avg", "ema"])
@pytest.mark.parametrize("form", ["tree", "nested", "flat", "holes", "numbers"])
@settings(max_examples=examples(20), deadline=None)
@given(names=LAYERS, with_statistics=st.booleans())
@pytest.mark.sampled(2)
def test_copies_of_a_network_are_networks_of_their_own(
    form: str, copy: str, names: list[str], with_statistics: bool
) -> None:
    root = {"params": network(names, 0, form), copy: network(names, 1, form), "step": 3}
    if with_statistics and form in ("tree", "nested"):
        root["batch_stats"] = {"norm": {"mean": np.zeros(3), "var": np.ones(3)}}
    first, second = states(root)
    assert {first.key, second.key} == {"params", copy} and list(first.tensors) == list(second.tensors)
    assert first.facts == second.facts == {"step": 3}
    assert len(first.tensors) == 2 * len(names) + 2 * ("batch_stats" in root)


@settings(max_examples=examples(20), deadline=None)
@given(names=LAYERS, count=st.integers(2, 4), form=st.sampled_from(["tree", "nested", "flat"]), keyed=st.booleans())
def test_networks_side_by_side_are_networks_of_their_own(names: list[str], count: int, form: str, keyed: bool) -> None:
    networks = [network(names, seed, form) for seed in range(count)]
    found = states({f"member{at}": item for at, item in enumerate(networks)} if keyed else networks)
    assert len(found) == count and len({tuple(state.tensors) for state in found}) == 1


def layers(seed: int, names: list[str], leaves: tuple[str, ...], deep: bool) -> Any:
    """Equal layers under some names, each of one layer or of two."""
    draw = np.random.default_rng(seed)
    made = {name: {leaf: draw.standard_normal((3, 3)) for leaf in leaves} for name in names}
    return {name: {"inner": own, "outer": dict(own)} for name, own in made.items()} if deep else made


LEAVES_OF_LAYERS = st.sampled_from(
    [("w", "b"), ("kernel", "bias"), ("W", "b"), ("w_i", "w_h", "b"), ("weights", "biases")]
)
PARTS = st.sampled_from([
    ["gru", "gru_1", "gru_2"], ["Dense_0", "Dense_1"], ["layer1", "layer2", "layer3"], ["h_0", "h_1"], ["s", "t"],
    ["block_0", "block_1"], ["encoder", "decoder"], ["q1", "q2"], ["mlp/~/linear_0", "mlp/~/linear_1"],
])  # fmt: skip
HEADS = st.sampled_from([[], ["mean", "logvar"], ["fc2_mean", "fc2_logvar"], ["mu", "sigma"], ["loc", "scale"]])


@settings(max_examples=examples(300, 40), deadline=None)
@given(
    parts=PARTS, heads=HEADS, leaves=LEAVES_OF_LAYERS, deep=st.booleans(), inside=st.booleans(), wrapped=st.booleans(),
    facts=st.booleans(),
)  # fmt: skip
def test_parts_of_one_network_stay_together_whatever_their_shapes(
    parts: list[str], heads: list[str], leaves: tuple[str, ...], deep: bool, inside: bool, wrapped: bool, facts: bool
) -> None:
    tree = layers(0, parts, leaves, deep)
    own = layers(1, heads, leaves, deep=False)
    tree |= {"heads": own} if inside and heads else own
    root: Any = {"params": tree} if wrapped or facts else tree
    root |= {"epoch": 3} if facts else {}
    (state,) = states(root)
    assert len(state.tensors) == len(leaves) * (len(parts) * (1 + deep) + len(heads))


@settings(max_examples=examples(300, 40), deadline=None)
@given(
    key=st.sampled_from(["seed{}", "seed_{}", "net{}", "model-{}", "run {}", "epoch_{}", "fold{}", "chain_{}", "a_seed{}_b", "run_x{}"]),
    count=st.integers(2, 4), leaves=LEAVES_OF_LAYERS, deep=st.booleans(), inside=st.sampled_from(["", "members", "params"]),
    facts=st.booleans(), is_torch=st.booleans(),
)  # fmt: skip
def test_keys_that_number_networks_make_networks(
    key: str, count: int, leaves: tuple[str, ...], deep: bool, inside: str, facts: bool, is_torch: bool
) -> None:
    networks = layers(0, [key.format(at) for at in range(count)], leaves, deep)
    if is_torch and not deep:  # as state dicts of modules with one layer: in a list, too
        networks = [Mapping(own) for own in networks.values()]
    root: Any = {inside: networks} if inside else networks
    root = {"content": root, "dataset": "mnist"} if facts else root
    found = states(root)
    assert len(found) == count and {len(state.tensors) for state in found} == {len(leaves) * (1 + deep)}


def test_what_modules_keep_beside_their_tensors_is_left_out_and_named() -> None:
    for extra in ({"amax": np.ones((3, 3))}, np.ones((40, 3), np.uint8), b"bytes"):
        own = {**network(["linear", "head"], 0, "flat"), "linear._extra_state": extra}
        for root in (own, {"model": own, "epoch": 3}):
            (state,) = states(root)
            assert len(state.tensors) == 4 and "_extra_state" in state.left_out[0]


def test_facts_belong_to_the_network_beside_them() -> None:
    steps = [
        {"epoch": at, "state_dict": network(["linear", "head"], at, "flat"), "test_acc": at / 10} for at in range(3)
    ]
    found = states({"steps": steps, "dataset": "mnist"})
    assert [state.facts for state in found] == [
        {"epoch": at, "test_acc": at / 10, "dataset": "mnist"} for at in range(3)
    ]


OTHERS: dict[str, Any] = {
    "optimiser": {"state": {0: {"exp_avg": np.ones((3, 3))}}, "param_groups": [{"lr": 0.1}]},
    "moments": {"exp_avg": np.ones((3, 3)), "exp_avg_sq": np.ones((3, 3))},
    "random": {"cpu": np.zeros(5056, np.uint8), "numpy": ("MT19937", np.zeros(624, np.uint32), 3)},
    "statistics": {"obs_rms": {"mean": np.ones(4), "var": np.ones(4), "count": 3.0}},
    "evaluations": {"timesteps": np.arange(3), "results": np.ones((3, 5)), "ep_lengths": np.ones((3, 5), int)},
    "masks": {"fc.weight_mask": np.ones((3, 3)), "fc.bias_mask": np.ones(3)},
    "bools": {"0": np.ones((3, 3), bool)},
    "swag": {"mean": np.ones(9), "sq_mean": np.ones(9), "cov_mat_sqrt": np.ones((2, 9)), "n_models": 2},
    "curves": {"train_loss": np.ones(9), "test_acc": np.ones(9)},
    "data": {"x_train": np.ones((9, 3)), "y_train": np.ones(9)},
    "scheduler": {"base_lrs": [0.1], "last_epoch": 3},
    "settings": {"lr": 0.1, "model": "mlp"},
}


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.sampled(2)
def test_what_holds_no_weights_is_no_network(other: str, wrapped: bool) -> None:
    content = {"payload": OTHERS[other], "version": 2} if wrapped else OTHERS[other]
    with pytest.raises(NoNetworkError):
        states(content)
    beside = {"model": network(["linear", "head"], 0, "flat"), "beside": OTHERS[other]}
    (state,) = states(beside)
    assert len(state.tensors) == 4


def test_tensors_of_layers_beside_a_state_dict_are_refused() -> None:
    root = {"backbone": network(["linear", "head"], 0, "flat"), "head.weight": np.ones((3, 3)), "head.bias": np.ones(3)}
    with pytest.raises(IntegrityError, match=r"'head\.weight': expected all tensors of a network in one mapping"):
        states(root)


class Trainer:
    """An object that holds a module and its optimiser, whose state has tensors as keys."""

    def __init__(self) -> None:
        self.net = nn.Linear(3, 2)
        self.adam = torch.optim.Adam(self.net.parameters())
        self.net(torch.ones(1, 3)).sum().backward()
        self.adam.step()


class Numpy:
    """A network of one's own in numpy, with a random state and copies in private attributes."""

    def __init__(self) -> None:
        self.weights, self.biases = [np.ones((3, 2)), np.ones((2, 3))], [np.ones(3), np.ones(2)]
        self._best, self._random = [np.ones((3, 2))], {"state": {"key": np.arange(624, dtype=np.uint32), "pos": 3}}
        self.loss_curve = [0.5, 0.25]


@pytest.mark.parametrize(
    ("make", "names"),
    [(Trainer, ["weight", "bias"]), (Numpy, ["weights.0", "weights.1", "biases.0", "biases.1"])],
)
def test_objects_of_programs_of_one_s_own_give_their_networks(make: type, names: list[str]) -> None:
    data = io.BytesIO()
    torch.save(make(), data)
    root = read_torch(data.getvalue(), location="a.pt", limits=Limits(), strict=False)
    (state,) = find_state_dicts(root, location="a.pt", limits=Limits())
    assert list(state.tensors) == names and state.left_out
