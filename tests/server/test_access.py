"""Who may do what: the decision by itself, and every address of the protocol asked by those who may not know."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptzoo.server.access import (
    ADMIN,
    CONTRIBUTE,
    READ,
    ROLES,
    TOKEN_ROLES,
    WRITE,
    AccessTarget,
    Subject,
    TokenLimits,
    may,
    role_in,
)
from ckptzoo.server.app import ROUTES
from ckptzoo.server.errors import Refusal
from ckptzoo.server.store import accounts, repositories, tokens
from ckptzoo.server.store.audit import OPERATOR, entries
from tests.support.hosted import Answer, Hosted, ask, push

NAMES = st.sampled_from(["ada", "bob", "lab"])
TARGETS = st.builds(
    AccessTarget,
    st.builds("{}/{}".format, NAMES, st.sampled_from(["zoo", "net"])),
    st.integers(1, 3), private=st.booleans(), closed=st.booleans(),
)  # fmt: skip
PLACES = st.builds(AccessTarget, NAMES)
LIMITS = st.builds(TokenLimits, st.sampled_from(TOKEN_ROLES), st.sampled_from(["", "ada", "lab", "lab/zoo"]))
ROLES_OF = st.sampled_from(ROLES)


@st.composite
def subjects(draw: st.DrawFn) -> Subject:
    user = draw(NAMES)
    namespaces = {**draw(st.dictionaries(NAMES, ROLES_OF)), user: ADMIN}
    return Subject(user, namespaces, draw(st.dictionaries(st.integers(1, 3), ROLES_OF)), draw(st.none() | LIMITS))


def rank(role: str | None) -> int:
    return -1 if role is None else ROLES.index(role)


@given(subjects(), TARGETS | PLACES)
def test_no_token_does_more_than_its_owner(subject: Subject, target: AccessTarget) -> None:
    owner = Subject(subject.user, subject.namespaces, subject.repositories)
    assert rank(role_in(subject, target)) <= rank(role_in(owner, target))


@given(subjects(), TARGETS | PLACES, st.data())
def test_taking_a_grant_never_allows_more(subject: Subject, target: AccessTarget, data: st.DataObject) -> None:
    namespaces, numbers = dict(subject.namespaces), dict(subject.repositories)
    taken = data.draw(st.sampled_from([*namespaces, *numbers]))
    if isinstance(taken, str):
        del namespaces[taken]
    else:
        del numbers[taken]
    fewer = Subject(subject.user, namespaces, numbers, subject.token)
    assert rank(role_in(fewer, target)) <= rank(role_in(subject, target))


@given(st.none() | subjects(), TARGETS | PLACES)
def test_each_role_includes_those_before_it(subject: Subject | None, target: AccessTarget) -> None:
    allowed = [may(subject, action, target) for action in ROLES]
    assert allowed == sorted(allowed, reverse=True)
    assert may(subject, READ, target) or target.private
    if subject is None:
        assert role_in(subject, target) == (None if target.private else READ)


@given(subjects(), TARGETS | PLACES)
def test_who_has_no_role_there_may_do_no_more_than_everybody(subject: Subject, target: AccessTarget) -> None:
    namespace = target.name.partition("/")[0]
    if namespace not in subject.namespaces and target.number not in subject.repositories:
        assert rank(role_in(subject, target)) <= rank(None if target.private else READ if target.closed else CONTRIBUTE)


SECRET, OPEN = "lab/secret", "lab/open"


@pytest.fixture
def laboratory(server: Hosted) -> Hosted:
    """``lab/secret`` is private, ``lab/open`` is not; ``bob`` has an account and tokens of every kind."""
    api = server.api()
    api.create_repo(SECRET, repo_type="dataset", private=True)
    api.create_repo(OPEN, repo_type="dataset")
    for repo in (SECRET, OPEN):
        api.upload_file(path_or_fileobj=b"1", path_in_repo="a.txt", repo_id=repo, repo_type="dataset")
    api.create_discussion(SECRET, title="A secret", repo_type="dataset")
    with server.service.database.writing() as connection:
        server.tokens.update({f"bob-{role}": tokens.make_token(connection, "bob", role) for role in TOKEN_ROLES})
    return server


OUTSIDERS = ("bob-read", "bob-contribute", "bob-write", None)
PIECES = {
    "kind": "datasets", "prefix": "datasets/", "revision": "main", "path": "a.txt", "name": "main", "number": "1",
    "comment": "0" * 24, "sha256": "0" * 64, "namespace": "lab",
}  # fmt: skip
BODIES: dict[str, Any] = {
    "create": {"type": "dataset"}, "delete": {"type": "dataset"}, "move": {"type": "dataset"},
    "paths_info": {"paths": ["a.txt"]}, "comment": {"comment": "Hello"}, "change_status": {"status": "closed"},
    "batch": {"operation": "upload", "objects": []}, "preupload": {"files": []},
}  # fmt: skip


def asked(server: Hosted, route: Any, repository: str, role: str | None) -> tuple[int, str]:
    """Status and body of an answer, in which the repository's name is replaced."""
    address = route.pattern.pattern.replace("\\.git", ".git")
    address = address.replace("(?:read|write)", "read")
    address = re.sub(r"\(\?:\(\?P<prefix>[^)]*\)/\)\?", "datasets/", address)
    for name, value in {**PIECES, "id": repository}.items():
        address = re.sub(rf"\(\?P<{name}>[^)]*\)", value, address)
    assert "(" not in address, address
    namespace, _, last = repository.partition("/")
    body = {**BODIES.get(route.handler.__name__, {}), "organization": namespace, "name": last}
    body |= {"fromRepo": repository, "toRepo": f"bob/{last}"}
    answer = ask(server, route.method, address, None if route.method == "GET" else body, role=role)
    text = answer.body.decode() + json.dumps({key: value for key, value in answer.headers.items() if key != "date"})
    return answer.status, text.replace(repository, "REPOSITORY").replace(last, "NAME")


