"""What a function is asked about: a scenario or its arguments, never both and never a third form."""

import dataclasses
from collections.abc import Callable

import pytest

import ladder_sim
from ladder_sim import Scenario, advise, breakeven, capacity, compare, predict, sensitivity, serve, sweep, versus
from ladder_sim.errors import UnknownNameError, UsageError
from tests.support.predict_one import predict_one

EIGHT = Scenario(model="8b", tp=2)


@pytest.mark.parametrize(
    ("of_scenario", "of_keywords"),
    [
        (
            lambda: predict_one(EIGHT, "ladder").request_s,
            lambda: predict(variants=["ladder"], model="8b", tp=2)["ladder"].request_s,
        ),
        (
            lambda: versus(EIGHT, "ladder", "fused-norm").best_own.name,
            lambda: versus(None, "ladder", "fused-norm", model="8b", tp=2).best_own.name,
        ),
        (
            lambda: sensitivity(EIGHT, "ladder")[0].figure,
            lambda: sensitivity(variants="ladder", model="8b", tp=2)[0].figure,
        ),
        (
            lambda: sweep(EIGHT, {"batch": "1,2"}, "ladder")["ladder.speedup"].tolist(),
            lambda: sweep(None, {"batch": "1,2"}, "ladder", model="8b", tp=2)["ladder.speedup"].tolist(),
        ),
        (lambda: advise(EIGHT, "tpot").best.tpot_s, lambda: advise(None, "tpot", model="8b", tp=2).best.tpot_s),
        (
            lambda: breakeven(EIGHT, "batch", "1:4").speedups.tolist(),
            lambda: breakeven(field="batch", given="1:4", model="8b", tp=2).speedups.tolist(),
        ),
        (
            lambda: compare(EIGHT, ["h100-sxm", "h200-sxm"])[1].scenario,
            lambda: compare(names=["h100-sxm", "h200-sxm"], model="8b", tp=2)[1].scenario,
        ),
        (
            lambda: serve(EIGHT, "ladder", rate=4.0, requests=5, seeds=1)["ladder"].tpot_p95_s,
            lambda: serve(None, "ladder", rate=4.0, requests=5, seeds=1, model="8b", tp=2)["ladder"].tpot_p95_s,
        ),
        (
            lambda: capacity(EIGHT, "ladder", rate=4.0, slo="ttft_p95=1s", pp=1, requests=5, seeds=1)["ladder"].gpus,
            lambda: (
                capacity(variants="ladder", rate=4.0, slo="ttft_p95=1s", pp=1, requests=5, seeds=1, model="8b", tp=2)[
                    "ladder"
                ].gpus
            ),
        ),
    ],
)
def test_a_scenario_and_its_arguments_ask_the_same(
    of_scenario: Callable[[], object], of_keywords: Callable[[], object]
) -> None:
    assert of_scenario() == of_keywords()


def test_settings_of_a_scenario_hold_in_every_answer() -> None:
    slow = Scenario(model="8b", tp=2, overrides={"intra.bandwidth": "10GB/s"})
    table = sweep(slow, {"batch": [1, 4]}, ["ladder"])
    alone = predict_one(slow.replace(batch=4), "ladder")
    assert table["ladder.ttft_s"][1] == alone.ttft_s > predict_one(EIGHT.replace(batch=4), "ladder").ttft_s


def test_a_scenario_and_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="a scenario and batch: must be one of them") as caught:
        predict(EIGHT, batch=2)
    assert caught.value.hint == "scenario.replace(batch=2) changes a scenario"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Scenario(modle="70b"), r"Scenario\(\) has no argument 'modle'; did you mean 'model'\?"),  # type: ignore[call-arg]
        (lambda: predict(bacth=2), r"predict\(\) has no argument 'bacth'; did you mean 'batch'\?"),  # type: ignore[call-overload]
        (lambda: EIGHT.replace(node=2), r"Scenario\(\) has no argument 'node'; did you mean 'nodes'\?"),
    ],
)
def test_a_typo_is_named_with_the_nearest_argument(call: Callable[[], object], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        call()


def test_functions_that_take_ranges_name_a_typo_too() -> None:
    for call in (lambda: advise(EIGHT, bacth=3), lambda: breakeven(field="batch", given="1:4", bacth=3)):
        with pytest.raises(UnknownNameError, match="unknown argument 'bacth'") as caught:
            call()
        assert caught.value.hint == "did you mean 'batch'?"


def test_former_forms_are_taken_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"Scenario\(\.\.\.\) now"):
        assert Scenario.of(model="8b", tp=2) == EIGHT
    point = {"model": "8b", "tp": 2}
    with pytest.warns(DeprecationWarning, match=r"is sweep\(Scenario"):
        table = sweep({**point, "batch": "1,2"}, ["ladder"])  # type: ignore[arg-type]
    assert table["batch"].tolist() == [1, 2]
    with pytest.warns(DeprecationWarning, match=r"is breakeven\(Scenario"):
        found = breakeven({**point, "intra.bandwidth": "100GB/s"}, "batch", "1:4")  # type: ignore[arg-type]
    assert found.values.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_replace_follows_the_defaults_of_what_was_not_given() -> None:
    two = Scenario(model="405b", nodes=2)
    assert (two.plan.tp, two.replace(nodes=1, dtype="fp8").plan.tp) == (16, 8)
    assert two.replace(concurrency=8).stack.name == "vllm"
    assert two.replace(tp=8).replace(batch=4).plan.tp == 8
    # of what was set part by part, too
    assert two.having(plan=two.replace(tp=8).plan).replace(nodes=4).plan.tp == 8


def test_what_was_set_by_hand_is_what_the_specs_hold() -> None:
    """Regression: a figure that was changed part by part went back to what had been typed."""
    typed = {"intra.bandwidth": "10GB/s"}
    slow = Scenario(model="8b", tp=2, overrides=typed)
    typed.clear()
    assert slow.replace(batch=2).cluster.intra.bandwidth_Bps == 10e9
    intra = dataclasses.replace(slow.cluster.intra, bandwidth_Bps=20e9)
    faster = slow.having(cluster=dataclasses.replace(slow.cluster, intra=intra)).replace(batch=2)
    assert faster.cluster.intra.bandwidth_Bps == 20e9
    assert list(faster.settings) == ["intra.bandwidth_Bps"]


def test_a_scenario_shows_what_was_asked() -> None:
    shown = Scenario(model="8b", tp=2, concurrency=4, overrides={"intra.bandwidth": "10GB/s"})
    assert eval(repr(shown)) == shown
    assert "batch" not in repr(shown)


def test_every_public_name_is_there() -> None:
    assert all(callable(getattr(ladder_sim, name)) for name in ladder_sim.__all__ if name != "__version__")
