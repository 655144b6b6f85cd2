"""The columns of a part's rows: fixed, typed schemas, so that all parts of all zoos fit together."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from ckptzoo.errors import Problem

MAX_ID = 200
"""The maximum number of characters of a checkpoint's id."""
MAX_EXTRA, MAX_NESTING = 2**20, 32
"""The maximum number of characters of a row's ``extra``, and of nested brackets in it."""


@dataclass(frozen=True)
class Column:
    """One column: its name, its type (``string``, ``int64``, ``float64``, ``bool``, ``timestamp``) and meaning."""

    name: str
    type: str
    doc: str


COLUMNS = (
    Column("id", "string", "unique in the zoo; required"),
    Column("member", "string", "the independent run or posterior draw it belongs to; the id where none is given"),
    Column("seed", "int64", "the member's seed"),
    Column("step", "int64", "optimiser steps taken"),
    Column("epoch", "float64", "epochs taken"),
    Column("unit", "string", "the piece of work that made the row; a unit is written once"),
    Column("recipe", "string", "name of the recipe"),
    Column("recipe_digest", "string", "digest of the recipe's content"),
    Column("builder", "string", "program and version that trained it"),
    Column("commit", "string", "commit of that program"),
    Column("dataset", "string", "name of the data set"),
    Column("dataset_digest", "string", "digest of the data as used"),
    Column("train_loss", "float64", "mean training loss, measured on the training set without augmentation"),
    Column("train_accuracy", "float64", "fraction, measured likewise"),
    Column("test_loss", "float64", "mean test loss"),
    Column("test_accuracy", "float64", "fraction"),
    Column("test_nll", "float64", "mean negative log-likelihood in nats"),
    Column("test_brier", "float64", "mean squared distance of the probabilities to the one-hot label, 0 to 2"),
    Column("test_ece", "float64", "expected calibration error: top label, 10 equal-width bins, L1"),
    Column("claimed_test_accuracy", "float64", "what the contributor says; never measured by us"),
    Column("claimed_test_loss", "float64", "what the contributor says; never measured by us"),
    Column("diverged", "bool", "the training loss ended above that of a constant prediction, or not finite"),
    Column("finite", "bool", "every element of every tensor is finite; set by the writer"),
    Column("wall_seconds", "float64", "training time of the member's share of the run"),
    Column("device", "string", "what it was trained on"),
    Column("precision", "string", "arithmetic of the training, such as float32"),
    Column("license", "string", "SPDX identifier of the weights' licence"),
    Column("contributor", "string", "who brought it"),
    Column("source", "string", "where it came from: an address, a file, a command"),
    Column("created", "timestamp", "when training ended, UTC"),
    Column("extra", "string", "a JSON object with the recipe's own facts"),
    Column("method", "string", "the approximate posterior that the row is a draw of; null for an independent run"),
    Column("mode", "string", "id of the member or of the chain that the draw is taken around"),
    Column("draw", "int64", "number of the draw among those of its method and mode, from 0"),
)  # fmt: skip
"""Every column of ``parts/*/metadata.parquet``, in order. Only ``id`` is required; the rest may be null.

Methods are named ``dropout``, ``bnn``, ``sghmc``, ``csghmc``, ``swag``, ``laplace``, ``hmc``; others may have
other names.
"""

VARIANT_COLUMNS = (
    Column("id", "string", "the checkpoint it was derived from"),
    Column("unit", "string", "digest of the raw part it was derived from; a unit is written once"),
    Column("gauged", "bool", "in the gauge; a checkpoint that is not finite, or would not be, is kept as it was"),
    Column("ties", "int64", "pairs of neighbouring channels whose keys are equal"),
    Column("margin", "float64", "smallest distance between the keys of neighbouring channels"),
    Column("dead", "int64", "channels without incoming weights; they keep their scale"),
    Column("certificate_random", "float64", "largest difference of the outputs on random inputs, over the largest"),
    Column("certificate_real", "float64", "the same on inputs from the data set"),
    Column("unresolved", "bool", "a bounded search could not tell channels with equal keys apart; then no fingerprint"),
    Column("clamped", "int64", "filters whose scale stops where the running variance reaches 0"),
    Column("fingerprint", "string", "digest of the weights in this gauge, rounded; equal for permuted networks"),
    Column("certified", "string", "precision of the certificates: float64 or float32; null where there are none"),
    Column("degenerate", "int64", "channels in blocks of matrices whose product of weights has a lower rank"),
)  # fmt: skip
"""Every column of a variant's ``metadata.parquet``. Certificates are null where no forward function is known."""

