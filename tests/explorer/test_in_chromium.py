"""The page in a real Chromium, without a network: brushes, copied code, keyboard, readers of screens, odd zoos."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Locator

import ckptzoo
from ckptzoo.explorer import page as write_page
from ckptzoo.format.splits import make_split
from ckptzoo.schema.card import Card
from tests.explorer.test_page import HOSTILE
from tests.support.chromium import go_to, sideways, violations
from tests.support.derived_zoos import ARCH, TABLE, weights_of
from tests.support.explorer_pages import optunets, payload_of, rows_with_gaps

pytestmark = [pytest.mark.browser, pytest.mark.slow]
MEMBERS = 150
BRUSHES = 200


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[ckptzoo.Zoo, Path]:
    """A zoo with values of every kind, and its page."""
    folder = tmp_path_factory.mktemp("explorer")
    zoo = ckptzoo.open(optunets(folder / "zoo", rows_with_gaps(MEMBERS)))
    write_page(zoo, folder / "page.html")
    return zoo, folder / "page.html"


class Window:
    """A page in a context without a network, what went wrong in it, and what it asked for."""

    def __init__(self, browser: Chromium, path: Path, fragment: str = "", **options: Any) -> None:
        self.context = browser.new_context(offline=True, **options)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("dialog", lambda dialog: (self.errors.append("a dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(f"{path.as_uri()}{fragment}")
        self.page.wait_for_function("() => document.documentElement.dataset.ready")

    def __enter__(self) -> "Window":
        return self

    def __exit__(self, *problem: object) -> None:
        self.context.close()
        if problem[0] is None:
            assert self.errors == []
            assert [url for url in self.asked if not url.startswith("file:")] == []

    def copied(self, name: str) -> str:
        """What a button puts into the clipboard."""
        self.page.evaluate("document.getElementById('message').textContent = ''")
        self.page.get_by_role("button", name=name, exact=True).click()
        self.page.locator("#message").get_by_text("Copied").wait_for()
        return self.page.evaluate("navigator.clipboard.readText()")

    @property
    def count(self) -> int:
        """The members that the page says are selected, when it has drawn what changed."""
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return int(self.page.locator("#count").inner_text().split()[0].replace(",", ""))

    def drag(self, plot: Locator, start: tuple[float, float], stop: tuple[float, float]) -> None:
        """Move the mouse with its button down between two places in a picture, as fractions of its sides."""
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box is not None
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, stop)]
        self.page.mouse.move(*places[0])
        self.page.mouse.down()
        self.page.mouse.move(*places[1], steps=4)
        self.page.mouse.up()
        self.page.wait_for_timeout(50)


def selected(zoo: ckptzoo.Zoo, code: str) -> list[str]:
    """The ids that copied code selects."""
    return eval(code, {"zoo": zoo}).ids


def states(zoo: ckptzoo.Zoo, data: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Random brushes as fragments, and which members each of them selects."""
    rng = np.random.default_rng(0)
    for number in range(BRUSHES):
        parts, keep = list[str](), np.ones(len(zoo), bool)
        for measure in rng.choice(data.header["measures"], 2, replace=False) if number % 5 else ():
            values = data.columns[measure["name"]].astype(np.float64)
            known = values[np.isfinite(values)]
            # ends that are values, and ends between them
            low, high = np.sort(
                rng.choice(known, 2) if number % 2 else rng.uniform(known.min(), known.max(), 2)
            ).tolist()
            low, high = (None if rng.random() < 0.15 else low), (None if rng.random() < 0.15 else high)
            parts.append(f"{measure['name']}={'' if low is None else low!r}..{'' if high is None else high!r}")
            if low is not None:
                keep &= values >= low
            if high is not None:
                keep &= values <= high
        if number % 3 == 0:
            texts = rng.choice(np.array([None, "mit", "apache-2.0", 'a "quoted" \\ licence'], object), 2, replace=False)
            parts.append(f"license={quote(','.join('' if text is None else quote(text, safe='') for text in texts))}")
            keep &= np.array([text in texts for text in zoo.column("license").to_pylist()])
        if number % 4 == 0:
            panel = data.header["layers"][0]["panels"][number % 8 // 4]
            ranges = []
            for axis in (0, 1):
                places = data.columns[f"{panel['column']}:{'xy'[axis]}"] * panel["steps"][axis]
                low, high = np.sort(rng.choice(places, 2)).tolist()
                # half a step beyond, so that rounding of a product does not decide
                low, high = low - panel["steps"][axis] / 2, high + panel["steps"][axis] / 2
                ranges.append(f"{low!r}..{high!r}")
                keep &= (places >= low) & (places <= high)
            parts.append(f"pca.{panel['variant']}={','.join(ranges)}")
        yield "#" + "&".join(parts), keep


@pytest.mark.exhaustive
def test_copied_code_selects_the_ids_that_the_page_counts(browser: Chromium, shown: tuple[ckptzoo.Zoo, Path]) -> None:
    zoo, path = shown
    wanted = list(states(zoo, payload_of(path)))
    with Window(browser, path) as window:
        found = window.page.evaluate(COPIES, [fragment for fragment, _ in wanted])
    for (fragment, keep), (code, ids, count) in zip(wanted, found, strict=True):
        assert ids.split() == np.array(zoo.ids)[keep].tolist(), fragment
        assert selected(zoo, code) == ids.split() and count == f"{keep.sum()} of {MEMBERS} members", fragment
    assert sum('"id"' not in code for code, _, _ in found) > BRUSHES / 4, "ranges of columns are copied as conditions"


COPIES = """async fragments => {
    const found = [];
    const frame = () => new Promise(done => requestAnimationFrame(done));
    const status = document.getElementById("message");
    const press = async name => {
        status.textContent = "";
        [...document.querySelectorAll("#selection button")].find(button => button.innerText === name).click();
        while (!status.textContent.startsWith("Copied")) await frame();
        return navigator.clipboard.readText();
    };
    for (const fragment of fragments) {
        const changed = new Promise(done => addEventListener("hashchange", done, {once: true}));
        location.hash = fragment;
        await changed;
        await frame();
        found.push([await press("Copy selection"), await press("Copy ids"), document.getElementById("count").innerText]);
    }
    return found;
}"""
"""Takes states, and gives for each what both buttons put into the clipboard and what the page counts."""


@pytest.mark.exhaustive
def test_brushes_of_a_histogram_and_of_both_panels(browser: Chromium, shown: tuple[ckptzoo.Zoo, Path]) -> None:
    zoo, path = shown
    with Window(browser, path) as window:
        page = window.page
        accuracy = page.locator("#measures figure").filter(has_text="Test accuracy")
        window.drag(accuracy.locator("svg"), (0.3, 0.5), (0.7, 0.5))
        low, high = (accuracy.get_by_role("textbox").nth(at).input_value() for at in (0, 1))
        code = window.copied("Copy selection")
        assert code == f'zoo.where([("test_accuracy", ">=", {low}), ("test_accuracy", "<=", {high})])'
        first = selected(zoo, code)
        assert 0 < len(first) == window.count < MEMBERS
        # a click chooses, and takes no brush away
        window.drag(accuracy.locator("svg"), (0.9, 0.5), (0.9, 0.5))
        assert window.count == len(first)
        for variant in ("raw", "canonical"):
            before = window.count
            panel = page.locator("#components figure").filter(has_text=f"({variant})")
            window.drag(panel.locator(".plot svg"), (0.3, 0.2), (0.8, 0.7))
            assert 0 < window.count < before
            assert selected(zoo, window.copied("Copy selection")) == window.copied("Copy ids").split()
        assert set(window.copied("Copy ids").split()) < set(first)
        # the other views show what is left: the table, and the state in the address
        page.wait_for_function(f"() => document.querySelectorAll('#members tbody tr').length === {window.count}")
        kept, fragment = window.copied("Copy ids"), page.evaluate("location.hash")
        page.get_by_role("button", name="Clear Test accuracy").click()
        assert selected(zoo, window.copied("Copy selection")) == window.copied("Copy ids").split()
        page.get_by_role("button", name="Clear all").click()
        assert window.copied("Copy selection") == "zoo" and selected(zoo, "zoo") == zoo.ids
    with Window(browser, path, fragment) as window:
        assert window.copied("Copy ids") == kept


def marks(window: Window) -> list[list[int]]:
    """The pixels that each mark of the legend covers."""
    return window.page.locator(".legend canvas").evaluate_all(
        """canvases => canvases.map(canvas => [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data]
            .filter((_, at) => at % 4 === 3).map(alpha => Number(alpha > 127)))"""
    )


def test_points_are_coloured_by_a_column_in_classes_that_the_legend_names(
    browser: Chromium, shown: tuple[ckptzoo.Zoo, Path], tmp_path: Path
) -> None:
    zoo, page = shown
    with Window(browser, page) as window:
        canvas, legend = window.page.locator("#components .plot canvas").first, window.page.locator(".legend li")
        canvas.scroll_into_view_if_needed()
        pictures, choice = [canvas.screenshot()], window.page.locator("#colour")
        assert legend.count() == 0
        for name in choice.locator("option").evaluate_all("options => options.map(option => option.value).slice(1)"):
            choice.select_option(name)
            pictures.append(canvas.screenshot())
            counts = [int(text.rpartition("(")[2].strip(")").replace(",", "")) for text in legend.all_inner_texts()]
            assert sum(counts) == len(zoo) and min(counts) > 0
            shapes = marks(window)
            assert len({tuple(shape) for shape in shapes}) == len(shapes) > 1
            if name == "license":
                texts = Counter(zoo.column(name).to_pylist())
                assert sorted(counts) == sorted(texts.values())
            assert f"colour={name}" in window.page.evaluate("location.hash")
        assert len({*pictures}) == len(pictures) > 4
        fragment = window.page.evaluate("location.hash")
        last = legend.all_inner_texts()
        choice.select_option("")
        assert legend.count() == 0 and canvas.screenshot() == pictures[0]
    with Window(browser, page, fragment) as window:
        assert window.page.locator(".legend li").all_inner_texts() == last


def test_a_split_colours_and_selects_by_ids(browser: Chromium, tmp_path: Path) -> None:
    zoo = ckptzoo.open(optunets(tmp_path / "zoo", rows_with_gaps(40)))
    make_split(tmp_path / "zoo", "main", {"train": 0.6, "test": 0.4})
    zoo = ckptzoo.open(tmp_path / "zoo")
    write_page(zoo, tmp_path / "page.html")
    train = zoo.split("main", "train").ids
    with Window(browser, tmp_path / "page.html", "#colour=split.main") as window:
        texts = window.page.locator(".legend li").all_inner_texts()
        assert [text.strip() for text in texts] == [f"train ({len(train)})", f"test ({40 - len(train)})"]
        window.page.get_by_role("group", name="Split main").get_by_role("checkbox").first.check()
        assert window.count == len(train) and selected(zoo, window.copied("Copy selection")) == train


def test_all_panels_are_printed(browser: Chromium, shown: tuple[ckptzoo.Zoo, Path]) -> None:
    with Window(browser, shown[1], viewport={"width": 400, "height": 300}) as window:
        drawn = """canvases => canvases.map(canvas => { const empty = document.createElement("canvas");
            [empty.width, empty.height] = [canvas.width, canvas.height]; return canvas.toDataURL() !== empty.toDataURL(); })"""
        assert not any(window.page.locator("#components .plot canvas").evaluate_all(drawn))
        window.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert all(window.page.locator("#components .plot canvas").evaluate_all(drawn))


@pytest.mark.exhaustive
def test_another_layer_has_other_places_and_no_brush(browser: Chromium, shown: tuple[ckptzoo.Zoo, Path]) -> None:
    with Window(browser, shown[1]) as window:
        panel = window.page.locator("#components figure").first
        window.drag(panel.locator(".plot svg"), (0.3, 0.2), (0.8, 0.7))
        assert window.count < MEMBERS
        before = panel.locator("canvas").screenshot()
        window.page.get_by_label("Layer").select_option(index=2)
        window.page.wait_for_timeout(100)
        assert window.count == MEMBERS and panel.locator("canvas").screenshot() != before
        assert "layer=fc" in window.page.evaluate("location.hash")


def test_the_table_is_sorted_and_searched(browser: Chromium, shown: tuple[ckptzoo.Zoo, Path]) -> None:
    zoo, path = shown
    with Window(browser, path) as window:
        page = window.page
        page.locator("#members thead button", has_text="test_brier").click()
        rows = page.locator("#members tbody tr")
        order = np.argsort(zoo.column("test_brier").to_numpy(), kind="stable")
        ids = lambda: [text.strip() for text in rows.locator("th").all_inner_texts()]  # noqa: E731
        assert ids() == np.array(zoo.ids)[order][:50].tolist()
        page.locator("#members thead button", has_text="test_brier").click()
        assert ids() == np.array(zoo.ids)[order][::-1][:50].tolist()
        assert page.locator("#members thead th[aria-sort=descending]").inner_text().startswith("test_brier")
        page.get_by_role("button", name="Next").click()
        page.get_by_role("button", name="Next").click()
        assert len(ids()) == 50 and "101 to 150 of 150" in page.locator("#members").inner_text()
        # members without an accuracy come last
        page.locator("#members thead button", has_text="test_accuracy").click()
        page.get_by_role("button", name="Next").click()
        page.get_by_role("button", name="Next").click()
        last = zoo.checkpoint(ids()[-1]).row["test_accuracy"]
        assert last is None or np.isnan(last)
        page.get_by_label("Search ids").fill("NET-0014")
        assert sorted(ids()) == [f"net-0014{at}" for at in range(10)]
        page.get_by_label("Search ids").fill("nobody")
        assert ids() == [] and "none" in page.locator("#members .controls").inner_text()


@pytest.mark.exhaustive
def test_a_member_is_chosen_in_the_table_and_in_a_panel(browser: Chromium, shown: tuple[ckptzoo.Zoo, Path]) -> None:
    zoo, path = shown
    data = payload_of(path)
    with Window(browser, path) as window:
        page = window.page
        page.get_by_role("button", name="net-00007").click()
        assert eval(window.copied("Copy the checkpoint"), {"zoo": zoo}).id == "net-00007"
        facts = page.locator("#member").inner_text()
        assert "seed" in facts and "wall_seconds" in facts and zoo.checkpoint("net-00007").row["contributor"] in facts
        assert page.locator("#components .ring").evaluate_all(
            "rings => rings.map(ring => ring.getAttribute('visibility'))"
        ) == [
            "visible",
            "visible",
        ]
        assert page.locator("#measures .mark[visibility=visible]").count() >= 4
        # a click on the ring's place in the panel of another member
        row = 100
        panel = page.locator("#components figure").first
        page.evaluate(f"location.hash = 'id={zoo.ids[row]}'")
        page.wait_for_function(f"() => document.querySelector('#member h3').innerText.trim() === '{zoo.ids[row]}'")
        ring, plot = (panel.locator(name).bounding_box() for name in (".ring", ".plot svg"))
        assert ring is not None and plot is not None
        place = {"x": ring["x"] + ring["width"] / 2 - plot["x"], "y": ring["y"] + ring["height"] / 2 - plot["y"]}
        page.evaluate("location.hash = 'table=,0,'")
        page.wait_for_function("() => document.querySelector('#member .id') === null")
        panel.locator(".plot svg").click(position=place)  # type: ignore[arg-type]
        chosen = page.locator("#member h3").inner_text().strip()
        places = np.array([data.columns[f"raw:0:{axis}"] for axis in "xy"]).T.astype(float)
        distance = np.hypot(*(places[zoo.ids.index(chosen)] - places[row]))
        assert distance < 2**15 / 100, "the nearest member to the click"


def test_by_keyboard_alone(browser: Chromium, shown: tuple[ckptzoo.Zoo, Path]) -> None:
    zoo, path = shown
    with Window(browser, path) as window:
        page = window.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the views"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "views"
        go_to(page, "Test accuracy, from")
        page.keyboard.type("0.83")
        page.keyboard.press("Tab")
        page.keyboard.type("\u22121")
        page.keyboard.press("Enter")
        assert window.count == 0, "a minus as d3 writes it is a minus"
        page.keyboard.press("Control+A")
        page.keyboard.type("0.87")
        page.keyboard.press("Enter")
        accuracy = zoo.where("test_accuracy >= 0.83 and test_accuracy <= 0.87")
        assert window.count == len(accuracy) > 0
        go_to(page, "Test Brier score, from")
        page.keyboard.type("much")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.getAttribute('aria-invalid')") == "true"
        assert window.count == len(accuracy)
        go_to(page, "As trained (raw), component 1, from")
        page.keyboard.type("0")
        page.keyboard.press("Enter")
        assert 0 < window.count < len(accuracy)
        go_to(page, "Clear As trained (raw)", limit=20)
        page.keyboard.press("Enter")
        page.wait_for_function(
            f"() => document.querySelector('#announced').textContent.startsWith('{len(accuracy)} of')"
        )
        page.wait_for_timeout(200)  # until the table is that of the selection
        go_to(page, accuracy.ids[0])
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "member"
        go_to(page, "Copy the checkpoint")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('#message').innerText.startsWith('Copied')")
        assert page.evaluate("navigator.clipboard.readText()") == f'zoo.checkpoint("{accuracy.ids[0]}")'
        page.evaluate("document.getElementById('views').focus()")
        go_to(page, "Copy selection")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1200])
