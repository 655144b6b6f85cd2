"""Variants of whole zoos: what is written, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.errors import SymmetryError, UnknownNameError, ZooError
from ckptzoo.schema.architecture import Architecture
from ckptzoo.symmetry import GAUGES, GroupElement, apply, canonicalize, fingerprint, gauges
from tests.support.derived_zoos import ARCH, TABLE, WRONG, files_of, fill, run, weights_of, written, zoo_of


@pytest.mark.slow
@pytest.mark.parametrize("gauge", GAUGES)
def test_the_variant_is_the_gauge_of_raw_and_is_written_with_its_element(tmp_path: Path, gauge: str) -> None:
    path = zoo_of(tmp_path / "zoo")
    inputs = np.random.default_rng(0).random((4, 1, 28, 28))
    done = derive(path, gauge=gauge, inputs=inputs)
    assert (done.checkpoints, done.already, len(done.parts), done.untouched) == (8, 0, 2, 0)
    assert ckptzoo.verify(path) == []
    zoo = ckptzoo.open(path)
    assert zoo.variants == ("raw", gauge)
    raw = {name: np.asarray(zoo[name]) for name in ARCH.names}
    expected = canonicalize(raw, TABLE, gauge=gauge)
    element = GroupElement.from_tensors({name: np.asarray(value) for name, value in zoo.group_element(gauge).items()})
    again = apply(element, raw, TABLE)
    for name in ARCH.names:
        stored = np.asarray(zoo[name, gauge])
        assert stored.tobytes() == expected.weights[name].tobytes() == again[name].tobytes()
    rows = zoo.variant_metadata(gauge)
    assert rows["id"].to_pylist() == zoo.ids
    assert rows["margin"].to_pylist() == expected.report.margin.tolist()
    assert rows["ties"].to_pylist() == rows["clamped"].to_pylist() == [0] * 8
    assert rows["gauged"].to_pylist() == [True] * 8 and rows["unresolved"].to_pylist() == [False] * 8
    assert rows["fingerprint"].to_pylist() == (fingerprint(expected) if gauge == "canonical" else [None] * 8)
    (certified,) = done.certified
    assert (certified.precision, certified.checkpoints) == ("float64", 8)
    assert rows["certified"].to_pylist() == ["float64"] * 8
    for column, worst in (("certificate_random", certified.random), ("certificate_real", certified.real)):
        found = rows[column].to_numpy()
        assert 0 < found.max() < 2e-6 and found.max() == worst


@pytest.mark.parametrize("parts", [(5, 3), (1,)])
def test_elements_alone_read_back_as_the_weights_that_would_be_stored(tmp_path: Path, parts: tuple[int, ...]) -> None:
    stored, bare = (zoo_of(tmp_path / name, parts) for name in ("stored", "bare"))
    one, two = derive(stored), derive(bare, store="element")
    assert (one.store, two.store) == ("weights", "element") and one.certified == two.certified
    assert {file.name for file in bare.glob("derived/*/*/*.safetensors")} == {"g-00.safetensors"}
    assert ckptzoo.verify(bare) == []
    first, second = ckptzoo.open(stored), ckptzoo.open(bare)
    assert second.variants == ("raw", "canonical")
    for name in ARCH.names:
        assert np.asarray(first[name, "canonical"]).tobytes() == np.asarray(second[name, "canonical"]).tobytes()
    for name, held in first.group_element("canonical").items():
        np.testing.assert_array_equal(np.asarray(held), np.asarray(second.group_element("canonical")[name]))
    assert first.variant_metadata("canonical").drop(["unit"]) == second.variant_metadata("canonical").drop(["unit"])


def test_parts_stay_as_they_are_stored_when_later_ones_are_stored_otherwise(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (3,))
    derive(path, certify="none")
    before = files_of(path)
    fill(path, (2,), start=1)
    assert derive(path, store="element", certify="none").checkpoints == 2
    assert before.items() <= files_of(path).items() and ckptzoo.verify(path) == []
    zoo = ckptzoo.open(path)
    expected = canonicalize({name: np.asarray(zoo[name]) for name in ARCH.names}, TABLE, gauge="canonical")
    for name in ARCH.names:
        assert np.asarray(zoo[name, "canonical"]).tobytes() == expected.weights[name].tobytes()


def test_a_selection_of_the_zoo_meets_its_own_rows_of_the_variant(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo")
    derive(path, certify="none")
    zoo = ckptzoo.open(path)
    some = zoo.take([6, 1])
    np.testing.assert_array_equal(some["fc.weight", "canonical"][:], np.asarray(zoo["fc.weight", "canonical"])[[6, 1]])


def test_diverged_checkpoints_are_kept_as_they_are_and_marked(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (4,), spoil=(2,))
    done = derive(path)
    assert done.untouched == 1 and done.checkpoints == 4 and done.certified[0].checkpoints == 3
    zoo = ckptzoo.open(path)
    rows = zoo.variant_metadata("canonical").to_pylist()
    assert [row["gauged"] for row in rows] == [True, True, False, True]
    absent = ("ties", "margin", "dead", "unresolved", "clamped", "fingerprint", "certificate_random", "certified")
    assert all(rows[2][name] is None for name in absent)
    assert rows[3]["certificate_random"] < 2e-6
    for name in ARCH.names:
        assert zoo[name, "canonical"][2].tobytes() == zoo[name][2].tobytes()


def test_what_the_gauge_found_is_counted(tmp_path: Path) -> None:
    weights = weights_of(4, 0)
    weights["conv2.weight"][1, 4] = weights["conv2.weight"][1, 3]
    weights["fc.weight"][1, :, 4] = weights["fc.weight"][1, :, 3]
    weights["conv2.weight"][2, 7] = 0
    path = written(tmp_path / "zoo", ARCH, weights, symmetry=TABLE)
    done = derive(path, certify="none")
    assert (done.tied, done.unresolved, done.dead, done.clamped, done.certified) == (1, 0, 1, 0, ())
    rows = ckptzoo.open(path).variant_metadata("canonical")
    assert rows["ties"].to_pylist() == [0, 1, 0, 0] and rows["dead"].to_pylist() == [0, 0, 1, 0]


def test_half_precision_becomes_float32(tmp_path: Path) -> None:
    tensors = tuple(replace(tensor, dtype="float16") for tensor in ARCH.tensors)
    half = Architecture("half", tensors, "optunet", (1, 28, 28))
    path = written(tmp_path / "zoo", half, weights_of(3, 0, dtype=np.float16), symmetry=TABLE)
    assert derive(path).certified[0].random < 2e-6
    zoo = ckptzoo.open(path)
    assert zoo["fc.weight"].dtype == np.float16
    assert zoo["fc.weight", "canonical"].dtype == np.float32
    assert ckptzoo.verify(path) == []


def test_retracted_checkpoints_are_derived_like_the_others(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo")
    ckptzoo.retract(path, ["0-1"], reason="a test")
    assert derive(path, certify="none").checkpoints == 8
    with pytest.warns(UserWarning, match="retracted"):
        zoo = ckptzoo.open(path)
    assert zoo["fc.weight", "canonical"].shape == (7, 10, 10)


def test_an_empty_zoo_has_nothing_to_derive(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", ())
    assert derive(path).checkpoints == 0
    assert ckptzoo.open(path).variants == ("raw",)


def test_a_table_that_changes_the_function_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    ckptzoo.create(path, arch=ARCH, symmetry=WRONG)
    fill(path, (2,))
    before = files_of(path)
    for certify in ("all", "sample"):
        with pytest.raises(SymmetryError, match="random group elements"):
            derive(path, certify=certify)
    assert files_of(path) == before


def test_versions_of_a_gauge_are_never_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zoo_of(tmp_path / "zoo")
    derive(path, certify="none")
    fill(path, (2,), start=2)
    found = GAUGES["canonical"].version
    newer = replace(GAUGES["canonical"], version=found + 1)
    monkeypatch.setattr(gauges, "GAUGES", {**GAUGES, "canonical": newer})
    with pytest.raises(SymmetryError, match=f"version of the variant: expected {found + 1}, got {found}"):
        derive(path, certify="none")


def test_unknown_names_and_inputs_of_another_shape_are_refused(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo")
    for options, known in (
        ({"gauge": "unit-nrm"}, "unit-norm"),
        ({"store": "elements"}, "element"),
        ({"certify": "some"}, "sample"),
    ):
        with pytest.raises(UnknownNameError, match=known):
            derive(path, **options)
    for shape in ((4, 28, 28), (0, 1, 28, 28)):
        with pytest.raises(ZooError, match="real inputs"):
            derive(path, inputs=np.zeros(shape))
    with pytest.raises(ZooError, match="expected none where nothing is checked"):
        derive(path, certify="none", inputs=np.zeros((1, 1, 28, 28)))


@pytest.mark.exhaustive
def test_torch_is_imported_only_for_checks_and_its_absence_is_reported(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo")
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from ckptzoo.derive import derive\n"
        "from ckptzoo.errors import MissingExtraError\n"
        "try:\n"
        "    derive(sys.argv[1])\n"
        "except MissingExtraError as error:\n"
        "    assert 'ckptzoo[torch]' in str(error)\n"
        "else:\n"
        "    raise SystemExit('no error')\n"
        "assert derive(sys.argv[1], certify='none').checkpoints == 8\n"
        "assert derive(sys.argv[1]).checkpoints == 0\n"
    )
    process = run(code, str(path))
    _, errors = process.communicate()
    assert process.returncode == 0, errors


def test_elements_of_several_parts_without_a_table_in_the_zoo(tmp_path: Path) -> None:
    ckptzoo.create(path := tmp_path / "zoo", arch=ARCH)
    fill(path, (2, 1, 1))
    done = derive(path, store="element", certify="none")
    assert (len(done.parts), done.checkpoints) == (3, 4) and ckptzoo.verify(path) == []
    assert len(ckptzoo.open(path)["fc.weight", "canonical"][:]) == 4
