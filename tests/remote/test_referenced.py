"""Files on other machines that a zoo refers to: read in ranges, many at once, and never another file than was recorded."""

import contextlib
import email.utils
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from ckptzoo.errors import AbsentError, IntegrityError, OfflineError, RemoteError, ZooError
from ckptzoo.remote.address import HubAddress
from ckptzoo.remote.cache import blobs_of, cached_zoos
from ckptzoo.remote.headers import safetensors_header
from ckptzoo.remote.referenced import HEAD_BYTES, RangeFile, RecordedFile, RemoteReferences
from ckptzoo.remote.retry import RetryPolicy
from ckptzoo.schema.layout import Span
from tests.support.effort import examples
from tests.support.ports import free_port
from tests.support.serving import COMMIT, Fault, HubHandler, RangeHandler, Served, running

VALIDATORS = ("strong", "weak", "date")


class Tagged(RangeHandler):
    """States an ETag or a date of each file, and heeds the conditions on it or not."""

    validator = "strong"
    heeds = True

    def stated(self, data: bytes) -> dict[str, str]:
        digest = hashlib.sha256(data).hexdigest()[:16]
        if self.validator == "date":
            return {"Last-Modified": email.utils.formatdate(int(digest, 16) % 2**30, usegmt=True)}
        return {"ETag": {"strong": f'"{digest}"', "weak": f'W/"{digest}"'}[self.validator]} if self.validator else {}

    def answer(self, path: str) -> None:
        data = self.served.files.get(path)
        if data is None:
            return super().answer(path)
        stated = self.stated(data)
        asked = self.headers.get("If-Match") or self.headers.get("If-Unmodified-Since")
        if self.heeds and asked is not None and asked not in stated.values():
            return self.plain(412, b"no", **stated)
        self.file(data, self.served.fault(path), **stated)


@contextlib.contextmanager
def serving(files: dict[str, bytes], **kinds: Any) -> Iterator[Served]:
    with running(Served(files), Tagged, **kinds) as served:
        yield served


def network(seed: int, tensors: int = 3) -> bytes:
    rng = np.random.default_rng(seed)
    return save({f"{at}.weight": rng.standard_normal((64, 65), np.float32) for at in range(tensors)})


def opened(served: Served, quick: RetryPolicy, **options: Any) -> RemoteReferences:
    return RemoteReferences("linked", servers=[served.url], retry_policy=quick, **options)


def recorded(files: RemoteReferences, *addresses: str) -> list[RecordedFile]:
    """What a link records of files, by one request each."""
    found = list(files.each(addresses, lambda file, stream: None))
    for item in found:
        if isinstance(item, ZooError):
            raise item
    return [item[0] for item in found if not isinstance(item, ZooError)]


def read(files: RemoteReferences, spans: list[Span]) -> list[bytes]:
    blocks = dict(files.as_ready(spans))
    return [bytes(blocks[place]) for place in range(len(spans))]


def random_spans(address: str, data: bytes, rng: random.Random, count: int) -> list[Span]:
    """Parts of a file that do not overlap, with their digests and without, in any order."""
    cuts = sorted(rng.sample(range(len(data) + 1), 2 * count))
    pairs = list(zip(cuts[::2], cuts[1::2], strict=True))
    rng.shuffle(pairs)
    digests = [hashlib.sha256(data[start:stop]).digest() for start, stop in pairs]
    return [
        Span(address, start, stop, rng.choice([b"", digest]))
        for (start, stop), digest in zip(pairs, digests, strict=True)
    ]


