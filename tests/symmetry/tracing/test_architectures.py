"""Small random configurations of published architectures: all trace, and disguises have one canonical form.

Needs transformers, timm and torchvision, the extra ``architectures``.
"""

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.architectures import SMALL, measured, torchvision_models
from ckptzoo.symmetry import apply, count, trace
from ckptzoo.symmetry.element import GroupElement

ROOT = Path(__file__).resolve().parents[3]
LARGE = "torchvision efficientnet_b0"
LIBRARIES = ("timm", "torchvision", "transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
needs_libraries = pytest.mark.skipif(
    any(find_spec(name) is None for name in LIBRARIES), reason="needs the extra architectures"
)


def cases(*names: str) -> list[object]:
    """Names of networks; those of other libraries are left out where these are not installed."""
    return [pytest.param(name, marks=needs_libraries if name.startswith(LIBRARIES) else ()) for name in names]


@pytest.mark.parametrize("name", cases(*(name for name in SMALL if name != LARGE)))
@pytest.mark.sampled(8)
def test_counts_and_canonical_forms_are_those_of_the_page(name: str) -> None:
    row = measured(name)
    page = (ROOT / "docs" / "architectures.md").read_text()
    (line,) = re.findall(rf"^\| {re.escape(name)} \|.*$", page, re.MULTILINE)
    # The last cell is a rounding error, which machines do not share.
    assert [cell.strip() for cell in line.strip("|").split("|")][:-1] == list(row.cells[:-1])
    assert row.apart <= 1e-11


@needs_libraries
def test_eager_and_fused_attention_have_one_table() -> None:
    for name in ("GPT2", "Llama", "Bert"):
        tables: list[list[tuple]] = []
        for attention in ("eager", "sdpa"):
            torch.manual_seed(0)
            table = trace(*SMALL[f"transformers {name}, {attention}"]()).symmetry
            tables.append([(action.tensor, action.axis, action.exponent, action.segments) for action in table.actions])
        assert tables[0] == tables[1]


@needs_libraries
def test_llama_keeps_its_outputs_with_other_weights() -> None:
    """What the verification does, with other elements, weights and tokens."""
    torch.manual_seed(1)
    module, example = SMALL["transformers Llama, sdpa"]()
    table = trace(module, example).symmetry
    module = module.double()
    stack = {name: value.numpy()[None] for name, value in module.state_dict().items()}
    tokens = torch.randint(0, 40, (3, 9))
    with torch.no_grad():
        expected = module(input_ids=tokens).logits
        for seed in range(3):
            element = GroupElement.random(table, 1, np.random.default_rng(seed), spread=0.3)
            moved = {name: torch.from_numpy(value[0]) for name, value in apply(element, stack, table).items()}
            found = torch.func.functional_call(module, moved, (), {"input_ids": tokens}).logits
            # transformers computes norms and angles in float32.
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@needs_libraries
def test_a_tied_embedding_keeps_signs_and_permutations() -> None:
    torch.manual_seed(0)
    module, example = SMALL["transformers Llama, sdpa"]()
    module.lm_head.weight = module.model.embed_tokens.weight
    traced = trace(module, example)
    tied = {tensor.name: tensor.aliases for tensor in traced.architecture.tensors if tensor.aliases}
    assert tied == {"lm_head.weight": ("model.embed_tokens.weight",)} or tied == {
        "model.embed_tokens.weight": ("lm_head.weight",)
    }
    # The last norm's gain cannot be folded into the head, which is the embedding: it has no scale.
    assert traced.symmetry[traced.symmetry.groups[0].id].n == 16
    assert not any(group.resizes for group in traced.symmetry.groups if group.id.endswith("model.norm"))
    assert traced.worst < 1e-9


@needs_libraries
def test_efficientnet() -> None:
    traced = trace(torchvision_models().efficientnet_b0(), torch.randn(2, 3, 32, 32))
    assert round(count(traced.symmetry).log10_permutations, 2) == 27049.63
    assert traced.worst < 1e-9
