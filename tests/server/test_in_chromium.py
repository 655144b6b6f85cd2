"""Pages in a real Chromium: by keyboard alone, for readers of screens, on narrow screens, and under attack."""

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import BrowserContext, Page

from ckptzoo.schema.review_mark import ReviewMark
from ckptzoo.server.pages import zoos
from ckptzoo.server.store import accounts, sessions
from ckptzoo.server.store.audit import OPERATOR
from tests.support.chromium import go_to, sideways, violations
from tests.support.effort import ALL
from tests.support.hosted import Hosted, hosted, push

pytestmark = pytest.mark.browser
ZOO = "lab/zoo"
CARD = b"""---
license: mit
pretty_name: A zoo
tags: [ckptzoo, arch:mlp]
---
# A zoo

![A picture](pictures/a.png)

| a | b |
|---|---|
| """ + b"wide " * 200 + b""" | 2 |

```python
""" + b"x = 1  # " + b"long " * 100 + b"""
```
"""  # fmt: skip
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def laboratory(tmp_path: Path) -> Iterator[Hosted]:
    """A zoo with a pull request of ``stranger``, and ``ada``, who administers it."""
    with hosted(tmp_path / "served") as server:
        api, stranger = server.api(), server.api("contribute")
        api.create_repo(ZOO, repo_type="dataset")
        api.create_repo("lab/net", repo_type="model", private=True)
        push(server, {"README.md": CARD, "pictures/a.png": PIXEL}, f"datasets/{ZOO}")
        stranger.create_pull_request(ZOO, title="More networks", description="Ten of **mine**.", repo_type="dataset")
        stranger.upload_file(
            path_or_fileobj=b"1\n", path_in_repo="a.txt", repo_id=ZOO, repo_type="dataset", revision="refs/pr/1"
        )
        stranger.change_discussion_status(ZOO, 1, "open", repo_type="dataset")
        refs = api.list_repo_refs(ZOO, repo_type="dataset", include_pull_requests=True)
        head, main = (refs.pull_requests or [])[0].target_commit, refs.branches[0].target_commit
        mark = ReviewMark(head, main, True)
        api.comment_discussion(ZOO, 1, f"Reviewed: nothing failed.\n\n{mark.line()}", repo_type="dataset")
        with server.service.database.writing() as connection:
            accounts.add(connection, "institute", accounts.ORGANISATION, actor=OPERATOR)
            sessions.make_link(connection, "ada", actor=OPERATOR)
            accounts.set_grant(connection, "ada", "lab", "admin", actor=OPERATOR)
            accounts.set_member(connection, "institute", "ada", "admin", actor=OPERATOR)
        yield server


def signed_in(server: Hosted, context: BrowserContext) -> Page:
    """A window of ada's."""
    with server.service.database.writing() as connection:
        secret = sessions.begin(connection, "ada")
    context.add_cookies([{"name": "session", "value": secret, "url": server.url}])
    return context.new_page()


def test_by_keyboard_alone(laboratory: Hosted, browser: Chromium) -> None:
    """Sign in with a link, look at the zoo and its pull request, answer, merge, make a token, sign out."""
    with laboratory.service.database.writing() as connection:
        code = sessions.make_link(connection, "ada", actor=OPERATOR)
    context = browser.new_context()
    page = context.new_page()

    def press(name: str) -> None:
        go_to(page, name)
        with page.expect_navigation():
            page.keyboard.press("Enter")

    page.goto(f"{laboratory.url}/-/link/{code}")
    press("Sign in as ada")
    go_to(page, "Search zoos")
    page.keyboard.type("a zoo")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    press(ZOO)
    press("Pull requests (1)")
    press("More networks")
    press("the changed lines")
    assert page.locator(".added").all_inner_texts() == ["+1"]
    page.go_back()
    go_to(page, "Every check")
    page.keyboard.press("Enter")
    assert page.get_by_text("Reviewed: nothing failed.").first.is_visible()
    go_to(page, "Comment (Markdown)")
    page.keyboard.type("Thank you.")
    press("Comment")
    assert page.get_by_text("Thank you.").is_visible()
    commit = page.get_by_role("button", name="Merge").inner_text()
    press(commit)
    assert page.get_by_text("set the status to merged").is_visible()
    press("Files")
    assert page.get_by_role("link", name="a.txt").is_visible()
    press("Tokens")
    go_to(page, "Name")
    page.keyboard.type("laptop")
    press("Create token")
    token = page.locator(".notice pre").inner_text()
    laboratory.tokens["made"] = token
    assert laboratory.api("made").whoami()["name"] == "ada"
    press("Sign out")
    assert page.get_by_role("link", name="Sign in").is_visible()
    context.close()


