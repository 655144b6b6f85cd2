"""``python -m builders``."""

import sys

from builders.cli.app import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
