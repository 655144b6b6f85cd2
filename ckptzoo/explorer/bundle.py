"""The script and the style sheet of a page: built from ``web/``, committed, and known by their digests.

``digests.json`` beside them says from which sources and which lock file they were built.
"""

import base64
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

WEB = Path(__file__).parent / "web"
"""The sources; of a package that was installed only ``bundle`` in it is there."""
BUNDLE = WEB / "bundle"
DIGESTS = "digests.json"
_SOURCES = ("package.json", "package-lock.json", "tsconfig.json", "build.mjs")


@dataclass(frozen=True)
class Bundle:
    """The script and the style sheet as they are written into a page."""

    script: str
    style: str

    @property
    def script_hash(self) -> str:
        """The digest of the script, as a Content-Security-Policy has it."""
        return policy_hash(self.script)

    @property
    def style_hash(self) -> str:
        """The digest of the style sheet."""
        return policy_hash(self.style)


@cache
def bundle() -> Bundle:
    """Return the committed bundle."""
    return Bundle(*((BUNDLE / name).read_text(encoding="utf-8") for name in ("explorer.js", "explorer.css")))


def policy_hash(text: str) -> str:
    """Return ``sha256-...`` in base64, of the text between the tags."""
    # a hash-source of Content Security Policy Level 3, which stands in quotes there
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def source_digests(web: Path) -> dict[str, str]:
    """Map the path of each file in the folder ``web`` that a bundle is built from to its sha256 in hex."""
    sources = (path.relative_to(web).as_posix() for path in (web / "src").rglob("*") if path.is_file())
    names = sorted([*_SOURCES, *sources])
    return {name: hashlib.sha256((web / name).read_bytes()).hexdigest() for name in names}


def recorded_digests() -> dict[str, str]:
    """Return the digests of the sources that the committed bundle was built from."""
    return json.loads((BUNDLE / DIGESTS).read_text(encoding="utf-8"))
