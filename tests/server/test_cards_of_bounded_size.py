"""Whatever Markdown somebody writes: its HTML, the memory and the time that it takes are bounded, and what is kept."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.server.kept import Kept
from ckptzoo.server.pages import cards
from ckptzoo.server.pages.cards import MAX_BYTES, MAX_CARD_HTML, MAX_COMMENT_HTML, card_html, comment_html
from tests.support.effort import examples

MAX_COMMENT = 65_536
LONG = st.sampled_from([3, 200, 5000, 30_000, 60_000])
CONSTRUCTS: dict[str, Callable[[int, int], str]] = {
    "reference": lambda long, many: f"[a]: https://x/{'y' * long}\n\n{'[a] ' * many}",
    "title": lambda long, many: f"[b]: c '{'&' * long}'\n\n{'[b][b]' * many}",
    "picture": lambda long, many: f"[c]: d '{'e' * long}'\n\n{'![c]' * many}",
    "nested pictures": lambda long, many: "![" * many + "f" * long + "](g)" * many,
    "nested links": lambda long, many: "[" * many + "]" * many + f"({'h' * long})",
    "emphasis": lambda long, many: "*a **b " * many + "c** d* " * many,
    "mixed emphasis": lambda long, many: "*a_ " * many,
    "strikethrough": lambda long, many: "~~a " * many,
    "quotations": lambda long, many: ">" * min(long, 400) + "a\n" + "b\n" * many,
    "stairs": lambda long, many: "".join(f"{'  ' * (n % 30)}- a\n" for n in range(many)),
    "lists": lambda long, many: "- " * many + "\n\n" + "- a\n\n" * many,
    "wide table": lambda long, many: "|".join("a" * 150) + "\n" + "|".join("-" * 150) + "\n" + "b\n" * many,
    "table in a list": lambda long, many: f"- {'a|' * 99}\n  {'-|' * 99}\n" + "  b\n" * many,
    "tables": lambda long, many: "|a\n|-\n\n" * many,
    "entities": lambda long, many: "&quot;" * many + '"' * long,
    "autolinks": lambda long, many: f"<http:{'é' * long}>" + "<http://a> " * many,
    "addresses": lambda long, many: f"[a](%{'é' * long})" + "[i](j) " * many,
    "open formatting": lambda long, many: "<p>\n" + "".join(f"<b title={n}>" for n in range(many)) + "<p>a\n" * many,
    "long formatting": lambda long, many: f"<a title='{'k' * long}'>\n" + "<li>a\n" * many,
    "hidden ends": lambda long, many: (
        "<p>\n"
        + "".join(f"<i title={n}>" for n in range(many // 2))
        + "\n<textarea>"
        + "</i>" * (many // 2)
        + "</textarea>\n"
        + "<p>a\n" * many
    ),
    "ends in cells": lambda long, many: (
        "".join(f"<b title={n}>" for n in range(many // 2))
        + "<table><td>"
        + "</b>" * (many // 2)
        + "</table>"
        + "<p>a\n" * many
    ),
    "ends in comments": lambda long, many: (
        "a" + "".join(f"<u title={n}><!-- </u> -->" for n in range(many)) + "\n\n<p>a" * many
    ),
    "ends in values": lambda long, many: (
        "a" + "".join(f"<s title={n}><p title='</s>'>" for n in range(many)) + "\n\n<p>a" * many
    ),
    "emphasised cells": lambda long, many: "".join(f"[*<td>*](a{n})" for n in range(many)) + "\n\n<p>a" * many,
    "other lines": lambda long, many: "|".join("a" * 150) + "\n" + "|".join("-" * 150) + "\n" + "b\x0b\x0bc\n" * many,
    "attributes": lambda long, many: f"<p {' '.join(f'a{n}' for n in range(many))}>",
    "open comments": lambda long, many: "a <!-- " * many,
    "code": lambda long, many: "`" * min(long, 400) + " ` `` " * many,
    "raw links": lambda long, many: "<a href=l>" * many + "</a>" * many,
    "headings": lambda long, many: "#\n" * many + "a\n=\n" * many,
}


def document(parts: list[tuple[str, int, int]]) -> str:
    return "\n\n".join(CONSTRUCTS[name](long, many) for name, long, many in parts)


PARTS = st.tuples(st.sampled_from(sorted(CONSTRUCTS)), LONG, st.sampled_from([1, 40, 900, 4000, 9000]))


@settings(max_examples=examples(400, 8), deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=3), st.booleans())
def test_any_document_is_bounded(parts: list[tuple[str, int, int]], is_card: bool) -> None:
    text = document(parts)[: MAX_BYTES if is_card else MAX_COMMENT]
    if cards._problem(text, len(text.encode())) is None:
        tokens = cards._markdown().parse(text)
        written = cards._written_bytes(tokens, 0, 2**23)
        assert written > 2**23 or written >= len(
            cards._markdown().renderer.render(tokens, cards._markdown().options, {})
        )
    used = time.thread_time()
    html = made(text, is_card)
    used = time.thread_time() - used
    assert len(html) <= (MAX_CARD_HTML if is_card else MAX_COMMENT_HTML)
    assert used < 4, parts  # about a second, on machines that do other things too


MEASURED = """
import resource, sys
sys.path[:0] = sys.argv[1:]
from tests.server import test_cards_of_bounded_size as tests
tests.made("a", True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for long, many, limit in ((60_000, 900, tests.MAX_COMMENT), (1000, 4000, tests.MAX_BYTES), (40, 9000, tests.MAX_BYTES)):
    for name, construct in tests.CONSTRUCTS.items():
        tests.made(construct(long, many)[:limit], limit == tests.MAX_BYTES)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert grown < 100, (name, grown)
"""


@pytest.mark.exhaustive
def test_memory_of_what_grows() -> None:
    """Each construct in the size of a comment and of a card, within the limits and beyond; what nh3 takes counts too."""
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", MEASURED, root], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


def made(text: str, is_card: bool) -> str:
    link = cards._relative_to("/datasets/lab/zoo", "c" * 40, "")
    if is_card:
        return cards._html(text, len(text.encode()), MAX_CARD_HTML, cards._LINK_BYTES, link, cards._TAGS)
    return comment_html(text)


def test_ordinary_cards_are_no_text(tmp_path: Path) -> None:
    """Long ones too: sections, tables, code, links and pictures."""
    section = "## Part\n\nSome *words* on [it](docs/a.md), with `code` & more.\n\n![a](a.png)\n\n- one\n- two\n\n"
    table = "| a | b | c |\n|---|---|---|\n" + "| 1 | 2 | [x](y) |\n" * 200 + "\n"
    path = tmp_path / "README.md"
    path.write_text("# Card\n\n" + section * 150 + table * 2 + "```\nx\n```\n" + "Plain words. " * 8000)
    html = card_html(path, "/datasets/lab/zoo", "c" * 40)
    assert "The text has more than" not in html and html.count("<table>") == 2 and html.count("<h3>") == 150
    raw = "<details><summary>More</summary>\n\n<b>Bold</b>, <a href='b.md'><img src='c.png'></a>, <code>d</code>\n\n</details>\n\n"
    badges = "<p align='center'>\n<a href='https://example.org/'><img src='a.png'></a>\n</p>\n\n"
    path = path.with_name("RAW.md")
    path.write_text("# Card\n\n" + badges * 5 + section * 40 + raw * 100)
    html = card_html(path, "/datasets/lab/zoo", "c" * 40)
    assert "The text has more than" not in html and html.count("<summary>") == html.count("<b>") == 100


def test_what_is_too_much_says_why() -> None:
    reference = CONSTRUCTS["title"](30_000, 1000)
    assert comment_html(reference).startswith("<p>The text has more than 256 kB as HTML. It is shown as text,")
    assert len(comment_html(reference)) < 200_000
    assert "10,000 brackets" in comment_html("[" * 10_001)
    assert "5,000 lines and cells" in comment_html("a\n" * 5001)
    assert "200 columns" in comment_html("|" * 201)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=40))
def test_what_is_kept_is_bounded_by_bytes(asked: list[tuple[int, int]]) -> None:
    kept, sizes, order = Kept[str](100, len), dict[int, int](), list[int]()
    for key, size in asked:
        value = kept.get(key, lambda size=size: "x" * size)
        if key not in order:
            sizes[key] = size
        else:
            order.remove(key)
        order.append(key)
        while sum(sizes[item] for item in order) > 100:
            order.pop(0)
        assert len(value) == sizes[key]
        assert kept.held == sum(sizes[item] for item in order) <= 100


def test_cards_and_comments_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "_kept", Kept[str](2**16, cards._kept._size))
    for number in range(300):
        comment_html(f"{number} " + "words " * 400)
        # one of which nothing is shown has a place too
        comment_html(f"<!-- {number} -->")
        assert 0 < cards._kept.held <= 2**16 and len(cards._kept._values) <= 2**16 // 500
