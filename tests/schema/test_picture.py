"""What a card says of pictures is read, refused and written, whoever wrote it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import SpecError
from ckptzoo.schema.card import MAX_CAPTION, MAX_CARD_BYTES, MAX_PICTURES, Card, Picture, may_change

LINE = st.text(st.characters(exclude_categories=["C", "Zl", "Zp", "Zs"], include_characters=" "), max_size=60)
NAME = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}\.png", fullmatch=True)
PICTURES = st.builds(Picture, NAME, LINE.filter(str.strip))


@settings(deadline=None)
@given(st.lists(PICTURES, max_size=MAX_PICTURES, unique_by=lambda item: item.file.lower()))
def test_pictures_are_read_as_they_were_written(pictures: list[Picture]) -> None:
    card = Card("zoo", tags=("a",), notes="Two\nlines.", pictures=tuple(pictures))
    assert Card.from_bytes(card.to_toml().encode()) == card


def test_pictures_stand_at_the_end_of_the_file() -> None:
    card = Card("zoo", license="mit", pictures=(Picture("a.png", 'A "picture".'),))
    assert card.to_toml() == (
        'name = "zoo"\nlicense = "mit"\n[[pictures]]\nfile = "a.png"\ncaption = "A \\"picture\\"."\n'
    )


@pytest.mark.parametrize(
    "file",
    ["", ".png", "a.jpg", "a.PNG", "../a.png", "a/b.png", "a\\b.png", ".a.png", "-a.png", "a.png\n", "a b.png",
     "a.png?x", "a)(b.png", "\N{LATIN SMALL LETTER E WITH ACUTE}.png", "\N{FULLWIDTH DIGIT ONE}.png", "a" * 97 + ".png", 3],
)  # fmt: skip
def test_names_that_are_no_plain_ones_are_refused(file: str) -> None:
    with pytest.raises(SpecError, match="file of picture 1: expected a plain name"):
        Card("zoo", pictures=(Picture(file, "A picture."),))


@pytest.mark.parametrize("caption", ["", "  ", "a\nb", "a\rb", "\x1b[31m", "\u202eevil", "x" * (MAX_CAPTION + 1), None])
def test_captions_that_are_no_line_are_refused(caption: str) -> None:
    with pytest.raises(SpecError, match=f"caption of picture 1: expected a line of at most {MAX_CAPTION}"):
        Card("zoo", pictures=(Picture("a.png", caption),))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("pictures = 'a.png'", "pictures: expected a list of tables"),
        ("pictures = ['a.png']", "picture 1: expected a table with file and caption, got 'a.png'"),
        ("[pictures]\nfile = 'a.png'", "pictures: expected a list of tables"),
        ("[pictures]\nfile = 'a.png'\ncaption = 'A.'", "pictures: expected a list of tables"),
        ("[[pictures]]\nfile = 'a.png'", "picture 1: expected a table with file and caption"),
        ("[[pictures]]\nfile = 'a.png'\ncaption = 'A.'\nlink = 'b'", "picture 1: expected a table"),
        ("[[pictures]]\nfile = 'a.png'\ncaption = 'A.'\n" * 2, "file of picture 2: expected each file once"),
        (
            "[[pictures]]\nfile = 'a.png'\ncaption = 'A.'\n[[pictures]]\nfile = 'A.png'\ncaption = 'A.'\n",
            "file of picture 2: expected each file once",
        ),
        ("[[pictures]]\n" * (MAX_PICTURES + 1), f"pictures: expected at most {MAX_PICTURES}, got {MAX_PICTURES + 1}"),
        ("[[authors]]\nfile = 'a.png'\ncaption = 'A.'", "authors: expected a list of strings"),
        ("[summary]\nfile = 'a.png'\ncaption = 'A.'", "summary: expected a string"),
    ],
)
def test_tables_that_are_no_pictures_are_refused(text: str, match: str) -> None:
    with pytest.raises(SpecError, match=match):
        Card.from_bytes(f"name = 'zoo'\n{text}".encode())


def test_every_problem_is_reported() -> None:
    with pytest.raises(SpecError) as caught:
        Card("zoo", summary=3, pictures=(Picture("a.png", ""), Picture("b", "B")))  # type: ignore[arg-type]
    assert [problem.what for problem in caught.value.problems] == [
        "summary", "caption of picture 1", "file of picture 2",
    ]  # fmt: skip


def test_a_card_beyond_all_bounds_is_not_parsed(tmp_path: Path) -> None:
    (tmp_path / "card.toml").write_bytes(b"name = 'zoo'\n" + b"#" * MAX_CARD_BYTES)
    for read in (lambda: Card.from_toml(tmp_path / "card.toml"), lambda: Card.from_bytes(b"#" * (MAX_CARD_BYTES + 1))):
        with pytest.raises(SpecError, match="size: expected at most 1,048,576 bytes, got more"):
            read()


def test_what_people_write_may_change() -> None:
    assert all(map(may_change, ("README.md", "card.toml", "pictures/a.png")))
    assert not any(map(may_change, ("zoo.json", "pictures", "parts/pictures/a.png", "parts/README.md")))
