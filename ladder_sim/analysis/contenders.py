"""What is compared by default: wirings, techniques, and an engine's own all-reduce."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from ladder_sim.errors import UsageError
from ladder_sim.graph.variants import parse
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.techniques import NO_TECHNIQUES, TECHNIQUES, Support, Technique, Techniques, family_of

# one of each family, and ladder in more than one form; "drop" and "hybrid-ladder" in the upper half of the layers
WIRINGS = ("parallel", "ladder", "ladder:2", "delayed:1", "farskip", "track:4", "desync:4", "partial:50")
_HALVED = ("drop", "hybrid-ladder")
# kernels that engines have besides NCCL's, where the stack or --allreduce says otherwise
ENGINES_OWN = "all-reduce auto"
_OWN_KERNELS = Technique(
    summary="all-reduces by an engine's own kernels where these are faster than NCCL's",
    needs="GPUs of one node that access each other's memory",
    support=(
        Support("vLLM", "0.32.0, custom_all_reduce.py"),
        Support("TensorRT-LLM", "allreducePlugin.cpp"),
        Support("SGLang", "0.5.23, custom_all_reduce_v2.py"),
    ),
)


def wirings_for(model: ModelSpec) -> tuple[list[str], dict[str, str]]:
    """Return those that suit a model, and why others do not."""
    names, left_out = [], {}
    for name in (*WIRINGS, *(f"{family}:{max(1, model.layers // 2)}" for family in _HALVED)):
        try:
            parse(name).check(model.layers)
        except UsageError as error:
            left_out[name] = error.message.partition(": ")[2]
            continue
        if name == "farskip" and not model.experts:
            left_out[name] = "it is ladder in a model without experts"
        else:
            names.append(name)
    return names, left_out


def changes_to(
    base: Scenario, techniques: str | Sequence[str] | None
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield what is compared besides wirings, and the fields of the scenario that it changes: nothing first."""
    sets = list(dict.fromkeys((NO_TECHNIQUES, *_technique_sets(techniques))))
    yield from ((chosen.chosen, {"techniques": chosen}) for chosen in sets)
    if techniques is None and base.stack.allreduce != "auto":
        engine = replace(base.stack, allreduce="auto")
        for chosen in sets:
            if len(chosen.chosen) < 2 and not any(TECHNIQUES[family_of(name)].limit for name in chosen.chosen):
                yield (ENGINES_OWN, *chosen.chosen), {"stack": engine, "techniques": chosen}


def _technique_sets(given: str | Sequence[str] | None) -> Iterator[Techniques]:
    """Yield the sets of techniques asked for; by default each alone, and every two that can be combined."""
    if given is not None:
        yield from (Techniques.of(each) for each in ([given] if isinstance(given, str) else given))
        return
    for name in TECHNIQUES:
        yield Techniques.of(name)
    for pair in combinations((name for name, each in TECHNIQUES.items() if not each.limit), 2):
        try:
            yield Techniques.of(pair)
        except UsageError:
            continue


def change(name: str) -> Technique:
    """Return a change other than the wiring: a technique, or an engine's own kernels."""
    return TECHNIQUES.get(family_of(name), _OWN_KERNELS)
