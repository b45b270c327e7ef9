"""Rules that one value must keep, and what to do instead of a name that no catalog holds."""

import re
from collections.abc import Iterable

from ladder_sim.errors import SpecError, UnknownNameError, nearest
from ladder_sim.units import quoted, unit_of

_OTHER_WEIGHTS = "weights of this format are not simulated, and no other format stands in for them"
_NOT_MEASURED = (
    "no measurements of it are shipped, and no other GPU stands in for it: start a file of its figures from "
    "`ladder-sim list h100-sxm --toml > mine.toml`"
)
# by kind of name: a pattern of names in lower case, and the way out; the first that fits counts
_ANSWERS: dict[str, tuple[tuple[str, str], ...]] = {
    "dtype": (
        (r"(nv[-_])?fp4", "write nvfp4: 4-bit floats with a scale for each 16"),
        (r"u?int4|awq|gptq", "write w4a16: 4-bit weights, 16-bit inputs (AWQ, GPTQ)"),
        (r"nf4|w4a\d+|q4\w*", _OTHER_WEIGHTS),
        (r"bfloat16|bf-16", "write bf16"),
        (r"float16|half|fp-16", "write fp16"),
        (
            r"float8\w*|fp8_?e\dm\d\w*|e4m3\w*|e5m2\w*|w8a8",
            "write fp8: weights and activations; kv_dtype is the cache's",
        ),
    ),
    "model": (
        (r".*\b(awq|gptq|int4|w4a16)\b.*", "take the id of the unquantized model with --dtype w4a16"),
        (r".*\bnvfp4\b.*", "take the id of the unquantized model with --dtype nvfp4"),
        (r".*\b(gguf|[48]bit|bnb)\b.*", _OTHER_WEIGHTS),
        (r".*\b(fp8|w8a8)\b.*", "take the id of the unquantized model with --dtype fp8"),
    ),
    "cluster": (
        (r"(h20|h800|a800|gb300|l4|l40|a10g?|a40|v100|t4|mi\d+\w*|tpu.*|gaudi.*)(\b.*)?", _NOT_MEASURED),
        (r"(a100|h200|b[23]00)-pcie", _NOT_MEASURED),
    ),
    "stack": ((r"tensor-?rt(-?llm)?|trt(-llm)?", "write trtllm"),),
}


def whole(value: object, what: str, minimum: int, maximum: int, *, hint: str = "") -> int:
    """Require a whole number within bounds, both included; `what` names it."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise SpecError(
            f"{what} is {quoted(value)}: must be a whole number from {minimum} to {maximum}",
            hint=hint or "give a whole number in that range",
        )
    return value


def real(value: object, what: str, maximum: float, *, zero: bool = False, hint: str = "") -> float:
    """Require a number above zero (or from zero, with `zero`) and up to `maximum`."""
    # NaN fails every comparison, infinity the last
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else -1
    if 0 < number <= maximum or (zero and number == 0):
        return number
    floor = "from 0" if zero else "above 0"
    raise SpecError(
        f"{what} is {quoted(value)}: must be a number {floor} and up to {maximum:g}",
        hint=hint or "give a number in that range" + (", in SI base units" if unit_of(what) != "count" else ""),
    )


def flag(value: object, what: str) -> bool:
    """Require true or false."""
    if not isinstance(value, bool):
        raise SpecError(f"{what} is {quoted(value)}: must be true or false", hint="write true or false")
    return value


def choice(value: object, what: str, names: Iterable[str]) -> str:
    """Require one of some names; the nearest is suggested."""
    names = tuple(names)
    if not isinstance(value, str):
        raise SpecError(f"{what} is {quoted(value)}: must be one of {', '.join(names)}", hint=f"write e.g. {names[0]}")
    if value not in names:
        raise UnknownNameError(what, value, names, answer=answer(what.rpartition(".")[2], value))
    return value


def nonempty(value: object, what: str) -> str:
    """Require text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{what} is {quoted(value)}: must be text, not empty", hint=f"give {what} a name")
    return value


def answer(kind: str, name: str) -> str:
    """What to do instead of a name that no catalog holds; empty if there is nothing to say.

    Examples
    --------
    >>> answer("stack", "TensorRT-LLM"), answer("dtype", "bf61")
    ('write trtllm', '')
    """
    return next((way for pattern, way in _ANSWERS.get(kind, ()) if re.fullmatch(pattern, name.strip().lower())), "")


def same_size(name: str, names: tuple[str, ...]) -> str:
    """The models with as many parameters as a name says, in words; empty if it says none, or is one of them mistyped.

    Examples
    --------
    >>> same_size("llama3-70b", ("llama-2-70b", "llama-3.1-70b", "llama-3.1-8b"))
    'models of 70b: llama-2-70b, llama-3.1-70b'
    >>> same_size("llama-3.1-8", ("llama-3.1-8b",)), same_size("llama-31-8b", ("llama-3.1-8b",))
    ('', '')
    """
    size = re.search(r"(?<![\w.])\d+(\.\d+)?b\b", name.lower())
    equal = [each for each in names if size and each.endswith(f"-{size[0]}")]
    mistyped = equal == [nearest(name, names)]
    return f"models of {size[0]}: {', '.join(equal)}" if size and equal and not mistyped else ""
