"""What users do, each as a case that can be run, judged, and repeated after it failed."""

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ckptzoo
from ckptzoo.hub.contributions.contribute import contribute
from ckptzoo.hub.contributions.review import review
from ckptzoo.hub.pull import pull
from ckptzoo.hub.push import push
from tests.faults.bench import Bench, is_sound, nothing_twice, same_files
from tests.faults.bench import put as put_files
from tests.faults.material import grown, strangers
from tests.support.hub_zoos import files_of

BATCH = 7
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Case(ABC):
    """One operation on a repository of its own.

    Parameters
    ----------
    zoo
        a folder that is not changed.

    Attributes
    ----------
    on_their_way
        files that may come twice, because a server was killed before it could acknowledge them.
    """

    on_their_way = 0

    def __init__(self, bench: Bench, zoo: Path) -> None:
        self.bench, self.server, self.zoo = bench, bench.server, zoo
        self.near = ckptzoo.open(zoo)
        os.environ["CKPTZOO_CACHE"] = str(bench.place())
        self.repo = self.prepare()
        self.since = len(self.server.request_log.entries)

    @abstractmethod
    def prepare(self) -> str:
        """The repository that it is about, made ready; called without faults."""

    def act(self) -> None:
        """The operation; readers compare what they were handed bit by bit."""
        called(self.call())

    def call(self) -> Call:
        """The operation as a function and its arguments, for another process; of readers only those that write."""
        raise NotImplementedError

    def done(self) -> None:
        """Judge what is there after it said that it is done; called without faults."""
        nothing_twice(self.server, self.since, self.repo, on_their_way=self.on_their_way)

    def failed(self) -> None:
        """Judge what is there after it raised; called without faults."""
        nothing_twice(self.server, self.since, self.repo, on_their_way=self.on_their_way)

    def how(self, role: str) -> dict[str, str]:
        """The hub, and a token for a role there."""
        return {"endpoint": self.server.url, "token": self.server.tokens[role]}

    def published(self) -> str:
        """A repository that holds the zoo; one for all who do not change it."""
        repo = f"lab/{self.zoo.parent.name}"
        if not self.server.api().repo_exists(repo, repo_type="dataset"):
            put_files(self.server, repo, files_of(self.zoo))
        return repo

    def fresh(self, files: dict[str, bytes]) -> str:
        """A new repository that holds files."""
        repo = self.bench.repo()
        put_files(self.server, repo, files)
        return repo

    def holds(self, ids: list[str], revision: str = "main") -> Path:
        """The repository holds these checkpoints, each once, right to the last byte, for the client library."""
        down = self.bench.downloaded(self.repo, revision)
        is_sound(down, ids)
        return down


def called(call: Call) -> Any:
    """What a function returns."""
    function, given, named = call
    return function(*given, **named)


class Open(Case):
    """Open a zoo afar and choose some of its checkpoints."""

    def prepare(self) -> str:
        return self.published()

    def act(self) -> None:
        far = ckptzoo.open(self.repo, endpoint=self.server.url)
        assert far.ids == self.near.ids and far.revision == self.near.revision
        chosen = "test_accuracy > 0.1"
        assert far.where(chosen).ids == self.near.where(chosen).ids
        assert far.metadata.equals(self.near.metadata)


class Stream(Case):
    """Stream a layer of a zoo that is open, and read single checkpoints."""

    def prepare(self) -> str:
        repo = self.published()
        self.far = ckptzoo.open(repo, endpoint=self.server.url)
        self.far.where("seed > 2")
        return repo

    def act(self) -> None:
        names = ("conv", "fc.bias")
        mine, theirs = (zoo.stream(*names, batch_size=BATCH, remainder="keep") for zoo in (self.near, self.far))
        for one, two in zip(mine, theirs, strict=True):
            assert one.ids == two.ids
            assert all(one[name].tobytes() == two[name].tobytes() for name in one.tensors)
        assert np.asarray(self.far["fc.weight"])[::5].tobytes() == np.asarray(self.near["fc.weight"])[::5].tobytes()
        for name, array in self.far.checkpoint(self.near.ids[30]).items():
            assert array.tobytes() == self.near.checkpoint(self.near.ids[30])[name].tobytes()


class Fetch(Case):
    """Bring a zoo, or some of it, to a folder."""

    def prepare(self) -> str:
        self.target = self.bench.place()
        return self.published()

    def done(self) -> None:
        super().done()
        assert ckptzoo.verify(self.target, deep=True) == []

    def failed(self) -> None:
        if (self.target / "zoo.json").exists():
            assert ckptzoo.verify(self.target, deep=True) == []
            assert set(ckptzoo.open(self.target).ids) <= set(self.near.ids)


