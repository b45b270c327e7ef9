"""What the catalog has that none of the runs behind answers had: a list of docs/evidence.md."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks.pages import bullets
from ladder_sim.closed_loop.checks import ServingCheck, serving_checks
from ladder_sim.costs.profile import StackFit
from ladder_sim.costs.profile_file import shipped_fits
from ladder_sim.specs import catalog
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.techniques import TECHNIQUES
from ladder_sim.specs.workload import FORMATS
from ladder_sim.validation.dataset import read_dataset
from ladder_sim.wirings.names import FAMILIES

# names of engines as their projects write them
ENGINES = {"vllm": "vLLM", "trtllm": "TensorRT-LLM", "sglang": "SGLang"}


def _compared_runs() -> list[tuple[str, StackFit | ServingCheck]]:
    """As `ladder_sim.confidence.runs` compares scenarios with them: those of fits, and measured servings."""
    fits = [(profile.cluster.gpu.name, profile.stack_fit) for profile in shipped_fits() if profile.stack_fit]
    return [*fits, *((check.cluster.gpu.name, check) for check in serving_checks())]


# what else is known of such parts
_ELSEWHERE = {
    "GPU": " (the one serving on GB200 is missed: above)",
    "technique": " (published gains are compared above)",
    "wiring": " (ladder with D = 1 alone; gains on one machine are compared above)",
    "nodes": " (all-reduces alone: [catalog](catalog.md#fabrics))",
}
# what no part of a scenario stands for
_NEVER = (
    "Prefill and decode on replicas of their own, and drafted tokens with their acceptance rates ([load](load.md)).",
    "The quality of a rewired model: nothing here predicts it ([quality](adopt.md#quality)).",
)


def never() -> str:
    """Return what the catalog has and none of the compared runs had."""
    every = _compared_runs()
    kinds = {
        "one static batch": [(gpu, runs) for gpu, runs in every if isinstance(runs, StackFit)],
        "requests in flight": [(gpu, runs) for gpu, runs in every if isinstance(runs, ServingCheck)],
    }
    models = [catalog.model(name) for name in catalog.model_names()]
    measured = {row.variant for row in read_dataset().measurements}
    parts: Mapping[str, tuple[Iterable[str], Callable[[str, Any], Iterable[str]]]] = {
        "GPU": ((catalog.cluster(name).gpu.name for name in catalog.cluster_names()), lambda gpu, runs: [gpu]),
        "stack": (catalog.stack_names(), lambda gpu, runs: [runs.stack]),
        "model family": ((model.family for model in models), lambda gpu, runs: runs.families),
        "precision": (
            (each.name for each in FORMATS.values()),
            lambda gpu, runs: [FORMATS[dtype].name for dtype in runs.dtypes],
        ),
        "plan": (
            Plan(tp=2, pp=2, dp=2, attention_dp=2, ep=2, sp=True).kind.split(" + "),
            lambda gpu, runs: [part for kind in getattr(runs, "plans", ("TP",)) for part in kind.split(" + ")],
        ),
        "technique": (TECHNIQUES, lambda gpu, runs: []),
        "nodes": (
            ("one node", "two nodes or more"),
            lambda gpu, runs: ["one node" if set(runs.nodes) <= {1} else "two nodes or more"],
        ),
        "wiring": (
            FAMILIES,
            lambda gpu, runs: ["standard"] if isinstance(runs, ServingCheck) else measured,
        ),
    }
    lines = []
    for part, (names, of) in parts.items():
        known = dict.fromkeys(names)
        had = {kind: {name for pair in members for name in of(*pair)} for kind, members in kinds.items()}
        never = [name for name in known if not any(name in each for each in had.values())]
        missing = {kind: [name for name in known if name not in (*each, *never)] for kind, each in had.items()}
        says = [f"**{', '.join(never)}**"] if never else []
        says += [f"with {kind} {', '.join(names)}" for kind, names in missing.items() if names]
        lines.append(f"{part}: {'; '.join(says)}{_ELSEWHERE.get(part, '')}")
    return bullets([*lines, *_NEVER])