@pytest.mark.sampled(3)
def test_nothing_is_wrong_for_readers_of_screens_and_nothing_is_wide(
    browser: Chromium, shown: tuple[ckptzoo.Zoo, Path], scheme: str, width: int
) -> None:
    fragment = "#test_accuracy=0.83..0.87&id=net-00007&license=mit&pca.raw=0..,..0&colour=license"
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}, "bypass_csp": True}
    with Window(browser, shown[1], fragment, **options) as window:
        assert violations(window.page) == []
        assert sideways(window.page) == 0
        for pair, least in CONTRASTS.items():
            assert contrast(*(window.page.evaluate(RGB, f"--{name}") for name in pair)) >= least, pair


CONTRASTS = {
    ("ink", "paper"): 4.5, ("ink", "panel"): 4.5, ("soft", "paper"): 4.5, ("soft", "panel"): 4.5, ("link", "paper"): 4.5,
    ("mark", "paper"): 3, ("mark", "panel"): 3, ("ghost", "paper"): 3, ("ghost", "panel"): 3, ("ring", "panel"): 3,
    ("field", "paper"): 3, ("field", "panel"): 3,
    **{(f"class-{number}", "panel"): 3 for number in range(6)}, **{(f"fifth-{number}", "panel"): 3 for number in range(5)},
}  # fmt: skip
"""Text and marks on what is behind them: WCAG 2.2 asks for 4.5 of text and 3 of marks; axe leaves pictures undecided."""
RGB = """name => { const e = document.createElement("i"); document.body.append(e);
    e.style.color = `var(${name})`; const c = getComputedStyle(e).color; e.remove(); return c.match(/\\d+/g).slice(0, 3).map(Number); }"""


