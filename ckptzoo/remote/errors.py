"""What passes: caught within this room, and raised as a RemoteError when patience has ended."""

from ckptzoo.errors import Problem, RemoteError


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
