"""How far long work is: in a terminal, in the log of a job, and in a notebook of a real kernel."""

import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from ckptzoo import progress
from ckptzoo.progress import progress_bar, progress_bars

ROOT = Path(__file__).parents[2]
WORK = """
import time
from ckptzoo.progress import progress_bar
with progress_bar("deriving canonical") as update:
    for done in range(5):
        time.sleep(0.15)
        update(done, 4)
"""


def test_a_terminal_has_a_bar_that_vanishes() -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen([sys.executable, "-c", WORK], env=environment, stdout=follower, stderr=follower) as process:
        os.close(follower)
        shown = b""
        # Linux ends the reading of a terminal that nobody writes to any more by an error
        while chunk := _read(leader):
            shown += chunk
    os.close(leader)
    assert process.returncode == 0
    text = shown.decode()
    assert "deriving canonical" in text and "━" in text and "/4" in text
    assert text.rstrip("\r\n").endswith("\x1b[2K")  # the line is cleared


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""


def test_a_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.05)
    with progress_bar("pulling", nbytes=True) as update:
        update(0, 10_000_000)
        time.sleep(0.1)
        update(4_000_000, 10_000_000)
        update(5_000_000, 10_000_000)
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == ""
    assert line.startswith("pulling: 4 MB of 10 MB, ") and line.endswith(":00:00 left") and "MB/s" in line


def test_work_that_takes_hours_has_few_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds)
    with progress_bars() as update:
        for step in range(36_001):
            seconds = float(step)
            update("reading", step, 36_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "reading: 0 %, 9:59:55 left" and 20 < len(lines) < 60


def test_short_work_has_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars() as update:
        for stage in ("reading", "writing"):
            update(stage, 1, 1)
    assert capsys.readouterr().err == ""


def outputs_of(*cells: str) -> tuple[list[list[Any]], dict[str, Any]]:
    """The outputs of each cell of a notebook that a real kernel ran, and the state of its widgets."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}})
    client.execute()
    return [cell["outputs"] for cell in notebook.cells], client.widget_state


@pytest.mark.parametrize("with_widgets", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_a_notebook_has_a_bar_and_then_a_line(with_widgets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # what the kernel sends while it works; afterwards only the last of it is in the notebook
    sent: list[Any] = []
    handled = NotebookClient.process_message

    def keep(client: Any, message: Any, *rest: Any) -> Any:
        sent.append(message)
        return handled(client, message, *rest)

    monkeypatch.setattr(NotebookClient, "process_message", keep)
    without = "import sys; sys.modules['ipywidgets'] = None"
    outputs, widgets = outputs_of("pass" if with_widgets else without, WORK)
    (shown,) = outputs[1]
    assert shown["output_type"] == "display_data"
    assert list(shown["data"]) == ["text/plain"]
    assert shown["data"]["text/plain"].startswith("deriving canonical: 4 of 4 in 0:00:0")
    bundles = [message["content"]["data"] for message in sent if message["msg_type"].endswith("display_data")]
    bars = [state for state in widgets.values() if state.get("_model_name") == "FloatProgressModel"]
    if with_widgets:
        assert "application/vnd.jupyter.widget-view+json" in bundles[0] and len(bundles) == 2
        values = [
            message["content"]["data"]["state"]["value"]
            for message in sent
            if message["msg_type"] == "comm_msg" and "value" in message["content"]["data"].get("state", {})
        ]
        assert {0.25, 0.5, 0.75, 1.0} <= {value for value in values if isinstance(value, float)}
        assert "deriving canonical: 3 of 4, 0:00:00 left" in values
    else:
        assert not bars and len(bundles) > 3
        assert {"deriving canonical: 2 of 4, 0:00:00 left"} <= {bundle["text/plain"] for bundle in bundles}


@pytest.mark.exhaustive
def test_an_error_leaves_how_far_the_work_was() -> None:
    cell = """
from ckptzoo.progress import progress_bars
try:
    with progress_bars() as update:
        update("reading", 4, 4)
        update("writing", 1, 4)
        raise KeyboardInterrupt
except KeyboardInterrupt:
    pass
"""
    outputs, _ = outputs_of(cell)
    texts = [shown["data"]["text/plain"].partition(",")[0] for shown in outputs[0]]
    assert texts == ["reading: 100 % in 0:00:00", "writing: 25 %"]
