"""Means and standard deviations of weights, in the forms in which programs keep them.

Two parameters of each tensor (Pyro, NumPyro, torch.distributions, Bayes by backprop), the moments of SWAG, and the
diagonal of a Laplace approximation. What is no positive standard deviation is refused by name.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ckptzoo.archs.gaussian_spec import STD
from ckptzoo.errors import Problem, ZooError
from ckptzoo.hub.imports.adapters.adapter import Picked
from ckptzoo.hub.imports.mapped import loaded
from ckptzoo.hub.imports.tables import Slice
from ckptzoo.hub.untrusted import StateDict
from ckptzoo.hub.untrusted.errors import reject_without_network
from ckptzoo.hub.untrusted.other_contents import MOMENTS, other_content
from ckptzoo.schema.architecture import kind_of

Arrays = Mapping[str, NDArray[Any]]

_FORMS = {
    "scale": "", "sigma": "", "std": "", "stddev": "",
    "rho": "standard deviations are softplus(rho), as in Bayes by backprop",
    "log_sigma": "standard deviations are exp(log_sigma)", "log_scale": "standard deviations are exp(log_scale)",
    "log_std": "standard deviations are exp(log_std)", "logstd": "standard deviations are exp(logstd)",
    "log_var": "standard deviations are exp(log_var / 2)", "logvar": "standard deviations are exp(logvar / 2)",
    "var": "standard deviations are sqrt(var)", "variance": "standard deviations are sqrt(variance)",
    "precision": "standard deviations are 1 / sqrt(precision)",
}  # fmt: skip
"""The names that programs give the parameter of a deviation, and how messages describe it."""
_MEAN_WORDS = ("loc", "mu", "mean")
_SEVERAL = {"locs": "loc", "scales": "scale"}
"""The name under which Pyro's AutoNormal keeps the parameters of all sites."""
_PARAMETER = re.compile(rf"(.+?)([._])({'|'.join((*_MEAN_WORDS, *_FORMS))})")
_BEFORE = re.compile(r"((?:.+\.)?)(mu|rho)_(\w+)")
"""The names of bayesian-torch."""
_CANDIDATES = re.compile(rf"[._]({'|'.join(_MEAN_WORDS)})$|(^|\.)mu_|(^|\.)locs\.")
"""Names of means, and of the moments that a SWAG module has: its ``T_sq_mean`` ends in one."""
_VECTOR = re.compile(r"(?:(?:.+\.)?Auto\w+\.|auto_)?(loc|scale|scale_tril|cov_factor)(?:_unconstrained)?")
"""The names of guides of Pyro and NumPyro that keep the parameters of all sites in one vector."""
_NOISE = re.compile(r"(?:.+\.)?(?:\w+_)?eps(?:ilon)?(?:_\w+)?")
"""Names of the numbers that a layer drew last, in BLiTZ, torchbnn and bayesian-torch."""
_PRIOR = re.compile(r"(?:.+\.)?prior_\w+")
_SAMPLER = "_sampler"
"""The end of the modules of BLiTZ in which the parameters stand a second time."""
_OF_LAYERS = {"rho", "log_sigma"}
"""Parameters by which layers draw their weights; the noise of other layers belongs to a policy that explores."""
_UNCONSTRAINED = "_unconstrained"
_CONSTRAINTS = "constraints."
_LOWER_BOUND = re.compile(r"_GreaterThan(?:Eq)?\(lower_bound=([0-9.e-]+)\)")
_SOFTPLUS = re.compile(r"_SoftplusPositive\(.*\)")
_LEAST_VARIANCE = 1e-30
"""The lower bound of variances in SWAG's code; rounding can make them negative."""
_ROUNDING = 1e-4
"""Share of the squared mean by which rounding may make a variance negative; more is refused."""


