"""Pull requests made by hand, with whatever is in them."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import CommitOperationAdd, CommitOperationDelete

import ckptzoo
from ckptzoo.format import table
from ckptzoo.format.part import PartWriter
from ckptzoo.hub.contributions.contribute import contribute
from ckptzoo.hub.contributions.duplicates import units
from ckptzoo.hub.contributions.review import Review, review
from ckptzoo.hub.push import push
from ckptzoo.schema.architecture import Tensor
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import ARCH, weights_of
from tests.support.untrusted_files import card_of, heldout_in, saved, state_of

Files = dict[str, bytes | None]


class Tamper:
    """A published zoo, a sound part for it, and pull requests made by hand."""

    def __init__(self, server: Hosted, zoo: Path, tmp_path: Path) -> None:
        self.server, self.zoo, self.data, self.folder = server, zoo, heldout_in(tmp_path / "data"), tmp_path
        self._made: dict[tuple[int, ...], Files] = {}
        push(zoo, ZOO, endpoint=server.url, token=server.tokens["write"])

    def part(self, *seeds: int, **row: Any) -> Files:
        """The files of a part as ``contribute`` makes them, or with rows and weights that are given."""
        if row:
            weights = weights_of(1, 50)
            (unit,) = units(weights)
            return self.written(weights, [{"id": "stranger/x", "unit": unit, "license": "mit", **row}])
        if seeds in self._made:
            return dict(self._made[seeds])
        files = [saved(self.folder / f"net{seed}.safetensors", state_of(seed)) for seed in seeds or (50,)]
        made = contribute(
            files,
            to=ZOO,
            card=card_of(self.folder),
            data=self.data,
            dry_run=True,
            endpoint=self.server.url,
            token=self.server.tokens["contribute"],
        )
        assert made.folder is not None
        found = {f"{made.part}/{path.name}": path.read_bytes() for path in sorted((made.folder / made.part).iterdir())}
        shutil.rmtree(made.folder.parent)
        self._made[seeds] = dict(found)
        return dict(found)

    def written(
        self,
        weights: dict[str, np.ndarray],
        rows: list[dict[str, Any]],
        tensors: Sequence[Tensor] = ARCH.tensors,
        number: int = 3,
        **facts: object,
    ) -> Files:
        """The files of a part with these rows, none of which is checked."""
        root = self.folder / f"scratch{len(list(self.folder.iterdir()))}"
        sets = {"raw": tensors}
        writer = PartWriter(root / "parts", sets=sets, schema=table.METADATA_SCHEMA, facts={"kind": "raw", **facts})
        writer.add({"raw": weights}, [{"finite": True, "member": row.get("id"), **row} for row in rows])
        part = writer.commit(root, refuse=lambda _: None)
        name = f"parts/{number:06d}{part.name[6:]}"
        return {f"{name}/{path.name}": path.read_bytes() for path in sorted((root / "parts" / part.name).iterdir())}

    def propose(self, files: Files, role: str = "contribute") -> int:
        """Open a pull request that adds or deletes files."""
        operations = [
            CommitOperationDelete(name) if data is None else CommitOperationAdd(name, data)
            for name, data in files.items()
        ]
        made = self.server.api(role).create_commit(
            ZOO, operations, commit_message="By hand", repo_type="dataset", create_pr=True
        )
        assert made.pr_num is not None
        return made.pr_num

    def review(self, number: int, *, merge: bool = True, **options: Any) -> Review:
        """Review it, and try to merge it."""
        how = {"data": self.data, "endpoint": self.server.url, "token": self.server.tokens["write"]} | options
        return review(ZOO, number, merge=merge, **how)

    def refused(self, files: Files, check: str, said: str = "", **options: Any) -> Review:
        """A pull request that a check refuses, and that is not merged."""
        found = self.review(self.propose(files), **options)
        wrong = {item.name: item.detail for item in found.checks if item.outcome == "failed"}
        assert check in wrong, found.checks
        assert said in wrong[check], wrong
        assert not found.passed and found.merged is None
        status = self.server.api().get_discussion_details(ZOO, found.number, repo_type="dataset").status
        assert status == "open" and len(ckptzoo.open(ZOO, endpoint=self.server.url)) == 5
        # later ones are compared with those that are open
        self.server.api().change_discussion_status(ZOO, found.number, "closed", repo_type="dataset")
        return found
