r"""Hamiltonian Monte Carlo on the whole training set, by blackjax: chains whose draws are exact in the limit.

For the potential :math:`U(\theta) = -\log p(\theta)` of ``builders.posterior.log_density`` a transition draws a
momentum :math:`r \sim \mathcal N(0, M)`, takes L leapfrog steps of size :math:`\epsilon`

.. math::

    r &\leftarrow r - \tfrac\epsilon2 \nabla U(\theta), \qquad
    \theta \leftarrow \theta + \epsilon M^{-1} r, \qquad
    r \leftarrow r - \tfrac\epsilon2 \nabla U(\theta)

and goes to where they end with probability :math:`\min(1, e^{-\Delta H})`, where
:math:`H = U + \frac12 r^\top M^{-1} r`; else it stays, and the chain has the same weights once more (Duane et al.,
"Hybrid Monte Carlo", 1987; Neal, "MCMC using Hamiltonian dynamics", 2011, arXiv 1206.1901). L is drawn for each
transition. During burn-in :math:`\epsilon` and a diagonal :math:`M^{-1}` adapt in the windows of Stan's
warm-up, by blackjax's dual averaging and running variances; afterwards they stay.

A step of a chain is a transition. Positions, momenta and energies are float64.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import torch
from blackjax.adaptation.mass_matrix import (
    MassMatrixAdaptationState,
    WelfordAlgorithmState,
    mass_matrix_adaptation,
)
from blackjax.adaptation.step_size import DualAveragingAdaptationState, dual_averaging_adaptation
from blackjax.adaptation.window_adaptation import build_schedule
from blackjax.mcmc import hmc
from numpy.typing import NDArray

from builders import rng, sources
from builders.posterior.log_density import examples_last, log_density, refusals
from builders.posterior.method import (
    MarkovChain,
    Surroundings,
    flatten,
    number,
    parameters,
    spread,
    unflatten,
    without_sgd,
)
from builders.recipe import Recipe
from builders.state import Tensors, TrainingState
from ckptzoo.errors import Problem, ZooError
from ckptzoo.text import counted

_MOST = 10**6
"""Transitions at most, as the epochs of a recipe."""
RANDOM, MEMBER = "random", "member"
"""The weights at which chains start."""
_SEEDS = 10**4
"""Seeds among which the one of a key is looked for."""


class Chain(NamedTuple):
    """A chain between two transitions.

    ``hmc`` has the position (P,), the logarithm of the density there and its gradient (P,); ``averaging`` is the
    adaptation of the step size, ``scaling`` that of the inverse mass matrix, a diagonal (P,). ``step_size`` is that of
    the next transition. ``accepted`` and ``divergent`` count transitions after burn-in: those that were accepted, and
    those whose energy error was above 1,000.
    """

    hmc: hmc.HMCState
    averaging: DualAveragingAdaptationState
    scaling: MassMatrixAdaptationState
    step_size: Any
    accepted: Any
    divergent: Any


_ANY: Any = 0
_PATHS, _TREE = jax.tree_util.tree_flatten_with_path(
    Chain(
        hmc.HMCState(*[_ANY] * 3),
        DualAveragingAdaptationState(*[_ANY] * 5),
        MassMatrixAdaptationState(_ANY, WelfordAlgorithmState(*[_ANY] * 3)),
        *[_ANY] * 3,
    )
)
_NAMES = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in _PATHS]
"""Under which ``TrainingState.extra`` has the arrays of chains: ``hmc.position``, ..."""


# the settings have their values in builders/recipes/posterior/hmc.toml
@dataclass(frozen=True, kw_only=True)
class Hmc(MarkovChain):
    """Chains of Hamiltonian Monte Carlo from random weights, or from those of trained members.

    Parameters
    ----------
    burn_in
        transitions in which step size and mass matrix adapt; with 0 they stay ``step_size`` and the identity.
    transitions, thinning
        after burn-in; every ``thinning``-th of them is a draw.
    least_leapfrogs, most_leapfrogs
        leapfrog steps of a transition, uniform between these.
    step_size
        of leapfrog steps, before it adapts.
    target_acceptance
        the mean acceptance probability to which the step size adapts.
    prior, temperature
        see ``builders.posterior.log_density``.
    initial
        the weights at which chains start: ``random``, or ``member``, those of a member.

    Notes
    -----
    Chains of a group run one after another, each compiled alone: XLA rounds otherwise for another number of chains at
    once, and on a CPU it is no faster. A chain's bits depend on its key and the settings; for large networks also on
    the number of cores that XLA finds.
    """

    name: ClassVar[str] = "hmc"
    one_at_a_time: ClassVar[bool] = True
    sampler: ClassVar[str | None] = "blackjax"

    burn_in: int = number(0, _MOST, whole=True)
    transitions: int = number(1, _MOST, whole=True)
    thinning: int = number(1, _MOST, whole=True)
    least_leapfrogs: int = number(1, 10**6, whole=True)
    most_leapfrogs: int = number(1, 10**6, whole=True)
    step_size: float = number(0, 1e3, above=True)
    target_acceptance: float = number(0, 0.999, above=True)
    prior: float = number(0, 1e6, above=True)
    temperature: float = number(0, 1e9, above=True)
    initial: str = RANDOM

    @property
    def chain(self) -> Recipe:
        """The recipe's data as they are, all in each step; no unit is dropped."""
        return without_sgd(self.recipe, epochs=self.burn_in + self.transitions, batch=self.recipe.train, dropout=0.0)

    @property
    def draw_steps(self) -> list[int]:
        """The transition after which each draw is taken, by its number; see ``spread``."""
        return spread(range(self.burn_in + self.thinning, self.burn_in + self.transitions + 1, self.thinning))

    def start(self, surroundings: Surroundings, keys: NDArray[np.uint64], weights: Tensors | None) -> TrainingState:
        """Adds the chains.

        Raises
        ------
        ZooError
            The energy at the initial weights of a mode is not finite.
        """
        state = super().start(surroundings, keys, weights)
        positions = flatten(state.weights, parameters(self.recipe.arch)).double().cpu().numpy()
        with _jax_on(surroundings.data_source.device.type):
            examples = _examples(surroundings)
            chains = [_arrays(_first(self, position, *examples)) for position in positions]
        state.extra = {name: torch.from_numpy(np.stack(leaves)) for name, *leaves in zip(_NAMES, *chains, strict=True)}
        for chain in range(len(state)):
            self._require_finite(state, chain, 0)
        return state

    def advance(self, surroundings: Surroundings, state: TrainingState, stop: int) -> None:
        """Take the transitions up to ``stop``.

        Raises
        ------
        ZooError
            The energy of a mode is not finite.
        """
        extra, windows = state.extra, _windows(self.burn_in)
        with _jax_on(surroundings.data_source.device.type):
            examples = _examples(surroundings)
            for place, key in enumerate(state.keys.tolist()):
                chain = jax.tree.unflatten(_TREE, [extra[name][place].numpy() for name in _NAMES])
                # a key of JAX's threefry is two words of 32 bits
                words = np.array([key >> 32, key & (2**32 - 1)], dtype=np.uint32)
                chain, step = _transitions(self, chain, words, state.step, stop, windows, *examples)
                for name, leaf in zip(_NAMES, _arrays(chain), strict=True):
                    extra[name][place] = torch.from_numpy(leaf)
                self._require_finite(state, place, int(step))
        names = parameters(self.recipe.arch)
        for name, part in unflatten(extra["hmc.position"], state.weights, names).items():
            state.weights[name].copy_(part)
        state.step = stop

    @property
    def modes_are(self) -> str:
        return "member" if self.initial == MEMBER else "chain"

    def from_members(self) -> Self:
        return replace(self, initial=MEMBER)

    @property
    def digested(self) -> dict[str, Any]:
        # draws that zoos hold, of chains from random weights, keep their digest
        return {name: value for name, value in self.settings.items() if (name, value) != ("initial", RANDOM)}

    def mode_facts(self, state: TrainingState) -> list[dict[str, Any]]:
        """Rows tell the step size and, of the transitions after burn-in, the accepted part and the divergent ones."""
        taken = max(1, state.step - self.burn_in)
        counts = (state.extra[name].tolist() for name in ("step_size", "accepted", "divergent"))
        return [
            {"step_size": size, "acceptance": accepted / taken, "divergent": divergent}
            for size, accepted, divergent in zip(*counts, strict=True)
        ]

    def unservable(self) -> Iterator[Problem]:
        yield from refusals(self.name, self.recipe)
        if self.least_leapfrogs > self.most_leapfrogs:
            yield self.problem_with("least_leapfrogs", f"at most most_leapfrogs, {self.most_leapfrogs}")
        if self.thinning > self.transitions:
            yield self.problem_with("thinning", f"at most transitions, {self.transitions}")
        if self.burn_in + self.transitions > _MOST:
            yield self.problem_with("transitions", f"at most {_MOST - self.burn_in} beside {self.burn_in} of burn-in")

    def _require_finite(self, state: TrainingState, place: int, step: int) -> None:
        energy = -float(state.extra["hmc.logdensity"][place])
        if not math.isfinite(energy):
            key = state.keys[place]
            seed = next((seed for seed in range(_SEEDS) if rng.member_keys(self.digest, [seed])[0] == key), None)
            mode = f"with key {key}" if seed is None else f"{self.prefix}-{seed:06d}"
            what = f"energy of mode {mode} after {counted(step, 'transition')}"
            advice = "Check the training inputs; else raise the temperature or lower step_size."
            raise ZooError(
                Problem(f"method {self.name!r} for {self.recipe.name!r}", what, "finite", str(energy), advice)
            )


