"""Names that no catalog holds and no similar name stands for, and what to do instead."""

import re

from ladder_sim.errors import nearest

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
