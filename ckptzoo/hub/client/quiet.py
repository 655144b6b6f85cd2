"""The client library within a program that has its own way to say what goes on."""

import contextlib
from collections.abc import Iterator

from ckptzoo.errors import MissingExtraError


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """While this lasts, the client library draws no bars and logs no warnings of what it tries again.

    Notes
    -----
    Both are settings of the whole process, so this is for programs, as the command line, and not for libraries.
    """
    try:
        from huggingface_hub.utils import (
            are_progress_bars_disabled,
            disable_progress_bars,
            enable_progress_bars,
            logging,
        )
    except ImportError:
        raise MissingExtraError("huggingface_hub", "hub") from None

    level, drawn = logging.get_verbosity(), not are_progress_bars_disabled()
    logging.set_verbosity_error()
    disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if drawn:
            enable_progress_bars()
