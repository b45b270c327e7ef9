"""How a model is spread over GPUs."""

from dataclasses import dataclass
from typing import Annotated, Any

from ladder_sim.errors import UsageError
from ladder_sim.specs.fields import Limits, check_fields

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
        """Return how many of them are in one pass: the stages of a pipeline work on as many passes at a time."""
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
