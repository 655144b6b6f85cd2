"""What the study of steps finds in members whose way through training is known."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import ckptzoo
from ckptzoo import archs, symmetry
from ckptzoo.derive.evaluation import Evaluator
from ckptzoo.derive.forward import STACK
from ckptzoo.derive.labelled import Labelled
from ckptzoo.errors import ZooError
from ckptzoo.schema.documents import canonical
from ckptzoo.studies.plots.steps import steps as picture
from ckptzoo.studies.shared.networks import ALIGNED, RAW
from ckptzoo.studies.steps import POINTS, steps
from tests.support.derived_zoos import weights_of
from tests.support.printed import line_of

NAME, MEMBERS = "mlp-4-8-3", 3
RNG = np.random.default_rng(0)


@pytest.fixture
def followed(tmp_path: Path) -> tuple[ckptzoo.Zoo, Labelled]:
    """Members whose last step is step 10 as it is, and step 2 with two neurons exchanged; one more has a step alone."""
    arch, table = archs.architecture(NAME), archs.symmetry(NAME)
    last = weights_of(MEMBERS + 1, 5, arch=arch)
    element = symmetry.GroupElement.identity(table, MEMBERS + 1)
    element.perms["fc1"][:, :2] = [1, 0]
    exchanged = symmetry.apply(element, last, table)
    with ckptzoo.create(tmp_path / "zoo", arch=arch, symmetry=table) as writer:
        for member in range(MEMBERS + 1):
            kept = {2: exchanged, 10: last, 20: last} if member < MEMBERS else {20: last}
            rows = [{"id": f"m{member}-{step}", "member": f"m{member}", "step": step} for step in kept]
            writer.add({key: np.stack([item[key][member] for item in kept.values()]) for key in last}, rows)
    inputs = RNG.standard_normal((80, 4)).astype(np.float32)
    labelled = Labelled("made/test", inputs, np.zeros(80, np.int64))
    targets = Evaluator(arch, labelled).outputs({key: value[:1] for key, value in last.items()})[0].argmax(1)
    return ckptzoo.open(tmp_path / "zoo"), Labelled("made/test", inputs, targets)


def test_exchanged_neurons_are_found_at_their_step(followed: tuple[ckptzoo.Zoo, Labelled], tmp_path: Path) -> None:
    zoo, labelled = followed
    counted: list[tuple[int, int]] = []
    found = steps(zoo, labelled, progress=lambda done, total: counted.append((done, total)))
    assert (found.members, found.steps, found.most) == (MEMBERS, [2, 10], 7)
    early = found.pairs == 2
    assert found.found[early].tolist() == [1] * MEMBERS and not found.found[~early].any()
    assert found.distances[RAW][early].min() > 0.1
    for values in (found.distances[ALIGNED], found.barriers[ALIGNED], found.distances[RAW][~early]):
        np.testing.assert_allclose(values, 0, atol=1e-5)
    assert counted[-1] == (2 * MEMBERS, 2 * MEMBERS)
    said = line_of(found, 140)
    for words in ("3 members, 2 earlier steps", "at most 7", "made/test: 80 inputs", "1.0 ± 0.0"):
        assert words in said
    assert canonical(found.to_json()) == canonical(json.loads(canonical(found.to_json())))
    assert {file.name for file in found.plot(tmp_path / "pictures")} == {"steps.png", "steps.json"}


def test_networks_that_stay_as_they_are_when_aligned_are_evaluated_once(
    followed: tuple[ckptzoo.Zoo, Labelled],
) -> None:
    calls: list[int] = []

    class Counted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return self.fc2(torch.relu(self.fc1(inputs)))

    zoo, given = followed
    found = steps(zoo.where("step > 2"), given, module=Counted())
    stacks = -(-MEMBERS * POINTS // STACK)
    assert len(calls) == 1 + stacks, "once for the number of outputs, and once for all points in stacks"
    np.testing.assert_array_equal(found.barriers[RAW], found.barriers[ALIGNED])
    numbers, distances, _ = picture(found).axes
    assert numbers.get_ylim()[1] >= 1 and all(tick == int(tick) for tick in numbers.get_yticks())
    below, above = (line for line in distances.lines if len(line.get_xdata()) and line.get_marker() in "os")
    assert below.get_marker() == "s" and below.get_markersize() > above.get_markersize(), "both are seen"


def test_without_inputs_there_are_no_barriers(followed: tuple[ckptzoo.Zoo, Labelled], tmp_path: Path) -> None:
    found = steps(followed[0])
    assert found.set is None and not found.barriers
    found.plot(tmp_path / "pictures")


def test_members_with_one_step_are_refused(followed: tuple[ckptzoo.Zoo, Labelled]) -> None:
    with pytest.raises(ZooError, match="--keep-steps"):
        steps(followed[0].last_steps())
