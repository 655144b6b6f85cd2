"""What training loops recorded goes to a zoo on a hub as one pull request for each gathering, which reviews merge."""

import json
from collections.abc import Callable
from pathlib import Path

import ckptzoo
from ckptzoo.hub.contributions.contribute import contribute
from ckptzoo.hub.contributions.review import review
from ckptzoo.hub.push import push
from ckptzoo.recording.gathering import parts_alone
from tests.support.hosted import ZOO, Hosted
from tests.support.hub_zoos import ARCH, weights_of
from tests.support.untrusted_files import card_of


def test_gathered_parts_are_proposed_and_merged(server: Hosted, make_zoo: Callable[..., Path], tmp_path: Path) -> None:
    push(make_zoo("zoo"), ZOO, endpoint=server.url, token=server.tokens["write"])
    mine, card = tmp_path / "mine", card_of(tmp_path)
    numbers: list[int | None] = []
    for step in (100, 200):
        for member in ("a", "b"):
            with ckptzoo.record(mine, arch=ARCH, member=member, dataset="mnist") as run:
                weights = weights_of(1, step + ord(member))
                run.save({name: values[0] for name, values in weights.items()}, step=step)
        with parts_alone(mine, ckptzoo.gather(mine).parts) as brought:
            made = contribute([brought], to=ZOO, card=card, endpoint=server.url, token=server.tokens["contribute"])
        assert made.status == "proposed", made.checks
        numbers.append(made.number)
    for number in numbers:
        assert number is not None
        assert review(ZOO, number, merge=True, endpoint=server.url, token=server.tokens["write"]).merged
    rows = ckptzoo.open(ZOO, endpoint=server.url).metadata.to_pylist()[5:]
    ids = [json.loads(row["extra"])["contributed_as"]["id"] for row in rows]
    assert ids == ["a-000100", "b-000100", "a-000200", "b-000200"]
    assert [row["step"] for row in rows] == [100, 100, 200, 200]
