"""Means and deviations in every form become those that their programs sample with, or are refused by name."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptzoo.errors import ZooError
from ckptzoo.hub.imports.adapters.gaussians import cut_gaussian, gaussian_of, moments_of
from ckptzoo.hub.imports.tables import Slice
from ckptzoo.hub.untrusted.errors import NoNetworkError
from tests.support.effort import examples

DRAW = np.random.default_rng(0)
SHAPES = {"0.weight": (6, 4), "0.bias": (6,), "2.weight": (3, 6)}
SLICES = (Slice("0.weight", 0, 24, (6, 4)), Slice("0.bias", 24, 30, (6,)), Slice("2.weight", 30, 48, (3, 6)))


def gaussian(kind: str, rename: Any = lambda name: name, **facts: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of a Gaussian as a program keeps them, and its means and deviations."""
    mean, parameter = kind.split("/")
    made: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        values, raw = DRAW.standard_normal(shape), DRAW.standard_normal(shape)
        raw = np.abs(raw) + 0.1 if parameter in ("scale", "sigma", "std") else raw
        module, _, last = name.rpartition(".")
        for word, array in ((mean, values), (parameter, raw)):
            key = rename(name).format(word=word, name=name, module=module, last=last)
            made[key if "{" in rename(name) else f"{name}_{word}"] = array
        deviations = {"rho": np.log1p(np.exp(raw)), "logvar": np.exp(raw / 2), "log_sigma": np.exp(raw)}
        expected |= {name: values, f"{name}_std": deviations.get(parameter, raw)}
    return made, expected


@settings(max_examples=examples(60, 15), deadline=None)
@given(
    kind=st.sampled_from(["loc/scale", "mu/sigma", "mu/rho", "mean/std", "mu/logvar", "mu/log_sigma"]),
    form=st.sampled_from(["{name}_{word}", "{name}.{word}", "guide.{name}_{word}", "{name}_auto_{word}", "plural", "before"]),
    more=st.booleans(),
)  # fmt: skip
def test_two_parameters_of_each_tensor(kind: str, form: str, more: bool) -> None:
    if form == "plural":
        kind, form = "loc/scale", "AutoNormal.{word}s.{name}"
    if form == "before":
        kind, form = "mu/rho", "{module}.{word}_{last}"
    made, expected = gaussian(kind, lambda _: form)
    made |= {"counter": np.array(3)} if more else {}
    found = gaussian_of(made, {}, "a.pt")
    assert found is not None and found.gaussian
    assert set(found.tensors) - {"counter"} == set(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found.tensors[name], array, rtol=1e-12)
    assert not (more and "counter" in made) or "counter" in found.tensors


@pytest.mark.parametrize("value", [0.0, -0.5, np.nan])
@pytest.mark.parametrize("form", ["{name}_{word}", "{name}.{word}", "AutoNormal.{word}s.{name}"])
def test_deviations_that_are_not_positive_are_refused_by_name(value: float, form: str) -> None:
    made, _ = gaussian("loc/scale", lambda _: form)
    name = list(made)[1]
    made[name].flat[0] = value
    with pytest.raises(ZooError, match=f"tensor '{name}': expected standard deviations above 0, got {value:g}"):
        gaussian_of(made, {}, "a.pt")


def test_what_is_not_known_of_a_constraint_is_said() -> None:
    made, _ = gaussian("loc/scale", lambda _: "{name}_{word}")
    unknown = {f"{name}_unconstrained" if name.endswith("_scale") else name: array for name, array in made.items()}
    with pytest.raises(ZooError, match="the value before its constraint, which the file does not name"):
        gaussian_of(unknown, {}, "a.pt")
    facts = {f"constraints.{name}": "_SoftplusPositive(lower_bound=0.0)" for name in made if name.endswith("_scale")}
    found = gaussian_of(made, facts | {"constraints.x": "_Real()"}, "a.pt")
    assert found is not None
    np.testing.assert_allclose(found.tensors["0.bias_std"], np.log1p(np.exp(made["0.bias_scale"])))
    heads = {f"{name}.{last}": np.ones(3) for name in ("fc_mu", "fc_logvar", "enc") for last in ("weight", "bias")}
    assert gaussian_of(heads, {}, "a.pt") is None  # layers of an autoencoder


