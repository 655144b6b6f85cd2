"""Sources behind web servers and on hubs: read by ranges, resumed where a transfer breaks off, never stored."""

from pathlib import Path

import pytest

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.hub.imports import import_zoo
from ckptzoo.hub.imports.remote_sources import open_source
from tests.support.hosted import Hosted
from tests.support.published_zoos import FORMATS, packed
from tests.support.serving import Fault, Served, running


@pytest.mark.parametrize("suffix", ["tar", "tgz", "tar.xz", "zip"])
@pytest.mark.sampled(4)
def test_an_archive_behind_a_web_server_gives_the_same_zoo(tmp_path: Path, suffix: str) -> None:
    FORMATS["ray-tune"](tmp_path / "published")
    import_zoo(tmp_path / "published", tmp_path / "zoo")
    archive = packed(tmp_path / "published", tmp_path / f"published.{suffix}")
    before = sorted(tmp_path.rglob("*"))
    with running(Served({"/some/published." + suffix: archive.read_bytes()})) as served:
        served.faults += [Fault("reset", times=2), Fault("short", times=2)]
        import_zoo(f"{served.url}/some/published.{suffix}", tmp_path / "other")
    zoo, other = ckptzoo.open(tmp_path / "zoo"), ckptzoo.open(tmp_path / "other")
    expected = {row["id"]: row for row in zoo.metadata.to_pylist()}
    assert {row["id"]: row for row in other.metadata.to_pylist()} == expected
    new = [path for path in sorted(tmp_path.rglob("*")) if path not in before]
    assert all(path.is_relative_to(tmp_path / "other") for path in new)


def test_what_a_web_server_refuses(tmp_path: Path) -> None:
    with running(Served({"/a.tar": b"x"})) as served, pytest.raises(ZooError, match="status 404"):
        open_source(f"{served.url}/b.tar")
    with pytest.raises(ZooError, match="expected https:// or hf://"):
        open_source("s3://bucket/a.tar")


def test_repositories_of_a_hub_and_archives_in_them(tmp_path: Path, server: Hosted) -> None:
    expected = FORMATS["model-j"](tmp_path / "all" / "nets")
    (tmp_path / "all" / "archives").mkdir()
    packed(tmp_path / "all" / "nets", tmp_path / "all" / "archives" / "nets.tgz")
    api = server.api("write")
    api.create_repo("lab/published", repo_type="dataset")
    api.upload_folder(repo_id="lab/published", repo_type="dataset", folder_path=tmp_path / "all")
    for inside in ("nets", "archives/nets.tgz"):
        address, to = f"hf://datasets/lab/published/{inside}", tmp_path / inside.replace("/", "-")
        result = import_zoo(address, to, license="MIT", endpoint=server.url)
        assert result.added == len(expected), inside
    with pytest.raises(ZooError, match="expected a folder or a file of the repository, got nothing"):
        open_source("hf://datasets/lab/published/none", endpoint=server.url)


def test_a_zoo_of_model_repositories(tmp_path: Path, server: Hosted) -> None:
    expected = FORMATS["model-j"](tmp_path / "nets")
    api, folders = server.api("write"), sorted(path for path in (tmp_path / "nets").iterdir())
    for folder in folders:
        api.create_repo(f"lab/{folder.name}")
        api.upload_folder(repo_id=f"lab/{folder.name}", folder_path=folder)
        for added in (1, 0):  # the second time it is there
            result = import_zoo(f"hf://lab/{folder.name}", tmp_path / "zoo", license="MIT", endpoint=server.url)
            assert result.added == added
    import_zoo(tmp_path / "nets", tmp_path / "other", license="MIT")
    one, other = (ckptzoo.open(tmp_path / name) for name in ("zoo", "other"))
    assert len(one) == len(expected) and sorted(one.ids) == sorted(other.ids)
    for name in one.arch.names:
        assert all((one.checkpoint(id)[name] == other.checkpoint(id)[name]).all() for id in one.ids)
    with pytest.raises(ZooError, match=r"hf://lab/none: repository: expected one that is there"):
        open_source("hf://lab/none", endpoint=server.url)
    with pytest.raises(ZooError, match=r"expected hf://org/model@revision, got hf://lab\. Write hf://datasets"):
        open_source("hf://lab", endpoint=server.url)
