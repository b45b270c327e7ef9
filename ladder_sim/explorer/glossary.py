"""What the words on the page mean: its tooltips, and the list at its end."""

from collections.abc import Mapping

from ladder_sim.display.labels import LEGEND
from ladder_sim.graph.variants import FAMILIES

GLOSSARY: Mapping[str, str] = {
    **{family.pattern: family.sentence for family in FAMILIES.values()},
    "hybrid-NAME:K": "Standard, with the last K layers as any of these, parameter included: hybrid-delayed:2:16.",
    "All-reduce": "The sum over all GPUs after each block, which all of them wait for.",
    "Tensor-parallel degree": "GPUs that share each layer; empty: all that the other degrees leave.",
    "Pipeline stages": "Groups of GPUs that hold consecutive layers; a stage sends its result to the next.",
    "Expert-parallel degree": "Parts into which whole experts are spread; 1: every GPU has a share of each expert.",
    "Data-parallel attention": "Groups of GPUs with requests of their own, which share the experts and nothing else.",
    "Replicas": "Copies of the model, which share the requests and exchange nothing.",
    "Measured profile": "Times measured on a GPU, which the prediction is based on.",
    "Batch": "Requests of a static batch: they start and end together. Servers batch requests as they arrive.",
    "Requests in flight": "Kept in flight by an engine that batches continuously; empty: one static batch.",
    "TTFT": "Time to first token: the prefill of the whole batch.",
    "TPOT": "Time per output token after the first: the mean decode step.",
    "tok/s": "New tokens per second of the whole batch, prefill included, with the 90 % interval.",
    "$/Mtok": "US dollars for a million new tokens at this rate, without idle time.",
    "90 %": (
        "The interval that holds the true value in nine of ten cases, if the model's errors are as estimated; wider "
        "where no end-to-end run was compared."
    ),
    "hidden": f"{LEGEND['hidden'].capitalize()}.",
    "limit": "What takes the largest share of the critical path.",
    "critical path": f"{LEGEND['critical path'].capitalize()}.",
    "Requests per second": "That arrive at random (a Poisson process), at all replicas together.",
    "Promise": "Bounds that 95 % of requests keep, with a queue that does not grow without end.",
    "limit of each": "The highest rate at which one replica alone keeps the promise.",
    "rate per GPU": "At which one replica breaks the promise, over standard's.",
    "breaks first": "The bound that is not kept above this rate.",
    "Goodput": "Requests per second that keep every bound.",
    "KV cache": "Keys and values of all tokens so far, which each decode step reads.",
    "Pareto front": "Degrees and batches that no other beats in both latency and throughput.",
    "measured": "Interpolated within measurements of this GPU and this link.",
    "fitted": "Between or beyond measurements of this GPU and this link, or a formula fitted to them.",
    "transferred": "Measured on other hardware or at sizes far from this one, and carried over by formulas.",
    "roofline": "From datasheet figures and a formula.",
    "stack": "What the engine takes itself: waits and launches; in memory its context, communicators and workspaces.",
}
