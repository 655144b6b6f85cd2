"""What an inventory counts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive, predict
from ckptzoo.hub.card.contents import mean_of
from ckptzoo.studies.inventory import inventory, take_stock
from ckptzoo.studies.shared.result import Spread
from ckptzoo.text import counted, printable, size
from tests.support.derived_zoos import zoo_of
from tests.support.printed import printed

Make = Callable[..., tuple[ckptzoo.Zoo, dict[str, np.ndarray]]]
ONE = ckptzoo.Architecture("one", (ckptzoo.Tensor("w", ()),))


def text_of(zoo: ckptzoo.Zoo, width: int = 200) -> str:
    return printed(inventory(zoo), width)


def test_counts_variants_and_sizes(perceptrons: Make) -> None:
    zoo, _ = perceptrons(20)
    found = inventory(zoo)
    raw, derived = found.variants
    assert (found.checkpoints, found.total, found.parameters, found.checkpoint_bytes) == (20, 20, 15, 68)
    assert (raw.name, raw.checkpoints, raw.parts) == ("raw", 20, 1)
    assert (derived.name, derived.checkpoints, derived.parts) == ("first-weight", 20, 1)
    for variant, tree in ((raw, "parts"), (derived, "derived")):
        assert variant.nbytes == sum(path.stat().st_size for path in (zoo.path / tree).rglob("*.safetensors"))
    assert found.nbytes == raw.nbytes + derived.nbytes
    assert found.layers["out"] == {"out.weight": (2, 3)}


def test_retracted_checkpoints_are_not_counted(perceptrons: Make) -> None:
    zoo, _ = perceptrons(20)
    ckptzoo.retract(zoo.path, ["p3", "p4"], reason="wrong data")
    with pytest.warns(UserWarning, match="retracted"):
        zoo = ckptzoo.open(zoo.path)
    found = inventory(zoo.where("seed > 10"))
    assert (found.checkpoints, found.total, found.retracted) == (9, 18, 2)
    assert "9 of 18 (9 members, 2 retracted and left out)" in text_of(zoo.where("seed > 10"))
    assert [(item.name, item.checkpoints) for item in found.variants] == [("raw", 18), ("first-weight", 18)]


def test_outputs_and_certificates_of_retracted_checkpoints_are_not_counted(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (4, 3))
    derive(path)
    predict(path, np.random.default_rng(0).normal(size=(5, 1, 28, 28)), set="noise/test")
    whole = inventory(ckptzoo.open(path))
    certificates = ckptzoo.open(path).variant_metadata("canonical")["certificate_random"].to_numpy()
    worst = int(certificates.argmax())
    ckptzoo.retract(path, [ckptzoo.open(path).ids[worst]], reason="a test")
    with pytest.warns(UserWarning, match="retracted"):
        found = inventory(ckptzoo.open(path))
    assert [item.checkpoints for item in (*whole.variants, *whole.predictions)] == [7, 7, 7]
    assert [item.checkpoints for item in (*found.variants, *found.predictions)] == [6, 6, 6]
    assert found.variants[1].certificate_random == np.delete(certificates, worst).max()
    assert found.nbytes == whole.nbytes


def test_a_folder_of_zoos_says_whether_it_is_a_collection(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "two zoos"
    for name in ("a", "b"):
        zoo_of(folder / name, (2,))
    take_stock(str(folder)).print()
    first = capsys.readouterr().out.replace("\n", " ")
    assert first.startswith(f"a folder with 2 zoos, no collection yet: ckptzoo collection '{folder}'")
    ckptzoo.write_collection(folder)
    take_stock(str(folder)).print()
    assert capsys.readouterr().out.startswith("collection of 2 zoos\n")


def test_of_a_folder_of_zoos_columns_without_values_are_named_where_nothing_is_selected(tmp_path: Path) -> None:
    rows = [{"id": "a", "epoch": 3.0}, {"id": "b"}]
    for row in rows:
        with ckptzoo.create(tmp_path / "zoos" / row["id"], arch=ONE) as writer:
            writer.add({"w": np.zeros((), np.float32)}, row)
    assert list(take_stock(str(tmp_path / "zoos"), "epoch > 2").zoos) == ["a"]
    with pytest.warns(UserWarning, match="b: column 'epoch': empty in the only checkpoint"):
        assert not take_stock(str(tmp_path / "zoos"), "epoch > 4").zoos


def test_checkpoints_and_members_are_told_apart(perceptrons: Make) -> None:
    def rows(at: int) -> dict[str, Any]:
        member, step = divmod(at, 3)
        return {"member": f"m{member}", "step": step, "diverged": member == 3, "test_accuracy": 0.1 * step + member / 8}

    zoo, _ = perceptrons(12, rows=rows)
    found = inventory(zoo)
    assert (found.checkpoints, found.members, found.diverged) == (12, 4, 3)
    assert found.test_accuracy == Spread.of([0.2, 0.325, 0.45])
    text = text_of(zoo)
    assert "12 (4 members, 3 checkpoints diverged)" in text
    assert "mean 32.50%, sd 12.50%, 20.00% to 45.00% (3 members at their last step)" in text
    assert "whole zoo" not in text
    early = zoo.where("step < 2")
    assert inventory(early).test_accuracy == Spread.of([0.1, 0.225, 0.35])
    text = text_of(early)
    assert "8 of 12 (4 members, 2 checkpoints diverged)" in text and "(of the whole zoo; 68 B of raw" in text
    assert text.count("(of the whole zoo)") == 1, "over the variants"


def test_draws_are_counted_by_method(perceptrons: Make) -> None:
    def rows(at: int) -> dict[str, Any]:
        if at < 2:
            return {}
        return {"method": "laplace"} if at < 5 else {"method": "swag", "mode": f"p{at % 2}", "draw": (at - 5) // 2}

    zoo, _ = perceptrons(12, rows=rows)
    found = inventory(zoo)
    assert list(found.to_json()["draws"]) == [
        {"method": "swag", "modes": 2, "draws": 7},
        {"method": "laplace", "modes": 0, "draws": 3},
    ]
    lines = [line.split() for line in text_of(zoo).splitlines()]
    at = lines.index(["draws", "swag:", "7", "around", "2", "modes"])
    assert lines[at + 1] == ["laplace:", "3"]
    assert inventory(zoo.where("method is None")).draws == () and " around " not in text_of(zoo.where("seed < 2"))
    assert "swag: 2 around 2 modes" in text_of(zoo.where("draw < 1"))


def test_the_accuracy_is_that_of_the_page(perceptrons: Make) -> None:
    def rows(at: int) -> dict[str, Any]:
        return {"diverged": at == 5, "test_accuracy": None if at == 8 else 0.5 + at / 97}

    for steps in (1, 3):
        zoo, _ = perceptrons(
            18, rows=lambda at, n=steps: {**rows(at), "member": f"m{at // n}", "step": at % n}, name=f"every-{steps}"
        )
        spread = inventory(zoo).test_accuracy
        assert spread is not None and spread.count == 18 / steps - 2
        assert mean_of(zoo) == ("test accuracy", f"{100 * spread.mean:.2f} % on average")


def test_distinct_values_come_most_frequent_first(perceptrons: Make) -> None:
    def rows(at: int) -> dict[str, Any]:
        return {"recipe": f"r{at % 3 if at else 2}", "license": "MIT", "contributor": f"c{at}"}

    zoo, _ = perceptrons(9, rows=rows, gauge=False)
    told = inventory(zoo).told
    assert list(told["recipe"].items()) == [("r2", 4), ("r1", 3), ("r0", 2)]
    assert told["license"] == {"MIT": 9} and "dataset" not in told
    text = text_of(zoo)
    assert "r2 (4), r1 (3), r0 (2)" in text and "c3 (1), 5 more (5)" in text


def test_rows_without_a_licence_are_counted(perceptrons: Make) -> None:
    stated = {"license": "cc-by-4.0", "contributor": "Ada", "recipe": "hers"}
    zoo, _ = perceptrons(12, rows=lambda at: stated if at > 9 else {}, gauge=False)
    found = inventory(zoo)
    assert found.told["license"] == {"cc-by-4.0": 2} and found.untold == {
        "recipe": 10,
        "license": 10,
        "contributor": 10,
    }
    assert found.to_json()["untold"]["license"] == 10
    lines = [" ".join(line.split()) for line in text_of(zoo).splitlines()]
    assert "license cc-by-4.0 (2), as on the page of the zoo (10)" in lines
    assert "contributor Ada (2), as on the page of the zoo (10)" in lines
    assert "recipe hers (2), not stated (10)" in lines
    assert "license cc-by-4.0" in [" ".join(line.split()) for line in text_of(zoo.where("seed > 9")).splitlines()]


def test_an_empty_zoo_has_an_inventory(perceptrons: Make) -> None:
    path = perceptrons(2, gauge=False)[0].path.parent / "empty"
    ckptzoo.create(path, arch=ckptzoo.Architecture("a", (ckptzoo.Tensor("w", (2,)),)))
    found = inventory(ckptzoo.open(path))
    assert (found.checkpoints, found.members, found.nbytes, found.test_accuracy) == (0, 0, 0, None)
    assert "0 (0 members)" in text_of(ckptzoo.open(path))


def test_strangers_text_cannot_command_the_terminal(perceptrons: Make) -> None:
    zoo, _ = perceptrons(2, rows=lambda _: {"contributor": "\x1b[2Jeve\nx [red]y"}, gauge=False)
    assert r"\x1b[2Jeve\nx [red]y" in text_of(zoo)


def test_nothing_is_cut_short_on_a_narrow_screen(perceptrons: Make) -> None:
    text = text_of(perceptrons(20, name="a-rather-long-name-" * 4)[0], width=80)
    assert "…" not in text and max(map(len, text.splitlines())) <= 80


def test_spread_has_known_answers() -> None:
    found = Spread.of([0.1, 0.4, np.nan, 0.7])
    assert found == Spread(3, pytest.approx(0.4), pytest.approx(0.3), 0.1, 0.4, 0.7)
    assert Spread.of([2.0]) == Spread(1, 2.0, 0.0, 2.0, 2.0, 2.0)
    assert Spread.of([]) is None and Spread.of([np.inf]) is None


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1568, "1.57 kB"), (999_999, "1 MB"), (2**40, "1.1 TB")],
)
def test_sizes_in_words(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


def test_words() -> None:
    assert (counted(1, "network"), counted(1024, "network")) == ("1 network", "1,024 networks")
    assert printable("é\t\x07\u202e") == r"é\t\x07\u202e"
