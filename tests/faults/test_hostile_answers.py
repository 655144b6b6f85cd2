"""Answers that break HTTP, its headers or its promises: none hangs, none fills the memory, none is believed."""

import gzip
import itertools
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.remote.retry import RetryPolicy
from tests.faults.conftest import defaults
from tests.faults.counts import COUNTS
from tests.faults.evil import API, COMMIT, REPO, Answer, Evil, head, plain, running
from tests.support.effort import ALL
from tests.support.hub_zoos import files_of

BOUND = 60.0
"""Seconds in which all of them have ended, with the policy below."""
AT_ONCE = 12


def endless(first: bytes, again: bytes, pause: float = 0.0) -> Iterator[bytes]:
    """Something, and then the same for ever."""
    yield first
    while True:
        time.sleep(pause)
        yield again


def slowly(data: bytes, pause: float = 0.05) -> Iterator[bytes]:
    """One byte after the other."""
    for at in range(len(data)):
        time.sleep(pause)
        yield data[at : at + 1]


def chunked(body: bytes) -> bytes:
    return head("200 OK", {"Transfer-Encoding": "chunked"}) + body


def ranged(said: str, data: bytes = b"x" * 10) -> Callable[[bytes], bytes]:
    return lambda honest: plain(data, status="206 Partial", Content_Range=said)


