"""Exit codes and single lines for everything that can go wrong."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import ckptzoo
from ckptzoo import errors
from ckptzoo.cli.exits import OUTCOMES, code_of, described, stopping_imports


def test_help_lists_commands_and_every_exit_code(cli: Any) -> None:
    ended = cli("--help")
    assert ended.code == 0 and ended.err == "" and cli().out == ended.out
    for command in ("info", "verify", "show", "export", "derive", "compact", "retract"):
        assert f"\n  {command} " in ended.out
        assert cli(command, "--help").code == 0
    for outcome in OUTCOMES:
        assert f" {outcome.code}  {outcome.meaning}\n" in ended.out


def test_version(cli: Any) -> None:
    ended = cli("--version")
    assert (ended.code, ended.out) == (0, f"ckptzoo {ckptzoo.__version__}\n")


def test_every_error_has_its_code() -> None:
    problem = errors.Problem("a", "b", "c", "d", "e")
    expected = {
        errors.ZooError("x"): 2,
        errors.UnknownNameError("a", "b", "c", ()): 2,
        errors.StateError("x"): 2,
        errors.SpecError(problem): 3,
        errors.IntegrityError(problem): 3,
        errors.SymmetryError("x"): 4,
        errors.AbsentError(problem): 2,
        errors.RemoteError(problem): 5,
        errors.OfflineError(problem): 5,
        errors.HubError(problem): 5,
        errors.MissingExtraError("torch", "torch"): 4,
        OSError("x"): 4,
        MemoryError(): 4,
        KeyError("x"): 70,
        KeyboardInterrupt(): 130,
    }
    assert {error: code_of(error) for error in expected} == expected
    raised = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)}
    assert {kind.__name__ for kind in raised} <= {type(error).__name__ for error in expected} | {"_ProblemsError"}


@pytest.mark.parametrize("command", ["info", "verify", "show", "derive", "compact"])
def test_no_such_zoo(cli: Any, tmp_path: Path, command: str) -> None:
    ended = cli(command, tmp_path / "nets")
    assert ended.code == 2 and "expected a" in ended.line and "folder, got nothing" in ended.line and ended.out == ""


def test_a_folder_that_is_no_zoo(cli: Any, tmp_path: Path) -> None:
    ended = cli("info", tmp_path)
    assert ended.code == 3 and "zoo.json" in ended.line
    assert cli("verify", tmp_path).code == 1


def test_a_file_is_no_zoo_and_no_hub_is_asked(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ckptzoo.remote.remote._checked_endpoint", lambda endpoint: pytest.fail("asked"))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "net.pt").write_bytes(b"")
    ended = cli("info", "runs/net.pt")
    assert ended.code == 2 and "expected a folder, got a file" in ended.line and "ckptzoo import" in ended.line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("frobnicate",), "frobnicate"),
        (("info",), "Missing argument 'ZOO'"),
        (("info", "ZOO", "--frob"), "--frob"),
        (("info", "ZOO", "--where", "test_acuracy > 1"), "Did you mean test_accuracy"),
        (("info", "ZOO", "--where", "__import__('os').system('true')"), "expected a comparison"),
        (("info", "ZOO", "--where", "seed <"), "expected a condition"),
        (
            ("info", "ZOO", "--where", "seed == 'a'"),
            "expected a number to compare the column 'seed' (int64) with, got the string 'a'",
        ),
        (("derive", "ZOO", "--gauge", "first-wait"), "Did you mean first-weight?"),
        (("export", "ZOO", "x\udcff", "-o", "none.pt"), "command line: text: expected UTF-8, got 'x\\udcff'"),
    ],
)
def test_wrong_usage_is_one_line(cli: Any, optunets: Any, arguments: tuple[str, ...], said: str) -> None:
    path, _ = optunets
    ended = cli(*(path if word == "ZOO" else word for word in arguments))
    assert ended.code == 2 and ended.line.startswith("ckptzoo: error: ") and said in ended.line and ended.out == ""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            IsADirectoryError(21, "Is a directory", "x"),
            "x: path: expected a file, got Is a directory. Name a file in it.",
        ),
        (OSError(28, "Full. Make room", "x"), "x: path: expected room on the disk, got Full. Make room"),
        (
            OSError(5, "Input/output error"),
            "system: call: expected the system to do it, got Input/output error. Correct the cause and repeat.",
        ),
        (
            MemoryError("Unable to allocate 9 TiB."),
            "memory: room: expected enough, got Unable to allocate 9 TiB. Ask for less, such as fewer checkpoints.",
        ),
        (OSError("no number"), "no number"),
        (OSError(28, "room: expected 3 bytes, got 2. Make room.", "x"), "x: room: expected 3 bytes, got 2. Make room."),
    ],
)
def test_errors_of_the_system_have_the_form_of_all_others(error: OSError | MemoryError, said: str) -> None:
    assert described(error) == said


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("raises", "raises(): expected a torch module, got RuntimeError: mine"),
        ("exits", "exits(): expected a torch module, got SystemExit: 3"),
        ("number", "number(): expected a torch module, got int"),
    ],
)
def test_what_a_network_of_the_users_own_raises(cli: Any, optunets: Any, tmp_path: Path, name: str, got: str) -> None:
    functions = {"raises": "raise RuntimeError('mine')", "exits": "raise SystemExit(3)", "number": "return 3"}
    (tmp_path / "net.py").write_text("\n".join(f"def {key}():\n    {body}" for key, body in functions.items()))
    for command in (("derive",), ("align", "--to", "best"), ("predict", "a/b")):
        ended = cli(command[0], optunets[0], *command[1:], "--module", f"{tmp_path}/net.py:{name}")
        assert ended.code == 2 and got in ended.line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--mean", "a"), "expected numbers such as 0.5 or 0.49,0.48,0.45, got 'a'"),
        (("--std", "0"), "scaling: expected finite means, and positive standard deviations, one or one a channel"),
        (("--names", "none"), "none: file: expected one that can be read, got No such file or directory"),
        (("--names", "bytes"), "bytes: text: expected UTF-8"),
        (("--names", "text"), "text: expected TOML"),
        (("--layout", "bytes"), "bytes: text: expected UTF-8"),
        (("--layout", "none"), "expected a file, got 'none', which is none or cannot be read"),
    ],
)
def test_files_and_numbers_that_an_import_cannot_use(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bytes").write_bytes(b"\xff\xfe\x80")
    Path("text").write_text("no TOML")
    save_file({"w": np.ones(3, "float32")}, "net.safetensors")
    ended = cli("import", "net.safetensors", "--to", "new", "--license", "MIT", *options)
    assert ended.code == 2 and said in ended.line and not Path("new").exists()


def test_many_problems_are_one_line_that_counts_them(cli: Any, optunets: Any) -> None:
    path, _ = optunets
    for shard in path.glob("parts/*/*.safetensors"):
        shard.write_bytes(b"short")
    ended = cli("info", path)
    assert ended.code == 3 and "(1 more: ckptzoo verify lists them.)" in ended.line


def test_a_missing_extra_names_its_command(cli: Any, optunets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "ckptzoo.studies.plots.overview", raising=False)
    monkeypatch.delattr("ckptzoo.studies.plots.overview", raising=False)
    ended = cli("show", optunets[0])
    assert ended.code == 4 and "pip install 'ckptzoo[plot]'" in ended.line


def test_a_mistake_of_ours_is_one_line_and_debug_shows_where(
    cli: Any, optunets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("first\nsecond")

    monkeypatch.setattr("ckptzoo.studies.inventory.inventory", broken)
    ended = cli("info", optunets[0])
    assert ended.code == 70 and "KeyError" in ended.line and "--debug" in ended.line
    shown = cli("--debug", "info", optunets[0])
    assert shown.code == 70 and shown.err.startswith("Traceback") and "in broken" in shown.err
    assert shown.err.splitlines()[-1] == ended.line


def test_debug_shows_the_traceback_of_an_expected_error(cli: Any, tmp_path: Path) -> None:
    ended = cli("--debug", "info", tmp_path / "nets")
    assert ended.code == 2 and "Traceback" in ended.err and "ckptzoo: error: " in ended.err


_INTERRUPTED_IMPORT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background of a shell inherit that it is ignored
sys.path.insert(0, sys.argv[1])
from ckptzoo.cli.exits import stopping_imports
with stopping_imports("builders", "nothing was done."):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        print("caught")
    import interrupts
"""


def test_an_interrupt_while_packages_are_imported_ends_with_a_line(tmp_path: Path) -> None:
    (tmp_path / "interrupts.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_IMPORT, tmp_path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        130,
        "caught\n",
        "builders: interrupted: nothing was done.\n",
    )
    before = signal.getsignal(signal.SIGINT)
    with stopping_imports("builders", "nothing was done."):
        pass
    assert signal.getsignal(signal.SIGINT) is before
