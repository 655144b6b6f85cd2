"""Which names are accepted."""

import re
import unicodedata
from pathlib import PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptzoo.server.errors import Refusal
from ckptzoo.server.names import checked_branch, checked_id, checked_path, checked_user, decoded


@given(st.one_of(st.text(), st.text(alphabet="./\\:~%ab \0\n", max_size=12)))
def test_an_accepted_path_stays_below_its_folder_on_every_system(path: str) -> None:
    try:
        checked_path(path)
    except Refusal as refusal:
        assert refusal.status == 400
        return
    for kind in (PurePosixPath, PureWindowsPath):
        found = kind(path)
        assert not found.is_absolute() and not found.drive and ".." not in found.parts
        assert "/".join(found.parts) == path
    assert not any(unicodedata.category(letter) == "Cc" for letter in path)


@pytest.mark.parametrize(
    "path", ["README.md", ".gitattributes", "parts/0-ab/raw-00.safetensors", "a b/\N{SNOWMAN}+(1)~.txt"]
)
def test_usual_paths_are_accepted(path: str) -> None:
    assert checked_path(path) == path


def test_names_of_users() -> None:
    assert checked_user("ada-1") == "ada-1"
    for name in ("Big Name", "a/b", "", "a--b"):
        with pytest.raises(Refusal, match=r"^User: expected a name of letters"):
            checked_user(name)


def test_paths_have_so_many_levels() -> None:
    assert checked_path("a/" * 31 + "b") == "a/" * 31 + "b"
    with pytest.raises(Refusal, match="32 levels"):
        checked_path("a/" * 32 + "b")


@given(st.text(alphabet="ab.-_/ %A9", max_size=20))
def test_an_accepted_repository_is_one_for_the_client(name: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        checked_id(name)
    except Refusal:
        return
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        pytest.fail(str(error))
    assert re.fullmatch(r"[^/]+/[^/]+", name)


@pytest.mark.parametrize("name", ["main", "try/this", "v1.0", "a+b"])
def test_usual_branches_are_accepted(name: str) -> None:
    assert checked_branch(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", "a/", "a..b", "a//b", "refs/heads/a", "a.lock", "/a", "a b", "a~1", "f" * 40]
)
def test_odd_branches_are_refused(name: str) -> None:
    with pytest.raises(Refusal):
        checked_branch(name)


def test_addresses_are_utf_8() -> None:
    assert decoded("a%2Fb%20%E2%98%83") == "a/b \N{SNOWMAN}"
    with pytest.raises(Refusal):
        decoded("%ff")
