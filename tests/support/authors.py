"""Logits that the authors' own code computed (tests/data/authors_logits.npz), and what ranks of this project compute.

Weights are whole, in Hugging Face's names and shapes; a case is a prefill and then single steps over the cache.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ladder_sim.hf.config import RopeScaling
from ladder_sim.wirings.layout import lay_out
from ladder_sim_runtime.assemble import TORCH_DTYPES, load
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.config import EngineConfig, ModelConfig
from ladder_sim_runtime.memory import Workload
from tests.conftest import DATA
from tests.support.ranks import on_ranks

# of the largest logit: the records' own distance to their equations in float64 is a third of it
TOLERANCE = {"fp32": 2e-6, "bf16": 4e-2}


class Records(NamedTuple):
    """What the file holds."""

    meta: Mapping[str, Any]
    arrays: Mapping[str, Tensor]

    def cases(self, tp: int) -> list[dict[str, Any]]:
        """Cases of a degree; of the class that Hugging Face loads with the wiring's name, too."""
        own = [case for case in self.meta["cases"] if case["tp"] == tp]
        hybrids = [{**case, "tp": 1, "rank": 0} for case in self.meta["hf_cases"]] if tp == 1 else []
        return own + hybrids

    def shape(self, name: str) -> ModelConfig:
        """The model of a case."""
        fields = dict(self.meta["shapes"][name])
        scaling, tied = fields.pop("scaling", None), fields.pop("tied", False)
        stretched = scaling and RopeScaling(
            original_positions=scaling["original_max_position_embeddings"],
            **{part: scaling[part] for part in ("factor", "low_freq_factor", "high_freq_factor")},
        )
        return ModelConfig(**fields, tied_embeddings=tied, rope_scaling=stretched)


@cache
def records() -> Records:
    with np.load(DATA / "authors_logits.npz") as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files if name != "meta"}
        return Records(json.loads(file["meta"].tobytes()), arrays)


def logits(comm: Communicator, case: Mapping[str, Any], engine: EngineConfig) -> Tensor:
    """Of all positions of a case, on this rank."""
    recorded = records()
    shape, dtype = recorded.shape(case["shape"]), TORCH_DTYPES[case["dtype"]]
    ids_BT = recorded.arrays[f"ids/{case['shape']}"]
    prompt, steps = recorded.meta["prompt"], recorded.meta["steps"]
    work = Workload(batch=len(ids_BT), prompt=prompt, gen=steps, dtype=dtype)
    model = load(
        shape,
        engine,
        comm,
        lambda name, _: recorded.arrays[f"weights/{case['shape']}/{name}"],
        work,
        torch.device("cpu"),
    )
    layers = case.get("ladder_layers")
    if layers is None:
        wiring = lay_out(case["wiring"], shape.layers)
    else:
        wiring = lay_out(f"hybrid-ladder:{len(layers)}" if layers else "standard", shape.layers, tuple(layers))
    with torch.inference_mode():
        cache = model.cache(len(ids_BT))
        parts = [model(ids_BT[:, :prompt], wiring, cache=cache)]
        for t in range(prompt, prompt + steps):
            now = {"position_T": torch.tensor([t]), "context": t + 1}
            parts.append(model(ids_BT[:, t : t + 1], wiring, cache=cache, **now))
        return torch.cat(parts, dim=1).float()


def compute(comm: Communicator, names: tuple[str, ...]) -> dict[tuple[str, str], Tensor]:
    """By engine and array, what this rank computes of its cases."""
    torch.set_num_threads(1)
    return {
        (name, case["array"]): logits(comm, case, ENGINES[name])
        for name in names
        for case in records().cases(comm.size)
        if computes(case, comm.rank)
    }


def computes(case: Mapping[str, Any], rank: int) -> bool:
    """Whether a rank computes a case: of the upper bound, whose ranks differ, its own alone."""
    return case["rank"] == rank or case.get("wiring") != "upper-bound"


ENGINES = {
    "flash": EngineConfig(prefill_logits="all"),
    "math": EngineConfig(prefill_logits="all", attention="math", fused_residual_add=True, fused_ladder_add=True),
}


def run_ranks(tp: int, folder: Path) -> list[dict[tuple[str, str], Tensor]]:
    """What every rank of a degree computes."""
    return on_ranks(tp, folder, compute, tuple(ENGINES))
