"""The checkpoints of a contribution and what was looked at, on a console."""

from collections.abc import Sequence

from rich.console import Console

from ckptzoo.hub.checks import check, entries


def show(out: Console, listed: Sequence[entries.Entry], checks: Sequence[check.Check]) -> None:
    """Print both as tables, with an empty line below each; no table of no checkpoints."""
    most = None if out.is_terminal else check.MAX_DETAIL
    for table in (*([entries.shown(listed)] if listed else []), check.shown(checks, most=most)):
        out.print(table, markup=False, highlight=False)
        out.print()
