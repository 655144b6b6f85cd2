"""The documentation builds without a warning, asks nobody for anything, is found by its search, and is up to date."""

import os
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module, util
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import griffe
import pytest
import yaml
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page

import ckptzoo
from ckptzoo.schema.metadata import KINDS, LEAST
from tests.support.chromium import sideways, violations
from tests.support.effort import ALL
from tests.support.made_once import made_once

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
API = sorted(DOCS.glob("api/*.md"))
PROGRAMS = {"cli", "server"}
"""Packages that are used by commands, which docs/guide/commands.md describes."""
PUBLIC = sorted({found.name for found in pkgutil.iter_modules(ckptzoo.__path__) if found.ispkg} - PROGRAMS | {"errors"})
"""The others, whose names are public, and the one module that is; other modules are for the packages."""
FURTHER = ("ckptzoo.learning.forms", "ckptzoo.hub.card", "ckptzoo.hub.untrusted")
"""Packages within packages whose names are public."""
TABLES = {
    "Rows of a raw part": "raw",
    "Variants": "variant",
    "Predictions": "predictions",
    "Tombstones": "retracted",
    "Later figures": "measured",
}
"""Where docs/format.md has the columns of each kind of part."""


THEME = {"aria-dialog-name", "landmark-unique"}
"""What axe finds in the theme's own markup: its search has no name, and its lists of pages have the same one."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built as ``make docs`` builds it."""

    def build(folder: Path) -> None:
        done = subprocess.run(
            [Path(sys.executable).with_name("mkdocs"), "build", "--strict", "--site-dir", folder],
            cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr

    return made_once(tmp_path_factory, "site", build)


def test_no_page_names_anything_that_a_browser_would_fetch_elsewhere(site: Path) -> None:
    fetched = re.compile(
        r'<(?:script|img|iframe|source|video|audio)[^>]*\ssrc="?(https?:)?//|<link[^>]*href="?https?://'
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    assert [page.name for page in pages if fetched.search(page.read_text())] == []
    styles = [path for path in site.rglob("*.css") if re.search(r"url\(\"?(https?:)?//", path.read_text())]
    assert styles == []


def test_every_public_name_is_on_one_page_of_the_api(site: Path) -> None:
    shown = Counter(key(path) for page in API for path in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE))
    named = {key(path): path for module in public_modules() for path in names_of(module)}
    assert {path for found, path in named.items() if shown[found] != 1} == set()
    built = "".join((site / "api" / page.with_suffix(".html").name).read_text() for page in API)
    for page in API:
        for path in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE):
            assert f'id="{path}"' in built, path
    # a module of the name of a function would take its place
    assert "doc-symbol-heading doc-symbol-module" not in built
    assert "math:" not in built and built.count("<math") >= 20  # formulas are drawn


def functions(found: griffe.Object) -> Iterator[griffe.Function]:
    """Every function and method that is defined in a module."""
    if isinstance(found, griffe.Function):
        yield found
    for member in found.members.values():
        if isinstance(member, griffe.Object):
            yield from functions(member)


def test_every_package_says_what_is_public() -> None:
    assert [name for name in PUBLIC if not hasattr(import_module(f"ckptzoo.{name}"), "__all__")] == []
    assert sorted({page.stem for page in API} - {"index", "ckptzoo"}) == PUBLIC
    for module in public_modules():
        assert all(hasattr(module, name) for name in module.__all__)


