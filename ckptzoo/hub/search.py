"""Zoos on a hub, found by the tags that their cards carry."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, cast

from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.client import Client
from ckptzoo.hub.client.models import RepoFound
from ckptzoo.hub.client.retry import HubRetryPolicy
from ckptzoo.schema.documents import Document

TAG = "ckptzoo"
"""The tag of every zoo."""
_ARCH, _DATASET, _LICENSE = "arch:", "dataset:", "license:"
_MOST = 20
_ONCE = HubRetryPolicy(max_attempts=1)
"""The client library itself asks for a page of results up to six times."""


@dataclass(frozen=True)
class FoundZoo:
    """A zoo on a hub, as its card describes it; nothing of this was checked.

    Parameters
    ----------
    repository : ``org/name``.
    architectures, datasets : names, at most 20 of each.
    checkpoints, parameters : how many, where the card says.
    license : where the card says; several with commas.
    updated : when it was last changed.
    private : whether only its owners see it.
    downloads, likes : as the hub counts them.
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


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Parameters
    ----------
    endpoint : the hub.
    tags, text : what was asked for.
    zoos : those changed last come first.
    more : there may be others, which ``limit`` left out.
    """

    endpoint: str
    tags: tuple[str, ...]
    text: str | None
    zoos: tuple[FoundZoo, ...]
    more: bool

    def to_json(self) -> Document:
        """The same as JSON; times in ISO 8601."""
        zoos = [{**asdict(zoo), "updated": zoo.updated and zoo.updated.isoformat()} for zoo in self.zoos]
        tags = list(self.tags)
        return {"endpoint": self.endpoint, "tags": tags, "text": self.text, "zoos": zoos, "more": self.more}


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
    """Zoos on a hub.

    Parameters
    ----------
    arch : the architecture, such as ``resnet18``.
    dataset : one that members were trained on, such as ``cifar100``.
    tags : others that the cards must carry.
    text : stands in the repository's name.
    limit : at most so many.
    endpoint, token : of the hub; by default those of huggingface_hub.

    Raises
    ------
    ZooError
        The limit is not positive.
    HubError
        The hub refuses, or gives no answer.

    Notes
    -----
    The hub compares tags letter by letter. What is found are claims of the repositories' owners: ``ckptzoo.open``
    checks a zoo, a search does not. Held by ``tests/hub/test_search.py``.
    """
    if limit < 1:
        raise ZooError(Problem("search", "limit", "1 or more", str(limit), "Choose another."))
    named = [f"{prefix}{name}" for prefix, name in ((_ARCH, arch), (_DATASET, dataset)) if name is not None]
    wanted = tuple(dict.fromkeys((TAG, *named, *tags)))
    client = Client(endpoint, token, retry_policy=_ONCE)
    found = client.search(wanted, text=text, limit=limit + 1)
    zoos = tuple(_described(item) for item in found[:limit])
    return SearchResult(client.endpoint, wanted, text, zoos, len(found) > limit)


def _described(found: RepoFound) -> FoundZoo:
    facts = found.card.get(TAG)
    numbers = cast(Mapping[str, Any], facts) if isinstance(facts, Mapping) else {}
    licenses = found.card.get("license")
    named = [licenses] if isinstance(licenses, str) else list(licenses) if isinstance(licenses, list) else []
    text = ", ".join(str(name)[:60] for name in named[:_MOST]) or ", ".join(_tagged(found, _LICENSE))
    return FoundZoo(
        found.id,
        _tagged(found, _ARCH),
        _tagged(found, _DATASET),
        _count(numbers.get("checkpoints")),
        _count(numbers.get("parameters")),
        text or None,
        found.updated,
        found.private,
        found.downloads,
        found.likes,
    )


def _tagged(found: RepoFound, prefix: str) -> tuple[str, ...]:
    return tuple(tag.removeprefix(prefix) for tag in found.tags if tag.startswith(prefix))[:_MOST]


def _count(value: Any) -> int | None:
    """A number of things, of which a stranger's card may say anything."""
    return value if type(value) is int and 0 <= value < 2**63 else None
