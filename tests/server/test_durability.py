"""What was acknowledged survives the process, whenever it ends."""

import hashlib
import json
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from ckptzoo.errors import ZooError
from ckptzoo.server.service import Service
from ckptzoo.server.store.blobs import Blobs, sync
from tests.support.effort import examples
from tests.support.hosted import ZOO
from tests.support.server_process import PlainClient, server_process, token_for


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(examples(2, 1)))
def test_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    """Three clients commit while the server is killed, twice; the third server has all that was acknowledged to any of them."""
    root, known, commits = tmp_path / "served", dict[str, bytes](), list[str]()
    token, rng = token_for(root), random.Random(seed)
    for turn in range(2):
        with server_process(root) as (server, url):
            clients = [PlainClient(url, token, f"c{turn}{at}", known) for at in range(3)]
            body = json.dumps({"name": "zoo", "organization": "lab", "type": "dataset"}).encode()
            assert clients[0].ask("POST", "/api/repos/create", body)[0] in (200, 409)
            threads = [threading.Thread(target=client.push_until_it_ends) for client in clients]
            for thread in threads:
                thread.start()
            time.sleep(rng.uniform(0.2, 0.6))
            server.send_signal(signal.SIGKILL)
            for thread in threads:
                thread.join()
            commits += [oid for client in clients for oid in client.commits]
    with server_process(root) as (_, url):
        reader = PlainClient(url, token, "reader", known)
        assert list((root / "incoming").iterdir()) == []
        for path, data in known.items():
            assert reader.ask("GET", f"/datasets/{ZOO}/resolve/main/{path}") == (200, data)
        history = json.loads(reader.ask("GET", f"/api/datasets/{ZOO}/commits/main")[1])
        titles = [item["title"] for item in history]
        assert len(set(titles)) == len(titles)
        assert len(known) == 2 * len(commits) > 0
        for oid in commits:
            assert reader.ask("GET", f"/api/datasets/{ZOO}/revision/{oid}")[0] == 200
        reader.push(0)
    for path in (root / "blobs").glob("*/*"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


def test_a_full_disk_is_said_and_harms_nothing(tmp_path: Path) -> None:
    root = tmp_path / "served"
    token, known = token_for(root), dict[str, bytes]()
    with server_process(root, file_size=150_000) as (_, url):
        client = PlainClient(url, token, "c", known)
        body = json.dumps({"name": "zoo", "organization": "lab", "type": "dataset"}).encode()
        assert client.ask("POST", "/api/repos/create", body)[0] == 200
        with pytest.raises(AssertionError):
            client.push(0)
        data = random.Random("c0").randbytes(200_000)
        oid = hashlib.sha256(data).hexdigest()
        asked = json.dumps({"operation": "upload", "objects": [{"oid": oid, "size": len(data)}]}).encode()
        _, answer = client.ask("POST", f"/datasets/{ZOO}.git/info/lfs/objects/batch", asked)
        href = json.loads(answer)["objects"][0]["actions"]["upload"]["href"].partition(client.host)[2]
        status, answer = client.ask("PUT", href, data)
        assert status == 507 and b"disk is full" in answer
        assert list((root / "incoming").iterdir()) == []
    with server_process(root) as (_, url):
        client = PlainClient(url, token, "c", known)
        client.push(0)
        assert client.ask("GET", f"/datasets/{ZOO}/resolve/main/c/0.bin") == (200, known["c/0.bin"])


def test_leftovers_are_removed_at_the_start(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    arriving = blobs.arrive(100)
    arriving.write(b"half")
    upload = blobs.begin_upload()
    part = blobs.arrive_part(upload, 10)
    assert len(list((tmp_path / "incoming").iterdir())) == 2
    kept = blobs.add(b"whole")
    again = Blobs(tmp_path)
    assert list((tmp_path / "incoming").iterdir()) == [] and again.path(kept).read_bytes() == b"whole"
    arriving.discard()
    part.discard()


def test_names_of_folders_are_on_the_disk_before_blobs_are_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of a folder which a process made that was killed before it flushed ``blobs/``."""
    digests = [hashlib.sha256(data).hexdigest() for data in (b"first", b"second")]
    (tmp_path / "blobs" / digests[0][:2]).mkdir(parents=True)
    on_disk, folder = set[str](), tmp_path / "blobs"

    def flushed(path: Path) -> None:
        sync(path)
        if path == folder:
            on_disk.update(entry.name for entry in folder.iterdir())

    monkeypatch.setattr("ckptzoo.server.store.blobs.sync", flushed)
    blobs = Blobs(tmp_path)
    for data, digest in zip((b"first", b"second"), digests, strict=True):
        assert blobs.add(data) == digest and digest[:2] in on_disk


def test_forgotten_parts_are_swept(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    old, new = blobs.begin_upload(), blobs.begin_upload()
    for upload in (old, new):
        blobs.arrive_part(upload, 10).discard()
    os.utime(tmp_path / "incoming" / f"parts-{old}", (0, 0))
    blobs.sweep(60)
    assert [path.name for path in (tmp_path / "incoming").iterdir()] == [f"parts-{new}"]


def test_one_process_serves_a_folder(tmp_path: Path) -> None:
    service = Service(tmp_path)
    with pytest.raises(ZooError, match="one that is running"):
        Service(tmp_path)
    service.close()
    Service(tmp_path).close()
