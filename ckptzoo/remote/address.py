"""Where a zoo may be, read from what a person typed."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from ckptzoo.errors import ZooError

_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_]|[-.](?![-.])){0,95}"
_REPO = re.compile(rf"(?P<repo>{_WORD}/{_WORD})(?<![-.])(?:@(?P<revision>[^\s@]+))?")
_HUB = re.compile(
    rf"(?P<repo>{_WORD}/{_WORD})(?<![-.])(?:@(?P<revision>refs/[^/@]+/[^/@]+|[^/@]+))?(?:/(?P<folder>.+?))?/?"
)
_PAGE = re.compile(
    rf"/datasets/(?P<repo>{_WORD}/{_WORD})(?<![-.])(?:/(?:tree|blob)/(?P<revision>[^/]+)(?:/(?P<folder>.+?))?)?/?"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://|::)")
_PAGES = ("huggingface.co", "hf.co", "www.huggingface.co")
_STEP = (
    "Write a folder, org/zoo, hf://datasets/org/zoo@revision, https://host/path/zoo, or an fsspec address such as "
    "s3://bucket/zoo."
)
MAIN = "main"
"""The revision of a repository where none is asked for."""


@dataclass(frozen=True)
class FolderAddress:
    """A folder of this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class HubAddress:
    """A dataset repository of the Hugging Face hub, or a folder in one."""

    repo: str
    revision: str = MAIN
    folder: str = ""

    def __str__(self) -> str:
        revision = "" if self.revision == MAIN else f"@{self.revision}"
        return f"hf://datasets/{self.repo}{revision}{self.folder and '/' + self.folder}"


@dataclass(frozen=True)
class WebAddress:
    """A folder of a static web server."""

    url: str

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True)
class FilesystemAddress:
    """A folder that fsspec can reach."""

    url: str

    def __str__(self) -> str:
        return self.url


Address = FolderAddress | HubAddress | WebAddress | FilesystemAddress


def candidates(text: str) -> tuple[Address, ...]:
    """Where the zoo of this address may be, in the order in which to look.

    ``org/zoo`` is a folder where there is one, else a repository of the hub; a path that is absolute, begins with a
    dot, or has not two words is a folder only. Nothing is looked up.

    Raises
    ------
    ZooError
        The address has no form that is known, or carries a password or a query, which would end up in messages.

    Notes
    -----
    Held by ``tests/remote/test_address.py``.
    """
    if not text.strip() or "\x00" in text:
        raise ZooError(f"{text!r}: address of a zoo: expected a place, got nothing. {_STEP}")
    scheme = _SCHEME.match(text)
    if scheme is None:
        folder = FolderAddress(Path(os.path.expanduser(text)))  # noqa: PTH111 (which leaves ~nobody as it is)
        matched = _REPO.fullmatch(text)
        return (folder, HubAddress(matched["repo"], matched["revision"] or MAIN)) if matched else (folder,)
    match scheme[0].lower():
        case "hf":
            return (_hub(text),)
        case "http" | "https":
            return (_web(text),)
        case _:
            return (FilesystemAddress(text.rstrip("/") if not text.endswith("://") else text),)


def repository(text: str) -> str:
    """``org/zoo`` of the address of a repository, in which it names no revision and no folder.

    Raises
    ------
    ZooError
        It is another address.
    """
    for place in candidates(text):
        if isinstance(place, HubAddress) and place.revision == MAIN and not place.folder:
            return place.repo
    raise ZooError(f"{text}: repository: expected org/zoo, got another address. Name a repository of a hub.")


def _hub(text: str) -> HubAddress:
    matched = (
        _HUB.fullmatch(unquote(text[len("hf://datasets/") :])) if text.lower().startswith("hf://datasets/") else None
    )
    if matched is None:
        raise ZooError(f"{text}: address of a zoo: expected hf://datasets/org/zoo@revision, got {text}. {_STEP}")
    return HubAddress(matched["repo"], matched["revision"] or MAIN, matched["folder"] or "")


def _web(text: str) -> Address:
    parts = urlsplit(text)
    if parts.username or parts.password or parts.query or parts.fragment or not parts.hostname:
        shown = urlunsplit((parts.scheme, parts.hostname or "", parts.path, "", ""))
        got = "more than that" if parts.hostname else "no host"
        raise ZooError(f"{shown}: address of a zoo: expected https://host/path, got {got}. {_STEP}")
    if parts.hostname in _PAGES and (matched := _PAGE.fullmatch(unquote(parts.path))):
        return HubAddress(matched["repo"], matched["revision"] or MAIN, matched["folder"] or "")
    return WebAddress(urlunsplit((parts.scheme.lower(), parts.netloc.lower(), parts.path.rstrip("/"), "", "")))
