"""Whether another open pull request brings the same checkpoints."""

import warnings
from itertools import islice

from ckptzoo.errors import ZooError
from ckptzoo.hub.client import Client
from ckptzoo.hub.contributions.report import ReviewCheck, check_result
from ckptzoo.hub.contributions.target_zoo import TargetZoo, open_target
from ckptzoo.loader.zoo import Zoo
from ckptzoo.text import excerpt

MAX_REQUESTS = 20
"""Open pull requests that are looked at, the last ones."""


def check_open_requests(
    client: Client, repo: str, zoo: Zoo, target: TargetZoo, *, number: int | None = None
) -> ReviewCheck:
    """Check that no other open pull request brings one of these checkpoints bit for bit, by their units.

    ``zoo`` is contributed to ``target``; only pull requests before ``number`` count, all where it is None for a new
    one.
    """
    units = dict(zip(zoo.column("unit").to_pylist(), zoo.ids, strict=True))
    wrong: list[str] = []
    earlier = (item for item in client.pull_requests.listed(repo) if number is None or item.number < number)
    for item in islice(earlier, MAX_REQUESTS):
        listing = client.find(repo, item.revision) if item.revision is not None else None
        if listing is None:
            continue
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*retracted", category=UserWarning)
                rows = open_target(client, repo, listing).contents.raw.rows.select(["id", "unit"]).to_pylist()
        except ZooError:
            continue  # it is damaged, which its own review will say
        wrong += [
            f"{units[row['unit']]} is {excerpt(row['id'], 80)} of pull request {item.number}, which is open"
            for row in rows
            if row["unit"] in units and row["id"] not in target.ids
        ]
    return check_result("open requests", wrong, "no other open pull request brings them")
