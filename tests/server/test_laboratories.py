"""Two laboratories and an outsider use one hub from the first invitation to a restored backup: commands and keyboard."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

import ckptzoo
from tests.support.chromium import go_to
from tests.support.hub_zoos import weights_of, zoo_of
from tests.support.server_process import server_process
from tests.support.untrusted_files import heldout_in, saved

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NETS, OPEN = "north/nets", "north/open"
CONTRIBUTION = """contributor = "{}"
license = "cc-by-4.0"
dataset = "mnist"

[evaluation]
mean = 0.0
std = 1.0
"""


@dataclass
class Person:
    """Somebody with a browser, a machine and, once it is made, a token."""

    name: str
    url: str
    folder: Path
    data: Path
    page: Page
    token: str = ""

    def command(self, *words: str, fails: bool = False) -> str:
        """The output of a command on this person's machine."""
        home = self.folder / self.name
        home.mkdir(exist_ok=True)
        environment = {**os.environ, "HF_ENDPOINT": self.url, "HF_TOKEN": self.token, "HF_HUB_DISABLE_XET": "1",
                       "HF_HOME": str(home / "hf"), "CKPTZOO_CACHE": str(home / "cache"), "CKPTZOO_DATA": str(self.data)}  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "ckptzoo", *words],
            env=environment, capture_output=True, text=True, check=False, timeout=120, cwd=home,
        )  # fmt: skip
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def press(self, name: str) -> None:
        """Reach a link or a button by the tabulator, press Enter, and wait for the next page."""
        go_to(self.page, name, limit=150)
        with self.page.expect_navigation():
            self.page.keyboard.press("Enter")

    def type(self, label: str, text: str) -> None:
        """Reach a field by the tabulator, and write."""
        go_to(self.page, label, limit=150)
        self.page.keyboard.type(text)

    def visit(self, path: str) -> int:
        """Open a page; returns the status."""
        answer = self.page.goto(self.url + path)
        assert answer is not None
        return answer.status

    def sign_in(self, link: str) -> None:
        """With the operator's link; then make a token for the machine."""
        self.page.goto(link)
        self.press(f"Sign in as {self.name}")
        self.press("Tokens")
        self.type("Name", "machine")
        go_to(self.page, "Role")
        self.page.keyboard.type("write")
        self.press("Create token")
        self.token = self.page.locator(".notice pre").inner_text()


