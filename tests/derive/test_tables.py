"""Where a zoo's symmetry table comes from, and how one is declared."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import ckptzoo
from ckptzoo import archs
from ckptzoo.derive import align_zoo, declare, dedupe, derive
from ckptzoo.derive.near_copies import seeded_inputs
from ckptzoo.derive.tables import symmetry_of
from ckptzoo.errors import IntegrityError, SpecError, SymmetryError, ZooError
from ckptzoo.format.files import Folder
from ckptzoo.format.reader import read_contents
from ckptzoo.format.writer import create_referring
from ckptzoo.hub.pull import pull
from ckptzoo.schema.card import Card
from ckptzoo.schema.documents import seal
from ckptzoo.symmetry import trace
from tests.support.derived_zoos import ARCH, TABLE, WRONG, files_of, weights_of, written

UNKNOWN = replace(ARCH, forward=None)


def test_a_zoo_without_a_table_gets_the_registrys_when_it_is_derived(tmp_path: Path) -> None:
    path = written(tmp_path / "zoo", ARCH, weights_of(2, 0))
    before = files_of(path)
    assert symmetry_of(read_contents(Folder(path))) == TABLE
    dedupe(ckptzoo.open(path))
    assert files_of(path) == before
    derive(path, certify="none")
    assert ckptzoo.open(path).symmetry == TABLE
    assert ckptzoo.verify(path) == []


def test_a_wrong_table_is_refused_though_the_first_checkpoints_say_nothing(tmp_path: Path) -> None:
    weights = weights_of(7, 0)
    weights["fc.weight"][:5] = np.nan
    (tmp_path / "nets").mkdir()
    for at in range(7):
        save_file({name: np.array(array[at]) for name, array in weights.items()}, tmp_path / f"nets/{at}.safetensors")
    # of weights in files of others it is not known whether they are finite
    create_referring(tmp_path / "refers", arch=ARCH, card=Card("refers"), symmetry=WRONG)
    ckptzoo.link_zoo(tmp_path / "nets", tmp_path / "refers", license="MIT")
    with pytest.raises(SymmetryError, match="random group elements"):
        derive(tmp_path / "refers")


def test_a_declared_table_is_used(tmp_path: Path) -> None:
    path = written(tmp_path / "zoo", UNKNOWN, weights_of(2, 0))
    for call in (lambda: derive(path), lambda: dedupe(ckptzoo.open(path))):
        with pytest.raises(SymmetryError, match=r"symmetry table of optunet: expected one, got none.*derive\.declare"):
            call()
    declare(path, TABLE)
    assert ckptzoo.open(path).symmetry == TABLE
    done = derive(path)
    assert done.checkpoints == 2 and done.certified == ()
    rows = ckptzoo.open(path).variant_metadata("canonical")
    assert rows["certificate_random"].null_count == rows["certified"].null_count == 2
    assert ckptzoo.verify(path) == []
    with pytest.raises(ZooError, match="real inputs"):
        written(tmp_path / "other", UNKNOWN, weights_of(2, 1), symmetry=TABLE)
        derive(tmp_path / "other", inputs=weights_of(1, 0)["fc.weight"])


def test_a_table_is_declared_once(tmp_path: Path) -> None:
    path = written(tmp_path / "zoo", ARCH, weights_of(1, 0))
    declare(path, TABLE)
    before = files_of(path)
    declare(path, TABLE)
    signs = tuple(replace(group, scale="sign") for group in TABLE.groups)
    with pytest.raises(SymmetryError, match=f"expected none or .*, got {TABLE.digest}"):
        declare(path, replace(TABLE, groups=signs))
    assert files_of(path) == before


def test_a_table_of_another_architecture_is_refused_with_every_problem(tmp_path: Path) -> None:
    path = written(tmp_path / "zoo", UNKNOWN, weights_of(1, 0))
    before = files_of(path)
    moved = tuple(replace(action, tensor=f"{action.tensor}s") for action in TABLE.actions)
    with pytest.raises(SpecError) as refused:
        declare(path, replace(TABLE, actions=moved))
    assert len(refused.value.problems) == len(moved)
    assert files_of(path) == before


SHAPE = (1, 28, 28)
SHAPELESS = replace(UNKNOWN, input_shape=None)


@pytest.mark.parametrize("way", ["derive", "align", "inputs", "traced", "table"])
@pytest.mark.sampled(4)
def test_the_shape_of_an_input_is_kept_with_the_table_and_changes_no_document(tmp_path: Path, way: str) -> None:
    path, module = written(tmp_path / "zoo", SHAPELESS, weights_of(3, 0)), archs.get("optunet")()
    before, digest = files_of(path), ckptzoo.open(path).arch.digest
    images = np.random.default_rng(0).normal(size=(2, *SHAPE)).astype(np.float32)
    if way == "derive":
        derive(path, module=module, input_shape=SHAPE, certify="none")
    elif way == "align":
        align_zoo(path, "0", label="first", module=module, input_shape=SHAPE, certify="none")
    elif way == "inputs":
        derive(path, module=module, inputs=images)
    elif way == "traced":
        declare(path, trace(module.eval(), torch.from_numpy(images)))
    else:
        declare(path, TABLE, input_shape=SHAPE)
        declare(path, TABLE)
    assert ckptzoo.open(path).contents.identity.architecture == digest
    assert {name: data for name, data in files_of(path).items() if name in before} == before
    pull(path, tmp_path / "whole")
    pull(path, tmp_path / "part", where="id != '2'")
    for place in (path, tmp_path / "whole", tmp_path / "part"):
        zoo = ckptzoo.open(place)
        assert zoo.arch.input_shape == SHAPE and seeded_inputs(zoo.arch).shape[1:] == SHAPE
        assert zoo.symmetry is not None and ckptzoo.verify(place) == []
    derive(path, gauge="unit-norm", module=module, certify="all")
    assert ckptzoo.verify(path) == []
    with pytest.raises(ZooError, match="shape of one input"):
        declare(path, TABLE, input_shape=(784,))


@pytest.mark.parametrize("shape", [784, "784", [0], [-1], [1.5], [True], {"0": 1}, [[28]], [2**50]])
def test_a_shape_that_is_none_is_refused(tmp_path: Path, shape: object) -> None:
    path = written(tmp_path / "zoo", SHAPELESS, weights_of(1, 0))
    (path / "symmetry.json").write_bytes(seal({**TABLE.to_json(), "input_shape": shape}))
    with pytest.raises((IntegrityError, SpecError), match="input_shape"):
        ckptzoo.open(path)


def test_the_shape_is_said_once(tmp_path: Path) -> None:
    path = written(tmp_path / "zoo", UNKNOWN, weights_of(1, 0))
    (path / "symmetry.json").write_bytes(seal({**TABLE.to_json(), "input_shape": list(SHAPE)}))
    with pytest.raises(IntegrityError, match=r"input_shape: expected none: architecture\.json has it"):
        ckptzoo.open(path)
