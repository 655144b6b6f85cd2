"""The folder in which the examples of docstrings run: the zoos of ``cards``, small zoos, and a hub of its own."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import HfApi
from rich.console import Console
from safetensors.numpy import save_file

import ckptzoo
from builders import planted
from builders.build import build
from ckptzoo.derive import derive, predict
from ckptzoo.image_sets import find
from tests.support.hosted import hosted
from tests.support.hub_clients import isolate_clients

ROOT = Path(__file__).parents[2]
CONTRIBUTION = 'contributor = "Ada Example"\nlicense = "cc-by-4.0"\ndataset = "mnist"\n'


def write_zoos(folder: Path) -> Path:
    """Make the folder ``zoos``: ``few``, ``draws``, ``toy`` and ``planted``; and files of one more network.

    ``few`` has 16 OptuNets of cards/mnist-optunet and ``draws`` the draws of two methods around two modes each, both
    with predictions on 100 handwritten digits and on as many images of noise.
    """
    few, draws = folder / "zoos/few", folder / "zoos/draws"
    members = ckptzoo.open(ROOT / "cards/mnist-optunet")
    ckptzoo.pull(members.path, few, where="seed < 16")
    ckptzoo.pull(
        ROOT / "cards/mnist-optunet-posteriors",
        draws,
        where="method in ['dropout', 'swag'] and seed < 2 and draw < 2",
    )
    digits = find("digits/test-100")
    assert digits is not None
    inputs = digits.normalized((0.1307,), (0.3081,))
    noise = np.random.default_rng(0).standard_normal(inputs.shape).astype(np.float32)
    for zoo in (few, draws):
        for gauge in ("unit-norm", "first-weight"):
            derive(zoo, gauge=gauge)
        predict(zoo, inputs, set="digits/test-100", targets=digits.labels)
        predict(zoo, noise, set="noise/test-100")
    quiet = Console(quiet=True)
    build("toy", folder / "zoos/toy", members=64, console=quiet)
    planted.build("toy", folder / "zoos/planted", runs=2, transpositions=(0, 1), keep_steps=(0,), console=quiet)
    save_file({name: members[name][100] for name in members.arch.names}, folder / "net.safetensors")
    (folder / "contribution.toml").write_text(CONTRIBUTION)
    parts = ["train"] * 12 + ["test"] * 4
    lines = [f"{part},{name}" for part, name in zip(parts, ckptzoo.open(few).ids, strict=True)]
    (folder / "published-split.csv").write_text("\n".join(["split,id", *lines]))
    return folder


def fill_hub(folder: Path, hub: Path) -> None:
    """Make ``served``, the folder of a hub that has ``lab/optunets``, the zoo ``few``, and the collection ``lab/zoos``."""
    collection = shutil.copytree(folder / "zoos", hub / "collection")
    ckptzoo.write_collection(collection)
    with pytest.MonkeyPatch.context() as monkeypatch, hosted(hub / "served") as server:
        isolate_clients(hub / "clients", monkeypatch)
        token = server.tokens["write"]
        ckptzoo.push(folder / "zoos/few", "lab/optunets", endpoint=server.url, token=token)
        api = HfApi(server.url, token)
        api.create_repo("lab/zoos", repo_type="dataset")
        api.upload_folder(repo_id="lab/zoos", folder_path=collection, repo_type="dataset")
    shutil.rmtree(collection)


@contextmanager
def example_hub(folder: Path, served: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve a copy of a hub's folder, and let client libraries use it without being told."""
    isolate_clients(folder / "clients", monkeypatch)
    with hosted(shutil.copytree(served, folder / "served")) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", server.tokens["write"])
        yield
