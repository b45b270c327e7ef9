"""README's table of how much of a time was measured. ``python -m tests.support.support_matrix`` writes it anew."""

from ladder_sim import Scenario, predict
from tests.conftest import REPO

PAGE = REPO / "README.md"
# a model for each kind of layers
MODELS = {
    "dense": "70b",
    "experts": "qwen3-235b",
    "latent attention": "deepseek-v3",
    "sparse attention": "deepseek-v3.2",
    "linear attention": "qwen3-next-80b-a3b",
    "Mamba2": "nemotron-3-super-120b-a12b",
}
CLUSTERS = {"H200": "h200-sxm", "B200": "b200-sxm", "MI355X": "mi355x", "MI300X": "mi300x"}
HEAD = f"| percent measured | {' | '.join(MODELS)} |"


def measured(model: str, cluster: str) -> str:
    """Return the percentage of standard's time that was measured, of 16 requests in flight under SGLang."""
    scenario = Scenario(model=model, cluster=cluster, stack="sglang", concurrency=16)
    standard = predict(scenario, ["standard"])["standard"]
    seconds = sum(each for (source, _), each in standard.breakdown.sources_s.items() if source == "measured")
    return f"{100.0 * seconds / standard.request_s:.0f}"


def table() -> str:
    """Return the table as lines of Markdown."""
    rows = [
        f"| {name} | {' | '.join(measured(model, cluster) for model in MODELS.values())} |"
        for name, cluster in CLUSTERS.items()
    ]
    return "\n".join([HEAD, "|---" * (1 + len(MODELS)) + "|", *rows])


def main() -> None:
    """Write the table of today's predictions."""
    text = PAGE.read_text("utf-8")
    before, found, rest = text.partition(HEAD)
    if not found:
        raise SystemExit(f"{PAGE.name} has no line {HEAD!r}")
    PAGE.write_text(before + table() + "\n\n" + rest.partition("\n\n")[2], "utf-8")


if __name__ == "__main__":
    main()
