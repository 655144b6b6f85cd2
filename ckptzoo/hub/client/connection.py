"""A hub and the token that it is asked with."""

from collections.abc import Callable
from typing import Any, TypeVar

from ckptzoo.errors import MissingExtraError, OfflineError, Problem
from ckptzoo.hub.client.answers import Account
from ckptzoo.hub.client.asking import READ, Bounds, ask
from ckptzoo.hub.client.sending import Sending
from ckptzoo.remote.address import HubAddress
from ckptzoo.remote.held import is_offline
from ckptzoo.remote.hub import PUBLIC, hub_address

T = TypeVar("T")

DATASET = "dataset"


class Connection:
    """A hub and the token that it is asked with; ``api`` is the client library's, and goes no further than this folder.

    Parameters
    ----------
    endpoint, token, bounds : as those of ``Client``.
    """

    def __init__(self, endpoint: str | None = None, token: str | None = None, *, bounds: Bounds | None = None) -> None:
        try:
            from huggingface_hub import HfApi
        except ImportError:
            raise MissingExtraError("huggingface_hub", "hub") from None
        self.api = HfApi(endpoint=endpoint and endpoint.rstrip("/"), token=token, library_name="ckptzoo")
        self.endpoint = self.api.endpoint.rstrip("/")
        self.token, self.bounds = token, bounds or Bounds()
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
        where: str,
        what: str,
        done: Callable[[], T | None] = lambda: None,
        *,
        needs: str = READ,
    ) -> T:
        """The answer to a question; ``done`` looks whether one that failed was carried out."""
        return ask(call, where=where, what=what, bounds=self.bounds, done=done, needs=needs)

    def upload(self, repo: str, sending: Sending, *, revision: str, create_pr: bool = False, needs: str) -> None:
        """Bring the large files to the hub, those that it lacks."""
        how: Any = {"repo_type": DATASET, "revision": revision, "create_pr": create_pr, "free_memory": False}
        for group in sending.groups():

            def call(group: list[Any] = group) -> bool:
                sending.interruptible(lambda: self.api.preupload_lfs_files(repo, group, **how))
                return True

            self.ask(call, self.address(repo), "upload", needs=needs)
            sending.sent(group)