@settings(max_examples=examples(60, 12), deadline=None)
@given(
    kind=st.sampled_from(["mu/rho", "mu/log_sigma"]),
    beside=st.lists(st.sampled_from(["blitz", "eps", "before", "prior", "norm", "bias"]), unique=True, max_size=3),
)
def test_what_layers_that_draw_their_weights_keep_beside_them(kind: str, beside: list[str]) -> None:
    made, expected = gaussian(kind)
    for name, shape in SHAPES.items():
        module, _, last = name.rpartition(".")
        made |= {
            f"{key}": array
            for word, keys in {
                "blitz": {f"{name}_sampler.{part}": made[f"{name}_{part}"] for part in kind.split("/")}
                | {f"{name}_sampler.eps_w": DRAW.standard_normal(shape)},
                "eps": {f"{name}_eps": DRAW.standard_normal(shape)},
                "before": {f"{module}.eps_{last}": DRAW.standard_normal(shape)},
                "prior": {f"{module}.prior_{last}_mu": np.zeros(shape), f"{module}.prior_{last}_sigma": np.ones(shape)},
            }.items()
            if word in beside
            for key, array in keys.items()
        }
    made |= {"1.weight": np.ones(6), "1.running_var": np.ones(6)} if "norm" in beside else {}
    made |= {"2.bias": np.ones(3)} if "bias" in beside else {}
    if "bias" in beside and kind == "mu/rho":  # of a layer whose weights have deviations
        with pytest.raises(ZooError, match="a mean and a deviation of each tensor"):
            gaussian_of(made, {}, "a.pt")
        return
    found = gaussian_of(made, {}, "a.pt")
    assert found is not None
    if "norm" in beside or "bias" in beside:
        assert not found.gaussian and "kept as they are" in found.note and found.tensors.keys() == made.keys()
        return
    assert found.gaussian and found.tensors.keys() == expected.keys()
    assert ("left out" in found.note) == bool(beside)
    for name, array in expected.items():
        np.testing.assert_allclose(found.tensors[name], array, rtol=1e-12)


@pytest.mark.parametrize("names", ["{}", "AutoDiagonalNormal.{}", "auto_{}"])
def test_vectors_of_all_sites_are_cut_by_the_layout_alone(names: str) -> None:
    mean, deviation = DRAW.standard_normal(48), np.abs(DRAW.standard_normal(48)) + 0.1
    made = {names.format("loc"): mean, names.format("scale"): deviation}
    with pytest.raises(ZooError, match=r"vectors of 48 numbers.*--layout"):
        gaussian_of(made, {}, "a.pt")
    found = moments_of(made, {}, "a.pt")
    assert found is not None
    picked = cut_gaussian(found, SLICES, "a.pt")
    np.testing.assert_allclose(picked.tensors["0.bias_std"], deviation[24:30], rtol=1e-6)
    for more in ("scale_tril", "cov_factor"):
        with pytest.raises(ZooError, match=r"vectors of 48 numbers.*guide.median"):
            gaussian_of({**made, names.format(more): np.eye(48)}, {}, "a.pt")
    unknown = {names.format("loc"): mean, f"{names.format('scale')}_unconstrained": deviation}
    with pytest.raises(ZooError, match="before its constraint"):
        moments_of(unknown, {}, "a.pt")


