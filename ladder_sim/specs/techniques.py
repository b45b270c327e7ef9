"""Techniques that hide or shorten communication without another model, and which of them go together.

What each does to a pass is in `ladder_sim.graph.techniques`.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.units import quoted


class Support(NamedTuple):
    """An engine, or several, that have a technique or a wiring today."""

    engine: str
    """Name of the engine, and the part of the technique that it has."""
    source: str
    """Version and file, change or paper that says so."""


def engines(support: Sequence[Support]) -> str:
    """Return the names of the engines; "none" if there are none."""
    return "; ".join(each.engine for each in support) or "none"


def with_sources(support: Sequence[Support]) -> str:
    """Return the engines that support a technique, with sources, as text."""
    return "; ".join(f"{each.engine} ({each.source})" for each in support) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Technique:
    """One technique."""

    summary: str
    """What it does, in a line."""
    parameters: tuple[str, ...] = ()
    """What may follow its name and a colon; the first by default."""
    exact: bool = True
    """The answers stay the same, up to rounding."""
    limit: bool = False
    """No engine can have it: what is possible at best."""
    splits: bool = False
    """Each rank keeps a share of the residual stream: all-reduces become reduce-scatters and all-gathers."""
    needs: str = ""
    """Links and messages without which it does nothing."""
    support: Sequence[Support] = ()
    """Engines that have it."""

    @property
    def answers(self) -> str:
        """What becomes of the answers, in a word."""
        return "the same" if self.exact else "others"


TECHNIQUES: Mapping[str, Technique] = {
    "fused-norm": Technique(
        summary="all-reduce, residual add and norm are one kernel",
        needs="one node with an NVLink switch",
        support=(
            Support("vLLM, small messages", "0.32.0, allreduce_rms_fusion.py"),
            Support("TensorRT-LLM, small messages", "plugin/plugin.py"),
            Support("TokenWeave, any size", "vLLM 0.8.5, arXiv 2505.11329"),
        ),
    ),
    "weight-prefetch": Technique(
        summary="the next GEMM's weights are read into the L2 cache during an all-reduce",
        needs="a GPU whose L2 cache is known; decode steps of at most 128 tokens",
        # PRESERVE has it on Ascend (arXiv 2501.08192); no engine for these GPUs
        support=(),
    ),
    "sequence-parallel": Technique(
        summary="reduce-scatter, norm of a share of the tokens, all-gather",
        splits=True,
        needs="prompts or large batches: two messages in place of one",
        support=(Support("Megatron-LM", "arXiv 2205.05198"), Support("vLLM", "vllm-project/vllm#39505")),
    ),
    "gemm-overlap": Technique(
        summary="sequence parallel, with GEMMs and collectives chunk by chunk",
        splits=True,
        needs="prompts or batches of 8 MiB for each rank",
        support=(
            Support("vLLM, asynchronous TP", "vllm-project/vllm#17882, #39505"),
            Support("Flux", "arXiv 2406.06858"),
        ),
    ),
    "quantized-allreduce": Technique(
        summary="large all-reduces in 8 or 4 bits, in two shots",
        parameters=("int8", "fp8", "int4"),
        exact=False,
        needs="one node; prompts or batches with all-reduces of 2 MiB",
        support=(
            Support("vLLM, on AMD", "0.32.0, quick_all_reduce.py"),
            Support("vLLM, a proposed change", "vllm-project/vllm#39783"),
            Support("SGLang, on AMD", "sgl-project/sglang#6619"),
        ),
    ),
    "ideal-overlap": Technique(
        summary="a limit: each layer's collectives run next to its own kernels, at no cost", limit=True
    ),
    "token-split": Technique(
        summary="parts of the batch take turns, so that all-reduces of one overlap blocks of another",
        parameters=("2", "3", "4"),
        needs="prompts of 512 tokens, or 32 requests that decode",
        support=(
            Support("TokenWeave", "vLLM 0.8.5, arXiv 2505.11329"),
            Support("vLLM, for experts", "0.32.0, --enable-dbo"),
            Support("SGLang, for experts", "sgl-project/sglang#7255"),
            Support("NanoFlow", "arXiv 2408.12757"),
        ),
    ),
}

# why two of them cannot be combined
CONFLICTS: Mapping[frozenset[str], str] = {
    frozenset({"fused-norm", "sequence-parallel"}): "reduce-scatters leave no all-reduce to fuse",
    frozenset({"fused-norm", "gemm-overlap"}): "reduce-scatters leave no all-reduce to fuse",
    frozenset({"fused-norm", "quantized-allreduce"}): "no kernel does both",
    frozenset({"weight-prefetch", "sequence-parallel"}): "the GEMM reads its weights behind a norm of a share",
    frozenset({"weight-prefetch", "gemm-overlap"}): "the GEMM runs during its collective",
    frozenset({"weight-prefetch", "ideal-overlap"}): "nothing is left to overlap",
    frozenset({"weight-prefetch", "token-split"}): "the all-reduces run next to GEMMs of other tokens",
    frozenset({"sequence-parallel", "gemm-overlap"}): "gemm-overlap is sequence parallel, chunk by chunk",
    frozenset({"sequence-parallel", "quantized-allreduce"}): "no all-reduce is left to quantise",
    frozenset({"gemm-overlap", "quantized-allreduce"}): "no all-reduce is left to quantise",
    frozenset({"gemm-overlap", "ideal-overlap"}): "nothing is left to overlap",
    frozenset({"ideal-overlap", "token-split"}): "nothing is left to overlap",
    frozenset({"gemm-overlap", "token-split"}): "both fill the time of the same collectives, and no engine has both",
}


@dataclass(frozen=True, slots=True)
class Techniques:
    """Techniques of a scenario, in the order of `TECHNIQUES`."""

    chosen: tuple[str, ...] = ()
    """Names, with their parameters."""

    @classmethod
    def of(cls, given: "str | Sequence[str] | Techniques") -> Self:
        """Read names, each alone or joined by "+"; "none" for no technique.

        Raises UsageError if one is unknown, given twice, or cannot be combined with another.

        Examples
        --------
        >>> Techniques.of("fused-norm").name, Techniques.of("none").name
        ('fused-norm', 'none')
        """
        if isinstance(given, cls):
            return given
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
            raise UsageError(f"technique is {quoted(given)}: must be a name or several", hint="e.g. 'fused-norm'")
        names = [_canonical(name) for text in texts for name in text.split("+") if name.strip().lower() != "none"]
        for first, second in itertools.combinations(names, 2):
            _check_pair(family_of(first), family_of(second))
        return cls(tuple(sorted(names, key=lambda name: list(TECHNIQUES).index(family_of(name)))))

    @property
    def name(self) -> str:
        """Names of all techniques together, e.g. "fused-norm"; "none" if there are none."""
        return "+".join(self.chosen) or "none"

    @property
    def lossy(self) -> tuple[str, ...]:
        """Names of those that change the answers."""
        return tuple(name for name in self.chosen if not TECHNIQUES[family_of(name)].exact)

    @property
    def splitting(self) -> tuple[str, ...]:
        """Names of those with which each rank keeps a share of the residual stream."""
        return tuple(name for name in self.chosen if TECHNIQUES[family_of(name)].splits)

    def without(self, family: str) -> "Techniques":
        """Return the techniques without one of them."""
        return Techniques(tuple(name for name in self.chosen if family_of(name) != family))

    def check_next_to(self, family: str) -> None:
        """Raise a UsageError if one of them cannot be combined with another technique."""
        for name in self.chosen:
            if family_of(name) != family:
                _check_pair(family_of(name), family)

    def __contains__(self, family: str) -> bool:
        return family in map(family_of, self.chosen)


NO_TECHNIQUES = Techniques()


def technique_names() -> tuple[str, ...]:
    """Return every technique with each of its parameters.

    Examples
    --------
    >>> technique_names()[-3:]
    ('token-split:2', 'token-split:3', 'token-split:4')
    """
    return tuple(
        f"{name}:{parameter}".removesuffix(":")
        for name, technique in TECHNIQUES.items()
        for parameter in technique.parameters or ("",)
    )


def family_of(name: str) -> str:
    """Return a technique's name without its parameter."""
    return name.partition(":")[0]


def parameter_of(name: str) -> str:
    """Return what follows the colon in a technique's name; empty if nothing does."""
    return name.partition(":")[2]


def _canonical(text: str) -> str:
    """Check a technique's name and parameter."""
    name, colon, parameter = text.strip().lower().partition(":")
    if name not in TECHNIQUES:
        raise UnknownNameError("technique", text, TECHNIQUES)
    known = TECHNIQUES[name].parameters
    if colon and parameter not in known:
        takes = f"takes one of {', '.join(known)}" if known else "takes no parameter"
        raise UsageError(f"technique '{text}': '{name}' {takes}", hint=f"write '{':'.join([name, *known[:1]])}'")
    return ":".join([name, *([parameter] if parameter else known[:1])])


def _check_pair(first: str, second: str) -> None:
    if first == second:
        raise UsageError(f"technique '{first}' is given twice: must be given once", hint="leave one out")
    reason = CONFLICTS.get(frozenset((first, second)))
    if reason is not None:
        raise UsageError(f"'{first}' and '{second}' cannot be combined: {reason}", hint="leave one out")
