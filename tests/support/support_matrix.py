"""The table of README that says where times come from. ``python -m tests.support.support_matrix`` writes it anew."""

from typing import get_args

from ladder_sim import Scenario, predict
from ladder_sim.costs.estimate import Source
from tests.conftest import DATA, REPO

PAGE = REPO / "README.md"
# a model for each kind of layers
MODELS = {
    "dense: Llama 3.1 70B": "70b",
    "experts: Qwen3-235B": "qwen3-235b",
    "latent attention: DeepSeek-V3": "deepseek-v3",
    "sparse attention: DeepSeek-V3.2": str(DATA / "deepseek_v32_layers.json"),
    "linear attention: Qwen3-Next-80B": str(DATA / "qwen3_next_layers.json"),
    "Mamba2: Nemotron 3 Super": str(DATA / "nemotron_h_layers.json"),
}
CLUSTERS = {"H200": "h200-sxm", "B200": "b200-sxm", "MI355X": "mi355x", "MI300X": "mi300x"}
HEAD = f"| percent of the time: {', '.join(get_args(Source))} | {' | '.join(CLUSTERS)} |"


def shares(model: str, cluster: str) -> str:
    """Return the percentages of standard's time that each source prices, of 16 requests in flight under SGLang."""
    scenario = Scenario(model=model, cluster=cluster, stack="sglang", concurrency=16)
    standard = predict(scenario, ["standard"])["standard"]
    of = dict.fromkeys(get_args(Source), 0.0)
    for (source, _), seconds in standard.breakdown.sources_s.items():
        of[source] += seconds / standard.request_s
    return ", ".join(f"{100.0 * share:.0f}" for share in of.values())


def table() -> str:
    """Return the table as lines of Markdown."""
    rows = [
        f"| {name} | {' | '.join(shares(model, cluster) for cluster in CLUSTERS.values())} |"
        for name, model in MODELS.items()
    ]
    return "\n".join([HEAD, "|---" * (1 + len(CLUSTERS)) + "|", *rows])


def main() -> None:
    """Write the table of today's predictions."""
    text = PAGE.read_text("utf-8")
    before, found, rest = text.partition(HEAD)
    if not found:
        raise SystemExit(f"{PAGE.name} has no line {HEAD!r}")
    PAGE.write_text(before + table() + "\n\n" + rest.partition("\n\n")[2], "utf-8")


if __name__ == "__main__":
    main()
