"""Streams hand out their batches in every form: the same weights as without one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import ckptzoo
from ckptzoo import learning
from ckptzoo.learning.forms import GraphForm, TokensForm, form_of

MEMBERS = Path(__file__).parents[3] / "cards/mnist-optunet"
SETTINGS = {"target": "test_accuracy", "augment": learning.Augment(scales=0.3), "seed": 3, "batch_size": 32}


@pytest.fixture(scope="module")
def zoo():
    return ckptzoo.open(MEMBERS)[:64]


def equal(found, expected):
    return all(np.array_equal(np.asarray(found[name]), np.asarray(expected[name])) for name in expected)


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("name", ["flat", "tokens", "graph"])
def test_batches_in_a_form_hold_the_weights_of_the_stream(zoo, name, device):
    form = form_of(name, zoo.arch, zoo.symmetry)
    plain = learning.stream(zoo, views=2, device=device, **SETTINGS)
    encoded = learning.stream(zoo, views=2, form=name, device=device, **SETTINGS)
    for one, other in zip(encoded, plain, strict=True):
        assert one.ids == other.ids and len(one.x) == 2
        assert all(equal(form.decode(view), expected) for view, expected in zip(one.x, other.x, strict=True))


def test_graphs_come_through_workers_of_a_data_loader(zoo):
    form = GraphForm(zoo.arch, zoo.symmetry)
    loader = DataLoader(learning.to_torch(zoo, form=form, **SETTINGS), batch_size=None, num_workers=2)
    found = {id: row for batch in loader for id, row in zip(batch.ids, batch.x.edge_attr, strict=True)}
    expected = learning.stream(zoo, form=form, device="cpu", **SETTINGS)
    count = 0
    for batch in expected:
        assert torch.equal(torch.stack([found[id] for id in batch.ids]), batch.x.edge_attr)
        count += len(batch)
    assert count == len(found) == 64


def test_tokens_of_another_size_are_passed_as_a_form(zoo):
    batch = next(iter(learning.stream(zoo, form=TokensForm(zoo.arch, 9), **SETTINGS)))
    assert batch.x.tokens.shape[2] == 9
