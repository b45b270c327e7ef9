"""Scenarios drawn at random for laws: models, clusters, stacks, plans and loads of the catalogue."""

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from ladder_sim import Scenario
from ladder_sim.errors import LadderSimError
from ladder_sim.specs import catalog

DENSE = ("8b", "70b", "405b", "llama-2-13b", "llama-3.2-1b", "mistral-7b", "gemma-3-27b", "qwen3-32b", "qwen2.5-72b")
EXPERTS = ("mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b", "deepseek-v3", "gpt-oss-120b", "llama-4-scout")
STACKS = ("gpt-fast", "vllm", "sglang", "trtllm")


@st.composite
def scenarios(
    draw: st.DrawFn,
    *,
    models: tuple[str, ...] = DENSE,
    stacks: tuple[str, ...] = STACKS,
    nodes: tuple[int, ...] = (1, 2),
    in_flight: bool | None = False,
    dtypes: tuple[str | None, ...] = (None,),
    **fixed: Any,
) -> Scenario:
    """A scenario that constructs and need not fit into memory; `in_flight` None draws static batches and load alike."""
    how: dict[str, Any] = {
        "model": draw(st.sampled_from(models)),
        "cluster": draw(st.sampled_from(catalog.cluster_names())),
        "nodes": draw(st.sampled_from(nodes)),
        "stack": draw(st.sampled_from(stacks)),
        "prompt": draw(st.sampled_from([1, 16, 128, 1024, 4096, 16384])),
        "gen": draw(st.sampled_from([2, 16, 128, 512])),
    }
    size = draw(st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128, 256]))
    loaded = draw(st.booleans()) if in_flight is None else in_flight
    how["concurrency" if loaded and how["stack"] != "gpt-fast" else "batch"] = size
    how["tp"] = draw(st.sampled_from([2, 4, 8])) if how["nodes"] == 1 else 8 * how["nodes"]
    if len(dtypes) > 1:
        how["dtype"] = draw(st.sampled_from(dtypes))
    try:
        return Scenario(**{**how, **fixed})
    except LadderSimError:
        assume(False)
        raise
