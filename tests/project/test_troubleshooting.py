"""Every error on the page about troubleshooting is one that the code raises, with the message that the page shows."""

import doctest
import re
import shutil
import sys
from collections.abc import Callable
from importlib import util
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import ckptzoo
from ckptzoo import archs
from ckptzoo.cli.app import run as run_ckptzoo
from tests.support.hosted import hosted
from tests.support.hub_clients import isolate_clients

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
SECTION = re.compile(r"^### `([^\n]+)`\n\n```text\n(.+?)\n```\n", re.MULTILINE | re.DOTALL)
"""A part of a message as heading, and the whole message of an example, in which ``...`` stands for what differs."""
CARD = "cards/mnist-optunet-trajectories"
SHAPES = {"fc1.weight": (3, 4), "fc1.bias": (3,), "fc2.weight": (2, 3), "fc2.bias": (2,)}

ARCH = archs.architecture("mlp-4-3-2")
NOBODY = "http://127.0.0.1:9"
"""An address at which no server listens."""

Arguments = tuple[str, ...]


def add(row: dict[str, object], **changed: tuple[int, ...]) -> None:
    """Add a checkpoint, some of whose tensors have other shapes, to a zoo."""
    with ckptzoo.append("zoos/mine") as writer:
        writer.add({name: np.ones(shape, np.float32) for name, shape in (SHAPES | changed).items()}, row)


def resume(first: str, second: str) -> None:
    """Resume a stream where a stream of another layer was."""
    zoo = ckptzoo.open(CARD)
    state = next(iter(zoo.stream(first, batch_size=4))).state
    zoo.stream(second, batch_size=4).load_state_dict(state)


def verify_damaged() -> int:
    """Change the last byte of a zoo, and verify it."""
    (path,) = Path("zoos/damaged/parts").glob("*/raw-00.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    return run_ckptzoo(["verify", "zoos/damaged"])


def import_on(platform: str) -> None:
    """Import the package on another operating system."""
    spec = util.spec_from_file_location("ckptzoo_elsewhere", ckptzoo.__file__)
    assert spec is not None and spec.loader is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "platform", platform)
        spec.loader.exec_module(util.module_from_spec(spec))


def draw_without(package: str) -> int:
    """Draw a study's picture where a package is missing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, package, None)
        return run_ckptzoo(["study", "mass", "zoos/mine", "-o", "pictures"])


def open_offline(address: str) -> int:
    """Open a zoo that is not in the cache, without a network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        return run_ckptzoo(["info", address])


def push_without_token() -> None:
    """Push a zoo to a hub without a token."""
    with hosted(Path("hub")) as server:
        ckptzoo.push("zoos/mine", "org/zoo", endpoint=server.url)


