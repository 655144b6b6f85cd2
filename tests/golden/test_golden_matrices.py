"""A zoo whose table has invertible matrices and complex numbers: ``<group>.matrix`` beside ``<group>.perm``."""

import hashlib
from pathlib import Path

import numpy as np

import ckptzoo
from ckptzoo.symmetry import GroupElement, apply, canonicalize
from tests.support.matrix_networks import TABLE

GOLDEN = Path(__file__).parent / "v1-matrices"
"""An attention layer with rotary embeddings: random weights, and the same in a disguise."""


def test_the_golden_zoo_is_sound_and_reads_the_same() -> None:
    assert ckptzoo.verify(GOLDEN) == []
    zoo = ckptzoo.open(GOLDEN)
    assert zoo.revision == "sha256:033a7a26506c67f3439a9ac072a2f9f80171b2b96593f67db763d366f1a49204"
    assert zoo.symmetry is not None and zoo.symmetry == TABLE
    assert zoo.symmetry.digest == "sha256:15320cafe33d9ebf605df5aeffbbef4c9b0e92bd13e7fc5ea9ddb48725f8f5a4"
    (part,) = zoo.contents.derived("canonical").parts
    assert part.digest == "sha256:94ce3e6c5ca85883605cf1ee0b2c48b6a342b0319e4865005ddee0271557446b"
    assert part.facts["version"] == 5
    content = b"".join(np.asarray(zoo[name, "canonical"]).tobytes() for name in zoo.arch.names)
    assert hashlib.sha256(content).hexdigest()[:16] == "d0009a7e8e896708"
    held = {name: np.asarray(value) for name, value in zoo.group_element("canonical").items()}
    assert {name: value.shape[1:] for name, value in held.items()} == {
        "pairs.perm": (4,),
        "pairs.matrix": (4, 2),
        "values.perm": (8,),
        "values.matrix": (2, 4, 4),
    }
    content = b"".join(held[name].tobytes() for name in sorted(held))
    assert hashlib.sha256(content).hexdigest()[:16] == "956549ba55b80cd9"
    assert zoo.variant_metadata("canonical")["degenerate"].to_pylist() == [0, 0]


def test_its_group_elements_still_apply() -> None:
    zoo = ckptzoo.open(GOLDEN)
    element = GroupElement.from_tensors({name: np.asarray(x) for name, x in zoo.group_element("canonical").items()})
    element.check(TABLE)
    raw = {name: np.asarray(zoo[name]) for name in zoo.arch.names}
    for name, value in apply(element, raw, TABLE).items():
        np.testing.assert_allclose(value, np.asarray(zoo[name, "canonical"]), rtol=1e-6, atol=1e-6)


def test_the_disguise_has_the_same_form_and_the_gauge_still_gives_it() -> None:
    zoo = ckptzoo.open(GOLDEN)
    made = canonicalize({name: np.asarray(zoo[name]) for name in zoo.arch.names}, TABLE).weights
    for name, value in made.items():
        np.testing.assert_allclose(value[0], value[1], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(value, np.asarray(zoo[name, "canonical"]), rtol=1e-4, atol=1e-5)
