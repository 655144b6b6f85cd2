"""Maps the facts of a checkpoint, whatever the program that wrote them calls them, to columns of a zoo's rows."""

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ckptzoo.hub.untrusted.runs import facts_of, identifier, run_of, step_of

_NAMES = {
    "claimed_test_accuracy": ("test_accuracy", "test_acc", "accuracy_test", "acc_test", "test_acc1", "test_top1"),
    "claimed_test_loss": ("test_nll", "nll_test", "test_cross_entropy", "test_loss", "loss_test"),
    "seed": ("seed", "random_seed", "manual_seed", "rng_seed", "model_seed", "ss_seed"),
    "wall_seconds": ("time_total_s", "time_total"),
    "dataset": ("dataset", "dataset_name"),
    # "epochs" is how long a run was to be as often as how long it was
    "epoch": ("epoch", "current_epoch", "epochs_trained", "meta_epoch", "ss_epoch"),
}
"""Columns, and what programs call them, the likeliest first, with other signs than letters and digits as ``_``.

Training figures are means during an epoch, with dropout, and the best of a training may be that of other weights.
"""
_CROSS_ENTROPIES = ("test_nll", "nll_test", "test_cross_entropy")
"""Names that say which loss it is; others may be with smoothed labels, sums, or of another loss."""
_WITHIN = ("claimed_test_accuracy", "claimed_test_loss")
"""Columns that are also found within other facts, as ``metrics.test_acc``."""
_OF_ITSELF = {
    "metric", "metrics", "result", "results", "eval", "evaluation", "evaluations", "stats", "statistics", "summary",
    "log", "logs", "logged", "score", "scores", "performance", "final", "last", "end", "run", "model", "info", "meta",
    "metadata", "measured", "test", "facts", "extra", "checkpoint", "config", "cfg", "params", "settings", "experiment",
}  # fmt: skip
"""Words around a figure that leave it one of these weights on the plain test set; under attack, of an average or the
best of a training (``adv_test_acc``, ``ema.test_acc``) it is another figure."""
_SETTINGS = {
    "config", "cfg", "conf", "args", "hparams", "hyper_parameters", "hyperparameters", "options", "settings", "params",
    "training_args", "train_config", "init_args", "meta",
}  # fmt: skip
"""Keys of settings in the files of programs; those of one run are at most one seed and one data set."""
_OF_SETTINGS = ("seed", "dataset")
_MAX_NUMBER = 40
"""Characters of a number."""


def columns_of(facts: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return the facts that have a column: by column the fact's name and its value, accuracies as they are written.

    Facts within others have dotted names.

    >>> columns_of({"Test-Acc": "63.2", "args.seed": 3, "epoch": 2, "best_test_acc": 0.9})
    {'claimed_test_accuracy': ('Test-Acc', 63.2), 'epoch': ('epoch', 2.0), 'seed': ('args.seed', 3)}
    """
    candidates = [(*hit, at, name) for at, name in enumerate(facts) for hit in _meanings(name)]
    found: dict[str, tuple[str, Any]] = {}
    for column, _, _, name in sorted(candidates):
        if column not in found and (value := _value(column, facts[name])) is not None:
            found[column] = name, value
    return found


@lru_cache(maxsize=4096)
def _meanings(name: str) -> tuple[tuple[str, int], ...]:
    """Return the columns that a fact of a name may be, each with a rank: the lower, the likelier."""
    plain, made = _plain(name), list[tuple[str, int]]()
    settings, _, inside = name.partition(".")
    for column, words in _NAMES.items():
        for rank, word in enumerate(words):
            if plain == word:
                made.append((column, 2 * rank))
            elif column in _WITHIN and plain.endswith(f"_{word}") and _OF_ITSELF.issuperset(_words_before(plain, word)):
                made.append((column, 2 * rank + 1))
            elif column in _OF_SETTINGS and settings in _SETTINGS and _plain(inside) == word:
                # of several settings the first, which are those nearest to the checkpoint
                made.append((column, 2 * len(words)))
    return tuple(made)


def _words_before(plain: str, word: str) -> list[str]:
    return plain.removesuffix(f"_{word}").split("_")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _value(column: str, value: Any) -> Any:
    """Return a fact as a value of its column; None where it is none."""
    if column == "dataset":
        return value if isinstance(value, str) else None
    if isinstance(value, str):  # all facts of a safetensors file are texts
        value = _number(value)
    if column == "seed":
        return value if type(value) is int and -(2**63) <= value < 2**63 else None
    # integers above 2**53 are not exact in float64
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > 2**53:
        return None
    return float(value) if value >= 0 else None


def _number(text: str) -> Any:
    if len(text) > _MAX_NUMBER or "_" in text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def claims(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a test set among what a file holds beside its tensors, as columns; accuracies as fractions.

    >>> claims({"test_acc": 0.5, "metrics.test_loss": 1.5, "best_test_acc": 0.9}), claims({"test/acc": "63.2"})
    ({'claimed_test_accuracy': 0.5, 'claimed_test_loss': 1.5}, {'claimed_test_accuracy': 0.632})
    """
    found = {column: value for column, (_, value) in columns_of(facts).items() if column in _WITHIN}
    accuracy = found.get("claimed_test_accuracy", 0.0)
    if accuracy > 100:
        del found["claimed_test_accuracy"]
    elif accuracy > 1:  # fractions are at most 1
        found["claimed_test_accuracy"] = round(accuracy / 100, 12)
    return found


def names_cross_entropy(name: str) -> bool:
    """Whether a fact of this name is the mean cross entropy in nats, and not just some loss."""
    return _plain(name).endswith(_CROSS_ENTROPIES)


def own_columns(path: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns from a file's facts, else its path or name: member, step, epoch, seed, claims."""
    run = run_of(path)
    columns: dict[str, Any] = dict(claims(facts))
    if run.is_part and run.member:
        columns["member"] = identifier(run.member.replace("/", "-"))
    found = {column: value for column, (_, value) in columns_of(facts).items() if column in ("epoch", "seed")}
    by_path = {"epoch": run.epoch, "seed": facts_of(path).get("seed")}
    columns |= {column: value for column, value in (by_path | found).items() if value is not None}
    step = step_of(facts)
    if step is None:
        step = run.step
    if step is not None:
        columns["step"] = step
    return columns
