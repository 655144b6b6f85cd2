"""README.md as HTML: Markdown, cleaned of all that could run, load from elsewhere, or look like a part of the page."""

import hashlib
import re
from collections.abc import Callable, Sequence, Set
from functools import cache
from itertools import count
from pathlib import Path
from posixpath import join, normpath
from urllib.parse import quote, unquote, urlsplit

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token

from ckptzoo.server.errors import Refusal
from ckptzoo.server.kept import ENTRY_BYTES, Kept
from ckptzoo.server.names import checked_path

MAX_BYTES, MAX_COLUMNS = 2**18, 200
"""A longer card, and one with a wider table, are shown as text: a table of 3,000 columns takes seconds to lay out."""
MAX_CARD_HTML, MAX_COMMENT_HTML = 2**20, 2**18
"""Characters that a card and a comment may become. Without a bound a reference of 60 kB that is used 1,000 times makes
60 MB. A comment is below 64 K characters, and a page has many."""
_MAX_OPENED = 10_000
"""Brackets of links and of tags: time grows with the square of their number, to 0.5 s at this limit."""
_MAX_COST, _LINE_COST = 50_000, 10
"""Marks, and lines and cells with the cost of each: markdown-it takes up to 20 us for a mark and 200 for a cell."""
_MARKS = "*_~`![]<>&\\#"
_MAX_LINK = 2000
"""Characters of an address: time grows with the square of their number where they are percent-encoded."""
_MAX_REOPENED = 2**25
"""Bytes of elements that a parser of HTML opens again at most."""
_ELEMENT_BYTES = 100
"""About what one takes besides its attributes."""
_TAG_BYTES, _LINK_BYTES, _TABLE_BYTES = 8, 160, 100
"""Bytes of a tag besides its name, and those that cleaning adds to a link besides the address, and to a table."""
_KEPT_BYTES = 2**25
_SHOWN = 20_000
"""Characters that are shown as text."""
_TAGS = {
    "a", "abbr", "b", "blockquote", "br", "code", "dd", "del", "details", "div", "dl", "dt", "em", "h1", "h2", "h3",
    "h4", "h5", "h6", "hr", "i", "img", "kbd", "li", "ol", "p", "pre", "s", "samp", "strong", "sub", "summary",
    "sup", "table", "tbody", "td", "th", "thead", "tr", "ul", "var",
}  # fmt: skip
# No id, name, class and style, with which a card could look like a part of the page.
_ATTRIBUTES = {
    "a": {"href", "title"},
    "img": {"src", "alt", "title", "width", "height"},
    "ol": {"start"},
    "td": {"colspan", "rowspan", "align"},
    "th": {"colspan", "rowspan", "align"},
}
_FORMATTING = frozenset(
    {"a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"}
)
"""Elements that are opened again in the next paragraph where they were not closed (HTML, section 13.2.4.3)."""
_HARMLESS = frozenset({"br", "img", "kbd", "span", "sub", "sup"})
"""Elements in which, and behind which, a formatting element can be closed."""
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)[^>]*")
_DELIMITER = re.compile(r"[-:|\s>*+0-9.)]*")
"""A pattern of the second row of a table, also in lists and quotations."""
_TABLE = re.compile("<table>")
_FRONT_MATTER = re.compile(r"\A\s*---\r?\n.*?\r?\n---(?:\r?\n|\Z)", re.DOTALL)


_kept = Kept[str](_KEPT_BYTES, lambda html: ENTRY_BYTES + 4 * len(html))
"""Cards and comments as HTML; a character takes 4 bytes at most."""


def card_html(blob: Path, address: str, commit: str, folder: str = "") -> str:
    """Return a stored README.md as HTML that may stand in a page.

    The result is kept, because blobs never change. ``address`` is that of the repository's page, and ``folder`` that of
    the card, for relative links; links and pictures mean files of ``commit``.
    """

    def made() -> str:
        with blob.open("rb") as file:
            # one more, to know that there are more
            data = file.read(MAX_BYTES + 1)
        text = _FRONT_MATTER.sub("", data.decode(errors="replace"), count=1)
        relative = _LINK_BYTES + len(address) + len(quote(folder))
        return _html(text, len(data), MAX_CARD_HTML, relative, _relative_to(address, commit, folder), _TAGS)

    return _kept.get((blob, address, commit, folder), made)


