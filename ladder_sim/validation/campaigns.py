"""What is known of campaigns that measured servings or loads, and follows from no column or field of their files.

``data/campaigns.toml`` holds it with its evidence.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from typing import Any

from ladder_sim.errors import UnknownNameError
from ladder_sim.hf.quantization import DType, KvDType, LayerPart


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
    idle_requests: int = 0
    """Requests in flight that the server does not run at a time, whatever fits."""
    product_of_gpus: bool = False
    """Where moe_tp is moe_ep and not 1, the degree of attention is their product: GPUs are counted twice."""
    attention_dp_in_tp: bool = False
    """Ranks of attention-DP are those of tp_size."""
    attention_dp_ignored: bool = False
    """They ran under tensor parallelism with experts over the same ranks, whatever the column says."""
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
