"""Options of inference engines by their own names, as in ``--set max-num-seqs=256``: fields of a stack."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Self

from ladder_sim.errors import UsageError
from ladder_sim.specs.stack import StackSpec

# fields of a stack by option. vLLM 0.32.0, engine/arg_utils.py; SGLang 0.5.10, server_args.py; TensorRT-LLM's
# documentation, "LLM API Reference" (TorchLlmArgs, KvCacheConfig)
_OPTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "vllm": {
            "max-num-seqs": "step_requests",
            "max-num-batched-tokens": "step_tokens",
            "gpu-memory-utilization": "memory_fraction",
            "max-model-len": "max_context",
            "enable-prefix-caching": "prefix_cache",
        },
        "sglang": {
            "max-running-requests": "step_requests",
            "chunked-prefill-size": "step_tokens",
            "mem-fraction-static": "memory_fraction",
            "context-length": "max_context",
            "disable-radix-cache": "prefix_cache",
        },
        "trtllm": {
            "max-batch-size": "step_requests",
            "max-num-tokens": "step_tokens",
            "free-gpu-memory-fraction": "memory_fraction",
            "max-seq-len": "max_context",
            "enable-block-reuse": "prefix_cache",
        },
    }
)


class EngineOption(NamedTuple):
    """An option of one engine."""

    name: str
    """As its command line has it, without dashes before it."""
    engine: str
    field: str
    """Field of `StackSpec`."""

    @classmethod
    def find(cls, key: str) -> Self | None:
        """Return the option that a key names, with "-" or "_" between words; None if no engine has it.

        Examples
        --------
        >>> EngineOption.find("max_num_seqs")
        EngineOption(name='max-num-seqs', engine='vllm', field='step_requests')
        """
        name = key.strip().lower().replace("_", "-")
        return next((cls(name, engine, own[name]) for engine, own in _OPTIONS.items() if name in own), None)

    def field_value(self, value: object) -> object:
        """Return the field's value for one of the option, which may say the opposite."""
        return not value if _disables(self.name) else value

    def check_stack(self, stack: StackSpec) -> None:
        """Require that the option is one of the stack's engine."""
        if stack.engine == self.engine:
            return
        own = names_of(self.field).get(stack.engine, "")
        opposite = " (the opposite)" if _disables(own) != _disables(self.name) else ""
        raise UsageError(
            f"{self.name} is an option of {self.engine}, and the stack is '{stack.name}'",
            hint=f"{stack.engine} calls it {own}{opposite}" if own else f"leave it out, or take --stack {self.engine}",
        )


def _disables(name: str) -> bool:
    return name.startswith("disable-")


def option_names() -> list[str]:
    """Return the names of all options."""
    return [name for own in _OPTIONS.values() for name in own]


def name_in(stack: StackSpec, field: str) -> str:
    """Return what a stack's engine calls a field, or else its name for ``--set``."""
    return names_of(field).get(stack.engine, f"stack.{field}")


def names_of(field: str) -> dict[str, str]:
    """Return what engines call a field of a stack, by engine.

    Examples
    --------
    >>> names_of("step_requests")
    {'vllm': 'max-num-seqs', 'sglang': 'max-running-requests', 'trtllm': 'max-batch-size'}
    """
    return {engine: name for engine, own in _OPTIONS.items() for name, each in own.items() if each == field}
