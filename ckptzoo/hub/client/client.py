"""``Client``: the dataset repositories of a hub and their pull requests, asked with one token."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from ckptzoo.environment import PUBLIC_HUB, is_offline
from ckptzoo.errors import IntegrityError, OfflineError, Problem, require
from ckptzoo.hub.client.models import (
    Committed,
    Discussion,
    PullRequest,
    RepoFile,
    RepoFound,
    RevisionListing,
    TokenOwner,
    discussion_of,
    repo_file_of,
    repo_found_of,
)
from ckptzoo.hub.client.retry import PROPOSE, READ, WRITE, HubRetryPolicy, NotThereError, RaceError, call_with_retry
from ckptzoo.hub.client.stored_files import is_stored
from ckptzoo.hub.client.upload import Sending
from ckptzoo.remote.address import MAIN, HubAddress
from ckptzoo.remote.hub_store import hub_address
from ckptzoo.text import Progress

T = TypeVar("T")
DATASET = "dataset"
"""The type of repository that holds zoos."""
_WORKERS = 8
"""Small files that are read at a time."""


class Connection:
    """A hub and a token; ``api`` is the ``HfApi`` of the client library, which only this package uses."""

    def __init__(
        self, endpoint: str | None = None, token: str | None = None, *, retry_policy: HubRetryPolicy | None = None
    ) -> None:
        api = require("huggingface_hub", "hub").HfApi
        self.api = api(endpoint=endpoint and endpoint.rstrip("/"), token=token, library_name="ckptzoo")
        self.endpoint = self.api.endpoint.rstrip("/")
        self.token, self.retry_policy = token, retry_policy or HubRetryPolicy()
        self.public = self.endpoint == PUBLIC_HUB
        if is_offline():
            step = "Unset CKPTZOO_OFFLINE and HF_HUB_OFFLINE to ask it."
            raise OfflineError(Problem(self.endpoint, "the network", "one that may be used", "offline mode", step))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint!r})"

    def address(self, repo: str) -> str:
        """Return the name of a repository in messages."""
        return hub_address(HubAddress(repo), self.endpoint)

    def page(self, repo: str) -> str | None:
        """Return the page of a repository; None for hubs other than huggingface.co, which may have none."""
        return f"{self.endpoint}/datasets/{repo}" if self.public else None

    def whoami(self) -> TokenOwner:
        """Return the user whom the token belongs to."""
        info = self.ask(self.api.whoami, self.endpoint, "token")
        role = info.get("auth", {}).get("accessToken", {}).get("role")
        return TokenOwner(info["name"], role, tuple(item["name"] for item in info.get("orgs", ())))

    def ask(
        self,
        call: Callable[[], T],
        location: str,
        what: str,
        done: Callable[[], T | None] = lambda: None,
        *,
        needs: str = READ,
    ) -> T:
        """Return the result of a call of the library, which is repeated as ``call_with_retry`` says."""
        return call_with_retry(
            call, location=location, what=what, retry_policy=self.retry_policy, done=done, needs=needs
        )

    def upload(self, repo: str, sending: Sending, *, revision: str, create_pr: bool = False, needs: str) -> None:
        """Upload the large files that the hub lacks."""
        # by default the library empties an operation once it is sent; the commit, and another attempt, use it again
        options: Any = {"repo_type": DATASET, "revision": revision, "create_pr": create_pr, "free_memory": False}
        for group in sending.groups():

            def call(group: list[Any] = group) -> bool:
                sending.interruptible(lambda: self.api.preupload_lfs_files(repo, group, **options))
                return True

            self.ask(call, self.address(repo), "upload", needs=needs)
            sending.sent(group)


class PullRequests:
    """The pull requests of a hub; every method raises as those of ``Client``."""

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
        """Propose files by a pull request; parameters and errors are those of ``Client.commit``."""
        before = {item.number for item in self.listed(repo)}

        def find_opened() -> PullRequest | None:
            """Return the one that was opened although its answer was lost."""
            mine = [item for item in self.listed(repo) if item.number not in before and item.title == title]
            me = self._hub.whoami().name if mine else ""
            return next((PullRequest(item.number, item.url) for item in mine if item.author == me), None)

        with Sending(files, sha256 or {}, progress, by_path=self._hub.public) as sending:
            self._hub.upload(repo, sending, revision=MAIN, create_pr=True, needs=PROPOSE)

            def call() -> PullRequest:
                commit = self._hub.api.create_commit(
                    repo,
                    sending.operations(),
                    repo_type=DATASET,
                    commit_message=title,
                    commit_description=description,
                    parent_commit=parent,
                    create_pr=True,
                )
                number = int(str(commit.pr_url).rstrip("/").rpartition("/")[2])
                page = self._hub.page(repo)
                return PullRequest(number, page and f"{page}/discussions/{number}")

            opened = self._hub.ask(call, self._hub.address(repo), "pull request", find_opened, needs=PROPOSE)
            sending.finished()
            return opened

    def listed(self, repo: str, *, status: str = "open") -> list[Discussion]:
        """Return pull requests without their comments, the last first; ``status`` is open, closed or all."""

        def call() -> list[Discussion]:
            options: Any = {"discussion_type": "pull_request", "discussion_status": status, "repo_type": DATASET}
            items = self._hub.api.get_repo_discussions(repo, **options)
            return [discussion_of(item, pages=self._hub.public) for item in items]

        return self._hub.ask(call, self._hub.address(repo), "pull requests")

    def read(self, repo: str, number: int) -> Discussion:
        """Return a discussion or a pull request with its comments."""

        def call() -> Discussion:
            details = self._hub.api.get_discussion_details(repo, number, repo_type=DATASET)
            return discussion_of(details, pages=self._hub.public)

        return self._hub.ask(call, self._hub.address(repo), f"discussion {number}")

    def merge(
        self,
        repo: str,
        number: int,
        comment: str | None = None,
        *,
        expected_head: str | None = None,
        expected_target: str | None = None,
    ) -> str | None:
        """Merge a pull request; return the commit where the hub says which.

        ``expected_head`` and ``expected_target`` are the last commits of the pull request and of its target: ``ckptzoo
        serve`` refuses to merge others, and ``RaceError`` says that one has moved on and nothing was merged;
        huggingface.co takes none.
        """

        def call() -> Discussion:
            if self._hub.public:
                self._hub.api.merge_pull_request(repo, number, comment=comment, repo_type=DATASET)
            else:
                from huggingface_hub import get_session
                from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

                # as merge_pull_request asks, which takes no expected commits
                url = f"{self._hub.endpoint}/api/{DATASET}s/{repo}/discussions/{number}/merge"
                body = {"comment": comment, "expectedHead": expected_head, "expectedTarget": expected_target}
                told = {name: text for name, text in body.items() if text is not None}
                headers = build_hf_headers(token=self._hub.api.token)
                hf_raise_for_status(get_session().post(url, headers=headers, json=told))
            return self.read(repo, number)

        def find_merged() -> Discussion | None:
            discussion = self.read(repo, number)
            return discussion if discussion.status == "merged" else None

        return self._hub.ask(
            call, self._hub.address(repo), f"merge of pull request {number}", find_merged, needs=WRITE
        ).merged

    def comment(self, repo: str, number: int, text: str) -> None:

        def is_written() -> bool | None:
            return (text.strip() in {item.text.strip() for item in self.read(repo, number).comments}) or None

        def call() -> bool:
            self._hub.api.comment_discussion(repo, number, text, repo_type=DATASET)
            return True

        self._hub.ask(call, self._hub.address(repo), f"comment on {number}", is_written, needs=PROPOSE)


class Client(Connection):
    """A hub's dataset repositories, asked with one token, and ``pull_requests`` to them.

    Every method raises ``HubError``, whose message says what to do, when the hub refuses or gives no answer within
    ``retry_policy``. Transient failures are tried again. Before a request that changes something is tried again, the
    hub is asked whether the first was carried out, so that nothing is done twice.

    Endpoint and token are those that huggingface_hub uses where they are None (``HF_ENDPOINT``, ``HF_TOKEN``, ``hf auth
    login``); the token is kept in this object only, and is in no message. Raises ``OfflineError`` where the network is
    not to be used (``CKPTZOO_OFFLINE=1`` or ``HF_HUB_OFFLINE=1``).
    """

    @property
    def pull_requests(self) -> PullRequests:
        """Those of its repositories."""
        return PullRequests(self)

    def create(self, repo: str, *, private: bool = False) -> None:
        """Create a dataset repository, if there is none of this name."""

        def call() -> Any:
            # with exist_ok: an attempt whose answer was lost has made it already
            return self.api.create_repo(repo, repo_type=DATASET, private=private, exist_ok=True)

        self.ask(call, self.address(repo), "new repository", needs=WRITE)

    def listing(self, repo: str, revision: str = MAIN) -> RevisionListing:
        """The commit that a revision is, and its files, by one request, or by pages; ``NotThereError``: no such one."""

        def call() -> RevisionListing:
            info = self.api.dataset_info(repo, revision=revision, files_metadata=True)
            if not info.sha:
                raise ValueError("no commit")  # which classify_error makes a HubError
            if info.siblings is not None:
                files = {item.rfilename: repo_file_of(item) for item in info.siblings}
            else:  # too many for one answer
                pages = self.api.list_repo_tree(repo, revision=info.sha, repo_type=DATASET, recursive=True)
                # folders have no size
                files = {item.path: repo_file_of(item) for item in pages if hasattr(item, "size")}
            # ckptzoo serve says what the token may do
            role = vars(info).get("role")
            return RevisionListing(info.sha, files, info.private, role if isinstance(role, str) else None)

        return self.ask(call, self.address(repo), f"revision {revision}")

    def find(self, repo: str, revision: str = MAIN) -> RevisionListing | None:
        """Return the ``listing``; None where there is none."""
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

    def read(self, repo: str, name: str, listing: RevisionListing, *, max_bytes: int = 64 * 2**20) -> bytes:
        """Return a whole small file of a commit, compared with its digest; IntegrityError above ``max_bytes``."""
        location, stored = f"{self.address(repo)}/{name}", listing.files[name]
        if stored.size > max_bytes:
            step = "Tell whoever publishes the zoo."
            raise IntegrityError(Problem(location, "size", f"at most {max_bytes} bytes", str(stored.size), step))

        def call() -> bytes:
            from huggingface_hub import get_session
            from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

            url = f"{self.endpoint}/datasets/{repo}/resolve/{listing.commit}/{quote(name)}"
            # size and digest are those of the bytes as they are stored
            headers = {**build_hf_headers(token=self.api.token), "Accept-Encoding": "identity"}
            data = bytearray()
            with get_session().stream("GET", url, headers=headers) as response:
                hf_raise_for_status(response)
                for piece in response.iter_bytes():
                    data += piece
                    if len(data) > stored.size:  # it cannot be the file any more, and may have no end
                        break
            if not is_stored(bytes(data), stored):
                raise ValueError(f"{len(data)} bytes with another digest")
            return bytes(data)

        return self.ask(call, location, "file")

    def read_many(self, repo: str, names: Sequence[str], listing: RevisionListing) -> list[bytes]:
        """Several whole small files, in the order of their names."""
        with ThreadPoolExecutor(_WORKERS, "ckptzoo-hub") as pool:
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

        ``files`` are by their names in the repository, as bytes or as the file that holds them; ``parent`` is the
        commit that the branch must still be at; a file with another digest than in ``sha256``, in hex, is not sent.
        ``progress`` is called as bytes are sent, from several threads in turn. Raises ``RaceError``: the branch is no
        longer at ``parent``; ``IntegrityError``: a file has another digest.
        """
        unanswered = False

        def note_unanswered() -> None:
            """Note that the previous attempt may have been carried out; its commit is then no longer at ``parent``."""
            nonlocal unanswered
            unanswered = True

        message: Any = {"commit_message": title, "commit_description": description, "revision": revision}
        with Sending(files, sha256 or {}, progress, by_path=self.public) as sending:
            self.upload(repo, sending, revision=revision, needs=WRITE)

            def call() -> str:
                operations = sending.operations(delete)
                return self.api.create_commit(repo, operations, repo_type=DATASET, parent_commit=parent, **message).oid

            try:
                commit = self.ask(call, self.address(repo), "commit", note_unanswered, needs=WRITE)
            except RaceError as error:
                error.unanswered, error.sent = unanswered, sending.finished()
                raise
            return Committed(commit, sending.finished())

    def tags(self, repo: str) -> dict[str, str]:
        """The tags of a repository, and the commit of each."""

        def call() -> dict[str, str]:
            refs = self.api.list_repo_refs(repo, repo_type=DATASET)
            return {item.name: item.target_commit for item in refs.tags}

        return self.ask(call, self.address(repo), "tags")

    def add_tags(self, repo: str, names: Iterable[str], commit: str) -> None:
        """Tag a commit with the names that are no tags yet; others stay where they are."""
        there = self.tags(repo)
        for name in names:
            if name in there:
                continue

            def call(name: str = name) -> bool:
                # with exist_ok: an attempt whose answer was lost has made it already
                self.api.create_tag(repo, tag=name, revision=commit, repo_type=DATASET, exist_ok=True)
                return True

            self.ask(call, self.address(repo), f"tag {name}", needs=WRITE)

    def search(self, tags: Sequence[str], *, text: str | None = None, limit: int = 50) -> list[RepoFound]:
        """Dataset repositories that have every tag, and ``text`` in their names; those changed last come first."""
        properties: Any = ["cardData", "downloads", "lastModified", "likes", "private", "sha", "tags"]

        def call() -> list[RepoFound]:
            options: Any = {"filter": list(tags), "search": text, "sort": "last_modified", "limit": limit}
            return [repo_found_of(item) for item in self.api.list_datasets(expand=properties, **options)]

        return self.ask(call, self.endpoint, "search")