CAUSES: dict[str, Callable[[], object] | Arguments] = {
    "operating system: expected Linux or macOS, got Windows": lambda: import_on("win32"),
    "is not installed. Install it with: pip install": lambda: draw_without("matplotlib"),
    "a zoo: expected a folder, got nothing": ("info", "./zoos/nothing"),
    "expected a folder or a repository, got neither": lambda: open_offline("org/zoo"),
    "zoo.json: expected a file, got none; this is not a zoo": lambda: ckptzoo.open("cards"),
    "column '...': expected one of": lambda: ckptzoo.open(CARD).where("accuracy > 0.9"),
    "expected a condition, got invalid syntax": ("info", CARD, "--where", "seed = 3"),
    "tensor '...': expected one of": lambda: ckptzoo.open(CARD)["conv1"],
    "variant '...': expected one of": lambda: ckptzoo.open("zoos/mine")["fc1.weight", "canonical"],
    "checkpoints: expected at least one, got none": ("study", "symmetries", CARD, "--where", "seed > 99"),
    "split '...': expected one of (none)": lambda: ckptzoo.open("zoos/mine").split("main", "train"),
    "plan of the saved state: expected": lambda: resume("conv1", "fc"),
    "a new zoo: expected no folder or an empty one, got a zoo": lambda: ckptzoo.create("zoos/mine", arch=ARCH),
    "weights: tensor '...': expected": lambda: add({"id": "b"}, **{"fc1.weight": (5, 4)}),
    "checkpoint ids: expected new ones": lambda: add({"id": "a"}),
    "rows: column '...': expected": lambda: add({"id": "b", "seed": "three"}),
    "symmetry table of ...: expected one, got none": ("derive", "zoos/plain"),
    "variants: expected 'canonical' among them, got raw": ("study", "symmetries", "zoos/mine"),
    "predictions: expected those on a set of inputs, got none": ("study", "ensembles", "zoos/mine"),
    "scaling of the pixels: expected one in the rows": ("predict", "zoos/mine", "mnist/test"),
    "expected its files on this machine, got no folder to look in": ("predict", CARD, "mnist/test"),
    "parameters: expected the same shapes": ("mmd", "zoos/mine", CARD),
    "sha256 of the whole file: expected": verify_damaged,
    "that was linked on this machine, got none": lambda: ckptzoo.open("zoos/moved")["w"][:],
    "Restore the file that was linked": lambda: ckptzoo.open("zoos/linked")["w"][:],
    "got one that refers to files of this machine": ("push", "zoos/linked", "lab/linked"),
    "expected a zoo's folder, got nothing": ("verify", "lab/final"),
    "zoo.json: expected that of the zoo to pull, got that of another": ("pull", CARD, "-o", "zoos/mine"),
    "expected a token, got none": push_without_token,
    "expected an answer, got ConnectError": lambda: ckptzoo.push("zoos/mine", "org/zoo", endpoint=NOBODY),
    "license: expected one for all checkpoints, got none": (
        "contribute", "net.pt", "--to", "org/zoo", "--card", "contribution.toml", "--dry-run",
    ),
}  # fmt: skip
"""What leads to the error of each heading: a call, or the words of a command of ckptzoo."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the zoos that the examples name."""
    folder = tmp_path_factory.mktemp("troubleshooting")
    for name in ("cards", "zoos"):
        (folder / name).mkdir()
    (folder / CARD).symlink_to(ROOT / CARD)
    tensors = tuple(ckptzoo.Tensor(name, shape) for name, shape in SHAPES.items())
    row = [{"id": "a"}]
    weights = {name: np.ones((1, *shape), np.float32) for name, shape in SHAPES.items()}
    with ckptzoo.create(folder / "zoos/plain", arch=ckptzoo.Architecture("plain", tensors)) as writer:
        writer.add(weights, row)
    for name in ("mine", "damaged"):
        with ckptzoo.create(folder / "zoos" / name, arch=ARCH, symmetry=archs.symmetry("mlp-4-3-2")) as writer:
            writer.add(weights, row)
    linked = folder / "runs/seed0/step100.safetensors"
    linked.parent.mkdir(parents=True)
    save_file({"w": np.zeros(2, np.float32)}, linked)
    ckptzoo.link_zoo(folder / "runs", folder / "zoos/linked", license="mit")
    shutil.copytree(folder / "zoos/linked", folder / "zoos/moved")
    save_file({"w": np.ones(2, np.float32)}, linked)
    (folder / "net.pt").touch()
    (folder / "contribution.toml").write_text('contributor = "Ada"\n')
    return folder


@pytest.mark.slow
def test_errors_read_as_the_page_shows_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    isolate_clients(folder / "clients", monkeypatch)
    monkeypatch.delenv("CKPTZOO_DATA", raising=False)
    monkeypatch.chdir(folder)
    shown = dict(SECTION.findall(PAGE))
    assert list(shown) == list(CAUSES) and len(shown) >= 20
    for heading, cause in CAUSES.items():
        message = message_of(cause, capsys).replace(f"{folder}/", "")
        example = f"{shown[heading]}\n"
        matches = doctest.OutputChecker().check_output
        options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert matches(example, f"{message}\n", options), f"{heading}\n\n{message}"
        assert matches(f"...{heading}...\n", f"{message}\n", options), heading


def message_of(cause: Callable[[], object] | Arguments, capsys: pytest.CaptureFixture[str]) -> str:
    """What is raised, or what a command prints."""
    # servers of the causes before, and their clients, may have written since
    capsys.readouterr()
    try:
        code = run_ckptzoo(list(cause)) if isinstance(cause, tuple) else cause()
    except (ckptzoo.ZooError, ImportError) as error:
        return str(error)
    assert code in (1, 2, 3, 4, 5), cause
    printed = capsys.readouterr()
    return (printed.err or printed.out.splitlines()[0]).removeprefix("ckptzoo: error: ").strip()
