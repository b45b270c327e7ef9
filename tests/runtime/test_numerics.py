"""Tensor-parallel forward passes against the equations, with real gloo ranks."""

import functools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ladder_sim.wirings.layout import lay_out
from ladder_sim_runtime.checkpoint.weights import fill, random_weights
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.model import kernels
from ladder_sim_runtime.model.decoder import Decoder
from tests.support.reference import full_weights, reference_logits
from tests.support.world import (
    ENGINES,
    GROUPED,
    MODELS,
    OTHERS,
    SAME_AS,
    SAME_EVERYWHERE,
    VARIANTS,
    WHOLE,
    Case,
    World,
    cases,
    engine_of,
    run_world,
    tokens_of,
)

pytestmark = pytest.mark.torch

DEGREES = (1, 2, 4)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, World]:
    return {size: run_world(size, tmp_path_factory.mktemp(f"tp{size}")) for size in DEGREES}


@functools.cache
def expected(model: str, variant: str, ranks: int, ep: int) -> list[Tensor]:
    config = MODELS[model]
    weights = full_weights(config)
    return [logits.float() for logits in reference_logits(config, weights, tokens_of(config), variant, ranks, ep)]


@pytest.mark.parametrize(("size", "case"), [(size, case) for size in DEGREES for case in cases(size)])
def test_logits_are_the_equations(worlds: dict[int, World], size: int, case: Case) -> None:
    """Of every rank; with and without a cache. Ranks that never meet differ, each as its own residual says."""
    for rank, reference in enumerate(expected(case.model, case.variant, size, engine_of(case, size).ep)):
        for how, logits in worlds[size][rank][case].items():
            torch.testing.assert_close(
                logits, reference, rtol=1e-5, atol=1e-5, msg=lambda text, how=how: f"{how}: {text}"
            )


@pytest.mark.parametrize(
    "case",
    [
        *(Case("grouped", "flash", variant) for variant in SAME_EVERYWHERE),
        *(Case(model, "distributed", variant) for variant in SAME_EVERYWHERE for model in ("experts", "latent")),
        *(Case("behind", "flash", variant) for variant in WHOLE),
    ],
)
def test_the_degree_does_not_change_the_model(worlds: dict[int, World], case: Case) -> None:
    alone = worlds[1][0][case]["cached"]
    for size in DEGREES:
        for rank in range(size):
            torch.testing.assert_close(worlds[size][rank][case]["cached"], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "variant",
    [
        *("desync:2", "desync:3", "upper-bound"),
        *("delayed:1", "delayed:2", "track:2", "drop:1", "partial:50", "farskip:own"),
    ],
)
def test_one_rank_has_nothing_to_leave_out(worlds: dict[int, World], variant: str) -> None:
    logits = worlds[1][0]
    standard = logits[Case("grouped", "flash", "standard")]["cached"]
    assert torch.equal(logits[Case("grouped", "flash", variant)]["cached"], standard)


def test_the_variants_are_different_models(worlds: dict[int, World]) -> None:
    """Guards the tests above: wirings that did the same would pass them."""
    variants = [variant for variant in (*VARIANTS, *OTHERS) if variant not in SAME_AS]
    logits = [worlds[2][0][Case("grouped", "flash", variant)]["cached"] for variant in variants]
    for i, one_BTV in enumerate(logits):
        assert all((one_BTV - other_BTV).abs().max() > 1e-2 for other_BTV in logits[:i])


@pytest.mark.parametrize("size", DEGREES)
@pytest.mark.parametrize("variant", SAME_AS)
def test_some_variants_are_others(worlds: dict[int, World], variant: str, size: int) -> None:
    """Bit for bit."""
    for logits in worlds[size]:
        ours, theirs = (logits[Case("grouped", "flash", name)] for name in (variant, SAME_AS[variant]))
        assert all(torch.equal(ours[how], theirs[how]) for how in ours)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_expert_of_every_token_is_an_mlp(variant: str) -> None:
    sparse = replace(GROUPED, experts=1, experts_per_token=1, expert_intermediate=GROUPED.intermediate)
    tokens_BT, wiring = tokens_of(GROUPED), lay_out(variant, GROUPED.layers)
    logits = []
    for config in (GROUPED, sparse):
        model, source = (
            Decoder(config, ENGINES["flash"], Communicator(), positions=tokens_BT.shape[1]),
            random_weights(seed=1),
        )
        fill(model, lambda name, shape, source=source: source(name.replace("experts.0.", ""), shape))
        with torch.inference_mode():
            logits.append(model(tokens_BT, wiring))
    torch.testing.assert_close(*logits, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("model", ["latent", "direct"])
@pytest.mark.parametrize("engine", ["flash", "math"])
def test_a_decode_step_of_latent_attention_is_a_prefill_s_last_token(model: str, engine: str) -> None:
    """The absorbed form computes what the expanded one does, over the same cache."""
    config, wiring = MODELS[model], lay_out("standard", MODELS[model].layers)
    decoder, tokens_BT = Decoder(config, ENGINES[engine], Communicator(), positions=16), tokens_of(config)
    fill(decoder, random_weights(seed=1))
    last = tokens_BT.shape[1] - 1
    with torch.inference_mode():
        expanded, absorbed = decoder.cache(len(tokens_BT)), decoder.cache(len(tokens_BT))
        logits = decoder(tokens_BT, wiring, cache=expanded)[:, -1:]
        decoder(tokens_BT[:, :-1], wiring, cache=absorbed)
        now = {"position_T": torch.tensor([last]), "context": last + 1}
        step = decoder(tokens_BT[:, -1:], wiring, cache=absorbed, **now)
    torch.testing.assert_close(step, logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(absorbed, expanded, rtol=1e-5, atol=1e-5)


def test_gated_activations_leave_what_they_read() -> None:
    features_BTN = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    gate_BTI, up_BTI = features_BTN.chunk(2, dim=-1)
    for name, function in kernels.ACTIVATIONS.items():
        read_BTN = features_BTN.clone()
        assert torch.equal(kernels.activate(read_BTN, name, True), function(gate_BTI) * up_BTI)
        assert torch.equal(read_BTN, features_BTN)


def test_math_attention_masks_the_rest_of_the_cache() -> None:
    """Regression guard: what an earlier request left in the cache beyond the context must not show."""
    config = replace(GROUPED, layers=1)
    model = Decoder(config, ENGINES["math"], Communicator(), positions=16)
    fill(model, random_weights(seed=1))
    with torch.inference_mode():
        clean, dirty = model.cache(2), model.cache(2) + 7.0
        wiring = lay_out("standard", 1)
        assert torch.equal(model(tokens_of(config), wiring, cache=clean), model(tokens_of(config), wiring, cache=dirty))
