"""``release``: names what a zoo holds now, in a folder by a document, in a repository by a tag as well."""

import random
import time
from pathlib import Path

from ckptzoo.arguments import checked
from ckptzoo.errors import HubError, Problem, ZooError
from ckptzoo.format.reader import read_contents
from ckptzoo.format.releases import add_release, next_release, read_releases
from ckptzoo.hub.client import Client, HubRetryPolicy, RaceError
from ckptzoo.hub.push.api import MAX_RACES, tag_releases
from ckptzoo.loader.zoo import files_at
from ckptzoo.remote.address import HubAddress, candidates, repository
from ckptzoo.schema import layout
from ckptzoo.schema.release import Release, encode


@checked
def release(
    zoo: str | Path,
    name: str,
    notes: str = "",
    *,
    endpoint: str | None = None,
    token: str | None = None,
    retry_policy: HubRetryPolicy | None = None,
) -> Release:
    """Name what a zoo holds now; the name never comes to mean anything else.

    Parameters
    ----------
    zoo
        its folder, or its repository on a hub, ``org/zoo``.
    name
        small letters, digits, hyphens and dots, such as ``2026-12``.
    notes
        what a person says about it, in Markdown.
    endpoint, token
        of the hub; by default those of huggingface_hub (``HF_ENDPOINT``, ``HF_TOKEN``).
    retry_policy
        how long to go on asking.

    Returns
    -------
    Release
        The new one, or the one that is there with the same notes and revision.

    Raises
    ------
    SpecError
        The name or the notes are none.
    ZooError
        There is another release of this name.
    HubError
        The hub refuses or gives no answer; or the repository has a tag of this name.

    Notes
    -----
    ``ckptzoo.open(zoo, revision=name)`` opens the checkpoints that the zoo has now, ``revision="stable"`` those of its
    newest release. In a repository the document comes by a commit, and a tag of the name stands at that commit, for
    other programs. ``push`` brings the documents of a folder, and tags for those of what the repository holds then;
    ``pull`` brings those of a whole zoo. Tested in ``tests/hub/push/test_naming.py``.

    Examples
    --------
    >>> ckptzoo.release("zoos/few", "2026-12", "Sixteen members.").name
    '2026-12'
    >>> len(ckptzoo.open("zoos/few", revision="stable"))
    16
    """
    if Path(zoo).is_dir():
        return add_release(zoo, name, notes)
    place = candidates(str(zoo))[-1]
    if isinstance(place, HubAddress) and place.folder:
        step = "Release it in its folder, then push the collection: tags are of whole repositories."
        raise ZooError(Problem(str(zoo), "zoo to release", "a folder or a repository", "a folder of one", step))
    client, repo = Client(endpoint, token, retry_policy=retry_policy), repository(str(zoo))
    for _ in range(MAX_RACES):
        try:
            return _released(client, repo, name, notes, token)
        except RaceError:
            # at random, because those who lost the same race would meet again in the next
            time.sleep(random.uniform(0.0, client.retry_policy.first_pause))
    step = "Others publish to it at the same time: try again later."
    raise HubError(Problem(client.address(repo), "commit", f"one of {MAX_RACES} races won", "none", step))


def _released(client: Client, repo: str, name: str, notes: str, token: str | None) -> Release:
    """Commit the document on top of what it names, and tag the commit; raise ``RaceError`` if others came between."""
    head, location = client.head(repo), client.address(repo)
    files = files_at(f"hf://{HubAddress(repo, head).page}@{head}", client.endpoint, token)
    contents = read_contents(files)
    known = read_releases(files, contents.identity)
    made, is_new = next_release(
        known, name, notes, identity=contents.identity, revision=contents.revision, location=location
    )
    if is_new:
        if name in client.tags(repo):
            step = "Choose another name: a tag that others may have read never changes."
            raise HubError(Problem(location, f"tag {name}", "none of the name", "one without a release", step))
        document = {layout.release_file(name): encode(made)}
        head = client.commit(repo, document, title=f"Release {name}", parent=head).commit
    # also where an earlier call was interrupted behind its commit, unless the zoo has grown since
    tag_releases(client, repo, head)
    return made
