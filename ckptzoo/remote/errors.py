"""What can go wrong on the way to another machine.

::

    ZooError
    '-- RemoteError            no answer, or one that cannot be used; has .problem
        |-- AbsentError        there is no such zoo, revision or file
        |-- OfflineError       it is not in the cache, and the network is not to be used
        '-- TransientError     another try may succeed; has .wait; retried before anybody sees it
"""

from ckptzoo.errors import Problem, ZooError


class RemoteError(ZooError):
    """No answer from another machine, or one that cannot be used; ``problem`` holds the facts of the message."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem)

    def __str__(self) -> str:
        return str(self.problem)


class AbsentError(RemoteError):
    """There is no such zoo, revision or file."""


class OfflineError(RemoteError):
    """It is not in the cache, and the network is not to be used."""


class TransientError(RemoteError):
    """Another try may succeed.

    Parameters
    ----------
    problem : what was expected and what came.
    wait : seconds that the server asked for before the next try, or None.
    strange : the answer was not to the question, as from a server that does not serve ranges; few such are borne.
    """

    def __init__(self, problem: Problem, wait: float | None = None, strange: bool = False) -> None:
        super().__init__(problem)
        self.wait, self.strange = wait, strange
        self.args = (problem, wait, strange)
