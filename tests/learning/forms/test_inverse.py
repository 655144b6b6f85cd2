"""Every form gives back the tensors it took, bit for bit, and refuses what is none of its own."""

from multiprocessing.reduction import ForkingPickler

import ml_dtypes
import numpy as np
import pytest
import torch

from ckptzoo import archs
from ckptzoo.errors import SymmetryError, ZooError
from ckptzoo.learning.forms import NAMES, FlatForm, GraphForm, TokensForm, TuplesForm, form_of
from ckptzoo.loader.torch import tensor_of
from ckptzoo.schema.architecture import Architecture, Tensor

FLOATS = {"float16": np.uint16, "bfloat16": np.uint16, "float32": np.uint32, "float64": np.uint64}
FORMS = {
    "flat": FlatForm,
    "tokens": TokensForm,
    "tokens of 7": lambda arch: TokensForm(arch, 7),
    "graph": lambda arch: GraphForm(arch, archs.symmetry(arch.forward)),
    "tuples of nfn": TuplesForm,
    "tuples of DWSNets": lambda arch: TuplesForm(arch, "dwsnets"),
}
NETWORKS = "mlp-5-4-3", "optunet", "optunet-4-3-2-8-3-2-6", "resnet18-4-10", "resnet8-pad-10"
CASES = [(form, name) for form in FORMS for name in NETWORKS if name == "mlp-5-4-3" or not form.startswith("tuples")]


def any_bits(arch, dtype, B=3):
    """Tensors of any bits, NaN among them; small counters."""
    rng = np.random.default_rng(0)
    made = {}
    for tensor in arch.tensors:
        shape = (B, *tensor.shape)
        if "float" in tensor.dtype:
            bits = FLOATS[dtype]
            made[tensor.name] = rng.integers(0, np.iinfo(bits).max, shape, bits).view(
                ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
            )
        else:
            made[tensor.name] = rng.integers(0, 99, shape).astype(tensor.dtype)
    return made


def bits_of(array):
    if isinstance(array, torch.Tensor):
        array = array.view(torch.int16).numpy() if array.dtype == torch.bfloat16 else array.numpy()
    return np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("form", "name"), CASES)
def test_decoding_gives_the_same_bits(form, name, dtype, framework):
    arch = archs.architecture(name)
    made = FORMS[form](arch)
    weights = any_bits(arch, dtype)
    if framework == "torch":
        weights = {key: tensor_of(value) for key, value in weights.items()}
    for again in (made, ForkingPickler.loads(ForkingPickler.dumps(made))):
        found = again.decode(again.encode(weights))
        assert list(found) == list(arch.names)
        for key, value in weights.items():
            assert found[key].dtype == value.dtype
            assert tuple(found[key].shape) == tuple(value.shape)
            assert bits_of(found[key]) == bits_of(value), key


@pytest.mark.parametrize("name", NAMES)
def test_gradients_pass(name):
    arch = archs.architecture("mlp-4-3-2")
    form = form_of(name, arch, archs.symmetry(arch.forward))
    weights = {tensor.name: torch.ones(2, *tensor.shape, requires_grad=True) for tensor in arch.tensors}
    sum(value.sum() for value in form.decode(form.encode(weights)).values()).backward()
    assert all(torch.equal(value.grad, torch.ones_like(value)) for value in weights.values())


@pytest.mark.parametrize("name", NAMES)
def test_other_tensors_are_refused(name):
    arch = archs.architecture("mlp-4-3-2")
    form = form_of(name, arch, archs.symmetry(arch.forward))
    weights = any_bits(arch, "float32")
    with pytest.raises(ZooError, match=r"'fc2.bias': expected it, got none\. Pass all tensors"):
        form.encode({key: value for key, value in weights.items() if key != "fc2.bias"})
    with pytest.raises(ZooError, match=r"'fc1.weight': expected shape \(3, 3, 4\), got \(3, 4, 3\)\. Pass stacked"):
        form.encode({**weights, "fc1.weight": weights["fc1.weight"].swapaxes(1, 2)})
    with pytest.raises(ZooError, match=r"'fc2.bias': expected shape \(3, 2\), got \(2, 2\)"):
        form.encode({**weights, "fc2.bias": weights["fc2.bias"][:2]})
    with pytest.raises(ZooError, match=r"'fc3.bias': expected a tensor of the architecture, got another\. Leave"):
        form.encode({**weights, "fc3.bias": weights["fc2.bias"]})


