"""Small zoos of OptuNets with random weights, and what tests compare after pushing and pulling them."""

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from huggingface_hub import snapshot_download

import ckptzoo
from ckptzoo import archs
from ckptzoo.hub.card import card_of, readme
from ckptzoo.hub.push import Pushed, push
from ckptzoo.schema.card import Card
from tests.support.hosted import ZOO, Hosted
from tests.support.server_layers import FaultPlan

ARCH = archs.architecture("optunet")
TABLE = archs.symmetry("optunet")


def weights_of(count: int, seed: int) -> dict[str, np.ndarray]:
    """Random weights of K OptuNets, stacked; the variances of the normalisations are around 1."""
    rng = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}
    for tensor in ARCH.tensors:
        if tensor.dtype == "int64":
            weights[tensor.name] = np.full((count, *tensor.shape), 100)
            continue
        values = rng.standard_normal((count, *tensor.shape)) / np.sqrt(max(9, np.prod(tensor.shape[1:])))
        weights[tensor.name] = (np.exp(values) if tensor.name.endswith("running_var") else values).astype(np.float32)
    return weights


def grown(path: Path, parts: tuple[int, ...], *, start: int = 0, label: str = "m") -> Path:
    """Add parts with these numbers of checkpoints; the ids are ``m0-0``, ``m0-1``, ..., ``m1-0``, ..., counted from ``start``."""
    writer = ckptzoo.append(path)
    for number, count in enumerate(parts, start):
        rows = [
            {
                "id": f"{label}{number}-{row}",
                "seed": row,
                "step": 10,
                "unit": f"{label}{number}",
                "dataset": "mnist",
                "license": "apache-2.0",
                "test_accuracy": 0.9 + 0.01 * (row % 10),
            }
            for row in range(count)
        ]
        writer.add(weights_of(count, 1000 * sum(map(ord, label)) + number), rows)
        writer.commit()
    return path


def zoo_of(path: Path, parts: tuple[int, ...] = (3, 2), *, label: str = "m", name: str | None = None) -> Path:
    """A zoo of OptuNets in parts with these numbers of checkpoints, with the table of its symmetries."""
    card = Card(name or path.name, summary="OptuNets with random weights.", dataset="mnist")
    ckptzoo.create(path, arch=ARCH, card=card, symmetry=TABLE)
    return grown(path, parts, label=label)


def pushed(server: Hosted, zoo: Path, role: str = "write", **options: object) -> Pushed:
    """Push a zoo to ``lab/zoo``."""
    return push(zoo, ZOO, endpoint=server.url, token=server.tokens[role], **options)  # pyright: ignore[reportArgumentType]


def downloaded(server: Hosted, folder: Path, revision: str = "main") -> Path:
    """``lab/zoo`` as the client library downloads it."""
    options = {"repo_type": "dataset", "endpoint": server.url, "cache_dir": folder / "hf", "revision": revision}
    return Path(snapshot_download(ZOO, token=server.tokens["read"], **options))


def assert_same_except_generated(zoo: Path, down: Path) -> None:
    """Two folders hold the same files with the same bytes, but for page and snapshot, which a push generates."""
    generated = ("snapshots/", "README.md", "croissant.json")
    own, theirs = ({k: v for k, v in files_of(p).items() if not k.startswith(generated)} for p in (zoo, down))
    assert own == theirs


def assert_generated_page(down: Path) -> str:
    """A downloaded zoo has the page of what it holds, at the address of its repository; returns it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*retracted", category=UserWarning)
        zoo = ckptzoo.open(down)
    text = (down / "README.md").read_text(encoding="utf-8")
    assert text == readme(zoo, replace(card_of(zoo), repository=ZOO))
    return text


def repeated_uploads(server: Hosted) -> list[str]:
    """Paths of the contents that the server received whole more than once."""
    uploads = [
        entry.path for entry in server.request_log.entries if entry.operation == "upload" and entry.status == 200
    ]
    return [path for path, count in Counter(uploads).items() if count > 1]


def own_commits(server: Hosted) -> list[str]:
    """Titles of the commits that pushes made on main."""
    commits = server.api().list_repo_commits(ZOO, repo_type="dataset")
    return [item.title for item in commits if item.title.startswith(("Add ", "Write "))]


def files_of(path: Path) -> dict[str, bytes]:
    """Every file of a folder that is not hidden, and its bytes."""
    files = {file.relative_to(path): file for file in sorted(path.rglob("*")) if file.is_file()}
    hidden = {name for name in files if any(piece.startswith(".") for piece in name.parts)}
    return {name.as_posix(): file.read_bytes() for name, file in files.items() if name not in hidden}


@contextmanager
def inject_faults(server: Hosted, **plan: object) -> Iterator[None]:
    """Until the end of the block, requests get the faults of this plan; they are counted from 0."""
    server.faults.plan = FaultPlan(**plan)  # pyright: ignore[reportArgumentType]
    server.faults.injected.clear()
    server.faults._count = 0
    try:
        yield
    finally:
        server.faults.plan = FaultPlan()
