"""Tensor-parallel forward passes against the equations, with real gloo ranks."""

import functools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from runtime.checkpoint.weights import fill, random_weights
from runtime.comm.base import Alone
from runtime.config import ModelConfig
from runtime.model.decoder import Decoder
from runtime.model.wiring import lay_out
from tests.support.reference import reference_logits, tensor_shapes
from tests.support.world import (
    ENGINES,
    GROUPED,
    MODELS,
    TRAINED,
    VARIANTS,
    Case,
    World,
    cases,
    loss,
    run_world,
    tokens_of,
)

pytestmark = pytest.mark.torch

DEGREES = (1, 2, 4)
SAME_EVERYWHERE = ("standard", "parallel", "ladder", "hybrid-ladder:1")


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, World]:
    return {size: run_world(size, tmp_path_factory.mktemp(f"tp{size}")) for size in DEGREES}


def full_weights(config: ModelConfig) -> dict[str, Tensor]:
    source = random_weights(seed=1)
    return {name: source(name, shape) for name, shape in tensor_shapes(config).items()}


@functools.cache
def expected(model: str, variant: str, ranks: int) -> list[Tensor]:
    config = MODELS[model]
    weights = {name: weight.double() for name, weight in full_weights(config).items()}
    return [logits.float() for logits in reference_logits(config, weights, tokens_of(config), variant, ranks)]


@pytest.mark.parametrize("size", DEGREES)
@pytest.mark.parametrize("case", list(cases()), ids="-".join)
def test_logits_are_the_equations(worlds: dict[int, World], case: Case, size: int) -> None:
    """Of every rank; with and without a cache. Ranks that never meet differ, each as its own residual says."""
    for rank, reference in enumerate(expected(case.model, case.variant, size)):
        for how, logits in worlds[size].logits[rank][case].items():
            torch.testing.assert_close(
                logits, reference, rtol=1e-5, atol=1e-5, msg=lambda text, how=how: f"{how}: {text}"
            )


@pytest.mark.parametrize("variant", SAME_EVERYWHERE)
def test_the_degree_does_not_change_the_model(worlds: dict[int, World], variant: str) -> None:
    case = Case("grouped", "flash", variant)
    alone = worlds[1].logits[0][case]["cached"]
    for size in DEGREES:
        for rank in range(size):
            torch.testing.assert_close(worlds[size].logits[rank][case]["cached"], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", ["desync:2", "desync:3", "upper-bound"])
def test_one_rank_has_nothing_to_leave_out(worlds: dict[int, World], variant: str) -> None:
    logits = worlds[1].logits[0]
    standard = logits[Case("grouped", "flash", "standard")]["cached"]
    assert torch.equal(logits[Case("grouped", "flash", variant)]["cached"], standard)


def test_the_variants_are_different_models(worlds: dict[int, World]) -> None:
    """Guards the tests above: wirings that did the same would pass them."""
    logits = [worlds[2].logits[0][Case("grouped", "flash", variant)]["cached"] for variant in VARIANTS]
    for i, one_BTV in enumerate(logits):
        assert all((one_BTV - other_BTV).abs().max() > 1e-2 for other_BTV in logits[:i])


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("variant", "engine"), TRAINED)
def test_gradients_are_the_equations(worlds: dict[int, World], variant: str, engine: str, size: int) -> None:
    """The autograd of the unsharded equations, cut like the weights."""
    weights = {name: weight.double().requires_grad_() for name, weight in full_weights(GROUPED).items()}
    loss(reference_logits(GROUPED, weights, tokens_of(GROUPED), variant, ranks=1)[0]).backward()
    grads = {name: weight.grad for name, weight in weights.items()}
    for rank in range(size):
        comm = Alone(size)
        comm.rank = rank
        cut = Decoder(GROUPED, ENGINES[engine], comm, positions=1)
        fill(cut, lambda name, shape: grads[name].float().reshape(shape))
        gradients = worlds[size].gradients[rank][variant, engine]
        for name, gradient in cut.named_parameters():
            torch.testing.assert_close(gradients[name], gradient.detach(), rtol=1e-4, atol=1e-5)


def test_math_attention_masks_the_rest_of_the_cache() -> None:
    """Regression guard: what an earlier request left in the cache beyond the context must not show."""
    config = replace(GROUPED, layers=1)
    model = Decoder(config, ENGINES["math"], Alone(), positions=16)
    fill(model, random_weights(seed=1))
    with torch.inference_mode():
        clean, dirty = model.cache(2), model.cache(2) + 7.0
        wiring = lay_out("standard", 1)
        assert torch.equal(model(tokens_of(config), wiring, cache=clean), model(tokens_of(config), wiring, cache=dirty))
