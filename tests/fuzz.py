"""Coverage-guided fuzzing of what meets strangers' bytes: ``python -m tests.fuzz NAME --minutes 60``.

Needs atheris (``pip install atheris``). A fault ends the run with a traceback, and the input is in a file ``crash-...``
in the current folder; ``python -m tests.fuzz NAME FILE`` parses it again. ``tests/refuse/test_fuzz_targets.py`` has the
short form.
"""

import argparse
import sys
from pathlib import Path


def main() -> None:
    """Fuzz one parser, or parse files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of a target in tests/support/fuzz_targets.py")
    parser.add_argument("files", nargs="*", type=Path, help="inputs to be parsed instead")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--corpus", type=Path, help="folder in which inputs that reach new code are kept")
    chosen = parser.parse_args()

    import atheris

    with atheris.instrument_imports(include=["ckptzoo"], enable_loader_override=False):
        from tests.support.fuzz_targets import attempt, targets

        target = targets()[chosen.name]
    for path in chosen.files:
        attempt(target, path.read_bytes())
    if chosen.files:
        return
    folder = chosen.corpus or Path(f"fuzz-{chosen.name}")
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (folder / f"seed-{number}").write_bytes(seed)
    options = [
        f"-max_total_time={int(60 * chosen.minutes)}",
        "-timeout=20",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
    ]
    longest = 2 * max(map(len, target.seeds)) + 1000
    atheris.Setup([sys.argv[0], str(folder), f"-max_len={longest}", *options], lambda data: attempt(target, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