def relabelled(**headers: str) -> Callable[[bytes], bytes]:
    """The honest answer, with other headers before its own."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()).encode("latin-1")

    def made(honest: bytes) -> bytes:
        first, _, rest = honest.partition(b"\r\n")
        kept = b"\r\n".join(
            line
            for line in rest.partition(b"\r\n\r\n")[0].split(b"\r\n")
            if line.partition(b":")[0].decode().lower() not in {name.replace("_", "-").lower() for name in headers}
        )
        return first + b"\r\n" + lines + kept + b"\r\n\r\n" + rest.partition(b"\r\n\r\n")[2]

    return made


LIES: dict[str, Callable[[bytes], Answer]] = {
    "another protocol": lambda honest: b"SSH-2.0-OpenSSH_9.2\r\n",
    "no head": lambda honest: honest.partition(b"\r\n\r\n")[2],
    "nothing": lambda honest: b"",
    "a head without end": lambda honest: honest.partition(b"\r\n\r\n")[0],
    "a status of letters": lambda honest: b"HTTP/1.1 fine OK\r\n\r\n",
    "a status too large": lambda honest: b"HTTP/1.1 99999 OK\r\n\r\n",
    "status 204": lambda honest: head("204 No Content", {}),
    "status 304": lambda honest: head("304 Not Modified", {}),
    "status 418": lambda honest: plain(b"tea", status="418 Teapot"),
    "status 100 for ever": lambda honest: endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "headers for ever": lambda honest: endless(b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"b" * 1000 + b"\r\n"),
    "a header for ever": lambda honest: endless(b"HTTP/1.1 200 OK\r\nX-A: ", b"b" * 10_000),
    "a head byte by byte": lambda honest: slowly(b"HTTP/1.1 200 OK\r\nX-A: " + b"b" * 60_000),
    "a body byte by byte": lambda honest: itertools.chain(
        [honest.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"], slowly(honest.partition(b"\r\n\r\n")[2] + b"x" * 99_999)
    ),
    "a length too small": relabelled(Content_Length="5"),
    "a length too large": relabelled(Content_Length="5000000000"),
    "a length below nothing": relabelled(Content_Length="-5"),
    "a length of letters": relabelled(Content_Length="five"),
    "a length beyond integers": relabelled(Content_Length="9" * 5000),
    "two lengths": lambda honest: honest.replace(b"\r\n", b"\r\nContent-Length: 3\r\n", 1),
    "a length and chunks": relabelled(Transfer_Encoding="chunked"),
    "chunks of letters": lambda honest: chunked(b"zz\r\nabc\r\n0\r\n\r\n"),
    "a chunk below nothing": lambda honest: chunked(b"-5\r\nabc\r\n0\r\n\r\n"),
    "a chunk beyond integers": lambda honest: chunked(b"f" * 5000 + b"\r\nabc\r\n0\r\n\r\n"),
    "a chunk that is cut": lambda honest: chunked(b"ffff\r\nabc"),
    "chunks for ever": lambda honest: endless(chunked(b""), b"fff\r\n" + b"a" * 4095 + b"\r\n"),
    "chunk sizes byte by byte": lambda honest: itertools.chain([chunked(b"")], slowly(b"0" * 60_000)),
    "trailers for ever": lambda honest: endless(chunked(b"3\r\nabc\r\n0\r\n"), b"X-A: b\r\n" * 1000),
    "gzip": lambda honest: plain(gzip.compress(b"a" * 1000), Content_Encoding="gzip"),
    "gzip that is none": relabelled(Content_Encoding="gzip"),
    "gzip that is cut": lambda honest: plain(gzip.compress(b"a" * 1000)[:-9], Content_Encoding="gzip"),
    "gzip twice over": relabelled(Content_Encoding="gzip, gzip"),
    "another packing": relabelled(Content_Encoding="br"),
    "a range of letters": ranged("bytes a-b/c"),
    "a range elsewhere": ranged("bytes 1-10/11"),
    "a range beyond integers": ranged(f"bytes 0-{'9' * 5000}/*"),
    "ranges of another kind": ranged("rows 0-9/10"),
    "several ranges": lambda honest: plain(
        b"--a", status="206 Partial", Content_Type="multipart/byteranges; boundary=a"
    ),
    "a range that cannot be": lambda honest: plain(b"", status="416 No", Content_Range="bytes */0"),
    "more than was asked for": lambda honest: honest + b"x" * 100_000,
    "another commit": lambda honest: honest.replace(COMMIT.encode(), b"0" * 40),
    "come back in years": lambda honest: plain(b"", status="429 Busy", Retry_After="99999999999"),
    "come back before": lambda honest: plain(b"", status="503 Busy", Retry_After="Thu, 01 Jan 1970 00:00:00 GMT"),
    "come back at a strange time": lambda honest: plain(b"", status="503 Busy", Retry_After="Thu, 99 Foo 99999"),
    "come back soon, for ever": lambda honest: plain(b"", status="429 Busy", ratelimit='"api";r=0;t=0'),
    "words for a terminal": lambda honest: plain(b"", status="400 No", X_Error_Message="\x1b[2J\x1b]0;x\x07\x9b1m"),
    "many words": lambda honest: plain(b"", status="400 No", X_Error_Message="no " * 20_000),
    "a redirect to a file": lambda honest: plain(b"", status="302 There", Location="file:///etc/passwd"),
    "a redirect to nowhere": lambda honest: plain(b"", status="302 There", Location="http://[::1"),
    "a redirect to a port that is none": lambda honest: plain(b"", status="302 There", Location="http://a:99999999/"),
    "a redirect with blanks": lambda honest: plain(b"", status="302 There", Location="http://127.0.0.1:9/a b\tc"),
    "a redirect in other letters": lambda honest: plain(b"", status="302 There", Location="/\xfc\xdf"),
    "a redirect to another protocol": lambda honest: plain(b"", status="302 There", Location="gopher://127.0.0.1/"),
    "a redirect to itself": lambda honest: plain(b"", status="302 There", Location="?"),
    "a redirect and a body for ever": lambda honest: endless(head("302 There", {"Location": "?"}), b"x" * 10_000),
}
PLACES = {"listing": API, "document": "/zoo.json", "snapshot": "/snapshots/", "shard": ".safetensors"}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry policy of a second, and half of one for a connection."""
    defaults(monkeypatch, RetryPolicy(deadline=1.0, connection_deadline=0.5, first_pause=0.05, max_server_wait=1.0))


def believed(tiny: Path, lie: str, place: str) -> str:
    """Read a zoo whose hub lies; returns what is wrong with what came of it."""
    evil, near = Evil(files_of(tiny)), ckptzoo.open(tiny)
    evil.says = lambda asked: LIES[lie](evil.honest(asked)) if PLACES[place] in asked.path else None
    try:
        with running(evil):
            zoo = ckptzoo.open(f"hf://datasets/{REPO}", endpoint=evil.url)
            same = zoo.ids == near.ids and zoo.metadata.equals(near.metadata)
            for name in near.arch.names:
                same = same and np.asarray(zoo[name]).tobytes() == np.asarray(near[name]).tobytes()
        return "" if same else "wrong bytes were handed out"
    except ZooError as error:
        text = str(error)
        good = "expected" in text and "got" in text and len(text) < 2000 and text.replace("\n", "").isprintable()
        return "" if good else repr(text)
    except Exception as error:
        return f"not an error of ours: {error!r}"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("place", PLACES)
