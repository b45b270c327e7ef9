"""Stacks of one version, as in ``vllm@0.12``."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim import Scenario, predict
from ladder_sim.errors import LadderSimError, SpecError, UsageError
from ladder_sim.specs import catalog
from ladder_sim.specs.catalog import Versions, release
from tests.support.scenarios import SERVING

STATES = "qwen3-next-80b-a3b"


def test_a_version_has_the_figures_of_its_time() -> None:
    """vLLM schedules asynchronously from 0.14 on, and takes 92 % of the memory from 0.22 on."""
    for version, host_s, fraction in (("0.12.0", 44e-6, 0.9), ("0.14", 15e-6, 0.9), ("0.22", 15e-6, 0.92)):
        stack = catalog.stack(f"vLLM@{version}")
        assert (stack.name, stack.engine, stack.version) == (f"vllm@{version}", "vllm", version)
        assert stack.host_request_s == pytest.approx(host_s)
        assert stack.memory_fraction == fraction
    newest = catalog.stack("vllm")
    assert (newest.name, newest.host_request_s, newest.memory_fraction) == ("vllm", 15e-6, 0.92)


@pytest.mark.parametrize("name", SERVING)
def test_the_ends_of_what_is_known(name: str) -> None:
    for version in ("1.2.0rc6.post1", "0.5.6.post2", "0.12.0"):
        try:
            assert Scenario(model="8b", stack=f"{name}@{version}").stack.version == version
        except UsageError as error:
            assert f"nearest is {name}@" in error.hint  # noqa: PT017
    for version, end in (("0.0.1", "oldest"), ("99", "newest")):
        with pytest.raises(UsageError, match=f"version {version} of stack '{name}' is not known: known are") as caught:
            catalog.stack(f"{name}@{version}")
        (nearest,) = [word.rstrip(";") for word in caught.value.hint.split() if word.startswith(f"{name}@")]
        assert catalog.stack(nearest).engine == name, end


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("gpt-fast@1", "stack 'gpt-fast' has no versions", "write 'gpt-fast'"),
        ("vllm@", "version '' of stack 'vllm': must be numbers", "vllm@0."),
        ("vllm@new", "version 'new' of stack 'vllm': must be numbers", "vllm@0."),
        ("vlm@0.12", "unknown stack 'vlm@0.12'", "vllm"),
    ],
)
def test_what_is_no_version(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        catalog.stack(text)
    assert message in caught.value.message
    assert hint in caught.value.hint


@given(st.text(max_size=12))
def test_any_text_is_a_version_or_refused(text: str) -> None:
    try:
        stack = catalog.stack(f"vllm@{text}")
    except LadderSimError:
        return
    assert release(stack.version) is not None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (3, "must hold oldest, newest and before"),
        ({"first": "1"}, "must hold oldest, newest and before"),
        ({"oldest": "1", "newest": "2", "before": {"1.5": 3}}, "before must hold a table"),
        ({"oldest": "1", "newest": "next"}, "'next' is not a version"),
        ({"oldest": 1, "newest": "2"}, "'1' is not a version"),
    ],
)
def test_damaged_tables_are_refused(table: object, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        Versions.read(table, "lab.toml")
    assert "lab.toml: [versions]" in caught.value.message
    assert message in caught.value.message


def test_a_file_may_hold_versions(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text(catalog.toml_text("vllm"))
    assert catalog.stack(str(file)) == catalog.stack("vllm")


def test_sglang_waits_for_the_cpu_between_steps_with_states() -> None:
    """SGLang 0.5.6 to 0.5.13 with a prefix cache of states: each step is scheduled when the one before has ended."""
    for stack, model, cached, waits in (
        ("sglang@0.5.9", STATES, True, True),
        ("sglang@0.5.9", STATES, False, False),
        ("sglang@0.5.9", "qwen3-30b-a3b", True, False),
        ("sglang@0.5.5", STATES, True, False),
        ("sglang@0.5.14", STATES, True, False),
        ("vllm", STATES, True, False),
    ):
        given = {"model.layers": "4", "stack.prefix_cache": str(cached).lower()}
        own = Scenario(model=model, stack=stack, tp=2, concurrency=8, gen=64, overrides=given)
        free = own.replace(overrides={**given, "stack.host_state": "0 us"})
        tpot_s, free_tpot_s = (predict(each, ["standard"])["standard"].tpot_s for each in (own, free))
        assert own.schedules_ahead is not waits, stack
        assert tpot_s is not None
        assert free_tpot_s is not None
        assert tpot_s - free_tpot_s == pytest.approx(own.stack.host_state_s if waits else 0.0, rel=0.05), stack
        static_s, free_s = (
            predict(each.replace(concurrency=None), ["standard"])["standard"].request_s for each in (own, free)
        )
        assert (static_s > free_s) is waits, stack
