"""What the tests of this folder did, counted: runs, faults, kills, bad inputs."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Counts:
    """Counted while tests run.

    Attributes
    ----------
    runs
        by user's operation, kind of fault and outcome (``done`` or the class of the error).
    faults
        that were injected, by user's operation and kind.
    requests
        that were injected faults, by kind and the server's operation.
    kills
        by what was killed and during what.
    disks
        by what had no room.
    inputs
        hostile ones by kind.
    slowest
        seconds of the slowest run by user's operation.
    """

    runs: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    disks: Counter[str] = field(default_factory=Counter)
    inputs: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any((self.runs, self.kills, self.disks, self.inputs))

    def plain(self) -> dict[str, list[Any]]:
        """All of it as lists, which pass between processes."""
        return {name: [list(item) for item in getattr(self, name).items()] for name in self.__dataclass_fields__}

    def add(self, others: dict[str, list[Any]]) -> None:
        """What another process counted, as ``plain`` gives it."""
        for name, items in others.items():
            counter = getattr(self, name)
            for key, value in items:
                key = tuple(key) if isinstance(key, list) else key
                counter[key] = max(counter.get(key, 0.0), value) if name == "slowest" else counter[key] + value

    def lines(self) -> list[str]:
        """All of it as plain text."""
        cells = {(operation, kind) for operation, kind, _ in self.runs}
        outcomes = Counter[str]()
        for (_, _, outcome), count in self.runs.items():
            outcomes[outcome] += count
        told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
        made = [
            f"{len(cells)} cells of the matrix, {self.runs.total()} runs ({told}), {self.faults.total()} faults",
            f"{self.kills.total()} kills, {self.disks.total()} full disks, {self.inputs.total()} bad inputs",
        ]
        made += self._matrix()
        met = Counter[str]()
        for (_, operation), count in self.requests.items():
            met[operation] += count
        made += [f"faults met by {name}: {count}" for name, count in met.most_common()]
        for title, counter in (("kills", self.kills), ("full disks", self.disks), ("bad inputs", self.inputs)):
            made += [f"{title}: {name}: {count}" for name, count in sorted(counter.items())]
        made += [f"slowest {name}: {seconds:.2f} s" for name, seconds in sorted(self.slowest.items())]
        return made

    def _matrix(self) -> list[str]:
        """Runs and faults of each cell: kinds down, operations across."""
        across = list(dict.fromkeys(operation for operation, _, _ in self.runs))
        down = list(dict.fromkeys(kind for _, kind, _ in self.runs))
        rows = [["runs/faults", *across]]
        for kind in down:
            row = [kind]
            for operation in across:
                runs = sum(count for (name, what, _), count in self.runs.items() if (name, what) == (operation, kind))
                row.append(f"{runs}/{self.faults[operation, kind]}" if runs else "-")
            rows.append(row)
        return ["".join(cell.rjust(12) for cell in row) for row in rows] if down else []


COUNTS = Counts()
"""Of this session."""
