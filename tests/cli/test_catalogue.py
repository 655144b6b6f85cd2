"""``ckptzoo catalogue``: the list, what a word finds, one set in full, JSON."""

import ckptzoo
from tests.cli.conftest import Cli
from tests.support.effort import ALL


def test_the_list_has_a_line_for_each_set(cli: Cli) -> None:
    ended = cli("catalogue")
    lines = ended.out.splitlines()
    assert ended.code == 0 and lines[0].split() == ["name", "checkpoints", "size", "licence", "what"]
    for line, entry in zip(lines[1:], ckptzoo.catalogue(), strict=False):
        assert line.startswith(f"{entry.name} ") and entry.what in line and entry.license in line
        assert entry.count(entry.checkpoints) in line and entry.size in line
    assert lines[-1].startswith(f"{len(ckptzoo.catalogue())} sets. ckptzoo catalogue NAME")


def test_a_word_lists_those_that_have_it_and_a_name_shows_one(cli: Cli) -> None:
    listed = cli("catalogue", "INDEPENDENT starts")
    assert [line.split()[0] for line in listed.out.splitlines()[1:-2]] == ["torch-uncertainty"]
    assert listed.out.endswith("1 set. ckptzoo catalogue NAME shows one with its addresses and commands.\n")
    for entry in ckptzoo.catalogue()[:: 1 if ALL else 4]:
        shown = cli("catalogue", entry.name).out
        papers = [text for paper in entry.papers for text in (paper.title, paper.address)]
        texts = [entry.what, entry.architectures, entry.license, entry.form, entry.tried, entry.tested, entry.notes]
        assert all(text in shown for text in (*texts, *entry.addresses, *entry.before, *papers)), entry.name
        # a command stands on a line of its own, to be copied
        assert set(entry.commands) <= set(shown.splitlines())
    assert cli("catalogue", "Wild-Park").out == cli("catalogue", "wild-park").out


def test_json_has_whole_entries(cli: Cli) -> None:
    assert [entry["name"] for entry in cli("catalogue", "--json").json["entries"]] == [
        entry.name for entry in ckptzoo.catalogue()
    ]
    (entry,) = cli("catalogue", "wild-park", "--json").json["entries"]
    assert entry["checkpoints"] == 117_241 and entry["nbytes"] is None
    assert entry["papers"][0]["arxiv"] == "2403.12143" and entry["commands"][0].startswith("ckptzoo import ")


def test_a_word_that_occurs_nowhere(cli: Cli) -> None:
    ended = cli("catalogue", "mnits")
    assert ended.code == 2 and not ended.out and ended.line.endswith("Did you mean mnist?")
    assert cli("catalogue", "zzzz\x1b[31m", "--json").line.endswith("`ckptzoo catalogue` lists all.")
