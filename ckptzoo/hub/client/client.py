"""A hub as the rest of this room sees it."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ckptzoo.errors import IntegrityError, Problem
from ckptzoo.hub.client.answers import Committed, Listing, RepoFound, Stored, found_of, is_stored, stored_of
from ckptzoo.hub.client.asking import WRITE, NotThereError, RaceError
from ckptzoo.hub.client.connection import DATASET, Connection
from ckptzoo.hub.client.pull_requests import PullRequests
from ckptzoo.hub.client.sending import Progress, Sending
from ckptzoo.remote.address import MAIN

_AT_ONCE = 8
"""Small files that are read at a time."""


class Client(Connection):
    """A hub's dataset repositories, asked with one token, and ``pull_requests`` to them.

    Every method raises ``HubError``, whose message says what to do, when the hub refuses or gives no answer within
    ``bounds``. What fails in passing is asked again; a question that changes something is looked up before it is
    asked again, so that nothing is done twice.

    Parameters
    ----------
    endpoint : the hub's address; None is the one that huggingface_hub uses (``HF_ENDPOINT``).
    token : None is the one that huggingface_hub uses (``HF_TOKEN``, or that of ``hf auth login``). It is kept in this
        object alone, and stands in no message.

    Raises
    ------
    OfflineError
        The network is not to be used (``CKPTZOO_OFFLINE=1`` or ``HF_HUB_OFFLINE=1``).
    """

    @property
    def pull_requests(self) -> PullRequests:
        """Its pull requests."""
        return PullRequests(self)

    def create(self, repo: str, *, private: bool = False) -> None:
        """Make a dataset repository; one that is there stays as it is."""

        def call() -> Any:
            return self.api.create_repo(repo, repo_type=DATASET, private=private, exist_ok=True)

        self.ask(call, self.address(repo), "new repository", needs=WRITE)

    def listing(self, repo: str, revision: str = MAIN) -> Listing:
        """The commit that a revision is, and its files, by one request; ``NotThereError`` where there is none."""

        def call() -> Listing:
            found = self.api.dataset_info(repo, revision=revision, files_metadata=True)
            if not found.sha or found.siblings is None:
                raise ValueError("no commit")
            files = {item.rfilename: stored_of(item) for item in found.siblings}
            return Listing(found.sha, files, found.private)

        return self.ask(call, self.address(repo), f"revision {revision}")

    def find(self, repo: str, revision: str = MAIN) -> Listing | None:
        """As ``listing``; None where there is none."""
        with contextlib.suppress(NotThereError):
            return self.listing(repo, revision)
        return None

    def files(self, repo: str, revision: str = MAIN) -> dict[str, Stored]:
        """The files of a revision by name."""
        return self.listing(repo, revision).files

    def head(self, repo: str, revision: str = MAIN) -> str:
        """The commit that a revision is."""
        return self.listing(repo, revision).commit

    def commits(self, repo: str, revision: str = MAIN) -> list[str]:
        """The commits of a revision, the last first."""

        def call() -> list[str]:
            return [item.commit_id for item in self.api.list_repo_commits(repo, repo_type=DATASET, revision=revision)]

        return self.ask(call, self.address(repo), f"commits of {revision}")

    def read(self, repo: str, name: str, listing: Listing, *, max_bytes: int = 64 * 2**20) -> bytes:
        """A whole small file of a commit, compared with its digest.

        Raises
        ------
        IntegrityError
            It is larger than ``max_bytes``.
        """
        where, stored = f"{self.address(repo)}/{name}", listing.files[name]
        if stored.size > max_bytes:
            step = "Tell whoever publishes the zoo."
            raise IntegrityError(Problem(where, "size", f"at most {max_bytes} bytes", str(stored.size), step))

        def call() -> bytes:
            from huggingface_hub import get_session
            from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

            url = f"{self.endpoint}/datasets/{repo}/resolve/{listing.commit}/{quote(name)}"
            headers = {**build_hf_headers(token=self.api.token), "Accept-Encoding": "identity"}
            data = bytearray()
            with get_session().stream("GET", url, headers=headers) as response:
                hf_raise_for_status(response)
                for piece in response.iter_bytes():
                    data += piece
                    if len(data) > stored.size:
                        break
            if not is_stored(bytes(data), stored):
                raise ValueError(f"{len(data)} bytes with another digest")
            return bytes(data)

        return self.ask(call, where, "file")

    def read_many(self, repo: str, names: Sequence[str], listing: Listing) -> list[bytes]:
        """Several whole small files, in the order of their names."""
        with ThreadPoolExecutor(_AT_ONCE, "ckptzoo-hub") as pool:
            return list(pool.map(lambda name: self.read(repo, name, listing), names))

    def commit(
        self,
        repo: str,
        files: Mapping[str, Path | bytes],
        *,
        title: str,
        parent: str,
        description: str = "",
        revision: str = MAIN,
        delete: Iterable[str] = (),
        sha256: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Committed:
        """Add files to a branch or a pull request, and remove some, by one commit.

        Parameters
        ----------
        files : where they go, and their bytes or the file that holds them.
        parent : the commit that the branch must still be at.
        sha256 : what files must be, in hex; a file that is not is not sent.
        progress : called as bytes are sent, from several threads in turn.

        Raises
        ------
        RaceError
            The branch is no longer at ``parent``.
        IntegrityError
            A file is not what it should be.
        """
        unanswered = False

        def lost() -> None:
            nonlocal unanswered
            unanswered = True

        message: Any = {"commit_message": title, "commit_description": description, "revision": revision}
        with Sending(files, sha256 or {}, progress, paths=self.public) as sending:
            self.upload(repo, sending, revision=revision, needs=WRITE)

            def call() -> str:
                operations = sending.operations(delete)
                return self.api.create_commit(repo, operations, repo_type=DATASET, parent_commit=parent, **message).oid

            try:
                made = self.ask(call, self.address(repo), "commit", lost, needs=WRITE)
            except RaceError as error:
                error.unanswered, error.sent = unanswered, sending.finished()
                raise
            return Committed(made, sending.finished())

    def search(self, tags: Sequence[str], *, text: str | None = None, limit: int = 50) -> list[RepoFound]:
        """Dataset repositories that have every tag, and ``text`` in their names; those changed last come first."""
        facts: Any = ["cardData", "downloads", "lastModified", "likes", "private", "sha", "tags"]

        def call() -> list[RepoFound]:
            how: Any = {"filter": list(tags), "search": text, "sort": "last_modified", "limit": limit}
            return [found_of(item) for item in self.api.list_datasets(expand=facts, **how)]

        return self.ask(call, self.endpoint, "search")
