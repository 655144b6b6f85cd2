"""A whole pull gives the same bytes as the source, and a repeated one brings what is new and nothing else."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.errors import IntegrityError, UnknownNameError, ZooError
from ckptzoo.format.maintenance import LISTING
from ckptzoo.hub.pull import pull
from ckptzoo.remote import OfflineError
from ckptzoo.schema.layout import SHARD_NAME
from tests.hub.pull.conftest import REPO, Publish, verified
from tests.support.hosted import Hosted, push
from tests.support.hub_zoos import files_of, grown, weights_of
from tests.support.serving import Served, running


def shard_answers(server: Hosted, since: int) -> int:
    """How many answers, from one number on, held bytes of shards."""
    return sum(entry.operation == "blob" for entry in server.request_log.entries[since:])


def test_every_byte_is_that_of_the_hub(derived: Path, publish: Publish, tmp_path: Path) -> None:
    server = publish(derived)
    seen: list[tuple[int, int]] = []
    pulled = pull(REPO, tmp_path / "got", endpoint=server.url, progress=lambda *now: seen.append(now))
    assert files_of(tmp_path / "got") == files_of(derived)
    assert verified(tmp_path / "got").ids == ckptzoo.open(derived).ids
    total = sum(len(data) for name, data in files_of(derived).items() if SHARD_NAME.fullmatch(name.rpartition("/")[2]))
    assert seen[0] == (0, total) and seen[-1] == (total, total) and seen == sorted(seen)
    assert (pulled.checkpoints, len(pulled.parts), pulled.there) == (12, 9, 0)
    assert pulled.variants == ("raw", "canonical", "first-weight")
    assert pulled.revision in pulled.to_json().values() and len(pulled.revision) == 40
    assert sorted(path.name for path in (tmp_path / "got" / ".ckptzoo-pull").iterdir()) == ["asked.json"]


def test_a_folder_and_a_repository_give_the_same(derived: Path, publish: Publish, tmp_path: Path) -> None:
    server = publish(derived)
    pull(REPO, tmp_path / "one", endpoint=server.url)
    pull(derived, tmp_path / "two")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_what_is_there_is_not_fetched_again(derived: Path, publish: Publish, tmp_path: Path) -> None:
    source = shutil.copytree(derived, tmp_path / "source" / "zoo")
    server = publish(source)
    pull(REPO, tmp_path / "got", endpoint=server.url)
    before = files_of(tmp_path / "got")
    since = len(server.request_log.entries)
    again = pull(REPO, tmp_path / "got", endpoint=server.url)
    assert (again.parts, again.there, again.fetched) == ((), 9, 0)
    assert shard_answers(server, since) == 0 and files_of(tmp_path / "got") == before

    grown(source, (2,), start=3)
    ckptzoo.retract(source, ["m0-1"], reason="a test")
    (old,) = (source / "snapshots").iterdir()
    ckptzoo.compact(source)
    fresh = files_of(source)
    push(server, {name: data for name, data in fresh.items() if before.get(name) != data and name != LISTING})
    since = len(server.request_log.entries)
    again = pull(REPO, tmp_path / "got", endpoint=server.url)
    assert [path.rpartition("/")[0] for path in again.parts] == ["parts", "derived/retracted"]
    assert (again.there, again.checkpoints) == (9, 13)
    assert shard_answers(server, since) == 1
    assert not (tmp_path / "got" / "snapshots" / old.name).exists()
    with pytest.warns(UserWarning, match="1 of 14 checkpoints retracted"):
        assert len(verified(tmp_path / "got")) == 13
    assert files_of(tmp_path / "got") == {name: data for name, data in fresh.items() if name != LISTING}
    push(server, {LISTING: fresh[LISTING]})
    pull(REPO, tmp_path / "got", endpoint=server.url)
    assert files_of(tmp_path / "got") == fresh


def test_some_variants_with_the_raw_weights_are_parts_as_they_are(derived: Path, tmp_path: Path) -> None:
    pulled = pull(derived, tmp_path / "got", variants=["raw", "canonical"])
    assert pulled.variants == ("raw", "canonical")
    got, all_of = files_of(tmp_path / "got"), files_of(derived)
    lacking = {name for name in all_of if name.startswith(("derived/first-weight", "snapshots", LISTING))}
    assert got.keys() == (all_of.keys() - lacking) | {"croissant.json"}
    assert {name for name in all_of.keys() & got if got[name] != all_of[name]} == {"README.md"}
    text = got["README.md"].decode()
    assert "> This is a part of another zoo. `ckptzoo pull` took 12 of 12 checkpoints from `zoo`" in text
    assert "with variants `canonical, raw`" in text and text.startswith("---\n")
    verified(tmp_path / "got")


def test_blocks_that_were_streamed_before_are_not_fetched_again(wide: Path, publish: Publish, tmp_path: Path) -> None:
    server = publish(wide)
    np.asarray(ckptzoo.open(REPO, endpoint=server.url)["big.weight"])
    pulled = pull(REPO, tmp_path / "got", endpoint=server.url)
    small = sum((wide / name).stat().st_size for name in files_of(wide) if not name.endswith(".safetensors"))
    assert pulled.fetched <= 24 * 64 * 1024 * 4 + small
    assert files_of(tmp_path / "got") == files_of(wide)


@pytest.fixture
def odd(wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo whose headers are padded otherwise, as another writer may do."""
    rows = ckptzoo.open(wide).take(slice(3))
    with monkeypatch.context() as changed:
        changed.setattr("ckptzoo.format.header.PAGE", 512)
        with ckptzoo.create(tmp_path / "odd" / "zoo", arch=rows.arch) as writer:
            writer.add({name: np.asarray(rows[name]) for name in rows.arch.names}, [{"id": name} for name in rows.ids])
    return tmp_path / "odd" / "zoo"


