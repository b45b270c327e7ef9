"""The public functions: any value of any argument is taken, or refused with the rule and the way out."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ladder_sim import (
    Scenario,
    advise,
    breakeven,
    capacity,
    compare,
    predict,
    sensitivity,
    serve,
    sweep,
    validate,
    versus,
)
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.serving.capacity import CapacityFields
from ladder_sim.serving.serve import ServeFields
from ladder_sim.specs.arguments import ScenarioFields

POINT = {"model": "8b"}
SERVED = {**POINT, "tp": 2, "variants": "standard", "rate": 1.0, "requests": 2, "prompt": 64, "gen": 8, "seeds": 1}
# by function, arguments with which it ends at once
CALLS: list[Any] = [
    (Scenario, POINT),
    (predict, {"scenario": Scenario(model="8b"), "variants": ["ladder"]}),
    (sweep, {"axes": POINT, "variants": "ladder"}),
    (advise, {**POINT, "tp": 8, "batch": 1}),
    (compare, {**POINT, "names": ["h100-sxm", "h200-sxm"], "variants": "ladder"}),
    (sensitivity, {"scenario": Scenario(model="8b"), "variants": "ladder"}),
    (breakeven, {**POINT, "field": "intra.allreduce_floor", "given": "1:4:+1us"}),
    (validate, {"level": "roofline"}),
    (versus, {"scenario": Scenario(model="8b"), "variants": "ladder", "techniques": "fused-norm"}),
    (serve, SERVED),
    pytest.param(capacity, {**SERVED, "pp": 1, "slo": "ttft_p95=9s"}, marks=pytest.mark.slow),
]
# keywords that are no parameters, where they are not the arguments of a scenario
FIELDS: dict[Callable[..., Any], type] = {serve: ServeFields, capacity: CapacityFields}
# none of them is right in every place
VALUES = ("50ms", b"x", 2.5, float("nan"), [], [3], (), object(), -1, np.int64(0), np.float32(0.5), np.arange(2))


@pytest.mark.parametrize(("function", "arguments"), CALLS, ids=lambda value: getattr(value, "__name__", ""))
def test_any_value_is_taken_or_refused(
    function: Callable[..., Any], arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # where a function may write a file that is named
    monkeypatch.chdir(tmp_path)
    keywords = FIELDS.get(function, ScenarioFields).__annotations__
    refused = 0
    parameters = inspect.signature(function).parameters.values()
    names = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    for name in [*names, *(keywords if len(names) < len(parameters) else ())]:
        for value in VALUES:
            try:
                function(**{**arguments, name: value})
            except LadderSimError as error:
                refused += 1
                assert error.hint, (name, value)  # noqa: PT017
    assert refused > 0


def test_numbers_of_numpy_are_numbers() -> None:
    scenario = Scenario(model="8b", tp=np.int64(4), batch=np.int32(2), p2p=np.bool_(True))
    assert scenario == Scenario(model="8b", tp=4, batch=2)
    assert type(scenario.plan.tp) is int
    best = advise(max_tpot_s=np.float32(0.5), usd_per_gpu_hour=np.int64(2), **POINT).best
    assert best.usd_per_Mtoken == advise(max_tpot_s=0.5, usd_per_gpu_hour=2, **POINT).best.usd_per_Mtoken


def test_a_path_is_as_good_as_its_text(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match=r"none\.json: no such file"):
        Scenario(model=tmp_path / "none.json")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: advise(max_tpot_s="50ms", **POINT), "max_tpot_s is '50ms': must be a number"),  # type: ignore[arg-type]
        (lambda: Scenario(model=3), "model is 3: must be text or a ModelSpec"),  # type: ignore[arg-type]
        (lambda: Scenario(overrides="x"), "overrides is 'x': must be a dict or None"),  # type: ignore[arg-type]
        (lambda: compare(None, [3, 4], **POINT), r"names is \[3, 4\]: must be a list"),  # type: ignore[list-item]
        (lambda: sweep(None, POINT, workers=0), "workers is 0: must be a whole number from 1 to 10000"),
    ],
)
def test_a_wrong_type_is_named(call: Callable[[], object], says: str) -> None:
    """Regression: it ended in a TypeError or AttributeError somewhere below."""
    with pytest.raises(UsageError, match=says):
        call()
