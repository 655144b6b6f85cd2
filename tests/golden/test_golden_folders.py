"""A zoo, a plan and a server's folder as commit 9e2a231 left them: opened, carried on and served.

The zoo was made by ``build toy``, ``derive``, ``make_split`` and ``retract``; of three units of the plan the first was
merged and the second one finished; the server has a public and a private zoo of ``lab``, and a pull request with a
review. Its database was vacuumed to pages of 1 KiB.
"""

import hashlib
import io
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import HfApi
from rich.console import Console

import ckptzoo
from builders.recipe import Recipe
from builders.shared import merge, work
from builders.status import status
from ckptzoo.errors import IntegrityError, ZooError
from ckptzoo.server.app import Application
from ckptzoo.server.run import Serving
from ckptzoo.server.service import Service
from tests.support.hosted import SMALL
from tests.support.hub_clients import isolate_clients

GOLDEN = Path(__file__).parent / "v1-folders"
QUIET = Console(file=io.StringIO())
DIGESTS = {
    "raw": "11a2a9df009d03d0ad196dfd62562df8a2e46cab361ddaf45a251979cfaedfa2",
    "canonical": "b1dfd2a113069f259fc4a1067c61d20328ae294d91ab7d5a48a33f06ac29c2a9",
    "first-weight": "65a637b2d02d559b03db441ba86e5fa2a2e81b66c865796c83cd7a0c2ddd529d",
}
"""Of all tensors of a variant one after the other, as that commit read them; the last one is computed when read."""
ADA, BOB = "hf_" + "b6493cc0aa0829fcc744778220ac3226e0f3357e", "hf_" + "1cad6f2338a6112315c66d9182521475461c5c90"
"""Tokens of an administrator of lab, and of the author of the pull request, for that folder alone."""


def test_the_zoo_opens_and_grows(tmp_path: Path) -> None:
    root = shutil.copytree(GOLDEN / "zoo", tmp_path / "zoo")
    assert ckptzoo.verify(root) == []
    with pytest.warns(UserWarning, match="1 of 4 checkpoints retracted"):
        zoo = ckptzoo.open(root)
    assert zoo.revision == "sha256:99271749821792c0b3dd7bfe7a7bacd26c13b39d7c86392f6b1aaf23518b7653"
    assert zoo.ids == [f"toy-97a5417a-{name}" for name in ("000001-000000", "000000-000080", "000001-000080")]
    assert zoo.variants == tuple(DIGESTS) and zoo.metadata["test_accuracy"].to_pylist() == [0.5, 1.0, 1.0]
    for variant, digest in DIGESTS.items():
        tensors = b"".join(np.asarray(zoo[name, variant]).tobytes() for name in zoo.arch.names)
        assert hashlib.sha256(tensors).hexdigest() == digest
    assert zoo.split("main", "train").ids == zoo.ids
    weights = {tensor.name: np.zeros((1, *tensor.shape), tensor.dtype) for tensor in zoo.arch.tensors}
    with ckptzoo.append(root) as writer:
        writer.add(weights, [{"id": "new"}])
    assert ckptzoo.verify(root) == []


def test_the_plan_is_carried_on(tmp_path: Path) -> None:
    """What it finished without a digest is named, and trained again."""
    root = shutil.copytree(GOLDEN / "plan", tmp_path / "plan")
    recipe = Recipe.of("toy", 2)
    (found,) = status(root)
    with pytest.raises(ZooError, match=r"a plan of an older version\. Name it: python -m builders work RECIPE --to"):
        merge(root)
    assert [unit.state for unit in found.units] == ["merged", "waiting", "waiting"]
    with pytest.raises(IntegrityError, match="toy-97a5417a-000002-000003"):
        merge(root, recipe)
    assert work(root, recipe, console=QUIET).units == 2
    merge(root, recipe)
    assert ckptzoo.open(root).ids == [f"toy-97a5417a-{seed:06d}-000080" for seed in range(6)]
    assert ckptzoo.verify(root) == []


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_the_server_serves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate_clients(tmp_path, monkeypatch)
    root = shutil.copytree(GOLDEN / "server", tmp_path / "server")
    with closing(Service(root)) as service, Serving(Application(service), limits=SMALL) as url:
        ada, bob = (HfApi(endpoint=url, token=token) for token in (ADA, BOB))
        assert ada.whoami()["name"] == "ada" and bob.whoami()["name"] == "bob"
        assert {zoo.id for zoo in ada.list_datasets()} == {"lab/toy", "lab/hidden"}
        assert {zoo.id for zoo in bob.list_datasets()} == {"lab/toy"}
        ckptzoo.pull("lab/toy", tmp_path / "toy", endpoint=url, token=BOB)
        assert ckptzoo.verify(tmp_path / "toy") == [] and len(ckptzoo.open(tmp_path / "toy")) == 1
        request = bob.get_discussion_details("lab/toy", 1, repo_type="dataset")
        assert (request.author, request.status) == ("bob", "open") and len(request.events) >= 2
        assert ckptzoo.review("lab/toy", 1, merge=True, endpoint=url, token=ADA).merged
        assert len(ckptzoo.open("lab/toy", endpoint=url)) == 2
