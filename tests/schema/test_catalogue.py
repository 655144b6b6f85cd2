"""The catalogue: every entry that comes with the package, what is refused by name, and what is found."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.errors import SpecError, UnknownNameError
from ckptzoo.hub.contributions.row_checks import unknown_licences
from ckptzoo.schema import Paper, PublishedSet
from ckptzoo.schema.catalogue import CATALOGUE, NOT_STATED, NOT_VERIFIED, read_catalogue
from tests.support.effort import examples

LEAST: dict[str, Any] = {
    "what": "Perceptrons on digits.", "architectures": "784-10", "license": "MIT", "form": "a file each",
    "addresses": ["https://example.org/a"], "tried": "not tried: no network", "commands": ["ckptzoo import a --to b"],
}  # fmt: skip
WRONG: dict[str, list[Any]] = {
    "what": ["", "two\nlines", 3, ["a"], "x" * 1_001, "\x07"],
    "architectures": ["", True],
    "license": ["", "Creative Commons", "unknown licence", 1, "MIT\n"],
    "form": ["", 1.5],
    "addresses": [
        [], "https://a.org", ["a.org"], ["ftp://a.org/b"], ["https://"], ["https://a.org/b c"], ["javascript:alert(1)"],
        ["https://u:p@a.org/"], ["https://a.org/<script>"], [1], ["https://a.org/"] * 41,
    ],
    "tried": ["", "yes", "2026-13-01 by me", "2026-01-31", "2026-01-31 by ", "not tried", "26-1-1 by me"],
    "networks": [0, -1, True, 1.0, "12", 2**63],
    "checkpoints": [0, "many"],
    "nbytes": [-5, 1e9],
    "approximate": [1, "true"],
    "before": ["Fetch it.", [""], ["a\nb"]],
    "commands": [["wget a"], ["ckptzoo"], ["ckptzoo import\na"], "ckptzoo import a", [2]],
    "tested": [1, "a\nb"],
    "papers": [[{"title": "A"}], [{"title": "", "arxiv": "2310.08287"}], [{"title": "A", "arxiv": "0310087"}],
               [{"title": "A", "doi": "zenodo.1"}], [{"title": 1, "doi": "10.5281/z.1"}], "A"],
    "notes": [False, "\x1b[31m"],
}  # fmt: skip
"""Values that a field does not take."""
ONE_OF = {"address": "addresses", "command": "commands"} | dict.fromkeys(
    ("paper", "title of a paper", "arxiv", "doi"), "papers"
)
"""Where a message is about one of a list."""
NAMES = st.from_regex(r"[a-z0-9]{1,8}(-[a-z0-9]{1,8}){0,2}", fullmatch=True)
LINE = st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), min_size=1, max_size=30).filter(
    lambda text: text.isprintable()
)
FULL = st.fixed_dictionaries(
    {key: st.just(value) for key, value in LEAST.items()} | {"what": LINE, "architectures": LINE, "form": LINE},
    optional={
        "networks": st.integers(1, 2**63 - 1),
        "checkpoints": st.integers(1, 2**63 - 1),
        "nbytes": st.integers(1, 10**15),
        "approximate": st.booleans(),
        "before": st.lists(LINE, max_size=3),
        "tested": LINE,
        "notes": LINE,
        "papers": st.lists(st.fixed_dictionaries({"title": LINE, "arxiv": st.just("2310.08287")}), max_size=2),
    },
)


def toml(entries: dict[str, dict[str, Any]]) -> bytes:
    """Tables as TOML; JSON's texts, numbers and lists are TOML's too."""

    def value(it: Any) -> str:
        if isinstance(it, dict):
            return "{" + ", ".join(f"{key} = {value(item)}" for key, item in it.items()) + "}"
        return f"[{', '.join(map(value, it))}]" if isinstance(it, list) else json.dumps(it, ensure_ascii=False)

    lines = (
        line
        for name, table in entries.items()
        for line in (f"[{json.dumps(name)}]", *(f"{key} = {value(item)}" for key, item in table.items()))
    )
    return "\n".join(lines).encode()


def entry(name: str, table: dict[str, Any]) -> PublishedSet:
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return PublishedSet(name, **values | {"papers": tuple(Paper(**paper) for paper in table.get("papers", []))})


def test_the_entries_that_come_with_the_package() -> None:
    entries = read_catalogue(CATALOGUE.read_bytes())
    assert entries == ckptzoo.catalogue() and len(entries) >= 13
    for found in entries:
        where = found.name
        assert found.networks is None or found.checkpoints is None or found.networks <= found.checkpoints, where
        assert found.license in (NOT_STATED, NOT_VERIFIED) or not unknown_licences(found.license), where
        for line in found.commands:
            # nobody's licence is made up: where none is known the command says so
            words = line.split()
            given = words[words.index("--license") + 1] if "--license" in words else found.license
            unknown = found.license in (NOT_STATED, NOT_VERIFIED)
            assert given == ("LicenseRef-unknown" if unknown else found.license), f"{where}: {line}"
        titles = [paper.address for paper in found.papers]
        assert len(set(titles)) == len(titles) and len(set(found.addresses)) == len(found.addresses), where


@settings(deadline=None, max_examples=examples(200))
@given(st.dictionaries(NAMES, FULL, max_size=4))
def test_entries_are_read_as_they_were_written(tables: dict[str, dict[str, Any]]) -> None:
    assert read_catalogue(toml(tables)) == tuple(entry(name, table) for name, table in tables.items())


@settings(deadline=None, max_examples=examples(500))
@given(st.lists(NAMES, min_size=1, max_size=3, unique=True), st.data())
def test_every_wrong_field_of_an_entry_is_named(names: list[str], data: st.DataObject) -> None:
    damaged = data.draw(st.sampled_from(names))
    fields = data.draw(st.lists(st.sampled_from(sorted(WRONG)), min_size=1, max_size=4, unique=True))
    wrong = {field: data.draw(st.sampled_from(WRONG[field])) for field in fields}
    with pytest.raises(SpecError) as caught:
        read_catalogue(toml({name: LEAST | wrong if name == damaged else LEAST for name in names}))
    assert {problem.location for problem in caught.value.problems} == {f"catalogue: {damaged!r}"}
    assert {ONE_OF.get(problem.what, problem.what) for problem in caught.value.problems} == set(fields)


@pytest.mark.parametrize("field", WRONG)
def test_values_that_a_field_does_not_take(field: str) -> None:
    for value in WRONG[field]:
        with pytest.raises(SpecError, match="catalogue: 'a': "):
            read_catalogue(toml({"a": LEAST | {field: value}}))


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"[a", "a catalogue in TOML"),
        (b"[a]\n[a]", "a catalogue in TOML"),
        (b"x = " + b"[" * 5_000, "a catalogue in TOML"),
        (b"x = " + b"9" * 5_000, "a catalogue in TOML"),
        (b"x = '\xff'", "a catalogue in TOML"),
        (b"# " + b"x" * 2**20, "at most 1,048,576 bytes"),
        (b"a = 1", r"catalogue.toml: \[a\]: entry: expected a table, got 1"),
        (b"[a]", r"\[a\]: keys: expected what, .*, got no what, architectures, license, addresses, form, tried"),
        (toml({"a": LEAST | {"licence": "MIT"}}), r"\[a\]: keys: .*, got licence. Did you mean license\?"),
        (toml({"a": LEAST | {"name": "b"}}), r"\[a\]: keys: .*, got name\."),
        (toml({"a": LEAST | {"papers": ["A"]}}), r"\[a\]: paper: entry: expected a table, got 'A'"),
        (toml({"a": LEAST | {"papers": [{"titel": "A"}]}}), r"\[a\]: paper: keys: .* Did you mean title\?"),
        (toml({"a": LEAST | {"papers": [{"doi": "10.1/a"}]}}), r"\[a\]: paper: keys: expected title, got no title"),
        (toml({"Big": LEAST}), r"catalogue: 'Big': name: expected at most 60 small letters and digits"),
        (toml({"a": LEAST | {"commands": []}}), "commands: expected a command, or in before what to do"),
    ],
)
def test_what_is_no_catalogue_is_refused(data: bytes, match: str) -> None:
    with pytest.raises(SpecError, match=match):
        read_catalogue(data)


def test_words_are_found_anywhere_and_a_name_alone() -> None:
    every = ckptzoo.catalogue()
    for found in every:
        assert ckptzoo.catalogue(found.name) == ckptzoo.catalogue(found.name.upper()) == (found,)
        assert found in ckptzoo.catalogue(found.what[5:25].swapcase())
        assert found in ckptzoo.catalogue(found.addresses[-1][8:])
    # polypythias has the word too, but the other has the name
    assert [found.name for found in ckptzoo.catalogue("pythia")] == ["pythia"]
    assert {"pythia", "polypythias"} <= {found.name for found in ckptzoo.catalogue("pythia-")}
    assert "small-cnn-zoo" in [found.name for found in ckptzoo.catalogue("2002.11448")]
    with pytest.raises(UnknownNameError, match=r"word 'wild-prak': .* Did you mean wild-park\?"):
        ckptzoo.catalogue("wild-prak")
    with pytest.raises(UnknownNameError, match=r"`ckptzoo catalogue` lists all\."):
        ckptzoo.catalogue("\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 300)


def test_it_is_read_without_arrays_or_network() -> None:
    code = (
        "import socket, sys; socket.socket = None; import ckptzoo; ckptzoo.catalogue('mnist');"
        "print([name for name in ('numpy', 'pyarrow', 'torch', 'rich', 'huggingface_hub') if name in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout == "[]\n"
