"""Pull requests to the repositories of a hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckptzoo.hub.client.answers import Discussion, PullRequest, discussion_of
from ckptzoo.hub.client.asking import PROPOSE, WRITE
from ckptzoo.hub.client.connection import DATASET, Connection
from ckptzoo.hub.client.sending import Progress, Sending
from ckptzoo.remote.address import MAIN


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
