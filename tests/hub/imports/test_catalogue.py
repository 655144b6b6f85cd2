"""The catalogue's commands, with a small zoo of their format in the place of the set."""

import shlex
from pathlib import Path

import pytest

import ckptzoo
from ckptzoo.cli.app import run
from tests.support.published_zoos import FORMATS

COMMANDS = {
    line: words[words.index("--as") + 1]
    for entry in ckptzoo.catalogue()
    for line in entry.commands
    if "--as" in (words := shlex.split(line))
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_reads_the_format_that_it_names(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = FORMATS[COMMANDS[line]](tmp_path / "published")
    if (tmp_path / "published/layout.csv").exists():
        (tmp_path / "published/layout.csv").rename(tmp_path / "layout.csv")
    program, command, _, *options = shlex.split(line)
    assert (program, command) == ("ckptzoo", "import")
    assert run([command, "published", *options]) == 0
    zoo = ckptzoo.open(options[options.index("--to") + 1])
    assert len(zoo) == len(made)
    if "--dataset" in options:
        assert set(zoo.metadata["dataset"].to_pylist()) == {options[options.index("--dataset") + 1]}


def test_every_format_of_published_zoos_is_that_of_a_set() -> None:
    assert set(COMMANDS.values()) == set(FORMATS) - {"files"}