def comment_html(text: str) -> str:
    """Return a comment as HTML that may stand in a page, without pictures."""

    def made() -> str:
        size, tags = len(text.encode()), _TAGS - {"img"}
        return _html(text, size, MAX_COMMENT_HTML, _LINK_BYTES, lambda tag, name, value: _outside(value), tags)

    return _kept.get(hashlib.sha256(text.encode()).digest(), made)


Filter = Callable[[str, str, str], str | None]


def _html(text: str, size: int, limit: int, link_bytes: int, link: Filter, tags: Set[str]) -> str:
    """Return Markdown as HTML of at most ``limit`` characters; what would take too much is shown as text."""
    problem = _problem(text, size)
    if problem is None:
        tokens = _markdown().parse(text)
        # counted before it is made: references share their address and title until they are written
        if _written_bytes(tokens, link_bytes, limit) <= limit:
            html = _markdown().renderer.render(tokens, _markdown().options, {})
            # every tag behind an element that was not closed may open it again
            if _unclosed_bytes(tokens) * html.count("<") <= _MAX_REOPENED:
                html = _clean(html, link, tags)
                if len(html) <= limit:
                    return html
        problem = f"{limit // 1024} kB as HTML"
    return _as_text(text, problem)


def _written_bytes(tokens: Sequence[Token], link_bytes: int, limit: int) -> int:
    """Return the approximate bytes of tokens as HTML, at least its length; the count ends beyond the limit."""
    total = 0
    for token in tokens:
        # an inline token's content is that of its children
        total += 0 if token.type == "inline" else _escaped(token.content)
        # <pre> and <code> are one token where their tags are two
        total += 2 * len(token.tag) + _TAG_BYTES * (4 if token.type in ("fence", "code_block") else 1)
        total += _escaped(token.info) + _TABLE_BYTES * (token.type == "table_open")
        if token.type in ("link_open", "image"):
            total += link_bytes
        for name, value in token.attrs.items():
            total += len(name) + 4 + _escaped(str(value))
            if total > limit:
                return total
        if token.children:
            total += _written_bytes(token.children, link_bytes, limit - total)
        if total > limit:
            return total
    return total


def _escaped(text: str) -> int:
    return len(text) + 5 * text.count('"') + 4 * text.count("&") + 3 * (text.count("<") + text.count(">"))


def _unclosed_bytes(tokens: Sequence[Token]) -> int:
    """Return at least the bytes of formatting elements that a parser of HTML may find unclosed, at ``_ELEMENT_BYTES``
    more.

    Without a bound 5,000 of them before 5,000 paragraphs are 25 million elements. Those of Markdown are closed, and raw
    ones whose end tag stands in the same line of text, unless another raw tag is between: it may be one in which end
    tags count for nothing, such as that of a cell, or of a text field.
    """
    total = 0
    for token in tokens:
        if token.type == "html_block":
            total += _formatting_bytes(token.content)
        opened: list[tuple[str, int]] = []
        for child in token.children or ():
            is_raw = child.type == "html_inline"
            match = _TAG.match(child.content) if is_raw else None
            name = match[2].lower() if match else child.tag
            is_end = bool(match and match[1]) or child.nesting < 0
            if (is_raw and name not in _HARMLESS | _FORMATTING) or (is_end and name in _FORMATTING and not opened):
                total += sum(size for _, size in opened)
                opened.clear()
            elif name not in _FORMATTING or (not is_raw and child.nesting == 0):
                continue
            elif not is_end:
                attributes = sum(len(str(value)) for value in child.attrs.values())
                opened.append((name, _ELEMENT_BYTES + len(child.content) + attributes))
            elif opened[-1][0] == name:
                opened.pop()
            else:
                total += sum(size for _, size in opened)
                opened.clear()
        total += sum(size for _, size in opened)
    return total


def _formatting_bytes(html: str) -> int:
    lengths = [len(match[0]) for match in _TAG.finditer(html) if not match[1] and match[2].lower() in _FORMATTING]
    return sum(lengths) + _ELEMENT_BYTES * len(lengths)