@pytest.mark.parametrize("name", ["flat", "tokens", "graph"])
def test_dtypes_that_one_array_does_not_hold_are_refused(name):
    arch = archs.architecture("resnet8-pad-10")
    form = form_of(name, arch, archs.symmetry(arch.forward))
    weights = any_bits(arch, "float32")
    with pytest.raises(ZooError, match=r"one for all floating tensors, got float32, float64\. Convert"):
        form.encode({**weights, "conv1.weight": np.ones((3, *arch["conv1.weight"].shape))})
    counter = next(key for key in weights if key.endswith("num_batches_tracked"))
    form.encode({**weights, counter: np.full(3, 2**24)})
    with pytest.raises(ZooError, match=r"integers up to 16777216, which float32 holds, got greater ones\. Convert"):
        form.encode({**weights, counter: np.full(3, 2**24 + 1)})


def test_other_encodings_are_refused():
    arch = archs.architecture("mlp-4-3-2")
    with pytest.raises(ZooError, match=r"expected shape \(B, 23\), got \(2, 22\)\. Decode what"):
        FlatForm(arch).decode(np.ones((2, 22)))
    with pytest.raises(ZooError, match=r"tokens: expected shape \(B, 5, 5\), got \(2, 5, 4\)"):
        TokensForm(arch).decode(np.ones((2, 5, 4)))
    with pytest.raises(ZooError, match=r"layers: expected 2, got 1"):
        TuplesForm(arch).decode(([np.ones((2, 1, 3, 4))], [np.ones((2, 1, 3))]))
    with pytest.raises(ZooError, match=r"edge_attr: expected shape \(B, 18, 1\), got \(2, 17, 1\)"):
        GraphForm(arch, archs.symmetry("mlp-4-3-2")).decode((np.ones((2, 9, 1)), np.ones((2, 17, 1))))


def test_forms_that_do_not_exist_are_refused():
    arch = archs.architecture("mlp-4-3-2")
    with pytest.raises(ZooError, match=r"expected one of flat, tokens, tuples, graph, got 'set'\. Choose"):
        form_of("set", arch, None)
    with pytest.raises(SymmetryError, match=r"expected one, from which .* got none\. Trace the module"):
        form_of("graph", arch, None)
    with pytest.raises(ZooError, match=r"tensor behind 'conv1.weight': expected the bias .* Use the form \"graph\""):
        form_of("tuples", archs.architecture("optunet"), None)
    with pytest.raises(ZooError, match=r"'bn.weight': expected a weight of 2 or 4 axes"):
        TuplesForm(Architecture("normalised", (Tensor("bn.weight", (4,)), Tensor("bn.bias", (4,)))))
    with pytest.raises(ZooError, match=r"'conv.weight': expected a weight of 2 axes, got shape \(4, 1, 3, 3\)"):
        TuplesForm(Architecture("cnn", (Tensor("conv.weight", (4, 1, 3, 3)), Tensor("conv.bias", (4,)))), "dwsnets")
    with pytest.raises(ZooError, match=r"layout: expected 'nfn' or 'dwsnets', got 'other'"):
        TuplesForm(arch, "other")
    with pytest.raises(ZooError, match=r"token_size: expected an integer from 1, or None, got 0"):
        TokensForm(arch, 0)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize(("form", "name"), CASES)
def test_no_checkpoints_are_encoded_and_decoded(form, name, framework):
    arch = archs.architecture(name)
    weights = any_bits(arch, "float32", B=0)
    if framework == "torch":
        weights = {key: tensor_of(value) for key, value in weights.items()}
    made = FORMS[form](arch)
    found = made.decode(made.encode(weights))
    assert list(found) == list(weights)
    assert all(found[key].shape == value.shape and found[key].dtype == value.dtype for key, value in weights.items())
