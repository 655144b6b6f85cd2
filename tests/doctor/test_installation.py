"""Python, packages and extras, of the release that is installed and of one that asks for more."""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

import ckptzoo
import ckptzoo_build
from ckptzoo.doctor import NOTE, OK, PROBLEM, Check, Examination, installation

RELEASE = """Metadata-Version: 2.1
Name: ckptzoo
Version: 9.0
Requires-Dist: numpy>=1.26
Requires-Dist: rich<{rich}
Provides-Extra: plot
Provides-Extra: gone
Provides-Extra: all
Provides-Extra: dev
Requires-Dist: matplotlib>=3.8; extra == "plot"
Requires-Dist: no-such-package>=2; extra == "gone"
Requires-Dist: pillow>=10; extra == "gone"
Requires-Dist: ckptzoo[plot,gone]; extra == "all"
Requires-Dist: windows-only; platform_system == "Windows" and extra == "plot"
"""


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, **versions: str) -> dict[str, Check]:
    """The checks of packages where such a release was installed last."""
    (folder / "ckptzoo-9.0.dist-info").mkdir()
    (folder / "ckptzoo-9.0.dist-info" / "METADATA").write_text(RELEASE.format(**versions))
    monkeypatch.syspath_prepend(folder)
    return {check.name: check for check in installation.packages()}


def test_extras_are_there_or_have_the_command_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = installed(tmp_path, monkeypatch, rich="1000")
    assert list(checks) == ["packages", "extra all", "extra gone", "extra plot"]
    assert checks["packages"].outcome == OK and "windows" not in str(checks)
    assert checks["extra plot"].outcome == OK
    assert checks["extra plot"].detail == f"matplotlib {metadata.version('matplotlib')}"
    pillow = f"pillow {metadata.version('pillow')}"
    detail = f"not installed: no-such-package; installed: {pillow}"
    assert checks["extra gone"] == Check("extra gone", NOTE, detail, "pip install 'ckptzoo[gone]'")
    assert checks["extra all"].outcome == NOTE and "matplotlib" in checks["extra all"].detail


def test_a_version_that_does_not_fit_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = installed(tmp_path, monkeypatch, rich="2")["packages"]
    assert (check.outcome, check.step) == (PROBLEM, "pip install --upgrade ckptzoo")
    assert f"expected rich<2, got {metadata.version('rich')}" in check.detail


def test_this_installation() -> None:
    checks = {check.name: check for check in installation.checks()}
    assert re.match(r"3\.\d+\.\d+", checks["python"].detail)
    assert checks["ckptzoo"].detail.startswith(ckptzoo.__version__)
    assert checks["packages"].outcome == OK and "extra dev" not in checks
    assert checks["extra torch"].outcome == OK and checks["gpu"].outcome in (OK, NOTE)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_named() -> None:
    check = installation.gpu()
    assert check.outcome == OK and torch.cuda.get_device_name(0) in check.detail and "driver" in check.detail


@pytest.mark.exhaustive
def test_another_package_named_builders_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found before ours, in the current folder, without recipes, and with files among ours."""
    own = Path(ckptzoo.__file__).parents[1] / "builders"
    assert installation.builders_package() == Check("builders", OK, str(own))

    foreign = tmp_path / "first/builders"
    foreign.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "first")
    assert installation.builders_package().outcome == NOTE and str(foreign) in installation.builders_package().detail
    for version, outcome in ((ckptzoo.__version__, OK), ("0.0.0", NOTE)):  # a checkout beside the installation
        (tmp_path / "first/ckptzoo").mkdir(exist_ok=True)
        (tmp_path / "first/ckptzoo/__init__.py").write_text(f'x = 1\n__version__ = "{version}"\n')
        assert installation.builders_package().outcome == outcome
    shutil.rmtree(tmp_path / "first/ckptzoo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(foreign.parent)
    assert installation.builders_package().outcome == OK, "a folder without __init__.py comes after a package"

    for module in ("builders/__init__.py", "builders.py"):
        folder = tmp_path / module.replace("/", "-")
        (folder / module).parent.mkdir(parents=True, exist_ok=True)
        (folder / module).write_text("raise RuntimeError('it was imported')")
        command = [sys.executable, "-c", "import sys, ckptzoo_build; sys.exit(ckptzoo_build.main())", "recipes"]
        environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{own.parent}"}
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and done.stderr.startswith("ckptzoo-build: error: builders: expected"), done.stderr
        assert str(folder / "builders") in done.stderr and str(own) in done.stderr

    other = tmp_path / "other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (other / "RECORD").write_text("builders/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = installation.builders_package()
    assert found.outcome == PROBLEM and "got those of other" in found.detail and "pip uninstall other" in found.step


@pytest.mark.exhaustive
def test_the_console_command_is_the_module(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ckptzoo-build", "recipes"])
    assert ckptzoo_build.main() == 0 and "toy" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["ckptzoo-build", "build", "--help"])
    assert ckptzoo_build.main() == 0 and "Usage: ckptzoo-build build" in capsys.readouterr().out


def test_extras_are_printed_together_and_problems_by_themselves() -> None:
    kinds = ((OK, "a"), (NOTE, "b"), (OK, "c"), (PROBLEM, "d"), (NOTE, "e"))
    checks = [Check(f"extra {name}", outcome, "x 1", "") for outcome, name in kinds]
    out = Console(width=200, file=StringIO())
    Examination([Check("python", OK, "3"), *checks, Check("gpu", OK, "none")]).print(out)
    lines = [line.split() for line in out.file.getvalue().splitlines()]
    assert lines[0][:2] == ["ok", "python"] and lines[1] == ["ok", "extras", "installed:", "a,", "c"]
    assert lines[2] == ["note", "extras", "not", "installed:", "b,", "e"] and lines[3][:2] == ["pip", "install"]
    assert lines[4][:3] == ["problem", "extra", "d"] and lines[-1] == ["1", "problem,", "1", "note."]
