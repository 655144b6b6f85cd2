"""The application with a ledger and faults around it."""

from dataclasses import dataclass

from starlette.types import ASGIApp

from ckptzoo.server.faults import Droppable, FaultPlan, Faults
from ckptzoo.server.ledger import Ledger


@dataclass(frozen=True)
class Layered:
    """The application to serve, and the two layers to ask what happened."""

    app: ASGIApp
    ledger: Ledger
    faults: Faults


def layered(app: ASGIApp, *, plan: FaultPlan | None = None, readable: bool = False) -> Layered:
    """Put faults around an application, and the ledger around both, so that it sees what clients see.

    Parameters
    ----------
    plan : which requests meet which fault; none without.
    readable : the ledger answers ``GET /_ledger`` to clients on the same machine.
    """
    faults = Faults(app, plan or FaultPlan())
    ledger = Ledger(faults, readable=readable)
    return Layered(Droppable(ledger), ledger, faults)
