"""What tables, figures and pages call things: fields and their values with units, scenarios in a line."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_sim.best_standard import STANDARD
from ladder_sim.closed_loop.checks import ServingCheck
from ladder_sim.confidence import Confidence, Interval
from ladder_sim.confidence.runs import Compared, own_figures
from ladder_sim.costs.profile import NO_PROFILE, StackFit, run_sizes
from ladder_sim.simulate.breakdown import Collective
from ladder_sim.specs.catalog import stack, stack_names
from ladder_sim.specs.cluster import THIS_MACHINE
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.workload import FORMATS, USUAL, Workload
from ladder_sim.units import counted_text, decimals_of, format_count, format_quantity, short_name, step_for, unit_of
from ladder_sim.wirings.names import NO_COMMUNICATION

# what pages call the fields
_TITLES = {
    "intra.bandwidth_Bps": "Bandwidth in the node",
    "intra.allreduce_floor_s": "All-reduce floor in the node",
    "inter.bandwidth_Bps": "Bandwidth across nodes",
    "inter.allreduce_floor_s": "All-reduce floor across nodes",
    "gpu.hbm_bandwidth_Bps": "Memory bandwidth (HBM)",
    "gpu.bf16_flops": "Tensor-core rate (bf16)",
    "gpu.fp8_flops": "Tensor-core rate (fp8)",
    "gpu.fp4_flops": "Tensor-core rate (fp4)",
    "model": "Model",
    "cluster": "Cluster",
    "gpus_per_node": "GPUs per node",
    "dtype": "Precision",
    "kv_dtype": "Type of the KV cache",
    "concurrency": "Requests in flight",
    "imbalance": "Imbalance of experts",
    "stack": "Engine",
    "allreduce": "All-reduce",
    "technique": "Technique",
    "p2p": "Peer-to-peer links",
    "tp": "Tensor-parallel degree",
    "pp": "Pipeline stages",
    "ep": "Expert-parallel degree",
    "attention_dp": "Data-parallel attention",
    "dp": "Replicas",
    "sp": "Sequence parallel",
    "batch": "Batch",
    "prompt": "Prompt tokens",
    "gen": "New tokens",
    "nodes": "Nodes",
    "gpu.kernel_s": "Small kernel, at least",
    "host.bandwidth_Bps": "Bandwidth through host memory",
    "host.allreduce_floor_s": "All-reduce floor through host memory",
    "host_low_latency_share": "Host path at low latency",
    "stack.collective_launch_s": "Start of a collective",
    "stack.stream_wait_s": "Wait for the other stream",
    "stack.eager_launch_s": "Launch of one kernel",
    "stack.graph_launch_s": "Launch of a CUDA graph",
    "stack.kernel_gap_s": "Gap before each kernel",
    "stack.gemv_factor": "GEMM time, one row",
    "stack.gemm_factor": "GEMM time, several rows",
    "stack.prompt_factor": "GEMM time, prompt",
    "stack.attention_factor": "Decode attention time",
    "stack.small_kernel_factor": "Small-kernel time",
    "stack.sustained_rate": "Sustained tensor-core rate",
    "stack.host_request_s": "Host time of each request",
    "stack.frontend_steps": "Front end, in steps",
    "stack.frontend_token_s": "Front end for each token",
    "stack.host_rank_s": "Host time of each rank",
    "stack.host_state_s": "Host time between steps with states",
    "stack.batched_attention_s": "Attention, fixed time",
    "stack.quantize_s": "Quantising an input",
    "overlap.memory_step_s": "Step of a collective through memory",
    "overlap.gemm_delay": "Delay of such a step by GEMMs",
    "overlap.kernel_delay": "Delay of such a step by other kernels",
    "overlap.lost": "SMs lost to collectives",
    "overlap.ring_traffic": "Memory traffic of a ring",
    "overlap.nvls_traffic": "Memory traffic of NVLS",
    "overlap.max_channels": "Most NCCL channels",
    "overlap.nvls_channels": "NVLS channels",
    "rate": "Requests per second",
    "l2_bytes": "L2 cache",
    "rank_skew": "Lag of the slowest rank",
}
# what the words of a breakdown mean
LEGEND = {
    "hidden": "share of the communication during which kernels run; the rest is exposed",
    "critical path": "time that each resource was the bottleneck; of messages, what computation did not cover",
}
# settings that make a part of a scenario another one than the runs', by how their names begin
_SETTINGS_OF = {
    "stack": ("stack.",),
    "gpu": ("gpu.", "cluster.rank_skew"),
    "links": ("intra.", "inter.", "host.", "cluster.host_low_latency_share"),
    "model_family": ("model.",),
}
# models that runs were of, and what runs did not have: the others are counted
_NAMED, _TOLD = 1, 5
# what runs did not have, if it is a GPU
_GPU = "GPU"
# arguments that change which GPUs run what
_PLACES = {"cluster", "nodes", "gpus_per_node", "tp", "pp", "ep", "attention_dp", "dp", "sp"}
# a logarithmic axis shows values that span more than this factor better
_LOG_SPAN = 8.0


def field_label(name: str) -> str:
    """Return a field's name without its unit.

    Examples
    --------
    >>> field_label("inter.bandwidth_Bps"), field_label("gpus_per_node")
    ('inter.bandwidth', 'gpus per node')
    """
    return name.replace("_", " ") if "." not in name else short_name(name)


def field_title(name: str) -> str:
    """Return a field's name in words, where it has one.

    Examples
    --------
    >>> field_title("inter.allreduce_floor_s"), field_title("stack.prefix_cache")
    ('All-reduce floor across nodes', 'stack.prefix_cache')
    """
    return _TITLES.get(name) or field_label(name)


def field_text(name: str, value: Any, typed: str = "") -> str:
    """Return a field's value with its unit: the typed one, if any.

    Examples
    --------
    >>> field_text("inter.bandwidth_Bps", 5e10), field_text("inter.bandwidth_Bps", 5e10, "Gb/s")
    ('50.0 GB/s', '400 Gb/s')
    >>> field_text("batch", 16), field_text("p2p", True)
    ('16', 'True')
    """
    unit = unit_of(name)
    if unit != "count":
        return format_quantity(float(value), unit, typed)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def interval_text(
    interval: Interval, write: Callable[[float], str] | None = None, *, scale: float = 1.0, decimals: int | None = None
) -> str:
    """Return a value with the ends of its interval, unless they are not known.

    Without `write` numbers are divided by `scale` and have the decimals of the value; a value that nothing can put off
    stands alone.

    Examples
    --------
    >>> interval_text(Interval(value=1.5, low=1.0, high=2.0), "{:.1f}".format)
    '1.5 (1.0-2.0)'
    >>> interval_text(Interval(value=1.5, low=0.2, high=12.0), "{:.1f}".format)
    '1.5 (not known)'
    >>> interval_text(Interval(value=0.0193, low=0.01652, high=0.0226), scale=1e-3)
    '19.3 (16.5-22.6)'
    >>> interval_text(Interval(value=1.0, low=1.0, high=1.0))
    '1'
    """
    if write is None:
        if interval.low == interval.value == interval.high:
            return f"{interval.value / scale:g}"
        places = decimals_of(interval.value / scale) if decimals is None else decimals
        return interval_text(interval, lambda value: f"{value / scale:.{places}f}")
    return range_text(interval, write) if interval.known else f"{write(interval.value)} (not known)"


def range_text(interval: Interval, write: Callable[[float], str]) -> str:
    """Return a value with the ends of its range, where nothing and no end are answers: of a count or of a limit.

    Examples
    --------
    >>> range_text(Interval(value=2.0, low=0.0, high=3.0), "{:.0f}".format)
    '2 (0-3)'
    """
    return f"{write(interval.value)} ({write(interval.low)}-{write(interval.high)})"


def axis_values(name: str, values: Sequence[Any] | NDArray[Any], typed: str = "") -> tuple[str, NDArray[Any]]:
    """Return the unit of a field's values, and the values in that unit.

    It is the typed unit, or one that suits the largest value; it is empty if the field has none.

    Examples
    --------
    >>> axis_values("inter.bandwidth_Bps", [2.5e10, 5e10])
    ('GB/s', array([25., 50.]))
    >>> axis_values("inter.bandwidth_Bps", [2.5e10, 5e10], "Gb/s")
    ('Gb/s', array([200., 400.]))
    """
    array = np.asarray(values)
    unit = unit_of(name)
    if array.dtype.kind not in "if" or unit == "count":
        return "", array
    size, text = step_for(float(np.max(np.abs(array))), unit, typed)
    return text, array / size


def with_unit(title: str, unit: str) -> str:
    """Return a title with a unit, where there is one."""
    return f"{title} ({unit})" if unit else title


def needs_log_axis(values: Sequence[Any] | NDArray[Any]) -> bool:
    """Whether a logarithmic axis shows the values better."""
    array = np.asarray(values)
    return array.dtype.kind in "if" and bool(np.min(array) > 0 and np.max(array) > _LOG_SPAN * np.min(array))


def kind_label(kind: str) -> str:
    """Return a kind of op or limit in words: ``all-reduce`` for ``all_reduce``."""
    return kind.replace("_", "-")


def next_to_label(collective: Collective) -> str:
    """Return the first and the last of the kernels that can run next to a collective, in words."""
    kernels = collective.next_to
    return " to ".join(dict.fromkeys((kernels[0], kernels[-1]))) if kernels else "nothing"


def workload_label(scenario: Scenario, *, batch: bool = True) -> str:
    """Return the load in words: batch, with its size if wanted, or requests in flight, prompt, answer, precision."""
    workload = scenario.workload
    size = f"static batch of {workload.batch}" if batch else "static batches"
    if workload.concurrency is not None:
        number = f"{counted_text(workload.concurrency, 'request')} in flight"
        size = (number if batch else "requests in flight") + (" of one length" if workload.spread == 0 else "")
    tokens = counted_text(workload.gen, "new token")
    loads = workload.imbalance
    imbalance = f", experts {loads.name}" if scenario.model.experts and loads != USUAL else ""
    return f"{size}, prompt {workload.prompt}, {tokens}, {workload.dtype}{imbalance}"


def load_label(workload: Workload) -> str:
    """Return how many requests the GPUs serve at a time, where the rest is said elsewhere.

    Examples
    --------
    >>> load_label(Workload(batch=32)), load_label(Workload(concurrency=64))
    ('batch 32', '64 in flight')
    """
    return f"batch {workload.batch}" if workload.concurrency is None else f"{workload.concurrency} in flight"


def batching_label(batching: Iterable[str]) -> str:
    """Return the kinds of batching that results have, in words.

    Examples
    --------
    >>> batching_label(["static", "static"])
    'static batches'
    """
    names = {"static": "static batches", "continuous": "requests in flight"}
    return " and ".join(names[each] for each in sorted(set(batching), reverse=True))


def scenario_label(scenario: Scenario, *, batch: bool = True) -> str:
    """Return the model, cluster, workload and stack by their names, for a subtitle."""
    where = f"{scenario.plan} on {scenario.cluster.name}"
    return f"{scenario.model.name}, {where}, {workload_label(scenario, batch=batch)}, {scenario.stack.name}"


def _links_label(scenario: Scenario) -> str:
    p2p = "" if scenario.p2p else " (P2P off)"
    across = f" + {scenario.cluster.inter.fabric}" if scenario.crosses_nodes else ""
    return f"{scenario.cluster.intra.fabric}{p2p}{across}"


def validated_lines(*confidences: Confidence) -> list[str]:
    """Return lines on the runs that predictions were compared with, and on what those runs lacked."""
    runs = [_own_passes(each) or _compared_line(each) for each in confidences]
    absent: dict[str, list[str]] = {}
    for each in (each for each in confidences if not _own_passes(each)):
        for part, details in _absent(each).items():
            absent[part] = list(dict.fromkeys([*absent.get(part, []), *details]))
    served = any(each.scenario.workload.concurrency is not None for each in confidences)
    wider = ", ".join(f"{_part_label(part, served=served)} ({'; '.join(details)})" for part, details in absent.items())
    stacks = {each.scenario.stack.name: each.scenario.stack.note for each in confidences}
    return [
        *dict.fromkeys(runs),
        *([f"Not in these runs, so intervals are wider: {wider}."] if wider else []),
        *(f"Stack {name}: {note}." for name, note in stacks.items() if note),
    ]


def _own_passes(confidence: Confidence) -> str:
    """Return a sentence on the passes that a profile's times are of, of which no other runs tell; or nothing."""
    profile = confidence.costs.profile
    if profile is None or profile.in_place is None:
        return ""
    timed = profile.environment.get("variants", "").replace(",", ", ")
    dtype = confidence.scenario.workload.dtype
    carried = "" if FORMATS[dtype].name in profile.gemm else f", GEMMs in {dtype} carried over from them"
    return (
        f"Times of kernels are those of passes on {profile.name}{f' ({timed})' if timed else ''}{carried}; whole "
        "requests were not compared: `ladder-sim calibrate check` does that."
    )


