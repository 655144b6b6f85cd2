"""``finish``: the steps of a review after the merge, for a pull request that was merged on the hub's page."""

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import ckptzoo
from ckptzoo.derive.labelled import read_labelled
from ckptzoo.errors import HubError, Problem
from ckptzoo.hub.client import Client
from ckptzoo.hub.client.retry import HubRetryPolicy
from ckptzoo.hub.contributions.completion import complete
from ckptzoo.hub.contributions.evaluation import EvaluatorPool, Factory, own_network
from ckptzoo.hub.contributions.report import summarize
from ckptzoo.hub.contributions.review import MAX_BYTES, Review, compare, fetch
from ckptzoo.hub.contributions.run_checks import StageProgress, check_bytes, measured_figures
from ckptzoo.hub.contributions.target_zoo import TargetZoo, open_target, write_documents
from ckptzoo.remote.address import repository


def finish(
    address: str,
    number: int,
    *,
    module: str | Factory | None = None,
    data: str | Path | None = None,
    inputs: str | Path | None = None,
    max_bytes: int = MAX_BYTES,
    endpoint: str | None = None,
    token: str | None = None,
    retry_policy: HubRetryPolicy | None = None,
    progress: StageProgress | None = None,
) -> Review:
    """Do what ``review(merge=True, derive=True)`` does after the merge, for a pull request that was merged otherwise.

    Figures of rows that have none, every variant and every set of predictions that the zoo has, its page and its
    snapshot are published in one commit; what exists stays. The same call again changes nothing. Parameters are those
    of ``review``. Raises ``HubError``: there is no such pull request, it is not merged, or the zoo has other files than
    those that it brought.
    """
    client, repo = Client(endpoint, token, retry_policy=retry_policy), repository(address)
    own = None if inputs is None else read_labelled(inputs)
    discussion = client.pull_requests.read(repo, number)
    result = Review(repo, number, discussion.title, discussion.author, discussion.status, discussion.url)
    if discussion.revision is None or discussion.status != "merged":
        got = discussion.status if discussion.revision is not None else "a discussion without changes"
        step = f"Review it first: ckptzoo review {repo} {number}."
        raise HubError(Problem(client.address(repo), f"pull request {number}", "one that is merged", got, step))
    changes = compare(client, repo, number, own=frozenset(discussion.commits))
    wrong = [name for name, stored in changes.files.items() if changes.main.files.get(name) != stored]
    sizes = changes.check_sizes(max_bytes)
    if not changes.parts or wrong or sizes.outcome != "passed":
        got = wrong[0] if wrong else sizes.detail if changes.parts else "no new part"
        step = "Derive the zoo in its folder, and push it."
        raise HubError(Problem(client.address(repo), f"pull request {number}", "parts that the zoo has", got, step))
    target = TargetZoo(open_target(client, repo, changes.main))
    with tempfile.TemporaryDirectory(prefix="ckptzoo-review-") as temporary:
        folder, network = Path(temporary, "zoo"), own_network(target.zoo.arch, module)
        write_documents(target, folder)
        fetch(client, repo, changes, folder, None if progress is None else partial(progress, "fetching"))
        check = check_bytes(folder)
        result = replace(
            result, head=changes.head.commit, main=changes.main.commit, parts=changes.parts, checks=(check,)
        )
        if not result.passed:
            return result
        zoo, evaluators = ckptzoo.open(folder), EvaluatorPool(target.zoo.arch, module, data, own)
        measured = measured_figures(
            zoo, target, evaluators, None if progress is None else partial(progress, "measuring")
        )
        notes = complete(
            client, repo, number, folder, measured, derives=True, network=network, data=data, own=own, progress=progress
        )
        entries = summarize(zoo, measured, {})
    return replace(result, entries=entries, merged=discussion.merged or "yes", notes=notes)
