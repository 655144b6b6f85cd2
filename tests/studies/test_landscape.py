"""The study of the loss around members: stored figures, and pairs that lines and curves join."""

import json
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs, symmetry
from ckptzoo.derive import curves, landscape
from ckptzoo.derive.evaluation import Evaluator, combined
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import ZooError
from ckptzoo.schema.documents import canonical
from ckptzoo.studies.landscape import landscape as study
from ckptzoo.studies.shared.networks import ALIGNED, RAW
from tests.support.derived_zoos import weights_of, written
from tests.support.printed import line_of

NAME = "mlp-4-8-3"
ARCH, TABLE = archs.architecture(NAME), archs.symmetry(NAME)


def labelled(count: int = 60) -> Labelled:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((count, 4)).astype(np.float32)
    return Labelled("made/test", inputs, rng.integers(0, 3, count))


def disguised(folder: Path, count: int = 8) -> ckptzoo.Zoo:
    """Copies of one network under random permutations, with figures."""
    elements = symmetry.GroupElement.random(TABLE, count, np.random.default_rng(0), spread=0.0)
    one = {key: value.repeat(count, 0) for key, value in weights_of(1, 0, arch=ARCH).items()}
    given = labelled()
    path = written(folder, ARCH, dict(symmetry.apply(elements, one, TABLE)))
    # labels of its own: the network is at a minimum as good as any
    answers = Evaluator(ARCH, given).outputs(one)[0].argmax(1)
    landscape(path, given.inputs, answers, set="made/test")
    return ckptzoo.open(path)


@pytest.mark.exhaustive
def test_copies_are_alike_and_connected_once_aligned(tmp_path: Path) -> None:
    zoo = disguised(tmp_path / "copies")
    given = labelled()
    answers = Evaluator(ARCH, given).outputs({key: zoo[key][:1] for key in ARCH.names})[0].argmax(1)
    given = Labelled(given.set, given.inputs, answers)
    steps: list[tuple[int, int]] = []
    found = study(zoo, given, pairs=4, curve_steps=30, progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (61, 61) and found.members == 8 and found.without == 0
    # permutations change no figure, and CKA of features that are permuted is 1
    for values in (found.losses, found.traces, found.tops):
        np.testing.assert_allclose(values, values[0], rtol=1e-5)
    np.testing.assert_allclose(found.cka, 1, atol=1e-6)
    ends, line, curve = found.joined[RAW].highest
    assert (line > ends + 0.01).all() and (curve < line).all()
    ends, line, _ = found.joined[ALIGNED].highest
    np.testing.assert_allclose(line, ends, atol=1e-5)
    for words in ("8 members", "largest eigenvalue", "exact", "4 pairs, on 60 inputs", "curves of 30 steps"):
        assert words in line_of(found, 160)
    assert canonical(found.to_json()) == canonical(json.loads(canonical(found.to_json())))
    twice = [canonical(study(zoo, given, pairs=1, curve_steps=2).to_json()) for _ in range(2)]
    assert twice[0] == twice[1]
    assert {file.name for file in found.plot(tmp_path / "pictures")} == {"landscape.png", "landscape.json"}
    alone = study(zoo.take([0, 1]), given, pairs=0)
    assert not alone.joined and not alone.pairs
    assert len(alone.plot(tmp_path / "alone")) == 2
    without = study(zoo, given, pairs=3, curve_steps=0)
    assert len(without.cka) == 3 and not without.joined


def test_a_curve_ends_at_both_networks_and_follows_its_gradient() -> None:
    weights, given = weights_of(4, 3, arch=ARCH), labelled()
    first, second = ({key: value[rows] for key, value in weights.items()} for rows in (slice(2), slice(2, 4)))
    untrained = curves.middle_points(ARCH, first, second, given, steps=0, rate=0.1, seed=0)
    trained = curves.middle_points(ARCH, first, second, given, steps=100, rate=0.1, seed=0)
    points = np.linspace(0, 1, 11)
    shares = np.broadcast_to(curves.shares(points), (2, 11, 3))
    np.testing.assert_allclose(shares.sum(2), 1)
    losses = []
    for middle in (untrained, trained):
        corners = {key: np.stack([first[key], middle[key], second[key]], 1) for key in first}
        losses.append(combined(Evaluator(ARCH, given), corners, shares).loss)
    np.testing.assert_allclose(untrained["fc1.weight"], (first["fc1.weight"] + second["fc1.weight"]) / 2, rtol=1e-6)
    np.testing.assert_allclose(losses[0][:, [0, -1]], losses[1][:, [0, -1]])
    assert (losses[1].mean(1) < losses[0].mean(1) - 0.01).all()


def test_what_cannot_be_compared_is_one_sentence(tmp_path: Path) -> None:
    zoo = disguised(tmp_path / "zoo", 3)
    with pytest.raises(ZooError, match=r"labelled inputs for pairs: expected some, got none\. Name them"):
        study(zoo)
    with pytest.raises(ZooError, match="inputs: expected 2 or more, of which half are scored"):
        study(zoo, labelled(1))
    bare = ckptzoo.open(written(tmp_path / "bare", ARCH, weights_of(2, 0, arch=ARCH)))
    with pytest.raises(ZooError, match=r"Run ckptzoo landscape .*, which measures and stores them\."):
        study(bare, labelled())
    name = "resnet8-conv-10"
    arch = archs.architecture(name)
    weights = weights_of(2, 0, arch=arch)
    with pytest.raises(ZooError, match=r"expected one without BatchNorm, got .*\. Leave curves out: --curve-steps 0"):
        curves.middle_points(arch, weights, weights, labelled(), steps=1, rate=0.1, seed=0)
