"""Checks of a contribution's metadata rows: ids, licences, values, and whether the weights are finite as they say."""

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from ckptzoo.hub.contributions.duplicates import units
from ckptzoo.hub.contributions.report import ReviewCheck, check_result
from ckptzoo.hub.contributions.target_zoo import TargetZoo, batches
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.metadata import lacks_method, parse_extra, value_problems
from ckptzoo.schema.readme import LICENSES
from ckptzoo.text import counted

MAX_TEXT = 4_000
"""Characters of a column's text."""
MAX_EXTRA = 64_000
"""Characters of the JSON object in ``extra``."""
# Licence expressions as of SPDX: names joined by AND, OR and WITH, in parentheses; they are not parsed further.
SPDX = re.compile(r"\(*[A-Za-z0-9][A-Za-z0-9.+-]*\)*(?: (?:AND|OR|WITH) \(*[A-Za-z0-9][A-Za-z0-9.+-]*\)*)*")
_NO_LICENCE = ("none", "noassertion", "unknown", "unlicensed", "proprietary")
_SEPARATORS = re.compile(r"[()\s]+")
_VERSION_SUFFIX = re.compile(r"(-only|-or-later|\+)$")
"""The versions that may follow the name of a licence."""

NAMESPACED = re.compile(r"[a-z0-9._-]+/\S+")
"""An id or a member of a contributed checkpoint: the contributor's account in small letters, and a name."""

Row = dict[str, Any]


def check_ids(submitted: Zoo, target: TargetZoo | None) -> ReviewCheck:
    """Check that ids are well formed and different, and are none that the zoo has or its owner's builders may allot."""
    rows = submitted.metadata.select(["id", "unit", "member"]).to_pylist()
    wrong = [f"{problem.what}: {problem.got}" for problem in value_problems(rows, location="rows")]
    names = [row["id"] for row in rows]
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    wrong += [f"{name} is there twice" for name in repeated]
    if target is not None:
        wrong += [f"{name} is in the zoo already" for name in names if name in target.ids]
        # no builder writes a slash into an id, or a digest of weights into a unit
        wrong += [
            f"{name} lacks the contributor's name and a slash at its beginning"
            for name in dict.fromkeys(name for row in rows for name in (row["id"], row["member"]))
            if not NAMESPACED.fullmatch(name or "")
        ]
        expected_units = (unit for _, weights in batches(submitted) for unit in units(weights))
        wrong += [
            f"{row['id']}: the unit is {row['unit']!r}, by the weights {unit!r}"
            for row, unit in zip(rows, expected_units, strict=True)
            if row["unit"] != unit
        ]
        wrong += [
            f"{row['id']}: its unit {row['unit']!r} is in the zoo already"
            for row in rows
            if row["unit"] in target.units
        ]
    return check_result("ids", wrong, f"{counted(len(names), 'new id')}")


def check_author(submitted: Zoo, author: str) -> ReviewCheck:
    """Check that ids and members begin with the name of the account that opened the pull request.

    Hubs do not tell names apart by the size of their letters: ids have the small ones. The column ``contributor`` is a
    text of the contributor's own, and reported as that.
    """
    rows = submitted.metadata.select(["id", "member", "contributor"]).to_pylist()
    names = dict.fromkeys(str(name) for row in rows for name in (row["id"], row["member"]))
    # otherwise anybody could add checkpoints under somebody else's name
    prefix = f"{author.lower()}/"
    wrong = [name for name in names if not name.startswith(prefix)]
    if wrong:
        more = f" and {len(wrong) - 3:,} more" if len(wrong) > 3 else ""
        listed = f"{', '.join(wrong[:3])}{more}"
        detail = f"expected ids and members that begin with {prefix}, the author of the pull request, got {listed}"
        return ReviewCheck("author", "failed", f"{detail}; if the author may speak for them, merge it by hand")
    credited = sorted({str(row["contributor"]) for row in rows})
    return ReviewCheck(
        "author", "passed", f"{prefix}, for {', '.join(credited[:3])}{', ...' if len(credited) > 3 else ''}"
    )


