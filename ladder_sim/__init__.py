"""Predicts what Ladder Residual gains for tensor-parallel LLM inference, before anyone spends a GPU hour.

The public interface is what ``__all__`` names::

    from ladder_sim import Scenario, advise, predict, sweep

docs/development.md walks from a flag to its answer, room by room. Who may import whom is stated in ``pyproject.toml``
(``[tool.importlinter]``). Packages that are slow to import (scipy, pydantic, plotly) are imported in the function that
needs them, so that importing this package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ladder_sim.analysis.advise import advise
    from ladder_sim.analysis.breakeven import breakeven
    from ladder_sim.analysis.compare import compare
    from ladder_sim.analysis.sensitivity import sensitivity
    from ladder_sim.analysis.versus import versus
    from ladder_sim.conditioning import condition
    from ladder_sim.prediction import Prediction, Predictions, predict
    from ladder_sim.serving.capacity import capacity
    from ladder_sim.serving.serve import serve
    from ladder_sim.specs.scenario import Scenario
    from ladder_sim.sweeps.run import sweep
    from ladder_sim.sweeps.table import SweepTable
    from ladder_sim.traces.trace import Trace
    from ladder_sim.validation.compare import validate

__version__ = "0.2.0"

__all__ = [
    "Prediction",
    "Predictions",
    "Scenario",
    "SweepTable",
    "Trace",
    "__version__",
    "advise",
    "breakeven",
    "capacity",
    "compare",
    "condition",
    "predict",
    "sensitivity",
    "serve",
    "sweep",
    "validate",
    "versus",
]

# Public name -> the module that holds it. No submodule may share a public name: importing such a module would set the
# attribute of this package to the module and hide the function.
_LAZY = {
    "Prediction": "ladder_sim.prediction",
    "Predictions": "ladder_sim.prediction",
    "Scenario": "ladder_sim.specs.scenario",
    "SweepTable": "ladder_sim.sweeps.table",
    "Trace": "ladder_sim.traces.trace",
    "advise": "ladder_sim.analysis.advise",
    "breakeven": "ladder_sim.analysis.breakeven",
    "capacity": "ladder_sim.serving.capacity",
    "compare": "ladder_sim.analysis.compare",
    "condition": "ladder_sim.conditioning",
    "predict": "ladder_sim.prediction",
    "sensitivity": "ladder_sim.analysis.sensitivity",
    "serve": "ladder_sim.serving.serve",
    "sweep": "ladder_sim.sweeps.run",
    "validate": "ladder_sim.validation.compare",
    "versus": "ladder_sim.analysis.versus",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
