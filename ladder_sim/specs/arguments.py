"""The arguments of `Scenario`, each once.

Command-line flags, axes of a sweep, the explorer's links and the columns of exports are made from `ARGUMENTS`: a new
argument is an entry here, its type in `ScenarioFields` and a field of a spec.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypedDict, get_args, get_origin

from ladder_sim.errors import UsageError
from ladder_sim.hf.quantization import DType, KvDType
from ladder_sim.specs import catalog
from ladder_sim.specs.cluster import ClusterSpec
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.reading import read_value
from ladder_sim.specs.stack import AllReduce, StackSpec
from ladder_sim.specs.techniques import TECHNIQUES, Techniques, technique_names
from ladder_sim.specs.workload import USUAL, ExpertLoads, Imbalance

ASKED, PLAN, LOAD = "Asked", "Plan", "Load"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of `Scenario`."""

    name: str
    """As `Scenario` spells it."""
    kind: Any
    """Type of its values: int, bool or a Literal; or the function of the catalog that looks a name up."""
    default: Any
    """As in `Scenario`; None: decided by the other arguments."""
    attribute: str
    """Attribute of a scenario that has the value, e.g. "workload.batch"."""
    panel: str
    """Group of flags that `--help` lists it in."""
    help: str
    """What it is, for `--help`."""
    has_flag: bool = field(default=True, kw_only=True)
    """Whether it has a flag; what is rarely changed has none, and is given by ``--set NAME=VALUE``."""
    doubles: bool = field(default=False, kw_only=True)
    """A range without a step doubles."""
    repeats: bool = field(default=False, kw_only=True)
    """Whether the argument's flag may be given several times."""
    maximum: int = field(default=0, kw_only=True)
    """Largest whole number that a link of the explorer may hold."""

    @property
    def key(self) -> str:
        """Name of the argument in a link, and with dashes as a flag; ``no_p2p`` switches off what is on by default."""
        return f"no_{self.name}" if self.default is True else self.name

    @property
    def flag(self) -> str:
        """Flag of the argument, e.g. ``--gpus-per-node``; where it has none, ``--set`` and its name."""
        return f"--{self.key.replace('_', '-')}" if self.has_flag else f"--set {self.name}"

    def words(self, value: str) -> list[str]:
        """Return the words of a command line that give it a value; a switch is not at its default.

        Examples
        --------
        >>> ARGUMENTS["tp"].words("8"), ARGUMENTS["p2p"].words("False"), ARGUMENTS["kv_dtype"].words("fp8")
        (['--tp', '8'], ['--no-p2p'], ['--set', 'kv_dtype=fp8'])
        """
        if not self.has_flag:
            return ["--set", f"{self.name}={value.lower() if self.kind is bool else value}"]
        return [self.flag] if self.kind is bool else [self.flag, value]

    @property
    def names(self) -> tuple[str, ...]:
        """Names among the argument's values."""
        if get_origin(self.kind) is Literal:
            return get_args(self.kind)
        return tuple(_NAMES[self.kind]()) if self.kind in _NAMES else ()

    @property
    def range_help(self) -> str:
        """The help of the flag that takes a range of it."""
        if self.kind is bool:
            return "true (the flag alone), false, or both: true,false."
        return f"{self.help.removesuffix('.')}; ranges double." if self.doubles else self.help

    def read(self, raw: Any, *, name: str) -> Any:
        """Read a value; text becomes a spec, a number or a flag. Errors call it `name`."""
        value = read_value(raw, self.name, self.kind, name=name)
        if self.kind is int and not value:
            raise UsageError(f"{name}: {raw} must be at least 1", hint="start at 1")
        return value


# what lists the names that a function looks up
_NAMES = {
    catalog.model: catalog.model_names,
    catalog.cluster: catalog.cluster_names,
    catalog.stack: catalog.stack_names,
    Techniques.of: technique_names,
}


def _degree(name: str, help: str, *, default: int | None = 1) -> Argument:
    return Argument(name, int, default, f"plan.{name}", PLAN, help, doubles=True, maximum=4096)


