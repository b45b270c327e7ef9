"""The arguments of `Scenario.of`, each once.

Command-line flags, axes of a sweep, the explorer's links and the columns of exports are made from `ARGUMENTS`: a new
argument is an entry here, a parameter of `Scenario.of` and a field of a spec.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import isfunction
from types import MappingProxyType
from typing import Any

from ladder_sim.errors import UsageError
from ladder_sim.specs import catalog
from ladder_sim.specs.stack import AllReduce
from ladder_sim.specs.values import read_value
from ladder_sim.specs.workload import DType

_WHERE, _WORK, _HOW = "Model and cluster", "Workload", "Stack and costs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of `Scenario.of`."""

    name: str
    """As `Scenario.of` spells it."""
    kind: Any
    """Type of its values: int, bool or a Literal; or the function of the catalog that looks a name up."""
    default: Any = None
    """As in `Scenario.of`; None: decided by the other arguments."""
    holder: str
    """Attribute of a scenario that holds the value, e.g. "workload.batch"."""
    panel: str
    """Group of flags that `--help` lists it in."""
    help: str
    """One sentence for `--help`."""
    range_help: str = ""
    """The same for `ladder-sim sweep`, where it differs."""
    doubles: bool = False
    """A range without a step doubles."""
    maximum: int = 0
    """Largest whole number that a link of the explorer may hold."""

    @property
    def key(self) -> str:
        """Its name in a link, and with dashes as a flag; what is on by default is switched off, as in ``no_p2p``."""
        return f"no_{self.name}" if self.default is True else self.name

    @property
    def flag(self) -> str:
        """Its flag, e.g. ``--gpus-per-node``."""
        return f"--{self.key.replace('_', '-')}"

    def read(self, raw: Any, *, name: str) -> Any:
        """Read a value; text becomes a spec, a number or a flag. Errors call it `name`.

        Raises
        ------
        UsageError
            It does not fit the argument.
        """
        if isfunction(self.kind):
            return self.kind(raw) if isinstance(raw, str) else raw
        value = read_value(raw, self.name, self.kind, name=name)
        if self.kind is int and not value:
            raise UsageError(f"{name}: {raw} must be at least 1", hint="start at 1")
        return value


ARGUMENTS: Mapping[str, Argument] = MappingProxyType(
    {
        argument.name: argument
        for argument in (
            Argument(
                name="model",
                kind=catalog.model,
                default="70b",
                holder="model.name",
                panel=_WHERE,
                help="Alias, catalog id or path of a config.json.",
            ),
            Argument(
                name="cluster",
                kind=catalog.cluster,
                default="h100-sxm",
                holder="cluster.name",
                panel=_WHERE,
                help="Catalog id or path of a cluster .toml.",
            ),
            Argument(
                name="nodes",
                kind=int,
                default=1,
                holder="nodes",
                panel=_WHERE,
                help="Nodes of the tensor-parallel group.",
                range_help="Nodes; default: as many as --tp needs.",
                maximum=1024,
            ),
            Argument(
                name="gpus_per_node",
                kind=int,
                holder="cluster.gpus_per_node",
                panel=_WHERE,
                help="GPUs of one node.",
                maximum=1024,
            ),
            Argument(
                name="tp",
                kind=int,
                holder="tp",
                panel=_WHERE,
                help="Tensor-parallel degree; default: every GPU.",
                range_help="Tensor-parallel degrees; 2:16 doubles.",
                doubles=True,
                maximum=4096,
            ),
            Argument(
                name="batch",
                kind=int,
                default=1,
                holder="workload.batch",
                panel=_WORK,
                help="Requests served together.",
                range_help="Requests served together; 1:64 doubles.",
                doubles=True,
                maximum=65_536,
            ),
            Argument(
                name="prompt",
                kind=int,
                default=1024,
                holder="workload.prompt",
                panel=_WORK,
                help="Tokens of each prompt.",
                maximum=4_194_304,
            ),
            Argument(
                name="gen",
                kind=int,
                default=512,
                holder="workload.gen",
                panel=_WORK,
                help="New tokens of each request.",
                maximum=4_194_304,
            ),
            Argument(
                name="dtype",
                kind=DType,
                default="bf16",
                holder="workload.dtype",
                panel=_WORK,
                help="bf16, fp16 or fp8.",
            ),
            Argument(
                name="stack",
                kind=catalog.stack,
                default="gpt-fast",
                holder="stack.name",
                panel=_HOW,
                help="gpt-fast, vllm, trtllm or a stack .toml.",
            ),
            Argument(
                name="allreduce",
                kind=AllReduce,
                holder="stack.allreduce",
                panel=_HOW,
                help="nccl, one-shot, two-shot, nvls or auto.",
            ),
            Argument(
                name="p2p",
                kind=bool,
                default=True,
                holder="p2p",
                panel=_HOW,
                help="GPUs reach each other through host memory.",
                range_help="GPUs reach each other directly: true, false or both.",
            ),
        )
    }
)
DEFAULTS: Mapping[str, Any] = MappingProxyType({name: argument.default for name, argument in ARGUMENTS.items()})
