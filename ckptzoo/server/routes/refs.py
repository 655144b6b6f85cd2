"""Branches, tags and the commits behind them."""

from typing import Any

from starlette.responses import JSONResponse, Response

from ckptzoo.server.call import Call, text_of
from ckptzoo.server.names import checked_branch
from ckptzoo.server.refusal import Refusal
from ckptzoo.server.store.discussions import Discussions
from ckptzoo.server.store.history import HEADS, MAIN, PULLS, TAGS, History


def refs(call: Call) -> Response:
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


def commits(call: Call) -> Response:
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


def create_branch(call: Call) -> Response:
    """A new branch at a revision."""
    return _create(call, HEADS, call.piece("name"), call.json().get("startingPoint") or MAIN)


def create_tag(call: Call) -> Response:
    """A new tag at the revision that the path names."""
    return _create(call, TAGS, text_of(call.json(), "tag"), call.piece("name"))


def delete_branch(call: Call) -> Response:
    """Remove a branch; its commits stay."""
    name = checked_branch(call.piece("name"))
    if HEADS + name == MAIN:
        raise Refusal(403, "Branch: expected another than main.")
    return _remove(call, HEADS + name)


def delete_tag(call: Call) -> Response:
    """Remove a tag."""
    return _remove(call, TAGS + checked_branch(call.piece("name")))


def super_squash(call: Call) -> Response:
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


def _create(call: Call, start: str, name: str, revision: object) -> Response:
    name = start + checked_branch(name)
    with call.service.database.writing() as connection:
        history = History(connection, call.repository.id)
        commit = history.resolve(str(revision))
        history.create(name, commit.oid)
    return JSONResponse({"ref": name, "targetCommit": commit.oid})


def _remove(call: Call, name: str) -> Response:
    with call.service.database.writing() as connection:
        History(connection, call.repository.id).remove(name)
    return JSONResponse({})
