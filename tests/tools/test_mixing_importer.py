"""Tables of recurrent states and of sparse attention, from made-up rows of the package's files."""

import itertools
from typing import Any

import numpy as np
import pytest

from ladder_sim.costs.profile_file import load_profile
from tools.profiles.mixing import MODULES, rest_s, sparse_series, state_series

PROFILE = load_profile("h200-sxm")
V32 = {"model": "deepseek-ai/DeepSeek-V3.2", "gemm_type": "fp8_block", "kv_cache_dtype": "fp8", "num_heads": 16}


def columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def module_rows(op: str, cells: dict[tuple[int, int, int], float]) -> dict[str, Any]:
    """Rows in milliseconds by sequences, new tokens and earlier ones."""
    return columns(
        [
            {**V32, "op_name": op, "kernel_source": "main", "batch_size": b, "isl": new, "step": before, "latency": ms}
            for (b, new, before), ms in cells.items()
        ]
    )


def test_a_module_is_its_attention_and_the_rest_as_it_is_priced() -> None:
    measured = {(4, 1, 1): 0.11, (4, 1, 4095): 0.14, (4, 1, 32767): 0.17, (512, 1, 1): 9.0}
    rows = module_rows("dsa_generation_module", measured)
    ((of, series),) = sparse_series("sglang 0.5.14", rows, "generation", PROFILE)
    assert of == ("sparse_decode", "latent-64-fp8")
    # what does not run in a captured graph is left out
    assert series.points.tolist() == [[4, 16, 2], [4, 16, 4096], [4, 16, 32768]]
    batch, heads, new = (np.full(3, size) for size in (4.0, 16.0, 1.0))
    rest = rest_s(MODULES[0], "fp8", batch, heads, new, np.array([1.0, 4095.0, 32767.0]), PROFILE)
    # projections do not depend on the context
    assert rest == pytest.approx(np.full(3, rest[0]))
    assert (series.seconds + rest).tolist() == pytest.approx([0.11e-3, 0.14e-3, 0.17e-3])


def test_prompts_that_wait_for_launches_are_left_out() -> None:
    cells = {(1, 256, 0): 0.8, (1, 1024, 0): 0.9, (8, 1024, 0): 4.0, (1, 8192, 8192): 5.0, (1, 8192, 77): 4.6}
    rows = module_rows("dsa_context_module", cells)
    ((of, series),) = sparse_series("sglang 0.5.14", rows, "context", PROFILE)
    assert of == ("sparse_prefill", "latent-64-fp8")
    assert series.points.tolist() == [[16, 1024, 64], [16, 8192, 8192]]
    # of one of eight prompts
    assert series.seconds[0] < 0.5e-3 < series.seconds[1]


def test_states_are_told_apart_by_their_elements_alone() -> None:
    rows = []
    for (batch, heads), kernel in itertools.product(((1, 16), (4, 4), (8, 4)), ("recurrent", "causal_conv1d_update")):
        milliseconds = (0.01 if kernel == "recurrent" else 0.002) * batch * heads / 16
        sizes = {"batch_size": batch, "seq_len": 1, "num_k_heads": heads, "num_v_heads": heads}
        widths = {"head_k_dim": 128, "head_v_dim": 128}
        # a busy machine adds to some
        slower = 3.0 if (batch, heads) == (4, 4) else 1.0
        row = {**sizes, **widths, "phase": "generation", "kernel_source": kernel, "latency": slower * milliseconds}
        rows.append(row)
    found = dict(state_series("vllm 0.24.0", columns(rows), "gated-delta"))
    states, convolutions = (found[f"{name}_decode", "gated-delta"] for name in ("state", "convolution"))
    assert states.points.ravel().tolist() == [16 * 2**14, 32 * 2**14]
    assert states.seconds.tolist() == pytest.approx([10e-6, 20e-6])
    assert convolutions.points.ravel().tolist() == [48 * 128, 96 * 128]
    assert convolutions.seconds.tolist() == pytest.approx([2e-6, 4e-6])
