"""Pages show what benchmarks measured: their figures are those of docs/benchmarks/, and none is typed."""

import json
import random
import re
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import __main__ as driver
from benchmarks import scale
from benchmarks.figures import figure, ratios, turns, write
from tests.support.effort import examples

ROOT = Path(__file__).parents[2]
KEPT = sorted((ROOT / "docs" / "benchmarks").glob("*.json"))
LIKE_A_FIGURE = re.compile(r"\d[\d.,]* (ns|us|ms|s|min|seconds|minutes|times|%|a second)\b")
SETTINGS = {"round trip of 20 ms"}
"""What reads as a figure and says how something is measured."""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """docs/benchmarks.py, beside which stands a folder of its name."""
    spec = spec_from_file_location("docs_benchmarks", ROOT / "docs" / "benchmarks.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_show_the_figures_that_are_kept(script: ModuleType) -> None:
    shown = {page.relative_to(ROOT).as_posix(): page.read_text() for page in script.pages()}
    assert {"README.md", "docs/benchmarks.md", "docs/guide/scale.md", "docs/guide/machines.md"} <= shown.keys()
    stale = [name for name, text in shown.items() if script.written(text) != text]
    assert stale == [], "run python docs/benchmarks.py"
    named = {(found["program"], found["table"]) for text in shown.values() for found in script.TABLE.finditer(text)}
    assert {program for program, _ in named} == driver.PROGRAMS.keys() | {"gpu"}
    measured = {path.stem: json.loads(path.read_text()) for path in KEPT}
    missing = [
        (program, table)
        for program, table in named
        if measured.get(program, {}).get("commit")
        and table not in {figure["table"] for figure in measured[program]["figures"]}
    ]
    assert missing == []


@pytest.mark.parametrize("name", ["docs/benchmarks.md", "docs/guide/scale.md"])
def test_no_figure_is_typed(script: ModuleType, name: str) -> None:
    text = script.FIGURE.sub("", script.TABLE.sub("", (ROOT / name).read_text()))
    for setting in SETTINGS:
        text = text.replace(setting, "")
    assert [found.group() for found in LIKE_A_FIGURE.finditer(text)] == []


def test_a_figure_that_changes_is_seen(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any figure of a table that a page shows, changed in its JSON, changes the page."""
    pages = [page.read_text() for page in script.pages()]
    order, kept = random.Random(0), {path.stem: json.loads(path.read_text()) for path in KEPT}
    on_pages = {(found["program"], found["table"]) for text in pages for found in script.TABLE.finditer(text)}
    found = [(name, each) for name, content in kept.items() for each in content["figures"]]
    chosen = [(name, each) for name, each in found if (name, each["table"]) in on_pages]
    monkeypatch.setattr(script, "figures_of", lambda name: kept.get(name, {}))
    for _, each in order.sample(chosen, examples(len(chosen))):
        key = "text" if "text" in each else "median"
        before = each[key]
        each[key] = f"{before}x" if key == "text" else 1.5 * before
        assert any(script.written(text) != text for text in pages), each
        each[key] = before


def test_a_text_without_its_figure_is_refused_and_a_table_without_figures_says_so(script: ModuleType) -> None:
    with pytest.raises(KeyError, match="expected a figure"):
        script.written("<!--= layers: reads: no such row | ckptzoo -->1 s<!--/-->")
    written = script.written("<!-- table layers: nothing -->\nold\n<!-- end -->")
    assert "make bench ONLY=layers" in written and "old" not in written


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0361, "s", "36.1 ms"),
        (2.4e-5, "s", "24 us"),
        (99.96, "s", "100 s"),
        (1300.0, "s", "21.7 min"),
        (0.0, "s", "0 ns"),
        (38_760.0, "s", "10.8 h"),
        (1.5e12, "bytes", "1.5 TB"),
        (42_345, "steps", "42,300"),
        (0.675, "share", "67.5 %"),
        (1.003, "times", "1.00"),
        (46.31, "times", "46.3"),
        (86e6, "bytes", "86 MB"),
        (999.6, "bytes", "1,000 B"),
    ],
)
def test_figures_have_three_digits_and_a_unit_that_suits_them(
    script: ModuleType, value: float, unit: str, text: str
) -> None:
    assert script.shown({"median": value, "unit": unit}) == text


def test_a_spread_is_shown_in_the_unit_of_the_median(script: ModuleType) -> None:
    assert script.shown(figure("t", "r", "c", [0.9, 1.2, 1.1], "s")) == "1.1 s (0.9 to 1.2)"
    assert script.shown(figure("t", "r", "c", [0.9, 1.2], "s"), spread=False) == "1.05 s"
    assert script.shown(figure("t", "r", "c", [0.9], "s")) == "900 ms"


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.integers(), unique=True, min_size=1, max_size=6), st.integers(1, 8))
def test_contenders_take_turns(names: list[int], repeats: int) -> None:
    taken = list(turns(names, repeats))
    assert taken == list(turns(names, repeats))
    for repeat in range(repeats):
        assert sorted(taken[repeat * len(names) : (repeat + 1) * len(names)]) == sorted(names)


def test_turns_are_drawn_anew() -> None:
    taken = list(turns("abcd", 50))
    orders = {tuple(taken[at : at + 4]) for at in range(0, 200, 4)}
    assert len(orders) > 15
    firsts = [order[0] for order in zip(*[iter(taken)] * 4, strict=True)]
    assert all(5 <= firsts.count(name) <= 25 for name in "abcd")


def test_figures_are_written_once_a_cell(tmp_path: Path) -> None:
    one = figure("t", "r", "c", [3.0, 1.0, 2.0], "s")
    assert (one["median"], one["low"], one["high"], one["runs"]) == (2.0, 1.0, 3.0, 3)
    assert ratios([2.0, 3.0], [4.0, 3.0]) == [0.5, 1.0]
    write(tmp_path / "new" / "one.json", [one], {"more": 1})
    assert json.loads((tmp_path / "new" / "one.json").read_text()) == {"more": 1, "figures": [one]}
    with pytest.raises(ValueError, match="one a cell"):
        write(tmp_path / "two.json", [one, {**one, "unit": "bytes"}], {})
    with pytest.raises(ValueError, match="JSON"):
        write(tmp_path / "two.json", [figure("t", "r", "c", [float("nan")], "s")], {})
    assert not (tmp_path / "two.json").exists()


def test_every_program_is_run() -> None:
    programs = {
        path.stem for path in (ROOT / "benchmarks").glob("*.py") if '"--json"' in path.read_text()
    } - {"__main__", "gpu", "gpu_stages"}  # fmt: skip
    assert programs == driver.PROGRAMS.keys()
    assert {path.stem for path in KEPT} <= programs | {"gpu"}


def test_what_did_not_change_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        done = subprocess.run(["git", *author, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        git("add", name)
        git("commit", "-qm", name)

    git("init", "-q")
    commit("benchmarks/layers.py", "1")
    for attribute, value in {"ROOT": tmp_path, "KEPT": tmp_path / "kept"}.items():
        monkeypatch.setattr(driver, attribute, value)
    assert not driver.is_measured("layers") and driver.minutes("layers") == driver.PROGRAMS["layers"].minutes
    found: dict[str, Any] = {"commit": driver.commit_of(), "measured": "2026-01-01", "seconds": 90}
    driver.keep(tmp_path / "kept" / "layers.json", found, [figure("t", "r", "c", [1.0], "s")])
    assert driver.kept("layers")["figures"][0]["median"] == 1.0
    assert driver.is_measured("layers") and driver.minutes("layers") == 1.5
    assert "2026-01-01" in driver.listed("layers") and "changed" not in driver.listed("layers")
    commit("docs/page.md", "1")
    (tmp_path / "docs" / "other.md").write_text("1")
    assert driver.is_measured("layers") and driver.commit_of() is not None
    added = tmp_path / "benchmarks" / "added.py"
    added.write_text("1")
    assert not driver.is_measured("layers") and driver.commit_of() is None
    added.unlink()
    assert driver.is_measured("layers")
    (tmp_path / "benchmarks" / "layers.py").write_text("2")
    assert not driver.is_measured("layers") and "changed since" in driver.listed("layers")
    assert driver.commit_of() is None
    commit("benchmarks/layers.py", "2")
    assert not driver.is_measured("layers")


@pytest.mark.exhaustive
def test_a_program_is_run_and_its_figures_are_kept(tmp_path: Path) -> None:
    options = ["--members", "2", "--images", "16", "--repeats", "2"]
    assert driver.run("predict", options, tmp_path / "predict.json")
    content = json.loads((tmp_path / "predict.json").read_text())
    assert content["command"] == "python -m benchmarks.predict --members 2 --images 16 --repeats 2"
    assert content["machine"]["cores"] >= 1 and content["seconds"] > 0
    assert {each["row"] for each in content["figures"]} == {"loop", "vmap", "archs.stacked", "derive.predict"}
    assert all(each["low"] <= each["median"] <= each["high"] for each in content["figures"])
    assert not driver.run("predict", ["--members", "0"], tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()


def test_sizes_that_are_not_measured_are_on_the_line_through_the_two_largest() -> None:
    def spent(number: float) -> list[scale.Spent]:
        return [{"seconds": number, "processor": 1.0, "memory": 5.0, "requests": 2, "received": number}]

    rows = {10**4: {"open": spent(100.0)}, 10**6: {"open": spent(2.0)}, 10**5: {"open": spent(1.1)}}
    found = list(scale.figures({"rows": rows, "remote": {10**3: {"open": spent(1.0)}}, "parts": {}}))
    cells = {(each["table"], each["column"]): each["median"] for each in found}
    assert cells["seconds", "10,000,000 rows, reckoned"] == pytest.approx(11.0)
    assert cells["seconds", "100,000,000 rows, reckoned"] == pytest.approx(101.0)
    assert cells["memory", "100,000,000 rows, reckoned"] == 5.0  # what does not grow stays
    assert ("requests", "1,000 rows") in cells and not any(
        "reckoned" in column for table, column in cells if table == "requests"
    )
    assert scale.reckoned([10, 20], [3.0, 2.0], 100) == 2.0


@pytest.mark.exhaustive
def test_a_tiny_run_of_scale_has_every_row(tmp_path: Path) -> None:
    options = ["--rows", "1e2", "3e2", "--remote", "100", "--parts", "2", "--repeats", "1", "--folder", str(tmp_path)]
    assert driver.run("scale", options, tmp_path / "scale.json")
    content = json.loads((tmp_path / "scale.json").read_text())
    cells = {(each["table"], each["row"], each["column"]) for each in content["figures"]}
    for verb in ("open", "write", "verify", "compact", "zoo[i], weights and row"):
        assert ("seconds", verb, "300 rows") in cells and ("memory", verb, "300 rows") in cells
    assert not any("reckoned" in column for _, _, column in cells)  # nothing so far beyond what was measured
    assert {row for table, row, _ in cells if table == "requests"} >= {"open", "last_steps"}
    assert {row for table, row, _ in cells if table == "parts"} >= {"append one row", "verify"}
    assert not any(path.is_dir() for path in tmp_path.iterdir())
