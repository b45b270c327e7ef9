"""Work, traffic, growth and tables of single kernels."""

import pytest

from ladder_sim.graph.ops import Op
from ladder_sim.kernels import TABLE_KINDS, Experts, GemmShape, Gpu, MlaShape, MoeShape, Sizes
from ladder_sim.specs import catalog
from tests.support.shapes import mla_shape, moe_shape


def test_one_expert_that_every_token_takes_is_a_dense_feed_forward() -> None:
    moe = moe_shape(tokens=7, hidden=64, width=160, experts=1, top_k=1)
    gate_up, down = GemmShape(m=7, n=320, k=64), GemmShape(m=7, n=64, k=160)
    assert moe.flops == gate_up.flops + down.flops
    # but for the input of the second
    assert moe.moved_bytes == gate_up.moved_bytes + down.moved_bytes


def test_splitting_experts_or_their_width_divides_the_work() -> None:
    whole = moe_shape(tokens=1000)
    for parts in ({"ep": 8}, {"expert_tp": 8}, {"ep": 4, "expert_tp": 2}):
        assert moe_shape(tokens=1000, **parts).flops == pytest.approx(whole.flops / 8)


def test_few_tokens_read_few_experts() -> None:
    one, many, twice = (moe_shape(tokens=tokens) for tokens in (1, 100_000, 200_000))
    expert_bytes = 3 * one.hidden * one.width * one.operands.weight_bytes
    assert one.moved_bytes == pytest.approx(8 * expert_bytes, rel=0.01)
    # activations grow with the tokens, weights do not
    assert 2 * many.moved_bytes - twice.moved_bytes == pytest.approx(256 * expert_bytes)


def test_decode_reads_one_latent_vector_per_token_whatever_the_heads() -> None:
    few, many = (mla_shape(batch=4, kv_len=100_000, heads=heads) for heads in (1, 16))
    assert few.moved_bytes == pytest.approx(4 * 100_000 * 576 * 2, rel=0.01)
    assert many.moved_bytes == pytest.approx(few.moved_bytes, rel=0.01)
    assert many.flops == 16 * few.flops


def test_a_prompt_expands_the_latent_vectors_of_every_head() -> None:
    prompt = mla_shape(q_len=1000, kv_len=1000, heads=16)
    assert prompt.moved_bytes == 16 * 1000 * 2 * 320 * 2
    # each of the new tokens reads those before it, and itself
    assert prompt.flops == 2 * 16 * 320 * 1000 * 1001 / 2


def test_experts_grow_with_the_tokens_of_all_ranks_that_meet_in_them() -> None:
    """The graph of one token of each of 8 ranks has 8 tokens in its experts."""
    sizes = Sizes(batch=5, q_len=3, kv_len=100, every_logit=False)
    grown = Op(name="experts", kind="gemm", shape=moe_shape(tokens=8)).resized(sizes).shape
    assert isinstance(grown, MoeShape)
    assert grown.tokens == 5 * 3 * 8
    latent = Op(name="attention", kind="attention", shape=mla_shape()).resized(sizes).shape
    assert isinstance(latent, MlaShape)
    assert (latent.batch, latent.q_len, latent.kv_len) == (5, 3, 100)


@pytest.mark.parametrize("kind", TABLE_KINDS)
def test_a_table_holds_the_kernels_at_its_points(kind: str) -> None:
    """What a kind of table makes of sizes is looked up at these sizes."""
    axes = TABLE_KINDS[kind].axes
    keys = {"moe": Experts("bf16", 4096, 1536, 128, 8), "sample": "greedy"}
    of = "latent-64-bf16" if kind.startswith("sparse") else keys.get(kind, "bf16")
    point = {name: 2.0 ** (7 + number) for number, name in enumerate(axes)}
    lookup = TABLE_KINDS[kind].shape(of, point).lookup
    assert lookup is not None
    assert (lookup.kind, lookup.of, {name: float(at) for name, at in lookup.point.items()}) == (kind, of, point)
    assert (tuple(lookup.point), lookup.times, lookup.carried_over) == (axes, 1.0, False)


@pytest.mark.parametrize("index_heads", [0, 64])
def test_sparse_attention_has_a_floor_for_each_of_its_kernels(index_heads: int) -> None:
    """Regression: three kernels had the floor of one in the roofline that ratios of tables are to."""
    gpu = Gpu.of(catalog.cluster("h200-sxm").gpu)
    shape = TABLE_KINDS["sparse_decode"].shape(f"latent-{index_heads}-fp8", {"batch": 1, "heads": 8, "kv_len": 1})
    assert shape.roofline_s(gpu) == pytest.approx((3 if index_heads else 1) * gpu.kernel_s, rel=0.05)
