"""What a public function was asked about: a scenario, or the arguments of one as keywords."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.specs.arguments import ARGUMENTS, keywords_of
from ladder_sim.specs.scenario import Scenario

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def scenario_asked(scenario: Scenario | None, fields: Mapping[str, Any]) -> Scenario:
    """Return the scenario, or the one that the keywords make.

    Raises
    ------
    UnknownNameError
        A keyword is no argument of a scenario.
    UsageError
        Both were given, or the keywords make none.
    """
    _check(scenario, fields)
    return Scenario(**fields) if scenario is None else scenario


def point_asked(scenario: Scenario | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments and settings that were given, in one dict, as a point of a grid has them.

    Raises
    ------
    UnknownNameError
        A keyword is no argument of a scenario.
    UsageError
        A scenario and keywords were given.
    """
    _check(scenario, fields)
    given = dict(fields if scenario is None else scenario.given)
    given.pop("variant", None)
    return given | (given.pop("overrides", None) or {})


def formerly_a_dict(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Take a dict in the place of a scenario, as until version 0.2, with a warning: its items are keywords now."""

    @wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        if not args or not isinstance(args[0], Mapping):
            return function(*args, **kwargs)
        name = function.__name__
        warnings.warn(
            f'{name}({{"model": ...}}, ...) is {name}(Scenario(model=...), ...) now, or {name}(..., model=...)',
            DeprecationWarning,
            stacklevel=2,
        )
        rest, keywords = args[1:], keywords_of(args[0])
        if "axes" in inspect.signature(function).parameters:
            rest, keywords = args, {}
        return function(None, *rest, **{**keywords, **kwargs})  # type: ignore[arg-type]

    return call


def _check(scenario: Scenario | None, fields: Mapping[str, Any]) -> None:
    known = (*ARGUMENTS, "overrides")
    for name in fields:
        # settings have their section's name before a dot
        if name not in known and "." not in name:
            raise UnknownNameError("argument", name, known)
    if scenario is not None and fields:
        first = next(iter(fields))
        raise UsageError(
            f"a scenario and {', '.join(fields)}: must be one of them",
            hint=f"scenario.replace({first}={fields[first]!r}) changes a scenario",
        )
