"""Make page and snapshot of a repository again, for what it holds; nothing else of the zoo changes."""

import difflib
import random
import time
from dataclasses import dataclass, replace

from ckptzoo.arguments import checked
from ckptzoo.errors import HubError, Problem
from ckptzoo.hub.card import card_in
from ckptzoo.hub.client import Client, HubRetryPolicy, RaceError, RevisionListing
from ckptzoo.hub.client.stored_files import is_stored
from ckptzoo.hub.push.api import MAX_RACES
from ckptzoo.hub.push.collection import NOTHING, collection_batch
from ckptzoo.hub.push.page import ReadmePage, page_of
from ckptzoo.hub.push.plan import CommitBatch, merged_files, snapshot_batch
from ckptzoo.hub.push.sources import RepositoryFiles
from ckptzoo.remote.address import repository
from ckptzoo.schema import layout
from ckptzoo.schema.card import CARD_TOML, Card


@dataclass(frozen=True)
class Refreshed:
    """The page of a repository, and how it differed from the one before.

    Parameters
    ----------
    repository, url
        where the zoo is, and its page where the hub has pages.
    text
        what README.md holds now, or would; None where it cannot be made.
    changes
        lines of a unified diff from what was there; none where nothing changed.
    commit
        with what changed, the snapshot too; None where nothing did.
    notes
        what a person should know.
    """

    repository: str
    url: str | None
    text: str | None
    changes: tuple[str, ...]
    commit: str | None
    notes: tuple[str, ...] = ()


@checked
def rewrite(
    address: str,
    card: Card | None = None,
    *,
    check: bool = False,
    endpoint: str | None = None,
    token: str | None = None,
    retry_policy: HubRetryPolicy | None = None,
) -> Refreshed:
    """Make the page of a zoo on a hub again, and its snapshot, for what it holds; of a collection page and table.

    Parameters
    ----------
    address
        ``org/zoo`` or ``hf://datasets/org/zoo``.
    card
        what a person says; by default what the repository keeps. One that is passed in replaces that.
    check
        only say what would change.
    endpoint, token
        by default those of huggingface_hub.
    retry_policy
        how long to go on asking.

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
    return _Refresh(client, repo, card).carry_out(check=check)


class _Refresh:
    def __init__(self, client: Client, repo: str, card: Card | None) -> None:
        self._client, self._repo, self._card = client, repo, card
        self._repository = RepositoryFiles(client, repo)

    def carry_out(self, *, check: bool) -> Refreshed:
        """Commit what is missing, on top of the commit that it was compared with."""
        for _ in range(MAX_RACES):
            listing = self._client.listing(self._repo)
            batch, page, changes = self._compare(listing)
            text = None if page.data is None else page.data.decode()
            result = Refreshed(self._repository.name, self._client.page(self._repo), text, changes, None, page.notes)
            if check or not batch.files:
                return result
            try:
                committed = self._client.commit(
                    self._repo, batch.files, title=batch.title, parent=listing.commit, delete=batch.delete
                )
            except RaceError:
                # at random, because those who lost the same race would meet again in the next
                time.sleep(random.uniform(0.0, self._client.retry_policy.first_pause))
                continue
            return replace(result, commit=committed.commit)
        step = "Others publish to it at the same time: try again later."
        raise HubError(Problem(self._repository.name, "commit", f"one of {MAX_RACES} races won", "none", step))

    def _compare(self, listing: RevisionListing) -> tuple[CommitBatch, ReadmePage, tuple[str, ...]]:
        """Return what a commit lacks, its page as it should be, and how that differs from the existing one."""
        if layout.COLLECTION in listing.files and layout.ZOO not in listing.files:
            batch, page = collection_batch(NOTHING, self._repository, listing, self._card)
            return batch, page, self._changes(listing, page)
        files = merged_files(self._repository, listing, [])
        page = page_of(files, self._repo, self._card or card_in(files))
        generated = {} if self._card is None else {CARD_TOML: self._card.to_toml().encode()}
        generated |= page.files
        stored = listing.files
        batch = CommitBatch.of(
            {name: data for name, data in generated.items() if not is_stored(data, stored.get(name))}
        )
        return batch.merge(snapshot_batch(self._repository, listing, [])), page, self._changes(listing, page)

    def _changes(self, listing: RevisionListing, page: ReadmePage) -> tuple[str, ...]:
        changes: list[str] = []
        for name, data in page.files.items():
            if is_stored(data, listing.files.get(name)):
                continue
            (before,) = self._repository.read([name], listing) if name in listing.files else (b"",)
            lines = before.decode("utf-8", "replace").splitlines(), data.decode().splitlines()
            changes += difflib.unified_diff(*lines, name, f"{name}, generated", n=1, lineterm="")
        return tuple(changes)