def test_headers_that_cannot_be_told_from_the_index_are_fetched(odd: Path, tmp_path: Path) -> None:
    pull(odd, tmp_path / "got")
    assert files_of(tmp_path / "got") == files_of(odd)
    verified(tmp_path / "got")


def test_parts_of_your_own_stay_and_are_never_doubled(derived: Path, tmp_path: Path) -> None:
    source = shutil.copytree(derived, tmp_path / "source" / "zoo")
    pull(source, tmp_path / "got")
    with ckptzoo.append(tmp_path / "got") as writer:
        writer.add(weights_of(1, 99), [{"id": "mine"}])
    assert pull(source, tmp_path / "got").checkpoints == 13
    derive(tmp_path / "got", certify="none")  # takes the number that the next part of the source has there
    grown(source, (1,), start=7)
    assert pull(source, tmp_path / "got").checkpoints == 14
    derive(tmp_path / "got", certify="none")
    derive(source, certify="none")
    with pytest.raises(ZooError, match=r"derived/canonical: checkpoints: expected new ones.*'m7-0'.*another folder"):
        pull(source, tmp_path / "got")
    verified(tmp_path / "got")


def test_unknown_variants_are_named_with_near_ones(derived: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"variant 'cannonical'.*Did you mean canonical"):
        pull(derived, tmp_path / "got", variants=["raw", "cannonical"])
    assert not (tmp_path / "got").exists()


def test_damage_at_the_source_is_found_and_not_copied(derived: Path, tmp_path: Path) -> None:
    source = shutil.copytree(derived, tmp_path / "source" / "zoo")
    shard = sorted(source.glob("parts/*/raw-00.safetensors"))[1]
    right = shard.read_bytes()
    shard.write_bytes(right[:9000] + bytes([right[9000] ^ 1]) + right[9001:])
    with pytest.raises(IntegrityError, match="sha256 of bytes"):
        pull(source, tmp_path / "got")
    assert not (tmp_path / "got" / "parts" / shard.parent.name).exists()
    shard.write_bytes(right)
    pull(source, tmp_path / "got")
    assert files_of(tmp_path / "got") == files_of(derived)


def test_a_wrong_header_at_the_source_is_repaired_where_it_is_one_of_ours(derived: Path, tmp_path: Path) -> None:
    source = shutil.copytree(derived, tmp_path / "source" / "zoo")
    shard = sorted(source.glob("parts/*/raw-00.safetensors"))[1]
    right = shard.read_bytes()
    shard.write_bytes(right[:40] + bytes([right[40] ^ 1]) + right[41:])
    pull(source, tmp_path / "got")
    assert files_of(tmp_path / "got") == files_of(derived)


