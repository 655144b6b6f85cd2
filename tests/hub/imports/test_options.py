"""Options of single formats: a format that would leave one unread refuses it by name."""

import itertools
import re
from dataclasses import fields
from inspect import getsourcefile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptzoo.errors import ZooError
from ckptzoo.hub.imports.adapters import ADAPTERS, Options
from ckptzoo.hub.imports.adapters.adapter import check_options
from ckptzoo.hub.imports.run import import_zoo

GIVEN = {
    "id_pattern": "{stem}",
    "metadata": {"a.safetensors": {"test_accuracy": 1.0}},
    "layout": "w,0,1\n",
    "checkpoint_offset": 0,
    "percent": True,
    "member_pattern": "a",
    "step_pattern": "1",
    "stacked": False,
    "networks": ("actor",),
}
FLAGS = {
    "id_pattern": "--id",
    "checkpoint_offset": "--checkpoint-offset",
    "member_pattern": "--member",
    "step_pattern": "--step",
}


def takes(name: str) -> set[str]:
    """The options that a format's module reads."""
    source = getsourcefile(type(ADAPTERS[name]))
    assert source is not None
    return set(re.findall(r"\boptions\.(\w+)", Path(source).read_text()))


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.sampled(2)
def test_each_combination_is_taken_whole_or_refused_by_name(name: str) -> None:
    known = [item.name for item in fields(Options)]
    assert set(known) == set(GIVEN)
    for count in range(len(known) + 1):
        for chosen in itertools.combinations(known, count):
            options = Options(**{option: GIVEN[option] for option in chosen})
            unread = set(chosen) - takes(name)
            if not unread:
                check_options(name, options)
                continue
            with pytest.raises(ZooError) as caught:
                check_options(name, options)
            assert {problem.what for problem in caught.value.problems} == {
                FLAGS.get(option, f"--{option}") for option in unread
            }
            assert all(problem.got == name for problem in caught.value.problems)


def test_an_import_refuses_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "zoo").mkdir()
    for number in range(2):
        save_file({"w": np.ones(3, "f4") * number}, tmp_path / "zoo" / f"{number}.safetensors")
    options = Options(metadata={"0.safetensors": {"test_accuracy": 1.0}})
    with pytest.raises(
        ZooError, match=r"--metadata: expected a format that takes it \(files\), got safetensors-archive"
    ):
        import_zoo(tmp_path / "zoo", tmp_path / "to", adapter="safetensors-archive", license="CC0-1.0", options=options)
    assert not (tmp_path / "to").exists()
