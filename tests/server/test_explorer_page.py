"""The explorer of ``cards/mnist-optunet`` as a hub shows it: in a sandboxed frame, under the hub's policy."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import ckptzoo
from tests.support.chromium import chromium
from tests.support.hosted import Hosted, hosted, push

pytestmark = pytest.mark.browser
ZOO = "lab/mnist-optunet"
CARDS = Path(__file__).parents[2] / "cards"
CARD = b"---\nlicense: apache-2.0\ntags: [ckptzoo, arch:optunet]\n---\n# OptuNets on MNIST\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Hosted]:
    """A hub with the page of the zoo, which anybody may look at."""
    with hosted(tmp_path / "served") as running:
        running.api().create_repo(ZOO, repo_type="dataset")
        data = (CARDS / "mnist-optunet/pages/explorer.html").read_bytes()
        push(running, {"README.md": CARD, "pages/explorer.html": data}, f"datasets/{ZOO}")
        yield running


def test_the_hub_shows_the_page_of_a_zoo(server: Hosted) -> None:
    zoo = ckptzoo.open(CARDS / "mnist-optunet")
    with chromium() as browser:
        context = browser.new_context()
        page = context.new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text))
        page.goto(f"{server.url}/datasets/{ZOO}")
        page.get_by_role("link", name="Explore the weights").click()
        frame = page.frame_locator("iframe")
        frame.locator("#count").get_by_text("8,192 of 8,192 members").wait_for()
        # styles of the sheet, and those that the script sets, are there
        assert frame.locator("#selection").evaluate("e => getComputedStyle(e).borderBottomStyle") == "solid"
        assert frame.locator(".track .selected").first.evaluate("e => e.getBoundingClientRect().width") > 100
        frame.get_by_label("Test accuracy, from").fill("0.9")
        frame.get_by_label("Test accuracy, from").press("Enter")
        expected = zoo.where("test_accuracy >= 0.9")
        frame.locator("#count").get_by_text(f"{len(expected):,} of 8,192 members").wait_for()
        # a frame without an origin has no clipboard: the code is marked
        frame.get_by_role("button", name="Copy selection").click()
        frame.get_by_text("The browser gives no clipboard here").wait_for()
        field = frame.get_by_label("Code of the selection")
        marked = field.evaluate("e => e.value.slice(e.selectionStart, e.selectionEnd)")
        assert eval(marked, {"zoo": zoo}).ids == expected.ids
        context.close()
        assert [text for text in wrong if "Clipboard API has been blocked" not in text] == []


@pytest.mark.exhaustive
def test_a_page_of_a_zoo_with_a_script_of_its_own_shows_words_alone(server: Hosted) -> None:
    data = (CARDS / "mnist-optunet/pages/explorer.html").read_text(encoding="utf-8")
    forged = data.replace("<body>", "<body><script>document.title = 'taken'</script>", 1)
    start = forged.rindex("<script>")
    forged = f"{forged[: start + 8]}parent.postMessage(1, '*');{forged[start + 8 :]}"
    push(server, {"pages/explorer.html": forged.encode()}, f"datasets/{ZOO}")
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"{server.url}/datasets/{ZOO}")
        page.get_by_role("link", name="Explore the weights").click()
        frame = page.frame_locator("iframe")
        frame.get_by_role("heading", name="OptuNets on MNIST").wait_for()
        assert (
            frame.locator("#count").count() == 0 and frame.locator("html").evaluate("() => document.title") != "taken"
        )
