"""The zoos of these tests are sound and the same every time, and the server answers."""

from collections.abc import Callable
from pathlib import Path

import ckptzoo
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import files_of, grown


def test_zoos_are_sound_and_the_same_every_time(make_zoo: Callable[..., Path]) -> None:
    zoo, again = make_zoo("zoo"), make_zoo("again")
    assert ckptzoo.verify(zoo) == []
    names = [name for name in files_of(zoo) if name.startswith("parts/")]
    assert [files_of(zoo)[name] for name in names] == [files_of(again)[name] for name in names]
    grown(zoo, (4,), start=2)
    assert ckptzoo.verify(zoo) == []
    assert len(ckptzoo.open(zoo)) == 9


def test_the_server_answers(server: Hosted) -> None:
    server.api().create_repo(ZOO, repo_type="dataset")
    server.api().upload_file(
        path_or_fileobj=b"\0" * 2**17, path_in_repo="a.safetensors", repo_id=ZOO, repo_type="dataset"
    )
    assert server.api("read").file_exists(ZOO, "a.safetensors", repo_type="dataset")