def pairs_of(states: Sequence[StateDict], path: str) -> list[Picked] | None:
    """Return state dicts ``0.loc``, ``0.scale``, ... as Gaussians; None for others."""
    if len(states) < 2:
        return None
    by_key = {state.source.partition("#")[2]: state for state in states}
    if (swag := _swag_of_states(by_key, path)) is not None:
        return [swag]
    for mean in _MEAN_WORDS:
        for deviation in _FORMS:
            stems = [key.removesuffix(mean) for key in by_key if key.rpartition(".")[2] == mean]
            if not stems or {f"{stem}{end}" for stem in stems for end in (mean, deviation)} != set(by_key):
                continue
            pairs = [(stem, by_key[f"{stem}{mean}"].tensors, by_key[f"{stem}{deviation}"].tensors) for stem in stems]
            if all(set(means) == set(deviations) for _, means, deviations in pairs):
                return [
                    Picked(
                        stem.strip("."),
                        _interleaved(
                            means,
                            {name: _deviation(deviation, array, name, path) for name, array in deviations.items()},
                        ),
                        gaussian=True,
                        note=_FORMS[deviation],
                    )
                    for stem, means, deviations in pairs
                ]
    return None


def _swag_of_states(by_key: Mapping[str, StateDict], path: str) -> Picked | None:
    """Read state dicts of means and second moments, with those of deviations beside them; None for others."""
    deviations = [state.tensors for key, state in by_key.items() if key.startswith(("deviations.", "cov_mat_sqrt."))]
    square = next((key for key in ("sq_mean", "square_mean") if key in by_key), None)
    if square is None or "mean" not in by_key or len(by_key) > 2 + len(deviations):
        return None
    means, squares = by_key["mean"].tensors, by_key[square].tensors
    if any(other.keys() != means.keys() for other in (squares, *deviations)):
        return None
    tensors = {name: array for name, array in means.items() if array.dtype.kind == "f"}
    moments = {
        name: _swag(
            array.astype(np.float64),
            squares[name].astype(np.float64),
            np.array([deviation[name].reshape(-1) for deviation in deviations], np.float64) if deviations else None,
            path,
            f"second moments of {name!r}",
        )
        for name, array in tensors.items()
    }
    both = _interleaved(
        tensors, {name: _positive(item.deviation, tensors[name].dtype, name, path) for name, item in moments.items()}
    )
    rest = {name: array for name, array in means.items() if name not in tensors}
    return Picked("", both | rest, {"method": "swag"}, gaussian=True, note=_SWAG)


def gaussian_of(tensors: Arrays, facts: Mapping[str, Any], path: str) -> Picked | None:
    """Return tensors ``T.loc`` and ``T.scale``, ``T_mu`` and ``T_rho``, or moments, as a Gaussian; None for others.

    Where layers without deviations stand beside others the result is no Gaussian, and has a note that says so. Raises
    ``ZooError`` where only some tensors of a layer have deviations, some are not positive, or all are in one vector.
    """
    if not _may_be_parameters(tuple(tensors)):
        return None
    if (vector := _words_of_vector(tensors)) is not None:
        got = f"vectors of {tensors[vector['loc']].size} numbers, as guides of Pyro have them"
        step = "Say with --layout which of their numbers are which tensor."
        if vector.keys() != {"loc", "scale"} or vector["scale"].endswith(_UNCONSTRAINED):
            step = "Save guide.median() and its quantiles by site, or draws by site, which --stacked cuts."
        raise ZooError(Problem(path, "parameters of a Gaussian", "those of each tensor", got, step))
    if (swag := _swag_of_tensors(tensors, path)) is not None:
        return swag
    if other_content({name: array.dtype.name for name, array in tensors.items()}) == MOMENTS or _is_laplace(tensors):
        reject_without_network(path, f"{MOMENTS}, unless --layout says which of their numbers are which tensor", "")
    if not any(map(_CANDIDATES.search, tensors)):
        return None
    names = {key: name for name in tensors if not _PRIOR.fullmatch(name) and (key := _key(name)) is not None}
    for (stem, word), name in list(names.items()):
        first = names.get((stem.removesuffix(_SAMPLER), word), name)
        if first != name and np.array_equal(loaded(tensors[first]), loaded(tensors[name])):
            del names[stem, word]
    for mean in _MEAN_WORDS:
        for deviation in _FORMS:
            stems = [
                stem
                for stem, word in names
                if word == mean
                and (other := names.get((stem, deviation))) is not None
                and tensors[other].shape == tensors[names[stem, mean]].shape
            ]
            if stems:
                return _of_parameters(tensors, names, stems, (mean, deviation), facts, path)
    return None


