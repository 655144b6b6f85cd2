"""Several streams as one, each batch from one of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ckptzoo.arguments import checked
from ckptzoo.errors import Problem, StateError, ZooError
from ckptzoo.learning.augment import mixed
from ckptzoo.learning.augmented_stream import Stream
from ckptzoo.learning.preparation import Batch
from ckptzoo.loader.permutation import derive_key
from ckptzoo.loader.stream import State

_DOMAIN = 21
"""A word that keeps the keys that choose streams apart from other keys."""


class Mix:
    """An iterable over the batches of several streams; made by ``learning.mix``.

    An iteration has as many batches as one epoch of every stream has together. A stream that comes to its end goes on
    with its next epoch, and the others go on in the next iteration where they are.

    Parameters
    ----------
    streams
        of one zoo or of several.
    weights
        how often each is chosen, in proportion.
    seed
        of the choices.
    """

    def __init__(self, streams: Sequence[Stream], weights: Sequence[float], seed: int) -> None:
        self._streams, self._length = tuple(streams), sum(map(len, streams))
        self._bounds, self._key = np.cumsum(weights) / sum(weights), derive_key(seed, _DOMAIN)
        self._shares = [float(weight) for weight in weights]
        self._seed = seed
        self._start = self._state = self._state_of(0, [stream.state_dict() for stream in streams])

    def _state_of(self, step: int, states: list[State]) -> State:
        return {"mix": self._shares, "seed": self._seed, "step": step, "streams": states}

    def __len__(self) -> int:
        """Batches in the next iteration."""
        return self._length - self._start["step"] % self._length

    def __iter__(self) -> Iterator[Batch]:
        step, states = self._start["step"], list(self._start["streams"])
        for stream, state in zip(self._streams, states, strict=True):
            stream.load_state_dict(state)
        open_ones: list[Iterator[Batch] | None] = [None] * len(states)
        for _ in range(len(self)):
            at = self._chosen(step)
            batch = None
            while batch is None:  # a stream goes on with its next epoch; none is empty
                found = open_ones[at] = open_ones[at] or iter(self._streams[at])
                if (batch := next(found, None)) is None:
                    open_ones[at] = None
            step, states = step + 1, [*states[:at], batch.state, *states[at + 1 :]]
            self._state = self._state_of(step, states)
            yield replace(batch, state=self._state, stream=at)
        self._start = self._state

    def _chosen(self, step: int) -> int:
        """The stream of a step, from the seed and the step alone."""
        # an array of one number: numpy warns where a product of scalars wraps
        # SplitMix64's increment, 2^64 over the golden ratio; it is odd, so that no two of 2^64 steps share a state
        word = mixed(self._key + np.array([step], np.uint64) * np.uint64(0x9E3779B97F4A7C15))[0]
        return min(
            # 53 bits are what float64 holds; the last bound may be rounded to below 1
            int(np.searchsorted(self._bounds, float(word >> 11) * 2.0**-53, side="right")),
            len(self._bounds) - 1,
        )

    def state_dict(self) -> State:
        """The position behind the last batch that was handed out: of the mix, and of every stream."""
        return {**self._state, "streams": [dict(state) for state in self._state["streams"]]}

    def load_state_dict(self, state: State) -> None:
        """Continue right behind the batch that had this state.

        Parameters
        ----------
        state
            what ``state_dict`` or a batch's ``state`` gave.

        Raises
        ------
        StateError
            It is that of another mix, or of other streams.
        """
        for name in ("mix", "seed"):
            if state.get(name) != self._start[name]:
                got, step = str(state.get(name)), "Mix the same streams with the same weights and seed."
                raise StateError(Problem("mix", f"{name} of the saved state", str(self._start[name]), got, step))
        if (
            type(state.get("step")) is not int
            or state["step"] < 0
            or len(state.get("streams", ())) != len(self._streams)
        ):
            got, step = str({name: state.get(name) for name in ("step", "streams")}), "Save it again."
            raise StateError(Problem("mix", "saved state", "a step and a state for each stream", got, step))
        for stream, one in zip(self._streams, state["streams"], strict=True):
            stream.load_state_dict(one)
        self._start = self._state = self._state_of(state["step"], [dict(one) for one in state["streams"]])


@checked
def mix(streams: Sequence[Stream], *, weights: Sequence[float] | None = None, seed: int = 0) -> Mix:
    """Batches of several streams, say of zoos of other architectures, each batch from one of them.

    Parameters
    ----------
    streams
        what ``learning.stream`` gave; they belong to the mix from then on.
    weights
        how often each is taken, relative to the others; by default as its number of batches.
    seed
        the stream of step t follows from seed and t alone.

    Returns
    -------
    Mix
        an iterable of Batch, with ``state_dict`` and ``load_state_dict``; ``batch.stream`` says which one it is from,
        and ``batch.state`` is that of the whole mix.

    Raises
    ------
    ZooError
        There are no streams, one has no batches, or the weights are not as many positive finite numbers.

    Examples
    --------
    >>> import ckptzoo
    >>> from ckptzoo import learning
    >>> zoo = ckptzoo.open("cards/mnist-optunet")
    >>> halves = [learning.stream(zoo[:1024]), learning.stream(zoo[1024:2048])]
    >>> [batch.stream for batch in learning.mix(halves, weights=[3, 1])].count(0)
    20
    """
    for at, stream in enumerate(streams):
        if not len(stream):
            raise ZooError(Problem("mix", f"stream {at}", "one batch or more", "none", "Leave it out."))
    shares = [float(len(stream)) for stream in streams] if weights is None else [float(value) for value in weights]
    if not streams or len(shares) != len(streams) or not all(0 < share < np.inf for share in shares):
        got, step = f"{shares} for {len(streams)} streams", "Give one positive number for each stream."
        raise ZooError(Problem("mix", "weights", "one or more streams, and as many positive numbers", got, step))
    return Mix(streams, shares, seed)
