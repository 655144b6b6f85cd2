"""Several processes that derive and predict one zoo together."""

from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive, predict
from ckptzoo.errors import ZooError
from ckptzoo.text import parse_share
from tests.support.derived_zoos import ARCH, fill, inputs_of, zoo_of


def digests(path: Path, tree: str) -> dict[str, str]:
    """The digest of every part of a derived tree, by the raw part that it was made from."""
    return {str(part.facts["raw"]): part.digest for part in ckptzoo.open(path).contents.derived(tree).parts}


def test_shares_give_the_parts_of_one_process(tmp_path: Path) -> None:
    alone, shared = (zoo_of(tmp_path / name, (3, 1, 2, 4, 1)) for name in ("a", "b"))
    inputs = inputs_of(ARCH, 6).astype(np.float32)
    derive(alone)
    derive(alone, gauge="min-mass")
    predict(alone, inputs, set="some/test")
    for number in (2, 0, 1):
        done = derive(shared, share=(number, 3))
        assert len(done.parts) == (2, 2, 1)[number]
        derive(shared, gauge="min-mass", share=(number, 3))
        found = predict(shared, inputs, set="some/test", share=(number, 3))
        assert found.checkpoints == (7, 2, 2)[number]
    for tree in ("canonical", "min-mass", "predictions-some--test"):
        assert digests(shared, tree) == digests(alone, tree)
    assert ckptzoo.verify(shared) == []
    assert derive(shared).parts == () and derive(shared, share=(1, 2)).parts == ()
    # what comes later keeps its number among all parts
    fill(shared, (2,), start=5)
    assert derive(shared, share=(0, 2)).parts == () and len(derive(shared, share=(1, 2)).parts) == 1


def test_checks_that_are_missing_are_shared_too(tmp_path: Path) -> None:
    path = zoo_of(tmp_path / "zoo", (3, 1, 2))
    derive(path, certify="none")
    assert [derive(path, certify="all", share=(number, 2)).checked_later for number in (0, 1)] == [5, 1]
    assert ckptzoo.open(path).variant_metadata("canonical")["certified"].null_count == 0


@pytest.mark.parametrize("text", ["", "1", "4/4", "-1/2", "1/2/3", "a/b", "0/0", "²/4"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(ZooError, match="expected I/N with I from 0 to N - 1"):
        parse_share(text)