def operate(root: Path, *words: str) -> str:
    """A command of the operator, on the server's machine."""
    command = [sys.executable, "-m", "ckptzoo", "serve", words[0], "--root", str(root), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.exhaustive
def test_from_an_invitation_to_a_restored_backup(tmp_path: Path, browser: Browser) -> None:
    root, data = tmp_path / "served", heldout_in(tmp_path / "data")
    people: dict[str, Person] = {}
    with server_process(root) as (_, url):
        for name in ("ada", "bea", "carl", "eve"):
            link = json.loads(operate(root, "user", name, "--json"))["link"]
            people[name] = Person(name, url, tmp_path, data, browser.new_context().new_page())
            people[name].sign_in(link)
        ada, bea, carl, eve = people.values()
        operate(root, "org", "north", "--member", "ada", "--role", "admin")
        operate(root, "org", "south", "--member", "bea", "--role", "admin")

        # ada invites carl, who pushes the laboratory's private zoo and a public one
        ada.visit("/north")
        ada.type("User", "carl")
        ada.press("Save member")
        assert "carl" in ada.page.locator("aside").inner_text()
        zoo_of(tmp_path / "nets", (3, 2))
        carl.command("derive", str(tmp_path / "nets"))
        carl.command("push", str(tmp_path / "nets"), NETS, "--private")
        zoo_of(tmp_path / "open", (2,), label="o")
        carl.command("push", str(tmp_path / "open"), OPEN)

        # nobody else knows of the private one
        for other in (bea, eve):
            assert other.visit(f"/datasets/{NETS}") == 404 and other.visit("/") == 200
            assert NETS not in other.page.content() and OPEN in other.page.content()
            assert "north/nets" in other.command("info", NETS, fails=True)
            assert other.visit(f"/datasets/{NETS}/settings") == 404

        # ada lets the other laboratory contribute to it; bea does, and eve to the public one
        ada.visit(f"/datasets/{NETS}/settings")
        ada.type("User or organisation", "south")
        go_to(ada.page, "Role")
        ada.page.keyboard.type("contribute")
        ada.press("Save grant")
        assert bea.visit(f"/datasets/{NETS}") == 200 and bea.visit(f"/datasets/{NETS}/settings") == 403
        assert eve.visit(f"/datasets/{NETS}") == 404
        for person, target, seed in ((bea, NETS, 70), (eve, OPEN, 71)):
            network = saved(tmp_path / f"{person.name}.safetensors", {k: v[0] for k, v in weights_of(1, seed).items()})
            card = tmp_path / f"{person.name}.toml"
            card.write_text(CONTRIBUTION.format(person.name.capitalize()))
            person.command("contribute", str(network), "--to", target, "--card", str(card))
        zoo_of(tmp_path / "theirs", (1,), label="s")
        assert "may write in north" in bea.command("push", str(tmp_path / "theirs"), "north/theirs", fails=True)

        # it is reviewed where the data is, and merged by a button once the checks are posted
        ada.visit(f"/datasets/{NETS}")
        ada.press("Pull requests (1)")
        ada.press("Add 1 checkpoint (Bea)")
        assert ada.page.get_by_role("button", name="Merge").count() == 0
        ada.command(*shown_command(ada.page)[1:])
        ada.page.reload()
        ada.press(ada.page.get_by_role("button", name="Merge").inner_text())
        assert ada.page.get_by_text("set the status to merged").is_visible()
        ada.visit(f"/datasets/{NETS}")
        ada.command(*shown_command(ada.page)[1:])
        ada.page.reload()
        assert ada.page.locator(".notice").count() == 0
        bea.command("pull", NETS, "-o", "nets")
        pulled = ckptzoo.open(tmp_path / "bea/nets")
        assert len(pulled) == len(pulled.having("canonical")) == 6 and pulled.ids[-1].startswith("bea/")

        # the grant ends, and with it all that bea knew
        ada.visit(f"/datasets/{NETS}/settings")
        ada.press("Remove the grant of south")
        assert bea.visit(f"/datasets/{NETS}") == 404
        bea.command("pull", NETS, "-o", "again", fails=True)

        # the public zoo is deleted, with eve's pull request; a week later its files go
        ada.visit(f"/datasets/{OPEN}/settings")
        ada.type(f"Type {OPEN} to confirm", OPEN)
        ada.press("Delete this repository")
        for blob in root.glob("blobs/*/*"):
            os.utime(blob, (time.time() - 8 * 86400,) * 2)
        collected = json.loads(operate(root, "gc", "--json"))
        assert collected["blobs"] > 3 and json.loads(operate(root, "gc", "--json"))["blobs"] == 0
        operate(root, "backup", "--to", str(tmp_path / "backup"))
        ada.visit("/-/audit")
        log = ada.page.locator("table").inner_text()
        assert all(word in log for word in ("add member", "grant", "merge", "delete dataset"))
    operate(tmp_path / "elsewhere", "restore", str(tmp_path / "backup"), "--verify")
    with server_process(tmp_path / "elsewhere") as (_, url):
        carl.url = url
        carl.command("pull", NETS, "-o", "restored")
        assert "no problem found" in carl.command("verify", "restored")
    assert ckptzoo.open(tmp_path / "carl/restored").ids == pulled.ids
    for person in people.values():
        person.page.context.close()


def shown_command(page: Page) -> list[str]:
    """The command that a page tells its reader to run."""
    (text,) = re.findall(r"ckptzoo review [^\n<]*", page.locator("main pre").first.inner_text())
    return text.split()