def _compared_line(confidence: Confidence) -> str:
    """Return a sentence on the nearest runs with their errors, or that none has this engine and kind of model."""
    scenario, compared = confidence.scenario, confidence.compared
    if not compared.same_kind(scenario):
        return f"{unlike_text(scenario)} Nearest: {_runs_label(compared)}."
    sheets = " from datasheets" if confidence.profile == NO_PROFILE else ""
    errors = f": {errors_label(compared)}" if isinstance(compared.runs, ServingCheck) else ""
    return f"Predictions{sheets} were compared with {_runs_label(compared)}{errors}."


def unlike_text(scenario: Scenario) -> str:
    """Say that no run was of a scenario's engine and kind of model."""
    what = "static batch" if scenario.workload.concurrency is None else "serving"
    kind, engine = scenario.model.kind_label, scenario.stack.unversioned
    return f"Nothing like this was measured: no {what} of {kind} under {engine}."


def errors_label(compared: Compared) -> str:
    """Return the errors of predicted servings of unseen models: TPOT's mean and TTFT's median, in words."""
    runs = compared.runs
    assert isinstance(runs, ServingCheck)
    return f"TPOT off by {_percent(runs.tpot_error)}, TTFT by {_percent(runs.ttft_error)} (model left out)"


def _absent(confidence: Confidence) -> dict[str, list[str]]:
    """Return the parts of a scenario that the runs did not have, with details."""
    scenario, stack = confidence.scenario, confidence.scenario.stack
    details = {
        "stack": ", ".join((stack.name, f"all-reduce {stack.allreduce}", *scenario.techniques.chosen)),
        "technique": scenario.techniques.name,
        "gpu": f"{scenario.cluster.gpu.name}, profile {confidence.profile}",
        "links": _links_label(scenario),
        "layers": scenario.model.experts_label or "no experts",
        "model_family": scenario.model.family or "unknown",
        "precision": scenario.workload.dtype,
        **{name: str(size) for name, size in run_sizes(scenario).items()},
        "model_size": f"{format_count(scenario.model.parameters).replace(' ', '')} parameters",
        "plan": scenario.plan.kind,
        "experts": f"{scenario.workload.dtype} on {scenario.cluster.gpu.name}",
    }
    if own_figures(scenario) and not scenario.set_by_hand(*_SETTINGS_OF["stack"]):
        details["stack"] += ", other figures than the catalog's"
    for part, prefixes in _SETTINGS_OF.items():
        if by_hand := scenario.set_by_hand(*prefixes):
            details[part] += f", {', '.join(map(field_label, by_hand))} by hand"
    every = {part: [text] for part, text in details.items()} | {"wiring": confidence.unchecked_wirings}
    return {part: every[part] for part, compared in confidence.validated.items() if not compared}