@lru_cache(maxsize=1024)
def _may_be_parameters(names: tuple[str, ...]) -> bool:
    """Whether names may be those of parameters of a Gaussian, or of moments; those of most networks are not."""
    is_moments = other_content(dict.fromkeys(names, "float32")) == MOMENTS
    is_vector = "loc" in names or "auto_loc" in names
    return is_moments or is_vector or {"mean", "H"} <= set(names) or any(_CANDIDATES.search(name) for name in names)


def _words_of_vector(tensors: Arrays) -> dict[str, str] | None:
    """Return the names of parameters that are vectors of all sites, by their words; None for other tensors."""
    matched = {name: _VECTOR.fullmatch(name) for name in tensors}
    words = {found[1]: name for name, found in matched.items() if found is not None}
    is_vector = len(words) == len(tensors) > 1 and "loc" in words and tensors[words["loc"]].ndim == 1
    return words if is_vector else None


def _key(name: str) -> tuple[str, str] | None:
    """Return the tensor that a parameter is about, and which of its parameters it is."""
    name = name.removesuffix(_UNCONSTRAINED)
    if (matched := _BEFORE.fullmatch(name)) is not None:
        return f"{matched[1]}{matched[3]}", matched[2]
    *words, last = name.split(".")
    several = next((word for word in words if word in _SEVERAL), None)
    if several is not None:
        return ".".join([*(word for word in words if word not in (several, "AutoNormal")), last]), _SEVERAL[several]
    matched = _PARAMETER.fullmatch(name)
    return None if matched is None else (matched[1].removesuffix("_auto"), matched[3])


def _of_parameters(
    tensors: Arrays,
    names: Mapping[tuple[str, str], str],
    stems: Sequence[str],
    words: tuple[str, str],
    facts: Mapping[str, Any],
    path: str,
) -> Picked | None:
    mean, deviation = words
    pairs = {names[stem, word] for stem in stems for word in words}
    left_out = _beside_layers(tensors, names, stems, mean) if deviation in _OF_LAYERS else {}
    single = [
        name
        for name, array in tensors.items()
        if name not in pairs and name not in left_out and kind_of(name, array.dtype.name, tensors) == "parameter"
    ]
    if single and deviation not in _OF_LAYERS:  # layers of flows and of noisy networks have such parameters
        return None
    if single:
        got = f"{single[0]!r} beside {len(stems)} with {mean} and {deviation}"
        layers = {stem.rpartition(".")[0] for stem in stems}
        if deviation == "rho" and any(name.rpartition(".")[0] in layers for name in single):
            step = "Save means and deviations of all tensors."
            what = "parameters of a Gaussian"
            raise ZooError(Problem(path, what, "a mean and a deviation of each tensor", got, step))
        # layers without deviations, such as normalisation, beside others
        return Picked("", tensors, note=f"{mean} and {deviation} are kept as they are: there is {got}")
    means = {stem: tensors[names[stem, mean]] for stem in stems}
    deviations = {stem: _deviation_of(tensors, names[stem, deviation], deviation, facts, path) for stem in stems}
    first = next(iter(means)).partition(".")[0]
    prefix = f"{first}." if all(name.startswith(f"{first}.") and name.count(".") > 1 for name in means) else ""
    both = _interleaved(
        {name.removeprefix(prefix): array for name, array in means.items()},
        {name.removeprefix(prefix): array for name, array in deviations.items()},
    )
    rest = {
        name.removeprefix(prefix): array
        for name, array in tensors.items()
        if name not in pairs and name not in left_out
    }
    notes = [_FORMS[deviation], *(f"left out: {what}" for what in dict.fromkeys(left_out.values()))]
    return Picked("", both | rest, gaussian=True, note="; ".join(filter(None, notes)))


