"""Every page of the repository reads well where a git host shows it: as CommonMark with tables, without our extensions."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from importlib import util
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest
from markdown import Markdown
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("cards/**/*.md")])
LEFTOVER = re.compile(
    r"\]\(|\]\[|--8<--|\{%|\{:|\{ ?[.#]\w|^!!! |^\?\?\? |^::: |^=== \"|<!--|-->|^\[\w[\w ]*\]: ", re.MULTILINE
)
"""Marks that show where a construct was not understood: links, inclusions, admonitions, directives, comments."""
INCLUSION = re.compile(r'^--8<-- ?"', re.MULTILINE)
COMMENT = re.compile(r"<!--(?!-?>)(?:[^-]|-[^-])*-->")
"""A comment within a paragraph, as every version of CommonMark reads it."""
ELSEWHERE = ("https://", "http://", "mailto:")


class Shown(NamedTuple):
    """A rendered page: the texts that are shown, comments in paragraphs, addresses, and targets of links."""

    texts: list[str]
    comments: list[str]
    links: list[str]
    anchors: frozenset[str]


class Addresses(HTMLParser):
    """The addresses, names and texts of HTML within a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what an element refers to and is called."""
        for name, value in attrs:
            if name in ("href", "src"):
                self.links.append(value or "")
            elif name in ("id", "name"):
                self.names.append(value or "")

    def handle_data(self, data: str) -> None:
        """Keep the text between elements, which a git host shows as it is."""
        self.texts.append(data)


def leaves(tokens: list[Token]) -> Iterator[Token]:
    """Every token, those within others too."""
    for token in tokens:
        yield token
        yield from leaves(token.children or [])


def slug(heading: str) -> str:
    """The anchor that a git host gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def parser() -> MarkdownIt:
    """CommonMark with what git hosts add to it."""
    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


def shown(page: str) -> Shown:
    """Render a page."""
    tokens = parser().parse(page)
    texts, comments, links, names = [], [], [], []
    for token in leaves(tokens):
        if token.type == "text" or (token.type == "fence" and INCLUSION.search(token.content)):
            texts.append(token.content)
        elif token.type in ("html_block", "html_inline"):
            found = Addresses(token.content)
            texts += found.texts
            links += found.links
            names += found.names
            if token.type == "html_inline" and token.content.startswith("<!--"):
                comments.append(token.content)
        links += [str(token.attrs[name]) for name in ("href", "src") if name in token.attrs]
    count: Counter[str] = Counter()
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            name = slug("".join(leaf.content for leaf in leaves([inline]) if leaf.type in ("text", "code_inline")))
            names.append(f"{name}-{count[name]}" if count[name] else name)
            count[name] += 1
    return Shown(texts, comments, links, frozenset(names))


@cache
def page_at(path: Path) -> Shown:
    """Render a file once."""
    return shown(path.read_text())


def problems(path: Path, page: Shown) -> list[str]:
    """Return what is wrong with the page on a git host."""
    found = [text for text in page.texts if LEFTOVER.search(text)]
    found += [comment for comment in page.comments if not COMMENT.fullmatch(comment)]
    for link in page.links:
        if link.startswith(ELSEWHERE):
            continue
        address, _, anchor = unquote(link).partition("#")
        target = (path.parent / address).resolve()
        if address and not (target.exists() and target.is_relative_to(ROOT)):
            found.append(f"{link}: no such file")
        elif anchor and anchor not in (page_at(target) if address else page).anchors:
            found.append(f"{link}: no such heading")
    return found


def test_pages_have_no_leftovers_and_no_broken_links() -> None:
    assert len(PAGES) > 60
    assert {
        path.relative_to(ROOT).as_posix(): found for path in PAGES if (found := problems(path, page_at(path)))
    } == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<figure markdown>\n![A zoo](zoo.svg)\n</figure>\n", "\n![A zoo](zoo.svg)\n"),
        ('<figcaption markdown="span">[here](#a)</figcaption>\n', "[here](#a)"),
        ("[here] (index.md) and [`open`][ckptzoo.open].\n", "][ckptzoo.open]."),
        ('--8<-- "README.md"\n', '--8<-- "README.md"'),
        ('```toml\n--8<-- "card.toml"\n```\n', '--8<-- "card.toml"\n'),
        ("{% include 'a' %}\n", "{% include 'a' %}"),
        ("Text.\n\n::: ckptzoo.open\n", "::: ckptzoo.open"),
        ("!!! note\n    Text.\n", "!!! note"),
        ("# A heading { #own }\n", "A heading { #own }"),
        ("| a |\n|---|\n| <!--= symmetry: row | column -->1<!--/--> |\n", "<!--= symmetry: row"),
        ("One <!-- a -- b --> figure.\n", "<!-- a -- b -->"),
        ("[no page](nowhere.md)\n", "nowhere.md: no such file"),
        ("![no picture](pictures/none.png)\n", "pictures/none.png: no such file"),
        ('<a href="#none"><img src="none.png"></a>\n', "none.png: no such file"),
        ("[no heading](concepts.md#none)\n", "concepts.md#none: no such heading"),
        ("[out of the repository](../../shared)\n", "../../shared: no such file"),
    ],
)
def test_what_a_git_host_would_show_is_found(text: str, found: str) -> None:
    assert found in problems(ROOT / "docs/page.md", shown(text))