def _part_label(part: str, *, served: bool) -> str:
    """Return the name of a compared part in words."""
    load = {"batch": "requests in flight"} if served else {}
    return {"gpu": "GPU", "tp": "TP", "gen": "new tokens", **load}.get(part, part.replace("_", " "))


def _runs_label(compared: Compared) -> str:
    """Return a description of the runs: stack, sizes and cluster."""
    cluster, runs = compared
    what, load = f"runs of {runs.stack}", "batch {batch}"
    if isinstance(runs, ServingCheck):
        what = f"{runs.servings} servings of standard, {runs.stack} {runs.versions}"
        load = "{batch} requests in flight"
    models = runs.models if isinstance(runs, ServingCheck) else runs.compared_models
    spans = {name: f"{low:g}" + (f"-{high:g}" if high > low else "") for name, (low, high) in runs.sizes.items()}
    sizes = f", TP {{tp}}, {load}, prompt {{prompt}} + {{gen}}".format_map(spans) if spans else ""
    return f"{what} on {cluster.gpu.name}: {', '.join(models)} in {', '.join(runs.dtypes)}{sizes}"


def evidence_text(*confidences: Confidence, wirings: Collection[str] | None = None) -> str:
    """Return the runs most like an answer, the error of predictions there, and what those runs lacked.

    `wirings`: the variants that the answer is about; by default all.
    """
    never: dict[tuple[str, str], dict[tuple[str, str], None]] = {}
    own = [text for each in confidences if (text := _own_passes(each))]
    for each in (each for each in confidences if not _own_passes(each)):
        runs, errors, absent = _evidence(each, wirings)
        never.setdefault((runs, errors), {}).update(absent)
    served = any(each.scenario.workload.concurrency is not None for each in confidences)
    # runs are named once: errors, which are of their own engine and kind of model, with them
    parts: dict[str, list[str]] = {}
    for runs, errors in sorted(never, key=lambda nearest: not nearest[1]):
        # one sentence has an error and the GPUs of which it says little
        gpus = [text for label, text in never[runs, errors] if errors and label == _GPU]
        lacked = _lacking((each for each in never[runs, errors] if each[1] not in gpus), served=served)
        elsewhere = f"; none on {', '.join(gpus)}" if gpus else ""
        said = [lacked] if runs in parts else [lacked, f"Nearest: {runs}{errors}{elsewhere}."]
        # where one sentence has room, an error says more than what was never measured
        parts.setdefault(runs, []).extend(filter(None, reversed(said) if errors else said))
    return " ".join([*dict.fromkeys(own), *chain(*parts.values())])


