"""The page: text of others is no markup, every tag is closed, and nothing is fetched."""

import re
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from builders.report.claims import VERDICTS
from builders.report.page import PartResult, ReportRow, StudiedZoo, page
from builders.report.parts import PAPERS, PARTS, ReportPart
from tests.support.effort import examples

ROOT = Path(__file__).parents[3]
VOID = {"meta", "br", "img"}
TEXT = st.sampled_from(["plain", "<script>alert(1)</script>", 'a" onload="x', "&amp;", "\x1b[31m", "line\nline", ""])


class Parsed(HTMLParser):
    """Tags in order, attributes and text; an error where a tag is closed that is not open."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


@st.composite
def grids(draw: st.DrawFn) -> dict[str, object]:
    columns = draw(st.integers(1, 4))
    cells = st.lists(TEXT, min_size=columns, max_size=columns)
    header = draw(st.one_of(st.just([]), cells))
    return {"rows": draw(st.lists(cells, max_size=60)), "header": header, "numbers": list(range(1, columns))}


KEPT = st.builds(
    PartResult,
    st.lists(st.builds(ReportRow, TEXT, TEXT, TEXT, st.sampled_from(VERDICTS), TEXT), max_size=8),
    st.lists(st.one_of(TEXT, grids()), max_size=5),
    st.lists(st.just("iVBORw0KGgo="), max_size=2),
    st.lists(st.builds(StudiedZoo, TEXT, TEXT, TEXT, TEXT), max_size=2),
    st.one_of(st.none(), st.integers(0, 9)),
    TEXT,
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PARTS), KEPT), max_size=4), TEXT)
def test_any_text_stays_text(made: list[tuple[ReportPart, PartResult]], value: str) -> None:
    text = page(made, {"code": value})
    assert text == page(made, {"code": value})
    parsed = Parsed(text)
    assert not {"script", "iframe", "link", "object"} & {*parsed.tags}
    assert all(name in ("lang", "charset", "name", "content", "id", "class", "href", "scope", "tabindex", "alt", "src",
                        "data-name") for name, _ in parsed.attributes)  # fmt: skip
    assert all(value and value[0] == "#" for name, value in parsed.attributes if name == "href")
    assert all(value and value.startswith("data:") for name, value in parsed.attributes if name == "src")
    rows = [row for _, kept in made for row in kept.rows]
    for verdict in VERDICTS:
        assert f"{sum(row.verdict == verdict for row in rows)} {verdict}" in parsed.text


def test_parts_have_names_of_their_own() -> None:
    keys = [part.key for part in PARTS]
    assert len({*keys}) == len(keys) and {part.paper for part in PARTS} == {*PAPERS}
    for part in PARTS:
        assert part.claims and (part.study is None) == (not part.zoos)
        assert all(claim.judge is not None or claim.open for claim in part.claims)
        # what could not be made says how it can be
        assert part.study is None or part.commands


def test_only_the_last_line_above_a_table_with_a_header_is_its_caption() -> None:
    figures = {"header": ["way", "height"], "rows": [["raw", "1.0"]], "numbers": [1]}
    facts = {"header": [], "rows": [["zoo", "second"]], "numbers": []}
    blocks = ["of the first\nheights", figures, "raw: correlation 0.50", facts, "A sentence.", figures]
    text = page([(PARTS[0], PartResult([], blocks))], {})
    assert text.count("<caption>") == 1 and "<caption>heights</caption>" in text
    for line in ("of the first", "raw: correlation 0.50", "A sentence."):
        assert f"<p>{line}</p>" in text


def test_the_page_of_the_documentation_has_every_part_and_the_zoos_of_the_clone() -> None:
    """Where a zoo changed since: make report, with the zoos that are not in the clone, and copy the page to docs."""
    shown = Parsed((ROOT / "docs/report.html").read_text())
    assert all(part.title in shown.text for part in PARTS)
    revisions = dict(re.findall(r"zoo ([\w-]+), [\d,]+ checkpoints of [\w-]+: (sha256:[0-9a-f]{64})", shown.text))
    used = [path.parent for path in ROOT.glob("cards/*/zoo.json") if path.parent.name in revisions]
    assert len(used) >= 4
    assert {path.name: revisions[path.name] for path in used} == {
        path.name: ckptzoo.open(path).revision for path in used
    }
