"""What may be imported where, and what an import costs.

import-linter checks the layers inside the project (``test_quality.py``). Here are the third-party packages and the one
boundary that import-linter cannot express: which modules of ``calibration`` may import which packages.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from ladder_sim import kernels
from ladder_sim.kernels import Shape
from tests.conftest import REPO
from tests.support.imports import Import, imports_in, imports_of
from tests.support.packages import PACKAGES

pytestmark = pytest.mark.quality

PROJECT = {*PACKAGES, "tools"}

# Everywhere in ladder_sim: the base dependencies (typer is built on click).
SIMULATOR = {"numpy", "scipy", "networkx", "simpy", "plotly", "typer", "click", "rich", "pydantic"}
# Inside functions only: the optional extras.
SIMULATOR_LAZY = {"pandas", "pyarrow", "dask", "distributed", "kaleido"}

RUNTIME = {"torch"}
RUNTIME_LAZY = {"safetensors", "tokenizers"}

# What all three packages share.
SHARED = ("ladder_sim.errors", "ladder_sim.hf", "ladder_sim.system", "ladder_sim.units", "ladder_sim.values")

# the shape of a model in a config.json, and the wirings, which predictions have as well
RUNTIME_INTERNAL = (*SHARED, "ladder_sim.specs", "ladder_sim.wirings")

# calibration: what fits and shows profiles and reads nccl-tests runs without torch and sees only the cost side of
# ladder_sim.
WITHOUT_TORCH = tuple(
    f"ladder_sim_calibration.{name}" for name in ("fit", "stack_fit", "nccl_tests", "show", "options")
)
FITTING = {"numpy", "scipy", "pydantic", "rich"}
# of the tools, inside functions only
TOOLS_LAZY = {"pyarrow"}
FITTING_INTERNAL = (
    "ladder_sim_calibration",
    *(f"ladder_sim.{name}" for name in ("costs", "graph", "kernels", "specs", "wirings")),
    # of the simulator only the name of an array's type
    "ladder_sim.des.shared",
    *SHARED,
)
STACK_FIT_INTERNAL = (
    *FITTING_INTERNAL,
    *(
        f"ladder_sim.{name}"
        for name in ("confidence", "closed_loop", "simulate", "prediction", "validation", "answer", "display", "report")
    ),
)


def _outside(entries: list[Import], anywhere: set[str], lazily: set[str]) -> list[str]:
    """Third-party imports beyond what is allowed, spelled for the failure message."""
    third_party = [entry for entry in entries if entry.package not in PROJECT]
    return [str(entry) for entry in third_party if entry.package not in (anywhere | lazily if entry.lazy else anywhere)]


def _within(name: str, allowed: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed)


def test_ladder_sim_imports_only_its_dependencies() -> None:
    entries = imports_in("ladder_sim")
    assert _outside(entries, SIMULATOR, SIMULATOR_LAZY) == []
    assert [str(entry) for entry in entries if entry.package in PROJECT - {"ladder_sim"}] == []


def test_runtime_imports_torch_and_the_standard_library() -> None:
    """Of this project only the errors, files and processes, which import nothing else of it, models and wirings."""
    # written next to checkpoints for transformers, and imported by no other module; and what builds models of it
    code, traced = "modeling_llama_ladder", "model_trace"
    entries = [entry for entry in imports_in("ladder_sim_runtime") if not entry.module.endswith((code, traced))]
    assert [str(entry) for entry in entries if code in entry.name] == []
    assert [str(entry) for entry in entries if traced in entry.name and not entry.lazy] == []
    assert _outside(entries, RUNTIME, RUNTIME_LAZY) == []
    others = [entry for entry in entries if entry.package in PROJECT - {"ladder_sim_runtime"}]
    assert [str(entry) for entry in others if not _within(entry.name, RUNTIME_INTERNAL)] == []


def test_calibration_without_torch_stays_without_torch() -> None:
    entries = [entry for entry in imports_in("ladder_sim_calibration") if _within(entry.module, WITHOUT_TORCH)]
    assert _outside(entries, FITTING, set()) == []
    measuring = [entry for entry in entries if entry.package == "ladder_sim_calibration"]
    assert [str(entry) for entry in measuring if not _within(entry.name, WITHOUT_TORCH)] == []
    for entry in entries:
        if entry.package in PROJECT:
            stack_fit = _within(entry.module, ("ladder_sim_calibration.stack_fit", "ladder_sim_calibration.show"))
            assert _within(entry.name, STACK_FIT_INTERNAL if stack_fit else FITTING_INTERNAL), str(entry)


def test_tools_need_neither_runtime_nor_torch() -> None:
    entries = imports_in("tools")
    assert _outside(entries, FITTING, TOOLS_LAZY) == []
    others = [entry for entry in entries if entry.package in ("ladder_sim_runtime", "ladder_sim_calibration")]
    assert [str(entry) for entry in others if not _within(entry.name, WITHOUT_TORCH)] == []


def test_the_check_sees_through_the_usual_disguises() -> None:
    """Guards the checks above: a reader of syntax trees that sees no import would pass them all."""
    source = """
