"""What training loops recorded goes to a zoo on a hub as one pull request for each gathering, which reviews merge."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptzoo
from ckptzoo.hub.contributions.contribute import contribute
from ckptzoo.hub.contributions.review import review
from ckptzoo.hub.push import push
from ckptzoo.recording.gathering import note_proposed, parts_alone, parts_to_propose
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import ARCH, weights_of
from tests.support.untrusted_files import card_of


@pytest.mark.exhaustive
def test_gathered_parts_are_proposed_and_merged(
    server: Hosted, make_zoo: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(make_zoo("zoo"), ZOO, endpoint=server.url, token=server.tokens["write"])
    mine, card = tmp_path / "mine", card_of(tmp_path)
    numbers: list[int | None] = []
    for step in (100, 200):
        for member in ("a", "b"):
            with ckptzoo.record(mine, arch=ARCH, member=member, dataset="mnist") as run:
                weights = weights_of(1, step + ord(member))
                run.save({name: values[0] for name, values in weights.items()}, step=step)
        ckptzoo.gather(mine)
        monkeypatch.chdir(mine.parent)
        zoo = Path(mine.name)  # as it is written on a command line
        parts = parts_to_propose(zoo, ZOO)
        assert len(parts) == 1
        with parts_alone(zoo, parts) as brought:
            made = contribute([brought], to=ZOO, card=card, endpoint=server.url, token=server.tokens["contribute"])
        assert made.status == "proposed", made.checks
        assert parts_to_propose(zoo, ZOO) == parts  # until it is noted, the same are tried again
        note_proposed(zoo, ZOO, parts)
        assert parts_to_propose(zoo, ZOO) == [] and parts_to_propose(zoo, "lab/other") != []
        numbers.append(made.number)
    for number in numbers:
        assert number is not None
        assert review(ZOO, number, merge=True, endpoint=server.url, token=server.tokens["write"]).merged
    rows = ckptzoo.open(ZOO, endpoint=server.url).metadata.to_pylist()[5:]
    ids = [json.loads(row["extra"])["contributed_as"]["id"] for row in rows]
    assert sorted(ids) == ["a-000100", "a-000200", "b-000100", "b-000200"]
    assert all(row["step"] == int(name[-6:]) for name, row in zip(ids, rows, strict=True))
