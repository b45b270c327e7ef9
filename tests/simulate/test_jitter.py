"""Predictions with jitter: spread and waiting change, other times do not."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import pytest

from ladder_sim.costs.hardware import skew_growth
from ladder_sim.costs.profile import JITTER_KEY
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.errors import UsageError
from ladder_sim.prediction import Prediction, predict
from ladder_sim.report.prediction import prediction_fields
from ladder_sim.simulate.passes import Engine
from ladder_sim.specs.scenario import Scenario
from tests.support.predict_one import predict_one

pytestmark = pytest.mark.slow

RTOL = 1e-9
SIGMA = 0.05
FOUR = ("standard", "parallel", "ladder", "upper-bound")
Predictions = Mapping[str, Prediction]


def figures(predictions: Predictions) -> dict[str, object]:
    """Everything but the timelines."""
    return {
        name: (
            prediction_fields(prediction),
            dict(prediction.breakdown.limits_s),
            dict(prediction.breakdown.busy_s),
            dict(prediction.breakdown.sources_s),
            prediction.breakdown.slowed_s,
            prediction.unevenness,
            prediction.confidence.warnings,
            prediction.confidence.measured_fraction,
            prediction.request.prefill.seconds,
            prediction.request.decode.seconds if prediction.request.decode else None,
        )
        for name, prediction in predictions.items()
    }


@pytest.fixture(scope="module")
def small() -> Scenario:
    return Scenario(model="8b", tp=4)


@pytest.fixture(scope="module")
def even() -> Predictions:
    return predict(Scenario(model="405b", nodes=2))


@pytest.fixture(scope="module")
def uneven() -> Predictions:
    return predict(Scenario(model="405b", nodes=2), jitter=SIGMA)


def test_no_jitter_is_the_default(small: Scenario, even: Predictions) -> None:
    assert figures(predict(small, jitter=0, seed=5)) == figures(predict(small))
    assert {prediction.unevenness for prediction in even.values()} == {None}
    assert all("uneven ranks" not in prediction.breakdown.limits_s for prediction in even.values())


def test_same_seed_same_result(small: Scenario) -> None:
    first, again, other = (predict(small, jitter=SIGMA, seed=seed) for seed in (1, 1, 2))
    assert figures(first) == figures(again)
    for name in FOUR:
        assert first[name].request_s != other[name].request_s
        assert first[name].request_s == pytest.approx(other[name].request_s, rel=0.03)
        assert first[name].speedup.value == pytest.approx(other[name].speedup.value, rel=0.03)


def test_variants_do_not_share_their_luck(small: Scenario) -> None:
    """A variant's times do not depend on the other variants of the call."""
    alone = predict_one(small, "ladder", jitter=SIGMA)
    together = predict(small, FOUR, jitter=SIGMA)["ladder"]
    assert prediction_fields(alone) == prediction_fields(together)


@pytest.mark.parametrize("name", FOUR)
def test_only_times_that_ranks_share_change(even: Predictions, uneven: Predictions, name: str) -> None:
    before, after = even[name], uneven[name]
    # waiting is no transfer
    assert after.breakdown.comm_s == before.breakdown.comm_s
    assert after.breakdown.exposed_comm_s == before.breakdown.exposed_comm_s
    assert after.breakdown.slowed_s == before.breakdown.slowed_s
    assert after.breakdown.busy_s == before.breakdown.busy_s
    assert after.memory == before.memory
    assert math.fsum(after.breakdown.limits_s.values()) == pytest.approx(after.request_s, rel=RTOL)
    assert after.breakdown.limits_s["uneven ranks"] == pytest.approx(after.request_s - before.request_s)


@pytest.mark.parametrize("name", FOUR)
def test_figures_agree_with_each_other(uneven: Predictions, name: str) -> None:
    prediction, standard = uneven[name], uneven["standard"]
    assert prediction.tpot_s is not None
    assert standard.tpot_s is not None
    assert prediction.request_s == pytest.approx(prediction.ttft_s + 511 * prediction.tpot_s, rel=RTOL)
    assert prediction.speedup.value == pytest.approx(standard.request_s / prediction.request_s, rel=RTOL)
    assert prediction.ttft_speedup == pytest.approx(standard.ttft_s / prediction.ttft_s, rel=RTOL)
    assert prediction.tpot_speedup == pytest.approx(standard.tpot_s / prediction.tpot_s, rel=RTOL)
    assert prediction.tokens_per_s.value == pytest.approx(512 / prediction.request_s, rel=RTOL)
    spread = prediction.unevenness
    assert spread is not None
    assert spread.tpot_p50_s is not None
    assert spread.tpot_p95_s is not None
    assert spread.ttft_p50_s <= spread.ttft_p95_s
    assert spread.tpot_p50_s <= spread.tpot_p95_s
    assert spread.ttft_p50_s == pytest.approx(prediction.ttft_s, rel=0.02)
    assert spread.tpot_p50_s == pytest.approx(prediction.tpot_s, rel=0.02)
    assert 0.0 <= spread.waiting_s < 0.2 * prediction.request_s


