"""Which explorer pages are ours: how they begin, and the digests of what runs in them."""

import re

BUNDLES: tuple[str, ...] = (
    "sha256-gUnE3hZq0mllNoIkW+sua1iBTjjOxRRN24aZo0uVyIU=",
    "sha256-Gcjo/1H3EM4GDH965CrbexZVXI+W8lLNhFn0KFIa9Ew=",
    "sha256-jf6lpouBUCSqS6Ot9zcikl7OYiJ4eosIaGcJ0ewg7WY=",
    "sha256-KLD3faqa/yECQBHn8y938uGhWxmbinQLP4pk3HzPF7E=",
)
"""``sha256-...`` in base64, as a Content-Security-Policy has it, of each released script and style sheet, the newest
first; none is ever removed, so that older pages are shown. A hub runs these and no others."""
MAX_PAGE_BYTES = 64 * 10**6
"""Bytes of a page that is published and pulled."""
START = "<!doctype html>\n"
"""How every page begins."""


def head(script: str, style: str) -> str:
    """How a page begins whose script and style sheet have these digests.

    Its policy comes before anything else, so that a browser runs and fetches nothing but them, whatever follows: no
    other script, no frame, no form, no address of a base.
    """
    policy = (
        f"default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        f'{START}<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    )


def is_released(page: bytes) -> bool:
    """Whether in a page only a released script and style sheet run, as far as a browser obeys the page's policy."""
    # the policy counts only where ``head`` puts it, before anything that a browser could run
    found = re.match(rb"[^\0]{0,300}script-src '(sha256-[\w+/=]+)'; style-src '(sha256-[\w+/=]+)'", page, re.DOTALL)
    if found is None:
        return False
    script, style = (digest.decode() for digest in found.groups())
    return {script, style} <= set(BUNDLES) and page.startswith(head(script, style).encode())
