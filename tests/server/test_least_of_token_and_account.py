"""No token, and no session of one, does more than its account may and its limits permit; it ends when the token does.

All routes are asked, as the bearer of a random token and in the session that began with it, on a random server. What is
expected comes from ``World``, which computes roles from the facts that the server was told, and from ``NEEDS``.
"""

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.schema.review_mark import ReviewMark
from ckptzoo.server.app import PAGES, ROUTES, Route
from ckptzoo.server.store import accounts, repositories, sessions, tokens
from ckptzoo.server.store.audit import OPERATOR
from ckptzoo.server.store.commits import History
from ckptzoo.server.store.discussions import Discussions
from tests.support.effort import examples
from tests.support.hosted import Answer
from tests.support.in_process import ORIGIN, InProcess, in_process

NOTHING, READ, CONTRIBUTE, WRITE, ADMIN = range(5)
WORDS = ("nothing", "read", "contribute", "write", "admin")
USERS, ORGANISATIONS = ("ada", "bob"), ("lab", "group")
NAMES = ("ada/pub", "ada/zoo", "bob/zoo", "lab/zoo")
ANYBODY, VALID, ACCOUNT, OWN_TOKEN, NEVER = "anybody", "valid", "account", "own token", "never"
"""Needs besides roles in the repository: none, a token or session, one that no token limits, one of one's own token,
and what succeeds for nobody here, such as signed addresses that nobody signed."""
IN_NAMESPACE, IN_BOTH, OWN_OR_WRITE, OWN = "in namespace", "in both", "own or write", "own"
NEEDS: dict[str, Any] = {
    "repositories.whoami": VALID, "repositories.owned": VALID, "repositories.validate_yaml": ANYBODY,
    "repositories.create": (IN_NAMESPACE, WRITE), "repositories.delete": ADMIN, "repositories.move": IN_BOTH,
    "repositories.listing": ANYBODY, "repositories.info": READ, "repositories.settings": ADMIN,
    "repositories.auth_check": READ, "content.tree": READ, "content.paths_info": READ, "uploads.preupload": CONTRIBUTE,
    "commits.commit": WRITE, "repositories.refs": READ, "repositories.commits": READ,
    "repositories.create_branch": WRITE, "repositories.delete_branch": WRITE, "repositories.create_tag": WRITE,
    "repositories.delete_tag": WRITE, "repositories.super_squash": WRITE, "discussions.listing": READ,
    "discussions.create": CONTRIBUTE, "discussions.details": READ, "discussions.comment": CONTRIBUTE,
    "discussions.edit_comment": OWN, "discussions.hide_comment": OWN_OR_WRITE, "discussions.rename": OWN_OR_WRITE,
    "discussions.change_status": OWN_OR_WRITE, "discussions.merge_pull": WRITE, "content.resolve": READ,
    "uploads.batch": CONTRIBUTE, "uploads.verify": CONTRIBUTE, "content.blob": NEVER, "uploads.receive": NEVER,
    "uploads.receive_part": NEVER, "uploads.join": NEVER, "uploads.xet_token": READ, "zoos.listing": ANYBODY, "html.style": ANYBODY,
    "html.icon": ANYBODY, "signing_in.sign_in": ANYBODY, "signing_in.sign_in_with_token": NEVER,
    "signing_in.link": NEVER, "signing_in.use_link": NEVER, "signing_in.sign_out": ANYBODY,
    "signing_in.oidc_start": NEVER, "signing_in.oidc_callback": NEVER, "settings.own_tokens": VALID,
    "settings.make_token": ACCOUNT, "settings.revoke_token": OWN_TOKEN, "settings.audit_log": ACCOUNT,
    "settings.disconnect_identity": ACCOUNT,
    "zoos.zoo": READ, "zoos.explorer": NEVER, "zoos.explorer_frame": NEVER, "zoos.files": READ, "zoos.file": READ,
    "zoos.raw": READ, "zoos.history": READ, "zoos.change": READ, "pulls.listing": READ, "pulls.details": READ,
    "pulls.changes": READ, "pulls.comment": CONTRIBUTE, "pulls.status": OWN_OR_WRITE, "pulls.merge": WRITE,
    "settings.repository": ADMIN, "settings.change_repository": ADMIN, "settings.change_members": (IN_NAMESPACE, ADMIN),
    "metrics.answer": NEVER, "zoos.namespace": NEVER,
}  # fmt: skip
"""What each handler needs, as the documentation has it."""