def _lacking(never: Iterable[tuple[str, str]], *, served: bool) -> str:
    """Return a sentence on what measured runs lacked: the first five parts, each with its values."""
    values: dict[str, list[str]] = {}
    for label, text in never:
        named = label if label != _GPU else ""
        values.setdefault(named or text, []).extend([text] if named else [])
    texts = [" ".join(filter(None, (label, ", ".join(each)))) for label, each in values.items()]
    if not texts:
        return ""
    others = f" and {len(texts) - _TOLD} more" if len(texts) > _TOLD else ""
    return f"Never measured{' under load' if served else ''}: {', '.join(texts[:_TOLD])}{others}."


def _evidence(
    confidence: Confidence, wirings: Collection[str] | None
) -> tuple[str, str, Mapping[tuple[str, str], None]]:
    """Return the runs that are the most like a scenario, their errors, and what they lack, as `_lacked` says it."""
    scenario, (cluster, runs) = confidence.scenario, confidence.compared
    served, what, engine, errors = isinstance(runs, ServingCheck), "runs", runs.stack, ""
    absent, models = _absent(confidence), runs.models
    if isinstance(runs, StackFit) and runs.left_out:
        models = runs.compared_models
        figures = ((label, runs.left_out.get(name)) for name, label in _LEFT_OUT.items())
        errors = f"; left-out error {', '.join(f'{label} {_percent(each)}' for label, each in figures if each)}"
    if isinstance(runs, ServingCheck):
        what, engine = f"{runs.servings} servings", f"{runs.stack} {runs.versions}"
        errors = f"; left-out error TPOT {_percent(runs.tpot_error)}, TTFT {_percent(runs.ttft_error)}"
        # all servings were of standard
        absent["wiring"] = [name for name in confidence.variants if name not in (STANDARD, NO_COMMUNICATION)]
    nodes = scenario.group_nodes
    where = f" over {nodes} nodes" if isinstance(runs, StackFit) and nodes not in runs.rewired_nodes else ""
    rewired = [name for name in absent.pop("wiring", []) if wirings is None or name in wirings]
    asked = [("", f"{', '.join(rewired)}{where}")] if where and rewired else [("", name) for name in rewired]
    load = "servings" if served else "static batches"
    kind = f"{load} of {scenario.model.kind_label} under {scenario.stack.unversioned}"
    unlike = []
    if not confidence.compared.same_kind(scenario):
        # errors of another engine or kind of model say nothing of this one
        unlike, errors = [("", kind)], ""
    elif "links" in absent:
        links = f"{scenario.stack.unversioned} over {_links_label(scenario)} of {scenario.cluster.gpu.name}"
        asked.append(("", links))
        del absent["links"]
    lacked = (_lacked(scenario, part, absent[part], served=served) for part in absent)
    models = tuple(sorted(models, key=lambda model: model != scenario.model.name))
    named = ", ".join(models[:_NAMED]) + (f" and {more} more" if (more := len(models) - _NAMED) > 0 else "")
    return f"{what} of {named} ({engine}, {cluster.gpu.name})", errors, dict.fromkeys([*unlike, *asked, *lacked])


