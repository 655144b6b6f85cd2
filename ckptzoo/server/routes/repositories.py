"""Repositories: make, list, describe, change, remove."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse, Response

from ckptzoo.server.call import Call, text_of
from ckptzoo.server.cards import MAX_TEXT, front_matter, tags
from ckptzoo.server.names import KINDS, checked_id
from ckptzoo.server.refusal import Refusal, no_repository
from ckptzoo.server.store import repositories
from ckptzoo.server.store.history import MAIN, Commit, History
from ckptzoo.server.store.repositories import Repository
from ckptzoo.server.store.trees import Trees


def create(call: Call) -> Response:
    """Make a repository; one that exists is answered with 409 and its address."""
    body = call.json()
    kind = _kind(body)
    name = checked_id(f"{text_of(body, 'organization', call.user)}/{text_of(body, 'name')}")
    with call.service.database.writing() as connection:
        exists = repositories.find(connection, kind, name) is not None
        if not exists:
            repositories.create(connection, kind, name, private=_private(body) or False, author=call.user)
    url = f"{call.origin}/{'' if kind == 'model' else f'{kind}s/'}{name}"
    content = {"url": url, "name": name, "id": name}
    if exists:
        return JSONResponse({**content, "error": f"You already created this {kind} repo: {name}"}, 409)
    return JSONResponse(content)


def delete(call: Call) -> Response:
    """Remove a repository."""
    body = call.json()
    name = checked_id(f"{text_of(body, 'organization', call.user)}/{text_of(body, 'name')}")
    with call.service.database.writing() as connection:
        found = repositories.find(connection, _kind(body), name)
        if found is None:
            raise no_repository(name)
        repositories.remove(connection, found)
    return JSONResponse({})


def move(call: Call) -> Response:
    """Give a repository another name."""
    body = call.json()
    old, new = checked_id(text_of(body, "fromRepo")), checked_id(text_of(body, "toRepo"))
    with call.service.database.writing() as connection:
        found = repositories.find(connection, _kind(body), old)
        if found is None:
            raise no_repository(old)
        repositories.move(connection, found, new)
    return JSONResponse({})


def settings(call: Call) -> Response:
    """Hide a repository from those without a token, or show it."""
    body = call.json()
    if body.get("gated"):
        raise Refusal(400, "gated: expected false, this server has private and public repositories only.")
    private = _private(body)
    if private is not None:
        with call.service.database.writing() as connection:
            repositories.set_private(connection, call.repository, private)
    return JSONResponse({"private": call.repository.private if private is None else private})


def listing(call: Call) -> Response:
    """The repositories of a kind that match every word and tag that is asked for, the last made first."""
    query = call.request.query_params
    words = [word.lower() for word in query.getlist("search")]
    wanted = {tag for value in query.getlist("filter") for tag in value.split(",")}
    author = query.get("author")
    found: list[dict[str, Any]] = []
    with call.service.database.reading() as connection:
        for repository in repositories.listed(connection, KINDS[call.raw["kind"]]):
            if repository.private and not call.may("read"):
                continue
            if author is not None and repository.name.split("/")[0] != author:
                continue
            if not all(word in repository.name.lower() for word in words):
                continue
            history, trees = History(connection, repository.id), Trees(connection)
            described = _described(call, repository, history.resolve(MAIN), trees)
            if wanted <= set(described["tags"]):
                found.append(described)
    if query.get("sort") == "lastModified":
        found.sort(key=lambda item: item["lastModified"], reverse=True)
    limit = call.count("limit", call.service.limits.page, call.service.limits.page)
    start = call.count("skip", 0, 10**9) if "skip" in query else 0
    headers = {}
    if start + limit < len(found):
        more = call.request.url.include_query_params(skip=start + limit, limit=limit).query
        headers["Link"] = f'<{call.origin}/api/{call.raw["kind"]}?{more}>; rel="next"'
    return JSONResponse(found[start : start + limit], headers=headers)


def info(call: Call) -> Response:
    """What a repository is at a revision, and the names of all its files."""
    with call.service.database.reading() as connection:
        history, trees = History(connection, call.repository.id), Trees(connection)
        commit = history.resolve(call.piece("revision") or MAIN)
        content = _described(call, call.repository, commit, trees)
        siblings: list[dict[str, Any]] = []
        used = 0
        for path, node in trees.walk(commit.tree):
            if node.folder:
                continue
            file = trees.file(node.oid)
            used += file.size
            sibling: dict[str, Any] = {"rfilename": path}
            if call.is_set("blobs"):
                sibling.update(size=file.size, blobId=file.oid)
                if file.large:
                    sibling["lfs"] = {"size": file.size, "sha256": file.sha256, "pointerSize": file.pointer_size}
            siblings.append(sibling)
    return JSONResponse({**content, "siblings": siblings, "usedStorage": used})


def _described(call: Call, repository: Repository, commit: Commit, trees: Trees) -> dict[str, Any]:
    readme = trees.find(commit.tree, "README.md")
    card: dict[str, Any] = {}
    if readme is not None and not readme.folder:
        file = trees.file(readme.oid)
        card = _card(str(call.service.blobs.path(file.sha256)))
    return {
        "_id": str(repository.id),
        "id": repository.name,
        "author": repository.name.split("/")[0],
        "sha": commit.oid,
        "lastModified": commit.date,
        "createdAt": repository.created,
        "private": repository.private,
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": tags(card),
        "cardData": card,
    }


@lru_cache(maxsize=1024)
def _card(path: str) -> dict[str, Any]:
    """The metadata of a stored README.md, empty where it is not well-formed; a blob never changes."""
    with Path(path).open("rb") as file:
        text = file.read(MAX_TEXT).decode(errors="replace")
    try:
        return front_matter(text)
    except ValueError:
        return {}


def _kind(body: dict[str, Any]) -> str:
    kind = text_of(body, "type", "model")
    if kind not in KINDS.values():
        raise Refusal(400, f"type: expected one of {', '.join(KINDS.values())}, got {kind[:100]!r}.")
    return kind


def _private(body: dict[str, Any]) -> bool | None:
    """What a body says of visibility, in the words of newer clients or of older ones."""
    visibility, private = body.get("visibility"), body.get("private")
    if visibility not in (None, "public", "private") or not isinstance(private, bool | None):
        raise Refusal(400, "visibility: expected public or private.")
    return private if visibility is None else visibility == "private"
