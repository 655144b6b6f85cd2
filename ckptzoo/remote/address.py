"""From an address that a person typed to the places where the zoo may be: ``candidates``."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from ckptzoo.environment import s3_endpoint
from ckptzoo.errors import Problem, ZooError
from ckptzoo.text import printable

# names as huggingface_hub.utils.validate_repo_id allows them: 96 characters, no "--" or "..", none of "-." at the ends
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_]|[-.](?![-.])){0,95}"
_REPO = re.compile(rf"(?P<repo>{_WORD}/{_WORD})(?<![-.])(?:@(?P<revision>[^\s@]+))?")
_HUB = re.compile(
    rf"(?P<repo>{_WORD}/{_WORD})(?<![-.])(?:@(?P<revision>refs/[^/@]+/[^/@]+|[^/@]+))?(?:/(?P<folder>.+?))?/?"
)
_PAGE = re.compile(
    rf"/datasets/(?P<repo>{_WORD}/{_WORD})(?<![-.])(?:/(?:tree|blob)/(?P<revision>[^/]+)(?:/(?P<folder>.+?))?)?/?"
)
_REF = re.compile(r"refs/[^/@]+/[^/@]+")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://|::)")
# hosts whose pages are pages of repositories, so that an address can be copied from a browser
_PAGES = ("huggingface.co", "hf.co", "www.huggingface.co")
_STEP = (
    "Write a folder, org/zoo, hf://datasets/org/zoo@revision, https://host/path/zoo, or an fsspec address such as "
    "s3://bucket/zoo."
)
_FILE_STEP = "Write https://host/path/file, hf://org/model@commit/path/file or s3://bucket/path/file."
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
"""The name of a commit: sha1 or sha256."""
# the rule of Amazon S3; a dot in a name is allowed there too, but fits no certificate of *.s3.amazonaws.com
_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_PRINTABLE = re.compile(r"[!-\[\]-~]+")
"""The characters of an address by RFC 3986, and a few more, but no blanks, controls and backslashes."""
_QUERY = ("download", "raw", "versionId")
"""Parts of a query that hold no secret. All others are refused: every storage has its own names for signatures."""
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
        # addresses are unquoted when they are read; behind another slash than that of refs a folder would begin
        own = self.revision.replace("%", "%25")
        own = own if _REF.fullmatch(own) else own.replace("/", "%2F")
        revision = "" if self.revision == MAIN else f"@{own}"
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


def file_address(text: str) -> HubAddress | WebAddress:
    """Return where a file is that a zoo refers to: in a commit of a hub's repository, or on a web server.

    The address is kept in the zoo and appears in messages, so it has no password, signature or token, and on a hub it
    has the commit, because branches move. A file of ``s3://`` is asked for by https and without credentials: an address
    that somebody else wrote must not read what only the reader may read.

    Raises ZooError: it is another address. The message has no more of it than its host and path.

    >>> str(file_address("s3://bucket/a b.npy")), file_address("https://host/x.npy").url
    ('https://bucket.s3.amazonaws.com/a%20b.npy', 'https://host/x.npy')
    """
    if not text.isprintable():
        raise _no_file(printable(text), "printable characters", "others")
    matched = _SCHEME.match(text)
    scheme = matched[0].lower() if matched and "::" not in text.partition("/")[0] else ""
    rest = text[len(scheme) + len("://") :]
    if scheme == "hf":
        return _hub_file(text, rest)
    if scheme == "s3":
        bucket, _, key = rest.partition("/")
        if not _BUCKET.fullmatch(bucket) or not key:
            raise _no_file(text, "s3://bucket/path/file", "another, or a bucket whose name has dots")
        endpoint = s3_endpoint()
        place = f"{endpoint}/{bucket}" if endpoint else f"https://{bucket}.s3.amazonaws.com"
        return WebAddress(f"{place}/{quote(key)}")
    if scheme in ("http", "https"):
        return WebAddress(_web_file(text))
    raise _no_file(text, "https://, hf:// or s3://", f"{scheme}://" if scheme else "another")


def _hub_file(text: str, path: str) -> HubAddress:
    if not unquote(path).isprintable():
        raise _no_file(text, "printable characters", "others")
    if path.startswith("buckets/"):
        step = "Copy the file to a repository, which has commits, or pull it to this machine."
        raise ZooError(Problem(text, "address of a file", "one whose content is fixed by a commit", "a bucket", step))
    kind, path = (DATASETS, path.removeprefix("datasets/")) if path.startswith("datasets/") else (MODELS, path)
    found = _on_hub(_HUB, path, kind)
    # ".." would lead to other addresses of the hub, which get the token too
    if found is None or not found.folder or not {"", ".", ".."}.isdisjoint(found.folder.split("/")):
        raise _no_file(text, "hf://org/model@commit/path/file", "another")
    if not _COMMIT.fullmatch(found.revision):
        got = found.revision if "@" in path else "none"
        step = "Write the commit, of 40 digits, that the branch or tag is now: the file behind a name may change."
        raise ZooError(Problem(text, "revision", "a commit", got, step))
    return found


def _web_file(text: str) -> str:
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 (which is read when it is asked for)
    except ValueError:
        raise _no_file(text.partition("?")[0].rpartition("@")[2], "https://host/path/file", "another") from None
    public = urlunsplit((parts.scheme.lower(), parts.netloc.rpartition("@")[2].lower(), parts.path, "", ""))
    query = parse_qsl(parts.query, keep_blank_values=True)
    # a name without a value may be the secret itself
    secrets = [repr(name) if value else "a query" for name, value in query if name not in _QUERY]
    if "@" in parts.netloc or secrets or parts.fragment:
        got = "a user or a password" if "@" in parts.netloc else secrets[0] if secrets else "a part behind #"
        step = "Give an address that anyone may read for as long as the zoo is used."
        raise ZooError(Problem(public, "address of a file", "no password, signature or token", got, step))
    if not parts.hostname or not _PRINTABLE.fullmatch(text) or not parts.path or parts.path.endswith("/"):
        raise _no_file(public, "https://host/path/file, in ASCII with %20 for a blank", "another")
    if parts.hostname in _PAGES:
        step = "Write hf://org/model@commit/path/file, or hf://datasets/org/name@commit/path/file."
        raise ZooError(Problem(public, "address of a file", "one of a commit", "a page of the hub", step))
    return f"{public}?{parts.query}" if parts.query else public


def _no_file(location: str, expected: str, got: str) -> ZooError:
    return ZooError(Problem(location.partition("?")[0], "address of a file", expected, got, _FILE_STEP))


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
    found = _on_hub(_HUB, text[len("hf://") :], MODELS) if text.lower().startswith("hf://") else None
    if found is None:
        step = "Write hf://datasets/org/name for a dataset, hf://org/name for a model."
        raise ZooError(Problem(text, "address of a repository", "hf://org/model@revision", text, step))
    return found


def _hub(text: str) -> HubAddress:
    if text.lower().startswith("hf://buckets/"):
        step = f"Copy it to this machine, hf buckets sync {text} FOLDER, and open the folder."
        raise ZooError(
            Problem(text, "address of a zoo", "a repository, whose commits pin what is read", "a bucket", step)
        )
    found = _on_hub(_HUB, text[len("hf://datasets/") :]) if text.lower().startswith("hf://datasets/") else None
    if found is None:
        raise ZooError(Problem(text, "address of a zoo", "hf://datasets/org/zoo@revision", text, _STEP))
    return found


def _on_hub(pattern: re.Pattern[str], path: str, kind: str = DATASETS) -> HubAddress | None:
    """Return the place of a path, whose pieces are unquoted each for itself: a branch may have a slash in its name."""
    matched = pattern.fullmatch(path)
    if matched is None:
        return None
    return HubAddress(matched["repo"], unquote(matched["revision"] or MAIN), unquote(matched["folder"] or ""), kind)


def _web(text: str) -> Address:
    try:
        parts = urlsplit(text)
    except ValueError:
        public = text.partition("?")[0].rpartition("@")[2]
        raise ZooError(Problem(public, "address of a zoo", "https://host/path", "another", _STEP)) from None
    # addresses are shown in messages and kept in the cache, which must hold no secrets
    if parts.username or parts.password or parts.query or parts.fragment or not parts.hostname:
        public = urlunsplit((parts.scheme, parts.hostname or "", parts.path, "", ""))
        got = "more than that" if parts.hostname else "no host"
        raise ZooError(Problem(public, "address of a zoo", "https://host/path", got, _STEP))
    if parts.hostname in _PAGES and (found := _on_hub(_PAGE, parts.path)):
        return found
    return WebAddress(urlunsplit((parts.scheme.lower(), parts.netloc.lower(), parts.path.rstrip("/"), "", "")))