def _lacked(scenario: Scenario, part: str, details: Sequence[str], *, served: bool) -> tuple[str, str]:
    """Return what runs lacked of a scenario's part, in a few words: a label, or none, and the value."""
    stack = scenario.stack
    if part == "gpu":
        return _GPU, scenario.cluster.gpu.name
    if part == "stack":
        by_hand = ", ".join(map(field_label, scenario.set_by_hand(*_SETTINGS_OF["stack"])))
        figures = f"{by_hand} by hand" if by_hand else "other figures than the catalog's"
        return "", f"{stack.name} with {figures if own_figures(scenario) else f'all-reduce {stack.allreduce}'}"
    if part in ("model_size", "model_family", "layers"):
        return "", scenario.model.name
    if part == "links":
        return "", _links_label(scenario)
    text = ", ".join(details)
    return "" if part in ("technique", "precision") else _part_label(part, served=served), text


# figures of static batches, by the names of `IntervalScale`
_LEFT_OUT = {"tpot": "TPOT", "ttft": "TTFT", "speedup": "speedup"}


def _percent(share: float) -> str:
    return f"{100.0 * share:.2g} %"


def asked_text(scenario: Scenario, *, where: str = "", load: str = "", varied: Collection[str] = ()) -> str:
    """Return what an answer is about: model, precision, plan, GPUs, engine, load and tokens.

    `where` stands for plan and GPUs, `load` for the number of requests, where the answer is about several. Arguments of
    a scenario that are `varied` are left out, and what follows from them.

    Examples
    --------
    >>> asked_text(Scenario(model="70b", stack="vllm", concurrency=64))
    'llama-3.1-70b bf16, TP 8 on 8 x H100 SXM5 80GB, vllm; 64 in flight, 1024 + 512'
    >>> asked_text(Scenario(model="70b", stack="vllm", concurrency=64), varied=("tp", "concurrency", "prompt"))
    'llama-3.1-70b bf16, H100 SXM5 80GB, vllm; in flight, 512 new tokens'
    """
    workload = scenario.workload
    one = f"static batch {workload.batch}" if workload.concurrency is None else f"{workload.concurrency} in flight"
    alike = " of one length" if workload.spread == 0 else ""
    tokens = {"gen": f"prompt {workload.prompt}", "prompt": f"{workload.gen} new tokens"}
    some = [text for name, text in tokens.items() if name in varied] or [f"{workload.prompt} + {workload.gen}"]
    if {"batch", "concurrency"}.intersection(varied):
        # their numbers stand elsewhere, what they are here
        one = "static batches" if workload.concurrency is None else "in flight"
    asked = [f"{load or one}{alike}", *(some if len(some) == 1 else [])]
    parts = (placed_text(scenario, where=where, varied=varied), ", ".join(filter(None, asked)))
    return "; ".join(filter(None, parts))


