"""Small zoos in the layouts in which others publish theirs; every number follows from its place."""

import csv
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

State = dict[str, np.ndarray]


def network(number: int, step: int = 0, width: int = 5) -> State:
    """A perceptron 4-5-3, its tensors named as in torch."""
    draw = np.random.default_rng([number, step, width])
    shapes = {"0.weight": (width, 4), "0.bias": (width,), "2.weight": (3, width), "2.bias": (3,)}
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def save(path: Path, content: Any) -> None:
    """A file of torch.save; arrays become tensors."""

    def tensors(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: tensors(item) for key, item in value.items()}
        return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value

    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tensors(content), path)


def table(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def ray_tune(root: Path, members: int = 2, steps: int = 3, *, first: int = 0) -> dict[str, State]:
    """``first``: the number of the first checkpoint; 0 as Ray 2.60 has it, 1 as older versions."""
    made: dict[str, State] = {}
    for member in range(members):
        trial = root / "tune_zoo" / f"T_{member:05d}_{member}_model_dropout={member / 2:.4f}_2026-01-01_00-00-00"
        trial.mkdir(parents=True)
        parameters = {"model::type": "MLP", "model::dropout": member / 2, "optim::lr": 0.1, "seed": member}
        (trial / "params.json").write_text(json.dumps(parameters))
        (trial / "params.pkl").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
        lines = []
        for step in range(1, steps + 1):
            state = network(member, step)
            # dropout shifts the numbers of the layers behind it
            named = {name.replace("2.", "3.") if member else name: value for name, value in state.items()}
            save(
                trial / f"checkpoint_{step - 1 + first:06d}" / "checkpoints",
                {f"module_list.{n}": v for n, v in named.items()},
            )
            save(trial / f"checkpoint_{step - 1 + first:06d}" / "optimizer", {"state": {}, "param_groups": []})
            lines.append(
                {"training_iteration": step, "test_acc": step / 10, "test_loss": 1 / step, "train_acc": step / 20,
                 "hostname": "node1", "node_ip": "192.0.2.1", "pid": 17, "trial_id": f"{member:05d}",
                 "logdir": "/home/somebody/ray", "config": parameters}
            )  # fmt: skip
            made[f"{trial.name}@{step}"] = {f"module_list.{name}": value for name, value in state.items()}
        (trial / "result.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made


def safetensors_archive(root: Path) -> dict[str, State]:
    made: dict[str, State] = {}
    for number in range(4):
        state = {name: value.astype(np.float16) for name, value in network(number).items()}
        path = root / "optunet-0-3" / f"optunet-{number:05d}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(state, path)
        made[f"{number:05d}"] = state
    return made


def wild_park(root: Path) -> dict[str, State]:
    made: dict[str, State] = {}
    for member in range(2):
        for step in (0, 10):
            state = network(member, step)
            settings = {"n_layers": 2, "activation": ["relu", "tanh"][member], "lr": 0.1}
            content = {"model": state, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}, "config": settings,
                       "iteration": step, "last_result": {"test/acc": (step + member) / 20, "node_ip": "192.0.2.1"}}  # fmt: skip
            name = f"NN_tune_trainable_{member:05d}"
            save(root / "zoo" / name / f"checkpoint_{step:06d}" / "checkpoint.pt", content)
            made[f"{name}@{step}"] = state
    return made


def small_cnn(root: Path) -> dict[str, State]:
    draw = np.random.default_rng(0)
    shapes = {
        "sequential/conv2d/bias:0": (2,),
        "sequential/conv2d/kernel:0": (3, 3, 1, 2),
        "sequential/dense/kernel:0": (2, 4),
    }
    rows, layout, made, start = [], [], {}, 0
    for name, shape in shapes.items():
        stop = start + int(np.prod(shape))
        layout.append({"varname": name, "start_idx": start, "end_idx": stop, "shape": str(shape)})
        start = stop
    matrix = draw.standard_normal((6, start)).astype(np.float32)
    for row in range(6):
        rows.append({"modeldir": f"runs/model{row // 2}", "step": 20 * (row % 2), "test_accuracy": row / 10,
                     "test_loss": 1.5, "train_accuracy": 0.5, "config.activation": ["relu", "tanh"][row // 2 % 2]})  # fmt: skip
        cut = {
            item["varname"]: matrix[row, item["start_idx"] : item["end_idx"]].reshape(shapes[item["varname"]])
            for item in layout
        }
        made[f"model{row // 2}@{20 * (row % 2)}"] = {
            "conv2d.bias": cut["sequential/conv2d/bias:0"],
            "conv2d.weight": cut["sequential/conv2d/kernel:0"].transpose(3, 2, 0, 1),
            "dense.weight": cut["sequential/dense/kernel:0"].T,
        }
    (root / "mnist").mkdir(parents=True)
    np.save(root / "mnist" / "weights.npy", matrix)
    table(root / "mnist" / "layout.csv", layout)
    table(root / "mnist" / "metrics.csv.gz", rows)
    return made


def inr(root: Path) -> dict[str, State]:
    made: dict[str, State] = {}
    for number in range(3):
        name = f"mnist_png_training_{number + 4}_{number}"
        save(root / name / "checkpoints" / "model_final.pth", network(number))
        made[name] = network(number)
    return made


def small_transformer(root: Path) -> dict[str, State]:
    made: dict[str, State] = {}
    rows = []
    for run in range(2):
        for epoch, accuracy in ((50, 8123), (100, 9550)):
            name = f"r{run}_{epoch}_{accuracy}"
            save(root / "mnist" / f"{name}.pt", network(run, epoch))
            rows.append({"checkpoint": f"{name}.pt", "optimizer": "Adam", "lr": 0.001 * (run + 1)})
            made[f"r{run}@{epoch}"] = network(run, epoch)
    table(root / "metadata" / "mnist.csv", rows)
    return made


def model_j(root: Path) -> dict[str, State]:
    made: dict[str, State] = {}
    for number in range(3):
        path = root / f"model-{number}" / "model.safetensors"
        path.parent.mkdir(parents=True)
        save_file(
            network(number), path, {"classes": "['cat', 'dog']", "lr": str(0.1 * number), "note": "__import__('os')"}
        )
        made[f"model-{number}"] = network(number)
    return made


def haiku(root: Path) -> dict[str, State]:
    """As torch.save writes them: that of the plain pickles is in the samples."""
    made: dict[str, State] = {}
    for step in range(3):
        state = network(7, step)
        parameters = {"mlp/~/linear_0": {"w": state["0.weight"].T.copy(), "b": state["0.bias"]}}
        save(
            root / "chain1" / f"model_step_{step}.pt",
            {"iteration": step, "params": parameters, "step_size": 1e-5, "accepted": True},
        )
        made[f"chain1@{step}"] = {"mlp.linear_0.w": state["0.weight"].T, "mlp.linear_0.b": state["0.bias"]}
    return made


def nws(root: Path) -> dict[str, State]:
    made: dict[str, State] = {}
    table(root / "layout.csv", [
        {"varname": "conv", "start_idx": 0, "end_idx": 6, "shape": "(2, 3)"}, {"varname": "bias", "start_idx": 6, "end_idx": 8, "shape": "(2,)"},
    ])  # fmt: skip
    for net in range(2):
        (root / f"net{net}" / "weights").mkdir(parents=True)
        table(root / f"net{net}" / "log.csv", [{"dataset": "mnist", "lr": 0.1 * (net + 1), "test_accuracy": 0.9}])
        for step in range(2):
            vector = np.arange(8, dtype=np.float64) + 10 * net + 100 * step
            (root / f"net{net}" / "weights" / f"{step:03d}.bin").write_bytes(vector.tobytes())
            made[f"net{net}@{step}"] = {"conv": vector[:6].reshape(2, 3), "bias": vector[6:]}
    return made


def files(root: Path) -> dict[str, State]:
    made: dict[str, State] = {}
    save(root / "a.pt", {"state_dict": network(0), "epoch": 3, "args": {"lr": 0.1}})
    save(root / "deep" / "b.pth", [network(1), network(2)])
    np.savez(root / "c.npz", **network(3))
    made |= {"a": network(0), "deep-b/0": network(1), "deep-b/1": network(2), "c": network(3)}
    return made


FORMATS: dict[str, Callable[[Path], dict[str, State]]] = {
    "safetensors-archive": safetensors_archive, "ray-tune": ray_tune, "wild-park": wild_park, "small-cnn": small_cnn,
    "inr": inr, "small-transformer": small_transformer, "model-j": model_j, "haiku": haiku, "nws": nws, "files": files,
}  # fmt: skip


def packed(folder: Path, path: Path, *, reverse: bool = False) -> Path:
    """A folder as an archive, by its suffix."""
    members = sorted(item for item in folder.rglob("*") if item.is_file())
    members = members[::-1] if reverse else members
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for item in members:
                archive.write(item, item.relative_to(folder))
        return path
    mode: Any = {".tar": "w", ".tgz": "w:gz", ".gz": "w:gz", ".xz": "w:xz"}[path.suffix]
    with tarfile.open(path, mode) as archive:
        for item in members:
            archive.add(item, item.relative_to(folder))
    return path
