"""Builds that print nothing, stop early, or train a small residual network on the images of files."""

import dataclasses
import io
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

import builders.build
import builders.units
from builders.recipe import Recipe
from ckptzoo.image_sets import lookup
from tests.support import image_set_files as made

QUIET = Console(file=io.StringIO())
COLOUR = dataclasses.replace(
    Recipe.load("cifar10-resnet18"),
    name="colour",
    architecture="resnet8-conv-10",
    train=15,
    test=4,
    batch=4,
    epochs=2,
    milestones=(1,),
    ood=None,
)
"""A ResNet with BatchNorm on the colour images of ``small_cifar10``."""


@contextmanager
def small_cifar10(folder: Path) -> Iterator[Path]:
    """Write files of a few images, which are known as CIFAR-10 within the block."""
    made.write_binary(folder / "cifar-10-batches-bin", 10, made.cifar_arrays(10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(lookup.KNOWN, "cifar10", made.small("cifar10"))  # type: ignore[arg-type]
        yield folder


@contextmanager
def _impatient() -> Iterator[Callable[[], bool]]:
    """Take the place of ``catch_stop_signals``: the second time that a build asks, it is to stop."""
    calls = itertools.count()
    yield lambda: next(calls) == 1


@contextmanager
def stopped_soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let builds within the block ask after every step, and be stopped the second time."""
    with monkeypatch.context() as patch:
        patch.setattr(builders.build, "catch_stop_signals", _impatient)
        patch.setattr(builders.units, "_SPAN_SECONDS", 1e-9)
        yield