def test_a_wrong_header_of_another_writer_is_refused(odd: Path, tmp_path: Path) -> None:
    (shard,) = odd.glob("parts/*/raw-00.safetensors")
    right = shard.read_bytes()
    shard.write_bytes(right[:40] + bytes([right[40] ^ 1]) + right[41:])
    with pytest.raises(IntegrityError, match="sha256 of the whole file"):
        pull(odd, tmp_path / "got")
    assert not list((tmp_path / "got").glob("parts/*"))


def test_from_a_web_server(derived: Path, tmp_path: Path) -> None:
    files = files_of(derived)
    with running(Served({f"/zoo/{name}": data for name, data in files.items()})) as web:
        pull(f"{web.url}/zoo", tmp_path / "got")
        pull(f"{web.url}/zoo", tmp_path / "part", layers=["fc"])
    assert files_of(tmp_path / "got") == {name: data for name, data in files.items() if name != LISTING}
    verified(tmp_path / "part")


def test_offline_says_what_is_missing(
    wide: Path, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = publish(wide)
    pull(REPO, tmp_path / "one", layers=["other"], endpoint=server.url)
    monkeypatch.setenv("CKPTZOO_OFFLINE", "1")
    with pytest.raises(OfflineError, match="bytes missing of parts"):
        pull(REPO, tmp_path / "two", layers=["other"], endpoint=server.url)
    monkeypatch.delenv("CKPTZOO_OFFLINE")
    np.asarray(ckptzoo.open(REPO, endpoint=server.url)["other.weight"])
    monkeypatch.setenv("CKPTZOO_OFFLINE", "1")
    pulled = pull(REPO, tmp_path / "two", layers=["other"], endpoint=server.url)
    assert pulled.fetched == 0 and pulled.checkpoints == 24
    verified(tmp_path / "two")


def test_splits_come_along(derived: Path, publish: Publish, tmp_path: Path) -> None:
    source = shutil.copytree(derived, tmp_path / "source" / "zoo")
    ckptzoo.make_split(source, "main", {"train": 0.5, "test": 0.5})
    ckptzoo.write_split(source, "paper", {"train": ["m0-0", "m1-1"], "test": ["m2-0"]})
    ckptzoo.compact(source)
    server = publish(source)
    remote = ckptzoo.open(REPO, endpoint=server.url)
    assert remote.splits == ("main", "paper") and remote.split("paper", "test").ids == ["m2-0"]
    pull(REPO, tmp_path / "got", endpoint=server.url)
    assert files_of(tmp_path / "got") == files_of(source)
    with running(Served({f"/zoo/{name}": data for name, data in files_of(source).items()})) as served:
        pull(f"{served.url}/zoo", tmp_path / "web")
    assert files_of(tmp_path / "web") == {name: data for name, data in files_of(source).items() if name != LISTING}
    # a part of the zoo, of the same tensors and of fewer: the same members on each side
    for name, options in (("few", {"where": "seed < 2"}), ("fc", {"layers": ["fc"]})):
        for _ in range(2):
            pull(source, tmp_path / name, **options)
        part, whole = verified(tmp_path / name), ckptzoo.open(source)
        for split in whole.splits:
            expected = [id for id in whole.split(split, "train").ids if id in part]
            assert part.split(split, "train").ids == expected
    assert (tmp_path / "few" / "splits" / "main.json").read_bytes() == (source / "splits" / "main.json").read_bytes()


def test_another_split_of_the_same_name_stays(derived: Path, tmp_path: Path) -> None:
    source = shutil.copytree(derived, tmp_path / "source" / "zoo")
    pull(source, tmp_path / "got")
    ckptzoo.make_split(tmp_path / "got", "main", seed=1)
    before = files_of(tmp_path / "got")
    ckptzoo.make_split(source, "main", seed=2)
    with pytest.warns(UserWarning, match="another split 'main' is here already; it stays"):
        pull(source, tmp_path / "got")
    assert files_of(tmp_path / "got") == before


def test_a_damaged_split_is_not_pulled(derived: Path, tmp_path: Path) -> None:
    source = shutil.copytree(derived, tmp_path / "source" / "zoo")
    ckptzoo.make_split(source, "main")
    file = source / "splits" / "main.json"
    file.write_bytes(file.read_bytes().replace(b'"seed":0', b'"seed":1'))
    with pytest.raises(IntegrityError, match=r"splits/main\.json: digest of the content"):
        pull(source, tmp_path / "got")
    assert not (tmp_path / "got").exists()
