"""Every block of the README and of the guide runs, in a fresh folder, against a small zoo of the README's name."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from builders.__main__ import run as builders_command
from builders.estimate import estimate
from ckptzoo import archs
from ckptzoo.cli.app import run as ckptzoo_command
from ckptzoo.hub.pull import pull
from tests.support.effort import ALL
from tests.support.tutorials import BLOCK, Block

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LEARNING, STUDIES = ROOT / "docs/guide/learning.md", ROOT / "docs/studies.md"
PAGES = [ROOT / "README.md", ROOT / "docs/index.md", *sorted({*ROOT.glob("docs/guide/*.md")} - {LEARNING})]
# the commands on the other pages are for files of others, for a hub, or for many machines
SHELL_PAGES = [ROOT / "README.md", ROOT / "docs/guide/commands.md", ROOT / "docs/guide/training.md"]


def blocks(kind: str, *pages: Path) -> list[str]:
    """The blocks of one language on some pages."""
    return [text for page in pages for text in re.findall(rf"```{kind}\n(.*?)```", page.read_text(), re.DOTALL)]


def python_blocks(*pages: Path) -> list[tuple[str, str]]:
    """The Python programs of some pages, each with the output that is shown below it, if there is one."""
    found = [block for page in pages for block in BLOCK.findall(page.read_text())]
    return [(program, output) for kind, program, output in found if kind == "python"]


IN_TURN = """
import json, os, sys
for folder, program in json.load(sys.stdin):
    os.chdir(folder)
    exec(compile(program, program, "exec"), {"__name__": "__main__"})
    print("\\f")
"""
"""Programs, each with names and a folder of its own, in one process, which imports torch once."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A fresh folder with the zoos of a clone, and zoos/digits-optunet: 32 random OptuNets with a canonical variant."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "cards", folder / "cards")
    (folder / "zoos").mkdir()
    arch, rng = archs.architecture("optunet"), np.random.default_rng(0)
    weights = {tensor.name: rng.normal(size=(32, *tensor.shape)).astype("f4") for tensor in arch.tensors}
    rows = [{"id": f"member-{seed}", "seed": seed, "test_accuracy": 0.75 + seed / 150} for seed in range(32)]
    with ckptzoo.create(folder / "zoos/digits-optunet", arch=arch, symmetry=archs.symmetry("optunet")) as writer:
        writer.add(weights, rows)
    from ckptzoo.derive import derive

    derive(folder / "zoos/digits-optunet", gauge="canonical")
    return folder


@pytest.fixture(scope="module")
def few(folder, tmp_path_factory):
    """The same with 320 of the 8,192 networks on MNIST, which is what studies take their time for; in full all of them."""
    if ALL:
        return folder
    few = tmp_path_factory.mktemp("few")
    shutil.copytree(folder, few, ignore=shutil.ignore_patterns("mnist-optunet"), dirs_exist_ok=True)
    pull(str(folder / "cards/mnist-optunet"), few / "cards/mnist-optunet", where="seed < 320")
    return few


def run_shell(block):
    """Run the lines in this process, which has imported torch already, in the current folder."""
    for line in block.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["ckptzoo"]:
            assert ckptzoo_command(words[1:]) == 0, line
        elif words[:3] == ["python", "-m", "builders"]:
            assert builders_command(words[3:]) == 0, line


@pytest.mark.timeout(900)  # of the full run
def test_python_blocks_run(folder, few, monkeypatch):
    """The page about learning in full where all tests are asked for; else with fewer networks and one epoch."""
    text = LEARNING.read_text()
    if not ALL:
        opened = 'zoo = ckptzoo.open("cards/mnist-optunet")'
        assert text.count(opened) == 2
        text = text.replace(opened, f"{opened}[:1024]")
        text = text.replace("--members 48 --epochs 5 --keep-steps 10,30,90", "--members 12 --epochs 1")
        text = text.replace("range(8)", "range(1)").replace("batch_size=16 if", "batch_size=4 if")
        assert "--members 12" in text and "range(1)" in text and "batch_size=4" in text
    monkeypatch.chdir(folder)
    (lines,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    run_shell(lines)
    plain, shown = zip(*python_blocks(*PAGES), strict=True)
    learning = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    programs = [(few, program) for program in blocks("python", STUDIES)]
    programs += [(folder, program) for program in (*learning, *plain)]
    environment = dict(os.environ, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}", PYTHONPATH=str(ROOT))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IN_TURN],
        input=json.dumps(programs, default=str), env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    printed = done.stdout.split("\f\n")[len(blocks("python", STUDIES)) : -1]

    wrong = [
        f"{program}shows\n{output}prints\n{found}"
        for program, output, found in zip(plain, shown, printed[len(learning) :], strict=True)
        if output and not Block("python", program, output, found).is_right
    ]
    assert not wrong and sum(map(bool, shown)) >= 7, "\n".join(wrong)

    promises = re.findall(r"# (\([\d, ]+\))$", "".join(plain), re.MULTILINE)
    assert len(plain) >= 13 and len(promises) >= 7
    for promised in promises:
        assert promised in "".join(printed[len(learning) :])
    out = "".join(printed[: len(learning)])
    assert out.startswith("torch.Size([64, 10, 1, 5, 5]) torch.Size([64]) 64\n")
    flat, *graphs = [float(found) for found in re.findall(r"tensor\((.*?)\)", out)]
    assert len(graphs) == 2 and flat > 0.4
    if ALL:
        assert all(found > 0.5 for found in graphs)


@pytest.mark.parametrize("block", [*blocks("sh", *SHELL_PAGES), blocks("sh", STUDIES)[0]])
def test_shell_lines_run(few, block, monkeypatch):
    """In this process; tutorials start the programs themselves."""
    monkeypatch.chdir(few)
    monkeypatch.setitem(estimate.__kwdefaults__, "seconds", 0.2)  # of training, for `python -m builders estimate`
    run_shell(block)


def test_the_make_lines_are_targets_and_the_extras_exist():
    makefile, project = (ROOT / "Makefile").read_text(), (ROOT / "pyproject.toml").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    named = re.findall(
        r"pip install '(?:\.|ckptzoo)\[([\w,]+)\]'",
        "".join(page.read_text() for page in ROOT.glob("docs/**/*.md")) + README,
    )
    assert len(named) > 15
    for extra in ",".join(named).split(","):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra


def test_the_readme_is_short():
    assert len(README.splitlines()) < 100
