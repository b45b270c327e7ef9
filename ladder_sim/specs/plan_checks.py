"""Whether a plan fits a model, the nodes that there are, and the requests."""

from ladder_sim.errors import PartitionError, UsageError
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.engine_options import name_in
from ladder_sim.specs.imbalance import ExpertLoads
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.stack import StackSpec
from ladder_sim.specs.techniques import Techniques
from ladder_sim.specs.workload import Workload


def named_degrees(plan: Plan, *names: str) -> str:
    """Degrees above 1 by their names, the tensor-parallel one in any case.

    Examples
    --------
    >>> named_degrees(Plan(tp=2, pp=3), "tp", "pp", "dp")
    'tp 2 x pp 3'
    """
    values = {name: getattr(plan, name) for name in names}
    return " x ".join(f"{name} {value}" for name, value in values.items() if value > 1 or name == "tp")


def tp_degrees(model: ModelSpec, nodes: int, gpus_per_node: int) -> tuple[int, ...]:
    """Return the tensor-parallel degrees that divide a model and fill nodes evenly, ascending."""
    return tuple(tp for tp in model.tp_degrees(nodes * gpus_per_node) if _fills_nodes(tp, 1, gpus_per_node))


def _fills_nodes(tp: int, attention_dp: int, gpus_per_node: int) -> bool:
    ranks = tp * attention_dp
    return ranks <= gpus_per_node or (
        ranks % gpus_per_node == 0 and (tp % gpus_per_node == 0 or gpus_per_node % tp == 0)
    )


def check_nodes(plan: Plan, nodes: int, gpus_per_node: int) -> None:
    """Raise a UsageError if a plan needs more nodes than there are."""
    total, needed = nodes * gpus_per_node, plan.nodes(gpus_per_node)
    if needed <= nodes:
        return
    what = named_degrees(plan, "tp", "attention_dp", "pp", "dp")
    if plan.gpus > total:
        less = f"use --tp {total} or less" if plan.gpus == plan.tp else f"lower one of {what}"
        raise UsageError(
            f"{what} needs {plan.gpus} GPUs: there are {nodes} x {gpus_per_node}",
            hint=f"add nodes (--nodes {needed}), or {less}",
        )
    raise UsageError(
        f"{what} needs {needed} nodes of {gpus_per_node} GPUs, because a stage of {plan.ranks} ranks is not split: "
        f"there are {nodes}",
        hint=f"add nodes (--nodes {needed}), or lower one of {what}",
    )


def check_experts(plan: Plan, model: ModelSpec, imbalance: ExpertLoads) -> None:
    """Raise a UsageError if a plan shares experts that a model has not; or a count of tokens is of other experts."""
    if not model.experts:
        for name in ("ep", "attention_dp"):
            if getattr(plan, name) > 1:
                raise UsageError(
                    f"{name} {getattr(plan, name)}: model '{model.name}' has no experts to share",
                    hint=f"leave out {ARGUMENTS[name].flag}; --dp runs replicas of a dense model",
                )
    if imbalance.counts and len(imbalance.counts) != model.experts:
        raise UsageError(
            f"imbalance {imbalance.name}: tokens of {len(imbalance.counts)} experts, and model '{model.name}' "
            f"has {model.experts or 'none'}",
            hint="give the tokens of each expert of one layer, or a name, e.g. imbalance=balanced",
        )


def check_partition(plan: Plan, model: ModelSpec, nodes: int, gpus_per_node: int) -> None:
    """Raise a PartitionError if a plan does not divide a model."""
    if plan.pp > model.layers:
        raise PartitionError(
            f"pp {plan.pp}: model '{model.name}' has {model.layers} layers, and each stage needs one",
            hint=f"use --pp {model.layers} or less",
        )
    problem = model.partition_problem(plan.tp, attention_dp=plan.attention_dp, ep=plan.ep)
    if not problem:
        return
    if "experts is" in problem:
        degrees = [ep for ep in range(1, plan.ranks + 1) if plan.ranks % ep == 0 and model.experts % ep == 0]
        hint = f"expert-parallel degrees that divide them and {plan.ranks} ranks: {', '.join(map(str, degrees))}"
    else:
        degrees = list(tp_degrees(model, nodes, gpus_per_node))
        total = nodes * gpus_per_node
        hint = f"tensor-parallel degrees that divide it on {total} GPUs: {', '.join(map(str, degrees))}"
    raise PartitionError(f"model '{model.name}': {problem}", hint=hint)


def check_requests(plan: Plan, workload: Workload, stack: StackSpec) -> None:
    """Raise a UsageError if a stack cannot serve so, or a group of ranks would have no request."""
    if workload.concurrency is not None and not stack.serves:
        raise UsageError(
            f"stack '{stack.name}' runs static batches only, without requests kept in flight",
            hint="take one that batches continuously, e.g. --stack vllm, or a static batch with --batch",
        )
    if workload.in_flight < plan.groups:
        name = "batch" if workload.concurrency is None else "concurrency"
        raise UsageError(
            f"{name} {workload.in_flight} on {named_degrees(plan, 'attention_dp', 'dp')}: each of {plan.groups} groups "
            "needs a request",
            hint=f"use --{name} {plan.groups} or more, or lower a degree",
        )


def check_context(stack: StackSpec, context: int) -> None:
    """Raise a UsageError if a server does not take requests of so many tokens, prompt and answer."""
    if 0 < stack.max_context < context:
        option = name_in(stack, "max_context")
        raise UsageError(
            f"requests of {context} tokens: {stack.name} takes at most {stack.max_context} ({option})",
            hint=f"raise {option}, or use shorter prompts and answers",
        )


def check_techniques(techniques: Techniques, plan: Plan, group_nodes: int) -> None:
    """Raise a UsageError if a technique does not fit the plan."""
    if "token-split" in techniques and plan.pp > 1:
        raise UsageError(
            f"technique 'token-split' with pp {plan.pp}: stages already work on parts of the batch in turn",
            hint="leave out one of them",
        )
    if plan.sp:
        techniques.check_next_to("sequence-parallel")
    splitting = ["sp"] * plan.sp + [f"technique '{name}'" for name in techniques.splitting]
    if splitting and plan.tp == 1:
        raise UsageError(
            f"{splitting[0]} with tp 1: there is no all-reduce to split",
            hint="sequence parallelism needs --tp 2 or more",
        )
    within_node = {
        "quantized-allreduce": "its kernels access peers of their own node",
        "fused-norm": "all-reduces across nodes are NCCL's, which adds no norm",
    }
    for technique, reason in within_node.items():
        if technique in techniques and group_nodes > 1:
            raise UsageError(
                f"technique '{technique}' on {group_nodes} nodes: {reason}",
                hint=f"use --tp for ranks of one node, or leave out '{technique}'",
            )


def check_groups(plan: Plan, gpus_per_node: int) -> None:
    """Raise a UsageError if a group of ranks across nodes leaves part of one to others."""
    if not _fills_nodes(plan.tp, plan.attention_dp, gpus_per_node):
        raise UsageError(
            f"{named_degrees(plan, 'tp', 'attention_dp')} on nodes of {gpus_per_node} GPUs: a group across nodes must "
            "fill them evenly",
            hint=f"use a multiple of {gpus_per_node}, or {gpus_per_node} or less",
        )
