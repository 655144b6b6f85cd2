"""Exit codes: what each means, and which errors lead to it."""

from dataclasses import dataclass

from ckptzoo.errors import (
    AbsentError,
    IntegrityError,
    MissingExtraError,
    RemoteError,
    SpecError,
    SymmetryError,
    ZooError,
)


@dataclass(frozen=True)
class Outcome:
    """One way for a command to end."""

    code: int
    meaning: str
    errors: tuple[type[BaseException], ...] = ()


class InterruptedCommand(Exception):
    """Ctrl-C, with what to do next."""


# 2 is the code of click's UsageError; a shell reports 130, 128 + SIGINT, for what Ctrl-C ended; 70, below, is
# EX_SOFTWARE of sysexits.h
PROBLEMS, USAGE, INTERRUPTED = 1, 2, 130

OUTCOMES = (
    Outcome(0, "it is done, and nothing wrong was found"),
    Outcome(PROBLEMS, "problems were found"),
    Outcome(USAGE, "wrong usage, or no such zoo, checkpoint, column or variant", (ZooError, AbsentError)),
    Outcome(3, "a zoo, card or file cannot be read: damaged, or not what it should be", (IntegrityError, SpecError)),
    Outcome(
        4,
        "it cannot be done: unknown symmetries, a missing extra, a full disk",
        (SymmetryError, MissingExtraError, OSError, MemoryError),
    ),
    Outcome(5, "another machine refused, or gave no usable answer", (RemoteError,)),
    Outcome(70, "a mistake in ckptzoo itself", (Exception,)),
    Outcome(INTERRUPTED, "interrupted; nothing is left half-written", (KeyboardInterrupt,)),
)

_CODES = {error: outcome.code for outcome in OUTCOMES for error in outcome.errors}


def code_of(error: BaseException) -> int:
    """The exit code of an error: that of the nearest of its classes that is listed."""
    return next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)


def listed() -> str:
    """The table for ``ckptzoo --help``."""
    return "\n".join(f"  {outcome.code:>3}  {outcome.meaning}" for outcome in OUTCOMES)
