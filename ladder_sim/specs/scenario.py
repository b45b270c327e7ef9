"""What is simulated: a model on a cluster, with a stack and a workload."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Self, cast

from ladder_sim.errors import PartitionError, UsageError
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.cluster import ClusterSpec
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.settings import IN_CLUSTER, Overrides, Parts, override_parts, settings_of
from ladder_sim.specs.signatures import typed
from ladder_sim.specs.stack import LARGE_GPU_BYTES, SMALL_GPU_BYTES, AllReduce, AllReduceRule, StackSpec
from ladder_sim.specs.values import flag, nonempty, whole
from ladder_sim.specs.workload import FORMATS, Arrivals, DType, KvDType, Workload
from ladder_sim.units import short_name

# far beyond any cluster one tensor-parallel group spans
_MAX_NODES = 100_000
# arguments that the specs check
_CHECKED = {*ARGUMENTS, "variant"} - {"model", "cluster", "stack"}
# compute capability of the A100
AMPERE = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A model on a cluster under a stack and a workload, with one residual wiring.

    Raises
    ------
    PartitionError
        If the tensor-parallel degree does not divide the model.
    UsageError
        If the ranks do not fit the nodes; as `SpecError`, if a number is out of range.

    Examples
    --------
    >>> scenario = Scenario.of(model="405b", nodes=2)
    >>> scenario.tp, scenario.ranks_per_node, scenario.nodes_used
    (16, 8, 2)
    >>> scenario.warnings()
    ('8 KV heads on 16 ranks: each KV head is held by 2 ranks',)
    """

    model: ModelSpec
    cluster: ClusterSpec
    stack: StackSpec
    workload: Workload
    nodes: int = 1
    """Nodes the tensor-parallel group spans."""
    tp: int = 8
    """Tensor-parallel degree: ranks in the group."""
    variant: str = "standard"
    """Residual wiring, e.g. "ladder", "hybrid-ladder:16", "desync:4"."""
    p2p: bool = True
    """GPUs of a node reach each other directly; False: through host memory (NCCL_P2P_DISABLE=1)."""
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Figures changed by hand, e.g. "inter.bandwidth_Bps", and the units they were typed in: no fit replaces them."""

    def __post_init__(self) -> None:
        whole(self.nodes, "nodes", 1, _MAX_NODES, hint="number of nodes, e.g. --nodes 2")
        whole(self.tp, "tp", 1, _MAX_NODES, hint="ranks that share the model, e.g. --tp 8")
        nonempty(self.variant, "variant")
        flag(self.p2p, "p2p")
        per_node = self.cluster.gpus_per_node
        total = self.nodes * per_node
        if self.tp > total:
            raise UsageError(
                f"tp {self.tp} needs {self.tp} GPUs: there are {self.nodes} x {per_node}",
                hint=f"add nodes (--nodes {-(-self.tp // per_node)}), or use --tp {total} or less",
            )
        problem = self.model.partition_problem(self.tp)
        if problem:
            degrees = ", ".join(map(str, self.tp_degrees()))
            raise PartitionError(
                f"model '{self.model.name}': {problem}",
                hint=f"tensor-parallel degrees that divide it on {total} GPUs: {degrees}",
            )
        if self.workload.concurrency is not None and not self.stack.serves:
            raise UsageError(
                f"stack '{self.stack.name}' runs static batches only, without requests kept in flight",
                hint="take one that batches continuously, e.g. --stack vllm, or a static batch with --batch",
            )
        if not self._fills_nodes(self.tp):
            raise UsageError(
                f"tp {self.tp} on nodes of {per_node} GPUs: a group across nodes must fill them evenly",
                hint=f"use a multiple of {per_node}, or {per_node} or less",
            )

    @classmethod
    @typed(unless=_CHECKED)
    def of(
        cls,
        *,
        model: str | ModelSpec = "70b",
        cluster: str | ClusterSpec = "h100-sxm",
        nodes: int = 1,
        gpus_per_node: int | None = None,
        tp: int | None = None,
        batch: int = 1,
        prompt: int = 1024,
        gen: int = 512,
        concurrency: int | None = None,
        arrivals: str = "steady",
        dtype: str | None = None,
        kv_dtype: str | None = None,
        stack: str | StackSpec = "gpt-fast",
        variant: str = "standard",
        allreduce: str | None = None,
        p2p: bool = True,
        overrides: Overrides | None = None,
    ) -> Self:
        """Make a scenario from names.

        Parameters
        ----------
        model, cluster, stack
            Catalog names or paths of files (see `ladder_sim.specs.catalog`), or the specs themselves.
        nodes
            Nodes of the tensor-parallel group.
        gpus_per_node
            GPUs of one node; the cluster's by default.
        tp
            Tensor-parallel degree; all GPUs of all nodes by default.
        batch, prompt, gen
            Requests of a static batch, tokens of each prompt, new tokens of each request.
        concurrency, arrivals
            Requests kept in flight under continuous batching, instead of a static batch, and how they arrive.
        dtype, kv_dtype
            Precision of linear layers (`ladder_sim.specs.workload.FORMATS`) and of the KV cache; by default what the
            model's config.json says. Without a word there: bf16, and the stack's habit for the cache.
        variant
            Residual wiring.
        allreduce
            Algorithm of the all-reduce; the stack's by default.
        p2p
            False: GPUs of a node reach each other through host memory.
        overrides
            Single figures to change, e.g. ``{"inter.bandwidth": "100Gb/s"}`` or ``{"inter.bandwidth_Bps": 12.5e9}``.

        Raises
        ------
        UsageError
            If a name is unknown or a value breaks a rule.
        PartitionError
            If the tensor-parallel degree does not divide the model.
        """
        parts = Parts(
            model=catalog.model(model) if isinstance(model, str) else model,
            cluster=catalog.cluster(cluster) if isinstance(cluster, str) else cluster,
            stack=catalog.stack(stack) if isinstance(stack, str) else stack,
            # the spec checks the name
            workload=Workload(
                batch=batch,
                prompt=prompt,
                gen=gen,
                concurrency=concurrency,
                arrivals=cast(Arrivals, arrivals),
                dtype="bf16" if dtype is None else cast(DType, dtype),
                kv_dtype="bf16" if kv_dtype is None else cast(KvDType, kv_dtype),
            ),
        )
        if dtype is None:
            dtype = parts.model.weights_dtype
            parts = parts._replace(workload=dataclasses.replace(parts.workload, dtype=dtype))
        if gpus_per_node is not None:
            parts = parts._replace(cluster=dataclasses.replace(parts.cluster, gpus_per_node=gpus_per_node))
        if allreduce is not None:
            parts = parts._replace(stack=dataclasses.replace(parts.stack, allreduce=cast(AllReduce, allreduce)))
        settings = settings_of(overrides or {})
        parts = override_parts(parts, overrides or {})
        if kv_dtype is None and "workload.kv_dtype" not in settings:
            kept = _kv_dtype(parts)
            parts = parts._replace(workload=dataclasses.replace(parts.workload, kv_dtype=kept))
        whole(nodes, "nodes", 1, _MAX_NODES, hint="number of nodes, e.g. --nodes 2")
        degree = nodes * parts.cluster.gpus_per_node if tp is None else tp
        return cls(**parts._asdict(), nodes=nodes, tp=degree, variant=variant, p2p=p2p, settings=settings)

    def fields(self) -> dict[str, Any]:
        """Return its value for each argument of `of`, specs by name; the variant and settings left out."""
        return {name: attrgetter(argument.holder)(self) for name, argument in ARGUMENTS.items()}

    def setting(self, name: str) -> Any:
        """Return its value for a setting, named as `ladder_sim.specs.settings.Setting.name`."""
        return attrgetter(f"cluster.{name}" if name.partition(".")[0] in IN_CLUSTER else name)(self)

    def set_by_hand(self, *prefixes: str) -> list[str]:
        """Return the settings whose names begin so, e.g. with ``"stack."``."""
        return [name for name in self.settings if name.startswith(prefixes)]

    @property
    def ranks_per_node(self) -> int:
        """Ranks of the tensor-parallel group on each node it uses."""
        return min(self.tp, self.cluster.gpus_per_node)

    @property
    def nodes_used(self) -> int:
        """Nodes that hold ranks of the tensor-parallel group."""
        return -(-self.tp // self.cluster.gpus_per_node)

    @property
    def custom_allreduce(self) -> bool:
        """Whether all-reduce ``auto`` may take the engine's own kernels: they read the memory of peers in the node."""
        linked = self.cluster.intra.full_nvlink or self.tp <= self.stack.custom_allreduce_without_nvlink
        return self.p2p and linked and self.nodes_used == 1

    @property
    def fused_norm_bytes(self) -> float:
        """Largest all-reduce that is one kernel with the add and norm that need its sum at once; 0: there is none."""
        stack = self.stack
        if stack.allreduce == "fused-norm" and self.nodes_used == 1:
            return math.inf
        if stack.allreduce != "auto" or not stack.fused_allreduce_norm or not self.custom_allreduce:
            return 0.0
        rule = self.allreduce_rule(stack.fused_norm_rules)
        return rule.up_to[-1][1] if rule and rule.up_to else 0.0

    def allreduce_rule(self, rules: Iterable[AllReduceRule]) -> AllReduceRule | None:
        """The rule of a stack for these GPUs; None if it has none."""
        domain = self.cluster.gpus_per_node if self.cluster.intra.full_nvlink else 1
        group = (self.ranks_per_node, self.cluster.gpu.compute_capability, domain)
        return next((rule for rule in rules if rule.applies(*group)), None)

    @property
    def step_tokens(self) -> int:
        """Most tokens of one step of the stack on this GPU under continuous batching."""
        stack, gpu = self.stack, self.cluster.gpu
        own = 0
        if gpu.compute_capability == AMPERE:
            own = stack.ampere_step_tokens
        elif gpu.hbm_bytes >= LARGE_GPU_BYTES:
            own = stack.large_gpu_step_tokens
        elif gpu.hbm_bytes < SMALL_GPU_BYTES:
            own = stack.small_gpu_step_tokens
        return own or stack.step_tokens

    def tp_degrees(self) -> tuple[int, ...]:
        """Return the tensor-parallel degrees that divide the model and fit these nodes, ascending."""
        total = self.nodes * self.cluster.gpus_per_node
        return tuple(tp for tp in self.model.tp_degrees(total) if self._fills_nodes(tp))

    def _fills_nodes(self, tp: int) -> bool:
        return tp <= self.cluster.gpus_per_node or tp % self.cluster.gpus_per_node == 0

    def unused(self, name: str) -> str:
        """Why a figure of a link changes nothing here, and what uses it; empty if it is used.

        Examples
        --------
        >>> Scenario.of(model="70b").unused("inter.bandwidth_Bps")
        'the group is within one node; --nodes 2 uses it'
        """
        tier = name.partition(".")[0]
        if tier == "inter" and self.nodes_used == 1:
            return "the group is within one node; --nodes 2 uses it"
        if tier == "intra" and self.tp == 1:
            return "a single GPU has no link to use; --tp 2 uses it"
        if tier == "host" and self.p2p:
            return "GPUs reach each other directly; --no-p2p uses it"
        return ""

    def warnings(self) -> tuple[str, ...]:
        """Return what the reader of a prediction should know about this scenario, one sentence each."""
        warnings = []
        if self.model.multimodal:
            warnings.append(f"'{self.model.name}': only the text decoder is predicted, not its encoders")
        if self.model.joint_qk_norm:
            warnings.append(
                f"'{self.model.name}' normalises queries and keys over all heads: these kernels are not predicted, nor "
                "that ranks exchange queries and keys for them"
            )
        if self.model.parallel_blocks:
            warnings.append(
                f"'{self.model.name}' has attention and MLP side by side: variant parallel is the model as it is, the "
                "others are models of its sizes with other wirings, and speedups are over that standard"
            )
        context, longest = self.workload.context, self.model.max_positions
        if context > longest:
            warnings.append(f"context of {context} tokens: '{self.model.name}' was made for {longest}")
        window = self.model.sliding_window
        if 0 < window < context:
            warnings.append(
                f"'{self.model.name}' has layers that attend to the last {window} tokens only: "
                f"attention is costed over the full context of {context}"
            )
        if self.workload.dtype == "fp16":
            warnings.append("fp16 uses the bf16 tables: the same bytes and tensor-core rate")
        gpu, precision = self.cluster.gpu, FORMATS[self.workload.dtype]
        peaks = {"fp8": gpu.fp8_flops, "fp4": gpu.fp4_flops}
        if peaks.get(precision.tensor_cores) == gpu.bf16_flops:
            warnings.append(
                f"{gpu.name} has no {precision.tensor_cores} tensor cores: {self.workload.dtype} saves memory and its "
                "traffic, and is multiplied at the rate of bf16"
            )
        for figure in ("bf16_flops", "fp8_flops", "fp4_flops"):
            if f"gpu.{figure}" in self.settings:
                known = [catalog.cluster(name).gpu for name in catalog.cluster_names()]
                dense = [getattr(each, figure) for each in known if each.name == gpu.name]
                if dense and getattr(gpu, figure) > max(dense):
                    warnings.append(
                        f"{short_name(f'gpu.{figure}')} is above the dense peak of {gpu.name}: it may be the figure "
                        "with sparsity"
                    )
        kv_heads = self.model.kv_heads
        if self.tp > kv_heads:
            plural = "s" if kv_heads > 1 else ""
            warnings.append(
                f"{kv_heads} KV head{plural} on {self.tp} ranks: each KV head is held by {self.tp // kv_heads} ranks"
            )
        if self.stack.allreduce == "auto" and self.p2p and self.nodes_used == 1 < self.tp and not self.custom_allreduce:
            warnings.append(
                f"stack '{self.stack.name}' does not use its own all-reduce on {self.tp} GPUs that NVLink does not "
                f"fully connect ({self.cluster.intra.fabric}): NCCL's is predicted"
            )
        for name in self.settings:
            if reason := self.unused(name):
                warnings.append(f"{short_name(name)} changes nothing: {reason}")
        if self.nodes_used < self.nodes:
            warnings.append(f"tp {self.tp} uses {self.nodes_used} of {self.nodes} nodes")
        return tuple(warnings)


def _kv_dtype(parts: Parts) -> KvDType:
    """What the model's config says of the KV cache; else the stack's habit."""
    model, workload = parts.model, parts.workload
    if model.kv_cache_dtype is not None and workload.dtype == model.weights_dtype:
        return model.kv_cache_dtype
    narrow = FORMATS[workload.dtype].tensor_cores != "bf16"
    return "fp8" if parts.stack.fp8_kv_cache and narrow else "bf16"
