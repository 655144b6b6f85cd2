"""Tells what looks like a state dict and is no network: states of training, statistics, masks, figures, moments."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptzoo.format.header import numpy_dtype
from ckptzoo.hub.untrusted.layer_trees import LEAF_NAMES
from ckptzoo.schema.architecture import ITEMSIZE

_TRAINING = "the state of an optimiser or a scheduler"
_STATISTICS = "means and deviations, and no weights"
MOMENTS = "the moments of a posterior, and no weights"
_FIGURES = "figures or data, and no weights"
_INTEGERS = "integers alone, as the state of a random generator"
MASK = "zeros and ones alone, as a mask"

_TRAINING_WORDS = """
    exp_avg exp_avg_sq max_exp_avg_sq exp_inf momentum_buffer square_avg grad_avg acc_delta nu fp32_flat_groups
    fp32_from_fp16 base_lrs last_epoch
"""
"""Words in states of torch.optim, optax, the fused optimisers of apex and DeepSpeed, and of torch's schedulers."""
_MOMENT_WORDS = "sq_mean square_mean cov_mat_sqrt w2_avg pre_d d_hat theta_swa sigma_diag cov covariance"
"""Words in SWAG as its authors, MultiSWAG and torch-uncertainty save it, and in laplace-torch."""
_FIGURE_WORDS = """
    results timesteps ep_lengths successes loss losses train_loss test_loss val_loss valid_loss acc accuracy
    accuracies train_acc test_acc val_acc train_accuracy test_accuracy val_accuracy train_losses test_losses
    val_losses errors error rewards returns scores score metrics history curve lr lrs learning_rate time times
    epoch epochs iteration iterations steps logits probs probabilities predictions preds outputs labels targets
    images inputs features embeddings cv_results_ x_train y_train x_test y_test x_val y_val train_x train_y
    test_x test_y
"""
"""Words in evaluations of stable-baselines3, curves of training, data sets and outputs."""
_STATISTIC_WORDS = """
    obs_var var variance count running_var running_count num_batches_tracked epsilon n min max var_ scale_
    n_samples_seen_ feature_names_in_
"""
"""Words in wrappers of reinforcement learning that normalise observations, and in a BatchNorm alone."""
_KINDS: tuple[tuple[str, frozenset[str], frozenset[str]], ...] = tuple(
    (what, frozenset(certain.split()), frozenset(f"{certain} {others}".split()))
    for what, certain, others in (
        (_TRAINING, _TRAINING_WORDS, "sum step prev eta ax mu count trace _step_count _last_lr"),
        (
            MOMENTS,
            _MOMENT_WORDS,
            "mean w_avg n_models mean_avg deviations num_models_averaged h prior_precision sigma_noise temperature",
        ),
        (_STATISTICS, "mean std running_mean obs_mean obs_std x_mean x_std y_mean y_std mean_", _STATISTIC_WORDS),
        (_FIGURES, _FIGURE_WORDS, "ids indices mean std n x y"),
    )
)
"""Last words of names: a state dict is no network where all of them are of one kind, and one of them is certain."""
_MASKS = re.compile(r"(^|[._])masks?(_\w+)?$")
_FIRST, _FEW_NUMBERS = 64, 1000
_FLOATS = {name for name in ITEMSIZE if name == "bfloat16" or numpy_dtype(name).kind == "f"}


def other_content(dtypes: Mapping[str, str]) -> str | None:
    """Tell from names and dtypes what a state dict is where it is no network; None where it may be one.

    Other dtypes than those of zoos are taken for floats, and refused elsewhere.

    >>> other_content({"mean": "float64", "var": "float64"})
    'means and deviations, and no weights'
    >>> other_content({"0.weight": "float32", "0.running_mean": "float32"})
    """
    last = {_last_word(name) for name in dtypes}
    if all(dtype in ITEMSIZE and dtype not in _FLOATS for dtype in dtypes.values()) and not last & LEAF_NAMES:
        return MASK if all(dtype == "bool" for dtype in dtypes.values()) else _INTEGERS
    if last == {"x", "y"} and all("." not in name for name in dtypes):
        return _FIGURES
    for what, certain, words in _KINDS:
        if last & certain and last <= words:
            return what
    # a SWAG module keeps the moments of each tensor beside it
    if any(word.endswith(("_sq_mean", "_cov_mat_sqrt")) for word in last):
        return MOMENTS
    return MASK if all(_MASKS.search(name.lower()) for name in dtypes) else None


def is_mask(
    arrays: Sequence[NDArray[Any]], name: str, loaded: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray
) -> bool:
    """Tell whether arrays are a mask: zeros and ones alone, and both of them, in more than a thousand numbers.

    In a file whose name says mask they may be fewer, and all ones, as before the first pruning. ``loaded`` gives the
    numbers of arrays.
    """
    # nearly all weights are told from a mask by their first number
    if arrays and arrays[0].size and loaded(arrays[0].reshape(-1)[:1])[0] not in (0, 1):
        return False
    is_named = "mask" in name.lower()
    if not is_named and sum(array.size for array in arrays) <= _FEW_NUMBERS:
        return False
    has_zeros, has_ones = is_named, False
    for array in arrays:
        flat = array.reshape(-1)
        for piece in map(loaded, (flat[:_FIRST], flat[_FIRST:])):
            zeros, ones = piece == 0, piece == 1
            if not bool((ones | zeros).all()):
                return False
            has_zeros, has_ones = has_zeros or bool(zeros.any()), has_ones or bool(ones.any())
    return has_zeros and has_ones


def has_statistics(names: Iterable[str]) -> bool:
    """Tell whether names are those of a network that counted batches, which a mask has not."""
    return any(name.endswith(("running_var", "num_batches_tracked")) for name in names)


def _last_word(name: str) -> str:
    return name.rpartition(".")[2].lower()
