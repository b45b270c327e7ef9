"""Collectives in a node: the formulas' shape, and the measurements that they are held against."""

import functools
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.costs.collectives.algorithms import ALGORITHMS, ALL_REDUCE, MeasuredCollective, bracketed, multicast
from ladder_sim.costs.collectives.nccl import host_ring_s
from ladder_sim.costs.lookup import Curve
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.specs import catalog
from ladder_sim.specs.stack import AllReduce
from tests.support.networks import BANDWIDTH, LATENCY, MESSAGE, SIZES, one_by_one, times

ALL_FORMULAS = {" ".join(key): algorithm for key, algorithm in ALGORITHMS.items()}
ALL_FORMULAS["host"] = functools.partial(host_ring_s, low_latency_share=0.125)


@pytest.mark.parametrize("name", ALL_FORMULAS)
@given(MESSAGE, st.integers(2, 64), LATENCY, BANDWIDTH, st.floats(1, 100))
def test_formulas_are_monotone(
    name: str, message: float, ranks: int, latency_s: float, bandwidth: float, more: float
) -> None:
    formula = ALL_FORMULAS[name]

    def seconds(message: float, ranks: int, latency_s: float, bandwidth: float) -> float:
        return float(formula(np.array([message]), ranks, latency_s, bandwidth)[0])

    here = seconds(message, ranks, latency_s, bandwidth)
    assert here > 0
    assert seconds(message * more, ranks, latency_s, bandwidth) >= here
    # through host memory more ranks open more channels; what the switch multicasts, each GPU writes its share of
    fewer_bytes = name == "host" or any(line.traffic is multicast for line in formula.lines)
    assert seconds(message, ranks + 1, latency_s, bandwidth) >= here or fewer_bytes
    assert seconds(message, ranks, latency_s * more, bandwidth) >= here
    assert seconds(message, ranks, latency_s, bandwidth * more) <= here


def test_formulas_of_large_messages_are_bandwidth() -> None:
    """Bus bandwidths that nccl-tests would print for 16 GiB on eight ranks."""
    message, bandwidth = 2.0**34, 450e9
    for name, factor in (("nccl", 0.82), ("nvls", 452 / 450), ("multimem", 1.75 * 274 / 450), ("two-shot", 300 / 450)):
        seconds = float(ALL_REDUCE[name](np.array([message]), 8, 15.6e-6, bandwidth)[0])
        assert 2 * 7 / 8 * message / seconds == pytest.approx(factor * bandwidth, rel=1e-3)


def cases(profile: CalibrationProfile) -> list[tuple[str, int, Curve]]:
    curves = profile.collectives["all_reduce"]
    return [(name, ranks, curve) for name in ("nccl", "one-shot", "two-shot") for ranks, curve in curves[name].items()]


def test_measured_all_reduces_are_reproduced(h100: CalibrationProfile) -> None:
    for algorithm, ranks, curve in cases(h100):
        result = times(curve.size_bytes, h100, tp=ranks, allreduce=algorithm)
        np.testing.assert_allclose(result.seconds, curve.seconds, rtol=1e-9)
        assert result.in_range.all(), (algorithm, ranks)
        assert result.most_common == algorithm


def test_measured_gathers_are_reproduced(h100: CalibrationProfile) -> None:
    for ranks, curve in h100.collectives["all_gather"]["nccl"].items():
        result = times(curve.size_bytes, h100, kind="all_gather", tp=ranks)
        np.testing.assert_allclose(result.seconds, curve.seconds, rtol=1e-9)
        assert result.in_range.all()


def test_outside_the_measurements_is_said(h100: CalibrationProfile) -> None:
    curve = h100.collectives["all_reduce"]["nccl"][8]
    beyond = np.array([curve.size_bytes[0] / 2, curve.size_bytes[-1] * 2])
    result = times(beyond, h100, tp=8)
    assert not result.in_range.any()
    assert result.source == "fitted"
    # another link: carried over, not measured
    slower = times(curve.size_bytes, h100, tp=8, overrides={"intra.bandwidth": "225 GB/s"})
    assert not slower.in_range.any()
    assert slower.source == "transferred"
    assert (slower.seconds >= curve.seconds).all()
    # ranks between the measured ones
    assert not times(SIZES, h100, model="codellama-34b", gpus_per_node=16, tp=16).in_range.any()
    assert times(SIZES, None, tp=8).source == "roofline"


def test_a_gap_between_sizes_brackets_nothing() -> None:
    curve = Curve(size_bytes=np.array([1e3, 8e3, 1e6]), seconds=np.array([1.0, 2.0, 3.0]))
    inside = bracketed(curve, np.array([999.0, 1e3, 5e3, 8e3, 9e3, 2e6]))
    assert inside.tolist() == [False, True, True, True, False, False]


@given(st.floats(2.0, 8.0), MESSAGE)
def test_ranks_between_curves_lie_between_their_ratios(ranks: float, message: float) -> None:
    sizes = np.array([1e3, 1e9])
    collective = MeasuredCollective(
        formula=ALL_REDUCE["nccl"],
        curves={
            2: Curve(size_bytes=sizes, seconds=np.array([8e-6, 4e-3])),
            8: Curve(size_bytes=sizes, seconds=np.array([2e-5, 5e-3])),
        },
        tier=catalog.cluster("h100-sxm").intra,
    )
    low, between, high = (collective.ratio(np.array([message]), n)[0][0] for n in (2, round(ranks), 8))
    assert min(low, high) * (1 - 1e-9) <= between <= max(low, high) * (1 + 1e-9)


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("allreduce", [name for name in get_args(AllReduce) if name != "pcie-one-shot"])
def test_larger_messages_take_no_less(h100: CalibrationProfile, allreduce: str, tp: int) -> None:
    """Measurements wiggle by a few percent where protocols change."""
    seconds = one_by_one(SIZES, h100, tp=tp, allreduce=allreduce)
    assert (seconds[1:] >= 0.93 * seconds[:-1]).all()
    assert (seconds[4:] >= 0.96 * seconds[:-4]).all()