RETRACTED_COLUMNS = (
    Column("id", "string", "the checkpoint that its contributor withdraws"),
    Column("reason", "string", "why, in a sentence"),
    Column("contributor", "string", "who withdrew it"),
    Column("created", "timestamp", "when, UTC"),
)  # fmt: skip
"""Every column of a tombstone."""

PREDICTION_COLUMNS = (
    Column("id", "string", "the checkpoint whose outputs they are"),
    Column("unit", "string", "digest of the raw part whose weights gave them; a unit is written once"),
    Column("finite", "bool", "every output is finite as it is stored"),
)  # fmt: skip
"""Every column of the ``metadata.parquet`` of predictions."""

MEASURED_COLUMNS = (
    Column("id", "string", "the checkpoint"),
    Column("unit", "string", "digest of the part, raw or of a variant, that has the row of what was measured"),
    Column("by", "string", "who measured it"),
    Column("created", "timestamp", "when, UTC"),
    Column("test_loss", "float64", "as in a raw part"),
    Column("test_accuracy", "float64", "as in a raw part"),
    Column("test_nll", "float64", "as in a raw part"),
    Column("test_brier", "float64", "as in a raw part"),
    Column("test_ece", "float64", "as in a raw part"),
    Column("certificate_random", "float64", "as in a variant's part"),
    Column("certificate_real", "float64", "as in a variant's part"),
    Column("certified", "string", "as in a variant's part"),
)  # fmt: skip
"""Every column of figures that were measured when their checkpoints were in the zoo already."""

DIGEST_COLUMNS = (
    Column("id", "string", "the checkpoint"),
    Column("unit", "string", "digest of the raw part that refers to its weights"),
    Column("created", "timestamp", "when they were read, UTC"),
    Column("blocks", "string", "the hexadecimal sha256 of each block of its weights, one behind the other"),
    Column("finite", "bool", "as in a raw part"),
)  # fmt: skip
"""Every column of the digests of weights that lie in files of others."""

LANDSCAPE_COLUMNS = (
    Column("id", "string", "the checkpoint"),
    Column("unit", "string", "digest of the raw part that has its weights"),
    Column("loss", "float64", "mean cross-entropy in nats, on the inputs of the file"),
    Column("hessian_trace", "float64", "trace of the Hessian of that loss with respect to the parameters"),
    Column("hessian_trace_error", "float64", "standard error of the trace; null where it is exact"),
    Column("hessian_top", "float64", "largest eigenvalue of that Hessian"),
    Column("hessian_top_error", "float64", "there is an eigenvalue that near to it; null where it is exact"),
)  # fmt: skip
"""Every column of the figures of the loss around checkpoints, ``landscape/*.parquet``; NaN where weights, or outputs,
are not finite."""

FIGURES = tuple(column.name for column in MEASURED_COLUMNS[4:])
"""The columns that fill those of other parts."""

DIFFERENCES = ("certificate_random", "certificate_real")
"""The columns of equivalence checks."""

KINDS = {
    "raw": COLUMNS,
    "variant": VARIANT_COLUMNS,
    "retracted": RETRACTED_COLUMNS,
    "predictions": PREDICTION_COLUMNS,
    "measured": MEASURED_COLUMNS,
    "digests": DIGEST_COLUMNS,
}
"""The kinds of parts, and the columns of their rows. Columns are only ever added at the end."""

_OF_MATRICES = ("degenerate",)
"""Columns of a variant which only zoos have whose table has matrices; the last ones."""


def columns_of(kind: str, *, matrices: bool) -> tuple[Column, ...]:
    """The columns with which a part is written.

    ``kind`` is one of ``KINDS``; ``matrices`` says whether the zoo's table has matrices. Without them the last columns
    of a variant are left out, so that readers of any version accept the parts.
    """
    # readers of the first release refuse columns that they do not know
    left_out = _OF_MATRICES if kind == "variant" and not matrices else ()
    return tuple(column for column in KINDS[kind] if column.name not in left_out)


_FRACTIONS = tuple(column.name for column in COLUMNS if column.name.endswith("_accuracy"))

LEAST = {"raw": 31, "variant": 8, "retracted": 4, "predictions": 3, "measured": 12, "digests": 5}
"""The number of its kind's columns that every file has: those of the first release; others may be lacking, and null."""


