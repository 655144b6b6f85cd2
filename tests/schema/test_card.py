"""What a person says about a zoo: read, refused, written, read again."""

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import SpecError
from ckptzoo.schema.card import Card

CARDS = Path(__file__).parents[2] / "cards"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.text(
    '"\\\n\r\t #=[]\x00\x7f\u2028é', max_size=20
)
TAG = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Cf", "Cn", "Co", "Zs", "Zl", "Zp"]), min_size=1, max_size=20
)


@settings(deadline=None)
@given(
    st.builds(
        Card,
        TEXT.filter(str.strip),
        summary=TEXT,
        license=TEXT,
        dataset=TEXT,
        authors=st.lists(TEXT, max_size=3).map(tuple),
        citation=TEXT,
        tags=st.lists(TAG, max_size=3).map(tuple),
        title=TEXT,
        repository=st.sampled_from(["", "lab/zoo", "a/b.c-d_e"]),
        training=TEXT,
        notes=TEXT,
    )
)
def test_a_card_is_read_as_it_was_written(card: Card) -> None:
    text = card.to_toml()
    assert Card.from_bytes(text.encode()) == card
    assert Card.from_bytes(text.replace("\n", "\r\n").encode()) == card


def test_paragraphs_stay_readable_in_the_file() -> None:
    card = Card("a", training='First "line".\n\nSecond \\ line.', license="mit")
    assert card.to_toml() == 'name = "a"\nlicense = "mit"\ntraining = """\nFirst \\"line\\".\n\nSecond \\\\ line."""\n'


def test_every_problem_of_a_card_is_reported() -> None:
    with pytest.raises(SpecError) as caught:
        Card(" ", summary=3, authors=("a", 1), tags=("a\nb",), repository="zoo", notes="\ud800")  # type: ignore[arg-type]
    assert [problem.what for problem in caught.value.problems] == [
        "name", "summary", "authors", "tags", "repository", "notes",
    ]  # fmt: skip
    assert str(caught.value.problems[4]) == (
        "card: repository: expected organisation/name, got 'zoo'. Correct it in the card."
    )


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"name = ", "a card in TOML"),
        (b"name = '\xff'", "a card in TOML"),
        (b"name = " + b"[" * 5000, "a card in TOML"),
        (b"name = " + b"9" * 5_000, "a card in TOML"),
        (b"summary = 'a'", "got no name"),
        (b"name = 'a'\nlicence = 'mit'", "got licence"),
        (b"name = 'a'\nauthors = 'b'", "authors: expected a list of strings, got 'b'"),
        (b"name = 'a'\n[summary]\nx = 1", "summary: expected a string"),
        (b"name = 'a'\nnotes = '" + b"x" * 100_001 + b"'", "at most 100,000 characters"),
    ],
)
def test_what_is_no_card_is_refused(text: bytes, match: str) -> None:
    with pytest.raises(SpecError, match=match):
        Card.from_bytes(text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.toml: file: expected a card in TOML"):
        Card.from_toml(tmp_path / "none.toml")


def test_the_template_has_every_key_and_each_zoo_s_card_is_its_own() -> None:
    template = tomllib.loads((CARDS / "template/card.toml").read_text())
    assert sorted(template) == sorted(spec.name for spec in fields(Card))
    for path in CARDS.glob("*/card.toml"):
        card = Card.from_toml(path)
        assert card.summary and card.training
        assert path.parent.name in ("template", card.name)


def test_a_licence_is_stated_or_there_is_none() -> None:
    assert Card("a").license == "" and "license" not in Card("a").to_toml()
    cards = sorted(CARDS.glob("*/card.toml"))
    assert len(cards) > 4 and {Card.from_toml(path).license for path in cards} == {"apache-2.0"}
