"""The client library without progress bars and warnings, for programs with messages of their own: ``quietly``."""

import contextlib
from collections.abc import Iterator

from ckptzoo.errors import require


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence the client library's bars and warnings about failed attempts inside the context.

    Both are settings of the whole process, so this is for programs such as the command line, and not for libraries.
    """
    utils = require("huggingface_hub.utils", "hub")
    level, has_bars = utils.logging.get_verbosity(), not utils.are_progress_bars_disabled()
    utils.logging.set_verbosity_error()
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.logging.set_verbosity(level)
        if has_bars:
            utils.enable_progress_bars()
