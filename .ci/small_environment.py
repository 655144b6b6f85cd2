"""Make the environment of ``make quickstart``: little beyond torch, whose size is said first where it is not small."""

import json
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[1]
EXTRAS = ("torch", "plot", "stats", "page")
INSTALL = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt"))
SMALL = 300e6
"""Bytes. A build of torch for processors alone is about 200 MB as a wheel, one for CUDA ten times as much."""


def make(folder: Path) -> None:
    """Make it, or complete it; a build of torch that is there already stays."""
    python = str(folder / "bin/python")
    if not Path(python).exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    torch = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["torch"]
    asked = subprocess.run(
        [python, *INSTALL, "--dry-run", "--report", "-", *torch], check=True, stdout=subprocess.PIPE, text=True
    )
    wheels: list[dict[str, Any]] = json.loads(asked.stdout)["install"]
    with ThreadPoolExecutor(8) as pool:
        nbytes = sum(pool.map(download_bytes, (item["download_info"]["url"] for item in wheels)))
    if nbytes > SMALL:
        print(
            f"torch, as pip finds it here, takes {nbytes / 1e9:.1f} GB to download and about twice as much on the disk."
            f"\nFor a build of 0.2 GB, for processors alone: stop this, make {folder} and install torch there as"
            f"\nhttps://pytorch.org/get-started/locally/ says, then repeat.",
            flush=True,
        )
    print(f"Installing into {folder} from constraints.txt", flush=True)
    # not compiled: most modules are never imported, and the others are compiled when they are
    command = [python, *INSTALL, "--no-compile", "-e", f"{ROOT}[{','.join(EXTRAS)}]"]
    subprocess.run(command, check=True)


def download_bytes(url: str) -> int:
    """How large a wheel is, on a server or on this disk; 0 where that cannot be known."""
    try:
        with urlopen(Request(url, method="HEAD"), timeout=10) as answer:
            return int(answer.headers["Content-Length"] or 0)
    except OSError:
        return 0


if __name__ == "__main__":
    make(Path(sys.argv[1]))
