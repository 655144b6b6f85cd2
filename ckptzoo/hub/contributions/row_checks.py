"""What the rows of a contribution say, held against the weights and against the zoo."""

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ckptzoo.hub.contributions.report import Check, check_result
from ckptzoo.hub.contributions.target_zoo import TargetZoo, batches
from ckptzoo.loader.zoo import Zoo
from ckptzoo.schema.metadata import value_problems
from ckptzoo.schema.readme import LICENSES
from ckptzoo.text import counted

MAX_TEXT = 4_000
"""Characters of a column's text."""
MAX_EXTRA = 64_000
"""Characters of the JSON object in ``extra``."""
SPDX = re.compile(r"\(*[A-Za-z0-9][A-Za-z0-9.+-]*\)*(?: (?:AND|OR|WITH) \(*[A-Za-z0-9][A-Za-z0-9.+-]*\)*)*")
_NO_LICENCE = ("none", "noassertion", "unknown", "unlicensed", "proprietary")
_PIECES = re.compile(r"[()\s]+")
_EXTENT = re.compile(r"(-only|-or-later|\+)$")
"""What may stand behind the name of a licence of several versions."""

Row = dict[str, Any]


def ids_and_units(submitted: Zoo, standing: TargetZoo | None) -> Check:
    """Ids are well formed, each stands once, and no id or unit is in the zoo already."""
    rows = submitted.metadata.select(["id", "unit", "member"]).to_pylist()
    wrong = [f"{problem.what}: {problem.got}" for problem in value_problems(rows, location="rows")]
    names = [row["id"] for row in rows]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    wrong += [f"{name} stands twice" for name in twice]
    if standing is not None:
        wrong += [f"{name} is in the zoo already" for name in names if name in standing.ids]
        again = sorted({row["unit"] for row in rows if row["unit"] in standing.units})
        wrong += [f"the piece of work {name!r} is in the zoo already" for name in again]
    return check_result("ids", wrong, f"{counted(len(names), 'new id')}")


def finiteness(submitted: Zoo) -> Check:
    """Every element is finite, but for checkpoints whose rows say that they diverged; the rows say what is there."""
    wrong: list[str] = []
    diverged = 0
    rows = iter(submitted.metadata.select(["id", "finite", "diverged"]).to_pylist())
    for ids, weights in batches(submitted):
        good = np.ones(len(ids), bool)
        for array in weights.values():
            if array.dtype.kind not in "iub":
                good &= np.isfinite(array).reshape(len(ids), -1).all(axis=1)
        for name, finite in zip(ids, good.tolist(), strict=True):
            row = next(rows)
            if row["finite"] is not finite:
                wrong.append(f"{name} is said to be {'finite' if row['finite'] else 'not finite'} and is not so")
            elif not finite and row["diverged"] is not True:
                wrong.append(f"{name} is not finite, and is not said to have diverged")
            diverged += not finite
    told = f"; {diverged:,} not finite, and said to have diverged" if diverged else ""
    return check_result("finiteness", wrong, f"every element is what the rows say{told}")


def licence(submitted: Zoo) -> Check:
    """Every row names a licence by an SPDX identifier; of those that hubs do not know nothing is said."""
    found = submitted.metadata["license"].to_pylist()
    lacking = [name for name, text in zip(submitted.ids, found, strict=True) if not is_licence(text)]
    if lacking:
        return check_result("licence", [f"{name} has no licence that is an SPDX identifier" for name in lacking], "")
    named = sorted({str(text) for text in found})
    odd = list(dict.fromkeys(name for text in named for name in strange_licences(text)))
    if odd:
        told = "; ".join(f"{name!r} is none that hubs know{_near(name)}" for name in odd[:4])
        return Check("licence", "not done", f"{told}; see for yourself whether it is the name of a licence")
    return Check("licence", "passed", ", ".join(named))


def is_licence(text: object) -> bool:
    """Whether a text may be an SPDX expression that allows something; ``unknown`` and the like do not."""
    return (
        isinstance(text, str)
        and len(text) <= 200
        and SPDX.fullmatch(text) is not None
        and text.lower() not in _NO_LICENCE
    )


def strange_licences(text: str) -> tuple[str, ...]:
    """The names in an SPDX expression that hubs do not know, as they stand there; ``LicenseRef-...`` is anybody's own.

    Hubs know fewer licences than SPDX does, so a name among these may be right.
    """
    names = [name for name in _PIECES.split(text) if name]
    exceptions = {at + 1 for at, name in enumerate(names) if name == "WITH"}
    asked = [name for at, name in enumerate(names) if at not in exceptions and name not in ("AND", "OR", "WITH")]
    return tuple(name for name in asked if not _is_known(name.lower()))


def _is_known(name: str) -> bool:
    return name in LICENSES or _EXTENT.sub("", name) in LICENSES or name == "other" or name.startswith("licenseref-")


def _near(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), sorted(LICENSES), n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def values(submitted: Zoo) -> Check:
    """Figures lie where they can, texts are short and printable, and ``extra`` is a JSON object."""
    wrong: list[str] = []
    for row in submitted.metadata.to_pylist():
        wrong += [f"{row['id']}: {what}" for what in _odd(row)]
    return check_result("values", wrong, "figures within their ranges, texts printable")


def _odd(row: Row) -> Iterator[str]:
    for name, value in row.items():
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, str) and name == "extra":
            if extra_of(value) is None:
                yield "extra is no small JSON object"
        elif isinstance(value, str):
            if len(value) > MAX_TEXT or not value.isprintable():
                yield f"{name} is long or not printable"
        elif isinstance(value, int | float):
            if name.endswith("_accuracy") or name == "test_ece":
                fits = 0 <= value <= 1
            elif name == "test_brier":
                fits = 0 <= value <= 2
            else:
                fits = name == "seed" or value >= 0
            if not fits and not (value != value and row.get("diverged") is True):
                yield f"{name} is {value}"


def extra_of(text: object) -> Mapping[str, Any] | None:
    """The object in the column ``extra``; None where it is none, or long."""
    if not isinstance(text, str) or len(text) > MAX_EXTRA:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
