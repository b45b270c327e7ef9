"""What is simulated: a model on a cluster, with a stack and a workload; or the keywords of a function that make it."""

import dataclasses
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from operator import attrgetter
from typing import Any, ParamSpec, Self, TypeVar, Unpack

from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.hf.quantization import KvDType
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import ARGUMENTS, DEFAULTS, REQUESTS, ScenarioFields, keywords_of
from ladder_sim.specs.cluster import ClusterSpec
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.plan import (
    MAX_RANKS,
    Plan,
    check_experts,
    check_groups,
    check_nodes,
    check_partition,
    check_requests,
    check_techniques,
    tp_degrees,
)
from ladder_sim.specs.settings import IN_CLUSTER, Overrides, Parts, override_parts, settings_of
from ladder_sim.specs.stack import AllReduceRule, StackSpec
from ladder_sim.specs.techniques import Techniques
from ladder_sim.specs.workload import FORMATS, ExpertLoads, Workload
from ladder_sim.values import flag, nonempty, typed, whole

# arguments that the specs check
_CHECKED = {*ARGUMENTS, "variant"} - {"model", "cluster", "stack", "imbalance", "technique"}
# compute capability of the H100
HOPPER = 9.0
# GPUs of a node that share a model by default: no model divides by an NVL72's 72
_MOST_SHARING = 8
# arguments that a scenario shows also at their defaults
_ALWAYS = ("model", "cluster", "nodes", "tp", "batch", "dtype", "stack")


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Scenario:
    """A model on a cluster under a stack and a workload, with one residual wiring.

    Parameters
    ----------
    model, cluster, stack
        Catalog names or paths of files (see `ladder_sim.specs.catalog`), or the specs themselves. The stack is by
        default what the model and the load are run with (`usual_stack`).
    nodes
        Number of nodes.
    gpus_per_node
        GPUs of one node; the cluster's by default.
    tp
        Tensor-parallel degree; by default what uses all GPUs of all nodes, 8 of a node that has more.
    pp, ep, attention_dp, dp, sp
        Further degrees of the plan (`ladder_sim.specs.plan.Plan`).
    batch, prompt, gen
        Requests of a static batch, tokens of each prompt, new tokens of each request.
    concurrency
        Requests kept in flight under continuous batching, instead of a static batch.
    imbalance
        How unevenly tokens choose experts: a name (`ladder_sim.specs.workload.Imbalance`), a file of tokens per
        expert, or a list of them.
    dtype, kv_dtype
        Precision of linear layers (`ladder_sim.specs.workload.FORMATS`) and of the KV cache; by default what the
        model's config.json says. Without a word there: bf16, and the stack's habit for the cache.
    variant
        Residual wiring, e.g. "ladder", "hybrid-ladder:16", "desync:4".
    allreduce
        Algorithm of the all-reduce; the stack's by default.
    technique
        What is done about communication besides the wiring (`ladder_sim.specs.techniques.TECHNIQUES`): a name, several
        joined by "+", or a list of them.
    p2p
        False: GPUs of a node reach each other through host memory.
    overrides
        Single figures to change, e.g. ``{"inter.bandwidth": "100Gb/s"}`` or ``{"inter.bandwidth_Bps": 12.5e9}``.

    Raises
    ------
    PartitionError
        If the plan does not divide the model.
    UsageError
        If a name is unknown, or the plan does not fit the nodes or the requests; as `SpecError`, if a number is out of
        range.

    Examples
    --------
    >>> scenario = Scenario(model="405b", nodes=2)
    >>> scenario
    Scenario(model='llama-3.1-405b', cluster='h100-sxm', nodes=2, tp=16, batch=1, dtype='bf16', stack='gpt-fast')
    >>> scenario.replace(nodes=1, dtype="fp8").plan.tp
    8
    """

    model: ModelSpec
    cluster: ClusterSpec
    stack: StackSpec
    workload: Workload
    nodes: int
    """Number of nodes."""
    plan: Plan
    """How the model is spread over GPUs."""
    variant: str
    """Residual wiring."""
    techniques: Techniques
    """What is done about communication besides the wiring."""
    p2p: bool
    """GPUs of a node reach each other directly; False: through host memory (NCCL_P2P_DISABLE=1)."""
    settings: Mapping[str, str] = field(hash=False)
    """Figures changed by hand, e.g. "inter.bandwidth_Bps", and the units they were typed in: no fit replaces them."""
    given: Mapping[str, Any] = field(hash=False, compare=False)
    """The arguments that it was made of; all others have their defaults."""

    @typed(unless=_CHECKED)
    def __init__(
        self, *, variant: str = "standard", overrides: Overrides | None = None, **given: Unpack[ScenarioFields]
    ) -> None:
        nodes = _checked_nodes(given.get("nodes", 1))
        parts = _parts(given, overrides or {})
        self._hold(
            **parts._asdict(),
            nodes=nodes,
            plan=_plan(given, parts.cluster.gpus_per_node),
            variant=variant,
            techniques=Techniques.of(given.get("technique", "none")),
            p2p=given.get("p2p", True),
            settings=settings_of(overrides or {}),
            given={**given, "variant": variant, "overrides": dict(overrides or {})},
        )

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Make a scenario, as the class itself does; this name of it goes with the next release."""
        warnings.warn("Scenario.of(...) is Scenario(...) now", DeprecationWarning, stacklevel=2)
        return cls(**given)

    def replace(self, **changes: Any) -> Self:
        """Return the same with other arguments: what was not given follows its default anew.

        Examples
        --------
        >>> Scenario(model="405b", nodes=2).replace(concurrency=64, dtype="fp8")
        Scenario(model='llama-3.1-405b', cluster='h100-sxm', nodes=2, tp=16, concurrency=64, dtype='fp8', stack='vllm')
        """
        return type(self)(**{**self.given, **changes})

    def having(self, **parts: Any) -> Self:
        """Return the same with other values of fields, e.g. ``plan`` or ``workload``.

        Raises
        ------
        UsageError
            They do not fit the others.
        """
        other = object.__new__(type(self))
        other._hold(**{each.name: parts.get(each.name, getattr(self, each.name)) for each in dataclasses.fields(self)})
        held = {
            name: attrgetter(argument.attribute.removesuffix(".name"))(other)
            for name, argument in ARGUMENTS.items()
            if argument.attribute.partition(".")[0] in parts
        }
        # as the specs have them now, which may differ from what was typed
        settings = {name: other.setting(name) for name in other.settings}
        object.__setattr__(other, "given", {**self.given, **held, "variant": other.variant, "overrides": settings})
        return other

    def _hold(self, **parts: Any) -> None:
        for name, value in parts.items():
            object.__setattr__(self, name, value)
        _checked_nodes(self.nodes)
        nonempty(self.variant, "variant")
        flag(self.p2p, "p2p")
        check_nodes(self.plan, self.nodes, self.cluster.gpus_per_node)
        check_experts(self.plan, self.model, self.workload.imbalance)
        check_partition(self.plan, self.model, self.nodes, self.cluster.gpus_per_node)
        check_requests(self.plan, self.workload, self.stack)
        check_groups(self.plan, self.cluster.gpus_per_node)
        check_techniques(self.techniques, self.plan, self.group_nodes, self.cluster.gpu.l2_bytes)

    def __repr__(self) -> str:
        shown = {
            name: value
            for name, value in self.fields().items()
            if name in _ALWAYS or (name in self.given and value != DEFAULTS[name])
        }
        if self.workload.concurrency is not None:
            del shown["batch"]
        if self.variant != "standard":
            shown["variant"] = self.variant
        if self.settings:
            shown["overrides"] = dict(self.given["overrides"])
        return f"Scenario({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def fields(self) -> dict[str, Any]:
        """Return its value for each argument, specs by name; the variant and settings left out."""
        return {name: attrgetter(argument.attribute)(self) for name, argument in ARGUMENTS.items()}

    @property
    def chosen(self) -> Mapping[str, str]:
        """Engine and tensor-parallel degree, as far as they were not named: the flag that changes each, by argument.

        Examples
        --------
        >>> Scenario(model="405b", nodes=2, tp=16).chosen
        {'stack': '--stack'}
        """
        return {name: ARGUMENTS[name].flag for name in ("stack", "tp") if self.given.get(name) is None}

    def setting(self, name: str) -> Any:
        """Return its value for a setting, named as `ladder_sim.specs.settings.Setting.name`."""
        return attrgetter(f"cluster.{name}" if name.partition(".")[0] in IN_CLUSTER else name)(self)

    def set_by_hand(self, *prefixes: str) -> list[str]:
        """Return the settings whose names begin so, e.g. with ``"stack."``."""
        return [name for name in self.settings if name.startswith(prefixes)]

    @property
    def launched_by_python(self) -> bool:
        """Whether Python launches each kernel, in a time that was not set by hand."""
        return self.stack.cuda_graphs == "off" and "stack.eager_launch_s" not in self.settings

    @property
    def ranks_per_node(self) -> int:
        """Ranks of a tensor-parallel group on each node that it uses."""
        return min(self.plan.tp, self.cluster.gpus_per_node)

    @property
    def group_nodes(self) -> int:
        """Nodes that hold ranks of one tensor-parallel group."""
        return -(-self.plan.tp // self.cluster.gpus_per_node)

    def layout(self, group: str) -> tuple[int, int]:
        """Return the nodes that hold ranks of a group, "tensor" or "experts", and the group's ranks on each node.

        Without peer-to-peer access NCCL takes each island of a node's GPUs for a node of its own.
        """
        if group == "tensor":
            nodes, ranks = self.group_nodes, self.ranks_per_node
        else:
            # one rank of each tensor-parallel group of a stage
            nodes = -(-self.plan.ranks // self.cluster.gpus_per_node)
            ranks = -(-self.plan.attention_dp // nodes)
        island = self.cluster.p2p_island
        if self.p2p or not 0 < island < ranks:
            return nodes, ranks
        islands = -(-ranks // island)
        return nodes * islands, -(-ranks // islands)

    @property
    def sends_across(self) -> float:
        """Share of the sends between pipeline stages that go to another node."""
        pp, per_node = self.plan.pp, max(1, self.cluster.gpus_per_node // self.plan.ranks)
        return sum(stage % per_node == 0 for stage in range(1, pp)) / (pp - 1) if pp > 1 else 0.0

    @property
    def crosses_nodes(self) -> bool:
        """Whether ranks of different nodes exchange messages; replicas exchange none."""
        return self.plan.nodes(self.cluster.gpus_per_node, replicas=1) > 1

    @property
    def custom_allreduce(self) -> bool:
        """Whether all-reduce ``auto`` may take the engine's own kernels: they read the memory of peers in the node."""
        linked = self.cluster.intra.fully_connected or self.plan.tp <= self.stack.own_allreduce.gpus_without_nvlink
        return self.p2p and linked and self.group_nodes == 1

    @property
    def fused_norm_bytes(self) -> float:
        """Largest all-reduce that an engine by itself fuses with the add and norm that need it at once; 0: none."""
        stack = self.stack
        if stack.allreduce == "fused-norm" and self.group_nodes == 1:
            return math.inf
        if stack.allreduce != "auto" or not self.custom_allreduce:
            return 0.0
        rule = self.allreduce_rule(stack.own_allreduce.fused_norm_rules)
        return rule.up_to[-1][1] if rule and rule.up_to else 0.0

    def allreduce_rule(self, rules: Iterable[AllReduceRule]) -> AllReduceRule | None:
        """Return the first of a stack's rules for these GPUs; None if there is none."""
        domain = self.cluster.gpus_per_node if self.cluster.intra.full_nvlink else 1
        group = (self.ranks_per_node, self.cluster.gpu.compute_capability, domain)
        return next((rule for rule in rules if rule.applies(*group)), None)

    @property
    def step_tokens(self) -> int:
        """Most tokens of one step of the stack on this GPU under continuous batching."""
        return self._step_limit("step_tokens")

    @property
    def step_requests(self) -> int:
        """Most requests that run at a time on this GPU under continuous batching, in each group with its attention."""
        return self._step_limit("step_requests")

    @property
    def states_in_turn(self) -> bool:
        """Whether recurrent states keep the engine from scheduling the next step while one runs."""
        return self.stack.host_state_s > 0.0 and self.stack.prefix_cache and self.model.has_states

    @property
    def schedules_ahead(self) -> bool:
        """Whether the next step is scheduled while one runs."""
        return self.stack.schedules_ahead and not self.states_in_turn

    def _step_limit(self, name: str) -> int:
        """Return a limit of the stack on this GPU; one set by hand holds for every GPU."""
        gpu, limit = self.cluster.gpu, 0
        if f"stack.{name}" not in self.settings:
            rules = (each for each in self.stack.gpu_limits if each.applies(gpu.compute_capability, gpu.hbm_bytes))
            limit = getattr(next(rules, None), name, 0)
        return limit or int(getattr(self.stack, name))

    def tp_degrees(self) -> tuple[int, ...]:
        """Return the tensor-parallel degrees that divide the model and fit these nodes, ascending."""
        return tp_degrees(self.model, self.nodes, self.cluster.gpus_per_node)