def contrast(first: list[int], second: list[int]) -> float:
    """The contrast ratio of two colours, as WCAG defines it."""

    def luminance(colour: list[int]) -> float:
        parts = [value / 255 for value in colour]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.exhaustive
def test_forced_colours_and_another_scheme_draw_again(browser: Chromium, shown: tuple[ckptzoo.Zoo, Path]) -> None:
    with Window(browser, shown[1]) as window:
        canvas = window.page.locator("#components .plot canvas").first
        pictures = {canvas.screenshot()}
        for options in ({"color_scheme": "dark"}, {"forced_colors": "active"}):
            window.page.emulate_media(**options)  # type: ignore[arg-type]
            window.page.wait_for_timeout(100)
            pictures.add(canvas.screenshot())
        assert len(pictures) == 3


def test_what_zoos_say_is_text(browser: Chromium, tmp_path: Path, any_rows: None) -> None:
    card = Card("zoo", title=HOSTILE, summary=HOSTILE, license=HOSTILE)
    rows = [
        {"id": f"{HOSTILE}{at}", "license": HOSTILE, "recipe": f"\u202e{at}", "test_accuracy": at / 10}
        for at in range(3)
    ]
    rows.append({"id": "i" * 10_000, "recipe": "\n", "test_accuracy": 0.9})
    with ckptzoo.create(tmp_path / "zoo", arch=ARCH, card=card, symmetry=TABLE) as writer:
        writer.add(weights_of(4, 0), rows)
    zoo = ckptzoo.open(tmp_path / "zoo")
    write_page(zoo, tmp_path / "page.html")
    with Window(browser, tmp_path / "page.html", viewport={"width": 320, "height": 800}) as window:
        page = window.page
        assert page.title().startswith("</script><script>document.title") and page.locator("img").count() == 0
        assert not re.search("[\u202a-\u202e\u2066-\u2069]", page.locator("body").inner_text())
        for row in (1, 3):
            page.locator("#members tbody button").nth(row).click()
            assert eval(window.copied("Copy the checkpoint"), {"zoo": zoo}).id == zoo.ids[row]
        assert sideways(page) == 0
        page.get_by_role("checkbox").first.check()
        code = window.copied("Copy selection")
        assert code.isascii() and len(selected(zoo, code)) == window.count > 0


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.sampled(2)
def test_zoos_of_few_members(browser: Chromium, tmp_path: Path, count: int) -> None:
    rows = [{"id": f"net-{at}", "test_accuracy": 0.5} for at in range(count)]
    zoo = ckptzoo.open(optunets(tmp_path / "zoo", rows, gauge=count < 2))
    write_page(zoo, tmp_path / "page.html")
    with Window(browser, tmp_path / "page.html") as window:
        assert window.count == count and window.copied("Copy selection") == "zoo"
        assert window.page.locator("#components figure").count() == (1 if count == 2 else 0)


