"""The command line: one command, one call."""

import sys


def main() -> None:
    """Run the command line and end the process with its exit code, as listed in ``ckptzoo --help``."""
    try:
        from ckptzoo.cli.run import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
