"""One worker for all tests of a module, which would otherwise import torch anew for each call of ``read``."""

from collections.abc import Iterator
from types import TracebackType

import pytest

from ckptzoo.hub.untrusted.supervisor import Supervisor


class KeptSupervisor(Supervisor):
    """Its worker runs on at the end of a ``with``; one that was killed or failed is replaced, as always."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass


@pytest.fixture(scope="module")
def one_worker() -> Iterator[None]:
    """Files are read by the worker of this module, each in a process of its own as in one call of ``read_all``."""
    supervisor = KeptSupervisor(with_torch=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ckptzoo.hub.untrusted.api.Supervisor", lambda *, with_torch: supervisor)
        yield
    supervisor.close()
