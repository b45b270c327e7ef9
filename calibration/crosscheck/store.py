"""A calibration as JSON, so that a later cross-check of the same runs on the same machine need not measure it again."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from calibration.crosscheck.predict import Calibration
from ladder_sim.costs.lookup import Curve
from ladder_sim.costs.recorded import Overlap
from ladder_sim.errors import ProfileError
from ladder_sim.graph.ops import Shape
from ladder_sim.specs.scenario import Scenario

_SHAPES = {shape.__name__: shape for shape in get_args(Shape)}
# of an environment: what times depend on
_MACHINE = ("cpu", "cpu_cores", "gpu", "driver", "torch", "nccl")


def to_json(calibration: Calibration) -> dict[str, Any]:
    """Everything but the scenario."""
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
        "beside": [{"bytes": size, **taken._asdict()} for size, taken in calibration.beside.items()],
    }


def reuse(file: Path, scenario: Scenario, run: Mapping[str, Any], machine: Mapping[str, Any]) -> Calibration:
    """The calibration of an earlier result.

    Parameters
    ----------
    file
        The result.
    scenario
        What runs.
    run, machine
        The same in the form of a result; `run` without what does not change costs.

    Raises
    ------
    ProfileError
        It is no result, of other runs, or of another machine.
    """
    try:
        result = json.loads(file.read_text("utf-8"))
        earlier = {name: (result["run"][name], value) for name, value in run.items()}
        earlier |= {name: (result["environment"].get(name), machine.get(name)) for name in _MACHINE}
        different = [f"{name} {was} instead of {now}" for name, (was, now) in earlier.items() if was != now]
        if different:
            raise ProfileError(
                f"calibration '{file}' is of something else: {', '.join(different)}",
                hint="leave out --calibration, and it is measured anew",
            )
        return _from_json(result["calibration"], scenario)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProfileError(f"'{file}' holds no calibration: {error!r}", hint="give what --json wrote") from None


def _from_json(found: Mapping[str, Any], scenario: Scenario) -> Calibration:
    kernels = {}
    curves = [curve for link in found["links"].values() for curve in link.values()]
    positive = [kernel["seconds"] for kernel in found["kernels"]]
    positive += [value for curve in curves for key in ("bytes", "seconds") for value in curve[key]]
    shares = [one[key] for one in found["beside"] for key in ("core_share", "slowed")]
    if not all(0.0 < value < math.inf for value in positive):
        raise ValueError("sizes and seconds must be above 0 and finite")
    if not all(0.0 <= value < math.inf for value in (*found["resume_s"].values(), *shares)):
        raise ValueError("waits and shares must be 0 or more and finite")
    for kernel in found["kernels"]:
        fields = dict(kernel)
        kind, shape, seconds = fields.pop("kind"), _SHAPES[fields.pop("shape")], float(fields.pop("seconds"))
        kernels[kind, shape(**fields)] = seconds
    return Calibration(
        scenario=scenario,
        kernels=kernels,
        links={
            name: {
                kind: Curve(size_bytes=np.array(points["bytes"]), seconds=np.array(points["seconds"]))
                for kind, points in curves.items()
            }
            for name, curves in found["links"].items()
        },
        resume_s=found["resume_s"],
        beside={one["bytes"]: Overlap(one["core_share"], one["slowed"]) for one in found["beside"]},
    )
