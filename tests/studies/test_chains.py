"""Chains have their draws in the order in which they were made, however a zoo holds them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.studies.chains import chain_rows
from tests.support.effort import examples

ARCH = ckptzoo.Architecture("one", (ckptzoo.Tensor("w", (1,)),))


def zoo_of(path: Path, rows: list[dict[str, Any]]) -> ckptzoo.Zoo:
    with ckptzoo.create(path, arch=ARCH) as writer:
        writer.add({"w": np.zeros((len(rows), 1), np.float32)}, rows)
    return ckptzoo.open(path)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_draws_are_in_the_order_of_steps_and_else_of_their_numbers(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(["steps", "spread numbers", "equal steps", "no steps", "a step is missing"]))
    made: list[dict[str, Any]] = [{"id": "start"}]
    for chain in range(data.draw(st.integers(1, 3))):
        for time in range(data.draw(st.integers(2, 5))):
            number = 7 * time % 5 if kind == "spread numbers" else time
            step = {"steps": 10 * time, "spread numbers": 10 * time, "equal steps": 3, "no steps": None}.get(
                kind, None if time == 1 else 10 * (9 - time)
            )
            row = {"id": f"{chain}-{time}", "mode": f"c{chain}", "method": "hmc", "draw": number, "step": step}
            made.append(row)
    zoo = zoo_of(tmp_path_factory.mktemp("chains") / "zoo", data.draw(st.permutations(made)))
    found = [[zoo.ids[row] for row in chain] for chain in chain_rows(zoo)]
    expected = {
        mode: [row["id"] for row in made if row.get("mode") == mode] for row in made if (mode := row.get("mode"))
    }
    assert sorted(found) == sorted(expected.values())


def test_draws_whose_order_nothing_tells_and_those_of_several_methods_are_refused(tmp_path: Path) -> None:
    rows = [{"id": f"{at}", "mode": "a", "method": "hmc", "recipe_digest": "r"} for at in range(4)]
    with pytest.raises(ZooError, match=r"zoo: chains: expected a step or a number .* got none, or one twice"):
        chain_rows(zoo_of(tmp_path / "unordered" / "zoo", rows))
    for number, row in enumerate(rows):
        row |= {"draw": number // 2, "method": ("hmc", "swag")[number % 2]}
    zoo = zoo_of(tmp_path / "mixed" / "zoo", rows)
    with pytest.raises(ZooError, match=r"zoo: chains: expected draws of one method, got hmc, swag\. Select some: zoo"):
        chain_rows(zoo)
    assert [rows.tolist() for rows in chain_rows(zoo.where("method == 'swag'"))] == [[0, 1]]
    # two chains from one mode, whose steps differ
    for number, row in enumerate(rows):
        row |= {"step": number, "method": "hmc", "recipe_digest": ("r", "s")[number % 2]}
    zoo = zoo_of(tmp_path / "recipes" / "zoo", rows)
    with pytest.raises(ZooError, match=r"zoo: chain 'a': expected draws of one recipe, got of 2\. Select those of one"):
        chain_rows(zoo)
    assert [rows.tolist() for rows in chain_rows(zoo.where("recipe_digest == 's'"))] == [[0, 1]]
    assert chain_rows(zoo_of(tmp_path / "members", [{"id": "a"}, {"id": "b"}])) == []