@partial(jax.jit, static_argnums=0)
def _first(method: Hmc, position: Any, inputs: Any, targets: Any) -> Chain:
    """A chain before its first transition."""
    density = log_density(method.recipe, method.prior, method.temperature, inputs, targets)
    return Chain(
        hmc.init(position, density),
        dual_averaging_adaptation(method.target_acceptance)[0](method.step_size),
        mass_matrix_adaptation()[0](len(position)),
        jnp.float64(method.step_size),
        *(jnp.int64(0), jnp.int64(0)),
    )


@partial(jax.jit, static_argnums=0)
def _transitions(
    method: Hmc, chain: Chain, key: Any, first: Any, stop: Any, windows: Any, inputs: Any, targets: Any
) -> tuple[Chain, Any]:
    """A chain after the transitions from ``first`` to ``stop``, or up to one after which its energy is not finite.

    Also returns after how many that is. Random numbers are a function of the key, two words, and the transition.
    """
    density = log_density(method.recipe, method.prior, method.temperature, inputs, targets)
    # the generator is named, since the default one is a setting of JAX
    kernel, mode = hmc.build_kernel(), jax.random.wrap_key_data(key, impl="threefry2x32")

    def goes_on(carry: tuple[Chain, Any]) -> Any:
        chain, step = carry
        return (step < stop) & jnp.isfinite(chain.hmc.logdensity)

    def transition(carry: tuple[Chain, Any]) -> tuple[Chain, Any]:
        chain, step = carry
        # numbers of a transition do not depend on where a call began, so that a chain may be stopped anywhere
        for_length, for_kernel = jax.random.split(jax.random.fold_in(mode, step))
        # drawn for each trajectory: a fixed length may bring trajectories back to where they began (Neal 2011)
        length: Any = jax.random.randint(for_length, (), method.least_leapfrogs, method.most_leapfrogs + 1)
        scaling = chain.scaling.inverse_mass_matrix
        state, info = kernel(for_kernel, chain.hmc, density, chain.step_size, scaling, length)
        chain, counts = chain._replace(hmc=state), step >= method.burn_in
        if method.burn_in:
            adapted = partial(_adapted, method, windows, step, info.acceptance_rate)
            chain = jax.lax.cond(counts, lambda chain: chain, adapted, chain)
        accepted = chain.accepted + (counts & info.is_accepted)
        return chain._replace(accepted=accepted, divergent=chain.divergent + (counts & info.is_divergent)), step + 1

    return jax.lax.while_loop(goes_on, transition, (chain, first))


