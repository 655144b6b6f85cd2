"""Pages as browsers ask for them, without one: who may see and do what, forms, cookies, headers, hostile cards."""

import re
import urllib.parse
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from ckptzoo.hub.contributions.report import ReviewCheck, checks_markdown
from ckptzoo.schema.review_mark import ReviewMark
from ckptzoo.server.app import PAGES
from ckptzoo.server.pages import zoos
from ckptzoo.server.pages.cards import MAX_BYTES, MAX_COLUMNS, card_html, comment_html
from ckptzoo.server.store import accounts, repositories, sessions, tokens
from ckptzoo.server.store.audit import OPERATOR
from ckptzoo.server.store.discussions import Discussions
from tests.support.hosted import Hosted, hosted, push
from tests.support.pages import Browser

SECRET, OPEN = "lab/secret", "lab/open"


@pytest.fixture
def laboratory(server: Hosted) -> Hosted:
    """``lab/secret`` is private, ``lab/open`` is not; ``bob`` has an account and tokens of every kind."""
    api = server.api()
    card = b"---\nlicense: mit\npretty_name: Open nets\ntags: [arch:mlp]\nckptzoo: {checkpoints: 12}\n---\n# Card\n\nHello."
    for repo in (SECRET, OPEN):
        api.create_repo(repo, repo_type="dataset", private=repo == SECRET)
        api.upload_file(path_or_fileobj=b"1\n", path_in_repo="a.txt", repo_id=repo, repo_type="dataset")
        api.upload_file(path_or_fileobj=card, path_in_repo="README.md", repo_id=repo, repo_type="dataset")
        api.create_discussion(repo, title="A question", repo_type="dataset")
    with server.service.database.writing() as connection:
        server.tokens.update(
            {f"bob-{role}": tokens.make_token(connection, "bob", role) for role in ("read", "contribute", "write")}
        )
    return server


@pytest.fixture
def ada(laboratory: Hosted) -> Browser:
    """Somebody with the role admin in ``lab``, signed in by a one-time link."""
    with laboratory.service.database.writing() as connection:
        code = sessions.make_link(connection, "ada", actor=OPERATOR)
        accounts.set_grant(connection, "ada", "lab", "admin", actor=OPERATOR)
    browser = Browser(laboratory)
    assert browser.post(f"/-/link/{code}").status == 303
    return browser


@pytest.fixture
def bob(laboratory: Hosted) -> Browser:
    """Somebody with an account and no role in ``lab``, signed in by a token."""
    browser = Browser(laboratory)
    assert browser.sign_in("bob-write").status == 303
    return browser


def address_of(route: Any, repository: str) -> str:
    """The path of a page, of a repository's or of the namespace."""
    pieces = {"revision": "main", "path": "a.txt", "number": "1", "code": "x" * 43, "namespace": "lab"}
    address = re.sub(r"^\(\?![^)]*\)|/\(\?![^)]*\)", "/", route.pattern.pattern)
    address = re.sub(r"\(\?:\(\?P<prefix>[^)]*\)/\)\?", "datasets/", address)
    for name, value in {**pieces, "id": repository}.items():
        address = re.sub(rf"\(\?P<{name}>[^)]*\)", value, address)
    assert "(" not in address, address
    return address


def test_a_private_repository_answers_like_one_that_is_not_there(laboratory: Hosted, bob: Browser) -> None:
    """To everybody and to somebody with an account, on every page and to every form."""
    for browser in (Browser(laboratory), bob):
        token = browser.form_token() if browser is bob else ""
        for route in PAGES:
            if "<id>" not in route.pattern.pattern:
                continue
            answers: list[tuple[int, str, str | None]] = []
            for name in (SECRET, "lab/absent"):
                fields = {"form_token": token} if route.method == "POST" else None
                page = browser.ask(route.method, address_of(route, name), fields)
                location = urllib.parse.unquote(page.headers.get("location", ""))
                answers.append((page.status, page.text.replace(name, "NAME"), location.replace(name, "NAME")))
            assert answers[0] == answers[1], route.pattern.pattern
            assert answers[0][0] in (303, 404)


