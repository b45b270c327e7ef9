"""Rules that values must keep: one by one, and by their types as fields of a spec or arguments of a public function."""

import ast
import dataclasses
import inspect
import itertools
import os
import re
import textwrap
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from functools import cache, partial, wraps
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

from ladder_sim.errors import SpecError, UnknownNameError, UsageError, nearest
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
    # of ids on the Hub it is known from which checkpoints they could stem
    "model": (
        (r"[^/]*\b(awq|gptq|int4|w4a16)\b[^/]*", "take the id of the unquantized model with --dtype w4a16"),
        (r"[^/]*\bnvfp4\b[^/]*", "take the id of the unquantized model with --dtype nvfp4"),
        (r".*\b(gguf|[48]bit|bnb)\b.*", _OTHER_WEIGHTS),
        (r"[^/]*\b(fp8|w8a8)\b[^/]*", "take the id of the unquantized model with --dtype fp8"),
    ),
    "cluster": (
        (r"(h800|a800|l4|l40|a10g?|a40|v100|t4|mi(?!300|325|355)\d+\w*|tpu.*|gaudi.*)(\b.*)?", _NOT_MEASURED),
        (r"(a100|h200|b[23]00)-pcie", _NOT_MEASURED),
    ),
    "stack": ((r"tensor-?rt(-?llm)?|trt(-llm)?", "write trtllm"),),
    # which simulates
    "engine": ((r"(vllm|sglang|trt-?llm|gpt-fast)(@.*)?", 'it is a stack: write stack="NAME", or --stack NAME'),),
}


def whole(value: object, what: str, minimum: int, maximum: int, *, hint: str = "") -> int:
    """Require a whole number within bounds, both included; `what` names it."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise SpecError(
            f"{what} is {quoted(value)}: must be a whole number from {minimum} to {maximum}",
            hint=hint or "give a whole number in that range",
        )
    return value


def real(
    value: object, what: str, maximum: float, *, minimum: float = 0.0, zero: bool = False, hint: str = ""
) -> float:
    """Require a number above `minimum` (or from zero or any other minimum, with `zero`) and up to `maximum`."""
    # NaN fails every comparison, infinity the last
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else -1
    if minimum < number <= maximum or (zero and number == minimum):
        return number
    floor = f"{'from' if zero else 'above'} {minimum:g}"
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
    """Return what to do instead of a name that no catalog holds; empty if there is nothing to say.

    Examples
    --------
    >>> answer("stack", "TensorRT-LLM"), answer("dtype", "bf61")
    ('write trtllm', '')
    """
    name = name.strip().lower()
    ways = (way for pattern, way in _ANSWERS.get(kind, ()) if re.fullmatch(pattern, name))
    return next(ways, "").replace("NAME", name)


def same_size(name: str, names: tuple[str, ...]) -> str:
    """Return the models with as many parameters as a name says, in words.

    The text is empty if the name says no number, or is one of those models mistyped.

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


class Limits(NamedTuple):
    """What a number may be; annotates a field."""

    minimum: float
    maximum: float
    above: bool = False
    """The minimum itself is not allowed."""
    hint: str = ""
    """The way out of an error."""


# in SI units: a thousand times the rate of one device, the memory of one device, one operation
Rate = Annotated[float, Limits(0, 1e18, above=True)]
Bytes = Annotated[float, Limits(0, 1e15)]
Seconds = Annotated[float, Limits(0, 10.0)]


def check_fields(spec: Any, where: str = "") -> None:
    """Require of a spec that numbers are within their `Limits`, flags are flags and choices are choices."""
    for name, check in _checks(spec.__class__):
        check(getattr(spec, name), f"{where}: {name}" if where else name)


@cache
def _checks(spec: type) -> Sequence[tuple[str, Callable[[Any, str], object]]]:
    return [(name, check) for name, kind in field_kinds(spec).items() if (check := _check_of(kind))]


def _check_of(kind: Any) -> Callable[[Any, str], object] | None:
    limits = limits_of(kind)
    if kind is bool:
        return flag
    if get_origin(kind) is Literal:
        return partial(choice, names=get_args(kind))
    if limits is None:
        return None
    number = get_args(kind)[0]
    check = (
        partial(whole, minimum=int(limits.minimum), maximum=int(limits.maximum), hint=limits.hint)
        if number in (int, int | None)
        else partial(real, minimum=limits.minimum, maximum=limits.maximum, zero=not limits.above, hint=limits.hint)
    )
    if NoneType not in get_args(number):
        return check
    return lambda value, what: None if value is None else check(value, what)


@cache
def field_kinds(spec: type) -> Mapping[str, Any]:
    """Return the types of a spec's fields by name, `Limits` included."""
    hints = get_type_hints(spec, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(spec)}


