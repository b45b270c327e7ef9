"""What files of measured servings and loads mean: names in those of the catalog, and facts that no column says.

Names are those of aiconfigurator-core, of InferenceX, or our own; ``data/campaigns.toml`` has the facts, with evidence.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.hf.quantization import DType, KvDType, LayerPart
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of one row of a table; what is empty is as its columns say."""

    model: str = ""
    """In the catalog."""
    version: str = ""
    """Of the engine."""
    fp8: DType | None = None
    """Which fp8 the checkpoint has."""
    unquantized: tuple[LayerPart, ...] = ()
    """Parts of each layer that the checkpoint keeps in 16 bits."""
    kv_dtype: KvDType | None = None
    """Precision of the server's KV cache."""
    server: Mapping[str, float | str] = field(default_factory=dict)
    """Settings of the server, as `Scenario` has overrides, that are not the stack's; entries add up."""
    shortest: float | None = None
    """Shortest prompt or answer, as a share of the longest, which is in the table; all between are as likely. 1: all
    are of one length; None: it is not known."""
    spare_step_tokens: int = 0
    """Tokens that a step has room for beyond a prompt and one of each request in flight; 0: as the stack has it."""
    step_tokens_multiple: int = 1
    """Tokens of which the room of a step is a multiple, rounded up."""
    idle_requests: int = 0
    """Requests in flight that the server does not run at a time, whatever fits."""
    product_of_gpus: bool = False
    """Where moe_tp is moe_ep and not 1, the degree of attention is their product: GPUs are counted twice."""
    attention_dp_in_tp: bool = False
    """Ranks of attention-DP are those of tp_size."""
    experts_on_all_ranks: bool = False
    """Attention was split over all ranks of tp_size, and experts were spread over them, whatever other columns say."""
    left_out: str = ""
    """Why the row is not predicted."""
    faster_left_out: str = ""
    """Why it is not, if the same was also measured clearly slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What served the loads of a campaign."""

    scenario: Mapping[str, Any]
    """Arguments of `ladder_sim.Scenario`."""
    server: Mapping[str, float] = field(default_factory=dict)
    """Settings of the server, as `Scenario` has overrides, that are not the stack's."""
    requests: Mapping[str, float] = field(default_factory=dict)
    """Fields of `Traffic` that the files of the loads do not have; a prefix is a part of their prompts."""
    source: str
    """Where this is stated, or that it is assumed."""


def server_of(campaign: str) -> Server:
    """Return what served the loads of a campaign; raises UnknownNameError if there is no campaign of that name."""
    servers = {each["campaign"]: each for each in _data()["servers"]}
    if campaign not in servers:
        raise UnknownNameError("campaign", campaign, tuple(servers))
    return Server(**{name: value for name, value in servers[campaign].items() if name != "campaign"})


def facts(cell: Mapping[str, str]) -> Facts:
    """Return what is known of a row, by its cells."""
    said: dict[str, Any] = {}
    for entry in _data()["facts"]:
        if _matches(cell, entry["where"]) and not any(_matches(cell, each) for each in entry.get("but", ())):
            server = {**entry.get("server", {}), **said.get("server", {})}
            said = {**{name: entry[name] for name in _NAMES & entry.keys()}, **said, "server": server}
    if "unquantized" in said:
        said["unquantized"] = tuple(said["unquantized"])
    return Facts(**said)


_NAMES = frozenset(each.name for each in fields(Facts))


def _matches(cell: Mapping[str, str], conditions: Mapping[str, Any]) -> bool:
    """Whether each cell is the value asked for, or one of several."""
    return all(
        any(_is(cell[column], value) for value in (asked if isinstance(asked, list) else [asked]))
        for column, asked in conditions.items()
    )


def _is(text: str, value: str | float) -> bool:
    if isinstance(value, str):
        return text.lower() == value.lower()
    try:
        return float(text) == value
    except ValueError:
        return False


@cache
def _data() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    return tomllib.loads((resources.files("ladder_sim.validation") / "data" / "campaigns.toml").read_text("utf-8"))


# names of systems that are not those of our clusters with underscores
_SYSTEMS = MappingProxyType(
    {
        "a100_sxm": "a100-sxm-hdr",
        "gb200": "gb200-nvl72",
        "gb200_sxm": "gb200-nvl72",
        "gb300": "gb300-nvl72",
        "l40s": "l40s-pcie",
        "rtx_pro_6000_server": "rtx-pro-6000",
        # of InferenceX
        "h100": "h100-sxm",
        "h200": "h200-sxm",
        "b200": "b200-sxm",
        "b300": "b300-sxm",
    }
)
# names of precisions in aiconfigurator-core that are not our own
_FORMATS = MappingProxyType(
    {
        "bfloat16": "bf16",
        "float16": "fp16",
        "fp8_static": "fp8",
        "fp8_block": "fp8-block",
        "fp4": "nvfp4",
        "int4_wo": "w4a16",
    }
)


def model_name(path: str) -> str:
    """Return the model of a cell of ``model_path``: its name in the catalog, or the path of its file."""
    # checked here, so that the message names the column
    try:
        catalog.model(path)
    except UsageError as error:
        raise UsageError(f"model_path: {error.message}", hint=error.hint) from error
    name = catalog.model_id(path)
    return name if name in catalog.model_names() else path


def cluster_name(system: str) -> str:
    """Return the cluster of a cell of ``system``: its name in the catalog, or the path of its file."""
    key = system.lower()
    name = _SYSTEMS.get(key, key.replace("_", "-"))
    if name in catalog.cluster_names():
        return name
    if key.endswith(".toml"):
        return system
    known = (*_SYSTEMS, *(each.replace("-", "_") for each in catalog.cluster_names()))
    raise UnknownNameError("system", system, known, more="`ladder-sim list clusters` shows all, with - for _")


def stack_name(backend: str, version: str) -> str:
    """Return the stack of ``backend`` and ``backend_version``, e.g. "vllm@0.12.0"; without a version the newest."""
    is_file = backend.lower().endswith(".toml")
    name = backend if is_file else backend.lower()
    # made after the newest release
    version = "" if version.lower().startswith("nightly") else version
    known = tuple(each for each in catalog.stack_names() if catalog.stack(each).serves)
    if not is_file and name not in known:
        raise UnknownNameError("backend", backend, known, more="a stack's file ends in .toml")
    stack = f"{name}@{version}" if version else name
    try:
        catalog.stack(stack)
    except UsageError as error:
        raise UsageError(f"backend_version: {error.message}", hint=error.hint) from error
    return stack


def format_name(cell: Mapping[str, str], model: str, fp8: DType | None = None) -> str:
    """Return the precision of linear layers by a row's cells, as `ladder_sim.Scenario` has it for ``dtype``.

    `fp8` is which fp8 the checkpoint has, if its campaign is known; else the model's own.
    """
    # most weights of a model with experts are theirs
    columns = ("moe_quant_mode", "gemm_quant_mode") if catalog.model(model).experts else ("gemm_quant_mode",)
    column = next((each for each in columns if cell[each]), "dtype")
    key = cell[column].lower()
    name = _FORMATS.get(key, key.replace("_", "-"))
    own = catalog.model(model).weights_dtype
    if name == "fp8":
        checkpoint = fp8 or own
        name = checkpoint if checkpoint.startswith("fp8") else name
    elif name == "nvfp4" and own == "mxfp4":
        # tables have one name for formats of 4 bits
        name = own
    try:
        # the spec checks it
        Scenario(dtype=name)
    except UsageError as error:
        raise UsageError(f"{column}: {error.message}", hint=error.hint) from error
    return name