@pytest.mark.parametrize(
    "text",
    [
        "`[a](b)`, `--8<--` and `{% a %}` as code\n\n    ::: a\n",
        '<!--\n--8<-- "docs/site.txt:show"\n::: ckptzoo.open\n\n--8<-- "docs/site.txt:hide"\n-->\n',
        "36 <!--= layers: a row | ckptzoo -->ms<!--/-->\n",
        '<div class="gallery" markdown>\n\n[`a`](#own)\n\n</div>\n\n## Own\n',
        "[glossary][words]\n\n[words]: concepts.md#glossary\n",
        "## The same\n\n## The same\n\n[second](#the-same-1)\n",
        "[outside](https://example.org/none#none)\n",
    ],
)
def test_what_a_git_host_understands_is_left_alone(text: str) -> None:
    assert problems(ROOT / "docs/page.md", shown(text)) == []


def test_pages_have_the_same_parts_on_the_site() -> None:
    """Lists and tables begin and end in one place for both: neither needs more blank lines or a deeper indent."""
    site = Markdown(extensions=["attr_list", "md_in_html", "tables", "fenced_code"])
    host = parser()
    for path in PAGES:
        if path.is_relative_to(ROOT / "cards"):
            continue
        text = path.read_text()
        assert parts(site.reset().convert(text)) == parts(host.render(text)), path.name


def parts(page: str) -> dict[str, int]:
    """The number of elements of each kind that a page of HTML shows."""
    visible = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    return {
        tag: len(re.findall(f"<{tag}[ >]", visible)) for tag in ("a", "h2", "h3", "img", "li", "ol", "pre", "tr", "ul")
    }


def test_pages_of_the_api_name_on_a_git_host_what_the_site_describes() -> None:
    for path in (path for path in PAGES if path.parent.name == "api"):
        text = path.read_text()
        directives = re.findall(r"^::: ckptzoo\.(\S+)\n((?: {4}.*\n)*)", text, re.MULTILINE)
        assert directives or path.stem == "index"
        for name, options in directives:
            heading = re.search(r"heading: ckptzoo\.(\S+)", options)
            shown_as = (heading[1] if heading else name).removeprefix(f"{path.stem}.")
            assert f"`{shown_as}`" in text, f"{path.name}: {shown_as}"


def test_make_links_asks_for_links_preprints_and_what_commands_import() -> None:
    spec = util.spec_from_file_location("links", ROOT / "docs/links.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module := util.module_from_spec(spec))
    page = """[a](https://a.org/x) <https://b.org> arXiv 2310.08287 [c](index.md) `https://no.org`

[d]: https://d.org/y

ckptzoo import hf://datasets/lab/zoos/nets/a.zip --to zoos/a
ckptzoo import hf://lab/net@step10 --to zoos/b
ckptzoo link hf://lab/net@v1.0/folder --to zoos/c
ckptzoo import https://e.org/f.zip --to zoos/d
ckptzoo import hf://org/model@step1000 --to zoos/e
"""
    assert set(module.addresses(page)) == {
        "https://a.org/x",
        "https://b.org",
        "https://d.org/y",
        "https://e.org/f.zip",
        "https://arxiv.org/abs/2310.08287",
        "https://huggingface.co/datasets/lab/zoos/resolve/main/nets/a.zip",
        "https://huggingface.co/lab/net/tree/step10",
        "https://huggingface.co/lab/net/tree/v1.0/folder",
    }


def test_make_links_without_a_network_lists_every_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    spec = util.spec_from_file_location("links", ROOT / "docs/links.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module := util.module_from_spec(spec))
    assert module.main() == 1
    said, *listed = capsys.readouterr().out.splitlines()
    assert said == f"No network: none of 8 hosts answered. These {len(listed)} addresses were not checked:"
    assert len(listed) > 50 and all(re.match(r"https?://\S+ in \S+\.md", line) for line in listed)