@pytest.mark.parametrize("validator", VALIDATORS)
def test_ranges_are_those_of_the_files_and_are_asked_for_once(
    validator: str, quick: RetryPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {f"/{at} é.safetensors": network(at) for at in range(6)}
    with serving(contents, validator=validator) as served:
        urls = {f"{served.url}/{at}%20%C3%A9.safetensors": data for at, data in enumerate(contents.values())}
        for seed in range(examples(40, 2)):
            rng = random.Random(seed)
            with opened(served, quick) as files:
                records = recorded(files, *urls)
                assert [file.size for file in records] == [len(data) for data in contents.values()]
                wanted = [span for url, data in urls.items() for span in random_spans(url, data, rng, 3)]
                rng.shuffle(wanted)
                right = [urls[span.name][span.start : span.stop] for span in wanted]
                linked = len(served.seen)
                assert read(files, wanted) == right
                condition = {"strong": "If-Match", "weak": None, "date": "If-Unmodified-Since"}[validator]
                for seen in served.seen[linked:]:
                    conditions = {name for name in seen.headers if name.startswith("If-") and name != "If-Range"}
                    assert conditions == ({condition} if condition else set())
                    assert ("If-Range" in seen.headers) == (validator == "strong")
                assert [bytes(block) for block in files.in_order(wanted)] == right
                asked = len(served.seen)
            again = RemoteReferences("another zoo", servers=[served.url], retry_policy=quick)
            again.add(records)
            assert read(again, wanted) == right and len(served.seen) == asked
            # a stranger's zoo gets nothing from the cache that it may not ask for
            stranger = RemoteReferences("a stranger's", retry_policy=quick)
            stranger.add(records)
            with pytest.raises(RemoteError, match="expected https"):
                read(stranger, [span for span in wanted if not span.sha256])
    with monkeypatch.context() as patched:
        patched.setenv("CKPTZOO_OFFLINE", "1")
        offline = RemoteReferences("linked", servers=[served.url])
        offline.add(records)
        assert read(offline, wanted) == right
        with pytest.raises(OfflineError, match="bytes missing"):
            read(offline, [Span(wanted[0].name, 0, 1, b"")])
        for act in (lambda: offline.open(records[0]), lambda: offline.open("https://host/x")):
            with pytest.raises(OfflineError):
                act()


def test_a_damaged_cache_is_fetched_again(cache: Path, quick: RetryPolicy) -> None:
    data = network(1)
    with serving({"/x": data}) as served, opened(served, quick) as files:
        (file,) = recorded(files, f"{served.url}/x")
        span = Span(file.address, 10, 5000, b"")
        assert read(files, [span]) == [data[10:5000]]
        (blob,) = blobs_of(cache)
        kept = bytearray(blob.path.read_bytes())
        for at in (0, 40, len(kept) - 1):
            damaged = bytearray(kept)
            damaged[at] ^= 1
            blob.path.write_bytes(damaged)
            assert read(files, [span]) == [data[10:5000]]
            assert blob.path.read_bytes() == kept
        blob.path.write_bytes(b"")
        assert read(files, [span]) == [data[10:5000]]
    assert [entry.address for entry in cached_zoos(cache)] == ["references"]


def changed(data: bytes, kind: str) -> bytes | None:
    """The file as it is later."""
    match kind:
        case "a byte":
            return data[:-7] + bytes([data[-7] ^ 1]) + data[-6:]
        case "shrank":
            return data[:-100]
        case "grew":
            return data + b"\0"
        case "another":
            return network(99, 4)
        case "emptied":
            return b""
    return None


CHANGES = ("a byte", "shrank", "grew", "another", "emptied", "removed")


@pytest.mark.parametrize("validator", VALIDATORS)
def test_a_file_that_changed_is_an_error_that_names_it(validator: str, quick: RetryPolicy) -> None:
    """Whether the server heeds conditions or not, and whatever is read of the file."""
    cases = [(kind, heeds) for kind in CHANGES for heeds in (True, False)]
    for kind, heeds in cases:
        data, kept = network(3), network(4)
        contents = {"/x": data, "/kept": kept}
        with serving(contents, validator=validator, heeds=heeds) as served, opened(served, quick) as files:
            file, other = recorded(files, f"{served.url}/x", f"{served.url}/kept")
            now = changed(data, kind)
            del served.files["/x"]
            if now is not None:
                served.files["/x"] = now
            spans = [Span(other.address, 0, 100, b""), Span(file.address, 1000, 2000, b"")]
            last = [spans[0], Span(file.address, len(data) - 50, len(data), b"")]
            whole = [Span(file.address, 0, len(data), hashlib.sha256(data).digest())]
            for wanted in (spans, last, whole):
                handed = list[int]()
                with pytest.raises(AbsentError if kind == "removed" else IntegrityError, match="/x: ") as raised:
                    for place, _ in files.as_ready(wanted):
                        handed.append(place)
                assert set(handed) <= {0} and (wanted is not whole or not handed)
                if kind != "removed":
                    assert "link what is there now" in str(raised.value) or "Tell whoever" in str(raised.value)
            # what is known is asked about too when the file is opened for its header
            with pytest.raises((IntegrityError, AbsentError)):
                files.open(file)


@pytest.mark.parametrize("heeds", [True, False])
def test_a_file_that_changes_while_it_is_read_is_an_error(heeds: bool, quick: RetryPolicy) -> None:
    """The transfer breaks off, and where it is resumed there is another file: no mixture is handed out."""

    class Replaced(Tagged):
        def file(self, data: bytes, fault: Fault | None, **headers: str) -> None:
            super().file(data, fault, **headers)
            if fault is not None:
                self.served.files["/x"] = network(8)

    with running(Served({"/x": network(7)}), Replaced, heeds=heeds) as served, opened(served, quick) as files:
        (file,) = recorded(files, f"{served.url}/x")
        served.faults.append(Fault("reset", 1))
        handed = list[int]()
        with pytest.raises(IntegrityError, match="/x: ETag: expected"):
            for place, _ in files.as_ready([Span(file.address, 100, 40_000, b"")]):
                handed.append(place)
        assert handed == [] and len(served.seen) == 3


def test_an_etag_of_each_answer_is_no_etag(quick: RetryPolicy) -> None:
    """As behind machines that each make an ETag of their own."""

    class Moody(Tagged):
        def stated(self, data: bytes) -> dict[str, str]:
            return {"ETag": f'"{len(self.served.seen)}"'}

    with running(Served({"/x": network(1)}), Moody) as served, opened(served, quick) as files:
        (file,) = recorded(files, f"{served.url}/x")
        with pytest.raises(IntegrityError, match='ETag: expected "1", got "2"'):
            read(files, [Span(file.address, 0, 10, b"")])


def test_a_server_that_tells_nothing_of_changes_or_serves_no_ranges_is_refused(quick: RetryPolicy) -> None:
    with serving({"/x": network(1)}, validator="") as served, opened(served, quick) as files:
        address = f"{served.url}/x"
        with pytest.raises(RemoteError, match=r"an ETag or Last-Modified.*Download the file"):
            recorded(files, address)
    with serving({"/x": network(1), "/empty": b""}) as served, opened(served, quick) as files:
        served.faults.append(Fault("whole", 10**9, path="/x"))
        with pytest.raises(RemoteError, match="a range of the file, and its size, got a whole file"):
            recorded(files, f"{served.url}/x")
        with pytest.raises(ZooError, match="/empty: "):
            recorded(files, f"{served.url}/empty")
        (file,) = [RecordedFile(f"{served.url}/x", len(network(1)), Tagged.stated(Tagged, network(1))["ETag"])]  # pyright: ignore
        files.add([file])
        with pytest.raises(RemoteError, match="the server may not serve ranges"):
            read(files, [Span(file.address, 0, 10, b"")])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fault", ["shifted", "less", "packed", "short", "reset", "hangup", "stall", "trickle", "down"])
def test_answers_that_do_not_fit_end_in_an_error_or_in_the_right_bytes(fault: str, quick: RetryPolicy) -> None:
    data = network(1)
    with serving({"/x": data}) as served:
        for times in (1, 10**9):
            with opened(served, quick) as files:
                (file,) = recorded(files, f"{served.url}/x")
                served.faults[:] = [Fault(fault, times, wait="2" if fault == "stall" else "0.1")]
                span = Span(file.address, times % 7, 5000, b"")
                began = time.monotonic()
                if times == 1:
                    assert read(files, [span]) == [data[span.start : span.stop]]
                else:
                    with pytest.raises(RemoteError, match=r"expected .*, got "):
                        read(files, [span])
                assert time.monotonic() - began < 20
                served.faults.clear()


def test_redirects_are_bounded_and_state_the_validator_of_their_end(quick: RetryPolicy) -> None:
    class Chained(Tagged):
        def answer(self, path: str) -> None:
            count, _, rest = path.removeprefix("/").partition("/")
            if not count.isdecimal():
                return super().answer(path)
            self.plain(302, b"", Location=f"/{int(count) - 1}/{rest}" if int(count) > 1 else f"/{rest}")

    with running(Served({"/x": network(1)}), Chained) as served, opened(served, quick) as files:
        (file,) = recorded(files, f"{served.url}/5/x")
        assert read(files, [Span(file.address, 7, 99, b"")]) == [network(1)[7:99]]
        with pytest.raises(RemoteError, match="at most 5 redirects"):
            recorded(files, f"{served.url}/6/x")


def test_a_file_is_recorded_once_and_with_what_tells_its_changes(quick: RetryPolicy) -> None:
    files = RemoteReferences("linked", retry_policy=quick)
    file = RecordedFile("https://host/x", 10, '"a"')
    files.add([file, file])
    with pytest.raises(IntegrityError, match="https://host/x: reference"):
        files.add([file._replace(size=11)])
    for other in (
        RecordedFile("https://host/y", 10),
        RecordedFile("https://host/y", -1, '"a"'),
        RecordedFile("https://host/y", 10, '"a"\r\nAuthorization: x'),
        RecordedFile("https://host/y", 10, '"' + "a" * 2000),
        RecordedFile("https://host/y", 10, '"a"', "md5:0"),
        RecordedFile(f"hf://org/model@{COMMIT}/x", 10, '"a"'),
    ):
        with pytest.raises(IntegrityError, match="reference: expected a size, and"):
            files.add([other])
    with pytest.raises(ZooError, match="a commit, got main"):
        files.add([RecordedFile("hf://org/model@main/x", 10)])
    with pytest.raises(AbsentError, match="https://host/z"):
        read(files, [Span("https://host/z", 0, 1, b"")])
    for start, stop in ((-1, 5), (5, 5), (5, 11), (0, 2**40)):
        with pytest.raises(IntegrityError):
            read(files, [Span(file.address, start, stop, b"")])


def test_addresses_of_this_machine_are_asked_only_if_the_user_named_them(quick: RetryPolicy) -> None:
    with serving({"/x": network(1)}) as served:
        files = RemoteReferences("stranger's", retry_policy=quick)
        file = RecordedFile(f"{served.url}/x", 100, '"a"')
        files.add([file])
        for act in (lambda: read(files, [Span(file.address, 0, 1, b"")]), lambda: files.open(file.address)):
            with pytest.raises(RemoteError, match=r"server 127\.0\.0\.1: expected https, got http.*named by you"):
                act()
        assert served.seen == []


# headers and directories


class Slow(Tagged):
    """Answers after a while, and notes how many wait at a time."""

    wait = 0.0
    waiting, most = 0, 0

    def answer(self, path: str) -> None:
        with self.served.lock:
            Slow.waiting += 1
            Slow.most = max(Slow.most, Slow.waiting)
        time.sleep(self.wait)
        with self.served.lock:
            Slow.waiting -= 1
        super().answer(path)


@pytest.mark.exhaustive
def test_a_header_is_one_request_and_32_files_are_asked_at_a_time(quick: RetryPolicy) -> None:
    contents = {f"/{at}": network(at) for at in range(64)}
    Slow.most = 0
    with running(Served(contents), Slow, wait=0.2) as served, opened(served, quick) as files:
        began = time.monotonic()
        found = list(files.each([f"{served.url}/{at}" for at in range(64)], safetensors_header))
        seconds = time.monotonic() - began
        assert len(served.seen) == 64 and served.sent <= 64 * HEAD_BYTES
        for at, item in enumerate(found):
            assert not isinstance(item, ZooError)
            file, header = item
            data = contents[f"/{at}"]
            assert file.size == len(data) and header == data[8 : 8 + int.from_bytes(data[:8], "little")]
        first = json.loads(found[0][1])  # pyright: ignore[reportIndexIssue]
        start, stop = (8 + len(found[0][1]) + offset for offset in first["1.weight"]["data_offsets"])  # pyright: ignore[reportIndexIssue]
        served.seen.clear()
        spans = [Span(item[0].address, start, stop, b"") for item in found if not isinstance(item, ZooError)]
        assert read(files, spans) == [data[start:stop] for data in contents.values()]
        assert len(served.seen) == 64 and served.sent == 64 * (stop - start)
    assert Slow.most > 16 and seconds < 8  # one after the other they take 13 s


def test_files_that_cannot_be_had_stop_no_others(quick: RetryPolicy) -> None:
    with serving({"/x": network(1), "/text": b"x" * 100}) as served, opened(served, quick) as files:
        addresses = [f"{served.url}/{name}" for name in ("x", "none", "text", "x")] + ["ftp://host/x"]
        found = list(files.each(addresses, safetensors_header))
        kinds = [type(item) for item in found]
        assert kinds == [tuple, AbsentError, IntegrityError, tuple, ZooError]
        with contextlib.closing(files.each(iter(addresses * 100), safetensors_header)) as some:
            next(some)
        assert len(served.seen) < 200


@pytest.mark.parametrize("extra", [0, 1, 70_000, 400_000])
def test_a_long_header_is_a_second_request(extra: int, quick: RetryPolicy) -> None:
    start = len(save({"x": np.zeros(2**18, np.float32)}, {"note": ""})) - 2**20
    data = save({"x": np.zeros(2**18, np.float32)}, {"note": "a" * (HEAD_BYTES - start + extra)})
    length = 8 + int.from_bytes(data[:8], "little")
    with serving({"/x": data}) as served, opened(served, quick) as files:
        ((_, header),) = [item for item in files.each([f"{served.url}/x"], safetensors_header) if type(item) is tuple]
        assert header == data[8:length]
        assert len(served.seen) == (1 if length <= HEAD_BYTES else 2)
        assert served.sent <= max(2 * HEAD_BYTES, length)


def torch_like(tensors: int, pickle_bytes: int) -> bytes:
    """A zip archive as torch.save writes it: data.pkl first, members stored, the directory at the end."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data.pkl", os.urandom(pickle_bytes))
        for at in range(tensors):
            archive.writestr(f"archive/data/{at}", os.urandom(20_000))
    return made.getvalue()


@pytest.mark.parametrize(
    ("tensors", "pickle_bytes", "requests"),
    [(2, 1000, 1), (20, 1000, 2), (60, 60_000, 2), (60, 300_000, 3), (1500, 5000, 4)],
)
def test_a_torch_file_is_two_requests(tensors: int, pickle_bytes: int, requests: int, quick: RetryPolicy) -> None:
    data = torch_like(tensors, pickle_bytes)

    def directory(file: RecordedFile, stream: Any) -> tuple[list[str], bytes]:
        with zipfile.ZipFile(stream) as archive:
            return archive.namelist(), archive.read("archive/data.pkl")

    with serving({"/x": data}) as served, opened(served, quick) as files:
        (item,) = files.each([f"{served.url}/x"], directory)
        assert not isinstance(item, ZooError)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert item[1] == (archive.namelist(), archive.read("archive/data.pkl"))
        assert len(served.seen) <= requests
        assert served.sent <= 4 * HEAD_BYTES + 2 * pickle_bytes + 300 * tensors


def test_a_range_file_reads_what_the_file_has(quick: RetryPolicy) -> None:
    data = os.urandom(1_000_003)
    with serving({"/x": data}) as served, opened(served, quick) as files:
        for seed in range(examples(60, 5)):
            rng, here = random.Random(seed), io.BytesIO(data)
            there = files.open(f"{served.url}/x")
            assert isinstance(there, RangeFile)
            for _ in range(30):
                if rng.random() < 0.6:
                    whence, most = rng.choice([(0, len(data) + 10), (1, 100_000), (2, 0)])
                    offset = rng.randrange(-100_000, 1) if whence == 2 else rng.randrange(most)
                    assert there.seek(offset, whence) == here.seek(offset, whence)
                count = rng.choice([0, 1, 30, 4096, 70_000, 300_000, -1 if rng.random() < 0.1 else 5])
                assert there.read(count) == here.read(count) and there.tell() == min(here.tell(), there.tell())


# hubs


class Hub(HubHandler):
    """A hub that states the digest of a large file before it redirects, and may be gated."""

    gated = False
    lies: str | None = None
    kind = "datasets"

    def answer(self, path: str) -> None:
        if self.kind == "models":  # whose pages have no prefix
            if "datasets" in self.path:
                return super().plain(404, b"{}", X_Error_Code="RepoNotFound")
            before, after = ("/api/models/", "/api/datasets/") if "/api/" in path else ("/", "/datasets/")
            self.path, path = (text.replace(before, after, 1) for text in (self.path, path))
        if self.gated and self.headers.get("Authorization") != f"Bearer {self.token}":
            return self.plain(
                403, b"{}", X_Error_Code="GatedRepo", X_Error_Message="Access to this model is restricted"
            )
        super().answer(path)

    def plain(self, status: int, data: bytes, **headers: str) -> None:
        if status == 302:
            name = headers["Location"].rpartition("/")[2].partition("?")[0]
            headers["X_Linked_Etag"] = f'"{self.lies or name}"'
        super().plain(status, data, **headers)

    def file(self, data: bytes, fault: Fault | None, **headers: str) -> None:
        if fault is not None and fault.kind == "moved":
            headers["X_Repo_Commit"] = "0" * 40
        super().file(data, fault, **headers)


@contextlib.contextmanager
def hub(files: dict[str, bytes], **kinds: Any) -> Iterator[tuple[Served, Served]]:
    other = Served({f"/{hashlib.sha256(data).hexdigest()}": data for data in files.values()})
    with running(other), running(Served(dict(files)), Hub, elsewhere=other, **kinds) as front:
        yield front, other


FILES = {"a/model x.safetensors": network(1), "small.bin": b"small", "b.safetensors": network(2)}


def from_hub(both: tuple[Served, Served], quick: RetryPolicy, **options: Any) -> RemoteReferences:
    front, other = both
    return RemoteReferences("linked", servers=[other.url], endpoint=front.url, retry_policy=quick, **options)


@pytest.mark.parametrize("kind", ["datasets", "models"])
def test_files_of_a_commit(kind: str, quick: RetryPolicy) -> None:
    with hub(FILES, kind=kind) as both, from_hub(both, quick) as files:
        found = files.repository(HubAddress("org/zoo", kind=kind))
        page = f"hf://{'datasets/' if kind == 'datasets' else ''}org/zoo@{COMMIT}"
        sizes = {f"{page}/{name}": len(data) for name, data in FILES.items()}
        assert {file.address: file.size for file in found} == sizes
        inside = files.repository(HubAddress("org/zoo", folder="a", kind=kind))
        assert [file.address for file in inside] == [f"{page}/a/model x.safetensors"]
        both[0].seen.clear()
        files.add(found)
        by_name = {file.address.partition(f"{COMMIT}/")[2]: file for file in found}
        spans = [Span(by_name[name].address, 1, len(FILES[name]), b"") for name in FILES]
        assert read(files, spans) == [FILES[name][1:] for name in FILES]
        assert len(both[0].seen) == 3 and len(both[1].seen) == 2
        # each file was resolved
        items = list(files.each(found, safetensors_header))
        assert [type(item) for item in items].count(tuple) == 2 and len(both[0].seen) == 4
        # an address alone is enough, too
        assert files.open(by_name["small.bin"].address).read() == b"small"


def test_the_hub_is_named_by_its_endpoint_and_storage_elsewhere_is_not(quick: RetryPolicy) -> None:
    with hub(FILES) as both:
        files = RemoteReferences("linked", endpoint=both[0].url, retry_policy=quick)
        found = {file.address.rpartition("/")[2]: file for file in files.repository(HubAddress("org/zoo"))}
        files.add(found.values())
        assert read(files, [Span(found["small.bin"].address, 0, 5, b"")]) == [b"small"]
        with pytest.raises(RemoteError, match="expected https, got http"):
            read(files, [Span(found["b.safetensors"].address, 0, 5, b"")])
        assert both[1].seen == []


def test_another_hub_than_the_files_are_on_is_named(quick: RetryPolicy) -> None:
    with hub(FILES) as both:
        gone = both[0].url
        absent = f"hf://datasets/org/other@{COMMIT}/small.bin"
        files = RemoteReferences("linked", endpoint=gone, retry_policy=quick)
        files.add([RecordedFile(absent, 5)])
        with pytest.raises(RemoteError, match=rf"another hub than {gone}, set HF_ENDPOINT"):
            read(files, [Span(absent, 0, 5, b"")])
    files = RemoteReferences("linked", endpoint=gone, retry_policy=quick)
    files.add([RecordedFile(absent, 5)])
    with pytest.raises(RemoteError, match=rf"got ConnectionRefusedError.*another hub than {gone}, set HF_ENDPOINT"):
        read(files, [Span(absent, 0, 5, b"")])


def test_a_hub_gets_no_bytes_of_another_from_the_cache(quick: RetryPolicy) -> None:
    """Two hubs that have other files at the same address, as one that somebody runs to be mistaken for the other."""
    with hub(FILES) as one, hub({**FILES, "small.bin": b"SMALL"}) as two:
        address = f"hf://datasets/org/zoo@{COMMIT}/small.bin"
        for both, content in ((one, b"small"), (two, b"SMALL")):
            files = from_hub(both, quick)
            files.add([RecordedFile(address, 5)])
            assert read(files, [Span(address, 0, 5, b"")]) == [content]


def test_references_travel_to_other_processes_without_the_token(quick: RetryPolicy) -> None:
    with hub(FILES, private=True) as both, from_hub(both, quick, token=Hub.token) as files:
        found = files.repository(HubAddress("org/zoo"))
        files.add(found)
        spans = [Span(file.address, 0, file.size, b"") for file in found]
        right = read(files, spans)
        packed = bytes(ForkingPickler.dumps(files))
        assert Hub.token.encode() not in packed
        assert read(ForkingPickler.loads(packed), spans) == right


def test_a_token_goes_to_its_hub_alone(quick: RetryPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", Hub.token)
    with hub(FILES, private=True) as both, from_hub(both, quick) as files, serving({"/x": network(5)}) as web:
        found = files.repository(HubAddress("org/zoo"))
        files.add(found)
        assert len(read(files, [Span(file.address, 0, file.size, b"") for file in found])) == 3
        assert all(seen.headers.get("Authorization") == f"Bearer {Hub.token}" for seen in both[0].seen)
        assert both[1].seen and all("Authorization" not in seen.headers for seen in both[1].seen)
        with opened(web, quick) as elsewhere:
            recorded(elsewhere, f"{web.url}/x")
        assert all("Authorization" not in seen.headers for seen in web.seen)


def test_a_gated_repository_is_named_with_what_to_do(quick: RetryPolicy) -> None:
    with hub(FILES) as both, from_hub(both, quick) as files:
        found = files.repository(HubAddress("org/zoo"))
    with hub(FILES, gated=True) as both:
        sentence = r"hf://datasets/org/zoo.*restricted.*It is gated: ask for access on its page"
        with from_hub(both, quick) as files:
            with pytest.raises(RemoteError, match=sentence):
                files.repository(HubAddress("org/zoo"))
            files.add(found)
            asked = len(both[0].seen)
            with pytest.raises(RemoteError, match=sentence):
                read(files, [Span(found[0].address, 0, 5, b"")])
            assert len(both[0].seen) == asked + 1
        with from_hub(both, quick, token=Hub.token) as files:
            files.add(found)
            assert read(files, [Span(found[-1].address, 0, 5, b"")]) == [b"small"]


def test_a_hub_that_has_another_file_behind_a_commit(quick: RetryPolicy) -> None:
    with hub(FILES, lies="0" * 64) as both, from_hub(both, quick) as files:
        found = files.repository(HubAddress("org/zoo"))
        files.add(found)
        large = next(file for file in found if file.address.endswith("b.safetensors"))
        with pytest.raises(RemoteError, match=f"digest: expected {large.digest}, got sha256:0000"):
            read(files, [Span(large.address, 0, 5, b"")])


def test_a_hub_that_answers_with_another_commit(quick: RetryPolicy) -> None:
    """Also where the file was read before, and whatever of it was asked for then."""
    with hub(FILES) as both, from_hub(both, quick) as files:
        small = next(file for file in files.repository(HubAddress("org/zoo")) if file.address.endswith("small.bin"))
        files.add([small])
        assert read(files, [Span(small.address, 0, 3, b"")]) == [b"sma"]
        both[0].faults.append(Fault("moved", 10**9))
        with pytest.raises(RemoteError, match=f"commit: expected {COMMIT}, got 0000"):
            read(files, [Span(small.address, 3, 5, b"")])


# a real server


@pytest.fixture
def nginx(tmp_path: Path, certificate: Path) -> Iterator[tuple[str, Path]]:
    """A folder behind nginx with TLS."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("needs nginx")
    root, port = tmp_path / "www", free_port()
    root.mkdir()
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{name}_temp_path {tmp_path}/{name};\n" for name in kinds)
    site = f"server {{ listen 127.0.0.1:{port} ssl; root {root}; ssl_certificate {certificate}; "
    site += f"ssl_certificate_key {certificate}; gzip on; gzip_types *; location /weak {{ alias {root}; }} }}"
    (tmp_path / "nginx.conf").write_text(
        f"{'user root; ' if os.geteuid() == 0 else ''}daemon off; pid {tmp_path}/pid; error_log {tmp_path}/errors; events {{}}\n"
        f"http {{ access_log {tmp_path}/access; {folders} {site} }}\n"
    )
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([program, "-c", str(tmp_path / "nginx.conf")], stdout=log, stderr=log)
    try:
        until = time.monotonic() + 20
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            assert process.poll() is None and time.monotonic() < until, (tmp_path / "errors").read_text()
            time.sleep(0.02)
        yield f"https://127.0.0.1:{port}", root
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.slow
def test_files_behind_nginx(
    nginx: tuple[str, Path], certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: RetryPolicy
) -> None:
    url, root = nginx
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    contents = {f"{at}.safetensors": network(at) for at in range(64)}
    for name, data in contents.items():
        (root / name).write_bytes(data)
    with RemoteReferences("linked", servers=[url]) as files:
        found = list(files.each([f"{url}/{name}" for name in contents], safetensors_header))
        assert [item for item in found if isinstance(item, ZooError)] == []
        records = [item[0] for item in found if not isinstance(item, ZooError)]
        assert [file.size for file in records] == [len(data) for data in contents.values()]
        spans = [Span(file.address, 1000, 9000, b"") for file in records]
        assert read(files, spans) == [data[1000:9000] for data in contents.values()]
        lines, until = list[str](), time.monotonic() + 20
        # nginx writes a line when it has done with an answer, which may be after its last byte was read
        while len(lines) < 128 and time.monotonic() < until:
            lines = (tmp_path / "access").read_text().splitlines()
            time.sleep(0.02)
        assert len(lines) == 128 and all('" 206 ' in line for line in lines)
        stranger = RemoteReferences("a stranger's", retry_policy=quick)
        stranger.add(records)
        with pytest.raises(RemoteError, match="expected a public address, got 127"):
            read(stranger, [Span(records[0].address, 0, 10, b"")])
        for at, kind in enumerate(CHANGES):
            now = changed(contents[f"{at}.safetensors"], kind)
            (root / f"{at}.safetensors").unlink()
            if now is not None:
                (root / f"{at}.safetensors").write_bytes(now)
                os.utime(root / f"{at}.safetensors", (time.time() + 5, time.time() + 5))
            with pytest.raises((IntegrityError, AbsentError), match=f"{at}.safetensors"):
                read(files, [Span(records[at].address, 20_000, 20_010, b"")])
        others = [Span(file.address, 1, 99, b"") for file in records[len(CHANGES) :]]
        assert len(read(files, others)) == 64 - len(CHANGES)
    assert threading.active_count() < 40
