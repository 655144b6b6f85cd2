"""Figures that were measured when their checkpoints were in the zoo already."""

from pathlib import Path

import pytest

import ckptzoo
from ckptzoo.errors import IntegrityError
from ckptzoo.format.maintenance import add_measured, compact, retract
from tests.support.derived_zoos import ARCH, TABLE, weights_of
from tests.support.hosted import ZOO, hosted


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A zoo of two parts; 0-0 has an accuracy."""
    ckptzoo.create(tmp_path / "zoo", arch=ARCH, symmetry=TABLE)
    writer = ckptzoo.append(tmp_path / "zoo")
    for part in range(2):
        rows = [{"id": f"{part}-{row}", "unit": f"u{part}"} for row in range(3)]
        rows[0] |= {"test_accuracy": 0.5} if part == 0 else {}
        writer.add(weights_of(3, part), rows)
        writer.commit()
    return tmp_path / "zoo"


def measured(path: Path, **figures: float) -> None:
    """Add an accuracy of every id."""
    units = [part.digest for part in ckptzoo.open(path).contents.raw.parts]
    rows = [
        {"id": name.replace("_", "-"), "unit": units[int(name[1])], "by": "ada", "test_accuracy": value}
        for name, value in figures.items()
    ]
    add_measured(path, [{**row, "id": row["id"][1:]} for row in rows], {})


def accuracies(zoo: ckptzoo.Zoo) -> dict[str, float | None]:
    return dict(zip(zoo.ids, zoo.metadata["test_accuracy"].to_pylist(), strict=True))


def test_figures_fill_what_rows_lack_and_the_last_counts(path: Path) -> None:
    revision = ckptzoo.open(path).revision
    measured(path, i0_0=0.9, i0_1=0.9, i1_2=0.7)
    measured(path, i0_1=0.8)
    zoo = ckptzoo.open(path)
    expected = {"0-0": 0.5, "0-1": 0.8, "0-2": None, "1-0": None, "1-1": None, "1-2": 0.7}
    assert accuracies(zoo) == expected and zoo.revision == revision
    assert [(row["id"], row["by"]) for row in zoo.measured.to_pylist()][-1] == ("0-1", "ada")
    assert zoo.where("test_accuracy > 0.6").ids == ["0-1", "1-2"]
    assert zoo[-1].row["test_accuracy"] == 0.7
    assert zoo.variants == ("raw",) and zoo.predicted == ()
    assert ckptzoo.verify(path) == []


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning", "ignore:.*retracted:UserWarning")
def test_figures_of_a_snapshot_of_a_copy_and_of_a_hub(path: Path, tmp_path: Path) -> None:
    measured(path, i0_1=0.8)
    compact(path)
    assert accuracies(ckptzoo.open(path))["0-1"] == 0.8
    measured(path, i0_2=0.6)
    retract(path, ["1-0"], reason="wrong")
    with hosted(tmp_path / "hub") as server:
        access = {"endpoint": server.url, "token": server.tokens["write"]}
        ckptzoo.push(path, ZOO, **access)
        remote = ckptzoo.open(f"hf://datasets/{ZOO}", **access)
        expected = {"0-0": 0.5, "0-1": 0.8, "0-2": 0.6, "1-1": None, "1-2": None}
        assert accuracies(remote) == expected
        # somebody else measures the same
        measured(path, i1_1=0.4, i0_2=0.3)
        ckptzoo.push(path, ZOO, **access)
        for name, options in (
            ("whole", {}),
            ("part", {"where": "test_accuracy > 0.55"}),
            ("raw", {"variants": ["raw"]}),
        ):
            ckptzoo.pull(f"hf://datasets/{ZOO}", tmp_path / name, **options, **access)
            assert ckptzoo.verify(tmp_path / name) == []
    whole, raw = (ckptzoo.open(tmp_path / name) for name in ("whole", "raw"))
    assert accuracies(whole) == accuracies(raw) == {**expected, "0-2": 0.3, "1-1": 0.4}
    assert accuracies(ckptzoo.open(tmp_path / "part")) == {"0-1": 0.8}


def test_figures_belong_to_a_part(path: Path) -> None:
    add_measured(path, [{"id": "0-1", "unit": "sha256:" + 64 * "0", "test_accuracy": 0.9}], {})
    assert accuracies(ckptzoo.open(path))["0-1"] is None
    assert add_measured(path, [], {}) is None


def test_verify_names_figures_of_others(path: Path) -> None:
    add_measured(path, [{"id": "nobody", "unit": "x", "test_accuracy": 0.9}], {})
    (problem,) = ckptzoo.verify(path)
    assert problem.what == "ids" and "nobody" in problem.got


def test_figures_have_their_own_folder(path: Path) -> None:
    measured(path, i0_1=0.8)
    (path / "derived" / "measured").rename(path / "derived" / "canonical")
    with pytest.raises(IntegrityError, match="derived/measured"):
        ckptzoo.open(path).contents.derived("canonical")
