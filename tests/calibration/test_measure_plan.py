"""What a calibration measures next: first everything once, then what is least certain, never beyond the time left."""

from dataclasses import replace

from ladder_sim_calibration.fit.samples import Sample
from ladder_sim_calibration.measure.plan import MIN_REPEATS, OVERLAP_RUNS, REPEATS, Plan

OPS = [Sample(op="gemm", point={"m": m, "n": 8.0, "k": 8.0}, seconds=None) for m in (1.0, 2.0, 4.0)]


def test_the_least_certain_is_measured_next() -> None:
    plan = Plan(OPS, [replace(OPS[0], seconds=1e-3, spread=0.1)])
    assert plan.next(10.0) == (OPS[1], REPEATS)
    plan.add(replace(OPS[1], seconds=1e-3, spread=0.3))
    assert plan.unmeasured == 1
    plan.add(OPS[2])
    # the third did not fit in memory
    assert plan.unmeasured == 0
    assert plan.next(10.0) == (OPS[1], REPEATS)
    for _ in range(9):
        plan.add(replace(OPS[1], seconds=1e-3, spread=0.3))
    # ten samples of 30 % say as much as one of a tenth
    assert plan.next(10.0) == (OPS[0], REPEATS)


def test_what_takes_long_is_repeated_less_and_not_begun_where_it_would_not_end() -> None:
    plan = Plan(OPS, [replace(OPS[0], seconds=0.5, spread=0.1)])
    # twice the work: a second each, and three runs that do not count
    assert plan.next(6.1) == (OPS[1], MIN_REPEATS)
    assert plan.next(5.9) == (OPS[0], 4)
    assert plan.next(3.4) is None
    assert Plan(OPS, []).next(0.0) is None


def test_a_prompt_is_expected_to_take_the_square_of_its_length() -> None:
    short, long = (Sample(op="attention_prefill", point={"q_len": size}, seconds=None) for size in (100.0, 1000.0))
    plan = Plan([long], [replace(short, seconds=1e-2)])
    assert plan.next(5.9) is None
    assert plan.next(6.1) == (long, MIN_REPEATS)


def test_a_collective_is_expected_with_its_whole_chain() -> None:
    op = Sample(op="all_reduce", point={"bytes": 8.0, "ranks": 2.0, "nodes": 1.0}, seconds=None)
    plan = Plan([op], [replace(op, seconds=0.1)])
    # six timed collectives and one before them, three repeats and three runs that do not count
    assert plan.next(4.1) is None
    assert plan.next(4.3) == (op, MIN_REPEATS)


def test_an_op_that_overlaps_a_message_is_expected_to_take_several_messages() -> None:
    point = {"m": 1.0, "n": 8.0, "k": 8.0, "bytes": 8.0, "ranks": 2.0, "nodes": 1.0}
    op = Sample(op="gemm_beside_all_reduce", point=point, seconds=None)
    taken = [replace(op, seconds=1e-6), replace(op, op="all_reduce_beside_gemm", seconds=0.1)]
    assert Plan([op], taken).next(6 * OVERLAP_RUNS * 0.09) is None
    # a larger GEMM does not make the message longer
    larger = replace(op, point={**point, "m": 1000.0})
    assert Plan([larger], taken).next(6 * OVERLAP_RUNS * 0.11) == (larger, MIN_REPEATS)
