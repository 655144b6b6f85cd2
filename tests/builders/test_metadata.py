"""What the rows of a build say of the program that made them."""

import subprocess
from pathlib import Path

import pytest

from builders import metadata


def test_the_commit_is_that_of_a_checkout_which_tracks_the_builders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation in an environment within somebody's project has none, whatever that project has committed."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=ada", "-c", "user.email=ada@example.org"]
    place = tmp_path / "env/builders"
    place.mkdir(parents=True)
    (place / "metadata.py").write_text("")
    monkeypatch.setattr(metadata, "__file__", str(place / "metadata.py"))
    found = metadata.commit.__wrapped__
    assert found() is None
    (tmp_path / "own.py").write_text("")
    for words in (["init", "--quiet"], ["add", "own.py"], ["commit", "--quiet", "-m", "own"]):
        subprocess.run([*git, *words], check=True)
    assert found() is None
    for words in (["add", "env"], ["commit", "--quiet", "-m", "builders"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert found() == head
    (place / "metadata.py").write_text("changed")
    assert found() == f"{head}+"