def usual_stack(model: ModelSpec, concurrency: int | None) -> str:
    """Return the stack of a scenario that names none: gpt-fast for static batches of dense 16-bit models, else vllm.

    gpt-fast is the benchmark of the paper's authors, of dense models. Models with experts or quantised weights are run
    in an engine; the recipes of vLLM and SGLang start them with tensor parallelism over the GPUs of a node, as a
    scenario does that names no degree (github.com/vllm-project/recipes: DeepSeek-V3.2, Kimi-K2-Thinking and GLM-5 with
    ``--tensor-parallel-size 8``; SGLang cookbook: DeepSeek-R1 with ``--tp 8``).
    """
    paper = not model.experts and model.weights_dtype in ("bf16", "fp16")
    return "gpt-fast" if concurrency is None and paper else "vllm"


def _checked_nodes(nodes: int) -> int:
    whole(nodes, "nodes", 1, MAX_RANKS, hint="number of nodes, e.g. --nodes 2")
    return nodes


def _parts(given: ScenarioFields, overrides: Overrides) -> Parts:
    asked = {**DEFAULTS, **given}
    model, cluster, stack = asked["model"], asked["cluster"], asked["stack"]
    if isinstance(model, str):
        model = catalog.model(model)
    if stack is None:
        stack = usual_stack(model, asked["concurrency"])
    parts = Parts(
        model=model,
        cluster=catalog.cluster(cluster) if isinstance(cluster, str) else cluster,
        stack=catalog.stack(stack) if isinstance(stack, str) else stack,
        # the spec checks the name
        workload=Workload(
            **{name: asked[name] for name in REQUESTS},
            imbalance=ExpertLoads.of(asked["imbalance"]),
            dtype="bf16" if asked["dtype"] is None else asked["dtype"],
            kv_dtype="bf16" if asked["kv_dtype"] is None else asked["kv_dtype"],
        ),
    )
    if asked["dtype"] is None:
        dtype = parts.model.weights_dtype
        parts = parts._replace(workload=dataclasses.replace(parts.workload, dtype=dtype))
    if asked["gpus_per_node"] is not None:
        parts = parts._replace(cluster=dataclasses.replace(parts.cluster, gpus_per_node=asked["gpus_per_node"]))
    if asked["allreduce"] is not None:
        parts = parts._replace(stack=dataclasses.replace(parts.stack, allreduce=asked["allreduce"]))
    parts = override_parts(parts, overrides)
    if asked["kv_dtype"] is None and "workload.kv_dtype" not in settings_of(overrides):
        parts = parts._replace(workload=dataclasses.replace(parts.workload, kv_dtype=_kv_dtype(parts)))
    return parts