def placed_text(scenario: Scenario, *, where: str = "", varied: Collection[str] = ()) -> str:
    """Return the model, precision, plan, GPUs and engine, with the flag that changes one that was not named.

    `where` stands for plan and GPUs; arguments of a scenario that are `varied` are left out.
    """
    cluster = scenario.cluster
    number = f"{scenario.nodes} x {cluster.gpus_per_node}" if scenario.nodes > 1 else f"{cluster.gpus_per_node} x"
    whole = scenario.nodes * cluster.gpus_per_node
    if scenario.plan.gpus < whole:
        number = f"{scenario.plan.gpus} of {whole}"
    links = "" if scenario.p2p or "p2p" in varied else " without P2P"
    if cluster.name == THIS_MACHINE:
        # its ranks share it
        number = ""
    gpus = " ".join(filter(None, (f"{scenario.plan} on", number, f"{cluster.gpu.name}{links}")))
    if not _PLACES.isdisjoint(varied):
        gpus = "" if "cluster" in varied else f"{cluster.gpu.name}{links}"
    engine = f" ({scenario.chosen['stack']})" if "stack" in scenario.chosen else ""
    if "technique" not in varied:
        engine += "".join(f" + {name}" for name in scenario.techniques.chosen)
    named = scenario.stack.name not in stack_names() or scenario.stack.allreduce != stack(scenario.stack.name).allreduce
    allreduce = f", all-reduce {scenario.stack.allreduce}" if named and "allreduce" not in varied else ""
    names = {"model": scenario.model.name, "dtype": scenario.workload.dtype}
    parts = [
        " ".join(text for name, text in names.items() if name not in varied),
        where or gpus,
        "" if "stack" in varied else f"{scenario.stack.name}{engine}{allreduce}",
    ]
    return ", ".join(filter(None, parts))


