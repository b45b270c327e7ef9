"""Intervals of servings: half-widths by kind of model, engine and format, and how they hold models left out."""

import dataclasses
import math
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from ladder_sim.validation.serving_table import read_servings
from tests.conftest import SHIPPED
from tools.profiles.serving_checks import Unseen, checks, first_token_widths, left_out, to_toml, widths, winkler

SAMPLE = SHIPPED / "serving-moe.csv"


def unseen(errors: dict[tuple[str, str], float]) -> list[Unseen]:
    """Return 20 rows of experts by engine and model, all of which err by as much."""
    (first, *_) = read_servings(SAMPLE.read_bytes(), SAMPLE.name)
    rows = []
    for (stack, model), error in errors.items():
        setup = dataclasses.replace(first.setup, stack=stack, model=model)
        rows += [Unseen(dataclasses.replace(first, setup=setup), True, error, 2.0 * error)] * 20
    return rows


def test_a_width_counts_its_models_against_the_wider_group() -> None:
    rows = unseen({("vllm", "minimax-m2.5"): 0.1, ("vllm", "qwen3-235b-a22b"): -0.1, ("sglang", "deepseek-r1"): 0.4})
    found = {(each.stack, each.format): each for each in widths(rows)}
    (form,) = {form for _, form in found if form}
    every = math.log1p(found["", ""].tpot)
    assert every == pytest.approx(0.4)
    # two models to two
    two = math.exp((2 * math.log(0.1) + 2 * math.log(0.4)) / 4)
    assert math.log1p(found["vllm", ""].tpot) == pytest.approx(two)
    assert math.log1p(found["vllm", form].tpot) == pytest.approx(math.exp((2 * math.log(0.1) + 2 * math.log(two)) / 4))
    # one to two, which are as wide
    assert math.log1p(found["sglang", ""].tpot) == pytest.approx(0.4)


def test_a_model_left_out_sets_none_of_its_widths() -> None:
    rows = unseen({("vllm", "minimax-m2.5"): 0.1, ("vllm", "qwen3-235b-a22b"): 0.3})
    judged = {model: rest for model, *rest in left_out(rows, "tpot")}
    count, inside, width, score, constant = judged["minimax-m2.5"]
    assert (count, inside) == (20, 1.0)
    assert width == pytest.approx(0.3)
    assert score == constant == pytest.approx(0.6)
    _, inside, width, score, _ = judged["qwen3-235b-a22b"]
    assert (inside, width) == (0.0, pytest.approx(0.1))
    assert score == pytest.approx(0.2 + 20.0 * 0.2)


def test_a_miss_costs_twenty_times_what_it_is_beyond_the_interval() -> None:
    """Gneiting and Raftery 2007, equation 43, at 90 %; the measurement lies above a prediction that is too short."""
    assert winkler(np.array([0.05, -0.2]), 0.1, 0.1) == pytest.approx(0.2 + 0.5 * 20.0 * 0.1)
    assert winkler(np.array([0.05, -0.2]), 0.1, 0.3) == pytest.approx(0.4)


def test_first_tokens_come_late_by_the_more_the_more_requests_are_in_flight() -> None:
    """Regression: one width either way, the same at every number in flight, scored worse than no groups at all."""
    (first, *_) = unseen({("vllm", "minimax-m2.5"): 0.1})
    rng = np.random.default_rng(0)
    rows = []
    for model in ("minimax-m2.5", "qwen3-235b-a22b", "deepseek-r1"):
        setup = dataclasses.replace(first.serving.setup, model=model)
        for number in (1, 16, 256):
            serving = dataclasses.replace(first.serving, setup=setup, concurrency=number)
            rows += [Unseen(serving, True, 0.0, -abs(x) * number**0.25) for x in rng.normal(0.0, 0.1, 100)]
            rows += [Unseen(serving, True, 0.0, abs(x)) for x in rng.normal(0.0, 0.05, 100)]
    sides = first_token_widths(rows)
    assert sides.power == pytest.approx(0.25, abs=0.1)
    assert sides.later_of(256) == pytest.approx(sides.later * 256**sides.power)
    assert sides.earlier < sides.later
    for _, _, inside, _, score, constant in left_out(rows, "ttft"):
        assert 0.85 <= inside <= 0.95
        assert score < 0.8 * constant


def test_checks_hold_what_their_rows_had() -> None:
    rows = unseen({("vllm@0.19.0", "minimax-m2.5"): 0.1, ("vllm@0.16.0rc1", "qwen3-235b-a22b"): 0.1})
    (check,) = checks(rows)
    assert (check["stack"], check["versions"], check["servings"]) == ("vllm", "0.16 to 0.19", 40)
    assert check["models"] == ["minimax-m2.5", "qwen3-235b-a22b"]
    assert check["tpot_error"] == pytest.approx(math.expm1(0.1))
    # few rows say little
    assert not [*checks(rows[:9])]
    document = tomllib.loads(to_toml(rows))
    assert document["checks"][0]["sizes"]["tp"] == [4, 4]
    assert {each["stack"] for each in document["widths"] if "stack" in each} == {"vllm"}
    assert set(document["first_token"]) == {"earlier", "later", "power"}


def test_the_command_writes_the_file(tmp_path: Path) -> None:
    out = tmp_path / "checks.toml"
    command = [sys.executable, "-m", "tools.profiles.serving_checks", str(SAMPLE), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rows inside intervals from the other models" in done.stdout
    document = tomllib.loads(out.read_text("utf-8"))
    assert {each["experts"] for each in document["widths"]} == {True}