@pytest.mark.exhaustive
def test_signing_in_with_a_token(laboratory: Hosted, browser: Chromium) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{laboratory.url}/datasets/{ZOO}/settings")
    page.get_by_label("Token").fill("hf_wrong")
    page.keyboard.press("Enter")
    assert page.get_by_role("alert").inner_text() == "There is no such token, or it has ended."
    page.get_by_label("Token").fill(laboratory.tokens["write"])
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/datasets/{ZOO}/settings")
    assert page.evaluate("document.cookie") == ""  # no script could read it
    context.close()


PATHS = (
    "/", "/lab", "/institute", "/?q=nothing", f"/datasets/{ZOO}", f"/datasets/{ZOO}/tree/main", f"/datasets/{ZOO}/blob/main/README.md",
    f"/datasets/{ZOO}/blob/main/pictures/a.png", f"/datasets/{ZOO}/commits/main", f"/datasets/{ZOO}/commit/main",
    f"/datasets/{ZOO}/discussions", f"/datasets/{ZOO}/discussions?status=closed", f"/datasets/{ZOO}/discussions/1",
    f"/datasets/{ZOO}/discussions/1/files", f"/datasets/{ZOO}/settings", "/lab/net", "/-/tokens", "/-/audit",
    "/-/sign-in", "/-/link/none", "/none",
)  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.exhaustive)])
def test_every_page_is_accessible_and_narrow(laboratory: Hosted, browser: Chromium, scheme: str) -> None:
    viewport = {"width": 320 if scheme == "light" else 1200, "height": 800}
    context = browser.new_context(color_scheme=scheme, viewport=viewport, bypass_csp=True)  # pyright: ignore
    page = signed_in(laboratory, context)
    for path in PATHS if ALL else PATHS[::2]:
        page.goto(laboratory.url + path)
        assert violations(page) == [], path
        assert sideways(page) == 0, path
    context.close()


def test_nothing_is_cut_on_paper(laboratory: Hosted, browser: Chromium) -> None:
    context = browser.new_context(viewport={"width": 700, "height": 900})
    page = signed_in(laboratory, context)
    page.emulate_media(media="print")
    for path in PATHS if ALL else PATHS[::4]:
        page.goto(laboratory.url + path)
        cut = "found => found.filter(e => e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1).length"
        assert page.locator("main pre, main .scroll, main .diff").evaluate_all(cut) == 0, path
        assert page.locator("main form:visible, .account:visible").count() == 0, path
    context.close()


@pytest.mark.exhaustive
def test_what_is_beside_a_list_is_reached_without_its_rows(laboratory: Hosted, browser: Chromium) -> None:
    context = browser.new_context(viewport={"width": 320, "height": 600})
    page = context.new_page()
    for path, link, place in (("/", "Filters", "filters"), (f"/datasets/{ZOO}", "Facts, and how to use it", "about")):
        page.goto(laboratory.url + path)
        go_to(page, link)
        page.keyboard.press("Enter")
        page.wait_for_function(f"() => document.activeElement.id === '{place}' && scrollY > 0")
    context.close()


