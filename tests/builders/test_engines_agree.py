"""Whichever engine trains them, networks end up equally good."""

import numpy as np
import pytest

from builders import engines, sources
from builders.recipe import Recipe
from builders.train import open_trainer
from tests.support.effort import ALL, examples

DIGITS = Recipe.load("digits-optunet")
MEMBERS = {"single": 2, "general": 4, "optunet": examples(16, 8), "compiled": examples(96, 32)}
"""As many as each can train in a few seconds."""


@pytest.mark.exhaustive
def test_accuracies_at_the_end_have_one_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = pytest.importorskip("scipy.stats")
    monkeypatch.delenv("CKPTZOO_DATA", raising=False)
    source, found = sources.load(DIGITS), dict[str, np.ndarray]()
    for name in engines.usable(DIGITS):
        if name in ("single", "general") and not ALL:
            continue  # the slowest; their steps are compared with the others' one by one in test_trainer.py
        with open_trainer(DIGITS, source, engine=name) as trainer:
            state = trainer.start(range(1000, 1000 + MEMBERS[name]))
            trainer.advance(state, DIGITS.steps)
            found[name] = trainer.measure(state.weights)["test_accuracy"]
    last = found[engines.fastest(DIGITS)]
    assert 0.9 < last.mean() < 0.95 and last.std() < 0.05
    for name, accuracies in found.items():
        assert stats.ks_2samp(accuracies, last).pvalue > 0.01, name