def _beside_layers(
    tensors: Arrays, names: Mapping[tuple[str, str], str], stems: Sequence[str], mean: str
) -> dict[str, str]:
    """Return the tensors that layers which draw their weights keep beside their parameters, and what they are."""
    known, shapes = set(names.values()), {tensors[names[stem, mean]].shape for stem in stems}
    left_out: dict[str, str] = {}
    for name, array in tensors.items():
        if name in known:
            continue
        if _PRIOR.fullmatch(name):
            left_out[name] = "parameters of the prior"
        elif _NOISE.fullmatch(name) and array.shape in shapes:
            left_out[name] = "the noise that was drawn last"
        elif (key := _key(name)) is not None and key[0].endswith(_SAMPLER):
            left_out[name] = "a second copy of the parameters"
    return left_out


def _deviation_of(tensors: Arrays, name: str, word: str, facts: Mapping[str, Any], path: str) -> NDArray[Any]:
    """Return the standard deviation that a parameter stands for."""
    array = tensors[name]
    # PyroModule keeps a PyroParam so, and its constraint outside of the state dict
    if name.endswith(_UNCONSTRAINED):
        got = "the value before its constraint, which the file does not name"
        step = "Save pyro.get_param_store().get_state(), or the constrained values."
        raise ZooError(Problem(path, f"tensor {name!r}", "a standard deviation", got, step))
    if any(fact.startswith(_CONSTRAINTS) for fact in facts):
        array = _constrained(array, facts.get(f"{_CONSTRAINTS}{name}"), f"{path}: {name}")
    return _deviation(word, array, name, path)


def _deviation(word: str, array: NDArray[Any], name: str, path: str) -> NDArray[Any]:
    """Bring a parameter to a standard deviation: ``rho`` by softplus (Blundell et al. 2015, arXiv 1505.05424)."""
    wide = array.astype(np.float64)
    if word == "rho":
        # softplus, log(1 + exp(rho)), without overflow
        wide = np.logaddexp(0, wide)
    elif word.startswith("log"):
        wide = np.exp(wide / 2 if word.endswith("var") else wide)
    elif word in ("var", "variance", "precision"):
        # of what is not positive the root is none, which is refused
        wide = np.sqrt(np.where(wide > 0, wide, np.nan)) ** (-1 if word == "precision" else 1)
    return _positive(wide, array.dtype, name, path)


def _positive(wide: NDArray[Any], dtype: np.dtype[Any], name: str, path: str) -> NDArray[Any]:
    """Return deviations in a dtype, all above 0."""
    deviations = np.asarray(wide).astype(dtype)
    if not bool((deviations > 0).all()):
        least = float(np.min(wide)) if not np.isnan(wide).any() else float("nan")
        step = "Say so in a file of another form: what these numbers are is not known."
        raise ZooError(Problem(path, f"tensor {name!r}", "standard deviations above 0", f"{least:g}", step))
    return deviations


def _constrained(array: NDArray[Any], constraint: Any, location: str) -> NDArray[Any]:
    """Apply the constraint of a parameter of Pyro, whose store keeps it unconstrained.

    A lower bound gives the exponential plus the bound (``transform_to(greater_than(bound))`` of torch.distributions),
    Pyro's ``softplus_positive`` softplus.
    """
    if constraint in ("_Real()", "_IndependentConstraint()"):
        return array
    if _SOFTPLUS.fullmatch(str(constraint)) is not None:
        return np.logaddexp(0, array.astype(np.float64)).astype(array.dtype)
    matched = _LOWER_BOUND.fullmatch(str(constraint))
    if matched is None:
        step = "Import a file of plain means and standard deviations."
        raise ZooError(Problem(location, "constraint", "a lower bound", str(constraint), step))
    return (np.exp(array.astype(np.float64)) + float(matched[1])).astype(array.dtype)


