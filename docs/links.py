"""Asks for every address outside that a page names, for the files of the catalogue's commands and for every preprint.

``python docs/links.py`` needs a network, and is no part of the tests. It lists the addresses that are gone, and apart
from these the ones that could not be asked. Where there is no network it says so and lists every address. It exits with
1 if it lists any.
"""

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import requests

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("cards/**/README.md")]
_LINK = re.compile(r"\]\((https?://[^)\s]+)\)|<(https?://[^>\s]+)>|^\[[^\]]+\]: (https?://\S+)", re.MULTILINE)
_PREPRINT = re.compile(r"arXiv[: ](\d{4}\.\d{4,5})")
_COMMAND = re.compile(r"^ckptzoo (?:import|link) ((?:https|hf)://\S+)", re.MULTILINE)
_REPOSITORY = re.compile(r"hf://(?P<name>(?:datasets/)?[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?(?:/(?P<path>.+))?")
_ASKED_FIRST = 8
"""Addresses that are asked for at a time, and before all others to learn whether there is a network."""
_EXAMPLES = ("https://host/", "hf://org/", "hf://datasets/org/")
"""A placeholder for an address in a command."""


def addresses(text: str) -> Iterator[str]:
    """The links of a page, the pages of the preprints that it names, and the addresses that its commands import."""
    yield from ("".join(found) for found in _LINK.findall(text))
    yield from (f"https://arxiv.org/abs/{number}" for number in _PREPRINT.findall(text))
    yield from (web_address(found) for found in _COMMAND.findall(text) if not found.startswith(_EXAMPLES))


def web_address(address: str) -> str:
    """The address at which a browser finds a repository of the hub, or a file or folder in it; others as they are."""
    found = _REPOSITORY.fullmatch(address)
    if found is None:
        return address
    path = found["path"] or ""
    kind = "resolve" if PurePosixPath(path).suffix else "tree"
    return f"https://huggingface.co/{found['name']}/{kind}/{found['revision'] or 'main'}/{path}".rstrip("/")


def answer(address: str) -> tuple[bool, str]:
    """Whether an address could be asked, and what is wrong with it, or nothing."""
    try:
        with requests.get(address, timeout=30, stream=True, headers={"User-Agent": "ckptzoo-links"}) as found:
            return True, "" if found.ok else f"status {found.status_code}"
    except requests.RequestException as error:
        return False, type(error).__name__


def main() -> int:
    """Print every address that is gone or could not be asked, and the pages that name it."""
    named: dict[str, set[str]] = {}
    for page in PAGES:
        for address in addresses(page.read_text()):
            named.setdefault(address, set()).add(page.relative_to(ROOT).as_posix())
    # one of each host, so that a machine without a network does not wait for hundreds of addresses
    first = list({urlsplit(address).netloc: address for address in named}.values())[:_ASKED_FIRST]
    with ThreadPoolExecutor(_ASKED_FIRST) as workers:
        found = dict(zip(first, workers.map(answer, first), strict=True))
        if not any(asked for asked, _ in found.values()):
            print(f"No network: none of {len(first)} hosts answered. These {len(named)} addresses were not checked:")
            for address in sorted(named):
                print(f"{address} in {', '.join(sorted(named[address]))}")
            return 1
        others = [address for address in named if address not in found]
        found |= dict(zip(others, workers.map(answer, others), strict=True))
    gone = {address: wrong for address, (asked, wrong) in found.items() if asked and wrong}
    open_ones = {address: wrong for address, (asked, wrong) in found.items() if not asked}
    for title, listed in (("gone", gone), ("not checked", open_ones)):
        for address, wrong in sorted(listed.items()):
            print(f"{title}: {address}: {wrong}; in {', '.join(sorted(named[address]))}")
    print(f"{len(named)} addresses, {len(gone)} gone, {len(open_ones)} not checked")
    return bool(gone or open_ones)


if __name__ == "__main__":
    sys.exit(main())
