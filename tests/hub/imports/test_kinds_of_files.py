"""Files that people have, with more beside, around and in place of a state dict, in five variants a kind.

Each file is read by the reading process and the adapter, as an import does; what would be written is compared.
"""

import argparse
import io
import json
import pickle  # noqa: TID251 - files that people have
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch
from torch import nn

import ckptzoo
from ckptzoo.errors import IntegrityError, ZooError
from ckptzoo.hub.imports import Options, import_zoo
from ckptzoo.hub.imports.adapters import ADAPTERS
from ckptzoo.hub.imports.adapters.adapter import FoundCheckpoints, Picked
from ckptzoo.hub.imports.opened import OpenedSource
from ckptzoo.hub.imports.sources import open_path
from ckptzoo.hub.untrusted.errors import NoNetworkError
from ckptzoo.hub.untrusted.formats import HEAD_BYTES
from ckptzoo.hub.untrusted.forms import read_form
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.process import ReadingProcess
from ckptzoo.hub.untrusted.protocol import Job
from ckptzoo.hub.untrusted.runs import run_of
from tests.support.container_files import flax_file, hdf5_file, joblib_file, npz_file

VARIANTS = range(5)
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def process() -> Iterator[ReadingProcess]:
    with ReadingProcess(Limits()) as started:
        yield started