def _interleaved(means: Arrays, scales: Arrays) -> dict[str, NDArray[Any]]:
    """Order tensors as ``gaussian-<name>`` does: for each module its means, then its standard deviations."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in means))
    ordered: dict[str, NDArray[Any]] = {}
    for layer in layers:
        own = [name for name in means if name.rpartition(".")[0] == layer]
        ordered |= {name: means[name] for name in own} | {f"{name}{STD}": scales[name] for name in own}
    return ordered


@dataclass(frozen=True)
class VectorMoments:
    """A mean and a standard deviation of each number of a vector, and how they were made."""

    mean: NDArray[Any]
    deviation: NDArray[Any]
    method: str
    note: str


_SWAG = "of SWAG the deviations of each weight are kept, and its covariances are not"
_LAPLACE = "of the Laplace approximation the deviations of each weight are kept, and its covariances are not"


def moments_of(tensors: Arrays, facts: Mapping[str, Any], path: str) -> VectorMoments | None:
    """Return the moments of a posterior that are vectors; None where tensors are others.

    SWAG's covariance is half the diagonal of variances and half that of the deviations' low rank (Maddox et al. 2019,
    arXiv 1902.02476, section 3.3); without deviations it is the diagonal alone. MultiSWAG keeps weights in place of
    deviations, as columns. Laplace's is the inverse of the Hessian over noise and temperature plus the prior's
    precision, as laplace-torch has them.
    """
    if (words := _words_of_vector(tensors)) is not None and words.keys() == {"loc", "scale"}:
        deviations = _deviation_of(tensors, words["scale"], "scale", facts, path)
        return VectorMoments(tensors[words["loc"]].astype(np.float64), deviations.astype(np.float64), "", "")
    vectors = {name.lower(): array for name, array in tensors.items()}
    flat = {name: array.astype(np.float64) for name, array in vectors.items() if array.dtype.kind == "f"}
    if {"mean", "sq_mean"} <= flat.keys():
        return _swag(flat["mean"], flat["sq_mean"], flat.get("cov_mat_sqrt"), path)
    if {"w_avg", "w2_avg"} <= flat.keys():
        weights = flat.get("pre_d")
        deviations = None if weights is None else (weights - flat["w_avg"][:, None]).T
        return _swag(flat["w_avg"], flat["w2_avg"], deviations, path)
    if {"mean", "prior_precision"} <= flat.keys() and "h" not in flat:
        _refuse(path, "H", "a diagonal or a matrix of the weights", "Kronecker factors, or none")
    return _laplace(flat, facts, path) if _is_laplace(tensors) else None


def _is_laplace(tensors: Arrays) -> bool:
    return {"mean", "H", "prior_precision"} <= set(tensors)


def _swag(
    mean: NDArray[Any], squares: NDArray[Any], deviations: NDArray[Any] | None, path: str, name: str = "second moments"
) -> VectorMoments:
    variance = squares - mean**2
    if bool((variance < -_ROUNDING * (mean**2 + _LEAST_VARIANCE)).any()):
        got = f"some that are smaller by {-float(variance.min()):g}"
        _refuse(path, name, "at least the squares of the means", got)
    variance = np.maximum(variance, _LEAST_VARIANCE)
    if deviations is not None and len(deviations) > 1:
        if deviations.shape[1:] != (mean.size,):
            _refuse(path, name, f"deviations of {mean.size} numbers", f"shape {deviations.shape}")
        low_rank = np.square(deviations).sum(axis=0).reshape(mean.shape) / (len(deviations) - 1)
        variance = (variance + low_rank) / 2
    return VectorMoments(mean, np.sqrt(variance), "swag", _SWAG)


def _laplace(flat: Arrays, facts: Mapping[str, Any], path: str) -> VectorMoments:
    def scalar(name: str, default: float) -> float:
        value = flat[name].item() if name in flat and flat[name].size == 1 else facts.get(name, default)
        return float(value) if isinstance(value, int | float) else default

    hessian, prior = flat["h"], flat["prior_precision"]
    if prior.size not in (1, flat["mean"].size):
        _refuse(path, "prior_precision", f"one number or {flat['mean'].size}", f"shape {prior.shape}")
    # _H_factor of laplace-torch
    factor = 1 / (scalar("sigma_noise", 1.0) ** 2 * scalar("temperature", 1.0))
    if hessian.shape == flat["mean"].shape:
        precision = hessian * factor + prior
        variance = 1 / np.where(precision > 0, precision, np.nan)
    elif hessian.shape == (flat["mean"].size,) * 2:
        matrix = hessian * factor + np.eye(len(hessian)) * prior
        try:
            variance = np.diag(np.linalg.inv(matrix))
        except np.linalg.LinAlgError:
            variance = np.full(len(matrix), np.nan)
    else:
        _refuse(path, "H", "a diagonal or a matrix of the weights", f"shape {hessian.shape}")
    if not bool((variance > 0).all()):
        _refuse(path, "H", "a positive definite precision", "another")
    return VectorMoments(flat["mean"], np.sqrt(variance), "laplace", _LAPLACE)


def _refuse(path: str, what: str, expected: str, got: str) -> NoReturn:
    raise ZooError(Problem(path, what, expected, got, "Save it again, or leave it out."))


def cut_gaussian(moments: VectorMoments, slices: Sequence[Slice], path: str) -> Picked:
    """Cut moments that are vectors into the means and deviations of tensors."""
    if moments.mean.shape != (slices[-1].stop,):
        expected = f"{slices[-1].stop} numbers, as --layout says"
        raise ZooError(Problem(path, "means", expected, f"shape {moments.mean.shape}", "Give its own layout."))

    def tensors(vector: NDArray[Any], check: Callable[..., Any] = lambda array, _: array) -> dict[str, NDArray[Any]]:
        return {
            item.name: check(vector[item.start : item.stop].reshape(item.shape).astype(np.float32), item.name)
            for item in slices
        }

    deviations = tensors(moments.deviation, lambda array, name: _positive(array, array.dtype, name, path))
    both = _interleaved(tensors(moments.mean), deviations)
    row = {"method": moments.method} if moments.method else {}
    return Picked("", both, row, gaussian=True, note=moments.note)


_OF_TENSOR = ("_mean", "_sq_mean", "_cov_mat_sqrt")


def _swag_of_tensors(tensors: Arrays, path: str) -> Picked | None:
    """Read a SWAG module, which keeps the moments of each tensor beside one another; None for other tensors."""
    mean, square, _ = _OF_TENSOR
    stems = [name.removesuffix(square) for name in tensors if name.endswith(square)]
    stems = [stem for stem in stems if f"{stem}{mean}" in tensors]
    if not stems:
        return None
    moments: dict[str, VectorMoments] = {}
    used = {"n_models"}
    for stem in stems:
        parts = [tensors.get(f"{stem}{end}") for end in _OF_TENSOR]
        means, squares, deviations = (None if part is None else part.astype(np.float64) for part in parts)
        assert means is not None and squares is not None
        if squares.shape != means.shape:
            _refuse(path, f"tensor '{stem}{square}'", f"shape {means.shape}", f"{squares.shape}")
        rows = None if deviations is None or not deviations.size else deviations.reshape(len(deviations), -1)
        moments[stem] = _swag(means, squares, rows, path, f"second moments of {stem!r}")
        used |= {f"{stem}{end}" for end in _OF_TENSOR}
    first = stems[0].partition(".")[0]
    names = [*stems, *(name for name in tensors if name not in used)]
    prefix = f"{first}." if all(name.startswith(f"{first}.") and name.count(".") > 1 for name in names) else ""
    dtypes = {stem: tensors[f"{stem}{mean}"].dtype for stem in stems}
    both = _interleaved(
        {stem.removeprefix(prefix): item.mean.astype(dtypes[stem]) for stem, item in moments.items()},
        {
            stem.removeprefix(prefix): _positive(item.deviation, dtypes[stem], stem, path)
            for stem, item in moments.items()
        },
    )
    rest = {name.removeprefix(prefix): array for name, array in tensors.items() if name not in used}
    extra = {"n_models": int(tensors["n_models"].reshape(-1)[0])} if "n_models" in tensors else {}
    row = {"method": "swag", **({"extra": extra} if extra else {})}
    return replace(Picked("", both | rest, row, gaussian=True), note=_SWAG)