@pytest.mark.parametrize("who", [None, "bob"])
def test_lists_and_counts_leave_private_repositories_out(
    laboratory: Hosted, request: pytest.FixtureRequest, who: str | None
) -> None:
    browser = Browser(laboratory) if who is None else request.getfixturevalue(who)
    for path in ("/", "/lab", "/?q=secret", "/?license=mit", "/?arch=mlp", "/?kind=dataset"):
        text = browser.get(path).text
        assert "lab/secret" not in text and ("lab/open" in text) == ("secret" not in path)
        assert "1 repository" in text or "0 repositories" in text
    with laboratory.service.database.writing() as connection:
        found = repositories.find(connection, "dataset", OPEN)
        assert found is not None
        repositories.set_private(connection, found, True)
    # a namespace with nothing to show is like one that nobody has
    assert browser.get("/lab").text == browser.get("/nobody").text
    assert browser.get("/lab?q=x").status == browser.get("/nobody?q=x").status == 404


def test_lists_say_which_rows_they_show(server: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoos, "_PAGE", 3)
    for number in range(7):
        server.api().create_repo(f"lab/zoo-{number}", repo_type="dataset")
    pages = [Browser(server).get(f"/?p={page}").text for page in range(3)]
    shown = [re.findall(r">lab/(zoo-\d)<", text) for text in pages]
    assert [len(names) for names in shown] == [3, 3, 1] and len({name for names in shown for name in names}) == 7
    for text, rows in zip(pages, ("1 to 3", "4 to 6", "7 to 7"), strict=True):
        assert f"7 repositories, {rows} shown" in text


def test_every_form_refuses_other_origins_and_forged_tokens(laboratory: Hosted, ada: Browser) -> None:
    anonymous = Browser(laboratory)
    for route in PAGES:
        if route.method != "POST":
            continue
        address, own = address_of(route, OPEN), ada.form_token()
        for origin in ("", "null", "http://evil.example", f"{laboratory.url}.evil.example", "https://127.0.0.1"):
            ada.origin = origin
            page = ada.ask("POST", address, {"form_token": own})
            assert page.status == 403 and "Origin" in page.text, address
        ada.origin = None
        for token in ("", "0" * 64, own[:-1], "é" * 64):
            page = ada.ask("POST", address, {"form_token": token})
            assert page.status == 403 and "another session" in page.text, address
        if route.role is not None:
            assert anonymous.ask("POST", address, {}).headers["location"] == "/-/sign-in?next="
    with laboratory.service.database.reading() as connection:
        assert repositories.find(connection, "dataset", OPEN) is not None


def test_cookies_admit_no_call_of_the_protocol(laboratory: Hosted, ada: Browser) -> None:
    assert ada.get(f"/datasets/{SECRET}").status == 200
    for path in (f"/api/datasets/{SECRET}", "/api/whoami-v2", f"/datasets/{SECRET}/resolve/main/a.txt"):
        assert ada.ask("GET", path, Accept="*/*").status in (401, 404)
    # and tokens none of the pages
    bearer = Browser(laboratory, sent={"Authorization": f"Bearer {laboratory.tokens['write']}"})
    assert bearer.get(f"/datasets/{SECRET}").status == 404


def test_headers_of_pages(laboratory: Hosted, ada: Browser) -> None:
    for path in ("/", f"/datasets/{OPEN}", "/-/sign-in", "/-/tokens", f"/datasets/{OPEN}/settings", "/none"):
        headers = ada.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "script" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
    cookie = Browser(laboratory).sign_in("read").headers["set-cookie"]
    assert all(item in cookie for item in ("HttpOnly", "SameSite=lax", "Path=/", "Max-Age=2592000"))


def test_a_page_behind_tls(tmp_path: Path) -> None:
    with hosted(tmp_path / "tls", url="https://zoos.example") as server:
        browser = Browser(server)
        browser.origin = "https://zoos.example"
        page = browser.sign_in("read")
        assert page.headers["set-cookie"].startswith("__Host-session=") and "Secure" in page.headers["set-cookie"]
        assert browser.get("/-/tokens").status == 200
        # a cookie that somebody set without TLS is none
        browser.cookie = browser.cookie.replace("__Host-", "")
        assert browser.get("/-/tokens").status == 303