def settable_fields(spec: type) -> dict[str, object]:
    """Return the types of the fields that one value can set, by name: numbers, flags, choices and text."""
    kinds = {name: get_args(kind)[0] if limits_of(kind) else kind for name, kind in field_kinds(spec).items()}
    return {n: kind for n, kind in kinds.items() if kind in (int, float, bool, str) or get_origin(kind) is Literal}


def limits_of(kind: Any) -> Limits | None:
    """Return what the numbers of a field may be, by its type; None if it holds no number."""
    limits: Limits | None = get_args(kind)[1] if get_origin(kind) is Annotated else None
    return limits


@cache
def meanings(spec: type) -> Mapping[str, str]:
    """Return what the fields of a spec mean, by name: the docstrings under them, as plain text.

    Examples
    --------
    >>> from ladder_sim.specs.workload import Workload
    >>> meanings(Workload)["batch"]
    'Requests that start together, in a static batch.'
    """
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(spec))).body
    bases = [meanings(base) for base in spec.__bases__ if dataclasses.is_dataclass(base)]
    texts = {name: text for base in bases for name, text in base.items()}
    for field, text in itertools.pairwise(definition.body if isinstance(definition, ast.ClassDef) else ()):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                texts[name] = " ".join(meaning.replace("`", "").split())
    return texts


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_WORDS: Mapping[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    NoneType: "None",
    Mapping: "a dict",
    Sequence: "a list",
}


def typed(*, unless: Container[str] = ()) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Check a function's arguments before a call. Numpy's numbers become Python's, and paths become text.

    Arguments in `unless` the function checks itself, by narrower rules.

    Examples
    --------
    >>> import numpy as np
    >>> @typed()
    ... def doubled(number: int) -> int:
    ...     return 2 * number
    >>> doubled(np.int64(8))
    16
    >>> doubled("8")
    Traceback (most recent call last):
    ...
    ladder_sim.errors.UsageError: number is '8': must be a whole number
      hint: give a whole number, not str
    """

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        signature = inspect.signature(function)
        keywords = next((each.name for each in signature.parameters.values() if each.kind is each.VAR_KEYWORD), "")
        # when they are first needed: they name classes that are imported late
        hints = cache(lambda: _hints(function, keywords))

        @wraps(function)
        def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            # what takes any keyword checks them itself
            if keywords not in hints():
                _check_names(function, kwargs, {*signature.parameters, *hints()} - {"self", keywords, "return"})
            bound = signature.bind(*args, **kwargs)
            for given in (bound.arguments, bound.arguments.get(keywords, {})):
                for name, value in given.items():
                    if name in hints():
                        given[name] = checked(value, hints()[name], "" if name in unless else name)
            return function(*bound.args, **bound.kwargs)

        return call

    return decorate


def _hints(function: Callable[..., object], keywords: str) -> dict[str, Any]:
    """Return the types by parameter; of ``**keywords: Unpack[...]`` the types by key."""
    hints = get_type_hints(function)
    if get_origin(hints.get(keywords)) is Unpack:
        (of_keys,) = get_args(hints.pop(keywords))
        hints |= get_type_hints(of_keys)
    return hints


def _check_names(function: Callable[..., object], given: Iterable[str], known: Set[str]) -> None:
    """Raise TypeError with the nearest name for a keyword that a function does not have."""
    for name in given:
        if name not in known:
            called = function.__qualname__.removesuffix(".__init__")
            near = nearest(name, known)
            meant = f"; did you mean '{near}'?" if near else f"; it has {', '.join(sorted(known))}"
            raise TypeError(f"{called}() has no argument '{name}'{meant}")


def checked(value: Any, hint: Any, name: str) -> Any:
    """Return a value as its type: numbers of numpy as Python's, and paths as text; with a name, it must fit.

    Raises UsageError if it does not fit.
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if str in kinds and isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif getattr(value, "ndim", None) == 0:
        # a scalar of numpy
        value = value.item()
    if name and not any(_fits(value, kind) for kind in kinds):
        rule = " or ".join(dict.fromkeys(_words(kind) for kind in kinds))
        raise UsageError(f"{name} is {quoted(value)}: must be {rule}", hint=f"give {rule}, not {type(value).__name__}")
    return value


def _fits(value: Any, kind: Any) -> bool:
    origin = get_origin(kind)
    if kind is Any or isinstance(kind, TypeVar):
        return True
    if origin is Literal:
        # which one, the function checks
        return isinstance(value, str)
    if origin is Sequence and isinstance(value, Sequence):
        return all(_fits(each, get_args(kind)[0]) for each in value)
    if origin is Callable or getattr(kind, "_is_protocol", False):
        return callable(value)
    if isinstance(value, bool) and kind in (int, float):
        return False
    return isinstance(value, (int, float) if kind is float else origin or kind)


def _words(kind: Any) -> str:
    kind = str if get_origin(kind) is Literal else get_origin(kind) or kind
    return _WORDS.get(kind) or f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
