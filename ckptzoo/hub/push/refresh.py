"""Bring up to date what a repository holds beside the zoo itself: its page and its snapshot."""

import difflib
import random
import time
from dataclasses import dataclass

from ckptzoo.errors import HubError, Problem
from ckptzoo.hub.card import card_in
from ckptzoo.hub.client import Client, HubRetryPolicy, Listing, RaceError
from ckptzoo.hub.client.models import is_stored
from ckptzoo.hub.push.api import RACES
from ckptzoo.hub.push.page import Page, page_of, page_or_note
from ckptzoo.hub.push.plan import files_of, snapshot_group
from ckptzoo.hub.push.sources import CommitBatch, RepositoryFiles
from ckptzoo.remote.address import repository
from ckptzoo.schema import layout
from ckptzoo.schema.card import CARD_TOML, Card


@dataclass(frozen=True)
class Refreshed:
    """What a repository's page is, and how it differed from the one that was there.

    Parameters
    ----------
    repository, url : where the zoo is, and its page where the hub has pages.
    text : what README.md holds now, or would; None where it cannot be made.
    changes : lines of a unified diff from what was there; none where nothing changed.
    commit : with what changed, the snapshot too; None where nothing did.
    notes : what a person should know.
    """

    repository: str
    url: str | None
    text: str | None
    changes: tuple[str, ...]
    commit: str | None
    notes: tuple[str, ...] = ()


def rewrite(
    address: str,
    card: Card | None = None,
    *,
    check: bool = False,
    endpoint: str | None = None,
    token: str | None = None,
    retry_policy: HubRetryPolicy | None = None,
) -> Refreshed:
    """Make the page of a zoo on a hub anew, and its snapshot, for what it holds.

    Parameters
    ----------
    address : ``org/zoo`` or ``hf://datasets/org/zoo``.
    card : what a person says; by default what the repository keeps. One that is passed in replaces that.
    check : only say what would change.
    endpoint, token : by default those of huggingface_hub.
    retry_policy : how long to go on asking.

    Raises
    ------
    SpecError
        There is no card, or it is not valid, or another zoo's, or names a picture that the repository lacks.
    IntegrityError
        The zoo is damaged.
    HubError
        The hub refuses or gives no answer.
    """
    client, repo = Client(endpoint, token, retry_policy=retry_policy), repository(address)
    return _Refresh(client, repo, card, strict=True).carry_out(check=check)


def refresh(client: Client, repo: str) -> Refreshed:
    """As ``rewrite``, for a repository that was just written to; where no page can be made a note says why.

    Raises
    ------
    HubError
        The hub refuses or gives no answer.
    """
    return _Refresh(client, repo, None, strict=False).carry_out(check=False)


class _Refresh:
    """A repository whose page is made anew; ``strict`` where it is an error that this cannot be done."""

    def __init__(self, client: Client, repo: str, card: Card | None, *, strict: bool) -> None:
        self._client, self._repo, self._card, self._strict = client, repo, card, strict
        self._repository = RepositoryFiles(client, repo)

    def carry_out(self, *, check: bool) -> Refreshed:
        """Commit what is lacking, upon the head that it was made for."""
        for _ in range(RACES):
            listing = self._client.listing(self._repo)
            group, page, changes = self._look(listing)
            text = None if page.data is None else page.data.decode()
            made = Refreshed(self._repository.name, self._client.page(self._repo), text, changes, None, page.notes)
            if check or not group.files:
                return made
            try:
                done = self._client.commit(
                    self._repo, group.files, title=group.title, parent=listing.commit, delete=group.delete
                )
            except RaceError:
                time.sleep(random.uniform(0.0, self._client.retry_policy.first_pause))
                continue
            return Refreshed(made.repository, made.url, text, changes, done.commit, page.notes)
        step = "Others publish to it at the same time: try again later."
        raise HubError(Problem(self._repository.name, "commit", f"one of {RACES} races won", "none", step))

    def _look(self, listing: Listing) -> tuple[CommitBatch, Page, tuple[str, ...]]:
        """What a commit lacks, its page as it should be, and how that differs from the one that is there."""
        files = files_of(self._repository, listing, [])
        if self._strict:
            page = page_of(files, self._repo, self._card or card_in(files))
        else:
            page = page_or_note(files, self._repo, own=False)
        wanted = {} if self._card is None else {CARD_TOML: self._card.to_toml().encode()}
        if page.data is not None:
            wanted[layout.README] = page.data
        held = listing.files
        group = CommitBatch.of({name: data for name, data in wanted.items() if not is_stored(data, held.get(name))})
        return group.merge(snapshot_group(self._repository, listing, [])), page, self._changes(listing, page)

    def _changes(self, listing: Listing, page: Page) -> tuple[str, ...]:
        if page.data is None or is_stored(page.data, listing.files.get(layout.README)):
            return ()
        there = layout.README in listing.files
        (before,) = self._repository.read([layout.README], listing) if there else (b"",)
        lines = before.decode("utf-8", "replace").splitlines(), page.data.decode().splitlines()
        return tuple(difflib.unified_diff(*lines, "README.md", "README.md, made anew", n=1, lineterm=""))