def test_links_are_good_once_and_for_a_day(laboratory: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    database = laboratory.service.database

    def made(user: str) -> str:
        with database.writing() as connection:
            return sessions.make_link(connection, user, actor=OPERATOR)

    code = made("ada")
    browser = Browser(laboratory)
    for _ in range(2):  # looking at it does not use it up
        assert "signs you in as <strong>ada</strong>" in browser.get(f"/-/link/{code}").text
    assert browser.post(f"/-/link/{code}").status == 303 and browser.get("/-/tokens").title == "Tokens of ada"
    other = Browser(laboratory)
    assert other.get(f"/-/link/{code}").status == 404 and other.post(f"/-/link/{code}").status == 404
    old, new = made("ada"), made("ada")
    assert other.get(f"/-/link/{old}").status == 404 and other.get(f"/-/link/{new}").status == 200
    monkeypatch.setattr(sessions, "_now", lambda later=timedelta(): "2999-01-01T00:00:00+00:00")
    assert other.get(f"/-/link/{new}").status == 404
    assert browser.get("/-/tokens").status == 303  # and so are sessions over


def test_sessions_end(laboratory: Hosted, bob: Browser) -> None:
    database = laboratory.service.database
    assert bob.get("/-/tokens").status == 200
    twin = Browser(laboratory)
    twin.sign_in("bob-write")
    assert bob.post("/-/sign-out").status == 303 and bob.get("/-/tokens").status == 303
    # a token's session ends no other one
    assert twin.post("/-/sign-out", everywhere="1").status == 403 and twin.get("/-/tokens").status == 200
    with database.writing() as connection:
        code = sessions.make_link(connection, "bob", actor=OPERATOR)
    own = Browser(laboratory)
    assert own.post(f"/-/link/{code}").status == 303
    assert own.post("/-/sign-out", everywhere="1").status == 303
    assert twin.get("/-/tokens").status == own.get("/-/tokens").status == 303
    for end in ("token", "account"):
        browser = Browser(laboratory)
        browser.sign_in("bob-read" if end == "token" else "bob-write")
        assert browser.get("/-/tokens").status == 200
        with database.writing() as connection:
            (number,) = (
                (item.number for item in tokens.listed(connection, "bob") if item.limits.role == "read")
                if (end == "token")
                else (None,)
            )
            if end == "token":
                tokens.revoke(connection, "bob", number)
            else:
                accounts.revoke(connection, "bob", actor=OPERATOR)
        assert browser.get("/-/tokens").status == 303


def test_a_session_may_no_more_than_its_token(laboratory: Hosted) -> None:
    reader = Browser(laboratory)
    reader.sign_in("bob-read")
    assert reader.post(f"/datasets/{OPEN}/discussions/1/comment", comment="Hello").status == 403
    for role in ("read", "write"):
        page = reader.post("/-/tokens", role=role, days="30")
        assert page.status == 403 and "one-time link" in page.text
    assert "New token" not in reader.get("/-/tokens").text and "New token" not in reader.get("/-/audit").text
    numbers = re.findall(r"/-/tokens/(\d+)/revoke", reader.get("/-/tokens").text)
    assert len(numbers) == 1
    assert reader.post(f"/-/tokens/{int(numbers[0]) + 1}/revoke").status == 403
    with laboratory.service.database.writing() as connection:
        laboratory.tokens["narrow"] = tokens.make_token(connection, "lab", "write", scope=OPEN)
    narrow = Browser(laboratory)
    narrow.sign_in("narrow")
    assert narrow.get(f"/datasets/{OPEN}/settings").status == 200
    assert narrow.get(f"/datasets/{SECRET}").status == 404
    assert narrow.post("/-/tokens", role="read", days="30").status == 403


def test_wrong_tokens_are_tried_so_often(laboratory: Hosted) -> None:
    browser = Browser(laboratory)
    answers = [browser.post("/-/sign-in", token=f"hf_{number}", next="/") for number in range(25)]
    assert [page.status for page in answers] == [403] * 20 + [429] * 5
    assert "There is no such token" in answers[0].text and "Too many requests" in answers[-1].text
    assert re.fullmatch(r'"sign-in";r=0;t=\d+', answers[-1].headers["ratelimit"])
    assert int(answers[-1].headers["retry-after"]) <= 60
    # somebody else's address is not the one that a header claims
    assert browser.ask("POST", "/-/sign-in", {"token": "x"}, X_Forwarded_For="203.0.113.9").status == 429


def test_going_on_after_signing_in_stays_here(laboratory: Hosted) -> None:
    for following in ("https://evil.example", "//evil.example", "/\\evil.example", "evil", "/a\nSet-Cookie: b"):
        page = Browser(laboratory).post("/-/sign-in", token=laboratory.tokens["read"], next=following)
        assert page.headers["location"] == "/", following
    page = Browser(laboratory).get(f"/datasets/{OPEN}/settings")
    assert page.headers["location"] == f"/-/sign-in?next={urllib.parse.quote(f'/datasets/{OPEN}/settings', safe='')}"


def test_tokens_are_shown_once(laboratory: Hosted, ada: Browser) -> None:
    page = ada.post("/-/tokens", name="<b>laptop</b>", role="write", scope="lab", days="90")
    (text,) = re.findall(r"hf_[0-9a-f]{40}", page.text)
    assert text not in ada.get("/-/tokens").text and "&lt;b&gt;laptop" in ada.get("/-/tokens").text
    laboratory.tokens["made"] = text
    assert laboratory.api("made").whoami()["name"] == "ada"
    (number,) = re.findall(r"/-/tokens/(\d+)/revoke", ada.get("/-/tokens").text)
    assert ada.post(f"/-/tokens/{number}/revoke").status == 303
    assert ada.post(f"/-/tokens/{number}/revoke").status == 404
    for fields in (
        {"role": "admin", "days": "30"},
        {"role": "read", "days": "7"},
        {"role": "read", "days": "30", "scope": "a b"},
    ):
        assert ada.post("/-/tokens", **fields).status == 400


def test_settings_and_members(laboratory: Hosted, ada: Browser, bob: Browser) -> None:
    place = f"/datasets/{SECRET}"
    assert bob.get(place).status == 404
    assert ada.post(f"{place}/settings", action="grant", account="bob", role="read").status == 303
    assert bob.get(place).status == 200 and bob.get(f"{place}/settings").status == 403
    assert ada.post(f"{place}/settings", action="grant", account="nobody", role="read").status == 404
    assert ada.post(f"{place}/settings", action="grant", account="bob", role="king").status == 400
    assert ada.post(f"{place}/settings", action="revoke", account="bob").status == 303
    assert bob.get(place).status == 404
    assert ada.post(f"{place}/settings", action="show").status == 303 and bob.get(place).status == 200
    assert ada.post(f"{place}/settings", action="close").status == 303
    assert bob.post(f"{place}/discussions/1/comment", comment="Hello").status == 403
    assert ada.post(f"{place}/settings", action="open").status == 303
    assert bob.post(f"{place}/discussions/1/comment", comment="Hello").status == 303
    assert ada.post(f"{place}/settings", action="burn").status == 400
    assert ada.post(f"{place}/settings", action="delete", name="lab/open").status == 400
    assert ada.post(f"{place}/settings", action="delete", name=SECRET).status == 303
    assert ada.get(place).status == 404
    with laboratory.service.database.writing() as connection:
        accounts.add(connection, "institute", accounts.ORGANISATION, actor=OPERATOR)
        accounts.set_member(connection, "institute", "ada", "admin", actor=OPERATOR)
    assert bob.post("/institute/members", action="set", account="bob", role="admin").status == 404
    assert ada.post("/institute/members", action="set", account="bob", role="write").status == 303
    assert "bob" in ada.get("/institute").text and bob.get("/institute").status == 200
    assert ada.post("/institute/members", action="remove", account="ada").status == 400
    assert ada.post("/institute/members", action="remove", account="bob").status == 303
    assert bob.get("/institute").status == 404
    changes = ada.get("/-/audit").text
    assert all(item in changes for item in ("delete dataset", "remove member", "take grant", "dataset lab/secret"))
    assert "lab/secret" not in bob.get("/-/audit").text


@pytest.fixture
def proposed(laboratory: Hosted) -> Iterator[Hosted]:
    """An open pull request of ``stranger``, number 2."""
    api = laboratory.api("contribute")
    made = api.create_pull_request(OPEN, title="<i>More</i>", description="Some **more**.", repo_type="dataset")
    assert made.num == 2
    api.upload_file(
        path_or_fileobj=b"2\n", path_in_repo="b.txt", repo_id=OPEN, repo_type="dataset", revision="refs/pr/2"
    )
    api.change_discussion_status(OPEN, 2, "open", repo_type="dataset")
    yield laboratory


PULL = f"/datasets/{OPEN}/discussions/2"


def heads(server: Hosted) -> tuple[str, str]:
    """The last commits of the pull request and of main."""
    refs = server.api().list_repo_refs(OPEN, repo_type="dataset", include_pull_requests=True)
    return (refs.pull_requests or [])[0].target_commit, refs.branches[0].target_commit


def posted(server: Hosted, role: str, mark: ReviewMark) -> None:
    server.api(role).comment_discussion(OPEN, 2, f"Reviewed.\n\n{mark.line()}", repo_type="dataset")


def test_what_was_checked_is_merged_and_nothing_else(proposed: Hosted, ada: Browser, bob: Browser) -> None:
    head, main = heads(proposed)
    page = ada.get(PULL)
    assert "&lt;i&gt;More&lt;/i&gt;" in page.text and "Some <strong>more</strong>." in page.text
    assert "Nobody with the role write has posted checks" in page.text and f"Merge {head[:12]}" not in page.text
    form = {"head": head, "target": main}
    assert ada.post(f"{PULL}/merge", **form).status == 412
    # checks of those who may not write do not count, nor do failed ones, nor those of another commit
    for role, mark in (
        ("contribute", ReviewMark(head, main, True)),
        ("write", ReviewMark(main, main, True)),
        ("write", ReviewMark(head, main, False)),
    ):
        posted(proposed, role, mark)
        assert ada.post(f"{PULL}/merge", **form).status == 412 and f"Merge {head[:12]}" not in ada.get(PULL).text
    posted(proposed, "write", ReviewMark(head, main, True))
    assert f"Merge {head[:12]}" in ada.get(PULL).text and f"Merge {head[:12]}" not in bob.get(PULL).text
    assert bob.post(f"{PULL}/merge", **form).status == 403
    # the zoo moves on
    push(proposed, {"c.txt": b"3"}, f"datasets/{OPEN}")
    assert "The zoo has moved on" in ada.get(PULL).text
    for target in (main, heads(proposed)[1]):
        assert ada.post(f"{PULL}/merge", head=head, target=target).status == 412
    main = heads(proposed)[1]
    posted(proposed, "write", ReviewMark(head, main, True))
    # and so does the pull request, between the page and the button
    push(proposed, {"d.txt": b"4"}, f"datasets/{OPEN}", revision="refs%2Fpr%2F2")
    assert ada.post(f"{PULL}/merge", head=head, target=main).status == 412
    head = heads(proposed)[0]
    posted(proposed, "write", ReviewMark(head, main, True))
    assert ada.post(f"{PULL}/merge", head=head, target=main).status == 303
    page = ada.get(PULL)
    assert "set the status to merged" in page.text and "the merge" in page.text
    assert proposed.api().file_exists(OPEN, "d.txt", repo_type="dataset")
    assert ada.post(f"{PULL}/merge", head=head, target=main).status == 400


def test_checks_that_were_not_done_are_not_called_passed(proposed: Hosted, bob: Browser) -> None:
    mark, passed = ReviewMark(*heads(proposed), True), ReviewCheck("ids", "passed", "new")
    for checks, words, absent in (
        ((passed,), "All checks passed", "not done:"),
        (
            (passed, ReviewCheck("near copies", "not done", "few")),
            "No check failed; not done: near copies;",
            "No accuracy",
        ),
        ((ReviewCheck("accuracy", "not done", "<b>why</b>"), passed), "not done: accuracy;", "All checks passed"),
    ):
        text = f"Reviewed.\n\n{checks_markdown(checks)}\n\n{mark.line()}"
        proposed.api("write").comment_discussion(OPEN, 2, text, repo_type="dataset")
        page = bob.get(PULL).text
        assert words in page and absent not in page
    assert "No accuracy was measured" in page


def test_answers_and_status(proposed: Hosted, bob: Browser) -> None:
    assert bob.post(f"{PULL}/comment", comment="").status == 400
    assert bob.post(f"{PULL}/comment", comment="x" * 65537).status == 413
    assert bob.post(f"{PULL}/comment", comment="**hi**\n\n<script>alert(1)</script>").status == 303
    text = bob.get(PULL).text
    assert "<strong>hi</strong>" in text and "<script" not in text and "alert" not in text
    assert bob.post(f"{PULL}/status", status="closed").status == 403
    stranger = Browser(proposed)
    stranger.sign_in("contribute")
    assert stranger.post(f"{PULL}/status", status="closed", comment="No.").status == 303
    listing = f"/datasets/{OPEN}/discussions"
    assert "&lt;i&gt;More" not in bob.get(listing).text and "&lt;i&gt;More" in bob.get(f"{listing}?status=closed").text
    assert stranger.post(f"{PULL}/status", status="open").status == 303
    assert bob.get(f"{PULL}/files").text.count('class="added"') == 1


def test_every_licence_of_a_card_is_shown_and_chosen_by(laboratory: Hosted, bob: Browser) -> None:
    cards = {
        "lab/open": b"license: [apache-2.0, cc-by-4.0, cc-by-4.0]\ntags: [arch:mlp, arch:cnn, dataset:mnist]",
        "lab/many": b"license: [mit, cc-by-4.0]\ntags: [" + b", ".join(b"t%d" % at for at in range(40)) + b"]",
        "lab/one": b"license: mit",
        "lab/odd": b"license: {a: b}",
    }
    for repo, card in cards.items():
        laboratory.api().create_repo(repo, repo_type="dataset", exist_ok=True)
        push(laboratory, {"README.md": b"---\n" + card + b"\n---\n# Card\n"}, f"datasets/{repo}")
    text = bob.get("/lab").text
    assert "<span>apache-2.0, cc-by-4.0</span>" in text and "[&#39;" not in text and "['" not in text
    assert "{&#39;a" not in text
    page = bob.get("/datasets/lab/open").text
    assert "<dt>licences</dt><dd>apache-2.0, cc-by-4.0</dd>" in page
    assert "<dt>licence</dt><dd>mit</dd>" in bob.get("/datasets/lab/one").text
    facet = text.partition("<h2>Licence</h2>")[2].partition("</ul>")[0]
    counts = dict(re.findall(r">([a-z0-9.-]+)</a> <span>(\d+)</span>", facet))
    assert counts == {"apache-2.0": "1", "cc-by-4.0": "2", "mit": "2"}
    assert ">cnn</a> <span>1</span>" in text and ">mlp</a> <span>1</span>" in text
    for query, found in (
        ("license=cc-by-4.0", {"lab/open", "lab/many"}),
        ("license=apache-2.0", {"lab/open"}),
        ("license=mit", {"lab/many", "lab/one"}),
        ("arch=cnn", {"lab/open"}),
        ("arch=mlp&license=cc-by-4.0", {"lab/open"}),
        ("license=no", set()),
    ):
        rows = bob.get(f"/lab?{query}").text.partition('<ul class="rows">')[2].partition("</ul>")[0]
        assert set(re.findall(r"<h2><a [^>]*>([^<]*)</a>", rows)) == found, query


def test_pictures_and_the_explorer_are_said_to_be_of_before_a_merge(laboratory: Hosted, ada: Browser) -> None:
    card = b"---\ntags: [ckptzoo]\nckptzoo: {checkpoints: 12}\n---\n# Card\n"
    files = {"parts/000001-00000000/a.txt": b"1", "README.md": card, "pictures/a.png": b"1"}
    push(laboratory, {**files, "pages/explorer.html": b"<p>1</p>"}, f"datasets/{OPEN}")
    api = laboratory.api("contribute")
    api.create_pull_request(OPEN, title="More", repo_type="dataset")
    push(laboratory, {"parts/000002-00000000/a.txt": b"2"}, f"datasets/{OPEN}", revision="refs%2Fpr%2F2")
    laboratory.api().change_discussion_status(OPEN, 2, "open", repo_type="dataset")
    visitor = Browser(laboratory)
    assert "Not up to date" not in visitor.get(f"/datasets/{OPEN}").text
    laboratory.api().merge_pull_request(OPEN, 2, repo_type="dataset")
    seen, own = visitor.get(f"/datasets/{OPEN}").text, ada.get(f"/datasets/{OPEN}").text
    for text in (seen, own):
        assert "<code>pictures</code>, <code>pages/explorer.html</code>" in text
        assert "Counts are those before pull request 2." in text
    assert "--finish" not in seen and "--finish" in own and "ckptzoo page FOLDER --in-place" in own
    assert "(before the last merge)" in visitor.get("/").text
    push(laboratory, {"README.md": card + b"more"}, f"datasets/{OPEN}")
    own = ada.get(f"/datasets/{OPEN}").text
    assert "--finish" not in own and "Counts are" not in own and "<code>pictures</code>" in own
    assert "(before the last merge)" not in visitor.get("/").text
    push(laboratory, {"pictures/a.png": b"2", "pages/explorer.html": b"<p>2</p>"}, f"datasets/{OPEN}")
    assert "Not up to date" not in ada.get(f"/datasets/{OPEN}").text


def test_what_a_merge_leaves_behind(laboratory: Hosted, ada: Browser) -> None:
    files = {"parts/000001-00000000/a.txt": b"1", "derived/canonical/000001-00000000/a.txt": b"1", "README.md": b"1"}
    push(laboratory, files, f"datasets/{OPEN}")
    api = laboratory.api("contribute")
    api.create_pull_request(OPEN, title="More", repo_type="dataset")
    push(laboratory, {"parts/000002-00000000/a.txt": b"2"}, f"datasets/{OPEN}", revision="refs%2Fpr%2F2")
    laboratory.api().change_discussion_status(OPEN, 2, "open", repo_type="dataset")
    assert "--finish" not in ada.get(f"/datasets/{OPEN}").text
    laboratory.api().merge_pull_request(OPEN, 2, repo_type="dataset")
    text = ada.get(f"/datasets/{OPEN}").text
    assert "ckptzoo review lab/open 2 --finish" in text
    assert "<code>README.md</code>" in text and "<code>derived/canonical</code>" in text
    assert "--finish" not in Browser(laboratory).get(f"/datasets/{OPEN}").text
    push(laboratory, {"README.md": b"2", "derived/canonical/000002-00000000/a.txt": b"2"}, f"datasets/{OPEN}")
    assert "--finish" not in ada.get(f"/datasets/{OPEN}").text


def test_long_discussions_have_pages(proposed: Hosted, bob: Browser) -> None:
    for number in range(120):
        with proposed.service.database.writing() as connection:
            found = repositories.find(connection, "dataset", OPEN)
            assert found is not None
            Discussions(connection, found.id).comment(2, "bob", "contribute", f"comment {number}.")
    last, first = bob.get(PULL).text, bob.get(f"{PULL}?p=0").text
    assert "comment 119." in last and "comment 0." not in last and 'rel="prev"' in last
    assert "comment 0." in first and "comment 119." not in first and f'href="{PULL}?p=1"' in first
    assert bob.get(f"{PULL}?p=99").text.count("<article") == bob.get(PULL).text.count("<article") <= 50


def test_files_and_history(laboratory: Hosted, ada: Browser) -> None:
    push(laboratory, {"x/<b>.txt": b"<script>1</script>\n", "big.safetensors": b"5" * 70_000}, f"datasets/{OPEN}")
    place = f"/datasets/{OPEN}"
    assert "x/</a>" in ada.get(f"{place}/tree/main").text
    name = urllib.parse.quote("x/<b>.txt")
    assert "&lt;script&gt;1" in ada.get(f"{place}/blob/main/{name}").text
    raw = ada.get(f"{place}/raw/main/{name}")
    assert raw.headers["content-type"].startswith("text/plain") and "sandbox" in raw.headers["content-security-policy"]
    large = ada.get(f"{place}/raw/main/big.safetensors")
    assert large.text == "5" * 70_000 and large.headers["content-disposition"].startswith("attachment")
    history = ada.get(f"{place}/commits/main").text
    commit = re.findall(r"/commit/([0-9a-f]{40})", history)
    assert len(commit) == 4 and "lab/open" in ada.get(f"{place}/commit/{commit[-1]}").title
    assert "+&lt;script&gt;1&lt;/script&gt;" in ada.get(f"{place}/commit/{commit[0]}").text
    for path in (
        "tree/none",
        "tree/main/none",
        "blob/main/x",
        "raw/main/none",
        "commit/none",
        "discussions/9",
        "explorer/main",
    ):
        page = ada.get(f"{place}/{path}")
        assert page.status == 404 and page.title == "Not found", path
    assert ada.get(f"{place}/raw/main/{urllib.parse.quote('../a.txt', safe='')}").status == 400


def card(tmp_path: Path, text: str) -> str:
    path = tmp_path / f"{abs(hash(text))}.md"
    path.write_text(text)
    return card_html(path, "/datasets/lab/zoo", "c" * 40)


ATTACKS = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[a](javascript:alert(1))", "<a href='java\tscript:alert(1)'>a</a>",
    "<svg><script>alert(1)</script></svg>", "<iframe src=/></iframe>", "<form action=/-/tokens><input name=role></form>",
    "<math><mtext></mtext><style><img src=x onerror=alert(1)></style></math>", "<style>*{display:none}</style>",
    "<div style='position:fixed'>a</div>", "<a id=main name=form_token>a</a>", "<base href=//evil.example>",
    "<meta http-equiv=refresh content=0>", "![a](data:text/html,<script>alert(1)</script>)", "<object data=/></object>",
    "</main><script>alert(1)</script>", "<link rel=stylesheet href=//evil.example>", "<img src='x' srcset='//evil.example/a'>",
)  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.sampled(2)
def test_hostile_cards(tmp_path: Path, attack: str) -> None:
    for html in (card(tmp_path, attack), card(tmp_path, f"> {attack}\n"), comment_html(attack)):
        assert not re.search(r"<(script|iframe|form|input|style|svg|math|base|meta|object|link|main)", html), html
        assert not re.search(r"<[^>]*\s(on\w+|style|id|name|srcset|form\w*|class=\"(?!scroll))\s*=", html), html
        assert not re.search(r"(href|src)=\"(?!https?:|mailto:|/datasets/lab/zoo/(raw|blob)/c{40}/)", html), html