@pytest.mark.parametrize("role", OUTSIDERS)
def test_a_private_repository_answers_like_one_that_is_not_there(laboratory: Hosted, role: str | None) -> None:
    for route in ROUTES:
        # secret and absent have the same number of letters, so that lengths are the same too
        found, absent = (asked(laboratory, route, name, role) for name in (SECRET, "lab/absent"))
        assert found == absent, (route.method, route.pattern.pattern)
        assert found[0] >= 400 or "secret" not in found[1]
    with laboratory.service.database.reading() as connection:
        assert repositories.find(connection, "dataset", SECRET) is not None


@pytest.mark.parametrize("role", OUTSIDERS)
def test_lists_and_counts_leave_private_repositories_out(laboratory: Hosted, role: str | None) -> None:
    listed = ask(laboratory, "GET", "/api/datasets", role=role).json()
    assert [item["id"] for item in listed] == [OPEN]
    if role is not None:
        address = "/api/organizations/lab/settings/repositories"
        (own,) = ask(laboratory, "GET", address, role=role).json()
        assert own["id"] == OPEN and own["storagePercent"] == 100


def test_a_writer_writes_in_the_own_namespace_alone(laboratory: Hosted) -> None:
    """As was tried: bob made a repository in another's namespace, and deleted her private one."""

    def done(method: str, path: str, body: dict[str, Any] | bytes | None = None) -> int:
        return ask(laboratory, method, path, body, role="bob-write").status

    body = {"type": "dataset", "organization": "lab", "name": "new"}
    assert done("POST", "/api/repos/create", body) == 403
    assert done("DELETE", "/api/repos/delete", {**body, "name": "open"}) == 403
    assert done("DELETE", "/api/repos/delete", {**body, "name": "secret"}) == 404
    assert done("PUT", f"/api/datasets/{OPEN}/settings", {"private": True}) == 403
    assert done("POST", f"/api/datasets/{OPEN}/branch/x", {}) == 403
    assert done("POST", "/api/repos/create", {**body, "organization": "bob"}) == 200
    taken = {"type": "dataset", "fromRepo": "bob/new", "toRepo": "lab/new"}
    assert done("POST", "/api/repos/move", taken) == 403
    assert done("POST", "/api/repos/move", {**taken, "fromRepo": OPEN, "toRepo": "bob/open"}) == 403
    assert done("PUT", "/api/datasets/bob/new/settings", {"private": True}) == 200
    assert ask(laboratory, "GET", "/api/datasets/bob/new", role="read").status == 404
    assert done("DELETE", "/api/repos/delete", {**body, "organization": "bob"}) == 200


