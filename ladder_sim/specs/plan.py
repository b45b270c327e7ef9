"""How a model is spread over GPUs, and whether that fits the model, the nodes that there are, and the requests."""

from dataclasses import dataclass
from typing import Annotated, Any

from ladder_sim.errors import PartitionError, UsageError
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.settings import option_name
from ladder_sim.specs.stack import StackSpec
from ladder_sim.specs.techniques import Techniques
from ladder_sim.specs.workload import ExpertLoads, Workload
from ladder_sim.values import Limits, check_fields

# far beyond any cluster
MAX_RANKS = 100_000

_Degree = Annotated[int, Limits(1, MAX_RANKS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Degrees of parallelism: replicas of pipeline stages of groups of ranks that share each layer.

    The ranks of a stage share attention among `tp` of them, `attention_dp` times over, and its experts among all:
    ``tp * attention_dp == expert_tp * ep``.

    Raises
    ------
    UsageError
        If degrees contradict each other; as `SpecError`, if one is out of range.

    Examples
    --------
    >>> plan = Plan(tp=2, attention_dp=4, ep=8, pp=3)
    >>> plan.ranks, plan.expert_tp, plan.gpus
    (8, 1, 24)
    >>> plan.stages(61), str(plan)
    ((20, 21, 20), 'TP 2 x attention DP 4, EP 8, PP 3')
    """

    tp: Annotated[int, Limits(1, MAX_RANKS, hint="ranks that share the model, e.g. --tp 8")] = 1
    """Tensor-parallel degree: ranks that share the heads of each attention."""
    pp: _Degree = 1
    """Pipeline stages: consecutive layers on ranks of their own."""
    ep: _Degree = 1
    """Expert-parallel degree: parts into which the experts of a layer are spread; 1: every rank has a share of each."""
    attention_dp: _Degree = 1
    """Groups of `tp` ranks of a stage, each with attention of its own for its own requests."""
    dp: _Degree = 1
    """Replicas of the whole model, which share the requests and exchange nothing."""
    sp: bool = False
    """Sequence parallel: an all-reduce is a reduce-scatter, the norm of a share of the tokens, and an all-gather."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.ranks % self.ep:
            raise UsageError(
                f"ep {self.ep}: must divide the {self.ranks} ranks of a stage "
                f"(tp {self.tp} x attention_dp {self.attention_dp})",
                hint="each part of the experts is on equally many ranks; use a divisor, or another --tp",
            )

    @property
    def ranks(self) -> int:
        """Ranks of a stage."""
        return self.tp * self.attention_dp

    @property
    def expert_tp(self) -> int:
        """Ranks that share the width of each routed expert."""
        return self.ranks // self.ep

    @property
    def replica_gpus(self) -> int:
        """GPUs of one replica."""
        return self.ranks * self.pp

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.replica_gpus * self.dp

    @property
    def groups(self) -> int:
        """Groups of ranks with requests of their own."""
        return self.attention_dp * self.dp

    @property
    def steps_at_once(self) -> int:
        """Steps that a replica runs at a time, each for requests of its own: of groups, and in stages of a pipeline."""
        return self.attention_dp * self.pp

    @property
    def kind(self) -> str:
        """What it is made of, without degrees, e.g. "TP + EP".

        Examples
        --------
        >>> Plan(tp=8).kind, Plan(attention_dp=8, ep=8).kind, Plan(tp=4, pp=2).kind
        ('TP', 'attention DP + EP', 'TP + PP')
        """
        # ranks may share experts under tensor parallelism, but no attention
        shares = self.tp > 1 or self.expert_tp > 1
        degrees = {"attention DP": self.attention_dp, "TP": 1 + shares, "EP": self.ep, "PP": self.pp, "DP": self.dp}
        parts = [name for name, degree in degrees.items() if degree > 1] + ["SP"] * self.sp
        return " + ".join(parts) or "TP"

    def group_requests(self, requests: Any) -> Any:
        """Return the requests of the group that has most of them; `requests` may be an array."""
        return -(-requests // self.groups)

    def micro_batch(self, requests: Any) -> Any:
        """Return how many requests are in one pass: a pipeline's stages work on as many passes at a time."""
        return -(-self.group_requests(requests) // self.pp)

    def micro_batches(self, requests: Any) -> Any:
        """Return in how many passes the requests of a group go through the stages."""
        return -(-self.group_requests(requests) // self.micro_batch(requests))

    def stages(self, layers: int) -> tuple[int, ...]:
        """Return the layers of each stage; what is left over goes to the stages before the last, backwards.

        As vLLM 0.32.0 does (distributed/utils.py, get_pp_indices): the last stage has the LM head as well.
        """
        stages = [layers // self.pp] * self.pp
        for number in range(layers % self.pp):
            stages[-2 - number] += 1
        return tuple(stages)

    def nodes(self, gpus_per_node: int, *, replicas: int | None = None) -> int:
        """Return the nodes that replicas take, all by default; a stage that fits a node is not split."""
        groups = self.pp * (self.dp if replicas is None else replicas)
        if self.ranks > gpus_per_node:
            return groups * -(-self.ranks // gpus_per_node)
        return -(-groups // (gpus_per_node // self.ranks))

    def __str__(self) -> str:
        attention = f" x attention DP {self.attention_dp}" if self.attention_dp > 1 else ""
        rest = {"EP": self.ep, "PP": self.pp, "DP": self.dp}
        parts = [f"TP {self.tp}{attention}", *(f"{name} {degree}" for name, degree in rest.items() if degree > 1)]
        return ", ".join([*parts, *(["SP"] if self.sp else [])])


def named_degrees(plan: Plan, *names: str) -> str:
    """Return the degrees above 1 by their names, and the tensor-parallel one in any case.

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
        option = option_name(stack, "max_context")
        raise UsageError(
            f"requests of {context} tokens: {stack.name} takes at most {stack.max_context} ({option})",
            hint=f"raise {option}, or use shorter prompts and answers",
        )


def check_techniques(techniques: Techniques, plan: Plan, group_nodes: int, l2_bytes: float) -> None:
    """Raise a UsageError if a technique does not fit the plan or the GPU."""
    if "weight-prefetch" in techniques and not l2_bytes:
        raise UsageError(
            "technique 'weight-prefetch': the size of the GPU's L2 cache is not known", hint="--set gpu.l2=50MB"
        )
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