def test_every_parameter_on_the_pages_of_the_api_is_described_with_a_type_of_its_own() -> None:
    """By the sources as the documentation reads them; one test, because that takes seconds."""
    package = griffe.load(
        "ckptzoo", search_paths=[ROOT], allow_inspection=False, docstring_parser="numpy", resolve_aliases=True,
        extensions=griffe.load_extensions("dataclasses", str(DOCS / "docstrings.py")),
    )  # fmt: skip
    assert isinstance(package, griffe.Module)
    shared = wrong = 0
    for function in functions(package):
        own = {item.name: item for item in function.parameters}
        for section in function.docstring.parsed if function.docstring else ():
            if section.kind is griffe.DocstringSectionKind.parameters:
                shared += len(section.value)
                wrong += sum(str(item.annotation) != str(own[item.name].annotation) for item in section.value)
    assert shared > 700 and wrong == 0

    lacking: list[str] = []
    count = 0
    for path in (path for page in API for path in re.findall(r"^::: ckptzoo\.(\S+)$", page.read_text(), re.MULTILINE)):
        found = package[path].final_target if package[path].is_alias else package[path]
        # a trainer calls the methods of a callback, whose pages leave them out
        hidden = ("_", "on_")
        methods = [item for item in found.members.values() if item.is_function and not item.name.startswith(hidden)]
        for shown in [found, *(methods if found.is_class else [])]:
            names = set(called_with(shown))
            count += len(names)
            lacking += [f"{shown.path}: {name}" for name in sorted(names - set(described(shown)))]
    assert lacking == [] and count > 900


def called_with(found: Any) -> list[str]:
    """The parameters of a function, or of a class that does not take over another one's."""
    if not found.is_function and not (found.is_class and ("dataclass" in found.labels or "__init__" in found.members)):
        return []
    return [item.name for item in found.parameters if item.name not in ("self", "cls")]


def described(found: Any) -> Iterator[str]:
    """The parameters that a docstring describes, and the fields of a class that have docstrings of their own."""
    for section in found.docstring.parse("numpy") if found.docstring else []:
        if section.kind.value in ("parameters", "other parameters", "attributes"):
            yield from (entry.name.lstrip("*") for entry in section.value)
    if found.is_class:
        yield from (name for name, item in found.members.items() if item.is_attribute and item.docstring)


def public_modules() -> Iterator[ModuleType]:
    """The package, those within it that are no programs, and those within these whose names are public."""
    yield ckptzoo
    yield from (import_module(f"ckptzoo.{name}") for name in PUBLIC)
    yield from map(import_module, FURTHER)


def names_of(module: ModuleType) -> Iterator[str]:
    """The public names of a package; each module of a study has a function of its own name."""
    yield from (f"{module.__name__}.{name}" for name in module.__all__ if name != "__version__")
    if module.__name__ == "ckptzoo.studies":
        for found in pkgutil.iter_modules(module.__path__):
            if callable(getattr(import_module(f"ckptzoo.studies.{found.name}"), found.name, None)):
                yield f"ckptzoo.studies.{found.name}.{found.name}"


def key(path: str) -> tuple[Any, ...]:
    """What is the same for all names of one thing."""
    owner, _, name = path.rpartition(".")
    found = getattr(import_module(owner), name)
    if isinstance(found, type | FunctionType):
        return found.__module__, found.__qualname__
    return name, id(found)


def test_every_formula_is_drawn_without_a_command_that_is_left_as_text() -> None:
    docstrings = program("docstrings")
    drawn = "".join(docstrings.drawn(path.read_text()) for path in (ROOT / "ckptzoo").rglob("*.py"))
    assert drawn.count("<math") > 100
    for formula in (r"\arg\max_c x", r"a &= b", r"\text{50\%}", r"\begin{aligned} a &= b \end{aligned}"):
        with pytest.raises(ValueError, match="expected what latex2mathml knows, got "):
            docstrings.drawn(f":math:`{formula}`")


def program(name: str) -> Any:
    """A program of the documentation, as a module."""
    spec = util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("script", ["commands", "forms", "catalogue", "diagrams"])
def test_what_scripts_write_is_up_to_date(script: str) -> None:
    """``make tutorials`` writes it again."""
    module = program(script)
    if script != "diagrams":
        page = module.PAGE.read_text()
        assert page == module.written(page)
        return
    for name, draw in module.DIAGRAMS.items():
        assert (DOCS / f"pictures/{name}.svg").read_text() == draw()


