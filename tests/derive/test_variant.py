"""Variants of whole zoos: what is written, what a second, killed or concurrent call does, what is refused."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import derive, variant
from ckptzoo.errors import SymmetryError, UnknownNameError, ZooError
from ckptzoo.spec.architecture import Architecture
from ckptzoo.spec.symmetry import AxisAction, Group, Segment, Sym, Symmetry
from ckptzoo.symmetry import GAUGES, GroupElement, apply, canonicalize

ARCH = archs.architecture("optunet")
TABLE = archs.symmetry("optunet")
Weights = dict[str, np.ndarray]


def weights_of(count: int, seed: int, dtype: type = np.float32) -> Weights:
    rng = np.random.default_rng(seed)
    return {tensor.name: (rng.standard_normal((count, *tensor.shape)) / 3).astype(dtype) for tensor in ARCH.tensors}


def fill(path: Path, parts: tuple[int, ...], *, start: int = 0, spoil: tuple[int, ...] = ()) -> None:
    writer = ckptzoo.append(path)
    for number, count in enumerate(parts, start):
        weights = weights_of(count, number)
        for row in spoil:
            weights["conv1.weight"][row, 0, 0, 1, 2] = np.nan
        writer.add(weights, [{"id": f"{number}-{row}", "unit": f"u{number}"} for row in range(count)])
        writer.commit()


def zoo_of(path: Path, parts: tuple[int, ...] = (5, 3), **options) -> Path:
    ckptzoo.create(path, arch=ARCH, symmetry=TABLE)
    fill(path, parts, **options)
    return path


def files_of(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def names_in(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


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
    element = GroupElement.from_tensors({name: np.asarray(value) for name, value in zoo.element(gauge).items()})
    again = apply(element, raw, TABLE)
    for name in ARCH.names:
        stored = np.asarray(zoo[name, gauge])
        assert stored.tobytes() == expected.weights[name].tobytes() == again[name].tobytes()
    rows = zoo.variant_metadata(gauge)
    assert rows["id"].to_pylist() == zoo.ids
    assert rows["margin"].to_pylist() == expected.report.margin.tolist()
    assert rows["ties"].to_pylist() == [0] * 8 and rows["gauged"].to_pylist() == [True] * 8
    for column, worst in (("certificate_random", done.worst_random), ("certificate_real", done.worst_real)):
        found = rows[column].to_numpy()
        assert 0 < found.max() < 2e-6 and found.max() == worst


def test_a_selection_of_the_zoo_meets_its_own_rows_of_the_variant(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo")
    derive(path, certify=False)
    zoo = ckptzoo.open(path)
    some = zoo.take([6, 1])
    np.testing.assert_array_equal(
        some["fc.weight", "first-weight"][:], np.asarray(zoo["fc.weight", "first-weight"])[[6, 1]]
    )


def test_diverged_checkpoints_are_kept_as_they_are_and_marked(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (4,), spoil=(2,))
    done = derive(path)
    assert done.untouched == 1 and done.checkpoints == 4
    zoo = ckptzoo.open(path)
    rows = zoo.variant_metadata("first-weight").to_pylist()
    assert [row["gauged"] for row in rows] == [True, True, False, True]
    assert all(rows[2][name] is None for name in ("ties", "margin", "dead", "certificate_random"))
    assert rows[3]["certificate_random"] < 2e-6
    for name in ARCH.names:
        assert zoo[name, "first-weight"][2].tobytes() == zoo[name][2].tobytes()


def test_a_second_call_adds_nothing_and_a_third_only_what_came_since(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo")
    derive(path)
    before = files_of(path)
    again = derive(path)
    assert (again.checkpoints, again.already, again.parts, again.worst_random) == (0, 8, (), None)
    assert files_of(path) == before
    fill(path, (2,), start=2)
    more = derive(path)
    assert (more.checkpoints, more.already, len(more.parts)) == (2, 8, 1)
    after = files_of(path)
    assert all(after[name] == data for name, data in before.items())
    assert ckptzoo.verify(path) == []


def test_batches_change_no_byte_and_progress_counts_every_checkpoint(tmp_path: Path, monkeypatch) -> None:
    one, two = zoo_of(tmp_path / "one"), zoo_of(tmp_path / "two")
    derive(one)
    monkeypatch.setattr(variant, "BATCH_BYTES", 2 * ARCH.nbytes)
    seen: list[tuple[int, int]] = []
    derive(two, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(2, 8), (4, 8), (5, 8), (7, 8), (8, 8)]
    shards = [
        [data for name, data in files_of(path / "derived").items() if name.endswith(".safetensors")]
        for path in (one, two)
    ]
    assert len(shards[0]) == 4 and sorted(shards[0]) == sorted(shards[1])


def test_an_interrupted_call_leaves_nothing_half_written(tmp_path: Path, monkeypatch) -> None:
    path = zoo_of(tmp_path / "zoo")
    monkeypatch.setattr(variant, "BATCH_BYTES", 2 * ARCH.nbytes)

    def interrupt(done: int, total: int) -> None:
        if done > 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        derive(path, certify=False, progress=interrupt)
    assert len(names_in(path / "derived/first-weight")) == 1
    assert ckptzoo.verify(path) == []
    with pytest.raises(ZooError, match="ckptzoo derive zoo --gauge first-weight"):
        ckptzoo.open(path)["fc.weight", "first-weight"]
    assert derive(path, certify=False).checkpoints == 3


def _run(code: str, *args: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(Path(ckptzoo.__file__).parents[1])}
    return subprocess.Popen([sys.executable, "-c", code, *args], env=environment, stderr=subprocess.PIPE, text=True)


def test_a_killed_call_is_carried_on(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (3, 3, 3))
    code = (
        "import os, signal, sys\n"
        "from ckptzoo.derive import derive\n"
        "kill = lambda done, total: done > 3 and os.kill(os.getpid(), signal.SIGKILL)\n"
        "derive(sys.argv[1], certify=False, progress=kill)\n"
    )
    process = _run(code, str(path))
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert len(names_in(path / "derived/first-weight")) == 2, "a part and what the dead process left"
    done = derive(path, certify=False)
    assert (done.checkpoints, done.already) == (6, 3)
    assert ckptzoo.verify(path) == []
    names = names_in(path / "derived/first-weight")
    assert [name[:7] for name in names] == ["000001-", "000002-", "000003-"]


def test_two_at_once_write_every_part_once(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (2,) * 12)
    code = "import sys; from ckptzoo.derive import derive; derive(sys.argv[1], certify=False)"
    both = [_run(code, str(path)) for _ in range(2)]
    for process in both:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert ckptzoo.verify(path) == []
    assert len(ckptzoo.open(path).variant_metadata("first-weight")) == 24


def test_retracted_checkpoints_are_derived_like_the_others(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo")
    ckptzoo.retract(path, ["0-1"], reason="a test")
    assert derive(path, certify=False).checkpoints == 8
    with pytest.warns(UserWarning, match="retracted"):
        zoo = ckptzoo.open(path)
    assert zoo["fc.weight", "first-weight"].shape == (7, 10, 10)


def test_half_precision_becomes_float32(tmp_path: Path) -> None:
    tensors = tuple(replace(tensor, dtype="float16") for tensor in ARCH.tensors)
    path = tmp_path / "zoo"
    with ckptzoo.create(path, arch=Architecture("half", tensors, "optunet", (1, 28, 28)), symmetry=TABLE) as writer:
        writer.add(weights_of(3, 0, np.float16), [{"id": str(at)} for at in range(3)])
    assert derive(path).worst_random < 2e-6
    zoo = ckptzoo.open(path)
    assert zoo["fc.weight"].dtype == np.float16
    assert zoo["fc.weight", "first-weight"].dtype == np.float32
    assert ckptzoo.verify(path) == []


def test_a_zoo_without_a_table_gets_the_registrys(tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    ckptzoo.create(path, arch=ARCH)
    fill(path, (2,))
    assert not (path / "symmetry.json").exists()
    derive(path, certify=False)
    assert ckptzoo.open(path).symmetry == TABLE
    assert ckptzoo.verify(path) == []


def test_a_network_without_a_forward_function_has_no_certificates(tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    ckptzoo.create(path, arch=replace(ARCH, forward=None), symmetry=TABLE)
    fill(path, (2,))
    done = derive(path)
    assert done.checkpoints == 2 and done.worst_random is None
    rows = ckptzoo.open(path).variant_metadata("first-weight")
    assert rows["certificate_random"].null_count == 2
    with pytest.raises(ZooError, match="real inputs"):
        derive(path, inputs=np.zeros((1, 1, 28, 28)))


def test_an_empty_zoo_has_nothing_to_derive(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", ())
    assert derive(path).checkpoints == 0
    assert ckptzoo.open(path).variants == ("raw",)


def test_a_network_without_any_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "zoo"
    ckptzoo.create(path, arch=replace(ARCH, forward=None))
    with pytest.raises(SymmetryError, match=r"symmetry table of optunet: expected one"):
        derive(path)


def test_a_table_that_changes_the_function_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    wrong = Symmetry(
        (Group("h", 10, Sym(), "positive"),),
        (
            AxisAction("conv2.weight", 0, (Segment("h", 0, 1, 10),), 1, True, "out"),
            AxisAction("fc.weight", 1, (Segment("h", 0, 1, 10),), -1, True, "in"),
        ),
    )
    path = tmp_path / "zoo"
    ckptzoo.create(path, arch=ARCH, symmetry=wrong)
    fill(path, (2,))
    before = files_of(path)
    with pytest.raises(SymmetryError, match="random group elements"):
        derive(path)
    assert files_of(path) == before


def test_versions_of_a_gauge_are_never_mixed(tmp_path: Path, monkeypatch) -> None:
    path = zoo_of(tmp_path / "zoo")
    derive(path, certify=False)
    fill(path, (2,), start=2)
    newer = replace(GAUGES["first-weight"], version=2)
    monkeypatch.setattr(variant, "GAUGES", {**GAUGES, "first-weight": newer})
    with pytest.raises(SymmetryError, match="version of the variant: expected 2, got 1"):
        derive(path, certify=False)


def test_unknown_gauges_and_inputs_of_another_shape_are_refused(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo")
    with pytest.raises(UnknownNameError, match="unit-norm"):
        derive(path, gauge="unit-nrm")
    for shape in ((4, 28, 28), (0, 1, 28, 28)):
        with pytest.raises(ZooError, match="real inputs"):
            derive(path, inputs=np.zeros(shape))


def test_torch_is_imported_only_for_certificates_and_its_absence_is_told(tmp_path: Path) -> None:
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
        "assert derive(sys.argv[1], certify=False).checkpoints == 8\n"
    )
    process = _run(code, str(path))
    _, errors = process.communicate()
    assert process.returncode == 0, errors
