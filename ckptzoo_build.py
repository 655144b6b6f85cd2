"""``ckptzoo-build``: ``python -m builders`` of this installation, from any folder."""

import sys


def main() -> int:
    """Run the command line and return its exit code, as listed in ``ckptzoo-build --help``."""
    from ckptzoo.checks import PROBLEM
    from ckptzoo.doctor.installation import builders_package

    found = builders_package()
    if found.outcome == PROBLEM:
        print(f"ckptzoo-build: error: builders: {found.detail}. {found.step}", file=sys.stderr)
        return 2
    from builders.cli.app import run

    return run(sys.argv[1:], program="ckptzoo-build")
