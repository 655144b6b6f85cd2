"""The learning rate of each epoch, and the settings that make no schedule."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.schedules import CosineSchedule, MilestoneSchedule, Schedule
from tests.support.effort import examples


def test_a_milestone_changes_the_rate_from_its_first_epoch_on() -> None:
    schedule = MilestoneSchedule(0.5, (2, 3), 0.5)
    assert [schedule.learning_rate_at(epoch) for epoch in range(5)] == [0.5, 0.5, 0.25, 0.125, 0.125]
    assert MilestoneSchedule(2.0, (), 0.5).learning_rate_at(1000) == 2.0
    assert not list(schedule.wrong_values())


@settings(max_examples=examples(100), deadline=None)
@given(rate=st.floats(1e-4, 10), epochs=st.integers(1, 300))
def test_a_cosine_is_that_of_torch(rate: float, epochs: int) -> None:
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    torchs = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=epochs)
    schedule = CosineSchedule(rate, epochs)
    for epoch in range(epochs):
        assert schedule.learning_rate_at(epoch) == pytest.approx(torchs.get_last_lr()[0], rel=0, abs=1e-12)
        optimiser.step()
        torchs.step()


def test_a_cosine_begins_at_the_rate_and_would_end_at_nothing() -> None:
    schedule = CosineSchedule(0.2, 200)
    assert [schedule.learning_rate_at(epoch) for epoch in (0, 100, 200)] == pytest.approx([0.2, 0.1, 0.0], abs=1e-15)
    rates = [schedule.learning_rate_at(epoch) for epoch in range(200)]
    assert rates == sorted(rates, reverse=True) and rates[-1] > 0


@pytest.mark.parametrize(
    ("schedule", "wrong"),
    [
        (MilestoneSchedule(-1.0, (1,), 0.5), ["learning_rate"]),
        (MilestoneSchedule(1.0, (0,), 0.5), ["milestones"]),
        (MilestoneSchedule(1.0, (2, 2), 0.5), ["milestones"]),
        (MilestoneSchedule(1.0, [1], 0.5), ["milestones"]),  # type: ignore[arg-type]
        (CosineSchedule(-1.0, 3), ["learning_rate"]),
        (CosineSchedule(float("nan"), 3), ["learning_rate"]),
        (MilestoneSchedule("1", (1, 1.5), float("inf")), ["learning_rate", "factor", "milestones"]),  # type: ignore
    ],
)
def test_settings_that_are_no_schedule(schedule: Schedule, wrong: list[str]) -> None:
    assert [name for name, _ in schedule.wrong_values()] == wrong