import os
if True:
    import torch.nn
try:
    from pyarrow import parquet
except ImportError:
    pass
if TYPE_CHECKING:
    import kaleido
def lazily():
    from dask.distributed import Client
    importlib.import_module("kaleido")
"""
    entries = imports_of(source, "m")
    assert [(entry.name, entry.lazy) for entry in entries] == [
        ("torch.nn", False),
        ("pyarrow.parquet", False),
        ("kaleido", True),
        ("dask.distributed.Client", True),
        ("kaleido", True),
    ]
    assert len(_outside(entries, SIMULATOR, SIMULATOR_LAZY)) == 2


def _python(code: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "heavy", ["scipy", "pydantic", "networkx", "simpy", "numpy", "plotly", "typer", "rich", "torch"]
)
def test_import_is_light(heavy: str) -> None:
    """``import ladder_sim`` warns of nothing and loads nothing that is slow to load."""
    assert _python(f"import sys, ladder_sim; print({heavy!r} in sys.modules)", REPO) == "False"


@pytest.mark.parametrize("heavy", ["scipy", "networkx", "simpy", "plotly"])
def test_a_prediction_loads_only_what_it_needs(heavy: str) -> None:
    code = "from ladder_sim import Scenario, predict; predict(Scenario(model='8b', tp=2, gen=2))"
    assert _python(f"import sys; {code}; print({heavy!r} in sys.modules)", REPO) == "False"


def test_a_warm_prediction_enters_few_files() -> None:
    """A reader who follows one prediction opens these; code that dataclasses generate has no file."""
    code = """
import os, sys
import ladder_sim
from ladder_sim import Scenario, predict
scenario, entered = Scenario(model="70b", tp=8), set()
folder = os.path.dirname(ladder_sim.__file__)
predict(scenario)
sys.setprofile(lambda frame, *_: entered.add(frame.f_code.co_filename))
predict(scenario)
sys.setprofile(None)
print(sum(file.startswith(folder) for file in entered))
"""
    assert int(_python(code, REPO)) <= 24


def test_calibrate_starts_without_torch() -> None:
    """Only `calibrate run` and `crosscheck` need it, and importing it takes seconds."""
    assert _python("import sys, ladder_sim_calibration.__main__; print('torch' in sys.modules)", REPO) == "False"


@pytest.mark.parametrize(
    "before",
    ["", "import ladder_sim.prediction", "from ladder_sim.prediction import Prediction", "import ladder_sim.cli.main"],
)
def test_predict_is_the_function_in_every_import_order(before: str) -> None:
    """A submodule named like a public function would hide it once imported."""
    code = f"""
{before}
import ladder_sim
from ladder_sim import Prediction, Scenario, predict
import ladder_sim.prediction
assert callable(predict) and ladder_sim.predict is predict is ladder_sim.prediction.predict
assert isinstance(Scenario, type) and isinstance(Prediction, type)
assert set(ladder_sim.__all__) <= set(dir(ladder_sim))
"""
    assert _python(code, REPO) == ""


def test_an_unknown_name_is_an_attribute_error() -> None:
    import ladder_sim

    with pytest.raises(AttributeError, match="'ladder_sim' has no attribute 'nonsense'"):
        _ = ladder_sim.nonsense  # type: ignore[attr-defined]


def test_only_graphs_name_kinds_of_kernels() -> None:
    """Costs, warnings and reports ask any kernel, so that a new kind changes none of them. A message is no kernel."""
    kinds = {name for name in kernels.__all__ if isinstance(getattr(kernels, name), type(Shape))}
    asked = {*kernels.__all__} - kinds | {"Shape", "CollectiveShape"}
    named = [
        str(entry)
        for entry in imports_in("ladder_sim")
        if entry.name.startswith("ladder_sim.kernels.")
        and not entry.module.startswith(("ladder_sim.graph", "ladder_sim.kernels"))
        and entry.name.removeprefix("ladder_sim.kernels.") not in asked
    ]
    assert {"GemmShape", "AttentionShape", "MoeShape"} < kinds
    assert named == []
