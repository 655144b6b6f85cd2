"""Find zoos on a hub by the tags of their cards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.client import Client
from ckptzoo.hub.client.models import RepoFound
from ckptzoo.hub.client.retry import HubRetryPolicy
from ckptzoo.schema.documents import JsonFields

TAG = "ckptzoo"
"""The tag of every zoo; under this name the card's front matter also has a zoo's numbers."""
_ARCH, _DATASET, _LICENSE = "arch:", "dataset:", "license:"
"""Prefixes of tags; hubs make ``license:`` tags of the front matter by themselves."""
_MAX_NAMES = 20
_MAX_LICENCE = 60
"""Characters of a licence that are kept."""
_ONCE = HubRetryPolicy(max_attempts=1)
"""One attempt: the client library itself asks for a page of results up to six times."""


@dataclass(frozen=True)
class FoundZoo:
    """A zoo or a collection on a hub, as its card describes it; none of this was checked.

    Parameters
    ----------
    repository
        ``org/name``.
    architectures, datasets
        names, at most 20 of each.
    checkpoints, parameters
        how many; None where the card does not say.
    license
        None where the card does not say; several with commas.
    updated
        when it was last changed.
    private
        whether only its owners see it.
    downloads, likes
        as the hub counts them.
    zoos
        of a collection, how many it has; None of a single zoo.
    """

    repository: str
    architectures: tuple[str, ...]
    datasets: tuple[str, ...]
    checkpoints: int | None
    parameters: int | None
    license: str | None
    updated: datetime | None
    private: bool
    downloads: int
    likes: int
    zoos: int | None = None


@dataclass(frozen=True)
class SearchResult(JsonFields):
    """The result of a search.

    Parameters
    ----------
    endpoint
        the hub.
    tags, text
        what was searched for.
    zoos
        the one that was changed last comes first.
    more
        whether there are others, which ``limit`` left out.
    """

    endpoint: str
    tags: tuple[str, ...]
    text: str | None
    zoos: tuple[FoundZoo, ...]
    more: bool


@checked
def search(
    arch: str | None = None,
    dataset: str | None = None,
    tags: Sequence[str] = (),
    text: str | None = None,
    limit: int = 50,
    *,
    endpoint: str | None = None,
    token: str | None = None,
) -> SearchResult:
    """Find zoos and collections on a hub.

    Parameters
    ----------
    arch
        the architecture, such as ``resnet18``.
    dataset
        one that members were trained on, such as ``cifar100``.
    tags
        others that the cards must carry.
    text
        part of the repository's name.
    limit
        at most this many zoos.
    endpoint, token
        of the hub; by default those of huggingface_hub.

    Raises
    ------
    ZooError
        The limit is not positive.
    HubError
        The hub refuses, or gives no answer.

    Notes
    -----
    The hub compares tags letter by letter. The results are claims of the repositories' owners: ``ckptzoo.open`` checks
    a zoo, a search does not. Tested in ``tests/hub/test_search.py``.

    Examples
    --------
    >>> [(zoo.repository, zoo.checkpoints) for zoo in ckptzoo.search("optunet", "mnist").zoos]
    [('lab/optunets', 16)]
    """
    if limit < 1:
        raise ZooError(Problem("search", "limit", "1 or more", str(limit), "Choose another."))
    named = [f"{prefix}{name}" for prefix, name in ((_ARCH, arch), (_DATASET, dataset)) if name is not None]
    wanted = tuple(dict.fromkeys((TAG, *named, *tags)))
    client = Client(endpoint, token, retry_policy=_ONCE)
    repositories = client.search(wanted, text=text, limit=limit + 1)  # one more, to know whether there are others
    zoos = tuple(_describe(repository) for repository in repositories[:limit])
    return SearchResult(client.endpoint, wanted, text, zoos, len(repositories) > limit)


def _describe(repository: RepoFound) -> FoundZoo:
    facts = repository.card.get(TAG)
    numbers = cast(Mapping[str, Any], facts) if isinstance(facts, Mapping) else {}
    value = repository.card.get("license")
    licenses = [value] if isinstance(value, str) else list(value) if isinstance(value, list) else []
    text = ", ".join(str(name)[:_MAX_LICENCE] for name in licenses[:_MAX_NAMES])
    return FoundZoo(
        repository.id,
        _names_tagged(repository, _ARCH),
        _names_tagged(repository, _DATASET),
        _count(numbers.get("checkpoints")),
        _count(numbers.get("parameters")),
        text or ", ".join(_names_tagged(repository, _LICENSE)) or None,
        repository.updated,
        repository.private,
        repository.downloads,
        repository.likes,
        _count(numbers.get("zoos")),
    )


def _names_tagged(repository: RepoFound, prefix: str) -> tuple[str, ...]:
    return tuple(tag.removeprefix(prefix) for tag in repository.tags if tag.startswith(prefix))[:_MAX_NAMES]


def _count(value: Any) -> int | None:
    """Return a number of things; an untrusted card may say anything."""
    return value if type(value) is int and 0 <= value < 2**63 else None
