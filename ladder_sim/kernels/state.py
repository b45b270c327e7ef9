"""Recurrent states of sequences, and the short convolutions in front of them."""

from dataclasses import dataclass
from typing import Any, ClassVar

from ladder_sim.hf.mixer import Rule
from ladder_sim.kernels.attention import InContext
from ladder_sim.kernels.shape import STATE_BYTES, Lookup, TableKind, Work

# arithmetic of one token with each element of a state: decayed, read by the key, corrected, and read by the query, each
# a multiplication and an addition (gated delta rule, arXiv 2412.06464, equation 10); simpler rules take less
STATE_FLOPS = 8.0
# in tables: bytes of an element, and elements that share a row of query, key, value and output (Qwen3.5, Kimi Linear)
TABLE_ELEMENT_BYTES, TABLE_ROW = 4.0, 128.0
# rules whose convolution another's stands for, where it was not measured
STAND_INS = dict.fromkeys(("", "kda", "mamba2"), "gated-delta")


def _state(of: Any, *, elements: Any, q_len: Any = 1) -> "StateShape":
    return StateShape(
        batch=1,
        q_len=q_len,
        kv_len=q_len,
        rule=of,
        elements=elements,
        state_bytes=TABLE_ELEMENT_BYTES * elements,
        token_bytes=4.0 * STATE_BYTES * elements / TABLE_ROW,
    )


def _convolution(of: Any, *, channels: Any, q_len: Any = 1) -> "ConvolutionShape":
    return ConvolutionShape(batch=1, q_len=q_len, kv_len=q_len, rule=of, channels=channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfStates(InContext):
    """What takes as long for states of several sequences as for a larger one, whatever the context."""

    reads_context: ClassVar[bool] = False

    rule: Rule
    """How tokens change the state."""

    def _in_tables(self, name: str, axis: str, size: float) -> Lookup:
        """Return where tables hold it, `size` being that of one sequence."""
        point: dict[str, Any] = {axis: self.batch * size}
        if not self.is_prompt:
            return Lookup(f"{name}_decode", self.rule, point)
        return Lookup(f"{name}_prefill", self.rule, {**point, "q_len": self.q_len})


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape(_OfStates):
    """A recurrent state of each sequence, which new tokens change and read."""

    tables: ClassVar = (
        TableKind("state_prefill", "prefill states", ("elements", "q_len"), _state, has_formula=True),
        TableKind("state_decode", "decode states", ("elements",), _state, has_formula=True),
    )

    elements: float
    """Elements of one sequence's state on this rank."""
    state_bytes: float
    """The same in bytes, with what convolutions keep."""
    token_bytes: float
    """What enters and leaves for one new token."""

    @property
    def work(self) -> Work:
        """The states twice, and what enters and leaves."""
        states, tokens = 1.0 * self.batch * self.state_bytes, self.batch * self.q_len
        return Work(2.0 * states + tokens * self.token_bytes, tokens * STATE_FLOPS * self.elements, states)

    @property
    def lookup(self) -> Lookup:
        return self._in_tables("state", "elements", self.elements)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionShape(_OfStates):
    """A short convolution along each sequence, channel by channel."""

    tables: ClassVar = (
        TableKind("convolution_prefill", "prefill convolutions", ("channels", "q_len"), _convolution, STAND_INS, True),
        TableKind("convolution_decode", "decode convolutions", ("channels",), _convolution, STAND_INS, True),
    )

    channels: float
    """Channels on this rank."""

    @property
    def work(self) -> Work:
        """What enters and leaves."""
        return Work(2.0 * STATE_BYTES * self.batch * self.q_len * self.channels)

    @property
    def lookup(self) -> Lookup:
        return self._in_tables("convolution", "channels", self.channels)
