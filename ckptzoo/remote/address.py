"""From an address that a person typed to the places where the zoo may be: ``candidates``."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from ckptzoo.errors import Problem, ZooError

# names as huggingface_hub.utils.validate_repo_id allows them: 96 characters, no "--" or "..", none of "-." at the ends
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_]|[-.](?![-.])){0,95}"
_REPO = re.compile(rf"(?P<repo>{_WORD}/{_WORD})(?<![-.])(?:@(?P<revision>[^\s@]+))?")
_HUB = re.compile(
    rf"(?P<repo>{_WORD}/{_WORD})(?<![-.])(?:@(?P<revision>refs/[^/@]+/[^/@]+|[^/@]+))?(?:/(?P<folder>.+?))?/?"
)
_PAGE = re.compile(
    rf"/datasets/(?P<repo>{_WORD}/{_WORD})(?<![-.])(?:/(?:tree|blob)/(?P<revision>[^/]+)(?:/(?P<folder>.+?))?)?/?"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://|::)")
# hosts whose pages are pages of repositories, so that an address can be copied from a browser
_PAGES = ("huggingface.co", "hf.co", "www.huggingface.co")
_STEP = (
    "Write a folder, org/zoo, hf://datasets/org/zoo@revision, https://host/path/zoo, or an fsspec address such as "
    "s3://bucket/zoo."
)
DATASETS, MODELS = "datasets", "models"
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
    """A repository of the Hugging Face hub, or a folder in one.

    ``kind`` is ``datasets`` or ``models``, as the hub's API calls them. Zoos are datasets.
    """

    repo: str
    revision: str = MAIN
    folder: str = ""
    kind: str = DATASETS

    def __str__(self) -> str:
        revision = "" if self.revision == MAIN else f"@{self.revision}"
        # addresses are unquoted when they are read
        folder = self.folder.replace("%", "%25")
        return f"hf://{self.page}{revision}{folder and '/' + folder}"

    @property
    def page(self) -> str:
        """The path of its page: models have no prefix."""
        return self.repo if self.kind == MODELS else f"{self.kind}/{self.repo}"


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
    """Return where the zoo of this address may be, in the order in which to look; nothing is looked up.

    ``org/zoo`` is a folder where there is one, else a repository of the hub; a path that is absolute, begins with a
    dot, or does not have two words is a folder only.

    Parameters
    ----------
    text
        an address as people write it.

    Raises
    ------
    ZooError
        The address has no known form, or carries a password or a query, which would appear in messages.

    Examples
    --------
    >>> [str(place) for place in candidates("lab/few")]
    ['lab/few', 'hf://datasets/lab/few']
    """
    if not text.strip() or "\x00" in text:
        raise ZooError(Problem(repr(text), "address of a zoo", "a place", "nothing", _STEP))
    scheme = _SCHEME.match(text)
    if scheme is None:
        folder = FolderAddress(Path(os.path.expanduser(text)))  # noqa: PTH111 (which leaves ~nobody as it is)
        matched = _REPO.fullmatch(text)
        return (folder, HubAddress(matched["repo"], matched["revision"] or MAIN)) if matched else (folder,)
    match scheme[0].lower():
        # schemes do not depend on case (RFC 3986, 3.1)
        case "hf":
            return (_hub(text),)
        case "http" | "https":
            return (_web(text),)
        case _:
            return (FilesystemAddress(text.rstrip("/") if not text.endswith("://") else text),)


def repository(text: str) -> str:
    """Return ``org/zoo`` of the address of a repository without revision and folder.

    Raises ZooError: it is another address.
    """
    for place in candidates(text):
        if isinstance(place, HubAddress) and place.revision == MAIN and not place.folder:
            return place.repo
    raise ZooError(Problem(text, "repository", "org/zoo", "another address", "Name a repository of a hub."))


def model_address(text: str) -> HubAddress:
    """Return the model repository of an address ``hf://org/model@revision/folder``.

    Raises ZooError: it is another address.
    """
    matched = _HUB.fullmatch(unquote(text[len("hf://") :])) if text.lower().startswith("hf://") else None
    if matched is None:
        step = "Write hf://datasets/org/name for a dataset, hf://org/name for a model."
        raise ZooError(Problem(text, "address of a repository", "hf://org/model@revision", text, step))
    return HubAddress(matched["repo"], matched["revision"] or MAIN, matched["folder"] or "", MODELS)


def _hub(text: str) -> HubAddress:
    matched = (
        _HUB.fullmatch(unquote(text[len("hf://datasets/") :])) if text.lower().startswith("hf://datasets/") else None
    )
    if matched is None:
        raise ZooError(Problem(text, "address of a zoo", "hf://datasets/org/zoo@revision", text, _STEP))
    return HubAddress(matched["repo"], matched["revision"] or MAIN, matched["folder"] or "")


def _web(text: str) -> Address:
    parts = urlsplit(text)
    # addresses are shown in messages and kept in the cache, which must hold no secrets
    if parts.username or parts.password or parts.query or parts.fragment or not parts.hostname:
        public = urlunsplit((parts.scheme, parts.hostname or "", parts.path, "", ""))
        got = "more than that" if parts.hostname else "no host"
        raise ZooError(Problem(public, "address of a zoo", "https://host/path", got, _STEP))
    if parts.hostname in _PAGES and (matched := _PAGE.fullmatch(unquote(parts.path))):
        return HubAddress(matched["repo"], matched["revision"] or MAIN, matched["folder"] or "")
    return WebAddress(urlunsplit((parts.scheme.lower(), parts.netloc.lower(), parts.path.rstrip("/"), "", "")))
