"""The error by which an untrusted file is refused, and the check of a tensor's name."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NoReturn

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.schema.architecture import MAX_NAME
from ckptzoo.text import excerpt

SAVE_AGAIN = "Save the state dict again with safetensors.torch.save_file or torch.save."
"""The next step where the message names no other."""


class NoNetworkError(IntegrityError):
    """A file that was read to its end and holds no network, nor any other weights."""


def reject(location: str, what: str, expected: str, got: object, next_step: str = SAVE_AGAIN) -> NoReturn:
    """Refuse a file: one problem, with untrusted text made harmless."""
    raise IntegrityError(Problem(excerpt(location, 1000), what, expected, excerpt(got), next_step))


def reject_without_network(location: str, got: object, next_step: str) -> NoReturn:
    """Refuse a file that holds no network, nor any other weights."""
    problem = Problem(excerpt(location, 1000), "content", "a state dict: names and tensors", excerpt(got), next_step)
    raise NoNetworkError(problem)


def with_next_step(problems: Iterable[Problem], next_step: str = SAVE_AGAIN) -> IntegrityError:
    """Return the same problems with another next step."""
    return IntegrityError([replace(problem, next_step=next_step) for problem in problems])


def name_error(name: object) -> str | None:
    """Return what is wrong with the name of a tensor, or None."""
    if not isinstance(name, str) or not name:
        return f"a {type(name).__name__}" if not isinstance(name, str) else "an empty name"
    if len(name) > MAX_NAME:
        return f"{len(name)} characters"
    # safetensors keeps the file's own metadata under this name.
    return None if name.isprintable() and name != "__metadata__" else ascii(name)
