"""Predicts what Ladder Residual gains for tensor-parallel LLM inference, before anyone spends a GPU hour.

The public interface is what ``__all__`` names::

    from ladder_sim import Scenario, predict, sweep

Who may import whom, each layer only what stands to its right::

    cli > explorer > report > analysis > sweeps > validation > prediction > intervals > requests > ranks > steps
        > lower > costs, des > graph > specs > units > errors

(``traces`` stands beside several of them.)

``des`` knows tasks and resources only: it imports neither specs, graph nor costs. No module of this package imports
``runtime``, ``calibration`` or torch, and a package that is slow to import (scipy, pydantic, plotly) is imported in the
function that needs it, so that importing this package costs next to nothing. The contracts in ``pyproject.toml`` and
``tests/project/test_imports.py`` hold every module to this.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ladder_sim.prediction import Prediction, predict
    from ladder_sim.specs.scenario import Scenario
    from ladder_sim.sweeps.run import sweep
    from ladder_sim.sweeps.table import SweepTable

__version__ = "0.1.0"

__all__ = ["Prediction", "Scenario", "SweepTable", "__version__", "predict", "sweep"]

# Public name -> the module that holds it. No submodule may share a public name: importing such a module would set the
# attribute of this package to the module and hide the function.
_LAZY = {
    "Prediction": "ladder_sim.prediction",
    "Scenario": "ladder_sim.specs.scenario",
    "SweepTable": "ladder_sim.sweeps.table",
    "predict": "ladder_sim.prediction",
    "sweep": "ladder_sim.sweeps.run",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
