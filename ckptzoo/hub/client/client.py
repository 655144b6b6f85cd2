"""A hub as the rest of this room sees it.

A hub and the token that it is asked with.

Pull requests to the repositories of a hub.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from ckptzoo.errors import IntegrityError, MissingExtraError, OfflineError, Problem
from ckptzoo.hub.client.models import (
    Account,
    Committed,
    Discussion,
    Listing,
    PullRequest,
    RepoFile,
    RepoFound,
    discussion_of,
    found_of,
    is_stored,
    stored_of,
)
from ckptzoo.hub.client.retry import PROPOSE, READ, WRITE, HubRetryPolicy, NotThereError, RaceError, call_with_retry
from ckptzoo.hub.client.upload import Sending
from ckptzoo.remote.address import MAIN, HubAddress
from ckptzoo.remote.cache import is_offline
from ckptzoo.remote.hub_store import PUBLIC, hub_address
from ckptzoo.text import Progress

T = TypeVar("T")

DATASET = "dataset"


class Connection:
    """A hub and the token that it is asked with; ``api`` is the client library's, and goes no further than this folder.

    Parameters
    ----------
    endpoint, token, retry_policy : as those of ``Client``.
    """

    def __init__(
        self, endpoint: str | None = None, token: str | None = None, *, retry_policy: HubRetryPolicy | None = None
    ) -> None:
        try:
            from huggingface_hub import HfApi
        except ImportError:
            raise MissingExtraError("huggingface_hub", "hub") from None
        self.api = HfApi(endpoint=endpoint and endpoint.rstrip("/"), token=token, library_name="ckptzoo")
        self.endpoint = self.api.endpoint.rstrip("/")
        self.token, self.retry_policy = token, retry_policy or HubRetryPolicy()
        self.public = self.endpoint == PUBLIC
        if is_offline():
            step = "Unset CKPTZOO_OFFLINE and HF_HUB_OFFLINE to ask it."
            raise OfflineError(Problem(self.endpoint, "the network", "one that may be used", "offline mode", step))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint!r})"

    def address(self, repo: str) -> str:
        """What messages call a repository."""
        return hub_address(HubAddress(repo), self.endpoint)

    def page(self, repo: str) -> str | None:
        """The page of a repository; None for hubs other than huggingface.co, which may have none."""
        return f"{self.endpoint}/datasets/{repo}" if self.public else None

    def whoami(self) -> Account:
        """Whom the token belongs to."""
        said = self.ask(self.api.whoami, self.endpoint, "token")
        role = said.get("auth", {}).get("accessToken", {}).get("role")
        return Account(said["name"], role, tuple(item["name"] for item in said.get("orgs", ())))

    def ask(
        self,
        call: Callable[[], T],
        location: str,
        what: str,
        done: Callable[[], T | None] = lambda: None,
        *,
        needs: str = READ,
    ) -> T:
        """The answer to a question; ``done`` looks whether one that failed was carried out."""
        return call_with_retry(
            call, location=location, what=what, retry_policy=self.retry_policy, done=done, needs=needs
        )

    def upload(self, repo: str, sending: Sending, *, revision: str, create_pr: bool = False, needs: str) -> None:
        """Bring the large files to the hub, those that it lacks."""
        how: Any = {"repo_type": DATASET, "revision": revision, "create_pr": create_pr, "free_memory": False}
        for group in sending.groups():

            def call(group: list[Any] = group) -> bool:
                sending.interruptible(lambda: self.api.preupload_lfs_files(repo, group, **how))
                return True

            self.ask(call, self.address(repo), "upload", needs=needs)
            sending.sent(group)


class PullRequests:
    """Opened, read, discussed and merged; every method raises as those of ``Client``."""

    def __init__(self, hub: Connection) -> None:
        self._hub = hub

    def propose(
        self,
        repo: str,
        files: Mapping[str, Path | bytes],
        *,
        title: str,
        description: str,
        parent: str | None = None,
        sha256: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> PullRequest:
        """Propose files by a pull request; as ``commit``."""
        before = {item.number for item in self.listed(repo)}

        def opened() -> PullRequest | None:
            """The one that was opened although its answer was lost."""
            mine = [item for item in self.listed(repo) if item.number not in before and item.title == title]
            me = self._hub.whoami().name if mine else ""
            return next((PullRequest(item.number, item.url) for item in mine if item.author == me), None)

        with Sending(files, sha256 or {}, progress, paths=self._hub.public) as sending:
            self._hub.upload(repo, sending, revision=MAIN, create_pr=True, needs=PROPOSE)

            def call() -> PullRequest:
                made = self._hub.api.create_commit(
                    repo,
                    sending.operations(),
                    repo_type=DATASET,
                    commit_message=title,
                    commit_description=description,
                    parent_commit=parent,
                    create_pr=True,
                )
                number = int(str(made.pr_url).rstrip("/").rpartition("/")[2])
                page = self._hub.page(repo)
                return PullRequest(number, page and f"{page}/discussions/{number}")

            made = self._hub.ask(call, self._hub.address(repo), "pull request", opened, needs=PROPOSE)
            sending.finished()
            return made

    def listed(self, repo: str, *, status: str = "open") -> list[Discussion]:
        """Pull requests without what was written in them, the last first; ``status`` is open, closed or all."""

        def call() -> list[Discussion]:
            how: Any = {"discussion_type": "pull_request", "discussion_status": status, "repo_type": DATASET}
            return [
                discussion_of(item, pages=self._hub.public) for item in self._hub.api.get_repo_discussions(repo, **how)
            ]

        return self._hub.ask(call, self._hub.address(repo), "pull requests")

    def read(self, repo: str, number: int) -> Discussion:
        """A discussion or a pull request with everything that was written in it."""

        def call() -> Discussion:
            found = self._hub.api.get_discussion_details(repo, number, repo_type=DATASET)
            return discussion_of(found, pages=self._hub.public)

        return self._hub.ask(call, self._hub.address(repo), f"discussion {number}")

    def merge(self, repo: str, number: int, comment: str | None = None) -> str | None:
        """Merge a pull request; returns the commit where the hub says which."""

        def call() -> Discussion:
            self._hub.api.merge_pull_request(repo, number, comment=comment, repo_type=DATASET)
            return self.read(repo, number)

        def merged() -> Discussion | None:
            found = self.read(repo, number)
            return found if found.status == "merged" else None

        return self._hub.ask(
            call, self._hub.address(repo), f"merge of pull request {number}", merged, needs=WRITE
        ).merged

    def comment(self, repo: str, number: int, text: str) -> None:
        """Write into a discussion or a pull request."""

        def written() -> bool | None:
            return (text.strip() in {item.text.strip() for item in self.read(repo, number).comments}) or None

        def call() -> bool:
            self._hub.api.comment_discussion(repo, number, text, repo_type=DATASET)
            return True

        self._hub.ask(call, self._hub.address(repo), f"comment on {number}", written, needs=PROPOSE)


_AT_ONCE = 8
"""Small files that are read at a time."""


class Client(Connection):
    """A hub's dataset repositories, asked with one token, and ``pull_requests`` to them.

    Every method raises ``HubError``, whose message says what to do, when the hub refuses or gives no answer within
    ``retry_policy``. What fails in passing is asked again; a question that changes something is looked up before it is
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

    def files(self, repo: str, revision: str = MAIN) -> dict[str, RepoFile]:
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
