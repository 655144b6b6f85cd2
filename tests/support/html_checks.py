"""What may be in the HTML that notebooks are given."""

from html.parser import HTMLParser

from ckptzoo.html import MAX_BYTES

_TAGS = {"div", "p", "br", "table", "tr", "th", "td", "details", "summary"}
_VOID = {"br"}


class _Tags(HTMLParser):
    """Every tag with its attributes, the text between tags, and whether all tags were closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += " "
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def close(self) -> None:
        super().close()
        assert not self._open


def shown_text(fragment: str) -> str:
    """The text of a fragment, which holds tags of tables alone, is bounded, and has no colours, links or scripts."""
    assert len(fragment.encode()) <= MAX_BYTES
    parser = _Tags()
    parser.feed(fragment)
    parser.close()
    for tag, attributes in parser.tags:
        assert tag in _TAGS and set(attributes) <= {"style", "open", "cellpadding"}, (tag, attributes)
        style = attributes.get("style") or ""
        assert not any(word in style for word in ("color", "background", "url", "expression", "position")), style
    return parser.text
