"""Anybody's text as Markdown is read as text and nothing else."""

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ckptzoo.hub.card.markdown import MAX_SHOWN, code, fenced, folded, listed, table
from ckptzoo.schema.readme import plain

RENDERER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
TEXT = st.text(max_size=200) | st.text("`|\\<>[]()*_#~!&$\n\r\t -x\x00\x1b\u202e\ud800", max_size=60)
INERT = {"inline", "code_inline", "text", "paragraph_open", "paragraph_close"}


def kinds(text: str) -> list[str]:
    """The types of everything that a text is rendered to."""
    found: list[str] = []
    for token in RENDERER.parse(text):
        found += [token.type, *(child.type for child in token.children or ())]
    return found


@settings(deadline=None)
@given(TEXT)
def test_code_is_nothing_but_code(text: str) -> None:
    shown = code(text)
    assert len(shown) <= MAX_SHOWN + 2 and shown.isprintable()
    assert set(kinds(f"a {shown} b")) <= INERT


@settings(deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4))
def test_a_table_keeps_its_cells(rows: list[tuple[str, str]]) -> None:
    text = table(("a", "b"), [(code(left), code(right)) for left, right in rows], right=(1,))
    found = kinds(f"before\n\n{text}\n\nafter")
    assert found.count("td_open") == 2 * len(rows) and found.count("tr_open") == len(rows) + 1
    assert found.count("table_open") == 1 and not {"html_inline", "html_block", "link_open", "heading_open"} & set(
        found
    )
    assert found[-3:] == ["paragraph_open", "inline", "text"] or found[-1] == "paragraph_close"


@settings(deadline=None)
@given(TEXT)
def test_plain_text_is_nothing_but_text(text: str) -> None:
    found = set(kinds(f"# {plain(text)}\n\nand {plain(text)}"))
    assert found <= {*INERT, "heading_open", "heading_close", "text_special"}


@settings(deadline=None)
@given(TEXT)
def test_a_fence_holds_what_is_in_it(text: str) -> None:
    text = text.replace("\r", "").replace("\x00", "")
    first, last = RENDERER.parse(f"{fenced(text, 'bibtex')}\n\nafter")[:2]
    assert (first.type, first.content, last.type) == ("fence", f"{text}\n", "paragraph_open")


def test_lists_and_folds() -> None:
    assert listed(["a", "b", "c"], limit=2) == "`a`, `b`, 1 more" and listed([], limit=2) == ""
    assert code("") == code("   ") == "(blank)" and code("a`|\n") == "`a\\x60\\x7c\\n`"
    assert code("x" * 81) == f"`{'x' * 77}...`" and code("x" * 80) == f"`{'x' * 80}`"
    assert kinds(folded("Open", "| a |\n| --- |\n| b |")).count("td_open") == 1
