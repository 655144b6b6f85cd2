"""The explorer of a zoo is linked, published, pulled where only a released script runs in it, and verified."""

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptzoo
from ckptzoo.cli.app import run
from ckptzoo.errors import IntegrityError, SpecError
from ckptzoo.explorer import page
from ckptzoo.format.maintenance import LISTING, belongs_to_zoo
from ckptzoo.hub.card import write
from ckptzoo.hub.pull import pull
from ckptzoo.schema import explorer
from ckptzoo.schema.explorer import BUNDLES, head, is_released
from tests.support.hosted import Hosted
from tests.support.hub_zoos import downloaded, files_of, pushed
from tests.support.serving import Served, running

Make = Callable[..., Path]
NAME = "pages/explorer.html"


def explored(zoo: Path) -> bytes:
    """Make the explorer of a zoo in its folder, by the command."""
    assert run(["page", str(zoo), "--in-place"]) == 0
    return (zoo / NAME).read_bytes()


def test_the_command_writes_it_in_place_and_the_card_links_it(make_zoo: Make) -> None:
    zoo = make_zoo()
    assert "explorer" not in write(zoo).text
    data = explored(zoo)
    assert is_released(data) and explored(zoo) == data
    text = write(zoo).text
    assert "## Explorer\n\n[pages/explorer.html](pages/explorer.html) shows" in text
    assert text.index("## Explorer") < text.index("## How good they are")
    assert ckptzoo.verify(zoo) == []
    ckptzoo.compact(zoo)
    assert f'"{NAME}":[{len(data)},null]' in (zoo / LISTING).read_text()
    # it may be replaced
    page(ckptzoo.open(zoo), zoo / NAME, layers=["fc"])
    assert ckptzoo.verify(zoo) == [] and (zoo / NAME).read_bytes() != data


def test_verify_wants_a_page_and_nothing_beside_it(make_zoo: Make) -> None:
    zoo = make_zoo()
    explored(zoo)
    (zoo / NAME).write_bytes(b"<html>")
    (zoo / "pages/other.html").write_bytes(b"<!doctype html>\n")
    found = [str(problem) for problem in ckptzoo.verify(zoo, deep=False)]
    assert len(found) == 2
    assert found[0].startswith("zoo/pages/explorer.html: file: expected a page of HTML, got something else.")
    assert found[1].startswith("zoo/pages: a page: expected explorer.html, got 'other.html'.")
    assert belongs_to_zoo(NAME) and not belongs_to_zoo("pages/other.html")


def test_it_is_published_and_pulled(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo()
    explored(zoo)
    write(zoo)
    ckptzoo.compact(zoo)
    pushed(server, zoo)
    assert (downloaded(server, tmp_path) / NAME).read_bytes() == (zoo / NAME).read_bytes()
    assert f"]({NAME})" in (downloaded(server, tmp_path) / "README.md").read_text()
    pull("lab/zoo", tmp_path / "got", endpoint=server.url)
    assert (
        files_of(tmp_path / "got") == files_of(downloaded(server, tmp_path)) and ckptzoo.verify(tmp_path / "got") == []
    )
    pull("lab/zoo", tmp_path / "part", where="seed < 2", endpoint=server.url)
    assert "The explorer shows the whole." in (tmp_path / "part/README.md").read_text()
    assert (tmp_path / "part" / NAME).read_bytes() == (zoo / NAME).read_bytes()
    with running(Served({f"/zoo/{name}": data for name, data in files_of(zoo).items()})) as web:
        pull(f"{web.url}/zoo", tmp_path / "web")
    assert (tmp_path / "web" / NAME).read_bytes() == (zoo / NAME).read_bytes()


@pytest.mark.parametrize("kind", ["script", "policy", "before", "absent", "newer", "large"])
def test_a_pull_leaves_out_what_runs_another_script(
    make_zoo: Make, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo = make_zoo()
    data = explored(zoo)
    script, style = BUNDLES[:2]
    forged = {
        "script": data.replace(script.encode(), b"sha256-" + b"A" * 43 + b"="),
        "policy": data.replace(b"default-src 'none'", b"default-src *"),
        "before": data.replace(b"<head>", b"<head><script>document.title = 1</script>", 1),
        "absent": b"<!doctype html>\n<script>document.title = 1</script>",
        "newer": data,
        "large": data,
    }[kind]
    (zoo / NAME).write_bytes(forged)
    if kind == "newer":
        monkeypatch.setattr(explorer, "BUNDLES", (style,))
    if kind == "large":
        monkeypatch.setattr("ckptzoo.hub.card.explorer.MAX_PAGE_BYTES", len(data) - 1)
    with pytest.warns(UserWarning, match="explorer.html: page: expected at most .* The pull goes on without it"):
        pull(zoo, tmp_path / "got")
    assert not (tmp_path / "got/pages").exists() and len(ckptzoo.open(tmp_path / "got")) == 5


def test_what_follows_a_released_head_is_data_to_a_browser(make_zoo: Make, tmp_path: Path) -> None:
    """The policy decides, and it comes first: pages with another script after it are taken, and it does not run."""
    script, style = BUNDLES[:2]
    assert is_released(head(script, style).encode() + b"<script>document.title = 1</script>")
    assert not is_released(b"\xef\xbb\xbf" + head(script, style).encode())
    zoo = make_zoo()
    explored(zoo)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pull(zoo, tmp_path / "got")
    assert (tmp_path / "got" / NAME).is_file()


def test_no_page_is_not_published(
    server: Hosted, make_zoo: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo = make_zoo()
    explored(zoo)
    (zoo / NAME).write_bytes(b"GIF89a")
    with pytest.raises(IntegrityError, match=r"explorer\.html: file: expected a page of HTML, got something else"):
        pushed(server, zoo)
    (zoo / NAME).unlink()
    explored(zoo)
    with (
        monkeypatch.context() as small,
        pytest.raises(SpecError, match=r"page: expected at most 9 bytes, got .*--layers"),
    ):
        small.setattr("ckptzoo.hub.card.explorer.MAX_PAGE_BYTES", 9)
        pushed(server, zoo)
    shutil.rmtree(zoo / "pages")
    pushed(server, zoo)
    assert not (downloaded(server, tmp_path) / "pages").exists()