def _plan(given: ScenarioFields, gpus_per_node: int) -> Plan:
    """Return the plan; by default its TP degree is what the other degrees leave of the GPUs, `_MOST_SHARING` a node."""
    asked = {**DEFAULTS, **given}
    plan = Plan(**{name: asked[name] for name in ("pp", "attention_dp", "dp")})
    tp = asked["tp"]
    if tp is None:
        sharing = gpus_per_node if asked["gpus_per_node"] is not None else min(gpus_per_node, _MOST_SHARING)
        tp = max(1, asked["nodes"] * sharing // plan.gpus)
    return dataclasses.replace(plan, tp=tp, ep=asked["ep"], sp=asked["sp"])


def _kv_dtype(parts: Parts) -> KvDType:
    """Return the data type of the KV cache, from the model's config, else by the stack's default."""
    model, workload = parts.model, parts.workload
    if model.kv_cache_dtype is not None and workload.dtype == model.weights_dtype:
        return model.kv_cache_dtype
    narrow = FORMATS[workload.dtype].tensor_cores != "bf16"
    return "fp8" if parts.stack.fp8_kv_cache and narrow else "bf16"


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def scenario_asked(scenario: Scenario | None, fields: Mapping[str, Any]) -> Scenario:
    """Return the scenario, or the one that the keywords make.

    Raises UnknownNameError if a keyword is no argument of a scenario; UsageError if both were given, or the keywords
    make none.
    """
    _check(scenario, fields)
    return Scenario(**fields) if scenario is None else scenario


def point_asked(scenario: Scenario | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments and settings that were given, in one dict, as a point of a grid has them.

    Raises UnknownNameError if a keyword is no argument of a scenario; UsageError if a scenario and keywords were given.
    """
    _check(scenario, fields)
    given = dict(fields if scenario is None else scenario.given)
    given.pop("variant", None)
    return given | (given.pop("overrides", None) or {})


def formerly_a_dict(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Take a dict in the place of a scenario, as until version 0.2, with a warning: its items are keywords now."""

    @wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        if not args or not isinstance(args[0], Mapping):
            return function(*args, **kwargs)
        name = function.__name__
        warnings.warn(
            f'{name}({{"model": ...}}, ...) is {name}(Scenario(model=...), ...) now, or {name}(..., model=...)',
            DeprecationWarning,
            stacklevel=2,
        )
        rest, keywords = args[1:], keywords_of(args[0])
        if "axes" in inspect.signature(function).parameters:
            rest, keywords = args, {}
        return function(None, *rest, **{**keywords, **kwargs})  # type: ignore[arg-type]

    return call


def _check(scenario: Scenario | None, fields: Mapping[str, Any]) -> None:
    known = (*ARGUMENTS, "overrides")
    for name in fields:
        # settings have their section's name before a dot
        if name not in known and "." not in name:
            raise UnknownNameError("argument", name, known)
    if scenario is not None and fields:
        first = next(iter(fields))
        raise UsageError(
            f"a scenario and {', '.join(fields)}: must be one of them",
            hint=f"scenario.replace({first}={fields[first]!r}) changes a scenario",
        )
