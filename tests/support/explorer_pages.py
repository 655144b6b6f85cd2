"""Zoos for the explorer, their pages, and the data within these."""

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np

import ckptzoo
from ckptzoo.derive import derive
from ckptzoo.explorer.payload import Payload, decode
from tests.support.derived_zoos import ARCH, TABLE, Weights, weights_of


def optunets(path: Path, rows: list[dict[str, Any]], *, weights: Weights | None = None, gauge: bool = True) -> Path:
    """A zoo of OptuNets with these rows, in one part, and their canonical variant."""
    made = weights_of(len(rows), 0) if weights is None else weights
    with ckptzoo.create(path, arch=ARCH, symmetry=TABLE) as writer:
        if rows:
            writer.add(made, rows)
    if gauge and rows:
        derive(path, certify="none")
    return path


def rows_with_gaps(count: int) -> list[dict[str, Any]]:
    """Rows with values that are missing, NaN, infinite, equal, and texts that are missing."""
    rng = np.random.default_rng(count)
    rows: list[dict[str, Any]] = []
    for at in range(count):
        row: dict[str, Any] = {"id": f"net-{at:05d}", "seed": at, "wall_seconds": float(rng.uniform(1, 2))}
        row["test_accuracy"] = (
            None if at % 11 == 3 else float("nan") if at % 13 == 5 else round(rng.uniform(0.8, 0.9), 3)
        )
        row["test_nll"] = float("inf") if at % 17 == 2 else None if at % 7 == 1 else float(rng.gamma(2.0))
        row["test_brier"] = float(rng.normal() * 10.0 ** rng.integers(-8, 3))
        row["license"] = [None, "mit", "apache-2.0", 'a "quoted" \\ licence'][at % 4]
        row["contributor"] = f"person-{at % 3}"
        rows.append(row)
    return rows


def payload_of(page: Path | str) -> Payload:
    """The data of a page."""
    text = page if isinstance(page, str) else page.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/octet-stream" id="payload">([A-Za-z0-9+/=]*)</script>', text)
    assert found is not None
    return decode(base64.b64decode(found[1]), location="page")
