"""Arguments of the public functions, checked by the types that their signatures state."""

import inspect
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, Unpack, get_args, get_origin, get_type_hints

from ladder_sim.errors import UsageError, nearest
from ladder_sim.units import quoted

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
    """Types by parameter; of ``**keywords: Unpack[...]`` those of its keys."""
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

    Raises
    ------
    UsageError
        It does not fit.
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