def picked(folder: Path, files: dict[str, bytes], process: ReadingProcess, **options: Any) -> dict[str, Picked]:
    """The checkpoints of files, by path and key."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    made: dict[str, Picked] = {}
    for found in ADAPTERS["files"].checkpoints(OpenedSource(open_path(folder)), Options(**options)):
        assert isinstance(found, FoundCheckpoints), found
        (data,) = found.read()
        name = found.path.rpartition("/")[2]
        form = read_form(data[:HEAD_BYTES], name, location=found.path)
        (answer,), arrays = process.read([Job(found.path, form.name, len(data), strict=False)], [data])
        if isinstance(answer, IntegrityError):
            raise answer
        for item in found.pick([state.state_dict(name, arrays) for state in answer]):
            assert made.setdefault(f"{found.path}#{item.suffix}", item) is item
    return made


def saved(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


class Net(nn.Module):
    def __init__(self, seed: int, width: int = 3) -> None:
        torch.manual_seed(seed)
        super().__init__()
        self.fc1, self.bn, self.fc2 = nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2)


def state(seed: int = 0) -> State:
    return {name: tensor.clone() for name, tensor in Net(seed).state_dict().items()}


def parameters(seed: int = 0) -> State:
    return {name: tensor.detach().clone() for name, tensor in Net(seed).named_parameters()}


def arrays(seed: int = 0) -> list[np.ndarray[Any, Any]]:
    draw = np.random.default_rng(seed)
    return [draw.standard_normal(shape).astype("f4") for shape in ((4, 3), (3,), (3, 2), (2,))]


def check(item: Picked, expected: State | list[Any] | dict[str, Any], **columns: Any) -> None:
    """Compare tensors and, of the row, the columns that are named; ``extra`` in part."""
    wanted = expected if isinstance(expected, dict) else {str(at): one for at, one in enumerate(expected)}
    assert list(item.tensors) == list(wanted)
    for name, tensor in wanted.items():
        assert item.tensors[name].dtype == np.asarray(tensor).dtype
        assert np.array_equal(item.tensors[name], np.asarray(tensor)), name
    extra = item.row.get("extra", {})
    assert columns.pop("extra", {}).items() <= extra.items(), extra
    assert {name: item.row.get(name) for name in columns} == columns


NO_WEIGHTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "moments": lambda v: {"exp_avg": parameters(1), ["exp_avg_sq", "momentum", "momentum_buffer", "adam_exp_avg", "exp_avg_sqs"][v]: parameters(2)},
    "derivatives": lambda v: {["grads", "gradients", "hessian_diag", "fisher", "last_grad"][v]: parameters(1)},
    "differences": lambda v: {["delta", "deltas", "task_vector", "weight_delta", "task_vectors"][v]: state(1)},
    "of optax": lambda v: {["mu", "nu"][v % 2]: parameters(v), ["nu", "mu"][v % 2]: parameters(2)},
    "of a loss": lambda v: {["dino_loss", "criterion", "loss_fn", "loss", "criterion_state_dict"][v]: {"center": torch.ones(1, 8)}},
    "random": lambda v: {["rng", "rng_state", "prng_key", "key", "torch_rng"][v]: torch.ones(2, dtype=torch.uint8)},
    "a list of them": lambda v: {["grads", "velocity", "gradients", "momentum", "hessian"][v]: list(parameters(1).values())},
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", NO_WEIGHTS)
@pytest.mark.sampled(2)
def test_what_has_the_names_of_weights_and_is_none_is_left_out(
    tmp_path: Path, process: ReadingProcess, kind: str, variant: int
) -> None:
    key = ["model", "state_dict", "params", "net", "weights"][variant]
    beside = NO_WEIGHTS[kind](variant)
    (item,) = picked(tmp_path, {"a.pt": saved({key: state(), **beside})}, process).values()
    check(item, state(), member="a")


def test_modules_of_such_names_are_parts_of_their_network(tmp_path: Path, process: ReadingProcess) -> None:
    layer = {"kernel": np.ones((4, 4), "f4"), "bias": np.ones(4, "f4")}
    for name in ("delta", "grad", "momentum", "loss", "fisher"):
        tree = {"params": {"q": layer, name: layer}}
        (item,) = picked(tmp_path / name, {"a.msgpack": flax_file(tree)}, process).values()
        assert len(item.tensors) == 4
    both = {"velocity": state(0), "score": state(1)}  # two networks of a flow
    assert len(picked(tmp_path / "flow", {"a.pt": saved(both)}, process)) == 2


@pytest.mark.parametrize("name", ["grads.pt", "run/fisher_3.pt", "exp_avg.pth", "momentum_buffer.pkl", "Hessian.bin"])
def test_files_that_are_called_so_are_no_networks(tmp_path: Path, process: ReadingProcess, name: str) -> None:
    with pytest.raises(NoNetworkError, match="by its name"):
        picked(tmp_path, {name: saved(state())}, process)


AVERAGES: dict[str, Callable[[State], Any]] = {
    "shadow_params": lambda own: {"ema": {"decay": 0.9, "shadow_params": list(own.values()), "collected_params": []}},
    "params": lambda own: {"model_ema": {"params": list(own.values())}},
    "dict": lambda own: {"ema": own},
    "shadow": lambda own: {"ema_state_dict": {"shadow": own, "decay": 0.9}},
    "target": lambda own: {"target_network": own},
}


@pytest.mark.parametrize("form", AVERAGES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.sampled(2)
def test_averages_of_parameters_have_the_buffers_of_their_network(
    tmp_path: Path, process: ReadingProcess, form: str, variant: int
) -> None:
    key, average = ["model", "state_dict", "net", "network", "online"][variant], parameters(variant + 1)
    root = {key: state(variant), **AVERAGES[form](average), "step": 7}
    made = picked(tmp_path, {"a.pt": saved(root)}, process)
    network, other = made.values()
    check(network, state(variant), member="a", step=7)
    check(other, {**state(variant), **average}, member="a", step=7, extra={"buffers_of": key})
    assert network.row["extra"]["network"] != other.row["extra"]["network"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_states_that_were_kept_have_their_own_time(tmp_path: Path, process: ReadingProcess, variant: int) -> None:
    best = ["best_model", "best_state_dict", "model_best", "best", "best_params"][variant]
    first = ["init", "initial_state_dict", "init_state", "model_init", "initial"][variant]
    root = {"model": state(0), best: state(1), first: state(2), "epoch": 9, "best_epoch": 4, "test_acc": 0.5}
    made = {path.partition("#")[2]: item for path, item in picked(tmp_path, {"a.pt": saved(root)}, process).items()}
    check(made["model"], state(0), step=9, epoch=9.0, claimed_test_accuracy=0.5)
    check(made[best], state(1), step=4, epoch=4.0, claimed_test_accuracy=None)
    check(made[first], state(2), step=0, epoch=0.0, claimed_test_accuracy=None)
    assert len({item.row["member"] for item in made.values()}) == 1
    del root["best_epoch"]
    made = {path.partition("#")[2]: item for path, item in picked(tmp_path, {"a.pt": saved(root)}, process).items()}
    check(made[best], state(1), step=None, epoch=None)


TRAJECTORIES: dict[str, Callable[[list[int]], Any]] = {
    "keys": lambda times: {f"epoch_{time}": state(time) for time in times},
    "nested": lambda times: {"saved": {f"step{time}": {"model": state(time)}["model"] for time in times}},
    "beside": lambda times: {"checkpoints": [state(time) for time in times], "checkpoint_epochs": times, "losses": [0.5] * 3},
    "steps": lambda times: {"states": [state(time) for time in times], "steps": times},
    "own": lambda times: [{"state_dict": state(time), "epoch": time} for time in times],
}  # fmt: skip


@pytest.mark.parametrize("form", TRAJECTORIES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.sampled(2)
def test_checkpoints_of_a_run_in_one_file(tmp_path: Path, process: ReadingProcess, form: str, variant: int) -> None:
    times = [variant, variant + 5, variant + 90]
    made = list(picked(tmp_path, {"a.pt": saved(TRAJECTORIES[form](times))}, process).values())
    assert len({item.row["member"] for item in made}) == 1
    for item, time in zip(made, times, strict=True):
        check(item, state(time), step=time)


class Training(NamedTuple):
    params: Any
    steps: int


def object_array(value: list[Any]) -> np.ndarray[Any, Any]:
    made = np.empty(len(value), dtype=object)
    made[:] = value
    return made


def npy(*values: Any) -> bytes:
    out = io.BytesIO()
    for value in values:
        np.save(out, value, allow_pickle=True)
    return out.getvalue()


ONE_NETWORK: dict[str, Callable[[list[Any]], tuple[str, bytes, list[str]]]] = {
    "items of a state dict": lambda own: ("a.pkl", pickle.dumps([("x.w", own[0]), ("x.b", own[1]), ("y.w", own[2]), ("y.b", own[3])]), ["x.w", "x.b", "y.w", "y.b"]),
    "items in a wrapper": lambda own: ("a.pt", saved({"params": list(zip(["w", "b", "c", "d"], map(torch.from_numpy, own), strict=True)), "epoch": 3}), ["w", "b", "c", "d"]),
    "a list": lambda own: ("a.pkl", pickle.dumps(own), ["0", "1", "2", "3"]),
    "an array of objects": lambda own: ("a.npy", npy(object_array(own)), ["0", "1", "2", "3"]),
    "a dict in .npy": lambda own: ("vgg.npy", npy({"conv": {"weights": own[0], "biases": own[1]}, "fc": [own[2], own[3]]}), ["conv.weights", "conv.biases", "fc.0", "fc.1"]),
    "objects in .npz": lambda own: ("a.npz", npz_file({"weights": object_array(own)}), ["weights.0", "weights.1", "weights.2", "weights.3"]),
    "objects in a pickle": lambda own: ("a.pkl", pickle.dumps({"w": object_array(own)}), ["w.0", "w.1", "w.2", "w.3"]),
    "objects in joblib": lambda own: ("a.joblib", joblib_file(object_array(own)), ["0", "1", "2", "3"]),
    "arrays of Equinox": lambda own: ("a.eqx", npy(*own), ["0", "1", "2", "3"]),
    "settings of Equinox": lambda own: ("a.eqx", b'{"seed": 5}\n' + npy(*own), ["0", "1", "2", "3"]),
    "a named tuple": lambda own: ("a.pkl", pickle.dumps(Training({"x.w": own[0], "x.b": own[1], "y.w": own[2], "y.b": own[3]}, 4)), ["x.w", "x.b", "y.w", "y.b"]),
    "scalars in .npz": lambda own: ("a.npz", npz_file(dict(zip("wbcd", own, strict=True)) | {"epoch": np.array(3), "lr": np.array(0.1), "done": np.array(True)}), ["w", "b", "c", "d"]),
    "scalars in HDF5": lambda own: ("a.h5", hdf5_file(lambda file: [file.__setitem__(name, item) for name, item in [*zip("abcd", own, strict=True), ("epoch", 3)]]), ["a", "b", "c", "d"]),
}  # fmt: skip


@pytest.mark.parametrize("form", ONE_NETWORK)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.sampled(2)
def test_one_network_however_it_is_kept(tmp_path: Path, process: ReadingProcess, form: str, variant: int) -> None:
    name, data, names = ONE_NETWORK[form](arrays(variant))
    folder = ["", "run3/", "x/y/", "seed_4/", "fold1/"][variant]
    (item,) = picked(tmp_path, {folder + name: data}, process).values()
    check(item, dict(zip(names, arrays(variant), strict=True)))
    has_epoch = form.startswith("scalars") or form == "items in a wrapper"
    assert item.row.get("epoch") == (3.0 if has_epoch else None)
    assert form != "settings of Equinox" or item.row["seed"] == 5


SEVERAL: dict[str, Callable[[list[list[Any]]], tuple[str, bytes]]] = {
    "lists in a pickle": lambda nets: ("a.pkl", pickle.dumps(nets)),
    "layers in lists": lambda nets: ("a.pkl", pickle.dumps([[(w, b), (), (c, d)] for w, b, c, d in nets])),
    "tuples of tensors": lambda nets: ("a.pt", saved([tuple(map(torch.from_numpy, net)) for net in nets])),
    "by seeds": lambda nets: ("a.joblib", joblib_file({f"seed{at}": net for at, net in enumerate(nets)})),
    "in a wrapper": lambda nets: ("a.pkl", pickle.dumps({"members": nets, "config": {"lr": 0.1}})),
}


@pytest.mark.parametrize("form", SEVERAL)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.sampled(2)
def test_lists_of_networks_are_not_one_network(
    tmp_path: Path, process: ReadingProcess, form: str, variant: int
) -> None:
    nets = [arrays(10 * variant + at) for at in range(2 + variant)]
    name, data = SEVERAL[form](nets)
    made = list(picked(tmp_path, {name: data}, process).values())
    assert len(made) == len(nets) == len({item.row["member"] for item in made})
    for item, net in zip(made, nets, strict=True):
        assert all(np.array_equal(one, other) for one, other in zip(item.tensors.values(), net, strict=True))


def test_equal_layers_in_lists_are_one_network(tmp_path: Path, process: ReadingProcess) -> None:
    draw = np.random.default_rng(0).standard_normal
    for name, layers in {
        "pairs": [(draw((3, 3)), draw(3)) for _ in range(4)],
        "recurrent": [[draw((3, 3)), draw((3, 3)), draw(3)] for _ in range(2)],
        "weights": {"q": [draw((3, 3)) for _ in range(4)], "k": [draw((3, 3)) for _ in range(4)]},
    }.items():
        assert len(picked(tmp_path / name, {"a.pkl": pickle.dumps(layers)}, process)) == 1


def test_modules_in_a_list_are_networks(tmp_path: Path, process: ReadingProcess) -> None:
    nets = [nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)) for _ in range(3)]
    made = picked(tmp_path, {"a.pt": saved({"models": nets, "epoch": 4})}, process)
    for item, net in zip(made.values(), nets, strict=True):
        check(item, {name: tensor.numpy() for name, tensor in net.state_dict().items()}, epoch=4.0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_statistics_of_other_programs_are_buffers(tmp_path: Path, process: ReadingProcess, variant: int) -> None:
    one = np.ones(3, "f4")
    names = ["batch_stats", "state", "stats", "buffers", "batch_stats"]
    tree = {
        "params": {"a": {"kernel": np.ones((2, 3), "f4"), "bias": one}},
        names[variant]: {"n": {"mean": one, "var": one}},
    }
    (item,) = picked(tmp_path / "flax", {"a.msgpack": flax_file(tree)}, process).values()
    assert item.buffers == {f"{names[variant]}.n.mean", f"{names[variant]}.n.var"}

    def keras(file: Any) -> None:
        start = 0 if variant < 3 else 1
        for at, number in enumerate(range(start, 4)):
            file[f"layers/batch_normalization_{variant}/vars/{at}"] = one * number
        file["layers/dense/vars/0"], file["layers/dense/vars/1"] = np.ones((2, 3), "f4"), one

    (item,) = picked(tmp_path / "keras", {"a.weights.h5": hdf5_file(keras)}, process).values()
    assert {float(item.tensors[name][0]) for name in item.buffers} == {2.0, 3.0} and len(item.buffers) == 2


def per_parameter(words: tuple[str, str], value: float) -> State:
    first, second = words
    return {
        f"{layer}.{leaf}{first if word == 0 else second}": torch.full(shape, [0.5, value][word])
        for layer in ("a", "b")
        for leaf, shape in (("weight", (2, 3)), ("bias", (2,)))
        for word in (0, 1)
    }


DEVIATIONS = {
    "_var": (0.25, 0.5), "_variance": (0.04, 0.2), ".precision": (4.0, 0.5), "_logvar": (0.0, 1.0), "_std": (0.3, 0.3),
}  # fmt: skip


@pytest.mark.parametrize("word", DEVIATIONS)
def test_variances_and_precisions_are_brought_to_deviations(tmp_path: Path, process: ReadingProcess, word: str) -> None:
    given, wanted = DEVIATIONS[word]
    root = per_parameter((f"{word[0]}mean", word), given)
    (item,) = picked(tmp_path, {"a.pt": saved(root)}, process).values()
    assert item.gaussian and np.allclose(item.tensors["a.weight_std"], wanted)
    if "log" not in word:
        with pytest.raises(ZooError, match="above 0"):
            picked(tmp_path, {"a.pt": saved(per_parameter((f"{word[0]}mean", word), -1.0))}, process)


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_state_dicts_of_a_posterior_are_one_gaussian(tmp_path: Path, process: ReadingProcess, variant: int) -> None:
    means = {name: tensor.double() for name, tensor in parameters(variant).items()}
    more = {name: torch.full_like(tensor, 0.04) for name, tensor in means.items()}
    squares = {name: means[name] ** 2 + more[name] for name in means}
    deviations = [{name: torch.full_like(tensor, 0.1) for name, tensor in means.items()} for _ in range(3)]
    root, wanted = [
        ({"mean": means, "var": more}, 0.2),
        ({"mean": means, "sq_mean": squares, "n": 3}, 0.2),
        ({"mean": means, "sq_mean": squares, "deviations": deviations}, np.sqrt((0.04 + 0.03 / 2) / 2)),
        ({"mu": means, "sigma": more}, 0.04),
        ({"loc": means, "scale": more}, 0.04),
    ][variant]
    (item,) = picked(tmp_path, {"a.pt": saved(root)}, process).values()
    assert item.gaussian and all(
        np.allclose(item.tensors[f"{name}_std"], wanted) and np.array_equal(item.tensors[name], tensor)
        for name, tensor in means.items()
    )


def quantised() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it will be removed
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "complex": (lambda: {**state(), "fft.weight": torch.ones(3, dtype=torch.complex64)}, "dtype of 'fft.weight'", "view_as_real"),
    "complex128": (lambda: {"net": {**state(), "f": torch.ones(3, dtype=torch.complex128)}}, "dtype of 'f'", "view_as_real"),
    "float8": (lambda: {name: tensor.to(torch.float8_e5m2) for name, tensor in parameters().items()}, "dtype of 'fc1.weight'", "x.to(torch.float16)"),
    "quantised": (lambda: {**state(), "q": quantised()}, "tensor 'q'", "a quantized tensor"),
    "quantised in a tuple": (lambda: {**state(), "fc._packed_params": (quantised(), torch.ones(2))}, "tensor 'fc._packed_params.0'", "a quantized tensor"),
    "meta": (lambda: {**state(), "m": torch.empty(3, device="meta")}, "tensor 'm'", "a meta tensor"),
    "flat": (lambda: {"model": {"_fsdp_wrapped_module._flat_param": torch.ones(30)}}, "as FSDP keeps", "FULL_STATE_DICT"),
    "vector": (lambda: {"theta": torch.ones(30), "epoch": 3}, "one array of shape (30,)", "--layout"),
    "rows": (lambda: {"weights": torch.ones(5, 30), "test_acc": torch.ones(5)}, "one array of shape (5, 30)", "--layout"),
    "samples": (lambda: {"W1": torch.ones(50, 4, 3), "b1": torch.ones(50, 3), "sigma": torch.ones(50)}, "one of 50 in all", "--stacked"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_read_is_refused_by_name_with_a_step(tmp_path: Path, process: ReadingProcess, kind: str) -> None:
    make, words, step = REFUSED[kind]
    with pytest.raises(ZooError) as caught:
        picked(tmp_path, {"a.pt": saved(make())}, process)
    assert words in str(caught.value) and step in str(caught.value), str(caught.value)


NOT_NUMBERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "complex": (lambda file: file.__setitem__("c", np.ones(3, "c8")), "complex64. Save its parts as real numbers"),
    "records": (lambda file: file.__setitem__("c", np.zeros(3, [("x", "f4")])), "structured. Save its fields"),
    "rows": (lambda file: file.create_dataset("c", (2,), dtype=h5py.vlen_dtype(np.float32)), "rows of several lengths"),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOT_NUMBERS)
@pytest.mark.parametrize("group", ["", "layer"])
def test_no_dataset_that_may_hold_numbers_is_lost(
    tmp_path: Path, process: ReadingProcess, kind: str, group: str
) -> None:
    def write(file: Any) -> None:
        within = file.require_group(group) if group else file
        within["w"], within["b"], within["text"] = np.ones((2, 3), "f4"), np.ones(3, "f4"), "relu"
        NOT_NUMBERS[kind][0](within)

    with pytest.raises(IntegrityError, match=f"dtype of '.*c': expected one of .*, got {NOT_NUMBERS[kind][1]}"):
        picked(tmp_path / "refused", {"a.h5": hdf5_file(write)}, process)

    def write_texts(file: Any) -> None:
        file["w"], file["b"], file["text"], file["more"] = np.ones((2, 3), "f4"), np.ones(3, "f4"), "relu", [b"x", b"y"]

    (item,) = picked(tmp_path / "read", {"a.h5": hdf5_file(write_texts)}, process).values()
    assert set(item.tensors) == {"w", "b"}


def test_first_and_last_of_a_run_are_one_member_and_a_fresh_network_is_no_mask(
    tmp_path: Path, process: ReadingProcess
) -> None:
    made = picked(tmp_path / "run", {"a.pt": saved({"init": state(0), "final": state(1), "epochs": 90})}, process)
    assert [item.row["member"] for item in made.values()] == ["a", "a"]
    assert [item.row["extra"]["network"] for item in made.values()] == ["init", "final"]
    assert [item.row.get("epoch") for item in made.values()] == [0.0, None]
    fresh = {**dict.fromkeys(["fc.weight", "bn.bias"], torch.zeros(40, 40)), "bn.running_var": torch.ones(40)}
    assert len(picked(tmp_path / "fresh", {"a.pt": saved(fresh)}, process)) == 1
    vectors = {"pretrained": state(0), "finetuned": state(1), "task_vector": state(2)}
    assert len(picked(tmp_path / "vectors", {"a.pt": saved(vectors)}, process)) == 2


class Persistent:
    """A module as ``torch_utils.persistence`` of StyleGAN2-ADA and EDM pickles it: its class and state as arguments."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __reduce__(self) -> Any:
        persistence = sys.modules["torch_utils.persistence"]
        return persistence._reconstruct_persistent_obj, ({"class_name": "G", "state": vars(self.module)},)


