"""What of the runtime only GPUs can show, with those that there are.

What a CPU can show of it is in `tests/runtime`: launches, streams and waits of a fake GPU.
"""

from typing import get_args

import pytest
import torch

from ladder_sim_runtime.comm.launch import on_ranks
from ladder_sim_runtime.config import AllReduce
from tests.support.faults import Fault, cause, faults
from tests.support.gpu_steps import end_seen, equal_by, equal_tokens

pytestmark = pytest.mark.torch

GPUS = torch.cuda.device_count()


def test_replayed_steps_give_the_tokens_of_eager_ones() -> None:
    equal, tokens = equal_tokens("cuda")
    assert equal == tokens


def test_another_thread_sees_when_a_graph_has_ended() -> None:
    """By that ranks end that hang in one."""
    assert end_seen("cuda") == (False, True)


@pytest.mark.parametrize("kind", get_args(AllReduce) if GPUS > 1 else ("backend",))
def test_ranks_compute_what_one_does_alone(kind: AllReduce) -> None:
    """With every kind of all-reduce that GPUs with memory in common have."""
    equal, tokens = on_ranks(GPUS, equal_by, kind)
    assert equal == tokens


@pytest.mark.parametrize("fault", list(faults(GPUS, GPUS)), ids=lambda fault: fault.name)
def test_a_fault_ends_with_its_message_and_code(fault: Fault) -> None:
    holds, says = cause(fault, "8b")
    assert holds, says
