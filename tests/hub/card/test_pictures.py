"""The pictures that a card names are on the page, in the repository, and in what is pulled."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import ckptzoo
from ckptzoo.cli.app import run
from ckptzoo.errors import IntegrityError, SpecError
from ckptzoo.format.maintenance import LISTING
from ckptzoo.hub.card import card_of, readme, write
from ckptzoo.hub.card.pictures import MAX_PICTURE_BYTES, is_png, pictures_section
from ckptzoo.hub.client import Client
from ckptzoo.hub.pull import pull
from ckptzoo.hub.push import plan, rewrite
from ckptzoo.schema.card import MAX_CAPTION, Card, Picture
from tests.support.effort import examples
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import assert_generated_page, downloaded, files_of, grown, pushed
from tests.support.pictures import illustrated, png
from tests.support.serving import Served, running

Make = Callable[..., Path]
NAMES = ("pictures/b.png", "pictures/a.png")


def shown(text: str) -> list[str]:
    """Addresses of the pictures of a page, in order."""
    tokens = MarkdownIt("commonmark").parse(text)
    inline = [child for token in tokens for child in token.children or ()]
    return [str(child.attrs["src"]) for child in inline if child.type == "image"]


def test_a_page_shows_each_picture_once_in_order_high_up(make_zoo: Make) -> None:
    zoo = make_zoo()
    illustrated(zoo, b=1, a=2)
    text = (zoo / "README.md").read_text()
    assert shown(text) == [*NAMES] and "![What b shows.](pictures/b.png)\n\n*What b shows.*\n\n![" in text
    assert text.index("load_dataset(") < text.index("## Pictures") < text.index("pictures/b.png")
    assert text.index("pictures/a.png") < text.index("## How good they are")
    assert "## Pictures" not in readme(ckptzoo.open(zoo), Card("zoo"))


LINE = st.text(st.characters(exclude_categories=["C", "Zl", "Zp", "Zs"], include_characters=" "), max_size=MAX_CAPTION)
MARKS = st.text("`|\\<>[]()*_#~!&$ -:\"'+=1.x", min_size=1, max_size=40)


@settings(max_examples=examples(200), deadline=None)
@given((LINE | MARKS).filter(str.strip))
def test_a_caption_is_only_read(caption: str) -> None:
    """One picture with the caption as its text, and the caption once more in a paragraph of its own."""
    tokens = (
        MarkdownIt("commonmark", {"html": True})
        .enable("table")
        .parse(pictures_section(Card("zoo", pictures=(Picture("a.png", caption),))))
    )
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"] * 2
    said, images, below = " ".join(caption.split()), list(tokens[1].children or ()), list(tokens[4].children or ())
    assert [(item.type, item.attrs.get("src")) for item in images] == [("image", "pictures/a.png")]
    assert "".join(item.content for item in images[0].children or ()) == said
    assert [below[0].type, below[-1].type] == ["em_open", "em_close"]
    assert {item.type for item in below[1:-1]} <= {"text", "text_special"}
    assert "".join(item.content for item in below) == said


def test_what_is_a_png() -> None:
    right = png()
    assert is_png(right)
    for cut in range(len(right)):
        assert not is_png(right[:cut])
    assert not is_png(right + b"\0") and not is_png(b"GIF89a" + right) and not is_png(b"")


@pytest.mark.parametrize(
    ("data", "got"),
    [
        (None, "none"),
        (b"", "0 bytes"),
        (b"GIF89a", "something else"),
        (png()[:-1], "something else"),
        (png() + b"x", "something else"),
        (png() + bytes(MAX_PICTURE_BYTES), f"{MAX_PICTURE_BYTES + len(png()):,} bytes"),
    ],
)
def test_a_picture_that_cannot_be_shown_is_named(make_zoo: Make, server: Hosted, data: bytes | None, got: str) -> None:
    zoo = make_zoo()
    illustrated(zoo, a=1, b=2)
    path, before = zoo / "pictures/b.png", (zoo / "README.md").read_bytes()
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    said = rf"^zoo/pictures/b\.png: picture: expected a whole PNG of at most 1,000,000 bytes, got {got}\. Put one there"
    for act in (lambda: write(zoo), lambda: write(zoo, check=True), lambda: pushed(server, zoo)):
        with pytest.raises(SpecError, match=said):
            act()
    assert (zoo / "README.md").read_bytes() == before and server.request_log.count("create", "upload", "commit") == 0
    assert ckptzoo.verify(zoo) == []


def test_the_command_names_every_picture_that_is_missing(make_zoo: Make, capsys: pytest.CaptureFixture[str]) -> None:
    zoo = make_zoo()
    illustrated(zoo, a=1, b=2)
    assert run(["card", str(zoo), "--check"]) == 0
    for name in NAMES:
        (zoo / name).unlink()
    capsys.readouterr()
    assert run(["card", str(zoo), "--check"]) == 3
    said = capsys.readouterr().err
    assert all(f"zoo/{name}: picture: expected a whole PNG" in said for name in NAMES)


def test_a_picture_that_matplotlib_draws(make_zoo: Make) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    figure.subplots().plot([0, 1])
    zoo = make_zoo()
    illustrated(zoo, a=0)
    figure.savefig(zoo / "pictures/a.png")
    assert shown(write(zoo).text) == ["pictures/a.png"]


def test_verify_and_listing_leave_the_folder_alone(make_zoo: Make) -> None:
    zoo = make_zoo()
    illustrated(zoo, a=1)
    ckptzoo.compact(zoo)
    assert json.loads((zoo / LISTING).read_bytes())["files"]["pictures/a.png"] == [len(png(1)), None]
    (zoo / "pictures/a.png").write_bytes(png(2) + b"longer")
    (zoo / "pictures/other.txt").write_text("Anything.")
    assert ckptzoo.verify(zoo) == []
    shutil.rmtree(zoo / "pictures")
    assert ckptzoo.verify(zoo) == []


@pytest.mark.exhaustive
def test_a_push_uploads_what_the_card_names(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo()
    illustrated(zoo, b=1, a=2)
    (zoo / "pictures/draft.png").write_bytes(png(9))
    assert {*NAMES} <= {*plan(zoo, ZOO, endpoint=server.url).documents}
    assert {*NAMES} <= {*pushed(server, zoo).documents}
    down = downloaded(server, tmp_path)
    assert shown(assert_generated_page(down)) == [*NAMES] and not (down / "pictures/draft.png").exists()
    assert ckptzoo.verify(down) == [] and pushed(server, zoo).commits == ()
    (zoo / "pictures/a.png").write_bytes(png(3))
    assert pushed(server, zoo).documents == ("pictures/a.png",)
    assert (downloaded(server, tmp_path) / "pictures/a.png").read_bytes() == png(3)


def test_pictures_behind_a_link_are_not_uploaded(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo()
    illustrated(zoo, a=1)
    (zoo / "pictures").rename(tmp_path / "elsewhere")
    (zoo / "pictures").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IntegrityError, match=r"a\.png: file: expected one in the zoo's folder, got a link to"):
        pushed(server, zoo)
    assert server.request_log.count("create", "upload", "commit") == 0


@pytest.mark.exhaustive
def test_a_page_made_again_on_the_hub_keeps_its_pictures(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo()
    older = Path(shutil.copytree(zoo, tmp_path / "older"))
    (older / "card.toml").unlink()
    card = illustrated(zoo, b=1, a=2)
    pushed(server, zoo)
    pushed(server, grown(older, (1,), start=7))  # by somebody who has neither card nor pictures
    text = assert_generated_page(downloaded(server, tmp_path))
    assert shown(text) == [*NAMES] and "**6** of 6 members" in text
    client = Client(server.url, server.tokens["write"])
    client.commit(ZOO, {"README.md": b"# By hand\n"}, title="harm", parent=client.head(ZOO))
    rewrite(ZOO, endpoint=server.url, token=server.tokens["write"])
    assert shown(assert_generated_page(downloaded(server, tmp_path))) == [*NAMES]
    token = server.tokens["write"]
    assert rewrite(ZOO, card, endpoint=server.url, token=token).commit is None
    with pytest.raises(SpecError, match=r"pictures/c\.png: picture: expected a whole PNG .*, got none"):
        rewrite(ZOO, Card("zoo", pictures=(Picture("c.png", "C."),)), endpoint=server.url, token=token)

    page = files_of(downloaded(server, tmp_path))["README.md"]
    client.commit(ZOO, {NAMES[0]: b"GIF89a"}, title="harm", parent=client.head(ZOO))
    found = pushed(server, grown(older, (1,), start=8))
    assert len(found.parts) == 1 and "pictures/b.png: picture: expected a whole PNG" in found.notes[0]
    assert files_of(downloaded(server, tmp_path))["README.md"] == page


def test_a_pull_brings_them(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo()
    illustrated(zoo, b=1, a=2)
    ckptzoo.compact(zoo)
    pushed(server, zoo)
    assert pull(ZOO, tmp_path / "got", endpoint=server.url).checkpoints == 5
    assert files_of(tmp_path / "got") == files_of(downloaded(server, tmp_path))
    assert shown(write(tmp_path / "got").text) == [*NAMES]
    (zoo / "pictures/a.png").write_bytes(png(3))
    pushed(server, zoo)
    pull(ZOO, tmp_path / "got", endpoint=server.url)
    assert (tmp_path / "got/pictures/a.png").read_bytes() == png(3)
    pull(ZOO, tmp_path / "part", layers=["fc"], endpoint=server.url)
    text = (tmp_path / "part/README.md").read_text()
    assert shown(text) == [*NAMES] and "The pictures show the whole." in text
    assert all((tmp_path / "part" / name).read_bytes() == (zoo / name).read_bytes() for name in NAMES)
    assert ckptzoo.verify(tmp_path / "part") == []
    with running(Served({f"/zoo/{name}": data for name, data in files_of(zoo).items()})) as web:
        pull(f"{web.url}/zoo", tmp_path / "web")
    assert (tmp_path / "web" / NAMES[0]).read_bytes() == png(1)


def test_a_pull_goes_on_without_what_is_no_picture(make_zoo: Make, tmp_path: Path) -> None:
    zoo = make_zoo()
    illustrated(zoo, c=0, b=1, a=2)
    (zoo / NAMES[0]).write_bytes(b"MZ" + bytes(99))
    (zoo / NAMES[1]).unlink()
    with pytest.warns(UserWarning, match="The pull goes on without it") as warned:
        pull(zoo, tmp_path / "got")
    assert [str(item.message).split(":")[0].rpartition("/")[2] for item in warned] == ["b.png", "a.png"]
    assert [path.name for path in (tmp_path / "got/pictures").iterdir()] == ["c.png"]
    assert card_of(ckptzoo.open(tmp_path / "got")) == card_of(ckptzoo.open(zoo))


@pytest.mark.parametrize("name", ["../a.png", "/a.png", "x/../../../a.png", "a.png\n"])
def test_an_untrusted_card_writes_nowhere_else(make_zoo: Make, tmp_path: Path, name: str) -> None:
    zoo = make_zoo()
    (zoo / "pictures").mkdir()
    for place in (tmp_path / "a.png", zoo / "a.png"):
        place.write_bytes(png())
    with (zoo / "card.toml").open("a") as file:
        file.write(f"[[pictures]]\nfile = {json.dumps(name)}\ncaption = 'A.'\n")
    pull(zoo, tmp_path / "far" / "away" / "got")
    found = [path.relative_to(tmp_path / "far/away") for path in (tmp_path / "far").rglob("*.png")]
    assert found == []
