"""The runtime next to transformers on a CPU: a prompt, and a decode step, of one model with random weights.

    python benchmarks/transformers_speed.py [--rounds 15] [--dtype bf16] [--threads 2]

Both take turns. transformers runs its own Llama with its default attention and cache, and computes the logits of the
last position alone, as the runtime does. Shown are medians, and the median of the ratios of the rounds with the
interval of 95 %.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from runtime.assemble import TORCH_DTYPES, assemble
from runtime.bench import median_interval
from runtime.comm.base import Alone
from runtime.config import EngineConfig, ModelConfig
from runtime.model.wiring import lay_out

LAYERS, BATCH, STEPS = 8, 1, 16
PROMPTS = (32, 256, 1024)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Compare the runtime's speed with that of transformers.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dtype", choices=TORCH_DTYPES, default="fp32", help="of weights and activations")
    parser.add_argument("--threads", type=int, default=1, help="of either")
    arguments = parser.parse_args()
    rounds, dtype = arguments.rounds, TORCH_DTYPES[arguments.dtype]
    torch.set_num_threads(arguments.threads)
    print("| prompt | pass | transformers | runtime | runtime's time over transformers' (95 %) |")
    print("|---|---|---|---|---|", flush=True)
    for prompt in PROMPTS:
        passes = {"transformers": theirs(prompt, dtype), "runtime": ours(prompt, dtype)}
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in passes}
        for number in range(1 + rounds):
            for name, run in passes.items():
                times_s = run()
                # the first round warms up
                if number:
                    seconds[name].append(times_s)
        for at, kind in enumerate(("prefill", "decode step")):
            medians = {name: statistics.median(times[at] for times in every) for name, every in seconds.items()}
            pairs = zip(seconds["runtime"], seconds["transformers"], strict=True)
            ratios = [own[at] / other[at] for own, other in pairs]
            low, high = median_interval(ratios) or (min(ratios), max(ratios))
            times = " | ".join(f"{1e3 * each:.1f} ms" for each in medians.values())
            print(
                f"| {prompt} | {kind} | {times} | {statistics.median(ratios):.3f} ({low:.3f}-{high:.3f}) |", flush=True
            )


def theirs(prompt: int, dtype: torch.dtype) -> Callable[[], tuple[float, float]]:
    """Serves one request; returns the seconds of its prefill, and of a decode step."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**_config())).to(dtype).eval()
    tokens_BT = torch.randint(_config()["vocab_size"], (BATCH, prompt))

    @torch.inference_mode()
    def run() -> tuple[float, float]:
        cache = DynamicCache()

        def step(tokens: torch.Tensor) -> torch.Tensor:
            return model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits.argmax(-1)

        begun_s = time.perf_counter()
        token_B1 = step(tokens_BT)
        prefilled_s = time.perf_counter()
        for _ in range(STEPS):
            token_B1 = step(token_B1)
        return prefilled_s - begun_s, (time.perf_counter() - prefilled_s) / STEPS

    return run


def ours(prompt: int, dtype: torch.dtype) -> Callable[[], tuple[float, float]]:
    """The same of the runtime."""
    generator = assemble(
        ModelConfig.from_hf(_config()),
        EngineConfig(),
        Alone(),
        device=torch.device("cpu"),
        dtype=dtype,
        batch=BATCH,
        prompt=prompt,
        gen=1 + STEPS,
        seed=0,
    )
    wiring = lay_out("standard", LAYERS)

    def run() -> tuple[float, float]:
        begun_s = time.perf_counter()
        generator.prefill(wiring)
        prefilled_s = time.perf_counter()
        for step in range(STEPS):
            generator.decode(wiring, 1 + step)
        return prefilled_s - begun_s, (time.perf_counter() - prefilled_s) / STEPS

    return run


def _config() -> dict[str, object]:
    return {
        "model_type": "llama",
        "hidden_size": 1024,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 2816,
        "vocab_size": 8192,
        "max_position_embeddings": 4096,
    }


if __name__ == "__main__":
    main()
