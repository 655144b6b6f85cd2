"""Checks as a table: folded on a terminal, in one line elsewhere, whole in JSON."""

import io

from rich.console import Console

from ckptzoo.hub.contributions.report import MAX_DETAIL, ReviewCheck, check_lines, checks_markdown
from ckptzoo.hub.contributions.review import Review

DETAIL = "parts/000009-ab/raw-00.safetensors" * 20
FOUND = Review("lab/zoo", 7, "Mine", "ada", "open", None, checks=(ReviewCheck("bytes", "failed", DETAIL),))


def printed(*, terminal: bool, width: int) -> list[str]:
    out = io.StringIO()
    FOUND.print(Console(file=out, force_terminal=terminal, width=width, color_system=None))
    return out.getvalue().splitlines()


def test_details_are_folded_on_a_terminal() -> None:
    lines = printed(terminal=True, width=80)
    assert max(map(len, lines)) <= 80
    assert DETAIL in "".join(line[len("check  outcome  ") :].strip() for line in lines[2:])


def test_details_are_one_line_elsewhere() -> None:
    assert [line for line in printed(terminal=False, width=80) if DETAIL in line] == [f"bytes  failed   {DETAIL}"]
    assert DETAIL in checks_markdown(FOUND.checks)


def test_details_are_bounded() -> None:
    checks = (ReviewCheck("bytes", "failed", "x" * 2 * MAX_DETAIL),)
    for text in (check_lines(checks)[-1], checks_markdown(checks)):
        assert 0 < text.count("x") < MAX_DETAIL and "..." in text


def test_json_has_them_whole() -> None:
    assert FOUND.to_json()["checks"][0]["detail"] == DETAIL and FOUND.to_json()["url"] is None


def test_there_is_no_page_where_there_is_none() -> None:
    assert "None" not in "\n".join(printed(terminal=False, width=200))