def test_pages_ask_nobody_else(laboratory: Hosted, browser: Chromium) -> None:
    """Whatever a card says: no request to another site, no script, no frame, no dialog."""
    hostile = b"""# A zoo

<script>document.title = "taken"</script><img src="http://evil.example/a.png" onerror="document.title='taken'">
<iframe src="http://evil.example"></iframe><style>@import "http://evil.example/a.css";</style>
<a href="javascript:document.title='taken'">press</a> <form action="/-/sign-out"><button>press</button></form>
![b](http://evil.example/b.png)
"""
    push(
        laboratory,
        {
            "README.md": hostile,
            "page.html": hostile,
            "a.svg": b"<svg xmlns='http://www.w3.org/2000/svg'><script>document.title='taken'</script></svg>",
        },
        f"datasets/{ZOO}",
    )
    context = browser.new_context()
    page = signed_in(laboratory, context)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path in ("", "/blob/main/page.html", "/raw/main/page.html", "/raw/main/a.svg", "/discussions/1"):
        page.goto(f"{laboratory.url}/datasets/{ZOO}{path}")
        assert page.title() != "taken"
    assert asked and all(url.startswith(laboratory.url) for url in asked)
    page.goto(f"{laboratory.url}/datasets/{ZOO}")
    page.get_by_text("press").first.click()
    assert page.title() != "taken" and page.get_by_role("link", name="Tokens").is_visible()
    context.close()


def explorer(script: str) -> bytes:
    return f"<!doctype html><title>x</title><p id=shown>nothing</p><script>{script}</script>".encode()


def test_a_released_explorer_runs_and_a_forged_one_does_not(
    laboratory: Hosted, browser: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """let tried = [];
for (const [name, reach] of Object.entries({cookie: () => document.cookie, parent: () => parent.document.title,
    storage: () => localStorage.length})) { try { reach(); tried.push(name); } catch (error) {} }
fetch("/-/tokens").then(() => tried.push("fetch")).catch(() => {}).finally(() => {
    document.getElementById("shown").textContent = "ran; reached " + tried.join(); });"""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    monkeypatch.setattr(zoos, "BUNDLES", (f"sha256-{digest}",))
    context = browser.new_context()
    page = signed_in(laboratory, context)
    for code, expected in ((script, "ran; reached "), (f"{script} ", "nothing")):
        push(laboratory, {"pages/explorer.html": explorer(code)}, f"datasets/{ZOO}")
        page.goto(f"{laboratory.url}/datasets/{ZOO}")
        page.get_by_role("link", name="Explore the weights").click()
        shown = page.frame_locator("iframe").locator("#shown")
        if code == script:
            page.frame_locator("iframe").get_by_text("ran;").wait_for()
        assert shown.inner_text().strip() == expected.strip()
    context.close()


def test_forms_of_other_sites_are_refused(laboratory: Hosted, browser: Chromium) -> None:
    """Another site's page, and a sandboxed frame of it, send our form with the cookie that the browser has."""
    context = browser.new_context()
    signed_in(laboratory, context)
    page = context.new_page()
    form = f'<form method="post" action="{laboratory.url}/datasets/{ZOO}/settings"><input name="action" value="hide"></form><script>document.forms[0].submit()</script>'
    for content in (
        form,
        f"<iframe sandbox='allow-scripts allow-forms' srcdoc='{form.replace(chr(39), '')}'></iframe>",
    ):
        page.goto("about:blank")
        before = len(laboratory.request_log.entries)
        page.set_content(content)
        page.wait_for_timeout(500)
        asked = laboratory.request_log.entries[before:]
        # without the session, because its cookie stays where it belongs, or refused for the Origin
        assert [item.status for item in asked if item.method == "POST"] in ([303], [403])
    found = laboratory.api(None).dataset_info(ZOO)
    assert found.private is False
    context.close()