def test_jitter_shows_on_405b(even: Predictions, uneven: Predictions) -> None:
    """Ranks that meet wait for the slowest; those of the upper bound meet nowhere."""
    for name in ("standard", "parallel", "ladder"):
        assert uneven[name].request_s > 1.01 * even[name].request_s
        spread = uneven[name].unevenness
        assert spread is not None
        assert spread.waiting_s > 0.01 * uneven[name].request_s
    bound = uneven["upper-bound"]
    assert bound.request_s == pytest.approx(even["upper-bound"].request_s, rel=0.02)
    assert bound.unevenness is not None
    assert bound.unevenness.waiting_s == 0.0
    # standard stops for others twice a layer, all of it on the critical path
    assert uneven["standard"].breakdown.limits_s["uneven ranks"] > uneven["ladder"].breakdown.limits_s["uneven ranks"]


def test_skew_matters_only_where_ranks_meet() -> None:
    """Of four ranks, whose slowest is about 0.2 slower where that of eight is 0.3."""
    by_skew = {}
    for skew in ("0", "0.3"):
        scenario = Scenario(model="8b", tp=4, overrides={"cluster.rank_skew": skew})
        by_skew[skew] = predict(scenario, ["standard", "upper-bound"], jitter=SIGMA)
    assert by_skew["0.3"]["upper-bound"].request_s == by_skew["0"]["upper-bound"].request_s
    assert by_skew["0.3"]["standard"].request_s > 1.1 * by_skew["0"]["standard"].request_s


def test_the_slowest_of_more_ranks_is_slower() -> None:
    """By the largest of as many draws from a normal distribution, over that of eight."""
    draws = np.random.default_rng(1).standard_normal((100_000, 64))
    of_eight = draws[:, :8].max(axis=1).mean()
    growths = [skew_growth(ranks) for ranks in (2, 4, 8, 16, 64)]
    assert growths == sorted(growths)
    expected = [draws[:, :ranks].max(axis=1).mean() / of_eight for ranks in (2, 4, 8, 16, 64)]
    assert growths == pytest.approx(expected, rel=0.05)
    assert (skew_growth(1), skew_growth(8)) == (0.0, 1.0)
    # and so is the pass of a model that has to wait for it
    slowdowns = []
    for tp in (2, 4, 8):
        even, uneven = (
            predict(Scenario(model="8b", tp=tp, overrides={"cluster.rank_skew": skew}), ["standard"])["standard"]
            for skew in ("0", "0.2")
        )
        slowdowns.append(uneven.request_s / even.request_s)
    assert 1.0 < slowdowns[0] < slowdowns[1] < slowdowns[2] < 1.2


def test_one_token(small: Scenario) -> None:
    scenario = small.having(workload=dataclasses.replace(small.workload, gen=1))
    for prediction in predict(scenario, jitter=SIGMA).values():
        assert prediction.tpot_s is None
        assert prediction.tpot_speedup is None
        assert prediction.request_s == prediction.ttft_s
        assert prediction.unevenness is not None
        assert prediction.unevenness.tpot_p50_s is None
        assert prediction.unevenness.tpot_p95_s is None
        assert math.fsum(prediction.breakdown.limits_s.values()) == pytest.approx(prediction.request_s, rel=RTOL)


@pytest.mark.parametrize("attention", ["flash", "math"])
def test_growing_context(attention: str) -> None:
    """Jitter lengthens every decode step as it does the middle one."""
    scenario = Scenario(model="8b", tp=4, gen=2048, overrides={"stack.attention": attention})
    jittered, before = predict(scenario, jitter=SIGMA), predict(scenario)
    for name in FOUR:
        ratio = jittered[name].request_s / before[name].request_s
        assert 0.98 < ratio < 1.1
        assert math.fsum(jittered[name].breakdown.limits_s.values()) == pytest.approx(
            jittered[name].request_s, rel=RTOL
        )


def test_engines_give_the_same_with_jitter(small: Scenario) -> None:
    engines: tuple[Engine, ...] = ("fast", "des")
    predictions, reference = (predict(small, jitter=SIGMA, engine=engine) for engine in engines)
    for name in FOUR:
        assert predictions[name].request_s == pytest.approx(reference[name].request_s, rel=RTOL)
        ours, theirs = predictions[name].unevenness, reference[name].unevenness
        assert ours is not None
        assert theirs is not None
        assert dataclasses.asdict(ours) == pytest.approx(dataclasses.asdict(theirs), rel=RTOL)


def test_jitter_as_measured(small: Scenario) -> None:
    profile = load_profile("h100-sxm")
    assert JITTER_KEY not in profile.overheads
    with pytest.raises(UsageError, match="profile 'h100-sxm-gpt-fast' holds no measured jitter") as raised:
        predict(small, jitter="measured")
    assert raised.value.hint
    with pytest.raises(UsageError, match="profile 'none' holds no measured jitter"):
        predict(small, profile="none", jitter="measured")
    measured = dataclasses.replace(profile, overheads={**profile.overheads, JITTER_KEY: 0.03})
    jittered = predict(small, ["ladder"], profile=measured, jitter="measured")
    assert figures(jittered) == figures(predict(small, ["ladder"], profile=measured, jitter=0.03))


@pytest.mark.parametrize("jitter", [-0.1, -1e-12, 1.0001, 2, math.nan, math.inf, -math.inf])
def test_impossible_jitter(small: Scenario, jitter: float) -> None:
    with pytest.raises(UsageError, match=r"is not between 0 and 1") as raised:
        predict(small, jitter=jitter)
    assert str(jitter) in str(raised.value)
    assert raised.value.hint
