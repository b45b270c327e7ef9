"""How a run launches its kernels: what was asked for, and what its device and its model allow."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

from ladder_sim.errors import LadderSimError, MissingDependencyError, UsageError
from ladder_sim_runtime.config import ExecutionConfig, Phase, Wish
from ladder_sim_runtime.device import Device, kind_of
from ladder_sim_runtime.model.attention import FLASH_WIDTHS
from ladder_sim_runtime.model.decoder import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What is done."""

    decode: Literal["CUDA graphs", "eager"] = "eager"
    """How decode steps are launched."""
    prefill: Literal["CUDA graphs", "eager"] = "eager"
    """How the prefill is launched."""
    blocks: Literal["compiled", "eager"] = "eager"
    """What attention and MLPs run as."""
    kernels: Literal["fused", "eager"] = "eager"
    """Rotation with cache write, add with norm, activation: one launch each, or one for each operator."""
    missing: tuple[str, ...] = ()
    """Why it is less than what was asked for."""

    @property
    def recorded(self) -> tuple[Phase, ...]:
        """Phases whose steps are recorded."""
        phases: dict[Phase, str] = {"prefill": self.prefill, "decode": self.decode}
        return tuple(phase for phase, launched in phases.items() if launched != "eager")

    @classmethod
    def of(cls, model: Decoder, config: ExecutionConfig) -> Self:
        """Return the execution, as far as possible; what `config` sets to "on" must be possible.

        Raises MissingDependencyError if there is no GPU, or no compiler; UsageError if the sizes of this model's
        kernels change from step to step.
        """
        here = kind_of(model.embedding_VD)
        missing: list[str] = []

        def granted(wish: Wish, problem_of: Callable[[], LadderSimError | None]) -> bool:
            # whether there is a compiler takes seconds to know
            problem = None if wish == "off" else problem_of()
            if problem is None:
                return wish != "off"
            if wish == "on":
                raise problem
            missing.append(problem.message)
            return False

        decode = granted(config.cuda_graphs, lambda: _graph_problem(model) or _attention_problem(model))
        prefill = granted(config.prefill_cuda_graphs, lambda: _graph_problem(model))
        blocks = granted(config.compile, lambda: _compiler_problem(here, by_default=config.compile == "auto"))
        fused = here.has_graphs and granted("auto", lambda: _compiler_problem(here))
        return cls(
            decode="CUDA graphs" if decode else "eager",
            prefill="CUDA graphs" if prefill else "eager",
            blocks="compiled" if blocks else "eager",
            kernels="fused" if fused else "eager",
            missing=tuple(dict.fromkeys(missing)),
        )


EAGER = Execution()


def _graph_problem(model: Decoder) -> LadderSimError | None:
    """Return why no step can be recorded; None if it can."""
    if not kind_of(model.embedding_VD).has_graphs:
        return MissingDependencyError("CUDA graphs need a GPU", hint="leave out --cuda-graphs")
    if model.comm.pipeline.stages > 1:
        return UsageError("CUDA graphs are of one stage alone", hint="leave out --cuda-graphs, or --pp")
    if model.config.experts:
        return UsageError(
            "CUDA graphs replay fixed shapes, and how many tokens an expert gets changes from step to step",
            hint="leave out --cuda-graphs",
        )
    return None


def _attention_problem(model: Decoder) -> LadderSimError | None:
    """Return why no decode step can be recorded; None if it can."""
    attention, weight = model.layers[0].attention, model.embedding_VD
    if model.engine.attention == "math" or attention.flash_decodes(weight):
        return None
    return UsageError(
        "CUDA graphs replay fixed shapes, and this attention's grow with the context: FlashAttention is for grouped "
        f"attention of bf16 or fp16, heads up to {FLASH_WIDTHS[-1]} wide in steps of {FLASH_WIDTHS.step}",
        hint="--attention math reads the whole static cache",
    )


def _compiler_problem(here: Device, *, by_default: bool = False) -> LadderSimError | None:
    if by_default and not here.has_graphs:
        return UsageError(
            "blocks are compiled by default on GPUs alone", hint="--compile compiles them on CPUs as well"
        )
    if not here.compiler_problem:
        return None
    return MissingDependencyError(
        f"nothing can be compiled: {here.compiler_problem}",
        hint="install a C++ compiler, on GPUs Triton as well, or leave out --compile",
    )