def test_members_and_grants(laboratory: Hosted) -> None:
    service = laboratory.service

    def grant(account: str, target: str | int, role: str | None) -> None:
        with service.database.writing() as connection:
            accounts.set_grant(connection, account, target, role, actor=OPERATOR)

    def roles() -> list[str | None]:
        """What bob may in the private and in the open repository, and in the namespace."""
        with service.database.reading() as connection:
            subject = accounts.subject_of(connection, "bob")
            found = [repositories.find(connection, "dataset", name) for name in (SECRET, OPEN)]
        return [role_in(subject, item.target) for item in found if item] + [role_in(subject, AccessTarget("lab"))]

    with service.database.reading() as connection:
        secret = repositories.find(connection, "dataset", SECRET)
    assert secret is not None and roles() == [None, CONTRIBUTE, None]
    grant("bob", secret.id, READ)
    assert roles() == [READ, CONTRIBUTE, None]
    assert ask(laboratory, "GET", f"/api/datasets/{SECRET}", role="bob-read").status == 200
    assert ask(laboratory, "POST", f"/api/datasets/{SECRET}/discussions", {}, role="bob-write").status == 403
    grant("bob", "lab", WRITE)
    assert roles() == [WRITE, WRITE, WRITE]
    grant("bob", "lab", None)
    grant("bob", secret.id, None)
    assert roles() == [None, CONTRIBUTE, None]
    with service.database.writing() as connection:
        accounts.add(connection, "institute", accounts.ORGANISATION, actor=OPERATOR)
        accounts.set_member(connection, "institute", "bob", READ, actor=OPERATOR)
    grant("institute", "lab", ADMIN)
    assert roles() == [READ, CONTRIBUTE, READ]  # up to the role in the organisation
    with service.database.writing() as connection:
        accounts.set_member(connection, "institute", "bob", ADMIN, actor=OPERATOR)
    assert roles() == [ADMIN, ADMIN, ADMIN]
    body = {"type": "dataset", "organization": "institute", "name": "theirs"}
    assert ask(laboratory, "POST", "/api/repos/create", body, role="bob-write").status == 200
    me = laboratory.api("bob-write").whoami()
    assert [(item["name"], item["roleInOrg"]) for item in me["orgs"]] == [("institute", "admin")]
    with service.database.writing() as connection:
        accounts.revoke(connection, "bob", actor=OPERATOR)
    assert roles() == [None, CONTRIBUTE, None]
    assert ask(laboratory, "GET", "/api/whoami-v2", role="bob-write").status == 401
    with service.database.reading() as connection:
        actions = [(item.actor, item.action, item.target) for item in entries(connection)]
    assert actions[0] == (OPERATOR, "revoke user", "bob") and ("bob", "create dataset", "institute/theirs") in actions


def test_the_owner_closes_pull_requests(laboratory: Hosted) -> None:
    def opened(role: str) -> int:
        body = {"title": "Hello", "description": "", "pullRequest": True}
        return ask(laboratory, "POST", f"/api/datasets/{OPEN}/discussions", body, role=role).status

    assert opened("bob-contribute") == 200 and opened("bob-read") == 403
    settings = f"/api/datasets/{OPEN}/settings"
    assert ask(laboratory, "PUT", settings, {"discussionsDisabled": "yes"}).status == 400
    assert ask(laboratory, "PUT", settings, {"discussionsDisabled": True}).status == 200
    assert opened("bob-contribute") == 403 and opened("write") == 200
    assert ask(laboratory, "GET", f"/api/datasets/{OPEN}", role="bob-contribute").status == 200
    assert ask(laboratory, "PUT", settings, {"discussionsDisabled": False}).status == 200
    assert opened("bob-contribute") == 200