def value_problems(rows: Sequence[Mapping[str, Any]], *, location: str) -> Iterator[Problem]:
    """Yield values that have their column's type and are still invalid. Odd ids, accuracies outside 0 to 1, negative
    numbers of draws, draws of no method, ``extra`` that is no JSON object.
    """
    ids: list[str] = [row["id"] for row in rows]
    odd = [name for name in ids if not name.isprintable() or " " in name or not 1 <= len(name) <= MAX_ID]
    if odd:
        expected = f"1 to {MAX_ID} printable characters without spaces"
        yield Problem(location, "id", expected, f"{len(odd)} others, such as {odd[0][:80]!r}", "Give them other ids.")
    for name in _FRACTIONS:
        values = [row.get(name) for row in rows]
        # NaN is the accuracy of a network that diverged
        wrong = [value for value in values if value is not None and not (0 <= value <= 1 or value != value)]
        if wrong:
            got = f"{len(wrong)} others, such as {wrong[0]}"
            yield Problem(location, f"column {name!r}", "fractions from 0 to 1", got, "Correct the rows.")
    draws = [row.get("draw") for row in rows]
    if negative := [draw for draw in draws if draw is not None and draw < 0]:
        got = f"{len(negative)} others, such as {negative[0]}"
        yield Problem(location, "column 'draw'", "numbers from 0", got, "Correct the rows.")
    if lacking := [row["id"] for row in rows if lacks_method(row)]:
        got = f"none in {len(lacking)} rows with a mode or a draw, such as {lacking[0]!r}"
        yield Problem(location, "column 'method'", "the method that the row is a draw of", got, "Name the method.")
    yield from extra_problems([row.get("extra") for row in rows], location=location)


def extra_problems(texts: Sequence[object], *, location: str) -> Iterator[Problem]:
    """Values of the column ``extra`` that ``parse_extra`` does not take; null is none of them."""
    # each text once: the rows of a unit share one
    odd = [text for text in dict.fromkeys(texts) if text is not None and parse_extra(text) is None]
    if not odd:
        return
    first = str(odd[0])
    expected = f"JSON objects of finite numbers and texts, nested at most {MAX_NESTING} deep"
    got, step = f"{len(odd)} others, such as {first[:80]!r}", "Correct the rows."
    if len(first) > MAX_EXTRA:
        expected = f"at most {MAX_EXTRA:,} characters of JSON a row"
        got = f"{len(first):,} characters, {first[:40]!r} and so on"
        step = "Keep long lists and texts in files beside the zoo, and their names here."
    yield Problem(location, "column 'extra'", expected, got, step)


def parse_extra(text: object) -> dict[str, Any] | None:
    """The object in the column ``extra``; None where it is none that every reader can use.

    It is JSON as the standard has it, without NaN; numbers are finite in double precision, integers have 64 bits,
    brackets are nested at most 32 deep, and texts can be encoded. Rows are written by anybody, and their readers
    calculate with the numbers and print the texts.

    >>> parse_extra('{"lr": 0.1}')
    {'lr': 0.1}
    >>> parse_extra('{"lr": NaN}') is None
    True
    """
    if not isinstance(text, str) or len(text) > MAX_EXTRA:
        return None
    try:
        # Python reads NaN and Infinity, which JSON does not have (RFC 8259, section 6)
        content = json.loads(text, parse_constant=_refuse_constant)
        if not text.isascii() or "\\u" in text:
            # an escape may be one half of a surrogate pair
            json.dumps(content, ensure_ascii=False).encode()
    # RecursionError: thousands of brackets
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], content) if isinstance(content, dict) and _is_bounded(content, MAX_NESTING) else None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _is_bounded(value: Any, depth: int) -> bool:
    """Whether a value of JSON is nested at most this deep, and its numbers are finite or have 64 bits."""
    if isinstance(value, dict):
        value = list(cast(dict[str, Any], value).values())
    if isinstance(value, list):
        return depth > 0 and all(_is_bounded(item, depth - 1) for item in cast(list[Any], value))
    if isinstance(value, float):
        return math.isfinite(value)
    # what signed or unsigned integers of 64 bits hold
    return not isinstance(value, int) or -(2**63) <= value < 2**64


def lacks_method(row: Mapping[str, Any]) -> bool:
    """Whether a row claims to be a draw without naming its method."""
    return row.get("method") is None and (row.get("mode") is not None or row.get("draw") is not None)
