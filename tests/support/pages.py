"""A browser without a window: cookies, forms, and pages as text."""

import http.client
import re
import urllib.parse
from dataclasses import dataclass, field

from tests.support.hosted import Hosted


@dataclass
class Page:
    """An answer to a browser."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def title(self) -> str:
        """The text of the first heading."""
        found = re.search(r"<h1>(.*?)</h1>", self.text, re.DOTALL)
        return "" if found is None else re.sub(r"\s+", " ", re.sub("<[^>]*>", "", found[1])).strip()


@dataclass
class Browser:
    """Keeps the cookie, follows no redirect, and sends forms as a browser does."""

    server: Hosted
    cookie: str = ""
    origin: str | None = None
    sent: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, fields: dict[str, str] | None = None, **headers: str) -> Page:
        """Send a request; fields make it a form."""
        host = self.server.url.removeprefix("http://")
        sent = {"Accept": "text/html,*/*;q=0.8", **({"Cookie": self.cookie} if self.cookie else {}), **self.sent}
        body = None
        if fields is not None:
            origin = self.server.url if self.origin is None else self.origin
            sent |= {"Content-Type": "application/x-www-form-urlencoded", **({"Origin": origin} if origin else {})}
            body = urllib.parse.urlencode(fields)
        connection = http.client.HTTPConnection(host, timeout=20)
        try:
            connection.request(method, path, body, {**sent, **{k.replace("_", "-"): v for k, v in headers.items()}})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            text = answer.read().decode(errors="replace")
        finally:
            connection.close()
        if "set-cookie" in found:
            self.cookie = found["set-cookie"].partition(";")[0]
        return Page(answer.status, found, text)

    def get(self, path: str) -> Page:
        """Ask for a page."""
        return self.ask("GET", path)

    def form_token(self, path: str = "/-/tokens") -> str:
        """The token that forms of the session hold."""
        found = re.search(r'name="form_token" value="([0-9a-f]*)"', self.get(path).text)
        assert found is not None
        return found[1]

    def post(self, path: str, **fields: str) -> Page:
        """Send a form with its token."""
        token = self.form_token() if self.cookie else ""
        return self.ask("POST", path, {"form_token": token, **fields})

    def sign_in(self, role: str) -> Page:
        """Sign in with the token of a role."""
        return self.post("/-/sign-in", token=self.server.tokens[role], next="/-/tokens")