def test_modules_of_other_programs_stay_whole(
    tmp_path: Path, process: ReadingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def _reconstruct_persistent_obj(described: Any) -> None: ...

    _reconstruct_persistent_obj.__module__ = "torch_utils.persistence"
    _reconstruct_persistent_obj.__qualname__ = "_reconstruct_persistent_obj"
    module = types.SimpleNamespace(_reconstruct_persistent_obj=_reconstruct_persistent_obj)
    monkeypatch.setitem(sys.modules, "torch_utils", types.SimpleNamespace(persistence=module))
    monkeypatch.setitem(sys.modules, "torch_utils.persistence", module)
    nets = {"G": Persistent(Net(0)), "D": Persistent(Net(1, 2)), "G_ema": Persistent(Net(2))}
    made = picked(tmp_path, {"network-snapshot-000200.pkl": pickle.dumps(nets)}, process)
    assert len(made) == 3
    for item, seed in zip(made.values(), (0, 1, 2), strict=True):
        net = Net(seed, 2 if seed == 1 else 3)
        check(item, {name: tensor.numpy() for name, tensor in net.state_dict().items()})


@pytest.mark.parametrize(
    ("slots", "others"),
    [
        (("/Adam", "/Adam_1"), {"beta1_power": np.array(0.9, "f4"), "global_step": np.array(5)}),
        (("/Momentum",), {}),
        (("_momentum",), {}),
        (("/.OPTIMIZER_SLOT/optimizer/m/.ATTRIBUTES/VARIABLE_VALUE",), {"_CHECKPOINTABLE_OBJECT_GRAPH": np.array(b"x" * 9000)}),
    ],
)  # fmt: skip
def test_slots_of_an_optimiser_beside_weights_are_left_out(
    tmp_path: Path, process: ReadingProcess, slots: tuple[str, ...], others: dict[str, Any]
) -> None:
    own = dict(zip(["a/w", "a/b", "c/w", "c/b"], arrays(), strict=True))
    more = {f"{name}{slot}": item for slot in slots for name, item in own.items()}
    (item,) = picked(tmp_path, {"a.npz": npz_file({**own, **more, **others})}, process).values()
    check(item, own, step=5 if "global_step" in others else None)


@pytest.mark.parametrize("key", ["average_model_state", "ema_state_dict", "averaged_weights"])
def test_averages_that_callbacks_keep_are_checkpoints_of_the_run(
    tmp_path: Path, process: ReadingProcess, key: str
) -> None:
    callbacks = {"Averaging": {"n_averaged": 3, key: state(1)}, "Early": {"best_score": torch.tensor(0.5)}}
    root = {"state_dict": state(0), "callbacks": callbacks, "epoch": 3, "global_step": 40}
    made = picked(tmp_path, {"a.ckpt": saved(root)}, process)
    assert len(made) == 2
    for item, (name, seed) in zip(made.values(), {"state_dict": 0, key: 1}.items(), strict=True):
        check(item, state(seed), member="a", step=40, epoch=3.0, extra={"network": name})


@pytest.mark.parametrize("mark", [".", "/"])
def test_copies_come_apart_and_parts_are_said(tmp_path: Path, process: ReadingProcess, mark: str) -> None:
    def flat(*names: str) -> dict[str, Any]:
        nets = {name: arrays(at) for at, name in enumerate(names)}
        return {
            f"{name}{mark}l{at // 2}{mark}{'wb'[at % 2]}": item
            for name, net in nets.items()
            for at, item in enumerate(net)
        }

    made = picked(tmp_path / "copies", {"a.npz": npz_file(flat("params", "ema_params"))}, process)
    for at, item in enumerate(made.values()):
        assert all(map(np.array_equal, item.tensors.values(), arrays(at))), item
    (item,) = picked(tmp_path / "parts", {"a.npz": npz_file(flat("mean_net", "std_net"))}, process).values()
    assert len(item.tensors) == 8 and "--networks 'mean_net,std_net'" in item.note


def test_tensors_of_other_dtypes_beside_a_network_end_nothing(tmp_path: Path, process: ReadingProcess) -> None:
    root = {"model": state(), "spectrum": torch.ones(9, dtype=torch.complex64), "args": argparse.Namespace(seed=4)}
    (item,) = picked(tmp_path, {"a.pt": saved(root)}, process).values()
    check(item, state(), seed=4)


FACTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a tuple": (lambda own: (own, {"epoch": 3, "seed": 5}), {"epoch": 3.0, "seed": 5}),
    "mmengine": (lambda own: {"state_dict": own, "meta": {"epoch": 3, "iter": 70, "seed": 5}}, {"epoch": 3.0, "seed": 5, "step": 70}),
    "Weights & Biases": (lambda own: {"model": own, "config": {"seed": {"desc": None, "value": 5}}}, {"seed": 5}),
    "YOLO": (lambda own: {"model": own, "epoch": -1}, {"epoch": None, "step": None}),
    "rounds": (lambda own: {"model": own, "round": 6}, {"step": 6}),
}  # fmt: skip


