"""From an address to the places that it may mean, without looking anything up."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import ZooError
from ckptzoo.remote.address import (
    FilesystemAddress,
    FolderAddress,
    HubAddress,
    WebAddress,
    candidates,
    file_address,
    repository,
)
from tests.support.effort import examples

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "text",
    ["zoos/a/b", "/org/zoo", "./org/zoo", "../zoo", "zoo", "org/zoo/", "a b/c", "org/.zoo", "org/z..o", "-o/zoo"],
)
def test_folders_only(text: str) -> None:
    assert candidates(text) == (FolderAddress(Path(text)),)


def test_home_is_expanded() -> None:
    assert candidates("~/zoo") == (FolderAddress(Path("~/zoo").expanduser()),)


@pytest.mark.parametrize(
    ("text", "repo", "revision"),
    [
        ("org/zoo", "org/zoo", "main"),
        ("a/b", "a/b", "main"),
        ("org/mnist-optunet_2.1", "org/mnist-optunet_2.1", "main"),
        ("org/zoo@v1.0", "org/zoo", "v1.0"),
        ("org/zoo@refs/pr/7", "org/zoo", "refs/pr/7"),
        (f"org/zoo@{SHA}", "org/zoo", SHA),
    ],
)
def test_two_words_are_a_folder_first_and_then_a_repository(text: str, repo: str, revision: str) -> None:
    assert candidates(text) == (FolderAddress(Path(text)), HubAddress(repo, revision))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("hf://datasets/org/zoo", HubAddress("org/zoo")),
        ("HF://datasets/org/zoo/", HubAddress("org/zoo")),
        (f"hf://datasets/org/zoo@{SHA}", HubAddress("org/zoo", SHA)),
        ("hf://datasets/org/zoo@v1/inner/zoo/", HubAddress("org/zoo", "v1", "inner/zoo")),
        ("hf://datasets/org/zoo@refs/pr/3", HubAddress("org/zoo", "refs/pr/3")),
        ("hf://datasets/org/zoo@refs%2Fpr%2F3/in", HubAddress("org/zoo", "refs/pr/3", "in")),
        ("hf://datasets/org/zoo/in", HubAddress("org/zoo", "main", "in")),
        ("hf://datasets/org/zoo@a%2Fb/in", HubAddress("org/zoo", "a/b", "in")),
        ("https://huggingface.co/datasets/org/zoo/tree/a%2Fb/in%20it", HubAddress("org/zoo", "a/b", "in it")),
        ("https://huggingface.co/datasets/org/zoo", HubAddress("org/zoo")),
        ("https://huggingface.co/datasets/org/zoo/tree/v2/in", HubAddress("org/zoo", "v2", "in")),
        ("https://hf.co/datasets/org/zoo/", HubAddress("org/zoo")),
        ("https://Host.example:8443/a/zoo/", WebAddress("https://host.example:8443/a/zoo")),
        ("http://127.0.0.1:8000", WebAddress("http://127.0.0.1:8000")),
        ("s3://bucket/zoo/", FilesystemAddress("s3://bucket/zoo")),
        ("gs://bucket/zoo", FilesystemAddress("gs://bucket/zoo")),
        ("file:///data/zoo", FilesystemAddress("file:///data/zoo")),
        ("simplecache::s3://bucket/zoo", FilesystemAddress("simplecache::s3://bucket/zoo")),
        ("memory://", FilesystemAddress("memory://")),
    ],
)
def test_schemes(text: str, place: object) -> None:
    assert candidates(text) == (place,)


def test_a_bucket_has_no_commits() -> None:
    with pytest.raises(
        ZooError, match=r"got a bucket\. Copy it to this machine, hf buckets sync hf://buckets/o/b FOLDER"
    ):
        candidates("hf://buckets/o/b")


@settings(max_examples=examples(500))
@given(
    st.text("ab%/@.2F", min_size=1, max_size=8).filter(lambda name: "@" not in name and not name.startswith("/")),
    st.text("ab%/@.2F", max_size=8).map(lambda name: name.strip("/")),
)
def test_an_address_that_is_written_is_read_as_it_was(revision: str, folder: str) -> None:
    place = HubAddress("org/zoo", revision, folder)
    assert candidates(str(place)) == (place,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a\0b",
        "hf://org/zoo",
        "hf://datasets/zoo",
        "hf://models/org/zoo",
        "hf://datasets/org/../x",
        "https:///zoo",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ZooError, match="address of a zoo"):
        candidates(text)


@pytest.mark.parametrize(
    "text", ["https://me:secret@host/zoo", "https://host/zoo?sig=secret", "https://host/zoo#secret"]
)
def test_secrets_in_an_address_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ZooError, match="expected https://host/path") as caught:
        candidates(text)
    assert "secret" not in str(caught.value)


def test_an_address_written_out_is_the_same_address() -> None:
    for place in (
        HubAddress("o/z"),
        HubAddress("o/z", "v1"),
        HubAddress("o/z", "refs/pr/1", "in/ner"),
        WebAddress("https://h/z"),
    ):
        assert candidates(str(place)) == (place,)


@pytest.mark.slow
@settings(deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        found = candidates(text)
    except ZooError:
        return
    assert 1 <= len(found) <= 2


@pytest.mark.parametrize("text", ["org/zoo", "hf://datasets/org/zoo/", "https://huggingface.co/datasets/org/zoo"])
def test_a_repository_is_the_whole_of_its_main_branch(text: str) -> None:
    assert repository(text) == "org/zoo"


@pytest.mark.parametrize("text", ["zoo", "/org/zoo", "org/zoo@v1", "hf://datasets/org/zoo/in", "https://host/org/zoo"])
def test_other_addresses_are_no_repository(text: str) -> None:
    with pytest.raises(ZooError, match="repository: expected org/zoo, got another address"):
        repository(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"hf://org/model@{SHA}/a/b.safetensors", HubAddress("org/model", SHA, "a/b.safetensors", "models")),
        (f"hf://datasets/org/name@{SHA}/x%20y@1.pt", HubAddress("org/name", SHA, "x y@1.pt")),
        (f"HF://org/model@{(SHA * 2)[:64]}/x", HubAddress("org/model", (SHA * 2)[:64], "x", "models")),
        ("https://Host.example:8443/A/b.npy", WebAddress("https://host.example:8443/A/b.npy")),
        ("https://host/a%20b.npy?download=1", WebAddress("https://host/a%20b.npy?download=1")),
        ("http://[::1]:8000/x", WebAddress("http://[::1]:8000/x")),
        ("s3://some-bucket/a b/ü.npy", WebAddress("https://some-bucket.s3.amazonaws.com/a%20b/%C3%BC.npy")),
    ],
)
def test_a_file_is_at_one_place(text: str, place: HubAddress | WebAddress) -> None:
    assert file_address(text) == place
    if isinstance(place, HubAddress):
        assert file_address(str(place)) == place


def test_files_of_s3_are_asked_of_the_storage_that_the_user_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000/")
    assert file_address("s3://bucket/x.npy") == WebAddress("http://127.0.0.1:9000/bucket/x.npy")


SECRET = "Geheim12"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x.npy",
        "/etc/passwd",
        "file:///etc/passwd",
        "ftp://host/x",
        "gs://bucket/x",
        "memory://x",
        "simplecache::https://host/x",
        "https://",
        "https:///x",
        "https://host",
        "https://host/",
        "https://host/folder/",
        "https://host:99999/x",
        "https://[::1/x",
        "https://host/a b",
        "https://host/a\\b",
        "https://host/a\nb",
        "https://hóst/x",
        f"https://me:{SECRET}@host/x",
        f"https://{SECRET}@host/x",
        f"https://me:{SECRET}@host:99999/x",
        "https://@host/x",
        f"https://host/x#{SECRET}",
        f"https://host/x?X-Amz-Signature={SECRET}",
        f"https://host/x?sig={SECRET}&se=2027",
        f"https://host/x?Expires=1&Signature={SECRET}",
        f"https://host/x?download=1&token={SECRET}",
        f"https://host/x?{SECRET}",
        f"https://host/x?anything={SECRET}",
        "https://huggingface.co/org/model/resolve/main/x",
        "hf://org/model/x",
        "hf://org/model@main/x",
        "hf://org/model@step1000/x",
        f"hf://org/model@{SHA[:-1]}/x",
        f"hf://org/model@{SHA}",
        f"hf://org/model@{SHA}/",
        f"hf://org/model@{SHA}/../../../api/whoami-v2",
        f"hf://org/model@{SHA}/a/%2e%2e/b",
        f"hf://org/model@{SHA}/a//b",
        f"hf://spaces/org/name@{SHA}/x",
        "hf://buckets/org/name/x",
        "s3://bucket",
        "s3://bucket/",
        "s3://two.words/x",
        "s3://evil.example%2f/x",
        "s3://a/x",
    ],
)
def test_addresses_that_no_reference_has(text: str) -> None:
    with pytest.raises(ZooError) as raised:
        file_address(text)
    message = str(raised.value)
    assert message.isprintable()
    assert SECRET not in message
    assert "expected" in message and message.rstrip().endswith(".")
