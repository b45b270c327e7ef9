"""Results on disk: read again to be shown, or to use their calibration for the same runs on the same machine."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, get_args

import numpy as np

from calibration.crosscheck.predict import Calibration
from ladder_sim.costs.lookup import Curve
from ladder_sim.costs.recorded import Overlap
from ladder_sim.errors import ProfileError, UsageError
from ladder_sim.graph.ops import Shape
from ladder_sim.specs.scenario import Scenario
from ladder_sim.system.files import read_text

SCHEMA_VERSION = 2
_SHAPES = {shape.__name__: shape for shape in get_args(Shape)}
_WHAT = "a result that `crosscheck --json` wrote"
# the entries of an environment that times depend on
_MACHINE = ("cpu", "cpu_cores", "gpu", "driver", "torch", "nccl")


def read_result(file: Path) -> dict[str, Any]:
    """Read an earlier result; raises UsageError if the file is not one."""
    text = read_text(file, what=_WHAT, error=UsageError)
    try:
        result = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--from '{file}' cannot be read: {error}", hint=f"give {_WHAT}") from error
    if not isinstance(result, dict) or result.get("schema_version") != SCHEMA_VERSION or "rows" not in result:
        raise UsageError(f"--from '{file}' is not a result of a cross-check", hint="give a file that --json wrote")
    return result


def _refuse(name: str) -> NoReturn:
    """Called for NaN and infinity, which JSON does not have."""
    raise ValueError(f"it holds {name}")


def calibration_fields(calibration: Calibration) -> dict[str, Any]:
    """A calibration as JSON, without its scenario."""
    return {
        "kernels": [
            {"kind": kind, "shape": type(shape).__name__, **dataclasses.asdict(shape), "seconds": seconds}
            for (kind, shape), seconds in calibration.kernels.items()
        ],
        "links": {
            name: {kind: {"bytes": c.size_bytes.tolist(), "seconds": c.seconds.tolist()} for kind, c in curves.items()}
            for name, curves in calibration.links.items()
        },
        "resume_s": dict(calibration.resume_s),
        "beside": [{"bytes": size, **slowdown._asdict()} for size, slowdown in calibration.overlaps.items()],
    }


def reuse(file: Path, scenario: Scenario, run: Mapping[str, Any], machine: Mapping[str, Any]) -> Calibration:
    """Take the calibration of an earlier result.

    `run` and `machine` are what runs, as far as costs depend on it, and this machine's environment, both in the form of
    a result. Raises ProfileError if the file is not a result, or is one of other runs or another machine.
    """
    text = read_text(file, what=_WHAT, error=ProfileError)
    try:
        result = json.loads(text)
        values = {name: (result["run"][name], value) for name, value in run.items()}
        values |= {name: (result["environment"].get(name), machine.get(name)) for name in _MACHINE}
        different = [f"{name} {earlier} instead of {now}" for name, (earlier, now) in values.items() if earlier != now]
        if different:
            raise ProfileError(
                f"calibration '{file}' is of other runs or another machine: {', '.join(different)}",
                hint="leave out --calibration to measure again",
            )
        return _calibration(result["calibration"], scenario)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProfileError(f"'{file}' holds no calibration: {error!r}", hint="give a file that --json wrote") from None


def _calibration(fields: Mapping[str, Any], scenario: Scenario) -> Calibration:
    curves = [curve for link in fields["links"].values() for curve in link.values()]
    positive = [kernel["seconds"] for kernel in fields["kernels"]]
    positive += [value for curve in curves for key in ("bytes", "seconds") for value in curve[key]]
    shares = [overlap[key] for overlap in fields["beside"] for key in ("core_share", "slowed")]
    if not all(0.0 < value < math.inf for value in positive):
        raise ValueError("sizes and seconds must be above 0 and finite")
    if not all(0.0 <= value < math.inf for value in (*fields["resume_s"].values(), *shares)):
        raise ValueError("waits and shares must be 0 or more and finite")
    kernels = {}
    for kernel in fields["kernels"]:
        sizes = dict(kernel)
        kind, shape, seconds = sizes.pop("kind"), _SHAPES[sizes.pop("shape")], float(sizes.pop("seconds"))
        kernels[kind, shape(**sizes)] = seconds
    return Calibration(
        scenario=scenario,
        kernels=kernels,
        links={
            name: {
                kind: Curve(size_bytes=np.array(points["bytes"]), seconds=np.array(points["seconds"]))
                for kind, points in link.items()
            }
            for name, link in fields["links"].items()
        },
        resume_s=fields["resume_s"],
        overlaps={overlap["bytes"]: Overlap(overlap["core_share"], overlap["slowed"]) for overlap in fields["beside"]},
    )
