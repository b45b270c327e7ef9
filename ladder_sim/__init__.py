"""Predicts what Ladder Residual gains for tensor-parallel LLM inference, before anyone spends a GPU hour.

The public interface is what ``__all__`` names::

    from ladder_sim import Scenario, predict

Who may import whom, each layer only what stands to its right::

    cli > explorer > report, traces.chrome > analysis > sweep > validation > prediction > lower
        > costs, des > graph, traces.kineto > specs > units > errors

``des`` knows tasks and resources only: it imports neither specs, graph nor costs. No module of this package imports
``runtime``, ``calibration`` or torch, and a package that is slow to import (scipy, pydantic, plotly) is imported in the
function that needs it, so that importing this package costs next to nothing. The contracts in ``pyproject.toml`` and
``tests/test_imports.py`` hold every module to this.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ladder_sim.prediction import Prediction, predict
    from ladder_sim.specs.scenario import Scenario

__version__ = "0.1.0"

__all__ = ["Prediction", "Scenario", "__version__", "predict"]

# Public name -> the module that holds it. No submodule may share a public name: importing such a module would set the
# attribute of this package to the module and hide the function.
_LAZY = {
    "Prediction": "ladder_sim.prediction",
    "Scenario": "ladder_sim.specs.scenario",
    "predict": "ladder_sim.prediction",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