# what is rarely changed has no flag
_rare = partial(Argument, has_flag=False)
# name, type or catalog, default, where a scenario holds it, panel, help
_TABLE = (
    Argument("model", catalog.model, "70b", "model.name", ASKED, "Alias, catalog id or path of a config.json."),
    Argument("cluster", catalog.cluster, "h100-sxm", "cluster.name", ASKED, "Catalog id or path of a cluster .toml."),
    Argument("nodes", int, 1, "nodes", ASKED, "Number of nodes.", maximum=1024),
    Argument("gpus_per_node", int, None, "cluster.gpus_per_node", ASKED, "GPUs of one node.", maximum=1024),
    _degree("tp", "Tensor-parallel degree; default: every GPU left by other degrees, 8 a node at most.", default=None),
    _degree("pp", "Pipeline stages."),
    _degree("ep", "Parts into which experts are spread."),
    _degree("attention_dp", "Groups of --tp ranks with attention of their own."),
    _degree("dp", "Replicas, which share the requests."),
    _rare("sp", bool, False, "plan.sp", PLAN, "Sequence parallel: reduce-scatter, norm of a share, all-gather."),
    Argument("batch", int, 1, "workload.batch", LOAD, "Requests of a static batch.", doubles=True, maximum=65_536),
    Argument("prompt", int, 1024, "workload.prompt", LOAD, "Tokens of each prompt.", maximum=4_194_304),
    Argument("gen", int, 512, "workload.gen", LOAD, "New tokens of each request.", maximum=4_194_304),
    Argument(
        "concurrency",
        int,
        None,
        "workload.concurrency",
        LOAD,
        "Requests kept in flight, instead of a static batch.",
        doubles=True,
        maximum=65_536,
    ),
    _rare(
        "imbalance",
        ExpertLoads.of,
        USUAL.name,
        "workload.imbalance.name",
        LOAD,
        f"Spread of tokens over experts: {', '.join(get_args(Imbalance))}, or a file of tokens per expert.",
    ),
    Argument(
        "dtype",
        DType,
        None,
        "workload.dtype",
        ASKED,
        f"{', '.join(get_args(DType)[:-1])} or {get_args(DType)[-1]}; default: as the model's config says, else bf16.",
    ),
    _rare(
        "kv_dtype",
        KvDType,
        None,
        "workload.kv_dtype",
        LOAD,
        "Type of the KV cache: bf16 or fp8; default: the model's or the stack's.",
    ),
    Argument(
        "stack",
        catalog.stack,
        None,
        "stack.name",
        ASKED,
        "gpt-fast, vllm, trtllm, sglang, one of a version as in vllm@0.19, or a stack .toml; "
        "default: vllm with requests in flight, experts or quantised weights, else gpt-fast.",
    ),
    Argument("allreduce", AllReduce, None, "stack.allreduce", ASKED, f"{', '.join(get_args(AllReduce)[:-1])} or auto."),
    Argument(
        "technique",
        Techniques.of,
        "none",
        "techniques.name",
        ASKED,
        f"{', '.join(TECHNIQUES)}; repeatable, or joined by +.",
        repeats=True,
    ),
    Argument("p2p", bool, True, "p2p", ASKED, "GPUs reach each other through host memory."),
)


class SystemFields(TypedDict, total=False):
    """Types of the arguments for a model, its GPUs and the engine."""

    model: str | ModelSpec
    cluster: str | ClusterSpec
    nodes: int
    gpus_per_node: int | None
    imbalance: str | Sequence[float] | ExpertLoads
    dtype: str | None
    kv_dtype: str | None
    stack: str | StackSpec | None
    allreduce: str | None
    technique: str | Sequence[str] | Techniques
    p2p: bool


class PlacedFields(SystemFields, total=False):
    """Types of all arguments but those for requests: with a plan."""

    tp: int | None
    pp: int
    ep: int
    attention_dp: int
    dp: int
    sp: bool


class ScenarioFields(PlacedFields, total=False):
    """Types of the arguments, for functions that take a scenario or its arguments."""

    batch: int
    prompt: int
    gen: int
    concurrency: int | None


# the arguments for requests
REQUESTS = ("batch", "prompt", "gen", "concurrency")
ARGUMENTS: Mapping[str, Argument] = MappingProxyType({argument.name: argument for argument in _TABLE})
DEFAULTS: Mapping[str, Any] = MappingProxyType({argument.name: argument.default for argument in _TABLE})


def keywords_of(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point's arguments and settings as keywords.

    Examples
    --------
    >>> keywords_of({"model": "70b", "inter.bandwidth": "100Gb/s"})
    {'model': '70b', 'overrides': {'inter.bandwidth': '100Gb/s'}}
    """
    arguments = {name: value for name, value in point.items() if name in ARGUMENTS}
    settings = {name: value for name, value in point.items() if name not in ARGUMENTS}
    return {**arguments, "overrides": settings} if settings else arguments
