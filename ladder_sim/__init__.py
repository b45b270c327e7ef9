"""Predicts what Ladder Residual gains for tensor-parallel LLM inference, before anyone spends a GPU hour.

The public interface is what ``__all__`` names::

    from ladder_sim import Scenario, predict, sweep

The way of a prediction through the package:

``specs``
    a scenario: model, cluster, stack, workload
``graph``
    what one forward pass does, for each residual wiring
``costs``
    how long each op takes, and how sure that is
``des``
    tasks on streams that share a GPU; knows no transformers
``simulate``
    from ops to the seconds of a request
``prediction``, ``confidence``
    the answer, its intervals and sources
``sweeps``, ``analysis``, ``validation``, ``traces``
    many predictions, questions about them, published measurements, a profiler's traces
``report``, ``explorer``, ``cli``
    tables, figures and files; the page in the browser; the commands

Who may import whom is stated in ``pyproject.toml`` (``[tool.importlinter]``). Packages that are slow to import (scipy,
pydantic, plotly) are imported in the function that needs them, so that importing this package costs next to nothing.
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