@pytest.mark.parametrize("kind", FACTS)
def test_facts_are_columns(tmp_path: Path, process: ReadingProcess, kind: str) -> None:
    make, columns = FACTS[kind]
    (item,) = picked(tmp_path, {"a.pt": saved(make(state()))}, process).values()
    check(item, state(), **columns)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_number_in_a_name_that_the_file_says_too_is_when_it_was_saved(
    tmp_path: Path, process: ReadingProcess, variant: int
) -> None:
    names = ["run/model_{:07d}.pth", "run/gan_{}.pt", "run/net-{}.pkl", "run/{}.pt", "run/w{}.pt"]
    fact = ["iteration", "epoch", "global_step", "epoch", "step"][variant]
    files = {names[variant].format(time): saved({"model": state(time), fact: time}) for time in (5, 10)}
    made = picked(tmp_path, files, process)
    assert len({item.row["member"] for item in made.values()}) == 1
    assert sorted(item.row["step"] for item in made.values()) == [5, 10]
    files = {names[variant].format(at): saved({"model": state(at), fact: 100}) for at in (5, 10)}
    made = picked(tmp_path, files, process)
    assert len({item.row["member"] for item in made.values()}) == 2


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("online_encoder", "target_encoder"), "--networks 'online_encoder,target_encoder'"),
        (("module.encoder_q", "module.encoder_k"), "--networks 'encoder_q,encoder_k'"),
        (("0", "1"), "--networks '*'"),
        (("members.0", "members.1"), "--networks 'members.*'"),
        (("block1", "block2"), ""),
    ],
)
def test_networks_in_one_state_dict_are_said(
    tmp_path: Path, process: ReadingProcess, names: tuple[str, str], said: str
) -> None:
    root = {f"{name}.{key}": tensor for at, name in enumerate(names) for key, tensor in state(at).items()}
    root |= {} if names[0][-1] in "01" else {f"{names[0].rpartition('.')[0]}.queue".lstrip("."): torch.ones(2, 9)}
    (item,) = picked(tmp_path, {"a.pt": saved(root)}, process).values()
    assert said in item.note and bool(said) == bool(item.note)