def wiring_label(variant: str, *, sentence: bool = False) -> str:
    """Return a variant as tables call it, or as a sentence starts with it; in parentheses if nobody can run it."""
    if variant == NO_COMMUNICATION:
        return "A model without communication" if sentence else "(no communication)"
    # a file is called as it was typed
    return f"{variant[0].upper()}{variant[1:]}" if sentence and not variant.endswith(".toml") else variant


def gain_text(gain: Interval, over: str) -> str:
    """Say what a speedup over something means, as the predicate of a sentence.

    Examples
    --------
    >>> gain_text(Interval(value=1.26, low=1.08, high=1.46), "standard")
    'is 1.26x as fast as standard (90 %: 1.08-1.46)'
    >>> gain_text(Interval(value=1.05, low=0.9, high=1.2), "standard")
    'is not clearly faster than standard: 1.05x (90 %: 0.90-1.20)'
    """
    if not gain.known:
        return f"is perhaps {gain.value:.2f}x as fast as {over} (interval not known)"
    interval = f"(90 %: {gain.low:.2f}-{gain.high:.2f})"
    if gain.low > 1.0:
        return f"is {gain.value:.2f}x as fast as {over} {interval}"
    return f"is {'slower' if gain.high < 1.0 else 'not clearly faster'} than {over}: {gain.value:.2f}x {interval}"