def test_links_and_pictures_of_cards(tmp_path: Path) -> None:
    html = card(
        tmp_path,
        "![a](pictures/a.png) [b](docs/b%20c.md) [c](https://example.org/x) [d](../../secret) ![e](//evil.example/e.png)",
    )
    place = f"/datasets/lab/zoo/{{}}/{'c' * 40}"
    assert (
        f'src="{place.format("raw")}/pictures/a.png"' in html and f'href="{place.format("blob")}/docs/b%20c.md"' in html
    )
    assert 'href="https://example.org/x" rel="nofollow noopener noreferrer"' in html
    assert "secret" not in html and "evil.example" not in html
    for target in (
        "https://evil.example/a.png",
        "http:a.png",
        "/datasets/x",
        "a/../../b.png",
        "..%2f..%2fx.png",
        "\\\\evil\\a",
    ):
        assert "src=" not in card(tmp_path, f"![a](<{target}>)"), target
    assert "<img" not in comment_html("![a](a.png)")


@pytest.mark.parametrize(
    "text",
    [
        "x" * (MAX_BYTES + 1),
        "|".join("a" * (MAX_COLUMNS + 2)) + "\n" + "|".join("-" * (MAX_COLUMNS + 2)),
        "<div>" * 20_000,
        "![" * 20_000,
        "a" * (5 * 2**20),
    ],
)  # fmt: skip
def test_cards_that_are_too_large(tmp_path: Path, text: str) -> None:
    html = card(tmp_path, text)
    assert html.startswith("<p>The text has more than") and len(html) < 200_000 and "<table" not in html


