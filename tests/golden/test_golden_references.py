"""Zoos that refer to files stay readable: where each tensor is, and its digests; they were written when files had others'
inodes and times, so that reading names the file."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import ckptzoo
from ckptzoo.errors import ZooError
from ckptzoo.format.digests import check_part, reference_summary
from ckptzoo.format.references import inode_of
from tests.support.serving import hub

GOLDEN = Path(__file__).parent / "v2-references"


def network(number: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng([2310_08287, number])
    weight, bias = draw.normal(size=(2, 3)).astype("f4"), draw.normal(size=3).astype("f2")
    return {"fc.weight": weight, "fc.bias": bias, "counts": np.array([number, 1])}


def test_the_golden_references_lead_to_the_same_bytes(tmp_path: Path) -> None:
    path = shutil.copytree(GOLDEN / "zoo", tmp_path / "zoo")
    files = shutil.copytree(GOLDEN / "files", tmp_path / "files")
    zoo = ckptzoo.open(path, follow=files)
    assert (
        zoo.revision == "sha256:932717d6f55cb065bfae5aa2a959f924c1edea31f22b9d2917eceb0529805f53"
        and ckptzoo.verify(path, deep=False) == []
    )
    assert zoo.ids == ["other", "run-step1", "run-step2"] and zoo.column("finite").to_pylist() == [True] * 3
    with pytest.raises(ZooError, match=r"expected .* Restore the file that was linked"):
        zoo["fc.weight"][:]
    references = zoo.contents.references
    assert references.paths == [
        "other.npz",
        "run/step1.safetensors",
        "run/step2.safetensors",
    ] and references.sources == ["files"]
    assert [layout.to_json() for layout in references.layouts] == [
        {
            "form": "npz",
            "tensors": {
                "fc.weight": ["fc.weight.npy", 191],
                "fc.bias": ["fc.bias.npy", 404],
                "counts": ["counts.npy", 598],
            },
            "header": [[0, 808]],
        },
        {
            "form": "safetensors",
            "tensors": {"counts": ["counts", 0], "fc.weight": ["fc.weight", 16], "fc.bias": ["fc.bias", 40]},
        },
    ]
    status = [(files / name).stat() for name in references.paths]
    assert [size for _, _, size, _, _ in references.facts] == [item.st_size for item in status]
    # as if the files were as they were when they were linked
    references.facts = [
        (base, start, size, inode_of(item), item.st_mtime_ns)
        for (base, start, size, _, _), item in zip(references.facts, status, strict=True)
    ]
    order = [2, 0, 1]
    for name in zoo.arch.names:
        assert zoo[name][:].tobytes() == np.stack([network(number)[name] for number in order]).tobytes()
    assert check_part(zoo.contents, 0).problems == []
    summary = reference_summary(zoo.contents)
    assert summary is not None and (summary.files, summary.blocks, summary.unchecked) == (3, 3, 0)


def test_the_golden_references_to_other_machines_lead_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = GOLDEN.with_name("v2-remote-references")
    for name in ("CKPTZOO_OFFLINE", "HF_HUB_OFFLINE", "HF_TOKEN", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CKPTZOO_CACHE", str(tmp_path / "cache"))
    path = shutil.copytree(golden / "zoo", tmp_path / "zoo")
    files = {
        f"run/step{step}.safetensors": (golden / f"files/run/step{step}.safetensors").read_bytes() for step in (1, 2)
    }
    with hub(files) as (front, _):
        zoo = ckptzoo.open(path, follow=True, endpoint=front.url)
        assert (
            zoo.revision == "sha256:7c601011c3fbc316b515bb025ed1c88356b89fbeab9cd620af616d59fb75c869"
            and ckptzoo.verify(path, deep=False) == []
        )
        assert zoo.ids == ["run-step1", "run-step2", "other"] and zoo.column("finite").to_pylist() == [True, True, None]
        references = zoo.contents.references
        commit = "hf://datasets/org/zoo@c0ffeec0ffeec0ffeec0ffeec0ffeec0ffeebeef/run"
        digests = ["49e522b49fa2aa2b5b3f5d041ce4eff1bc99432e", "614807b432505c72d1e24ec26c1106eb03d3e6b3"]
        assert references.remote_files == [
            (f"{commit}/step1.safetensors", 246, "", f"git:{digests[0]}"),
            (f"{commit}/step2.safetensors", 246, "", f"git:{digests[1]}"),
            ("https://zoo.example/nets/other.safetensors", 246, '"5f3a-61"', None),
        ]
        assert references.sources == ["zoo", "web"] and references.is_remote.all()
        for name in zoo.arch.names:
            assert zoo[name][:2].tobytes() == np.stack([network(number)[name] for number in (1, 2)]).tobytes()
        assert check_part(zoo.contents, 0).problems == []
        summary = reference_summary(zoo.contents)
        assert summary is not None and (summary.files, summary.blocks, summary.unchecked) == (3, 3, 1)
    # references of this machine have no such columns
    assert not ckptzoo.open(GOLDEN / "zoo").contents.references.is_remote.any()
