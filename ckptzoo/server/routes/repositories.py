"""Repositories: make, list, describe, change, remove; their branches, tags and commits; account and card checks."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.responses import JSONResponse, Response

from ckptzoo.server.access import ADMIN, READ, ROLES, WRITE, AccessTarget, may, role_in
from ckptzoo.server.errors import Refusal, no_repository
from ckptzoo.server.kept import ENTRY_BYTES, Kept
from ckptzoo.server.names import KINDS, checked_branch, checked_id
from ckptzoo.server.request import AuthorizedRequest, text_of
from ckptzoo.server.responses import MAX_FRONT_MATTER, front_matter, tags
from ckptzoo.server.store import accounts, repositories
from ckptzoo.server.store.audit import note
from ckptzoo.server.store.commits import HEADS, MAIN, PULLS, TAGS, Commit, History
from ckptzoo.server.store.discussions import Discussions
from ckptzoo.server.store.git_objects import Trees
from ckptzoo.server.store.repositories import Repository

_MAX_NUMBER = 10**9
"""The largest page or offset that a query may ask for."""
_LISTED_BYTES = 100
"""Approximate bytes that the answer about a revision has for a file besides its path."""


def create(request: AuthorizedRequest) -> Response:
    """Make a repository; one that exists is answered with 409 and its address."""
    body = request.json()
    kind = _kind(body)
    name = checked_id(f"{text_of(body, 'organization', request.user)}/{text_of(body, 'name')}")
    request.require(WRITE, AccessTarget(name.partition("/")[0]))
    with request.writing() as connection:
        exists = repositories.find(connection, kind, name) is not None
        if not exists:
            private = _private(body) or False
            repositories.create(connection, kind, name, private=private, author=request.user)
            note(connection, request.user, f"create {kind}", name, "private" if private else "public")
    url = f"{request.origin}/{'' if kind == 'model' else f'{kind}s/'}{name}"
    content = {"url": url, "name": name, "id": name}
    if exists:
        # with exist_ok huggingface_hub takes the url of a 409 as that of an answer
        return JSONResponse({**content, "error": f"You already created this {kind} repo: {name}"}, 409)
    return JSONResponse(content)


def delete(request: AuthorizedRequest) -> Response:
    """Remove a repository."""
    body = request.json()
    name = checked_id(f"{text_of(body, 'organization', request.user)}/{text_of(body, 'name')}")
    with request.writing() as connection:
        repository = repositories.find(connection, _kind(body), name)
        if repository is None:
            raise no_repository(name)
        request.require(ADMIN, repository.target)
        repositories.remove(connection, repository)
        note(connection, request.user, f"delete {repository.kind}", name)
    return JSONResponse({})


def move(request: AuthorizedRequest) -> Response:
    """Give a repository another name."""
    body = request.json()
    old, new = checked_id(text_of(body, "fromRepo")), checked_id(text_of(body, "toRepo"))
    with request.writing() as connection:
        repository = repositories.find(connection, _kind(body), old)
        if repository is None:
            raise no_repository(old)
        request.require(ADMIN, repository.target)
        request.require(WRITE, AccessTarget(new.partition("/")[0]))
        repositories.move(connection, repository, new)
        note(connection, request.user, f"move {repository.kind}", old, new)
    return JSONResponse({})


def settings(request: AuthorizedRequest) -> Response:
    """Hide a repository from those who have no role in it, or show it; close it to their pull requests, or open it."""
    body = request.json()
    if body.get("gated"):  # on the hub, access after a request to the owner
        raise Refusal(400, "gated: expected false, this server has private and public repositories only.")
    # as the hub's own page calls it
    private, closed = _private(body), body.get("discussionsDisabled")
    if not isinstance(closed, bool | None):
        raise Refusal(400, "discussionsDisabled: expected true or false.")
    with request.writing() as connection:
        if private is not None:
            repositories.set_private(connection, request.repository, private)
            note(connection, request.user, "hide" if private else "show", request.repository.name)
        if closed is not None:
            repositories.set_closed(connection, request.repository, closed)
            note(connection, request.user, "close" if closed else "open", request.repository.name)
    return JSONResponse({"private": request.repository.private if private is None else private})


def listing(request: AuthorizedRequest) -> Response:
    """Return the repositories of a kind that match every word and tag of the query, the newest first."""
    query = request.http_request.query_params
    words = [word.lower() for word in query.getlist("search")]
    required_tags = {tag for value in query.getlist("filter") for tag in value.split(",")}
    author = query.get("author")
    matching: list[dict[str, Any]] = []
    with request.service.database.reading() as connection:
        for repository in repositories.listed(connection, KINDS[request.raw_pieces["kind"]]):
            if not may(request.subject, READ, repository.target):
                continue
            if author is not None and repository.name.split("/")[0] != author:
                continue
            if not all(word in repository.name.lower() for word in words):
                continue
            history, trees = History(connection, repository.id), Trees(connection, repository.id)
            description = _describe(request, repository, history.resolve(MAIN), trees)
            if required_tags <= set(description["tags"]):
                matching.append(description)
    if query.get("sort") == "lastModified":
        matching.sort(key=lambda item: item["lastModified"], reverse=True)
    limit = request.query_number("limit", request.service.limits.page, request.service.limits.page)
    start = request.query_number("skip", 0, _MAX_NUMBER) if "skip" in query else 0
    headers = {}
    if start + limit < len(matching):
        others = [item for item in query.multi_items() if item[0] not in ("skip", "limit")]
        next_query = urlencode([*others, ("skip", start + limit), ("limit", limit)])
        headers["Link"] = f'<{request.origin}/api/{request.raw_pieces["kind"]}?{next_query}>; rel="next"'
    return JSONResponse(matching[start : start + limit], headers=headers)


def owned(request: AuthorizedRequest) -> Response:
    """Return the repositories of an organisation, or of the caller, with the bytes of their files on main."""
    namespace = request.piece("namespace") or request.user
    listed: list[dict[str, Any]] = []
    with request.service.database.reading() as connection:
        for kind in KINDS.values():
            for repository in repositories.listed(connection, kind):
                if repository.name.split("/")[0] != namespace or not may(request.subject, READ, repository.target):
                    continue
                commit = History(connection, repository.id).resolve(MAIN)
                trees = Trees(connection, repository.id)
                oids = [node.oid for _, node in trees.walk(commit.tree) if not node.folder]
                sizes = {oid: file.size for oid, file in trees.files(oids).items()}
                content = {
                    "id": repository.name,
                    "type": kind,
                    "updatedAt": commit.date,
                    "visibility": "private" if repository.private else "public",
                    "storage": sum(sizes[oid] for oid in oids),
                }
                listed.append(content)
    total = sum(item["storage"] for item in listed)
    for item in listed:
        item["storagePercent"] = 100 * item["storage"] / total if total else 0.0
    return JSONResponse(listed)


def info(request: AuthorizedRequest) -> Response:
    """Return the facts about a repository at a revision, and the names of all its files, unless there are very many."""
    with request.service.database.reading() as connection:
        history, trees = History(connection, request.repository.id), Trees(connection, request.repository.id)
        commit = history.resolve(request.piece("revision") or MAIN)
        # no part of the hub's protocol: what the caller may do here, so that clients can say so before they begin
        content = {**_describe(request, request.repository, commit, trees), "role": request.role}
        oid_of_path: dict[str, str] = {}
        room = request.service.limits.listed_bytes
        for path, node in trees.walk(commit.tree):
            room -= len(path) + _LISTED_BYTES
            if room < 0:
                return JSONResponse(content)
            if not node.folder:
                oid_of_path[path] = node.oid
        siblings: list[dict[str, Any]] = []
        used_bytes = 0
        files = trees.files(oid_of_path.values())
        for path, oid in oid_of_path.items():
            file = files[oid]
            used_bytes += file.size
            sibling: dict[str, Any] = {"rfilename": path}
            if request.is_set("blobs"):
                sibling.update(size=file.size, blobId=file.oid)
                if file.large:
                    sibling["lfs"] = {"size": file.size, "sha256": file.sha256, "pointerSize": file.pointer_size}
            siblings.append(sibling)
    return JSONResponse({**content, "siblings": siblings, "usedStorage": used_bytes})


def _describe(request: AuthorizedRequest, repository: Repository, commit: Commit, trees: Trees) -> dict[str, Any]:
    readme = trees.find(commit.tree, "README.md")
    card: dict[str, Any] = {}
    if readme is not None and not readme.folder:
        file = trees.file(readme.oid)
        card = _card(request.service.blobs.path(file.sha256))
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
        "downloads": 0,  # not counted, nor are likes
        "likes": 0,
        "tags": tags(card),
        "cardData": card,
    }


_cards = Kept[dict[str, Any]](2**26, lambda card: ENTRY_BYTES + 32 * len(json.dumps(card)))
"""Cards by path; values of JSON take up to about 32 bytes in memory for each of theirs as text."""


def _card(path: Path) -> dict[str, Any]:
    """Return the front matter of a stored README.md, empty where it is not well-formed."""

    def made() -> dict[str, Any]:
        with path.open("rb") as file:
            text = file.read(MAX_FRONT_MATTER).decode(errors="replace")
        try:
            return front_matter(text)
        except ValueError:
            return {}

    return _cards.get(path, made)


def _kind(body: dict[str, Any]) -> str:
    kind = text_of(body, "type", "model")
    if kind not in KINDS.values():
        raise Refusal(400, f"type: expected one of {', '.join(KINDS.values())}, got {kind[:100]!r}.")
    return kind


def _private(body: dict[str, Any]) -> bool | None:
    """Return whether a body requests a private repository, under the newer clients' name or the older ones'."""
    visibility, private = body.get("visibility"), body.get("private")
    if visibility not in (None, "public", "private") or not isinstance(private, bool | None):
        raise Refusal(400, "visibility: expected public or private.")
    return private if visibility is None else visibility == "private"


def refs(request: AuthorizedRequest) -> Response:
    """Return every branch and tag, and every pull request where the query requests them, with its commit."""
    with request.service.database.reading() as connection:
        commit_of_ref = History(connection, request.repository.id).refs()

    def under(prefix: str) -> list[dict[str, str]]:
        return [
            {"name": name.removeprefix(prefix), "ref": name, "targetCommit": oid}
            for name, oid in commit_of_ref.items()
            if name.startswith(prefix)
        ]

    # huggingface_hub requires "converts": on the hub, branches of converted data sets
    content = {"branches": under(HEADS), "tags": under(TAGS), "converts": []}
    if request.is_set("include_prs"):
        content["pullRequests"] = [{**item, "name": item["ref"]} for item in under(PULLS)]
    return JSONResponse(content)


def commits(request: AuthorizedRequest) -> Response:
    """Return a page of the commits before a revision, the last first."""
    size, page = request.service.limits.small_page, request.page()
    with request.service.database.reading() as connection:
        history = History(connection, request.repository.id)
        head = history.resolve(request.piece("revision"))
        log = history.log(head.oid, size + 1, page * size)  # one more, to know whether there is another page
    content: list[dict[str, Any]] = [
        {
            "id": commit.oid,
            "title": commit.title,
            "message": commit.message,
            "date": commit.date,
            "authors": [{"user": commit.author, "avatar": ""}],
        }
        for commit in log[:size]
    ]
    if "formatted" in request.http_request.query_params.getlist("expand[]"):
        for item in content:
            item["formatted"] = {"title": item["title"], "message": item["message"]}
    headers = {}
    if len(log) > size:
        address = f"{request.origin}/api/{request.repository.kind}s/{request.repository.name}/commits/{head.oid}"
        headers["Link"] = f'<{address}?p={page + 1}>; rel="next"'
    return JSONResponse(content, headers=headers)


def create_branch(request: AuthorizedRequest) -> Response:
    """Make a branch at a revision."""
    return _create_ref(request, HEADS, request.piece("name"), request.json().get("startingPoint") or MAIN)


def create_tag(request: AuthorizedRequest) -> Response:
    """Make a tag at the revision that the path names."""
    return _create_ref(request, TAGS, text_of(request.json(), "tag"), request.piece("name"))


def delete_branch(request: AuthorizedRequest) -> Response:
    """Remove a branch; its commits stay."""
    name = checked_branch(request.piece("name"))
    if HEADS + name == MAIN:
        raise Refusal(403, "Branch: expected another than main.")
    return _remove_ref(request, HEADS + name)


def delete_tag(request: AuthorizedRequest) -> Response:
    """Remove a tag."""
    return _remove_ref(request, TAGS + checked_branch(request.piece("name")))


def super_squash(request: AuthorizedRequest) -> Response:
    """Replace all commits of a branch by one; those that no other ref or pull request reaches are removed."""
    body = request.json()
    name = HEADS + checked_branch(request.piece("name"))
    with request.writing() as connection:
        history = History(connection, request.repository.id)
        head = history.resolve(name)
        oid = history.add(head.tree, (), author=request.user, title=text_of(body, "message", "Super-squash")[:1000])
        history.point(name, oid)
        discussions = Discussions(connection, request.repository.id).all()
        bases = [discussion.base for discussion in discussions if discussion.base is not None]
        history.forget([*history.refs().values(), *bases])
    return JSONResponse({"commitOid": oid})


def _create_ref(request: AuthorizedRequest, start: str, name: str, revision: object) -> Response:
    name = start + checked_branch(name)
    with request.writing() as connection:
        history = History(connection, request.repository.id)
        commit = history.resolve(str(revision))
        history.create(name, commit.oid)
    return JSONResponse({"ref": name, "targetCommit": commit.oid})


def _remove_ref(request: AuthorizedRequest, name: str) -> Response:
    with request.writing() as connection:
        History(connection, request.repository.id).remove(name)
    return JSONResponse({})


def whoami(request: AuthorizedRequest) -> Response:
    """Return the user that the token belongs to, and its role."""
    assert request.caller is not None and request.caller.token is not None
    name, token_limits = request.user, request.caller.token.limits
    with request.service.database.reading() as connection:
        roles = accounts.organisations(connection, name)
    # memberships are for who has a role there, and the token has none beyond its scope
    own_roles = {org: role_in(request.subject, AccessTarget(org)) for org in roles}
    organisations = {org: min(roles[org], role, key=ROLES.index) for org, role in own_roles.items() if role is not None}
    token = {
        "displayName": request.caller.token.name or name,
        "role": token_limits.role,
        "createdAt": request.caller.token.created,
    }
    return JSONResponse(
        {
            "type": "user",
            "id": name,
            "name": name,
            "fullname": name,
            "isPro": False,
            "orgs": [
                {"type": "org", "id": org, "name": org, "fullname": org, "roleInOrg": role}
                for org, role in organisations.items()
            ],
            "auth": {"type": "access_token", "accessToken": token},
        }
    )


def auth_check(request: AuthorizedRequest) -> Response:
    """Answer that the caller has access, which was checked before the handler was called."""
    return JSONResponse({"name": request.repository.name})


def validate_yaml(request: AuthorizedRequest) -> Response:
    """Return the problems of the front matter of a README.md."""
    try:
        front_matter(text_of(request.json(), "content"))
    except ValueError as error:
        return JSONResponse({"errors": [{"message": str(error)}], "warnings": []}, 400)
    return JSONResponse({"errors": [], "warnings": []})