def test_lies(tiny: Path, place: str) -> None:
    """All at once, each from a hub of its own; daemons, so that one that hangs is seen and harms no other test.

    By default each lie is tried at one place.
    """
    found: dict[str, str] = {}
    lies = list(LIES) if ALL else list(LIES)[list(PLACES).index(place) :: len(PLACES)]

    def run(lie: str) -> None:
        found[lie] = believed(tiny, lie, place)

    threads = [threading.Thread(target=run, args=(lie,), name=lie, daemon=True) for lie in lies]
    until = time.monotonic() + BOUND
    for at, thread in enumerate(threads):
        thread.start()
        if at >= AT_ONCE:
            threads[at - AT_ONCE].join(max(0.0, until - time.monotonic()))
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    assert [thread.name for thread in threads if thread.is_alive()] == []
    assert {lie: wrong for lie, wrong in found.items() if wrong} == {} and sorted(found) == sorted(lies)
    COUNTS.inputs["answers that break their promises"] += len(found)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("impatient")
def test_a_listing_that_unpacks_to_gigabytes(tiny: Path) -> None:
    bomb = gzip.compress(gzip.compress(bytes(2**30), 1), 9)
    evil = Evil(files_of(tiny))
    inner = gzip.decompress(bomb)
    evil.says = lambda asked: plain(inner, Content_Encoding="gzip") if API in asked.path else None
    COUNTS.inputs["archive bombs"] += 1
    tracemalloc.start()
    try:
        with running(evil), pytest.raises(ZooError, match="at most 67108864 bytes"):
            ckptzoo.open(f"hf://datasets/{REPO}", endpoint=evil.url)
        assert tracemalloc.get_traced_memory()[1] < 200 * 2**20
    finally:
        tracemalloc.stop()


ASKS: dict[str, Any] = {
    "401": {"status": "401 Who", "WWW_Authenticate": 'Basic realm="hub"'},
    "407": {"status": "407 Who", "Proxy_Authenticate": 'Basic realm="hub"'},
    "302 with a name": {"status": "302 There", "Location": "{url}/again?token=please"},
}


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("asks", ASKS)
def test_another_origin_asks_for_the_token(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    """The hub redirects to another origin, which asks for credentials by every means; it gets none from any of us."""
    from ckptzoo.hub.client import Client
    from ckptzoo.hub.pull import pull

    token = "hf_" + "s3cret" * 6
    monkeypatch.setenv("HF_TOKEN", token)
    defaults(monkeypatch, RetryPolicy(deadline=0.5, connection_deadline=0.5, first_pause=0.05))
    other, front = Evil({}), Evil(files_of(tiny))
    other.says = lambda asked: plain(b"", **{key: text.format(url=other.url) for key, text in ASKS[asks].items()})
    front.says = lambda asked: (
        plain(b"", status="302 There", Location=f"{other.url}/x?Signature=y", X_Repo_Commit=COMMIT)
        if "/resolve/" in asked.path
        else None
    )
    COUNTS.inputs["tokens asked for elsewhere"] += 1
    with running(other), running(front):
        client = Client(front.url)
        acts = (
            lambda: ckptzoo.open(REPO, endpoint=front.url),
            lambda: pull(REPO, tmp_path / "zoo", endpoint=front.url),
            lambda: client.read(REPO, "zoo.json", client.listing(REPO)),
        )
        for act in acts:
            with pytest.raises(ZooError) as caught:
                act()
            assert token not in str(caught.value) and "Signature=y" not in str(caught.value)
    assert other.asked and any(asked.headers.get("authorization") == f"Bearer {token}" for asked in front.asked)
    assert not [asked for asked in other.asked if token in f"{asked.path}{asked.headers}"]
    assert not [asked for asked in other.asked if "authorization" in asked.headers or "cookie" in asked.headers]
