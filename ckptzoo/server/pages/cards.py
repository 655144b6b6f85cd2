"""README.md as HTML: Markdown, cleaned of all that could run, load from elsewhere, or look like a part of the page."""

import re
from collections.abc import Callable, Set
from functools import lru_cache
from itertools import count
from pathlib import Path
from posixpath import normpath
from urllib.parse import quote, unquote, urlsplit

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token

from ckptzoo.server.errors import Refusal
from ckptzoo.server.names import checked_path

MAX_BYTES, MAX_COLUMNS = 2**18, 200
"""A longer card, and one with a wider table, are shown as text: a table of 3,000 columns takes seconds to lay out."""
_MAX_OPENED = 10_000
"""Brackets of links and of tags: time grows with the square of their number, to 0.5 s for so many."""
_SHOWN = 20_000
"""Characters of what is shown as text."""
_TAGS = {
    "a", "abbr", "b", "blockquote", "br", "code", "dd", "del", "details", "div", "dl", "dt", "em", "h1", "h2", "h3",
    "h4", "h5", "h6", "hr", "i", "img", "kbd", "li", "ol", "p", "pre", "s", "samp", "strong", "sub", "summary",
    "sup", "table", "tbody", "td", "th", "thead", "tr", "ul", "var",
}  # fmt: skip
_ATTRIBUTES = {
    "a": {"href", "title"},
    "img": {"src", "alt", "title", "width", "height"},
    "ol": {"start"},
    "td": {"colspan", "rowspan", "align"},
    "th": {"colspan", "rowspan", "align"},
}
_TABLE = re.compile("<table>")
_FRONT_MATTER = re.compile(r"\A\s*---\r?\n.*?\r?\n---(?:\r?\n|\Z)", re.DOTALL)


@lru_cache(maxsize=256)
def card_html(blob: Path, address: str, commit: str) -> str:
    """A stored README.md as HTML that may stand in a page.

    Parameters
    ----------
    blob
        its file. Blobs never change, so the result is kept.
    address
        of the repository's page, for relative links.
    commit
        whose files links and pictures mean.
    """
    with blob.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    text = _FRONT_MATTER.sub("", data.decode(errors="replace"), count=1)
    if len(data) > MAX_BYTES or _is_costly(text):
        return _as_text(text)
    return _clean(text, _relative_to(address, commit))


@lru_cache(maxsize=1024)
def comment_html(text: str) -> str:
    """A comment as HTML that may stand in a page, without pictures."""
    if len(text.encode()) > MAX_BYTES or _is_costly(text):
        return _as_text(text)
    return _clean(text, lambda tag, name, value: _outside(value), _TAGS - {"img"})


Filter = Callable[[str, str, str], str | None]


def _clean(text: str, link: Filter, tags: Set[str] = _TAGS) -> str:
    html = _markdown().render(text)

    def attribute(tag: str, name: str, value: str) -> str | None:
        return link(tag, name, value) if name in ("href", "src") else value

    cleaned = nh3.clean(
        html,
        tags=set(tags),
        attributes=_ATTRIBUTES,
        attribute_filter=attribute,
        url_schemes={"http", "https", "mailto"},
        link_rel="nofollow noopener noreferrer",
        clean_content_tags={"script", "style", "title", "textarea", "template", "iframe", "noscript", "svg", "math"},
    )
    # Cleaned HTML is balanced, and these have no attributes there. What is wide scrolls by itself, by keyboard too.
    number = count(1)
    scrolled = _TABLE.sub(lambda match: f"{_scrolling(next(number))}{match[0]}", cleaned)
    return scrolled.replace("</table>", "</table></div>").replace("<pre>", '<pre tabindex="0">')


def _scrolling(number: int) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table {number}">'


def _relative_to(address: str, commit: str) -> Filter:
    def link(tag: str, name: str, value: str) -> str | None:
        if tag == "img":
            path = _path_of(value)
            return None if path is None else f"{address}/raw/{commit}/{quote(path)}"
        outside = _outside(value)
        if outside is not None:
            return outside
        path = _path_of(value)
        return None if path is None else f"{address}/blob/{commit}/{quote(path)}"

    return link


def _outside(value: str) -> str | None:
    return value if value.startswith(("http://", "https://", "mailto:")) else None


def _path_of(value: str) -> str | None:
    """The file of the repository that a relative link names; None where it names none."""
    try:
        parts = urlsplit(value)
        if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
            return None
        return checked_path(normpath(unquote(parts.path)))
    except (ValueError, Refusal):
        return None


def _is_costly(text: str) -> bool:
    is_wide = any(line.count("|") > MAX_COLUMNS for line in text.splitlines())
    return is_wide or max(text.count("<"), text.count("[")) > _MAX_OPENED


def _as_text(text: str) -> str:
    more = " It is shown as text, and its beginning alone." if len(text) > _SHOWN else " It is shown as text."
    return (
        f"<p>The text has more than {MAX_BYTES // 1024} kB, a table of more than {MAX_COLUMNS} columns, or more than "
        f"{_MAX_OPENED:,} brackets.{more}</p>"
        f'<pre tabindex="0">{nh3.clean_text(text[:_SHOWN])}</pre>'
    )


@lru_cache(maxsize=1)
def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    markdown.core.ruler.push("lower_headings", lambda state: _lower_headings(state.tokens))
    return markdown


def _lower_headings(tokens: list[Token]) -> None:
    """The page has a first heading of its own."""
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 1, 6)}"
