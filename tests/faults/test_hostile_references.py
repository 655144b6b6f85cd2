"""Servers of referenced files that lie: nothing hangs, and no bytes but those of the recorded file are handed out."""

import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from ckptzoo.errors import ZooError
from ckptzoo.remote.headers import safetensors_header
from ckptzoo.remote.referenced import RecordedFile, RemoteReferences
from ckptzoo.remote.retry import RetryPolicy
from ckptzoo.schema.layout import Span
from tests.faults.counts import COUNTS
from tests.faults.evil import Answer, Asked, Evil, plain, running
from tests.faults.test_hostile_answers import AT_ONCE, BOUND, LIES, relabelled
from tests.support.effort import ALL

DATA = save({"x": np.random.default_rng(3).standard_normal((200, 100), np.float32)})
TAG = f'"{hashlib.sha256(DATA).hexdigest()[:20]}"'
OTHER = bytes(byte ^ 255 for byte in DATA)


def answered(data: bytes, asked: Asked, **headers: str) -> bytes:
    """A part of the data, as a plain server answers."""
    first, last = map(int, asked.headers["range"].removeprefix("bytes=").split("-"))
    part = data[first : last + 1]
    ranged = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
    return plain(part, status="206 Partial Content", Content_Range=ranged, **{"ETag": TAG, **headers})


LIES_OF_REFERENCES = {
    **LIES,
    "another file of this size, which is said": lambda honest: honest.replace(TAG.encode(), b'"other"'),
    "no ETag any more": lambda honest: honest.replace(b"ETag: ", b"X-Was: "),
    "a weak ETag": lambda honest: honest.replace(b"ETag: ", b"ETag: W/"),
    "another size": lambda honest: honest.replace(f"/{len(DATA)}\r\n".encode(), b"/99999999\r\n"),
    "a size that is not said": lambda honest: honest.replace(f"/{len(DATA)}\r\n".encode(), b"/*\r\n"),
    "the whole file": lambda honest: plain(DATA, ETag=TAG),
    "the whole file, under the status of a part": lambda honest: plain(DATA, status="206 Partial", ETag=TAG),
    "conditions that do not hold": lambda honest: plain(b"", status="412 Precondition Failed"),
    "an encoding": relabelled(Content_Encoding="br"),
    "a redirect to loopback": lambda honest: plain(b"", status="302 There", Location="https://127.0.0.1:1/x"),
    "a redirect to the metadata of a cloud": lambda honest: plain(
        b"", status="307 There", Location="http://169.254.169.254/latest/meta-data/"
    ),
    "a redirect to a password": lambda honest: plain(b"", status="302 There", Location="//me:secret@127.0.0.1:9/x"),
}


def believed(lie: str, stage: str) -> str:
    """Read a file whose server lies; returns what is wrong with what came of it."""
    evil, policy = Evil({}), RetryPolicy(deadline=1.0, connection_deadline=0.5, first_pause=0.05, max_server_wait=1.0)

    def says(asked: Asked) -> Answer:
        if asked.path != "/x.safetensors":
            return plain(b"", status="404 Not Found")
        honest = answered(DATA, asked)
        return LIES_OF_REFERENCES[lie](honest)

    evil.says = says
    try:
        with running(evil):
            address = f"{evil.url}/x.safetensors"
            files = RemoteReferences("linked", servers=[evil.url], retry_policy=policy)
            if stage == "link":
                (found,) = files.each([address], safetensors_header)
                if isinstance(found, ZooError):
                    raise found
                # a size that the server makes up is what is recorded
                fits = found[1] == DATA[8 : 8 + int.from_bytes(DATA[:8], "little")]
                return "" if fits and found[0].size in (len(DATA), 99999999) else "another header"
            files.add([RecordedFile(address, len(DATA), TAG)])
            spans = [Span(address, start, start + 5000, b"") for start in (8, 40_000)]
            for place, block in files.as_ready(spans):
                if bytes(block) != DATA[spans[place].start : spans[place].stop]:
                    return "wrong bytes were handed out"
        return ""
    except ZooError as error:
        text = str(error)
        good = "expected" in text and "got" in text and len(text) < 2000 and text.replace("\n", "").isprintable()
        return "" if good and address in text and "secret" not in text else repr(text)
    except Exception as error:
        return f"not an error of ours: {error!r}"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CKPTZOO_OFFLINE", raising=False)
    yield


@pytest.mark.parametrize("stage", ["link", "read"])
def test_lies(stage: str) -> None:
    found: dict[str, str] = {}
    mine = list(LIES_OF_REFERENCES)[len(LIES) :]
    others = [lie for lie in LIES if lie != "another commit"]
    lies = mine + (others if ALL else others[stage == "read" :: 8])

    def run(lie: str) -> None:
        found[lie] = believed(lie, stage)

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
    COUNTS.inputs["answers about referenced files that break their promises"] += len(found)
