"""What the request log holds."""

import urllib.request

from tests.support.hosted import ZOO, Hosted, ask, push
from tests.support.server_layers import LoggedRequest


def test_bytes_and_commits_are_counted(zoo: Hosted) -> None:
    data = bytes(1000)
    oid = push(zoo, {"a.safetensors": data, "b.txt": b"b" * 10})
    zoo.request_log.entries.clear()
    address = ask(zoo, "GET", f"/datasets/{ZOO}/resolve/main/a.safetensors").headers["location"]
    ask(zoo, "GET", address, Range="bytes=10-19")
    ask(zoo, "HEAD", address)
    ask(zoo, "GET", f"/datasets/{ZOO}/resolve/main/b.txt")
    path = f"/_blobs/{address.split('/_blobs/')[1].split('?')[0]}"
    assert zoo.request_log.entries[1:3] == [
        LoggedRequest("blob", "GET", path, "bytes=10-19", 206, 0, 10, True),
        LoggedRequest("blob", "HEAD", path, None, 200, 0, 0, True),
    ]
    assert zoo.request_log.sent("blob") == 10 and zoo.request_log.sent("blob", "resolve") == 20
    assert zoo.request_log.count("resolve") == 2
    assert [(found.repository, found.oid) for found in zoo.request_log.acknowledged] == [(f"datasets/{ZOO}", oid)]


def test_it_can_be_read_on_the_same_machine(zoo: Hosted) -> None:
    zoo.api().dataset_info(ZOO)
    with urllib.request.urlopen(f"{zoo.url}/_ledger", timeout=10) as answer:
        assert answer.status == 200
    found = ask(zoo, "GET", "/_ledger").json()
    assert found == zoo.request_log.to_json() and found["entries"][-1]["operation"] == "info"