def check_finite(submitted: Zoo) -> ReviewCheck:
    """Check that rows say rightly whether every element is finite; only diverged checkpoints may have others."""
    wrong: list[str] = []
    diverged = 0
    rows = iter(submitted.metadata.select(["id", "finite", "diverged"]).to_pylist())
    for ids, weights in batches(submitted):
        is_finite = np.ones(len(ids), bool)
        for array in weights.values():
            # not "in f": bfloat16 has the kind V
            if array.dtype.kind not in "iub":
                is_finite &= np.isfinite(array).reshape(len(ids), -1).all(axis=1)
        for name, finite in zip(ids, is_finite.tolist(), strict=True):
            row = next(rows)
            # None, of a row that does not say, is neither
            if row["finite"] is not finite:
                stated, true = ("finite" if value else "not finite" for value in (row["finite"], finite))
                wrong.append(f"{name}: the row says {stated}, the weights are {true}")
            elif not finite and row["diverged"] is not True:
                wrong.append(f"{name} is not finite, and its row does not say that it diverged")
            diverged += not finite
    note = f"; {diverged:,} not finite, which diverged" if diverged else ""
    return check_result("finiteness", wrong, f"every element is what the rows say{note}")


def check_licence(submitted: Zoo) -> ReviewCheck:
    """Check that every row names a licence by an SPDX identifier; ``not done`` for those that hubs do not know."""
    licences = submitted.column("license").to_pylist()
    without_licence = [name for name, text in zip(submitted.ids, licences, strict=True) if not is_licence(text)]
    if without_licence:
        return check_result(
            "licence", [f"{name} has no licence that is an SPDX identifier" for name in without_licence], ""
        )
    names = sorted({str(text) for text in licences})
    unknown = list(dict.fromkeys(name for text in names for name in unknown_licences(text)))
    if unknown:
        note = "; ".join(f"{name!r} is not a licence that hubs know{_suggestion(name)}" for name in unknown[:4])
        return ReviewCheck("licence", "not done", f"{note}; check whether it is the name of one")
    return ReviewCheck("licence", "passed", ", ".join(names))


def is_licence(text: object) -> bool:
    """Whether a text may be an SPDX expression that allows something; ``unknown`` and the like do not."""
    return (
        isinstance(text, str)
        and len(text) <= 200
        and SPDX.fullmatch(text) is not None
        and text.lower() not in _NO_LICENCE
    )


def unknown_licences(text: str) -> tuple[str, ...]:
    """Return the names in an SPDX expression that hubs do not know; ``LicenseRef-...`` is for licences of your own.

    Hubs know fewer licences than SPDX does, so a name among these may be right.
    """
    names = [name for name in _SEPARATORS.split(text) if name]
    # what follows WITH in SPDX is an exception to a licence, such as Classpath-exception-2.0
    exceptions = {index + 1 for index, name in enumerate(names) if name == "WITH"}
    operators = ("AND", "OR", "WITH")
    licences = [name for index, name in enumerate(names) if index not in exceptions and name not in operators]
    return tuple(name for name in licences if not _is_known(name.lower()))


def _is_known(name: str) -> bool:
    return (
        name in LICENSES
        or _VERSION_SUFFIX.sub("", name) in LICENSES
        or name == "other"
        or name.startswith("licenseref-")
    )


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), sorted(LICENSES), n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def check_values(submitted: Zoo) -> ReviewCheck:
    """Check that figures are in their ranges, texts short and printable, and ``extra`` a JSON object."""
    wrong: list[str] = []
    for row in submitted.metadata.to_pylist():
        wrong += [f"{row['id']}: {what}" for what in _value_problems(row)]
    return check_result("values", wrong, "figures within their ranges, texts printable")


def _value_problems(row: Row) -> Iterator[str]:
    if lacks_method(row):
        yield "a mode or a draw is given without a method"
    for name, value in row.items():
        # True is an instance of int
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, str) and name == "extra":
            # what is here is shown on the owner's page
            if len(value) > MAX_EXTRA or parse_extra(value) is None:
                yield "extra is no small JSON object"
        elif isinstance(value, str):
            if len(value) > MAX_TEXT or not value.isprintable():
                yield f"{name} is long or not printable"
        elif isinstance(value, int | float):
            if name.endswith("_accuracy") or name == "test_ece":
                fits = 0 <= value <= 1
            elif name == "test_brier":
                # Brier's sum over all classes, see ckptzoo.measure.predictions
                fits = 0 <= value <= 2
            else:
                fits = name == "seed" or value >= 0
            # NaN, which differs from itself, is the figure of a diverged checkpoint
            if not fits and not (value != value and row.get("diverged") is True):
                yield f"{name} is {value}"