def _adapted(method: Hmc, windows: Any, step: Any, acceptance: Any, chain: Chain) -> Chain:
    """A chain whose step size and mass matrix have adapted to a transition of the warm-up, as in Stan's windows."""
    start, update, final = dual_averaging_adaptation(method.target_acceptance)
    _, observe, conclude = mass_matrix_adaptation()
    is_slow, ends = windows[step]
    averaging = update(chain.averaging, acceptance)
    scaling = jax.lax.cond(
        is_slow, lambda scaling: observe(scaling, chain.hmc.position), lambda scaling: scaling, chain.scaling
    )
    averaging, scaling = jax.lax.cond(
        ends,
        lambda averaging, scaling: (start(final(averaging)), conclude(scaling)),
        lambda averaging, scaling: (averaging, scaling),
        *(averaging, scaling),
    )
    # the first step size of a window is the last one's average; that of the draws is the average of the last window
    step_size = jnp.where(step == method.burn_in - 1, final(averaging), jnp.exp(averaging.log_step_size))
    return chain._replace(averaging=averaging, scaling=scaling, step_size=step_size)


def _windows(burn_in: int) -> NDArray[np.bool_]:
    """(burn_in, 2): whether each transition of the warm-up is in a slow window, and whether it ends one."""
    return np.asarray(build_schedule(burn_in), dtype=bool).reshape(-1, 2)


@contextmanager
def _jax_on(kind: str) -> Iterator[None]:
    """JAX in float64 on a kind of device."""
    try:
        device = jax.devices(kind)[0]
    except RuntimeError as error:
        step = "Choose --device cpu, or install jax with support of this device."
        raise ZooError(Problem("method 'hmc'", "device", kind, "none that JAX can use", step)) from error
    with jax.enable_x64(True), jax.default_device(device):
        yield


# of the last set of data alone, so that none stays in memory for ever
@lru_cache(maxsize=1)
def _examples(surroundings: Surroundings) -> tuple[Any, Any]:
    """The training set as the density takes it; within ``_jax_on``."""
    recipe, source = surroundings.data_source.recipe, surroundings.source
    inputs = sources.train_inputs(recipe, source, 0, recipe.train)
    inputs, targets = examples_last(recipe, inputs, source.half("train")[1])
    return jnp.asarray(inputs), jnp.asarray(targets)


def _arrays(chain: Chain) -> list[NDArray[Any]]:
    # torch warns of what is read-only, as JAX lends it
    return [np.array(leaf) for leaf in jax.tree.leaves(chain)]
