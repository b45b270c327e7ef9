"""Names of fields in earlier versions: those with another name now, and those of a stack that went."""

from collections.abc import Mapping

from ladder_sim.errors import SpecError
from ladder_sim.units import short_name

# fields by their names in earlier versions, and what a warning says of them
RENAMED: Mapping[str, tuple[str, str]] = {
    "latency_s": (
        "allreduce_floor_s",
        "is called allreduce_floor now: it is the time of a small all-reduce over the full tier, not the latency of a "
        "link, which is hop_latency",
    )
}

_ADD = 'residual_add says it: "apart", "compiled" or "fused"'
_GRAPHS = 'cuda_graphs says it: "off", "decode" or "all"'
_VOCABULARY = "vocab_parallel says it of both"
_OWN = "the table [own_allreduce] of a stack .toml says it"
_MEASURED = "no stack sets it; a profile does, by a fit (`ladder-sim calibrate fit-stack`) or its overheads"
_LIMITS = "gpu_limits of a stack .toml say it; step_tokens and step_requests set by hand hold on every GPU"
_OF_A_STACK: Mapping[str, str] = {
    **dict.fromkeys(("fused_residual_add", "fused_ladder_add", "compiled_blocks"), _ADD),
    "prefill_cuda_graphs": _GRAPHS,
    **dict.fromkeys(("sharded_lm_head", "sharded_embedding"), _VOCABULARY),
    **dict.fromkeys(("gemv_factor", "gemm_factor", "prompt_factor", "attention_factor"), _MEASURED),
    **dict.fromkeys(("small_kernel_factor", "batched_attention_s", "graph_launch_s", "sustained_share"), _MEASURED),
    "kernel_gap_s": _MEASURED,
    "expert_launch_s": "models with experts take eager_launch, and at most 5 us unless that is set by hand",
    "fused_allreduce_norm": f"{_OWN}, by fused_norm_rules; --stack vllm@0.16 fuses none",
    **dict.fromkeys(("fused_norm_rules", "allreduce_rules", "allreduce_copies"), _OWN),
    "custom_allreduce_without_nvlink": _OWN,
    "expert_padding": "padded_share says it: above 0, experts are padded to 128 rows",
    **dict.fromkeys(("large_gpu_step_tokens", "small_gpu_step_tokens", "ampere_step_tokens"), _LIMITS),
    **dict.fromkeys(("small_gpu_step_requests", "ampere_step_requests"), _LIMITS),
    "static_reserve": 'memory_fraction = 0 with memory_fraction_of = "static" is SGLang\'s default',
    "version": 'the name says it: "vllm@0.12"',
}


def instead_of(setting: str) -> str:
    """Return what to write instead of a setting that went, named with or without its unit; empty if it did not.

    Examples
    --------
    >>> instead_of("stack.prefill_cuda_graphs"), instead_of("stack.stream_wait")
    ('cuda_graphs says it: "off", "decode" or "all"', '')
    """
    section, _, field = setting.partition(".")
    names = _OF_A_STACK if section == "stack" else {}
    return next((way for name, way in names.items() if field in (name, short_name(name))), "")


def check_stack_keys(table: Mapping[str, object], where: str) -> None:
    """Refuse a table of a stack's file with fields that went: all are named, with what to write instead."""
    ways = {key: way for key in table if (way := instead_of(f"stack.{key}"))}
    if ways:
        raise SpecError(
            f"{where}: {', '.join(ways)}: no such field any more", hint="; ".join(dict.fromkeys(ways.values()))
        )