def test_trajectories_and_a_sample(browser: Chromium, tmp_path: Path) -> None:
    rows = [
        {
            "id": f"m{member}-{step}",
            "member": f"m{member}",
            "step": step,
            "test_accuracy": 0.1 + step / 2000 + member / 100,
        }
        for member in range(6)
        for step in (0, 1, 10, 1000)
    ]
    zoo = ckptzoo.open(optunets(tmp_path / "zoo", rows))
    write_page(zoo, tmp_path / "page.html", max_rows=5, where="member != 'm0'")
    with Window(browser, tmp_path / "page.html") as window:
        assert "5 members, 4 steps; logarithmic" in window.page.locator("#trajectories").inner_text()
        canvas = window.page.locator("#trajectories canvas")
        before = canvas.screenshot()
        window.page.get_by_label("Test accuracy, from").fill("0.63")
        window.page.keyboard.press("Enter")
        window.page.wait_for_timeout(100)
        assert canvas.screenshot() != before
        code = window.copied("Copy selection")
        assert code == """zoo.where("member != 'm0'").last_steps().where([("test_accuracy", ">=", 0.63)])"""
        assert selected(zoo, code) == window.copied("Copy ids").split() == ["m3-1000", "m4-1000", "m5-1000"]


@pytest.mark.exhaustive
def test_many_members_are_a_density(browser: Chromium, tmp_path: Path) -> None:
    count = 20_100
    arch = ckptzoo.Architecture("pairs", (ckptzoo.Tensor("fc.weight", (2,)),))
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(count, 2)).astype(np.float32) * [3, 1]
    accuracies = 0.5 + 0.1 * np.tanh(weights[:, 0])
    with ckptzoo.create(tmp_path / "zoo", arch=arch) as writer:
        rows = [{"id": f"net-{at}", "test_accuracy": float(value)} for at, value in enumerate(accuracies)]
        writer.add({"fc.weight": weights.astype(np.float32)}, rows)
    zoo = ckptzoo.open(tmp_path / "zoo")
    write_page(zoo, tmp_path / "page.html")
    with Window(browser, tmp_path / "page.html") as window:
        panel = window.page.locator("#components figure")
        window.drag(panel.locator(".plot svg"), (0.6, 0.1), (0.95, 0.9))
        assert 0 < window.count < count
        ids = window.copied("Copy ids").split()
        places = weights[[int(name.removeprefix("net-")) for name in ids], 0]
        assert places.min() > 0 or places.max() < 0, "the first component is the first weight, up to its sign"
        cells = panel.locator("canvas").evaluate(CELLS)
        assert cells["all"] > 1000 and cells["drawn"] > 100


CELLS = """canvas => {
    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let [all, drawn] = [0, 0];
    for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] === 0) continue;
        all++;
        if (data[at + 2] > data[at] + 60) drawn++;
    }
    return {all, drawn};
}"""
"""Pixels that are not empty, and those in the blue of what is selected."""


def test_a_page_with_damaged_data_says_so(browser: Chromium, shown: tuple[ckptzoo.Zoo, Path], tmp_path: Path) -> None:
    text = shown[1].read_text(encoding="utf-8")
    start = text.index('id="payload">') + 2000
    (tmp_path / "page.html").write_text(text[:start] + text[start + 400 :], encoding="utf-8")
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert page.get_by_role("alert").inner_text().startswith("This page cannot be shown: ")
    context.close()
