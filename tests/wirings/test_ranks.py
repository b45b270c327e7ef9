"""Real ranks compute the equation: whole decoders at TP 1, 2 and 4, in wirings of one's own drawn at random."""

import random
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ladder_sim.wirings.layout import lay_out
from ladder_sim.wirings.names import OwnWiring, own_wiring
from ladder_sim.wirings.rules import WiringError
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.model.decoder import Decoder
from ladder_sim_runtime.model.dispatch import arrived
from tests.support.ranks import on_ranks
from tests.support.wirings import NEW, equation, lanes_of, rules_of, table, value, weight_of
from tests.support.world import ENGINES, GROUPED, decoder, tokens_of

pytestmark = pytest.mark.torch

SAMPLE = 20
MODEL = replace(GROUPED, layers=4)


def drawn() -> list[OwnWiring]:
    """The new wirings, and some at random that fit the model."""
    numbers = random.Random(51)
    chosen = [own_wiring(tomllib.loads(text), f"{name}.toml") for name, text in NEW.items()]
    while len(chosen) < len(NEW) + SAMPLE:
        rules: list[dict[str, Any]] = []
        for _ in range(numbers.randint(1, 3)):
            choices = {
                "delay": numbers.randint(0, 3),
                "instead": numbers.choice(["own", "nothing"]),
                "reduce": numbers.choice(["sum", "none", "none", "mean"]),
                "percent": numbers.choice([50, 100]),
                "weight": numbers.choice([0.5, -1]),
            }
            keys = {key: value for key, value in choices.items() if numbers.random() < 0.5}
            where = {numbers.choice(["at", "blocks"]): numbers.choice([":", "::2", "1::2", "-1", "::3"])}
            rules.append(where | keys)
        own = own_wiring(table(*rules, head=numbers.choice(["mean", "mean", "own"])), f"mine{len(chosen)}.toml")
        try:
            if any(block.entry != "added" for _, block in lay_out(own, MODEL.layers).blocks):
                chosen.append(own)
        except WiringError:
            continue
    return chosen


def logits(comm: Communicator, variants: list[OwnWiring]) -> list[Tensor]:
    torch.set_num_threads(1)
    model = decoder(MODEL, ENGINES["flash"], comm)
    with torch.inference_mode():
        return [model(tokens_of(MODEL), lay_out(variant, MODEL.layers)) for variant in variants]


def by_equation(models: list[Decoder], variant: OwnWiring) -> list[Tensor]:
    """Logits of every rank, whose shards are all in this process."""
    rules, layers = rules_of(variant, MODEL.layers), lay_out(variant, MODEL.layers)
    reads, lanes, hidden = [equation(rules, channel) for channel in (0, 75)], lanes_of(rules), MODEL.hidden
    tokens_BT = tokens_of(MODEL)
    x_BTD = models[0]._embed(tokens_BT, layers)
    position_T = torch.arange(tokens_BT.shape[1])
    parts: list[list[Tensor]] = []

    def read(block: int, rank: int, lane: str) -> Tensor:
        weights = [weight_of(rule, lane) for rule in rules]
        halves = [x_BTD + value(each[block], parts, rank, weights.__getitem__) for each in reads]
        return torch.cat((halves[0][..., : hidden // 2], halves[1][..., hidden // 2 :]), dim=-1)

    for number, (layer, block) in enumerate(layers.blocks):
        now = []
        for rank, model in enumerate(models):
            step = model._step(slice(0, len(tokens_BT)), position_T, len(position_T), None, None, layers)
            at = model.layers[layer.index]
            norm, _ = at.norms(block.part)
            assert norm is not None
            n_BTD = norm(read(number, rank, block.lane))
            now.append(arrived(at(block, n_BTD, step, None, model.comm.exchange)))
        parts.append(now)
    ends = [sum(read(len(rules), rank, lane) for lane in lanes) / len(lanes) for rank in range(len(models))]
    if layers.head == "mean":
        ends = [sum(ends) / len(ends)] * len(ends)
    return [model._logits(model.norm(end)) for model, end in zip(models, ends, strict=True)]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_compute_the_equation(size: int, tmp_path: Path) -> None:
    variants = drawn()
    everywhere = on_ranks(size, tmp_path, logits, variants)
    models = []
    for rank in range(size):
        comm = Communicator(size)
        comm.rank = rank
        models.append(decoder(MODEL, ENGINES["flash"], comm))
    with torch.inference_mode():
        for number, variant in enumerate(variants):
            for rank, wanted in enumerate(by_equation(models, variant)):
                got = everywhere[rank][number]
                torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5, msg=f"{variant} rank {rank}")