def test_cards_of_many_levels(tmp_path: Path) -> None:
    for text in (">" * 100_000, "- " * 100_000, "".join(" " * n + "- a\n" for n in range(600)), "<b>" * 9_000):
        assert len(card(tmp_path, text)) < 2**20


def test_only_released_explorers_run(laboratory: Hosted, ada: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    push(laboratory, {"pages/explorer.html": b"<script>ours()</script>"}, f"datasets/{OPEN}")
    place = f"/datasets/{OPEN}"
    monkeypatch.setattr(zoos, "BUNDLES", ())
    assert ada.get(f"{place}/explorer/main/frame").status == 404 and "/explorer/" not in ada.get(place).text
    monkeypatch.setattr(zoos, "BUNDLES", ("sha256-AAAA",))
    assert "/explorer/" in ada.get(place).text
    assert 'sandbox="allow-scripts"' in ada.get(f"{place}/explorer/main").text
    policy = ada.get(f"{place}/explorer/main/frame").headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'; script-src 'sha256-AAAA';")
    assert "unsafe" not in policy and "allow-same-origin" not in policy
    # as a file it is text
    assert ada.get(f"{place}/raw/main/pages/explorer.html").headers["content-type"].startswith("text/plain")


def test_a_private_server(tmp_path: Path) -> None:
    with hosted(tmp_path / "private", private=True) as server:
        browser = Browser(server)
        for path in ("/", "/lab", "/datasets/lab/zoo", "/-/audit"):
            assert browser.get(path).headers["location"].startswith("/-/sign-in?next=")
        assert browser.get("/-/style.css").status == 200
        assert browser.sign_in("read").status == 303 and browser.get("/").status == 200


def test_json_for_clients_and_pages_for_browsers(laboratory: Hosted) -> None:
    browser = Browser(laboratory)
    assert browser.get("/datasets/lab/none").title == "Not found"
    assert browser.ask("GET", "/datasets/lab/none", Accept="*/*").text == '{"error":"Repository not found: lab/none"}'
    assert browser.ask("PUT", "/-/tokens").status == 405
    assert "lab/open" in unescape(browser.get(f"/datasets/{OPEN}").text)
