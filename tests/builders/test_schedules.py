"""The learning rate of each epoch, and the settings that make no schedule."""

import pytest

from builders.schedules import MilestoneSchedule


def test_a_milestone_changes_the_rate_from_its_first_epoch_on() -> None:
    schedule = MilestoneSchedule(0.5, (2, 3), 0.5)
    assert [schedule.learning_rate_at(epoch) for epoch in range(5)] == [0.5, 0.5, 0.25, 0.125, 0.125]
    assert MilestoneSchedule(2.0, (), 0.5).learning_rate_at(1000) == 2.0
    assert not list(schedule.wrong_values())


@pytest.mark.parametrize(
    ("schedule", "wrong"),
    [
        (MilestoneSchedule(-1.0, (1,), 0.5), ["learning_rate"]),
        (MilestoneSchedule(1.0, (0,), 0.5), ["milestones"]),
        (MilestoneSchedule(1.0, (2, 2), 0.5), ["milestones"]),
        (MilestoneSchedule(1.0, [1], 0.5), ["milestones"]),  # type: ignore[arg-type]
        (MilestoneSchedule("1", (1, 1.5), float("inf")), ["learning_rate", "factor", "milestones"]),  # type: ignore
    ],
)
def test_settings_that_are_no_schedule(schedule: MilestoneSchedule, wrong: list[str]) -> None:
    assert [name for name, _ in schedule.wrong_values()] == wrong
