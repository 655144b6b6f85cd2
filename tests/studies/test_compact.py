"""What the study of compact posteriors finds in samples whose Gaussian is known."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo import archs, symmetry
from ckptzoo.derive.evaluation import Evaluator
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import ZooError
from ckptzoo.schema.documents import canonical
from ckptzoo.studies.compact import ALIGNED, BINS, KEPT, RATIO, SAMPLED, SIGMA, SIZE, CompactStudy, compact
from tests.support.derived_zoos import weights_of
from tests.support.printed import line_of

NAME, COUNT, NOISE = "mlp-4-16-3", 24, 0.01
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[ckptzoo.Zoo, Labelled, dict[str, np.ndarray]]:
    """Samples of one Gaussian, each permuted, of 3 chains; labels are what its mean answers."""
    arch, table = archs.architecture(NAME), archs.symmetry(NAME)
    mean, inputs = weights_of(1, 7, arch=arch), RNG.standard_normal((200, 4)).astype(np.float32)
    evaluator = Evaluator(arch, Labelled("made/test", inputs, np.zeros(200, np.int64)))
    # so that no class is the answer to most inputs
    mean["fc2.bias"] -= evaluator.outputs(mean)[0].mean(0)
    noise = {key: value + NOISE * RNG.standard_normal((COUNT, *value.shape[1:])) for key, value in mean.items()}
    elements = symmetry.GroupElement.random(table, COUNT, np.random.default_rng(1), spread=0.0)
    weights = {key: value.astype(np.float32) for key, value in symmetry.apply(elements, noise, table).items()}
    rows = [
        {"id": f"c{chain}-{draw}", "method": "made", "mode": f"c{chain}", "draw": draw, "step": draw}
        for chain in range(3)
        for draw in range(COUNT // 3)
    ]
    folder = tmp_path_factory.mktemp("compact") / "samples"
    with ckptzoo.create(folder, arch=arch, symmetry=table) as writer:
        writer.add(weights, rows)
    targets = evaluator.outputs(mean)[0].argmax(1)
    return ckptzoo.open(folder), Labelled("made/test", inputs, targets), mean


@pytest.fixture(scope="module")
def found(planted: tuple[ckptzoo.Zoo, Labelled, dict[str, np.ndarray]]) -> CompactStudy:
    pytest.importorskip("arviz_stats")
    zoo, labelled, _ = planted
    return compact(zoo, labelled, draws=20, seed=3)


def test_the_aligned_gaussian_is_the_planted_one(found: CompactStudy) -> None:
    aligned, sampled = found.gaussians[ALIGNED], found.gaussians[SAMPLED]
    assert aligned.median_sigma == pytest.approx(NOISE, rel=0.1)
    assert sampled.median_sigma > 10 * NOISE
    assert aligned.mean.accuracy > 0.98 > sampled.mean.accuracy + 0.1
    assert aligned.mean.agreement > 0.98 and aligned.draws.accuracy > 0.97 and aligned.draws.alone > 0.95
    assert (
        aligned.sigma.sum()
        == sampled.sigma.sum()
        == sum(int(np.prod(tensor.shape)) for tensor in archs.architecture(NAME).tensors)
    )
    centre = BINS[:-1][aligned.sigma.argmax()]
    assert abs(centre - np.log10(NOISE)) < 0.3
    assert found.members.accuracy > 0.98 and found.members.agreement == 1


def test_pruning_and_merging(found: CompactStudy) -> None:
    for item in found.gaussians.values():
        assert set(item.pruned) == {SIGMA, SIZE, RATIO}
        for accuracies in item.pruned.values():
            assert len(accuracies) == len(KEPT) and accuracies[0] == pytest.approx(item.mean.accuracy, abs=0.006)
    assert list(found.merged) == [1, 2, 4, 8, 16, 24]
    assert found.merged[1][0] == pytest.approx(found.merged[1][1], abs=0.006), "one sample is itself, permuted"
    assert found.merged[24][1] > 0.98 > found.merged[24][0] + 0.1
    assert found.merged[24][1] == pytest.approx(found.gaussians[ALIGNED].mean.accuracy, abs=0.006)
    assert len(found.pruned_member) == 2


def test_chains_mix_once_they_are_aligned(found: CompactStudy) -> None:
    """Permuted at random, weights have large deviations; aligned they are independent draws of one Gaussian."""
    assert found.chains == 3
    aligned = found.convergence[f"weights, {ALIGNED}"]
    assert len(aligned.r_hat) == 131 and np.nanmedian(aligned.r_hat) < 1.1
    assert 1 in found.lag and found.lag[1][0] > 5, "draws beside one another are permuted at random"
    assert len(found.convergence) == 3


def test_it_is_printed_drawn_and_written(found: CompactStudy, tmp_path: Path) -> None:
    said = line_of(replace(found, draws=1), 130)
    for words in (
        "samples: 24 samples of 3 chains",
        "made/test: 200",
        "and 1 draw together",
        "R-hat",
        "lag: 1 draw: ",
        ", 2 draws: ",
    ):
        assert words in said
    assert canonical(found.to_json()) == canonical(json.loads(canonical(found.to_json())))
    assert {file.name for file in found.plot(tmp_path)} == {"compact.png", "compact.json"}


def test_a_variational_gaussian_beside(
    planted: tuple[ckptzoo.Zoo, Labelled, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    zoo, labelled, mean = planted
    name = f"gaussian-{NAME}"
    arch = archs.architecture(name)
    weights = {
        tensor.name: mean[tensor.name] if tensor.name in mean else np.full((1, *tensor.shape), NOISE, np.float32)
        for tensor in arch.tensors
    }
    with ckptzoo.create(tmp_path / "g", arch=arch, symmetry=archs.symmetry(name)) as writer:
        writer.add(weights, [{"id": "g0"}])
    few = zoo.take(np.arange(3))
    found = compact(few, labelled, variational=ckptzoo.open(tmp_path / "g"), draws=5)
    assert found.gaussians["variational"].mean.accuracy == pytest.approx(1.0, abs=0.006)
    assert found.gaussians["variational"].median_sigma == pytest.approx(NOISE)
    assert not found.convergence and found.chains == 1
    with pytest.raises(ZooError, match="variational zoo: expected Gaussians over"):
        compact(few, labelled, variational=zoo)


def test_two_samples_are_refused(planted: tuple[ckptzoo.Zoo, Labelled, dict[str, np.ndarray]]) -> None:
    zoo, labelled, _ = planted
    with pytest.raises(ZooError, match="members: expected 3 or more that are finite and did not diverge, got 2 of 2"):
        compact(zoo.take(np.arange(2)), labelled)
    with pytest.raises(ZooError, match="compact: draws: expected an integer, 1 or more, got int 0"):
        compact(zoo, labelled, draws=0)
