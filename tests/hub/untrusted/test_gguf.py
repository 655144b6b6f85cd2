"""Files that gguf-split has cut a network into are not networks, whatever they are called."""

import numpy as np
import pytest

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.untrusted import Limits
from ckptzoo.hub.untrusted.gguf_files import read_gguf
from tests.support.container_files import gguf_file

NETWORK = {"blk.0.w": np.ones((2, 3), np.float32)}


@pytest.mark.parametrize("shards", [2, 3, 65535])
def test_a_shard_is_refused(shards: int) -> None:
    with pytest.raises(
        IntegrityError, match=rf"network: expected a whole one, got one of {shards} files .* gguf-split --merge"
    ):
        read_gguf(gguf_file(NETWORK, shards=shards), location="net.gguf", limits=Limits())


@pytest.mark.parametrize("shards", [None, 0, 1])
def test_a_whole_network_is_read(shards: int | None) -> None:
    read = read_gguf(gguf_file(NETWORK, shards=shards), location="net.gguf", limits=Limits())
    assert (read["state_dict"]["blk.0.w"] == NETWORK["blk.0.w"]).all()
