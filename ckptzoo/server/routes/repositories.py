"""Repositories: make, list, describe, change, remove.

Branches, tags and the commits behind them.

Who am I, may I, and is this card well-formed.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse, Response

from ckptzoo.server.errors import Refusal, no_repository
from ckptzoo.server.names import KINDS, checked_branch, checked_id
from ckptzoo.server.request import AuthorizedRequest, text_of
from ckptzoo.server.responses import MAX_TEXT, front_matter, tags
from ckptzoo.server.store import repositories
from ckptzoo.server.store.commits import HEADS, MAIN, PULLS, TAGS, Commit, History
from ckptzoo.server.store.discussions import Discussions
from ckptzoo.server.store.git_objects import Trees
from ckptzoo.server.store.repositories import Repository


def create(call: AuthorizedRequest) -> Response:
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


def delete(call: AuthorizedRequest) -> Response:
    """Remove a repository."""
    body = call.json()
    name = checked_id(f"{text_of(body, 'organization', call.user)}/{text_of(body, 'name')}")
    with call.service.database.writing() as connection:
        found = repositories.find(connection, _kind(body), name)
        if found is None:
            raise no_repository(name)
        repositories.remove(connection, found)
    return JSONResponse({})


def move(call: AuthorizedRequest) -> Response:
    """Give a repository another name."""
    body = call.json()
    old, new = checked_id(text_of(body, "fromRepo")), checked_id(text_of(body, "toRepo"))
    with call.service.database.writing() as connection:
        found = repositories.find(connection, _kind(body), old)
        if found is None:
            raise no_repository(old)
        repositories.move(connection, found, new)
    return JSONResponse({})


def settings(call: AuthorizedRequest) -> Response:
    """Hide a repository from those without a token, or show it."""
    body = call.json()
    if body.get("gated"):
        raise Refusal(400, "gated: expected false, this server has private and public repositories only.")
    private = _private(body)
    if private is not None:
        with call.service.database.writing() as connection:
            repositories.set_private(connection, call.repository, private)
    return JSONResponse({"private": call.repository.private if private is None else private})


def listing(call: AuthorizedRequest) -> Response:
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


def info(call: AuthorizedRequest) -> Response:
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


def _described(call: AuthorizedRequest, repository: Repository, commit: Commit, trees: Trees) -> dict[str, Any]:
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


def refs(call: AuthorizedRequest) -> Response:
    """Every branch and tag, and on demand every pull request, with its commit."""
    with call.service.database.reading() as connection:
        found = History(connection, call.repository.id).refs()

    def under(start: str) -> list[dict[str, str]]:
        return [
            {"name": name.removeprefix(start), "ref": name, "targetCommit": oid}
            for name, oid in found.items()
            if name.startswith(start)
        ]

    content = {"branches": under(HEADS), "tags": under(TAGS), "converts": []}
    if call.is_set("include_prs"):
        content["pullRequests"] = [{**item, "name": item["ref"]} for item in under(PULLS)]
    return JSONResponse(content)


def commits(call: AuthorizedRequest) -> Response:
    """A page of commits, the last first."""
    size, page = call.service.limits.small_page, 0
    if call.query.get("p", "").isdigit():
        page = min(int(call.query["p"]), 10**9)
    with call.service.database.reading() as connection:
        history = History(connection, call.repository.id)
        head = history.resolve(call.piece("revision"))
        found = history.log(head.oid, size + 1, page * size)
    content: list[dict[str, Any]] = [
        {
            "id": commit.oid,
            "title": commit.title,
            "message": commit.message,
            "date": commit.date,
            "authors": [{"user": commit.author, "avatar": ""}],
        }
        for commit in found[:size]
    ]
    if "formatted" in call.request.query_params.getlist("expand[]"):
        for item in content:
            item["formatted"] = {"title": item["title"], "message": item["message"]}
    headers = {}
    if len(found) > size:
        address = f"{call.origin}/api/{call.repository.kind}s/{call.repository.name}/commits/{head.oid}"
        headers["Link"] = f'<{address}?p={page + 1}>; rel="next"'
    return JSONResponse(content, headers=headers)


def create_branch(call: AuthorizedRequest) -> Response:
    """A new branch at a revision."""
    return _create(call, HEADS, call.piece("name"), call.json().get("startingPoint") or MAIN)


def create_tag(call: AuthorizedRequest) -> Response:
    """A new tag at the revision that the path names."""
    return _create(call, TAGS, text_of(call.json(), "tag"), call.piece("name"))


def delete_branch(call: AuthorizedRequest) -> Response:
    """Remove a branch; its commits stay."""
    name = checked_branch(call.piece("name"))
    if HEADS + name == MAIN:
        raise Refusal(403, "Branch: expected another than main.")
    return _remove(call, HEADS + name)


def delete_tag(call: AuthorizedRequest) -> Response:
    """Remove a tag."""
    return _remove(call, TAGS + checked_branch(call.piece("name")))


def super_squash(call: AuthorizedRequest) -> Response:
    """Replace all commits of a branch by one; those that nothing else reaches are gone."""
    body = call.json()
    name = HEADS + checked_branch(call.piece("name"))
    with call.service.database.writing() as connection:
        history = History(connection, call.repository.id)
        head = history.resolve(name)
        oid = history.add(head.tree, (), author=call.user, title=text_of(body, "message", "Super-squash")[:1000])
        history.point(name, oid)
        bases = [found.base for found in Discussions(connection, call.repository.id).all() if found.base is not None]
        history.forget([*history.refs().values(), *bases])
    return JSONResponse({"commitOid": oid})


def _create(call: AuthorizedRequest, start: str, name: str, revision: object) -> Response:
    name = start + checked_branch(name)
    with call.service.database.writing() as connection:
        history = History(connection, call.repository.id)
        commit = history.resolve(str(revision))
        history.create(name, commit.oid)
    return JSONResponse({"ref": name, "targetCommit": commit.oid})


def _remove(call: AuthorizedRequest, name: str) -> Response:
    with call.service.database.writing() as connection:
        History(connection, call.repository.id).remove(name)
    return JSONResponse({})


def whoami(call: AuthorizedRequest) -> Response:
    """The user that the token belongs to."""
    assert call.identity is not None
    name, role = call.identity.user, call.identity.role
    token = {"displayName": name, "role": role, "createdAt": "1970-01-01T00:00:00.000Z"}
    return JSONResponse(
        {
            "type": "user",
            "id": name,
            "name": name,
            "fullname": name,
            "isPro": False,
            "orgs": [],
            "auth": {"type": "access_token", "accessToken": token},
        }
    )


def auth_check(call: AuthorizedRequest) -> Response:
    """Access was checked before this was called."""
    return JSONResponse({"name": call.repository.name})


def validate_yaml(call: AuthorizedRequest) -> Response:
    """What is wrong with the metadata of a README.md."""
    try:
        front_matter(text_of(call.json(), "content"))
    except ValueError as error:
        return JSONResponse({"errors": [{"message": str(error)}], "warnings": []}, 400)
    return JSONResponse({"errors": [], "warnings": []})
