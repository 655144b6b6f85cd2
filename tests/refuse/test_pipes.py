"""Named pipes where files are expected: refused, where a plain open would wait for a writer for ever."""

import os

import pytest

import ckptzoo
from ckptzoo.errors import IntegrityError
from ckptzoo.format.header import read_header
from ckptzoo.remote.cache import Cache


@pytest.mark.parametrize("name", ["metadata.parquet", "index.parquet", "raw-00.safetensors", "../../zoo.json"])
def test_a_pipe_in_a_zoo(make_zoo, name):
    path, _ = make_zoo((2,))
    file = next((path / "parts").iterdir()) / name
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(IntegrityError):
        ckptzoo.open(path).ids  # noqa: B018, rows are read when they are asked for
    assert ckptzoo.verify(path)


def test_a_pipe_in_the_cache(tmp_path):
    cache = Cache(tmp_path, "org/zoo", limit=2**20)
    digest = f"sha256:{'0' * 64}"
    blob = cache.folder / "blobs" / "00" / digest.replace(":", "-")
    blob.parent.mkdir(parents=True)
    os.mkfifo(blob)
    assert cache.read(digest) is None


@pytest.mark.parametrize("dtype", [["F32"], {"F32": 1}, None, 4])
def test_a_dtype_that_is_no_text(dtype):
    import json

    text = json.dumps({"w": {"dtype": dtype, "shape": [1], "data_offsets": [0, 4]}}).encode()
    with pytest.raises(IntegrityError, match="dtype of 'w'"):
        read_header(text, file_size=12 + len(text), location="here")