@dataclass(frozen=True)
class Repository:
    """A repository; its first discussion and comment, and pull request 2, are of ``author``."""

    name: str
    private: bool
    closed: bool
    author: str


@dataclass(frozen=True)
class Token:
    """A token, and what became of it after a session began with it: nothing, ``revoked`` or ``expired``."""

    user: str
    role: int
    scope: str
    end: str = ""


@dataclass(frozen=True)
class World:
    """What the server was told; roles by (organisation, user), and by (account, namespace or repository)."""

    repositories: dict[str, Repository]
    members: dict[tuple[str, str], int]
    grants: dict[tuple[str, str], int]

    def of_account(self, user: str, place: str) -> int:
        """The role of an account in a repository or a namespace."""
        namespace = place.partition("/")[0]
        roles = [ADMIN if namespace == user else NOTHING, self.members.get((namespace, user), NOTHING)]
        for (account, target), role in self.grants.items():
            in_account = ADMIN if account == user else self.members.get((account, user), NOTHING)
            if target in (place, namespace):
                roles.append(min(role, in_account))
        if place in self.repositories and not self.repositories[place].private:
            roles.append(READ if self.repositories[place].closed else CONTRIBUTE)
        return max(roles)

    def of_token(self, token: Token | None, place: str) -> int:
        """The role that a token gives there; without one, that of everybody."""
        public = READ if place in self.repositories and not self.repositories[place].private else NOTHING
        if token is None or token.scope not in ("", place, place.partition("/")[0]):
            return public
        role = self.of_account(token.user, place)
        return role if token.role == WRITE else min(role, token.role)

    def allows(self, need: Any, token: Token | None, place: str, *, is_limited: bool = True) -> bool:
        """Whether something succeeds that needs so much in a repository; a token that has ended is None."""
        role, namespace = self.of_token(token, place), place.partition("/")[0]
        is_author = token is not None and self.repositories[place].author == token.user
        if isinstance(need, int):
            return role >= need
        if isinstance(need, tuple):
            return self.of_token(token, namespace) >= need[1]
        return {
            ANYBODY: True, NEVER: False, VALID: token is not None, ACCOUNT: token is not None and not is_limited,
            OWN_TOKEN: token is not None, OWN: role >= CONTRIBUTE and is_author,
            OWN_OR_WRITE: role >= WRITE or (role >= CONTRIBUTE and is_author),
            IN_BOTH: role >= ADMIN and self.of_token(token, namespace) >= WRITE,
        }[need]  # fmt: skip


ROLES = st.integers(READ, ADMIN)
TOKENS = st.builds(
    Token, st.sampled_from(USERS), st.integers(READ, WRITE), st.sampled_from(["", "", "ada", "lab", *NAMES]),
    st.sampled_from(["", "", "", "revoked", "expired"]),
)  # fmt: skip
WORLDS = st.builds(
    World,
    st.fixed_dictionaries(
        {name: st.builds(Repository, st.just(name), st.booleans(), st.booleans(), st.sampled_from(USERS)) for name in NAMES}
    ),
    st.dictionaries(st.tuples(st.sampled_from(ORGANISATIONS), st.sampled_from(USERS)), ROLES, max_size=3),
    st.dictionaries(
        st.tuples(st.sampled_from([*USERS, *ORGANISATIONS]), st.sampled_from(["lab", "ada", *NAMES])), ROLES, max_size=3
    ),
)  # fmt: skip


