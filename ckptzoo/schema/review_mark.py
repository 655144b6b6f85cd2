"""The last line of a comment with the checks of a pull request: which commits were checked, and whether all passed."""

import json
import re
from typing import NamedTuple

_MARK = re.compile(r'<!-- ckptzoo review (\{"head":"[0-9a-f]{40}","main":"[0-9a-f]{40}","passed":(?:true|false)\}) -->')


class ReviewMark(NamedTuple):
    """The commits and the outcome of a review. ``head`` is the pull request's last commit, ``main`` the zoo's;
    ``passed`` says whether no check failed.
    """

    head: str
    main: str
    passed: bool

    def line(self) -> str:
        """The line, which Markdown does not show.

        >>> ReviewMark("1" * 40, "2" * 40, True).line()[:32]
        '<!-- ckptzoo review {"head":"111'
        """
        return f"<!-- ckptzoo review {json.dumps(self._asdict(), separators=(',', ':'))} -->"


def read_mark(comment: str) -> ReviewMark | None:
    """The mark of a comment, which anybody can write: who did has to be looked at; None where its last line is none."""
    # the last line alone: the checks above quote untrusted text
    match = _MARK.fullmatch(comment.strip().rpartition("\n")[2].strip())
    return None if match is None else ReviewMark(**json.loads(match[1]))
