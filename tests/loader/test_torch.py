"""The dataset for torch's DataLoader: workers that live on, and what a state may be."""

from multiprocessing.reduction import ForkingPickler

import pytest
from torch.utils.data import DataLoader

import ckptzoo
from ckptzoo.errors import ZooError
from tests.support.derived_zoos import run, zoo_of
from tests.support.effort import ALL


@pytest.fixture
def zoo(make_zoo):
    return ckptzoo.open(make_zoo((9, 4))[0])


def test_what_needs_torch_says_how_to_install_it(tmp_path):
    program = """
import sys
sys.modules["torch"] = None
import ckptzoo
from ckptzoo import archs
from ckptzoo.errors import MissingExtraError
from ckptzoo.symmetry import trace
zoo = ckptzoo.open(sys.argv[1])
checkpoint = zoo[0]
for work in (
    checkpoint.model,
    checkpoint.state_dict,
    zoo.ensemble,
    zoo.to_torch,
    lambda: zoo.stream(device="cpu"),
    lambda: trace(None, None),
    lambda: archs.get("optunet"),
    lambda: archs.get("gaussian-optunet"),
    lambda: archs.stacked("optunet", (1, 28, 28)),
):
    try:
        work()
    except MissingExtraError as error:
        assert str(error) == "torch is not installed. Install it with: pip install 'ckptzoo[torch]'."
    else:
        raise SystemExit("no error")
"""
    process = run(program, str(zoo_of(tmp_path / "zoo", (1,))))
    _, errors = process.communicate()
    assert process.returncode == 0, errors


def ids_of(batches):
    return [name for batch in batches for name in batch.ids]


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.exhaustive)])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_persistent_workers_see_epochs_and_states(zoo, context):
    dataset = zoo.to_torch("flag", batch_size=2, shuffle="global", seed=7)
    count = 2 if context == "fork" or ALL else 1  # each that is spawned imports torch
    workers = {"num_workers": count, "persistent_workers": True, "multiprocessing_context": context}
    loader = DataLoader(dataset, batch_size=None, **workers)
    expected = {}
    for epoch in (0, 1, 5):
        stream = zoo.stream("flag", batch_size=2, shuffle="global", seed=7)
        stream.set_epoch(epoch)
        dataset.set_epoch(epoch)
        batches = list(loader)
        expected[epoch] = ids_of(stream)
        assert ids_of(batches) == expected[epoch]
    assert len({tuple(found) for found in expected.values()}) == 3
    dataset.load_state_dict(batches[2].state)
    assert ids_of(loader) == expected[5][6:]


def test_states_hold_any_seed_and_epoch(zoo):
    dataset = zoo.to_torch("flag", shuffle=True, seed=2**64 - 1)
    dataset.set_epoch(2**63)
    state = dataset.state_dict()
    assert (state["seed"], state["epoch"], state["position"]) == (2**64 - 1, 2**63, 0)
    again = ForkingPickler.loads(ForkingPickler.dumps(dataset))
    assert again.state_dict() == state and ids_of(again) == ids_of(dataset)
    for epoch in (-1, 2**64):
        with pytest.raises(ZooError, match=r"epoch: expected 0 to 2\*\*64 - 1, got"):
            dataset.set_epoch(epoch)
    assert dataset.state_dict() == state
