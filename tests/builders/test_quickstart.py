"""The quickstart; ``make quickstart`` runs all of it."""

from pathlib import Path

import pytest

from builders.__main__ import run


def test_too_few_members_to_compare_are_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["quickstart", "--members", "3", "--to", str(tmp_path / "zoo")]) == 2
    said = "builders: error: quickstart: members: expected 4 or more, because two halves are compared, got 3."
    assert capsys.readouterr().err.startswith(said)
    assert list(tmp_path.iterdir()) == []
