"""A commit: its lines are read as they arrive, its files stored, then everything is decided in one transaction."""

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from anyio import to_thread
from starlette.responses import JSONResponse, Response

from ckptzoo.server.errors import Refusal, no_entry
from ckptzoo.server.names import checked_path
from ckptzoo.server.request import AuthorizedRequest, digest_of, text_of
from ckptzoo.server.store import repositories
from ckptzoo.server.store.commits import PULLS, Commit, History
from ckptzoo.server.store.discussions import Discussions, StoredDiscussion
from ckptzoo.server.store.git_objects import Changes, File, Trees


@dataclass
class _Proposal:
    """What a client wants to commit."""

    title: str | None = None
    description: str = ""
    parent: str | None = None
    operations: list[tuple[str, str, File | None]] = field(default_factory=list)


async def commit(call: AuthorizedRequest) -> Response:
    """Make a commit upon a branch or a pull request, or begin a pull request with it."""
    proposal = _Proposal()
    async for line in _lines(call):
        await to_thread.run_sync(_understand, call, proposal, line)
    if proposal.title is None:
        raise Refusal(400, "Commit: expected a header line, got none.")
    return await to_thread.run_sync(_commit, call, proposal)


async def _lines(call: AuthorizedRequest) -> AsyncIterator[bytes]:
    limits, held, total = call.service.limits, bytearray(), 0
    async for data in call.request.stream():
        total += len(data)
        held += data
        whole: list[bytearray] = []
        if b"\n" in data:
            *whole, held = held.split(b"\n")
        if total > limits.commit_bytes or max(map(len, (*whole, held))) > limits.line_bytes:
            raise Refusal(413, f"Commit: expected at most {limits.commit_bytes} bytes, {limits.line_bytes} a line.")
        for line in whole:
            if line.strip():
                yield bytes(line)
    if held.strip():
        yield bytes(held)


def _understand(call: AuthorizedRequest, proposal: _Proposal, line: bytes) -> None:
    try:
        item = json.loads(line)
        key, value = item["key"], item["value"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Refusal(400, "Commit: expected lines of JSON with a key and a value.") from None
    if not isinstance(value, dict):
        raise Refusal(400, "Commit: expected an object as value.")
    if key == "header":
        proposal.title = text_of(value, "summary")[:1000] or "Update"
        proposal.description = text_of(value, "description", "")[:65536]
        proposal.parent = value.get("parentCommit") and text_of(value, "parentCommit")
        return
    if len(proposal.operations) >= call.service.limits.commit_files:
        raise Refusal(413, f"Commit: expected at most {call.service.limits.commit_files} operations.")
    path = text_of(value, "path")
    checked_path(path.rstrip("/") if key == "deletedFolder" else path)
    file: File | None = None
    if key == "file":
        file = _small(call, value)
    elif key == "lfsFile":
        file = File.apart(digest_of(value, "oid"), -1)
    elif key not in ("deletedFile", "deletedFolder"):
        raise Refusal(400, f"Commit: expected file, lfsFile, deletedFile or deletedFolder, got {str(key)[:100]!r}.")
    proposal.operations.append((str(key), path.rstrip("/"), file))


def _small(call: AuthorizedRequest, value: dict[str, Any]) -> File:
    """Store the bytes of a small file; a commit that fails leaves them behind and harms nobody."""
    content = text_of(value, "content")
    try:
        data = base64.b64decode(content, validate=True) if value.get("encoding") == "base64" else content.encode()
    except ValueError:
        raise Refusal(400, "content: expected base64 or text.") from None
    call.service.blobs.add(data)
    return File.small(data)


def _commit(call: AuthorizedRequest, proposal: _Proposal) -> Response:
    revision, new_pull = call.piece("revision"), call.is_set("create_pr")
    with call.service.database.writing() as connection:
        history, trees = History(connection, call.repository.id), Trees(connection)
        discussions = Discussions(connection, call.repository.id)
        ref = history.writable(revision)
        head = history.resolve(ref)
        base = history.resolve(proposal.parent) if new_pull and proposal.parent else head
        pull = None
        if new_pull:
            pull = discussions.create(
                title=(proposal.title or "")[:200],
                author=call.user,
                description=proposal.description,
                base=base.oid,
                target=ref,
            )
        elif ref.startswith(PULLS):
            pull = discussions.get(int(ref.removeprefix(PULLS)))
        _check_access(call, pull)
        if not new_pull and proposal.parent not in (None, head.oid):
            message = f"A commit has happened since. Expected parent {head.oid}, got {proposal.parent}."
            raise Refusal(412, message)
        tree = trees.changed(base.tree, _changes(call, proposal, base, trees))
        author, title = call.user, proposal.title or ""
        oid = history.add(tree, (base.oid,), author=author, title=title, message=proposal.description)
        history.point(ref if pull is None else pull.ref, oid)
        if pull is not None:
            discussions.note(pull.number, "commit", author, {"subject": title, "oid": oid})
    content = {"success": True, "commitOid": oid, "commitUrl": f"{call.address}/commit/{oid}", "hookOutput": ""}
    if new_pull and pull is not None:
        content["pullRequestUrl"] = f"{call.address}/discussions/{pull.number}"
    return JSONResponse(content)


def _check_access(call: AuthorizedRequest, pull: StoredDiscussion | None) -> None:
    """Who may not write may still commit to a pull request of their own while it is open."""
    if pull is not None and pull.status not in ("draft", "open"):
        raise Refusal(403, f"Pull request {pull.number}: expected an open one, it is {pull.status}.")
    if not call.may("write") and (pull is None or pull.author != call.user):
        raise Refusal(403, "Expected a token that may write, or a pull request of your own (create_pr).")


def _changes(call: AuthorizedRequest, proposal: _Proposal, base: Commit, trees: Trees) -> Changes:
    changes: Changes = {}
    for key, path, file in proposal.operations:
        if key == "deletedFolder":
            node = trees.find(base.tree, path)
            if node is None or not node.folder:
                raise no_entry(path)
            changes.update({below: None for below, inner in trees.walk(node.oid, path) if not inner.folder})
        elif key == "deletedFile":
            node = trees.find(base.tree, path)
            if changes.get(path) is None and (node is None or node.folder):
                raise no_entry(path)
            changes[path] = None
        else:
            assert file is not None
            if file.large:
                file = _held(call, file.sha256, path, trees)
            trees.add_file(file)
            changes[path] = file.oid
    return changes


def _held(call: AuthorizedRequest, sha256: str, path: str, trees: Trees) -> File:
    """A large file that the repository was given."""
    size = repositories.given(trees.connection, call.repository.id, sha256)
    if size is None:
        raise Refusal(400, f"{path}: expected content that was uploaded to this repository, {sha256} was not.")
    return File.apart(sha256, size)
