"""Files of one network by any mix of habits of saving are of one architecture, with the weights it computes with."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import ckptzoo
from ckptzoo.errors import SpecError, ZooError
from ckptzoo.hub.imports import import_zoo
from ckptzoo.hub.imports.effective_weights import effective
from ckptzoo.hub.imports.same_architecture import Saved, ties_of
from ckptzoo.hub.imports.target import Declaration, NewCheckpoint, TargetZoos
from tests.support.effort import examples
from tests.support.published_zoos import network, save

State = dict[str, np.ndarray[Any, Any]]
weight_norm_: Any = weight_norm
parametrized_: Any = parametrizations.weight_norm


def arrays(module: nn.Module) -> State:
    return {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}


def perceptron(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def convolutions() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(4, 4, 3), nn.ConvTranspose2d(4, 4, 3), nn.Linear(3, 3), nn.Conv1d(2, 5, 3))


def each(change: Callable[..., Any], name: str = "weight") -> Callable[[nn.Sequential], nn.Module]:
    def changed(module: nn.Sequential) -> nn.Module:
        for layer in module:
            if hasattr(layer, "weight"):
                change(layer, name)
        return module

    return changed


CHANGES: dict[str, Callable[[Any], nn.Module]] = {
    "pruned": each(lambda layer, name: prune.l1_unstructured(layer, name, 0.5)),
    "pruned twice": each(lambda layer, name: [prune.random_unstructured(layer, name, 0.3) for _ in range(2)]),
    "pruned biases": each(lambda layer, name: prune.l1_unstructured(layer, name, 1), "bias"),
    "normalised": each(weight_norm),
    "normalised in all": each(lambda layer, name: weight_norm_(layer, name, dim=None)),
    "normalised along the last": each(lambda layer, name: weight_norm(layer, name, dim=1)),
    "parametrised": each(parametrizations.weight_norm),
    "spectral": each(spectral_norm),
    "spectral parametrised": each(parametrizations.spectral_norm),
    "normalised and pruned": each(lambda layer, _: prune.l1_unstructured(weight_norm_(layer), "weight_v", 0.5)),
    "parametrised and pruned": each(
        lambda layer, _: prune.l1_unstructured(parametrized_(layer).parametrizations.weight, "original1", 0.5)
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("make", [perceptron, convolutions])
@pytest.mark.sampled(2)
def test_weights_are_those_that_torch_computes_with(change: str, make: Callable[[], nn.Sequential]) -> None:
    module = CHANGES[change](make())
    layers: list[Any] = [layer for layer in module.children() if hasattr(layer, "weight")]
    with torch.no_grad():
        for layer in layers if "spectral" in change else ():
            for _ in range(30):  # so that the vectors are those of the kernel
                layer(torch.randn(1, layer.weight.shape[1], *([5] * (layer.weight.ndim - 2)))
                      if isinstance(layer, nn.Conv2d | nn.Conv1d | nn.Linear) else torch.randn(1, 4, 5, 5))  # fmt: skip
    module.eval()
    made = effective(arrays(module), "a.pt")
    plain = make().state_dict()
    assert set(made.tensors) == set(plain)
    assert "normalised and pruned" not in change or list(made.tensors) == list(plain)
    children: list[tuple[str, Any]] = list(module.named_children())
    for at, layer in children:
        if hasattr(layer, "weight"):
            if "spectral" not in change and "weight" in layer.__dict__:  # hooks compute it before each call
                for hook in layer._forward_pre_hooks.values():
                    hook(layer, ())
            elif change == "spectral":
                layer.weight = layer.weight_orig / torch.dot(layer.weight_u, torch.mv(
                    torch.movedim(layer.weight_orig, int(isinstance(layer, nn.ConvTranspose2d)), 0).flatten(1),
                    layer.weight_v))  # fmt: skip
            assert np.allclose(
                made.tensors[f"{at}.weight"], layer.weight.detach().numpy(), atol=1e-6, equal_nan=True
            ), (change, at)
            assert np.allclose(made.tensors[f"{at}.bias"], layer.bias.detach().numpy(), atol=1e-6, equal_nan=True), (
                change,
                at,
            )


@dataclass(frozen=True)
class Habits:
    """How one file is saved."""

    words: tuple[str, ...]
    weights: tuple[str, str]
    counter: bool
    tie: str
    dtype: str
    gain: tuple[int, ...]
    averaged: bool


HABITS = st.builds(
    Habits,
    st.lists(st.sampled_from(["module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"]), max_size=3).map(tuple),
    st.tuples(*[st.sampled_from(["plain", "pruned", "normalised", "parametrised", "spectral", "both"])] * 2),
    st.booleans(),
    st.sampled_from(["storage", "equal", "left out"]),
    st.sampled_from(["float32", "float16"]),
    st.sampled_from([(), (1,)]),
    st.booleans(),
)  # fmt: skip


def weight_as(habit: str, name: str, draw: np.random.Generator) -> tuple[State, np.ndarray[Any, Any]]:
    """The tensors of one weight, and what it is."""
    weight = draw.standard_normal((6, 6))
    mask = np.maximum(draw.random((6, 6)) < 0.5, np.eye(6))  # of zeros alone torch makes NaN
    left, right = np.linalg.svd(weight)[0][:, 0], np.linalg.svd(weight)[2][0]
    norm = np.linalg.norm(weight, axis=1, keepdims=True)
    module, _, last = name.rpartition(".")
    return {
        "plain": ({name: weight}, weight),
        "pruned": ({f"{name}_orig": weight, f"{name}_mask": mask}, weight * mask),
        "normalised": ({f"{name}_g": 2 * norm, f"{name}_v": weight}, 2 * weight),
        "parametrised": (
            {f"{module}.parametrizations.{last}.original{at}": item for at, item in enumerate((2 * norm, weight))},
            2 * weight,
        ),
        "spectral": (
            {f"{name}_orig": weight, f"{name}_u": left, f"{name}_v": right},
            weight / (left @ weight @ right),
        ),
        "both": (
            {f"{name}_g": norm, f"{name}_v_orig": weight, f"{name}_v_mask": mask},
            norm * (weight * mask) / np.linalg.norm(weight * mask, axis=1, keepdims=True),
        ),
    }[habit]


def saved_by(habits: Habits, seed: int) -> tuple[Saved, State]:
    """A network as a file has it, and its weights."""
    draw = np.random.default_rng(seed)
    tensors: State = {"wte.weight": draw.standard_normal((10, 6))}
    expected = dict(tensors)
    for layer, habit in zip(("fc", "top"), habits.weights, strict=True):
        parts, weight = weight_as(habit, f"{layer}.weight", draw)
        bias = draw.standard_normal(6)
        tensors |= {**parts, f"{layer}.bias": bias}
        expected |= {f"{layer}.weight": weight, f"{layer}.bias": bias}
    tensors |= {"bn.running_mean": draw.standard_normal(6), "gain": draw.standard_normal(habits.gain)}
    expected |= {name: tensors[name] for name in ("bn.running_mean", "gain")}
    tensors = {name: array.astype(habits.dtype) for name, array in tensors.items()}
    if habits.counter:
        tensors["bn.num_batches_tracked"] = np.array(seed)
    if habits.tie != "left out":
        same = tensors["wte.weight"]
        tensors["lm_head.weight"] = same if habits.tie == "storage" else same.copy()

    def wrapped(name: str) -> str:
        words, last = name.rpartition(".")[::2]
        inner = [*habits.words[:1], *filter(None, [words]), *habits.words[1:], last]
        return ".".join(["module", *inner] if habits.averaged else inner)

    names = {name: wrapped(name) for name in tensors}
    ties = {names["lm_head.weight"]: names["wte.weight"]} if habits.tie == "storage" else {}
    made = {names[name]: array for name, array in tensors.items()}
    return Saved({"n_averaged": np.array(4), **made} if habits.averaged else made, ties), expected


@settings(max_examples=examples(300, 20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(several=st.lists(HABITS, min_size=1, max_size=5), seed=st.integers(0, 999))
def test_any_mix_of_habits_is_one_architecture(
    tmp_path_factory: pytest.TempPathFactory, several: list[Habits], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("zoos") / "zoo"
    target = TargetZoos(folder, Declaration("zoo"), by_order=False)
    made = [saved_by(habits, seed + at) for at, habits in enumerate(several)]
    rows = [{"id": f"n{at}", "unit": f"u{at}", "extra": {}} for at in range(len(made))]
    target.add([NewCheckpoint(saved, row) for (saved, _), row in zip(made, rows, strict=True)])
    target.commit()
    zoo = ckptzoo.open(folder)
    assert not target.has_several and len(zoo) == len(several)
    names = {"wte.weight", "fc.weight", "fc.bias", "top.weight", "top.bias", "bn.running_mean", "gain"}
    assert set(zoo.arch.names) - {"bn.num_batches_tracked"} == names
    assert ("bn.num_batches_tracked" in zoo.arch) == any(habits.counter for habits in several)
    is_tied = any(habits.tie != "left out" for habits in several)
    assert zoo.arch["wte.weight"].aliases == (("lm_head.weight",) if is_tied else ())
    is_half = all(habits.dtype == "float16" for habits in several)
    for at, (habits, (_, expected)) in enumerate(zip(several, made, strict=True)):
        for name, array in expected.items():
            tolerance = 2e-2 if habits.dtype == "float16" else 1e-5
            assert np.allclose(zoo[name][at].reshape(array.shape), array, tolerance, tolerance), (name, habits)
        extra = rows[at]["extra"]
        assert (extra.get("stored_dtype") == "float16") == (habits.dtype == "float16" and not is_half)
        assert ("counters_set_to_0" in extra) == (not habits.counter and any(one.counter for one in several))
        assert ("pruning" in extra) == bool({"pruned", "both"} & set(habits.weights))
        assert extra.get("n_averaged") == (4 if habits.averaged else None)
        if "pruning" in extra:
            masks = load_file(folder.parent / extra["pruning"]["masks"])
            kept = np.mean(np.concatenate([mask.ravel() for mask in masks.values()]))
            assert extra["pruning"]["sparsity"] == pytest.approx(1 - kept) and set(masks) <= {"fc.weight", "top.weight"}


def test_zoos_keep_the_parts_of_weights_that_they_have(tmp_path: Path) -> None:
    parts = {"0.weight_g": np.ones((6, 1), "f4"), "0.weight_v": np.ones((6, 4), "f4"), "0.bias": np.ones(6, "f4")}
    with ckptzoo.create(tmp_path / "zoo", arch=ckptzoo.Architecture.of(parts, name="zoo")) as writer:
        writer.add(parts, {"id": "old"})
    target = TargetZoos(tmp_path / "zoo", Declaration("zoo"), by_order=False)
    wrapped = {f"module.{name}": 2 * array for name, array in parts.items()}
    target.add([NewCheckpoint(Saved(wrapped), {"id": "new", "unit": "u", "source": "s"})])
    target.commit()
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert zoo.arch.names == tuple(parts) and np.array_equal(zoo["0.weight_v"][1], 2 * parts["0.weight_v"])


def test_what_is_not_clear_is_refused_by_name(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    square, vector, other = (draw.standard_normal(shape) for shape in ((4, 4, 3, 3), 4, 36))
    for state, words in (
        (
            {"l.weight": np.ones(3), "l.weight_orig": np.ones(3), "l.weight_mask": np.ones(3)},
            "one of its forms, got two",
        ),
        (
            {"l.weight_orig": square, "l.weight_u": vector, "l.weight_v": other},
            "one way to unfold the kernel",
        ),
    ):
        with pytest.raises(SpecError, match=words):
            effective(state, "a.pt")
    assert set(effective({"l.proj_g": np.ones((3, 2)), "l.proj_v": np.ones((3, 2))}, "a").tensors) == {
        "l.proj_g",
        "l.proj_v",
    }
    save(tmp_path / "nets" / "a.pt", {name: array.astype("f8") for name, array in network(0).items()})
    save(tmp_path / "nets" / "b.pt", {f"x{name}": array for name, array in network(1).items()})
    with pytest.raises(ZooError, match=r"add the table \[names\] to a file, and name it with --names") as caught:
        import_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")
    assert '"x0.weight" = "0.weight"' in str(caught.value) and "contribution.toml" not in str(caught.value)
    table = {f"x{name}": name for name in network(0)}
    done = import_zoo(tmp_path / "nets", tmp_path / "both", license="MIT", names={**table, "nothing": "x"})
    assert (done.added, done.zoos) == (2, {".": 2}) and "--names: no file has nothing" in done.notes
    rows = ckptzoo.open(tmp_path / "both").metadata.to_pylist()
    assert ["stored_dtype" in row["extra"] for row in rows] == [False, True]


def test_matrices_that_happen_to_be_equal_are_not_tied() -> None:
    ones, same = np.ones((3, 3)), np.arange(9.0).reshape(3, 3)
    for state in (
        {"a.weight": ones, "b.weight": ones.copy()},
        {"q.weight": same, "q_target.weight": same.copy()},
        {"a.l.weight": same, "a.m.weight": 2 * same, "b.l.weight": same.copy(), "b.m.weight": 2 * same},
        {"a.mask": same, "b.mask": same.copy()},
    ):
        assert ties_of([Saved(state)]) == {}
    tied = {"wte.weight": same, "head.weight": same.copy()}
    assert ties_of([Saved(tied)]) == {"head.weight": "wte.weight"}
    assert ties_of([Saved(tied), Saved({**tied, "head.weight": ones})]) == {}