def moments(kind: str, count: int) -> tuple[dict[str, Any], Any, Any]:
    """The moments of some networks as a program keeps them, their mean, and their deviations as it samples them."""
    networks = DRAW.standard_normal((count, 48)) * 0.1 + DRAW.standard_normal(48)
    mean, squares = networks.mean(0), (networks**2).mean(0)
    last, variance = networks[-4:], networks.var(0)
    half = (variance + np.square(last - mean).sum(0) / 3) / 2
    tensors = {
        "swag": ({"mean": mean, "sq_mean": squares, "cov_mat_sqrt": last - mean}, half),
        "diagonal": ({"mean": mean, "sq_mean": squares}, variance),
        "multiswag": ({"w_avg": mean, "w2_avg": squares, "pre_D": last.T}, half),
        "laplace": ({"mean": mean, "H": squares, "prior_precision": np.array(2.0), "sigma_noise": np.array(0.5)},
                    1 / (squares / 0.25 + 2)),
        "full": ({"mean": mean, "H": np.diag(squares) + 0.01, "prior_precision": np.full(48, 2.0)},
                 np.diag(np.linalg.inv(np.diag(squares) + 0.01 + 2 * np.eye(48)))),
    }[kind]  # fmt: skip
    return *tensors[:1], mean, np.sqrt(tensors[1])


@pytest.mark.parametrize("kind", ["swag", "diagonal", "multiswag", "laplace", "full"])
def test_moments_have_the_deviations_that_their_programs_sample_with(kind: str) -> None:
    tensors, mean, deviation = moments(kind, 9)
    found = moments_of(tensors, {}, "a.pt")
    assert found is not None
    picked = cut_gaussian(found, SLICES, "a.pt")
    assert picked.row["method"] == ("laplace" if kind in ("laplace", "full") else "swag") and picked.note
    for item in SLICES:
        expected = (
            mean[item.start : item.stop].reshape(item.shape),
            deviation[item.start : item.stop].reshape(item.shape),
        )
        np.testing.assert_allclose(picked.tensors[item.name], expected[0], rtol=1e-6)
        np.testing.assert_allclose(picked.tensors[f"{item.name}_std"], expected[1], rtol=1e-5)
    with pytest.raises(NoNetworkError, match="unless --layout says"):
        gaussian_of(tensors, {}, "a.pt")
    with pytest.raises(ZooError, match="means: expected 24 numbers"):
        cut_gaussian(found, SLICES[:1], "a.pt")


def test_a_module_of_swag_keeps_its_buffers() -> None:
    tensors, _, deviation = moments("swag", 9)
    made: dict[str, Any] = {"n_models": np.array([9]), "base.bn.running_mean": np.zeros(3)}
    for item in SLICES:
        for end in ("mean", "sq_mean", "cov_mat_sqrt"):
            array = tensors[end][..., item.start : item.stop]
            made[f"base.{item.name}_{end}"] = array if end == "cov_mat_sqrt" else array.reshape(item.shape)
    found = gaussian_of(made, {}, "a.pt")
    assert found is not None and found.row == {"method": "swag", "extra": {"n_models": 9}}
    assert set(found.tensors) == {*SHAPES, *(f"{name}_std" for name in SHAPES), "bn.running_mean"}
    for item in SLICES:
        np.testing.assert_allclose(found.tensors[f"{item.name}_std"].ravel(), deviation[item.start : item.stop])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sq_mean": np.full(48, -1.0)}, "second moments: expected at least the squares of the means"),
        ({"cov_mat_sqrt": np.ones((4, 7))}, "expected deviations of 48 numbers"),
    ],
)
def test_moments_that_are_none_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ZooError, match=words):
        moments_of(moments("swag", 9)[0] | change, {}, "a.pt")


def test_laplace_of_another_form_is_refused() -> None:
    tensors = moments("laplace", 9)[0]
    for change, words in (
        ({"H": np.full(48, -9.0)}, "positive definite"),
        ({"H": np.ones((48, 2))}, "a diagonal or a matrix"),
        ({"prior_precision": np.ones(3)}, "one number or 48"),
    ):
        with pytest.raises(ZooError, match=words):
            moments_of(tensors | change, {}, "a.pt")
    with pytest.raises(ZooError, match="Kronecker"):
        moments_of({name: array for name, array in tensors.items() if name != "H"}, {}, "a.pt")
