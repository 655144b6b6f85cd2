"""A zoo's page: the golden zoo's to the letter, and what must hold of anybody's."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import ckptzoo
from ckptzoo.errors import SpecError
from ckptzoo.format.maintenance import add_measured
from ckptzoo.hub.card import card_of, readme, write
from ckptzoo.hub.pull import pull
from ckptzoo.schema.card import Card
from ckptzoo.server.responses import front_matter as parsed
from ckptzoo.studies.inventory import inventory
from ckptzoo.text import counted
from tests.support.effort import examples
from tests.support.hub_zoos import ARCH, TABLE, grown, weights_of, zoo_of

pytestmark = pytest.mark.filterwarnings("ignore:.*retracted:UserWarning")
HERE = Path(__file__).parent
GOLDEN = HERE.parents[1] / "golden/v1"
CARD = Card(
    "golden-v1",
    title="The golden zoo",
    summary="Three OptuNets with random weights, kept to be read for ever.",
    license="apache-2.0",
    authors=("The ckptzoo authors",),
    repository="lab/golden",
    training="They were *not* trained.",
    notes="For tests.",
    citation="@misc{golden,\n  title = {Golden},\n}",
    tags=("test",),
)


def sections(text: str) -> dict[str, str]:
    """The text under every heading of the second order."""
    found = text.split("\n## ")
    return {piece.split("\n", 1)[0]: piece.split("\n", 1)[1].strip() for piece in found[1:]}


def zoo_with(path: Path, rows: list[dict[str, Any]]) -> ckptzoo.Zoo:
    """A zoo of OptuNets with these rows."""
    with ckptzoo.create(path, arch=ARCH, symmetry=TABLE) as writer:
        writer.add(weights_of(len(rows), 0), rows)
    return ckptzoo.open(path)


def test_the_golden_zoo_has_its_golden_page() -> None:
    assert readme(ckptzoo.open(GOLDEN), CARD) == (HERE / "golden_card.md").read_text(encoding="utf-8")


def test_a_page_says_what_the_zoo_holds(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (3, 2))
    ckptzoo.retract(path, ["m1-0"], reason="a mistake")
    text = readme(ckptzoo.open(path), card_of(ckptzoo.open(path)))
    assert "| checkpoints | **4** of 4 members |" in text and "| note | 1 retracted and left out" in text
    assert "test accuracy 91.00 % on average, standard deviation 0.82 %, 90.00 % to 92.00 %." in text
    assert parsed(text)["ckptzoo"] == {"checkpoints": 4, "members": 4, "parameters": 392}
    assert 'ckptzoo.open("path/to/zoo")' in text and "(4, 2, 1, 4, 4): indexing reads" in text


def test_measured_and_claimed_figures_stand_apart(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "a", "test_accuracy": 0.9, "claimed_test_accuracy": 0.95},
        {"id": "b", "claimed_test_accuracy": 0.93},
        {"id": "c", "test_accuracy": 0.1, "diverged": True},
        {"id": "d", "test_accuracy": float("nan")},
    ]
    text = sections(readme(zoo_with(tmp_path / "zoo", rows), Card("zoo")))["How good they are"]
    assert "**Measured** for 1 checkpoint: 90.00 %." in text
    assert "**Claimed by contributors, not measured** for 1 checkpoint: 93.00 %." in text
    assert "**Claimed by contributors, and measured or stated above** for 1 checkpoint: 95.00 %." in text
    assert "Measured less claimed, where both are known (1): -0.0500 to -0.0500." in text
    assert text.endswith("1 that diverged or are not finite are left out. Of 1 nothing is known.")


def test_figures_that_contributors_state_are_measured_once_somebody_measured_them(tmp_path: Path) -> None:
    ada = {"contributor": "Ada"}
    rows = [{"id": name, "test_accuracy": 0.5, **(ada if "/" in name else {})} for name in ("a", "ada/b", "ada/c")]
    path = Path(zoo_with(tmp_path / "zoo", rows).path)
    (part,) = ckptzoo.open(path).contents.raw.parts
    for left in (2, 1):
        text = sections(readme(ckptzoo.open(path), Card("zoo")))["How good they are"]
        assert f"**Measured** for {counted(3 - left, 'checkpoint')}: " in text
        assert f"**Stated by contributors, not measured again** for {counted(left, 'checkpoint')}: " in text
        assert inventory(ckptzoo.open(path)).stated == left
        assert f"{3 - left} measured, {left} stated" in str(dict(inventory(ckptzoo.open(path))._facts()))
        add_measured(path, [{"id": "ada/b", "unit": part.digest, "by": "lab", "test_accuracy": 0.5}], {})


def test_each_member_counts_once(tmp_path: Path) -> None:
    rows = [{"id": f"{m}-{s}", "member": str(m), "step": s, "test_loss": s / 10} for m in range(3) for s in (1, 2, 5)]
    text = readme(zoo_with(tmp_path / "zoo", rows), Card("zoo"))
    assert "**9** of 3 members, at 3 steps from 1 to 5" in text
    assert "test loss 0.5 on average" in text and "Each member's last step (3 checkpoints)." in text


@pytest.mark.usefixtures("any_rows")
def test_recipes_and_what_they_share(tmp_path: Path) -> None:
    extra = {"lr": 0.1, "other": None, "long": "x" * 99, "dataset": "mnist"}
    rows: list[dict[str, Any]] = [
        {
            "id": f"a{at}",
            "recipe": "sgd",
            "epoch": 2.5,
            "step": at,
            "precision": "float32",
            "extra": {**extra, "at": at},
        }
        for at in range(3)
    ]
    rows += [{"id": "b", "recipe": "adam", "extra": "no JSON {"}, {"id": "c", "extra": "[" * 9000}]
    rows += [{"id": "d", "recipe": "adam", "extra": '{"half \\ud800": "\\udc00"}'}]  # which no file can have in UTF-8
    text = sections(readme(zoo_with(tmp_path / "zoo", rows), Card("zoo", training="By *hand*.\r\n\r\nTwice.")))
    found = text["How they were trained"]
    assert found.startswith("By *hand*.\n\nTwice.\n\n| recipe |")
    # no recipe says its data set, device or program
    assert "| recipe | checkpoints | epochs | steps | precision |" in found
    assert "| `sgd` | 3 | 2.5 | 0 to 2 | `float32` |" in found and "| `adam` | 2 |" in found
    assert "Settings of `sgd`: `lr = 0.1`. Differing between checkpoints: `at` (`0`, `1`, `2`)." in found


@pytest.mark.parametrize(("epochs", "numbered"), [((1.0, 2.0), True), ((1.0, 3.0), False), ((1.0, None), False)])
def test_steps_that_are_numbers_of_epochs_are_not_called_optimiser_steps(
    tmp_path: Path, epochs: tuple[float | None, ...], numbered: bool
) -> None:
    rows = [{"id": f"{at}", "recipe": "r", "step": at, "epoch": epoch} for at, epoch in enumerate(epochs, 1)]
    text = readme(zoo_with(tmp_path / "zoo", rows), Card("zoo"))
    assert ("steps are numbered by epoch" in text) == numbered == ("optimiser steps" not in text)
    assert ("at 2 epochs from 1 to 2" in text) == numbered == ("at 2 steps" not in text)
    assert ("| steps |" in text) != numbered


def test_settings_that_differ_are_listed_with_their_values_or_their_range(tmp_path: Path) -> None:
    lists: dict[str, list[Any]] = {
        "lr": [0.1, 0.01, 0.001, 0.3, 0.2], "optimizer": ["sgd", "adam", "sgd", "adam", "sgd"],
        "nesterov": [True, False, None, True, True], "note": list("abcde"), "same": [1] * 5, "shape": [[1], [2]] * 2 + [[1]],
        "trained_together": [1, 2, 3, 4, 5], "file": list("abcde"), "evaluation": [{"mean": at} for at in range(5)],
        "config": [{"lr": at, "own": {"m": 0}} for at in range(5)], "facts": [{"step": at, "a": {"b": at}} for at in range(5)],
        "mixed": [1, "1", 2, 3, "4"],
    }  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"id": f"{at}", "step": at, "recipe": "r", "extra": {name: values[at] for name, values in lists.items()}}
        for at in range(5)
    ]
    found = sections(readme(zoo_with(tmp_path / "zoo", rows), Card("zoo")))["How they were trained"]
    expected = [
        "`config.lr` (0 to 4)", "`facts.a.b` (0 to 4)", "`lr` (0.001 to 0.3)", "`mixed` (5 values)", "`nesterov` (`false`, `true`, or none)", "`note` (5 values)",
        '`optimizer` (`"adam"`, `"sgd"`)',
    ]  # fmt: skip
    assert found.endswith(
        f"Settings of `r`: `config.own.m = 0`, `same = 1`. Differing between checkpoints: {', '.join(expected)}."
    )


def test_draws_are_counted_by_method(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": "own"}, {"id": "odd", "method": "a | `b`"}]
    rows += [
        {"id": f"{m}-{mode}-{draw}", "method": m, "mode": f"net-{mode}", "draw": draw}
        for m, modes in (("swag", 3), ("laplace", 1))
        for mode in range(modes)
        for draw in range(2)
    ]
    found = sections(readme(zoo_with(tmp_path / "zoo", rows), Card("zoo")))["Draws"]
    lead, table = found.split("\n\n")
    assert "`zoo.where(\"method == 'swag' and draw < 10\")`" in lead and "1 checkpoint of independent runs" in lead
    lines = table.splitlines()[2:]
    assert lines[:2] == ["| `swag` | 3 | 6 |", "| `laplace` | 1 | 2 |"]
    assert lines[2].endswith("| not stated | 1 |") and len(lines) == 3
    plain = zoo_with(tmp_path / "plain", [{"id": "own"}])
    assert "Draws" not in sections(readme(plain, Card("zoo")))


def test_variants_tensors_and_columns(tmp_path: Path) -> None:
    from ckptzoo.derive import derive

    path = zoo_of(tmp_path / "zoo", (3,))
    derive(path, gauge="canonical", certify="none")
    derive(path, gauge="unit-norm", store="element", certify="all")
    text = readme(ckptzoo.open(path), card_of(ckptzoo.open(path)))
    found = sections(text)
    lines = [line for line in found["Variants"].splitlines() if line.startswith("| `")]
    assert len(lines) == 2 and "ties broken by a search | 4 | 3 | 3 | 0 |" in lines[0] and lines[0].endswith("| none |")
    assert "computed when read" in lines[1] and "e-" in lines[1]
    assert 'zoo["conv1.weight", "canonical"]' in text and '`"canonical"`, `"unit-norm"`' in text
    assert [item["config_name"] for item in parsed(text)["configs"]] == ["metadata", "canonical", "unit-norm"]
    assert "| `fc.weight` | 10 × 10 | float32 |" in found["Tensors"] and "<details>" not in found["Tensors"]
    assert "| `test_accuracy` | all | 0.9 to 0.92 | fraction |" in found["Metadata"]
    assert "`claimed_test_loss`" not in found["Metadata"]


def test_large_architectures_are_folded(tmp_path: Path) -> None:
    from ckptzoo import archs

    ckptzoo.create(tmp_path / "zoo", arch=archs.architecture("resnet20-conv-10"))
    text = sections(readme(ckptzoo.open(tmp_path / "zoo"), Card("zoo")))["Tensors"]
    assert "| `layer3` | 42 | 205,696 | 826 kB |" in text and "<summary>All 128 tensors</summary>" in text
    assert text.count("\n| `") == 6 + 128


def test_licences_and_contributors(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "a"},
        {"id": "b", "license": "MIT", "contributor": "B", "source": "b.pt"},
        {"id": "c", "license": "apache-2.0", "contributor": "C"},
    ]
    text = readme(zoo_with(tmp_path / "zoo", rows), Card("zoo", license="Apache-2.0", authors=("A_B", "D")))
    found = sections(text)
    assert found["Licence"].endswith("| licence | checkpoints |\n| --- | ---: |\n| `MIT` | 1 |")
    assert found["Contributors"].startswith("Made by A\\_B, D.\n\n| contributor |")
    assert "| `B` | 1 | `MIT` | `b.pt` |" in found["Contributors"]
    assert parsed(text)["license"] == ["apache-2.0", "mit"]


def test_no_licence_is_nobodys_choice(tmp_path: Path) -> None:
    text = readme(zoo_with(tmp_path / "a", [{"id": "a"}]), Card("a"))
    assert sections(text)["Licence"] == "No licence is stated." and "license" not in parsed(text)
    text = readme(zoo_with(tmp_path / "b", [{"id": "a"}, {"id": "b", "license": "mit"}]), Card("b"))
    assert sections(text)["Licence"].startswith(
        "No licence is stated for the whole zoo. Checkpoints whose rows name one"
    )
    assert parsed(text)["license"] == "mit"


@pytest.mark.parametrize("whole", [True, False])
def test_a_part_of_a_zoo_says_so_and_what_it_lacks(tmp_path: Path, whole: bool) -> None:
    """Also when the page is made again, which removes what the pull wrote there."""
    from ckptzoo.derive import derive

    derive(zoo_of(tmp_path / "zoo", (3, 2)), gauge="canonical", certify="none")
    pull(str(tmp_path / "zoo"), tmp_path / "part", variants=["canonical"], layers=None if whole else ["fc"])
    text = write(tmp_path / "part").text
    assert "This is a part of another zoo, `zoo`." in text
    assert "; raw weights are not held |" in text and " a checkpoint" not in text.split("\n## ")[0]
    assert "Raw weights are not held here; `raw` are those as trained." in sections(text)["Variants"]
    program = text.split("```python\n")[1].split("```")[0].replace("path/to/zoo", str(tmp_path / "part"))
    assert ('variant="canonical"' in program) == whole
    exec(program, {})  # what the page promises


def test_what_was_added_to_a_part_counts_as_its_own(tmp_path: Path) -> None:
    from ckptzoo.derive import derive

    derive(zoo_of(tmp_path / "zoo", (3, 2)), gauge="canonical", certify="none")
    pull(str(tmp_path / "zoo"), tmp_path / "part", variants=["canonical"])
    text = readme(ckptzoo.open(grown(tmp_path / "part", (1,), start=7)), Card("zoo"))
    assert "2 of the 3 parts of this zoo are a part of another zoo, `zoo`" in text
    assert "1.57 kB a checkpoint; raw weights of 5 checkpoints are not held |" in text
    assert "Raw weights of 5 checkpoints are not held here" in sections(text)["Variants"]


def test_an_empty_zoo_has_a_page(tmp_path: Path) -> None:
    ckptzoo.create(tmp_path / "zoo", arch=ARCH)
    found = write(tmp_path / "zoo")
    assert "**0** of 0 members" in found.text and "How good" not in found.text
    assert list(sections(found.text)) == ["Tensors", "Licence"]


TEXT = st.text(max_size=120) | st.text("`|\\<>[]()*_#~!&$\n\r\t -:\"'x\x00\x1b\u202e", max_size=60)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=3), st.floats(), st.floats())
def test_untrusted_strings_stay_what_they_are(
    tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, str, str]], loss: float, epoch: float
) -> None:
    """Links, HTML, headings and tables of the page are those that it has with harmless strings in their places."""

    def page(words: list[tuple[str, str, str]]) -> str:
        rows = [
            {
                "id": f"{at}",
                **dict.fromkeys(("recipe", "recipe_digest", "unit", "builder", "commit", "dataset"), left),
                **dict.fromkeys(("license", "contributor", "device", "precision", "dataset_digest"), middle),
                "source": right,
                "extra": json.dumps({left: middle, right: [left]}),
                "test_loss": loss,
                "epoch": epoch,
            }
            for at, (left, middle, right) in enumerate(words)
        ]
        return readme(zoo_with(tmp_path_factory.mktemp("zoo") / "zoo", rows), Card("zoo"))

    text = page(texts)
    assert parsed(text)["pretty_name"] == "zoo" and len(text) < 60_000
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    body = text.split("\n---\n", 1)[1]
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(body)
    inline = [child.type for token in tokens for child in token.children or ()]
    assert not {"link_open", "html_inline", "image"} & set(inline)
    html = [token.content.strip() for token in tokens if token.type == "html_block"]
    assert html[0].startswith("<!-- Made by") and all("details" in block for block in html[1:]) and len(html) == 3
    titles = [tokens[at + 1].content for at, token in enumerate(tokens) if token.type == "heading_open"]
    assert set(titles[1:]) <= {
        "How good they are",
        "How they were trained",
        "Tensors",
        "Metadata",
        "Licence",
        "Contributors",
    }


def test_writing_twice_changes_nothing(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (2,))
    first = write(path)
    assert first.changes and (path / "README.md").read_text(encoding="utf-8") == first.text
    before = {file: file.stat().st_mtime_ns for file in path.iterdir()}
    assert write(path).changes == () and before == {file: file.stat().st_mtime_ns for file in path.iterdir()}
    grown(path, (1,), start=5)
    assert any(line.startswith("+| checkpoints | **3**") for line in write(path, check=True).changes)
    assert (path / "README.md").read_text(encoding="utf-8") == first.text
    assert ckptzoo.verify(path) == []


def test_a_card_that_is_passed_in_is_kept(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (2,))
    card = Card("zoo", summary="Another.", repository="lab/zoo")
    assert 'load_dataset("lab/zoo", "metadata"' in write(path, card).text
    assert card_of(ckptzoo.open(path)) == card and write(path).changes == ()
    with pytest.raises(SpecError, match=r"card: name: expected 'zoo', got 'other'"):
        write(path, Card("other"))
    (path / "card.toml").unlink()
    with pytest.raises(SpecError, match=r"zoo/card\.toml: file: expected a card in TOML, got none"):
        write(path)


def test_the_same_zoo_elsewhere_has_the_same_page(tmp_path: Path, make_zoo: Callable[..., Path]) -> None:
    path = make_zoo("zoo")
    shutil.copytree(path, tmp_path / "far" / "away")
    assert write(path).text == write(tmp_path / "far" / "away").text


def test_figures_beyond_reason_are_left_out(tmp_path: Path) -> None:
    rows = [{"id": str(at), "test_loss": value} for at, value in enumerate((1e300, -1e12, math.inf, 0.5))]
    text = readme(zoo_with(tmp_path / "zoo", rows), Card("zoo"))
    assert "**Measured** for 1 checkpoint: 0.5." in text and "Of 3 nothing is known." in text
    assert "-1e+12 to 1e+300, 1 not finite" in text