def test_counters_that_were_averaged_and_causal_masks(tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    mask = torch.tril(torch.ones(4, 4)).view(1, 1, 4, 4)
    half = {name: tensor.float() / 2 for name, tensor in state(1).items()}
    half["bn.num_batches_tracked"] = torch.tensor(6.5)
    for name, own in (("a", state(0)), ("b", half)):
        (tmp_path / "nets" / f"{name}.pt").write_bytes(saved({**own, "attn.bias": mask}))
    done = import_zoo(tmp_path / "nets", tmp_path / "zoo", license="MIT")
    zoo = ckptzoo.open(tmp_path / "zoo")
    assert done.added == len(zoo) == 2 and zoo.arch["attn.bias"].kind == "buffer"
    assert zoo.arch["bn.num_batches_tracked"].dtype == "int64" and zoo["bn.num_batches_tracked"][1] == 6
    assert json.loads(zoo.metadata["extra"].to_pylist()[1])["stored_dtype"] == "float32"


@pytest.mark.parametrize(
    ("path", "member", "step", "epoch"),
    [
        ("multiberts-seed_0-step_2000k/pytorch_model.bin", "multiberts-seed_0", 2_000_000, None),
        ("10k_steps.pt", "", 10_000, None),
        ("ckpt_1M.pt", "", 1_000_000, None),
        ("checkpoint_3_15000.pt", "", 15_000, 3.0),
        ("logs/epoch_latest.pt", "logs", None, None),
        ("weights.07-0.21.h5", "", 7, 7.0),
        ("run/model-12-0.0534.keras", "run", 12, 12.0),
        ("weights-improvement-02-0.75.hdf5", "", 2, 2.0),
        ("lr0.01-0.05.pt", "lr0.01-0.05", None, None),
        ("run-12-0.25.pt", "run-12-0.25", None, None),
        ("net_5k.pt", "net_5k", None, None),
        ("run1/iter_1e5.pt", "run1", 100_000, None),
        ("lr=0.1,step=300.ckpt", "lr=0.1", 300, None),
        ("run/ckpt.500", "run", 500, None),
        ("run_lr0.1", "run_lr0.1", None, None),
    ],
)
def test_names_say_when_in_a_run(path: str, member: str, step: int | None, epoch: float | None) -> None:
    run = run_of(path)
    assert (run.member, run.step, run.epoch) == (member, step, epoch)