class Pull(Fetch):
    """Fetch a whole zoo."""

    def call(self) -> Call:
        return pull, (self.repo, self.target), {"endpoint": self.server.url}

    def done(self) -> None:
        super().done()
        same_files(self.target, self.zoo)


class Cut(Fetch):
    """Fetch a layer of some checkpoints."""

    def call(self) -> Call:
        how = {"layers": ["fc"], "where": "test_accuracy > 0.05", "endpoint": self.server.url}
        return pull, (self.repo, self.target), how

    def done(self) -> None:
        super().done()
        got, chosen = ckptzoo.open(self.target), self.near.where("test_accuracy > 0.05")
        assert got.ids == chosen.ids
        for name in ("fc.weight", "fc.bias"):
            assert np.asarray(got[name]).tobytes() == chosen[name][:].tobytes()


class Push(Case):
    """Publish a zoo in a new repository."""

    def prepare(self) -> str:
        return self.bench.repo()

    def call(self) -> Call:
        return push, (self.zoo, self.repo), self.how("write")

    def done(self) -> None:
        super().done()
        same_files(self.holds(self.near.ids), self.zoo, but="README.md")  # it names the repository
        assert len(self.bench.commits(self.repo)) == 2  # that of the new repository, and the zoo's


class Grow(Case):
    """Publish what was added, where somebody else has added something meanwhile."""

    def prepare(self) -> str:
        self.mine = Path(shutil.copytree(self.zoo, self.bench.place()))
        theirs = Path(shutil.copytree(self.zoo, self.bench.place()))
        grown(theirs, (5,), label="t", seed=8)
        grown(self.mine, (9, 4), label="n", seed=9)
        self.ids = [*ckptzoo.open(self.mine).ids, *(f"t0-{at}" for at in range(5))]
        repo = self.fresh(files_of(theirs))
        self.before = len(self.bench.commits(repo))
        return repo

    def call(self) -> Call:
        return push, (self.mine, self.repo), self.how("write")

    def done(self) -> None:
        super().done()
        down = self.holds(self.ids)
        assert len(list(down.glob("snapshots/*"))) == 1
        assert len(self.bench.commits(self.repo)) == self.before + 1

    def failed(self) -> None:
        is_sound(down := self.bench.downloaded(self.repo), ckptzoo.open(down).ids)


class Contribute(Case):
    """Bring a stranger's files by a pull request."""

    def prepare(self) -> str:
        self.files, self.card = strangers(self.bench.place())
        repo = self.fresh(files_of(self.zoo))
        self.head = self.bench.commits(repo)[0]
        return repo

    def act(self) -> None:
        made = called(self.call())
        assert made.passed and made.status in ("proposed", "open") and made.number == 1, made

    def call(self) -> Call:
        return contribute, (self.files,), {"to": self.repo, "card": self.card, **self.how("contribute")}

    def done(self) -> None:
        super().done()
        requests = list(self.server.api().get_repo_discussions(self.repo, repo_type="dataset"))
        assert [item.num for item in requests] == [1] and requests[0].status == "open"
        down = self.bench.downloaded(self.repo, "refs/pr/1")
        is_sound(down, [*self.near.ids, *(ckptzoo.open(down).ids[-2:])])
        assert self.bench.commits(self.repo)[0] == self.head

    def failed(self) -> None:
        assert self.bench.commits(self.repo)[0] == self.head


class Merge(Case):
    """Review a stranger's pull request and merge it."""

    def prepare(self) -> str:
        files, card = strangers(self.bench.place())
        repo = self.fresh(files_of(self.zoo))
        made = contribute(files, to=repo, card=card, **self.how("contribute"))
        assert made.number == 1
        self.ids = [*self.near.ids, *(entry.id for entry in made.entries)]
        self.before = len(self.bench.commits(repo))
        os.environ["CKPTZOO_CACHE"] = str(self.bench.place())
        return repo

    def act(self) -> None:
        made = called(self.call())
        assert made.merged or made.status == "merged", made.checks

    def call(self) -> Call:
        return review, (self.repo, 1), {"merge": True, **self.how("write")}

    def done(self) -> None:
        super().done()
        assert self.server.api().get_discussion_details(self.repo, 1, repo_type="dataset").status == "merged"
        self.holds(self.ids)
        # the pull request's, the merge, and that of the page, which is left out where it cannot be made
        assert len(self.bench.commits(self.repo)) - self.before in (2, 3)


OPERATIONS: dict[str, Callable[[Bench, Path], Case]] = {
    "open": Open,
    "stream": Stream,
    "pull": Pull,
    "cut": Cut,
    "push": Push,
    "grow": Grow,
    "contribute": Contribute,
    "merge": Merge,
}
"""What users do, by name."""
