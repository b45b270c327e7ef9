"""What a calibration measures: ops of a model's shards, and a grid around them."""

from collections.abc import Iterator, Sequence

from calibration.fit.samples import Sample
from ladder_sim.specs.model import ModelSpec

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# tokens of a GEMM
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192)
# of attention
SEQUENCES = (1, 4, 16)
# times KV heads on a rank
MESSAGES = tuple(4.0**power * 1024 for power in range(10))
# of collectives: 1 KB to 256 MB
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


def ops_of(
    models: Sequence[ModelSpec], degrees: Sequence[int], ranks: int, *, most: float = float("inf")
) -> list[Sample]:
    """Every op to measure, without its time.

    Parameters
    ----------
    models, degrees
        Shards whose shapes are covered: each model at each tensor-parallel degree that divides it.
    ranks
        GPUs of this run; collectives are measured on all of them.
    most
        Largest size of anything, for a quick run: tokens of a GEMM, context, and KB of a message.
    """
    points = {sample.key: sample for sample in _every(models, degrees, ranks, most)}
    return list(points.values())


def _every(models: Sequence[ModelSpec], degrees: Sequence[int], ranks: int, most: float) -> Iterator[Sample]:
    for model in models:
        for tp in degrees:
            if model.partition_problem(tp):
                continue
            heads, kv_heads = model.heads // tp, max(1, model.kv_heads // tp)
            qkv, up = (heads + 2 * kv_heads) * model.head_dim, model.intermediate // tp * (1 + model.gated_mlp)
            inputs = ((qkv, model.hidden), (up, model.hidden), (qkv + up, model.hidden))
            outputs = ((model.hidden, heads * model.head_dim), (model.hidden, model.intermediate // tp))
            for n, k in (*inputs, *outputs):
                for m in ROWS:
                    if m <= most:
                        yield _op("gemm", m=m, n=n, k=k)
            for length in CONTEXTS:
                for sequences in SEQUENCES:
                    if length <= most:
                        shape = {"group": heads // kv_heads, "head_dim": model.head_dim}
                        yield _op("attention_prefill", batch_kv_heads=sequences * kv_heads, q_len=length, **shape)
                        yield _op("attention_decode", batch_kv_heads=sequences * kv_heads, kv_len=length, **shape)
    if ranks > 1:
        for op in COLLECTIVES:
            for size in MESSAGES:
                if size <= most * 1024:
                    yield _op(op, bytes=size, ranks=ranks)


def _op(op: str, **point: float) -> Sample:
    return Sample(op=op, point={name: float(value) for name, value in point.items()}, seconds=None)