@pytest.mark.parametrize(("heading", "kind"), TABLES.items())
def test_the_format_lists_the_columns_in_their_order(heading: str, kind: str) -> None:
    text = (DOCS / "format.md").read_text()
    section = re.split(r"^#+ ", text.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| (`.+?`)( \(always\))? \| (\w+)[^|]* \|[^|]+\|[^|]+\|$", section, re.MULTILINE)
    listed = [(name, type) for names, _, type in rows for name in re.findall(r"`(\w+)`", names)]
    assert listed == [(column.name, column.type) for column in KINDS[kind]]
    (always,) = [names.split("`")[-2] for names, always, _ in rows if always]
    assert [name for name, _ in listed].index(always) + 1 == LEAST[kind]


def test_the_words_of_the_glossary_are_in_order() -> None:
    glossary = (DOCS / "concepts.md").read_text().partition("## Glossary")[2]
    words = re.findall(r"^\| ([a-z][a-z -]+) \|", glossary, re.MULTILINE)[1:]
    assert len(words) >= 20 and words == sorted(words)


def test_paragraphs_are_short() -> None:
    """Those that people write and read; those of commands are the help texts of the program."""
    pages = {*DOCS.glob("*.md"), *DOCS.glob("guide/*.md"), *DOCS.glob("tutorials/*.md"), *ROOT.glob("*.md")}
    pages |= {ROOT / "cards/README.md"}
    pages -= {DOCS / "guide/commands.md", DOCS / "catalogue.md", ROOT / "CHANGELOG.md"}
    long: list[str] = []
    for page in sorted(pages):
        prose = re.sub(r"^```.*?^```|(?:^    (?!- )[^\n]*\n){3,}", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        found = re.split(r"\n\s*\n|\n(?= *- |\d+\. |\|)", prose)
        long += [f"{page.name}: {text[:60]}" for text in found if len(text.split()) > 90 and text[0] not in "|*"]
    assert len(pages) > 20 and long == []


def test_the_citation_is_that_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(citation)
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert citation["version"] == ckptzoo.__version__ and citation["license"] == "Apache-2.0"
    for author in (*citation["authors"], *citation["references"][0]["authors"]):
        assert {"name"} == set(author) or {"family-names", "given-names"} == set(author)


@pytest.fixture
def requests(browser: Chromium) -> Iterator[tuple[Page, list[str]]]:
    """A page, and every address that it asks for."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    yield context.new_page(), asked
    context.close()


PAGES = ("index.html", "tutorials/symmetries.html", "api/symmetry.html", "studies.html", "format.html", "concepts.html")


@pytest.mark.browser
def test_pages_ask_for_files_alone(site: Path, requests: tuple[Page, list[str]]) -> None:
    page, asked = requests
    for name in PAGES if ALL else PAGES[::2]:
        page.goto((site / name).as_uri(), wait_until="networkidle")
        assert page.locator("h1").count() == 1
        # every picture is there; those that are loaded when they come into view included
        assert page.evaluate("Array.from(document.images).every(i => i.loading == 'lazy' || i.naturalWidth > 0)")
    assert len(asked) > len(PAGES)
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.browser
def test_the_search_finds_names_and_words(site: Path, requests: tuple[Page, list[str]]) -> None:
    page, asked = requests
    page.goto((site / "index.html").as_uri())
    searches = (("load_state_dict", "guide/streaming.html"), ("canonicalize", "api/symmetry.html"))
    for words, target in searches if ALL else searches[:1]:
        page.locator("input[name=query]").click()
        page.locator("input[name=query]").press_sequentially(words)
        page.locator(f".md-search-result__link[href*='{target}']").first.wait_for(state="attached", timeout=20_000)
        page.reload()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


@pytest.mark.browser
@pytest.mark.parametrize("name", ["index.html", "tutorials/hub.html", "api/ckptzoo.html", "format.html"])
@pytest.mark.sampled(3)
def test_pages_fit_on_narrow_screens(site: Path, browser: Chromium, name: str) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto((site / name).as_uri())
    assert sideways(page) == 0
    context.close()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index.html", "tutorials/symmetries.html", "api/errors.html"])
@pytest.mark.sampled(5)
def test_pages_are_accessible(site: Path, browser: Chromium, name: str, scheme: Any) -> None:
    context = browser.new_context(viewport={"width": 1300, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto((site / name).as_uri())
    assert [found for found in violations(page) if found.partition(":")[0] not in THEME] == []
    context.close()
