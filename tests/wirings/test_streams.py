"""The runtime's residual stream computes the equation, with gradients, on random wiring files."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ladder_sim.wirings.layout import lay_out
from ladder_sim_runtime.comm.base import DONE, Communicator, Handle
from ladder_sim_runtime.config import EngineConfig
from ladder_sim_runtime.model.dispatch import arrived
from ladder_sim_runtime.model.residual import ResidualStream
from tests.support.wirings import WEIGHTS, equation, files, lanes_of, own, rules_of, value

pytestmark = pytest.mark.torch

HIDDEN, TOKENS = 16, 3
FUSED = EngineConfig(fused_residual_add=True, fused_ladder_add=True)
ENGINES = st.sampled_from([EngineConfig(), FUSED])


class Lockstep(ResidualStream):
    """The stream of one of several ranks in this process, which come to every collective in turn."""

    sums: list[list[Tensor]]

    def _sum(self, x: Tensor, *, blocking: bool) -> tuple[Handle, Callable[[], Tensor]]:
        mine = self.sums[self.count] if self.count < len(self.sums) else []
        if not mine:
            self.sums.append(mine)
        self.count += 1
        mine.append(x.clone())
        return DONE, lambda: torch.stack(mine).sum(0)

    def _add_norm(self, norm: Any, y_BTD: Tensor) -> tuple[Tensor, Tensor]:
        x_BTD = self.x_BTD + y_BTD
        return x_BTD, norm(x_BTD)

    count = 0


def normed(x_BTD: Tensor) -> Tensor:
    """The runtime's own norm works in place, where gradients cannot follow."""
    return nn.functional.rms_norm(x_BTD, x_BTD.shape[-1:])


class Toy:
    """Blocks of a model with one token mixer, and what learns: one matrix a block and rank, and weights of lanes."""

    def __init__(self, variant: str, layers: int, ranks: int) -> None:
        self.wiring, self.rules = lay_out(variant, layers), rules_of(variant, layers)
        self.ranks, self.lanes = ranks, lanes_of(self.rules)
        draw = torch.Generator().manual_seed(0)
        self.x = torch.randn(1, TOKENS, HIDDEN, generator=draw).requires_grad_()
        shape = (len(self.rules), ranks, HIDDEN, HIDDEN)
        self.matrices = (torch.randn(shape, generator=draw) / HIDDEN**0.5).requires_grad_()
        self.learned = torch.linspace(0.5, 1.5, len(self.rules) * len(self.lanes)).requires_grad_()
        self.norm: Any = normed

    def weights(self, block: int) -> list[Tensor]:
        """What is learned of a block, lane by lane."""
        each = len(self.lanes)
        return [self.learned[block * each + lane] for lane in range(each)]

    def part(self, block: int, rank: int, n: Tensor) -> Tensor:
        return torch.tanh(n @ self.matrices[block, rank])

    def by_stream(self, engine: EngineConfig) -> list[Tensor]:
        """What the LM head of each rank reads."""
        sums: list[list[Tensor]] = []
        streams = [Lockstep(self.x, Communicator(self.ranks), engine, self.wiring.lanes) for _ in range(self.ranks)]
        for stream in streams:
            stream.sums = sums
        for step in self.wiring.steps:
            read = [arrived(stream.read(self.norm, step)) for stream in streams]
            for rank, stream in enumerate(streams):
                stream.write(self.part(step.number, rank, read[rank]), step, learned=self.weights(step.number))
        for stream in streams:
            stream.merge(self.wiring)
        return [arrived(stream.read(self.norm)) for stream in streams]

    def by_equation(self) -> list[Tensor]:
        """The same, without layouts."""
        parts: list[list[Tensor]] = []
        for block, (rule, read) in enumerate(zip(self.rules, self.reads, strict=False)):
            now = [self.lane(rule.lane, read, parts, rank) for rank in range(self.ranks)]
            parts.append([self.part(block, rank, self.norm(x)) for rank, x in enumerate(now)])
        every = [[self.lane(lane, self.reads[-1], parts, rank) for lane in self.lanes] for rank in range(self.ranks)]
        ends = [torch.stack(each).mean(0) for each in every]
        if self.wiring.head == "mean":
            ends = [torch.stack(ends).mean(0)] * self.ranks
        return [self.norm(end) for end in ends]

    @property
    def reads(self) -> list[Any]:
        """What each block reads in the first half of the channels, and in the second."""
        return list(zip(equation(self.rules, 0), equation(self.rules, 75), strict=True))

    def lane(self, lane: str, read: Any, parts: list[list[Tensor]], rank: int) -> Tensor:
        at = self.lanes.index(lane)

        def weight(block: int) -> Tensor | float:
            given = self.rules[block].weight
            given = given.get(lane, 0) if isinstance(given, dict) else given
            return self.weights(block)[at] if given == "learned" else given

        first, second = (self.x + value(half, parts, rank, weight) for half in read)
        return torch.cat((first[..., : HIDDEN // 2], second[..., HIDDEN // 2 :]), dim=-1)


def check(variant: str, layers: int, ranks: int, engine: EngineConfig) -> None:
    toy = Toy(variant, layers, ranks)
    results = []
    for ends in (toy.by_stream(engine), toy.by_equation()):
        loss = sum((end * torch.linspace(-1, 1, HIDDEN)).square().sum() for end in ends)
        assert isinstance(loss, Tensor)
        gradients = torch.autograd.grad(loss, [toy.x, toy.matrices, toy.learned], allow_unused=True)
        results.append([*ends, *gradients])
    for got, wanted in zip(*results, strict=True):
        # what has no part in the loss has no gradient, or one of zeros
        got, wanted = (torch.zeros(()) if each is None else each for each in (got, wanted))
        assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-5), (got, wanted)


@given(files(), st.sampled_from([1, 2, 4]), ENGINES)
def test_streams_compute_the_equation(case: tuple[str, int], ranks: int, engine: EngineConfig) -> None:
    check(*case, ranks, engine)


@given(files(WEIGHTS), st.sampled_from([1, 2, 4]), ENGINES)
def test_streams_of_two_lanes_compute_the_equation(case: tuple[str, int], ranks: int, engine: EngineConfig) -> None:
    check(*case, ranks, engine)


def test_one_rank_has_an_open_output_before_the_sum_that_carries_it() -> None:
    rules = ({"blocks": "0", "reduce": "none"}, {"blocks": "1:3", "delay": 2}, {"blocks": "2", "reduce": "none"})
    for ranks in (1, 2):
        check(own(*rules), 2, ranks, FUSED)
