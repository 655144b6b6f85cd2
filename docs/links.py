"""Asks for every address outside that a page names, and for the page of every preprint; exits with 1 if one is missing.

``python docs/links.py`` needs a network, and is no part of the tests.
"""

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("cards/*/README.md")]
_LINK = re.compile(r"\]\((https?://[^)\s]+)\)|<(https?://[^>\s]+)>|^\[[^\]]+\]: (https?://\S+)", re.MULTILINE)
_PREPRINT = re.compile(r"arXiv[: ](\d{4}\.\d{4,5})")


def addresses(text: str) -> Iterator[str]:
    """The links of a page, and the addresses of the preprints that it names."""
    yield from ("".join(found) for found in _LINK.findall(text))
    yield from (f"https://arxiv.org/abs/{number}" for number in _PREPRINT.findall(text))


def problem(address: str) -> str | None:
    """What is wrong with an address; None where it answers."""
    try:
        with requests.get(address, timeout=30, stream=True, headers={"User-Agent": "ckptzoo-links"}) as answer:
            return None if answer.ok else f"status {answer.status_code}"
    except requests.RequestException as error:
        return type(error).__name__


def main() -> int:
    """Print every address that does not answer, and the pages that name it."""
    named: dict[str, list[str]] = {}
    for page in PAGES:
        for address in addresses(page.read_text()):
            named.setdefault(address, []).append(page.relative_to(ROOT).as_posix())
    with ThreadPoolExecutor(8) as workers:
        found = dict(zip(named, workers.map(problem, named), strict=True))
    missing = {address: wrong for address, wrong in found.items() if wrong is not None}
    for address, wrong in sorted(missing.items()):
        print(f"{address}: {wrong}; in {', '.join(sorted(set(named[address])))}")
    print(f"{len(named)} addresses, {len(missing)} without an answer")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