def test_scopes_and_ends_of_tokens(laboratory: Hosted) -> None:
    with laboratory.service.database.writing() as connection:
        for name, scope, expires in (("one", OPEN, None), ("other", "bob", None), ("past", "", timedelta(seconds=-1))):
            laboratory.tokens[name] = tokens.make_token(connection, "lab", WRITE, scope=scope, expires=expires)

    def branch(role: str, repository: str) -> int:
        return ask(laboratory, "POST", f"/api/datasets/{repository}/branch/{role}", {}, role=role).status

    assert (branch("one", OPEN), branch("one", SECRET)) == (200, 404)
    assert (branch("other", OPEN), branch("other", SECRET)) == (403, 404)
    assert branch("past", OPEN) == 401
    body = {"type": "dataset", "organization": "lab", "name": "new"}
    assert ask(laboratory, "POST", "/api/repos/create", body, role="one").status == 403
    with laboratory.service.database.reading() as connection:
        used = {token.limits.scope: token.used for token in tokens.listed(connection, "lab") if token.limits.scope}
    assert all(used.values())


def test_names_of_accounts(server: Hosted) -> None:
    with server.service.database.writing() as connection:
        for name in ("Lab", "api", "a b", "datasets", "x--y", ""):
            with pytest.raises(Refusal):
                accounts.add(connection, name, accounts.USER, actor=OPERATOR)
        for scope in ("a b", "lab/zoo/more", "api"):
            with pytest.raises(Refusal):
                tokens.make_token(connection, "lab", WRITE, scope=scope)
        with pytest.raises(Refusal, match="there is the user lab"):
            accounts.add(connection, "lab", accounts.ORGANISATION, actor=OPERATOR)
        with pytest.raises(Refusal, match="nobody: expected a user, got none"):
            accounts.add(connection, "group", accounts.ORGANISATION, actor=OPERATOR)
            accounts.set_member(connection, "group", "nobody", READ, actor=OPERATOR)


def test_answers_of_a_token_that_may_not(laboratory: Hosted) -> None:
    answer: Answer = ask(laboratory, "POST", f"/api/datasets/{OPEN}/branch/x", {}, role="bob-contribute")
    assert answer.status == 403
    assert answer.json()["error"] == "Expected a token that may write here, got one that may contribute"


def test_the_address_of_a_file_ends_with_the_role(laboratory: Hosted) -> None:
    service = laboratory.service
    for repo in (SECRET, OPEN):
        push(laboratory, {"a.safetensors": b"2" * 999}, f"datasets/{repo}")
    with service.database.writing() as connection:
        secret = repositories.find(connection, "dataset", SECRET)
        assert secret is not None
        accounts.set_grant(connection, "bob", secret.id, READ, actor=OPERATOR)

    def address(repo: str, role: str) -> str:
        return ask(laboratory, "GET", f"/datasets/{repo}/resolve/main/a.safetensors", role=role).headers["location"]

    def status(address: str) -> int:
        return ask(laboratory, "GET", address, role=None).status

    granted, own, public = address(SECRET, "bob-read"), address(SECRET, "write"), address(OPEN, "bob-read")
    assert [status(item) for item in (granted, own, public)] == [200] * 3
    with service.database.writing() as connection:
        accounts.set_grant(connection, "bob", secret.id, None, actor=OPERATOR)
    ask(laboratory, "PUT", f"/api/datasets/{OPEN}/settings", {"private": True})
    assert [status(item) for item in (granted, own, public)] == [403, 200, 403]
    # as one does of which the token was revoked, or cannot reach the repository any more
    with service.database.writing() as connection:
        for name, scope in (("narrow", SECRET), ("short", "")):
            laboratory.tokens[name] = tokens.make_token(connection, "lab", READ, scope=scope)
        number = tokens.listed(connection, "lab")[-1].number
    narrow, short = address(SECRET, "narrow"), address(SECRET, "short")
    assert [status(item) for item in (narrow, short)] == [200] * 2
    moved = {"type": "dataset", "fromRepo": SECRET, "toRepo": "lab/hidden"}
    assert ask(laboratory, "POST", "/api/repos/move", moved).status == 200
    with service.database.writing() as connection:
        tokens.revoke(connection, "lab", number)
    assert [status(item) for item in (narrow, short, own)] == [403, 403, 200]
    with service.database.writing() as connection:
        accounts.revoke(connection, "lab", actor=OPERATOR)
    assert status(own) == 403
