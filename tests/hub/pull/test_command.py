"""``ckptzoo pull`` as a person types it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

import ckptzoo
from ckptzoo.cli.app import run as run_here
from ckptzoo.cli.hub import pull
from tests.hub.pull.conftest import REPO, Publish, verified
from tests.support.hub_zoos import files_of
from tests.support.server_layers import FaultPlan

ROOT = Path(__file__).parents[3]
PROGRAM = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import typer
import ckptzoo.cli.app
from ckptzoo.cli import main
from ckptzoo.cli.hub import pull
app = typer.Typer()
app.command()(pull)
app.callback()(lambda: None)
ckptzoo.cli.app.app = app
main()
"""


def run(*arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The command in a process of its own."""
    command = [sys.executable, "-c", PROGRAM, "pull", *map(str, arguments)]
    own = {**os.environ, **environment}
    return subprocess.run(command, env=own, capture_output=True, text=True, timeout=60, check=False)


def test_a_part_from_a_hub(
    derived: Path, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = publish(derived)
    asked = ("--variant", "canonical", "--layers", "conv1,fc", "--where", "seed < 2")
    done = run(REPO, "-o", tmp_path / "got", *asked, HF_ENDPOINT=server.url)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"{tmp_path / 'got'}: 6 checkpoints (canonical) of {REPO}."
    assert lines[1].startswith("6 parts came, 0 were there; ") and lines[2].startswith("revision ")
    assert verified(tmp_path / "got").arch.names == ("conv1.weight", "fc.weight", "fc.bias")
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    assert run_here(["pull", REPO, "-o", str(tmp_path / "got"), *asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["parts"], found["there"], found["fetched"], found["checkpoints"]) == ([], 6, 0, 6)
    assert run_here(["pull", REPO, "-o", str(tmp_path / "got")]) == 2
    assert "expected variants canonical; layers conv1, fc; where seed < 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("{zoo}", "-o", "{got}", "--variant", "cannonical"), 2, "Did you mean canonical"),
        (("{zoo}", "-o", "{got}", "--layers", "fc,conv3"), 2, "layer 'conv3'"),
        (("{zoo}", "-o", "{got}", "--where", "seeed < 3"), 2, "Did you mean seed"),
        (("{got}/none", "-o", "{got}"), 2, "expected a folder"),
        (("{zoo}",), 2, "Missing option '--output' / '-o'"),
        (("{zoo}", "-o", "{zoo}/zoo.json"), 2, "expected a folder, got the file"),
    ],
)
def test_what_is_wrong_is_one_line_and_a_code(
    derived: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    assert run_here(["pull", *(text.format(zoo=derived, got=tmp_path / "got") for text in arguments)]) == code
    said = capsys.readouterr()
    assert said.out == "" and message in said.err and said.err.count("\n") == 1
    assert not (tmp_path / "got").exists()


@pytest.mark.exhaustive
def test_an_interrupt_says_how_to_carry_on(wide: Path, publish: Publish, tmp_path: Path) -> None:
    server = publish(wide, plan=FaultPlan(at=(0, 1), kinds=("trickle",), operations=("blob",), wait=20.0))
    command = [sys.executable, "-c", PROGRAM, "pull", REPO, "-o", str(tmp_path / "got")]
    own = {**os.environ, "HF_ENDPOINT": server.url}

    def listening() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(
        command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listening
    ) as process:
        while not list(tmp_path.glob("got/.ckptzoo-pull/**/*.safetensors")):
            time.sleep(0.05)
        time.sleep(0.5)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, message = process.communicate(timeout=60)
    assert time.monotonic() - began < 5
    assert process.returncode == 130 and out == ""
    assert "ckptzoo: interrupted: what was fetched is kept; carry on with the same command.\n" in message
    assert "Traceback" not in message
    assert run(REPO, "-o", tmp_path / "got", HF_ENDPOINT=server.url).returncode == 0
    assert files_of(tmp_path / "got") == files_of(wide)


def test_names_are_completed(derived: Path) -> None:
    context: Any = typer.Context(typer.main.get_command(_app()))
    context.params["zoo"] = str(derived)
    parameters = {item.name: item for item in context.command.params}
    found = [item.value for item in parameters["layers"].shell_complete(context, "fc,co")]
    assert found == ["fc,conv1", "fc,conv2"]
    found = [item.value for item in parameters["variant"].shell_complete(context, "can")]
    assert found == ["canonical"]
    context.params["zoo"] = str(derived / "none")
    assert parameters["layers"].shell_complete(context, "") == []


def _app() -> typer.Typer:
    app = typer.Typer()
    app.command()(pull)
    return app


def test_the_library_is_light(derived: Path) -> None:
    code = "import sys, ckptzoo.hub.pull; print([name for name in ('torch', 'datasets') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
    assert ckptzoo.open(derived).name == "zoo"
