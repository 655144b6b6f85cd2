"""Accuracies along the training, from rows in any order."""

import numpy as np
import pyarrow as pa

from ckptzoo.studies.overview import trajectories_of


def rows(*found: tuple[str, int | None, float | None]) -> pa.Table:
    member, step, accuracy = zip(*found, strict=True)
    types = {"member": pa.string(), "step": pa.int64(), "test_accuracy": pa.float64()}
    return pa.table(
        {
            name: pa.array(list(values), kind)
            for (name, kind), values in zip(types.items(), (member, step, accuracy), strict=True)
        }
    )


def test_members_with_three_measured_steps_are_shown() -> None:
    found = trajectories_of(
        rows(
            ("b", 10, 0.5), ("a", 0, 0.1), ("a", 10, 0.6), ("b", 0, 0.2), ("c", 0, 0.3), ("c", 7, 0.4), ("c", 10, None),
            ("b", 20, 0.7), ("a", 20, float("nan")), ("a", 30, 0.9), ("d", None, 0.9),
        )
    )  # fmt: skip
    assert found is not None and found.steps.tolist() == [0, 10, 20, 30], "c has two, and step 7 is its alone"
    nan = np.nan
    order = np.argsort(found.accuracies[:, 0])
    np.testing.assert_array_equal(found.accuracies[order], [[0.1, 0.6, nan, 0.9], [0.2, 0.5, 0.7, nan]])
    assert [item["members"] for item in found.to_json()] == [2, 2, 1, 1]
    assert found.to_json()[1] == {"step": 10, "members": 2, "mean": 0.55, "lowest": 0.5, "highest": 0.6}


def test_last_steps_alone_are_no_trajectories() -> None:
    assert trajectories_of(rows(("a", 10, 0.5), ("b", 10, 0.4), ("b", 0, 0.1))) is None
    assert trajectories_of(rows(("a", 10, None))) is None
