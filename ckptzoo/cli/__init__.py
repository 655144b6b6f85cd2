"""The command line: one command, one call."""

import os
import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and end the process with its exit code, as listed in ``ckptzoo --help``.

    SIGTERM, by which batch systems end a job, is Ctrl-C: files that are begun are removed.

    The interpreter is not taken apart first: everything is written and flushed by then, and Arrow's threads now and
    then abort the process during it (apache/arrow issue 34314), which would spoil the exit code.
    """
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        from ckptzoo.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    except SystemExit as end:
        # as Python ends for SystemExit: None is 0, a number itself, and any other value 1
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 4  # a full disk or a closed pipe, as of any OSError: see exits.py
    os._exit(code)
