"""What a push refuses, before anything is sent."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.errors import HubError, IntegrityError, ZooError
from ckptzoo.hub.client import Client
from ckptzoo.hub.push import push
from ckptzoo.schema import layout
from ckptzoo.schema.documents import seal
from tests.support.derived_zoos import WRONG
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import ARCH, files_of, grown, pushed, weights_of, zoo_of

Make = Callable[..., Path]


def test_other_zoos_and_other_things_are_refused(server: Hosted, make_zoo: Make, tmp_path: Path) -> None:
    pushed(server, make_zoo("zoo"))
    before = len(server.request_log.acknowledged)
    other = make_zoo("other")
    with pytest.raises(
        HubError, match=r"zoo: expected 'other' of 'optunet', got 'zoo' of 'optunet'\. Push to another repo"
    ):
        pushed(server, other)
    ckptzoo.create(tmp_path / "mlp", arch="mlp-4-3-2")
    with pytest.raises(HubError, match=r"got 'zoo' of 'optunet', whose tensors differ: no 'fc1.weight', .* Push to an"):
        pushed(server, tmp_path / "mlp")
    client = Client(server.url, server.tokens["write"])
    client.create("lab/photos")
    client.commit("lab/photos", {"cat.jpg": b"1"}, title="cat", parent=client.head("lab/photos"))
    with pytest.raises(HubError, match=r"expected a zoo, or an empty one, got 1 files, such as cat\.jpg"):
        push(other, "lab/photos", endpoint=server.url, token=server.tokens["write"])
    assert len(server.request_log.acknowledged) == before + 1
    client.create("lab/fresh")
    client.commit("lab/fresh", {"README.md": b"# soon\n"}, title="soon", parent=client.head("lab/fresh"))
    found = push(other, "hf://datasets/lab/fresh", endpoint=server.url, token=server.tokens["write"])
    assert not found.created and "README.md" in found.documents
    for address in ("./folder", "hf://datasets/lab/zoo@v1", "hf://datasets/lab/zoo/sub", "https://host/zoo", "one"):
        with pytest.raises(ZooError, match="expected org/zoo"):
            push(other, address, endpoint=server.url)
    with pytest.raises(ZooError, match="expected a folder, got nothing"):
        push(tmp_path / "none", ZOO, endpoint=server.url)


def test_more_parts_than_a_folder_holds_are_refused(
    server: Hosted, make_zoo: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo = make_zoo("zoo")
    pushed(server, zoo)
    count = len(list((zoo / "parts").iterdir()))
    monkeypatch.setattr(layout, "MAX_PARTS", count)
    assert not pushed(server, zoo).commits
    grown(zoo, (1,), start=90)
    before = len(server.request_log.acknowledged)
    expected = rf"/parts: parts: expected at most {count}, the entries of a folder on a hub.* --merge-parts --to NEWZOO"
    with pytest.raises(HubError, match=expected):
        pushed(server, zoo)
    assert len(server.request_log.acknowledged) == before


def test_another_table_of_symmetries_is_refused(server: Hosted, tmp_path: Path) -> None:
    zoos = [tmp_path / name / "zoo" for name in ("a", "b")]
    for zoo in zoos:
        zoo.parent.mkdir()
        ckptzoo.create(zoo, arch=ARCH)
        grown(zoo, (1,))
    (zoos[0] / "symmetry.json").write_bytes(files_of(zoo_of(tmp_path / "t"))["symmetry.json"])
    pushed(server, zoos[0])
    (zoos[1] / "symmetry.json").write_bytes(seal(WRONG.to_json()))
    with pytest.raises(HubError, match=r"symmetry\.json: expected digest .* never replaced"):
        pushed(server, zoos[1])


@pytest.mark.parametrize("clash", ["id", "unit"])
def test_what_the_repository_has_under_another_part_is_refused(
    server: Hosted, make_zoo: Make, tmp_path: Path, clash: str
) -> None:
    mine = make_zoo("mine", (3,))
    pushed(server, mine)
    theirs = Path(shutil.copytree(mine, tmp_path / "theirs"))
    for zoo, seed in ((mine, 1), (theirs, 2)):
        writer = ckptzoo.append(zoo)
        row = {"id": "x", "unit": f"u{seed}"} if clash == "id" else {"id": f"x{seed}", "unit": "u"}
        writer.add(weights_of(1, seed), [row])
        writer.commit()
    pushed(server, theirs)
    before = len(server.request_log.entries)
    shown = {
        "id": "checkpoints of parts/000002-.*expected new ones, got 'x'",
        "unit": "units of parts/000002-.*got 'u'",
    }
    with pytest.raises(HubError, match=shown[clash]):
        pushed(server, mine)
    assert not {"upload", "commit"} & {entry.operation for entry in server.request_log.entries[before:]}


def test_a_variant_that_somebody_else_derived_is_refused_or_known(
    server: Hosted, make_zoo: Make, tmp_path: Path
) -> None:
    mine = make_zoo("mine", (3,))
    pushed(server, mine)
    theirs, third = (Path(shutil.copytree(mine, tmp_path / name)) for name in ("theirs", "third"))
    derive(theirs, gauge="canonical", certify="none")
    derive(mine, gauge="canonical", certify="none")
    derive(third, gauge="canonical", certify="none", store="element")
    assert len(pushed(server, theirs).parts) == 1
    assert pushed(server, mine).commits == ()  # the same bytes
    with pytest.raises(HubError, match=r"checkpoints of derived/canonical/.*got 'm0-0', 'm0-1', 'm0-2', which it has"):
        pushed(server, third)


def test_damage_is_found_before_anything_is_sent(server: Hosted, make_zoo: Make) -> None:
    zoo = make_zoo()
    (shard,) = zoo.glob("parts/000002-*/raw-00.safetensors")
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"raw-00\.safetensors: sha256: expected"):  # its size is right
        pushed(server, zoo)
    assert server.request_log.count("upload", "part", "commit") == 0
    shard.unlink()
    with pytest.raises(IntegrityError):
        pushed(server, zoo)
    assert server.request_log.count("create") == 1


def test_a_damaged_part_of_the_repository_is_not_taken_for_the_own(server: Hosted, make_zoo: Make) -> None:
    zoo = make_zoo()
    pushed(server, zoo)
    client = Client(server.url, server.tokens["write"])
    name = next(name for name in client.files(ZOO) if name.endswith("raw-00.safetensors"))
    client.commit(ZOO, {name: b"other bytes"}, title="harm", parent=client.head(ZOO))
    with pytest.raises(
        HubError, match=r"raw-00\.safetensors: expected \d+ bytes with sha256 .*One of the two is damaged"
    ):
        pushed(server, zoo)
    client.commit(ZOO, {}, title="remove", parent=client.head(ZOO), delete=[name])
    found = pushed(server, zoo)  # a part that lacks a file is made whole
    assert len(found.parts) == 1 and found.already == 1


def test_tokens_that_may_not_write_are_refused_before_anything_is_sent(server: Hosted, make_zoo: Make) -> None:
    zoo = make_zoo()
    for role in ("read", "contribute"):
        with pytest.raises(
            HubError, match=rf"expected one that may write, got one of \w+ that may {role}\. Use another"
        ):
            pushed(server, zoo, role)
    with pytest.raises(HubError, match="expected a token that the hub knows, got status 401"):
        push(zoo, ZOO, endpoint=server.url, token="hf_wrong")
    with pytest.raises(HubError, match=r"expected a token, got none\. Log in with hf auth login, or set HF_TOKEN"):
        push(zoo, ZOO, endpoint=server.url)
    assert server.request_log.count("upload", "part", "create") == 0
    pushed(server, zoo)
    assert pushed(server, zoo, "read").commits == ()  # nothing to do needs no leave