@dataclass
class Caller:
    """Somebody who asks: with a token in a header, with the cookie of a session, or without both."""

    server: InProcess
    bearer: str = ""
    cookie: str = ""
    number: int = 0
    sent: list[tuple[bytes, bytes]] = field(default_factory=list)

    def ask(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """Send a request as a client of the protocol does, or with a cookie as a browser does."""
        headers = [*self.sent]
        if self.bearer:
            headers.append((b"authorization", f"Bearer {self.bearer}".encode()))
        if self.cookie:
            headers.append((b"cookie", f"session={self.cookie}".encode()))
        if isinstance(body, dict) and "form_token" in body:
            session = self.session()
            code = "" if session is None else self.server.service.signer.code("form", session.digest)
            headers += [(b"origin", ORIGIN.encode()), (b"content-type", b"application/x-www-form-urlencoded")]
            body = urlencode({**body, "form_token": code}).encode()
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return self.server.ask(method, path, data, headers, **options)

    def session(self) -> sessions.Session | None:
        with self.server.service.database.reading() as connection:
            return sessions.find(connection, self.cookie)


def commit_of(*operations: dict[str, Any]) -> bytes:
    """The body of a commit."""
    header = {"key": "header", "value": {"summary": "push"}}
    return b"".join(json.dumps(line).encode() + b"\n" for line in (header, *operations))


FILE = {"key": "file", "value": {"path": "b.txt", "content": base64.b64encode(b"2").decode(), "encoding": "base64"}}
BODIES: dict[str, Any] = {
    "paths_info": {"paths": ["a.txt"]}, "comment": {"comment": "Hello"}, "edit_comment": {"content": "Hello"},
    "rename": {"title": "Another"}, "change_status": {"status": "closed"}, "preupload": {"files": []},
    "batch": {"operation": "upload", "objects": []}, "verify": {"oid": "0" * 64, "size": 1}, "commit": commit_of(FILE),
    "validate_yaml": {"content": ""}, "settings": {"private": True}, "create_tag": {"tag": "t"},
    "create_branch": {"startingPoint": "main"},
}  # fmt: skip
FORMS: dict[str, dict[str, str]] = {
    "comment": {"comment": "Hello"}, "status": {"status": "closed"}, "make_token": {"role": "read", "days": "30"},
    "change_repository": {"action": "grant", "account": "bob", "role": "write"},
    "change_members": {"action": "set", "account": "bob", "role": "admin"}, "sign_in_with_token": {"token": "hf_0"},
}  # fmt: skip


def request_of(route: Route, place: str, comment: str, number: int) -> tuple[str, Any]:
    """The path of a route and a body that is in order there."""
    pieces = {
        "kind": "datasets", "revision": "main", "path": "a.txt", "name": "main", "comment": comment,
        "sha256": "0" * 64, "namespace": place.partition("/")[0], "code": "x" * 43, "id": place,
        "number": str(number) if route.handler.__name__ == "revoke_token" else "2",
    }  # fmt: skip
    handler = route.handler.__name__
    pieces["path"] = "d" if handler in ("tree", "files") else "a.txt"
    pieces["name"] = {"create_branch": "new", "delete_branch": "old", "delete_tag": "old"}.get(handler, "main")
    address = re.sub(r"^/\(\?![^)]*\)|\(\?![^)]*\)", "/", route.pattern.pattern).replace("\\.git", ".git")
    address = address.replace("(?:read|write)", "read")
    address = re.sub(r"\(\?:\(\?P<prefix>[^)]*\)/\)\?", "datasets/", address).replace("//", "/")
    for name, value in pieces.items():
        address = re.sub(rf"\(\?P<{name}>[^)]*\)", value, address)
    assert "(" not in address, address
    if route.method == "GET":
        return address, None
    if route.page:
        return address, {"form_token": "", **FORMS.get(handler, {})}
    namespace, _, last = place.partition("/")
    body = BODIES.get(handler, {})
    if isinstance(body, bytes):
        return address, body
    named = {"type": "dataset", "organization": namespace, "name": "made" if handler == "create" else last}
    if handler == "create" and "discussions" in address:
        named = {"description": ""}
    return address, {"title": "Hello", "fromRepo": place, "toRepo": f"{namespace}/moved", **named, **body}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """A server with the accounts and repositories of every world; each has files, a branch, a tag, a pull request."""
    with in_process(tmp_path_factory.mktemp("served")) as server:
        operator = Caller(server)
        with server.service.database.writing() as connection:
            for user in USERS:
                accounts.add(connection, user, accounts.USER, actor=OPERATOR)
            for organisation in ORGANISATIONS:
                accounts.add(connection, organisation, accounts.ORGANISATION, actor=OPERATOR)
            accounts.set_member(connection, "lab", "ada", "admin", actor=OPERATOR)
            accounts.set_grant(connection, "ada", "bob", "admin", actor=OPERATOR)
            for name in NAMES:
                repositories.create(connection, "dataset", name, private=False, author="ada")
            operator.bearer = tokens.make_token(connection, "ada", "write")
        for name in NAMES:
            place, paths = f"/api/datasets/{name}", ("a.txt", "d/a.txt", "README.md")
            files = [{**FILE, "value": {**FILE["value"], "path": path}} for path in paths]
            assert operator.ask("POST", f"{place}/commit/main", commit_of(*files)).status == 200
            assert operator.ask("POST", f"{place}/branch/old", {}).status == 200
            assert operator.ask("POST", f"{place}/tag/main", {"tag": "old"}).status == 200
            assert operator.ask("POST", f"{place}/discussions", {"title": "Hello"}).status == 200
            assert operator.ask("POST", f"{place}/discussions", {"title": "More", "pullRequest": True}).status == 200
            assert operator.ask("POST", f"{place}/discussions/2/comment", {"comment": "Hello"}).status == 200
            assert operator.ask("POST", f"{place}/discussions/2/status", {"status": "open"}).status == 200
        with server.service.database.writing() as connection:
            for table in ("tokens", "members", "grants"):
                connection.execute(f"DELETE FROM {table}")
        yield server


@contextmanager
def served(server: InProcess, world: World) -> Iterator[dict[str, str]]:
    """Tell the server the facts of a world, for the block; returns the comment in each repository."""
    comments: dict[str, str] = {}
    with server.undone():
        with server.service.database.writing() as connection:
            for (organisation, user), role in world.members.items():
                accounts.set_member(connection, organisation, user, WORDS[role], actor=OPERATOR)
            for (account, target), role in world.grants.items():
                found = repositories.find(connection, "dataset", target)
                accounts.set_grant(connection, account, found.id if found else target, WORDS[role], actor=OPERATOR)
            for item in world.repositories.values():
                found = repositories.find(connection, "dataset", item.name)
                assert found is not None
                repositories.set_private(connection, found, item.private)
                repositories.set_closed(connection, found, item.closed)
                for table in ("discussions", "events"):
                    connection.execute(f"UPDATE {table} SET author = ? WHERE repository = ?", (item.author, found.id))
                events = Discussions(connection, found.id).events(2)
                comments[item.name] = next(event.id for event in events if event.type == "comment")
        yield comments


def callers(server: InProcess, token: Token) -> tuple[Caller, Caller]:
    """The bearer of a token, and somebody who has signed in with it; then the token ends."""
    with server.service.database.writing() as connection:
        scope, role = token.scope, WORDS[token.role]
        text = tokens.make_token(connection, token.user, role, scope=scope, expires=timedelta(days=1))
        number = tokens.listed(connection, token.user)[-1].number
    browser = Caller(server)
    answer = browser.ask("POST", "/-/sign-in", {"form_token": "", "token": text, "next": "/"})
    assert answer.status == 303
    cookie = answer.headers["set-cookie"].partition(";")[0].removeprefix("session=")
    end(server, token, number)
    return Caller(server, bearer=text, number=number), Caller(server, cookie=cookie, number=number)


def end(server: InProcess, token: Token, number: int) -> None:
    with server.service.database.writing() as connection:
        if token.end == "revoked":
            assert tokens.revoke(connection, token.user, number) == 1
        elif token.end == "expired":
            connection.execute("UPDATE tokens SET expires = '2020-01-01T00:00:00+00:00' WHERE number = ?", (number,))


def signed_in(server: InProcess, user: str) -> Caller:
    """Somebody who has signed in with a one-time link."""
    with server.service.database.writing() as connection:
        code = sessions.make_link(connection, user, actor=OPERATOR)
        secret = sessions.use_link(connection, code)
    assert secret is not None
    return Caller(server, cookie=secret)


def is_done(answer: Answer) -> bool:
    """Whether a request succeeded; the way to sign in is none."""
    return answer.status < 400 and not answer.headers.get("location", "").startswith("/-/sign-in")


REFUSED = (401, 403, 404)
ABSENT = ("uploads.verify", "settings.change_members")
"""Handlers that are asked for what is not there: a large file, and members of a user."""


def test_every_route_is_in_the_table() -> None:
    assert {route.name for route in (*ROUTES, *PAGES)} == set(NEEDS)


def need_of(route: Route) -> Any:
    return WRITE if route.pattern.pattern.endswith("/auth-check/write") else NEEDS[route.name]


@settings(max_examples=examples(100, 2), deadline=None)
@given(WORLDS, TOKENS, st.sampled_from(NAMES))
def test_no_token_does_more_than_its_account_and_its_limits(
    server: InProcess, world: World, token: Token, place: str
) -> None:
    with served(server, world) as comments:
        bearer, session = callers(server, token)
        own = signed_in(server, token.user)
        alive = None if token.end else token
        before = server.rows()
        with server.undone() as undo:
            for route in (*ROUTES, *PAGES):
                need, caller = need_of(route), session if route.page else bearer
                path, body = request_of(route, place, comments[place], caller.number)
                allowed = world.allows(need, alive, place)
                if not route.page and alive is None:
                    allowed = False  # a token that is not known is refused everywhere
                answer = caller.ask(route.method, path, body)
                where = (route.name, answer.status, answer.body[:200])
                if allowed:
                    assert answer.status not in REFUSED or route.name in ABSENT, where
                else:
                    assert not is_done(answer) or need == NEVER, where
                    assert route.method == "GET" or server.rows() == before, where
                undo()
                if route.page and allowed:
                    answer = own.ask(route.method, path, body)
                    assert answer.status not in REFUSED or route.name in ABSENT, (route.name, answer.status)
                    undo()


@settings(max_examples=examples(100, 2), deadline=None)
@given(WORLDS, TOKENS)
def test_lists_name_what_the_token_reaches(server: InProcess, world: World, token: Token) -> None:
    with served(server, world):
        with server.service.database.writing() as connection:
            tokens.make_token(connection, token.user, "write", name="another one", scope="ada/secret")
        bearer, session = callers(server, token)
        alive = None if token.end else token
        expected = {name for name in NAMES if world.of_token(alive, name) >= READ}
        pages = [session.ask("GET", "/"), *(session.ask("GET", f"/{name}") for name in ("ada", "bob", "lab", "group"))]
        shown = {name for page in pages for name in re.findall(r'href="/datasets/(\w+/\w+)"', page.body.decode())}
        assert shown == expected
        for organisation, page in zip(("lab", "group"), pages[3:], strict=True):
            if not world.of_token(alive, organisation):
                assert b"Members" not in page.body
        page = session.ask("GET", "/-/tokens").body.decode()
        assert "another one" not in page and "ada/secret" not in page
        if alive is None:
            assert bearer.ask("GET", "/api/datasets").status == 401
            return
        assert {item["id"] for item in bearer.ask("GET", "/api/datasets").json()} == expected
        for namespace in ("ada", "bob", "lab"):
            listed = bearer.ask("GET", f"/api/organizations/{namespace}/settings/repositories").json()
            assert {item["id"] for item in listed} == {name for name in expected if name.startswith(f"{namespace}/")}
        orgs = {item["name"]: item["roleInOrg"] for item in bearer.ask("GET", "/api/whoami-v2").json()["orgs"]}
        roles = {
            org: min(role, world.of_token(alive, org))
            for (org, user), role in world.members.items()
            if user == token.user
        }
        assert orgs == {org: WORDS[role] for org, role in roles.items() if role}


@settings(max_examples=examples(100, 2), deadline=None)
@given(WORLDS, st.lists(st.tuples(st.sampled_from(["post", "edit", "open"]), TOKENS), min_size=1, max_size=4))
def test_checks_count_with_the_role_they_were_written_with(
    server: InProcess, world: World, acts: list[tuple[str, Token]]
) -> None:
    """The last of several posts and edits decides, each by another token."""
    with served(server, world):
        with server.service.database.reading() as connection:
            found = repositories.find(connection, "dataset", "lab/zoo")
            assert found is not None
            head = History(connection, found.id).resolve("refs/pr/2").oid
        place, counts, own = "/api/datasets/lab/zoo/discussions/2", dict[str, bool](), dict[str, str]()
        text = f"Reviewed.\n\n{ReviewMark(head, head, True).line()}"
        for act, token in acts:
            bearer, browser = callers(server, Token(token.user, token.role, token.scope))
            role = world.of_token(token, "lab/zoo")
            if act == "edit" and token.user in own:
                id = own[token.user]
                answer = bearer.ask("POST", f"{place}/comment/{id}/edit", {"content": text})
            elif act == "open":
                answer = browser.ask(
                    "POST", "/datasets/lab/zoo/discussions/2/comment", {"form_token": "", "comment": text}
                )
                with server.service.database.reading() as connection:
                    id = Discussions(connection, found.id).events(2)[-1].id
            else:
                answer = bearer.ask("POST", f"{place}/comment", {"comment": text})
                id = answer.json()["newMessage"]["id"] if answer.status == 200 else ""
            assert is_done(answer) == (role >= CONTRIBUTE), (act, answer)
            assert b'"role"' not in answer.body
            if is_done(answer):
                own[token.user] = id
                counts[id] = role >= WRITE and world.of_account(token.user, "lab/zoo") >= WRITE
            end(server, Token(token.user, token.role, token.scope, "revoked"), bearer.number)
        with server.service.database.writing() as connection:
            accounts.add(connection, "judge", accounts.USER, actor=OPERATOR)
            accounts.set_grant(connection, "judge", found.id, "write", actor=OPERATOR)
        judge = signed_in(server, "judge")
        form = {"form_token": "", "head": head, "target": head}
        answer = judge.ask("POST", "/datasets/lab/zoo/discussions/2/merge", form)
        assert answer.status == (303 if any(counts.values()) else 412), answer.body


EVERYTHING = World({name: Repository(name, False, False, "ada") for name in NAMES}, {("lab", "ada"): ADMIN}, {})


@pytest.mark.parametrize("ends", ["token", "session", "account", "grant"])
def test_what_ends_while_a_body_arrives_writes_nothing(server: InProcess, ends: str) -> None:
    token, place = Token("ada", WRITE, ""), "lab/zoo"
    with served(server, EVERYTHING) as comments:
        for route in (*ROUTES, *PAGES):
            if route.method == "GET" or route.signed or NEEDS[route.name] in (NEVER, ANYBODY):
                continue
            if ends == "grant" and NEEDS[route.name] in (VALID, ACCOUNT, OWN_TOKEN):
                continue
            bearer, session = callers(server, token)
            caller = session if route.page else bearer
            if ends == "session" and not route.page:
                continue
            if ends in ("session", "account", "grant") and route.page:
                caller = signed_in(server, "ada")
            path, body = request_of(route, place, comments[place], bearer.number)
            ended: list[dict[str, Any]] = []

            def finish(caller: Caller = caller, number: int = bearer.number, ended: Any = ended) -> None:
                if ended:
                    return
                with server.service.database.writing() as connection:
                    if ends == "token":
                        tokens.revoke(connection, "ada", number)
                    elif ends == "session":
                        session = sessions.find(connection, caller.cookie)
                        assert session is not None
                        sessions.end(connection, session.digest)
                    elif ends == "grant":
                        accounts.set_member(connection, "lab", "ada", None, actor=OPERATOR)
                    else:
                        accounts.revoke(connection, "ada", actor=OPERATOR)
                ended.append(server.rows())

            with server.undone():
                answer = caller.ask(route.method, path, body, before_body=finish)
                if route.handler.__name__ in ("paths_info", "preupload", "batch", "verify"):
                    continue  # they write nothing
                assert ended and not is_done(answer) and answer.status in (*REFUSED, 303, 409), (route.name, answer)
                after = server.rows()
                # blobs of small files may stay behind, rows do not
                assert after == ended[0], route.name


def test_identities_and_links_begin_sessions_of_the_account(server: InProcess) -> None:
    with served(server, EVERYTHING):
        own = signed_in(server, "ada")
        made = own.ask("POST", "/-/tokens", {"form_token": "", "role": "read", "days": "30"})
        assert re.search(r"hf_[0-9a-f]{40}", made.body.decode())
        assert own.ask("GET", "/-/audit").status == 200
        _, limited = callers(server, Token("ada", WRITE, ""))
        for form in ({"everywhere": "1"},):
            assert limited.ask("POST", "/-/sign-out", {"form_token": "", **form}).status == 403
        assert own.ask("GET", "/-/tokens").status == limited.ask("GET", "/-/tokens").status == 200
        assert limited.ask("POST", f"/-/tokens/{limited.number - 1}/revoke", {"form_token": ""}).status == 403
        assert limited.ask("POST", f"/-/tokens/{limited.number}/revoke", {"form_token": ""}).status == 303
        assert limited.ask("GET", "/-/tokens").status == 401
