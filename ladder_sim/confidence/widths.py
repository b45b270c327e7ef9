"""Half-widths of intervals: from errors of single ops, and for what no end-to-end run has checked."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ladder_sim.closed_loop.checks import ServingCheck
from ladder_sim.des.shared import Number
from ladder_sim.simulate.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Half-widths of one variant's 90 % intervals, in the logarithm; of many configurations each is an array."""

    rate: float
    """Of its throughput."""
    speedup: float
    """Of its speedup over standard."""
    ttft: float
    """Of its time to first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """What a part of a scenario adds to errors if no prediction of it was compared with end-to-end runs.

    90 % intervals as a fraction either way.
    """

    kernels: Number = 0.0
    """Of the time of all kernels together."""
    collectives: Number = 0.0
    """Of the time of all collectives together."""


# Stack: nine tenths of the times per token that vLLM and TensorRT-LLM took on H100 lie within 19 % of a static batch's
# with the prefills between its steps (servings in aiconfigurator-core 0.12.0, systems/silicon_sample.csv); prefills of
# vLLM without all-reduces come out up to 13 % short, and its all-reduces up to 48 % long (TokenWeave's figure 11,
# github.com/microsoft/tokenweave); of what a small all-reduce takes, more than half is a launch that is assumed.
# tests/confidence/test_unchecked.py holds the intervals against these runs.
# Layers: half-widths from one model with experts would have to be 12 % (vLLM), 23 % (SGLang) and 3 % (TensorRT-LLM)
# wider to hold nine tenths of the rows of the other; with this and another family 92 to 100 % lie inside
# (`python -m tools.profiles.serving_fit serving_moe.csv`).
# Wiring: nine tenths of 33 gains of other wirings on one machine are missed by at most 6 %, where collectives take a
# third to a half of the time (docs/crosscheck.md).
# Experts in a format that was not measured on the GPU: gpt-oss-120b in MXFP4 on A100s, unpacked as w4a16, took 1.9 to
# 3.1 times as long as predicted on 1 to 4 GPUs (vllm-project/vllm#22331).
# Technique: nine tenths of the gains that were measured are missed by at most 13 % (docs/versus.md), where collectives
# take a third of the time.
# The others are judgement. GPU: nine tenths of 46 servings on H200 (SGLang, same file) lie within 34 %, and other
# generations are further from the GPU that was checked. Links: the formula misses logs of other fabrics by up to
# 64 % (docs/catalog.md), most by less than half. Model family: the same tables at other sizes, other small kernels;
# servings of Qwen3 and of Llama are missed alike. Plan: experts and messages of other shapes. Sizes outside the runs'
# range: the same tables at other shapes; start-up and skew of collectives were fitted at the runs' degrees. Precision:
# fp8 kernels of two engines differ by twice at a few rows, where GEMMs are half of a step.
UNCHECKED: Mapping[str, Unchecked] = {
    "stack": Unchecked(kernels=0.25, collectives=0.75),
    "wiring": Unchecked(kernels=0.05, collectives=0.2),
    "technique": Unchecked(kernels=0.1, collectives=0.4),
    "gpu": Unchecked(kernels=0.35),
    "links": Unchecked(collectives=0.5),
    "layers": Unchecked(kernels=0.2),
    "model_family": Unchecked(kernels=0.1),
    "precision": Unchecked(kernels=0.15),
    "experts": Unchecked(kernels=2.4),
    "plan": Unchecked(kernels=0.1, collectives=0.25),
    "model_size": Unchecked(kernels=0.1),
    "tp": Unchecked(collectives=0.25),
    "batch": Unchecked(kernels=0.1),
    "prompt": Unchecked(kernels=0.1),
    "gen": Unchecked(kernels=0.1),
}

# Of the variance of errors of times per token, what two plans of one model, GPU, engine and load share: 90 % of
# 756 ratios of measured servings (serving_dense.csv, serving_moe.csv) lie in intervals with it, 91 % of those of dense
# models and 89 % of those with experts. With none in common it would be 97 %, with all of it 72 %.
SHARED_BY_PLANS = 0.5


def unchecked(parts: Collection[str]) -> Unchecked:
    """What several parts add together."""
    return Unchecked(
        kernels=math.hypot(*(float(UNCHECKED[part].kernels) for part in parts)),
        collectives=math.hypot(*(float(UNCHECKED[part].collectives) for part in parts)),
    )


def hypot(*widths: Number) -> Any:
    """Add half-widths in quadrature."""
    if np.ndarray in set(map(type, widths)):
        return np.sqrt(sum(np.square(width) for width in widths))
    return math.hypot(*widths)


def log1p(width: Number) -> Any:
    """The half-width in the logarithm, from one as a fraction."""
    return np.log1p(width) if isinstance(width, np.ndarray) else math.log1p(width)


def by_op(request: Request, standard: Request) -> Widths:
    """Of single ops, to first order along the critical path.

    An error of one kind of op is one error: shared by every layer and by both variants, so that most of it cancels in a
    speedup. Those of different kinds are independent.
    """
    share, base = (
        {kind: error / each.request_s for kind, error in each.path.errors_s.items()} for each in (request, standard)
    )
    apart = (share.get(kind, 0.0) - base.get(kind, 0.0) for kind in share | base)
    rate = log1p(hypot(*share.values()))
    return Widths(rate=rate, speedup=log1p(hypot(*apart)), ttft=rate)


def by_unchecked(request: Request, standard: Request, parts: Unchecked) -> Widths:
    """Of some parts of a scenario, to first order.

    What errs in both variants alike cancels in a speedup: an error counts as far as they differ.
    """
    kernels, collectives = parts.kernels, parts.collectives
    (seconds, exposed_s), (base_s, base_exposed_s) = (
        (each.request_s, each.path.exposed_comm_s) for each in (request, standard)
    )
    share = request.path.collectives_s / seconds
    # a collective that ladder hides may be on the critical path, next to kernels; shorter, it would gain nothing
    waiting = hypot(kernels, collectives) * (base_exposed_s / base_s - exposed_s / seconds)
    computing = kernels * (1.0 - (seconds - exposed_s) / (base_s - base_exposed_s))
    rate = log1p(hypot(kernels * (1.0 - share), collectives * share))
    return Widths(rate=rate, speedup=log1p(hypot(waiting, computing)), ttft=rate)


def by_own_algorithms(request: Request, other: Request, parts: Collection[str] = ("stack",)) -> float:
    """Of a ratio: the error of collectives that the first request runs longer, with parts that were not compared."""
    own_s, others_s = (_algorithms(each) for each in (request, other))
    apart_s = math.fsum(max(0.0, seconds - others_s.get(name, 0.0)) for name, seconds in own_s.items())
    exposed = request.breakdown.exposed_comm_s / float(request.request_s)
    collectives = float(unchecked(parts).collectives)
    return math.log1p(collectives * exposed * apart_s / (math.fsum(own_s.values()) or 1.0))


def by_own_plan(request: Request, other: Request, parts: Collection[str]) -> float:
    """Of a ratio of two plans: what the first request errs by on its own, in parts that were not compared.

    Its collectives as far as it runs them longer, and its kernels where no run had such a plan.
    """
    kernels = float(UNCHECKED["plan"].kernels) if "plan" in parts else 0.0
    share = request.breakdown.collectives_s / float(request.request_s)
    return math.hypot(by_own_algorithms(request, other, parts), math.log1p(kernels * (1.0 - share)))


def by_servings_of_plans(*servings: ServingCheck | None) -> float:
    """Of a ratio of two plans, from the times per token of measured servings; None: of a stack that had none."""
    return math.hypot(*(math.log1p(each.tpot) for each in servings if each)) * math.sqrt(1.0 - SHARED_BY_PLANS)


def _algorithms(request: Request) -> Mapping[str, float]:
    """Seconds of collectives by what they run."""
    by_name: dict[str, float] = defaultdict(float)
    for step, times in request.passes:
        estimates = step.estimates(step.schedule)
        for (role, _), count in step.schedule.order.spans.items():
            estimate = estimates[role]
            if estimate.algorithm:
                by_name[estimate.algorithm] += float(times) * count * float(estimate.seconds)
    return by_name
