"""What dry runs leave behind stays in the test's folder."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def scratch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Temporary folders are made in the test's."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))


@pytest.fixture(autouse=True)
def no_test_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracies are measured again where a test brings the test set, and not where this machine has one."""
    monkeypatch.delenv("CKPTZOO_DATA", raising=False)