def _clean(html: str, link: Filter, tags: Set[str]) -> str:
    def attribute(tag: str, name: str, value: str) -> str | None:
        return link(tag, name, value) if name in ("href", "src") else value

    cleaned = nh3.clean(
        html,
        tags=set(tags),
        attributes=_ATTRIBUTES,
        attribute_filter=attribute,
        # no javascript: and no data:
        url_schemes={"http", "https", "mailto"},
        link_rel="nofollow noopener noreferrer",
        # their text goes with them; of other elements it stays
        clean_content_tags={"script", "style", "title", "textarea", "template", "iframe", "noscript", "svg", "math"},
    )
    # Cleaned HTML is balanced, and these have no attributes there. What is wide scrolls by itself, by keyboard too.
    number = count(1)
    scrolled = _TABLE.sub(lambda match: f"{_scrolling(next(number))}{match[0]}", cleaned)
    return scrolled.replace("</table>", "</table></div>").replace("<pre>", '<pre tabindex="0">')


def _scrolling(number: int) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table {number}">'


def _relative_to(address: str, commit: str, folder: str) -> Filter:
    def link(tag: str, name: str, value: str) -> str | None:
        if tag == "img":
            path = _path_of(value, folder)
            return None if path is None else f"{address}/raw/{commit}/{quote(path)}"
        outside = _outside(value)
        if outside is not None:
            return outside
        path = _path_of(value, folder)
        return None if path is None else f"{address}/blob/{commit}/{quote(path)}"

    return link


def _outside(value: str) -> str | None:
    return value if value.startswith(("http://", "https://", "mailto:")) else None


def _path_of(value: str, folder: str) -> str | None:
    """Return the file of the repository that a relative link names; None where it names none."""
    try:
        parts = urlsplit(value)
        if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
            return None
        return checked_path(normpath(join(folder, unquote(parts.path))))
    except (ValueError, Refusal):
        return None


def _problem(text: str, size: int) -> str | None:
    """Return the property of a text that exceeds the bounds for HTML; None where there is none."""
    if size > MAX_BYTES:
        return f"{MAX_BYTES // 1024} kB"
    # as markdown-it does; splitlines would divide at further characters
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if any(line.count("|") > MAX_COLUMNS for line in lines):
        return f"{MAX_COLUMNS} columns in a table"
    if max(text.count("<"), text.count("[")) > _MAX_OPENED:
        return f"{_MAX_OPENED:,} brackets"
    pieces = len(lines) + text.count("|") + _missing_cells(lines)
    if _LINE_COST * pieces + sum(map(text.count, _MARKS)) > _MAX_COST:
        return f"{_MAX_COST // _LINE_COST:,} lines and cells, {_LINE_COST} marks counting as one of them"
    return None


def _missing_cells(lines: Sequence[str]) -> int:
    """Return the cells that tables get where a row has fewer than the head; at most one table stands between empty
    lines.
    """
    missing = columns = 0
    for line in lines:
        cells = line.count("|")
        if columns:
            missing += max(columns - cells, 0)
        if not line.strip(" \t>"):
            columns = 0
        elif cells > columns and _DELIMITER.fullmatch(line):
            columns = cells
    return missing


def _as_text(text: str, problem: str) -> str:
    more = " It is shown as text, and its beginning alone." if len(text) > _SHOWN else " It is shown as text."
    return f'<p>The text has more than {problem}.{more}</p><pre tabindex="0">{nh3.clean_text(text[:_SHOWN])}</pre>'


class _Markdown(MarkdownIt):
    """A parser that makes no links of long addresses."""

    def normalizeLink(self, url: str) -> str:
        """Percent-encode an address, which takes quadratic time."""
        return url if len(url) > _MAX_LINK else super().normalizeLink(url)

    def validateLink(self, url: str) -> bool:
        """Return whether an address makes a link."""
        # percent-encoding makes three characters of each byte
        return len(url) <= 3 * _MAX_LINK and super().validateLink(url)

    def normalizeLinkText(self, link: str) -> str:
        """Decode an address that is shown as text."""
        return link if len(link) > _MAX_LINK else super().normalizeLinkText(link)


@cache
def _markdown() -> MarkdownIt:
    # raw HTML is passed on, because all of it is cleaned afterwards
    markdown = _Markdown("commonmark", {"html": True}).enable(["table", "strikethrough"])
    markdown.core.ruler.push("lower_headings", lambda state: _lower_headings(state.tokens))
    return markdown


def _lower_headings(tokens: list[Token]) -> None:
    """Lower the headings, because the page has a first heading of its own."""
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 1, 6)}"
