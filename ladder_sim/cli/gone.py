"""Commands and flags of earlier versions, and what to write instead."""

from collections.abc import Mapping

# by the command, the command and its flag, or the flag alone: what one command has lost, another may still have
GONE: Mapping[str, str] = {
    "crosscheck": "write `ladder-sim calibrate check`, with the same options",
    "train": "examples/train/train.py --scratch trains on transformers' Trainer, with any number of GPUs",
    "adapt": "examples/train/train.py adapts a checkpoint, on transformers' Trainer; --teacher distils",
    "show": "`ladder-sim list NAME` shows a model, cluster or stack; `list NAME --toml` prints its file",
    "quality": "`ladder-sim list quality` shows published quality; `ladder-sim versus` says what adapting costs",
    "calibrate fit-serving": "write `python -m tools.profiles.serving_fit FILE` in a clone of the repository",
    "calibrate import aiconfigurator": "write `python -m tools.profiles` in a clone of the repository",
    "calibrate show --source": "leave it out: the stored errors are those of the source",
    "calibrate transfer": "write `ladder-sim calibrate fit-stack`, with the same flags",
    "--arrivals": "write --set arrivals=lockstep",
    "--burstiness": "write --set burstiness=0.5",
    "--engine": "write --set engine=des in predict, --set engine=vllm in serve",
    "--ignore-memory": "write --set ignore_memory=true",
    "--imbalance": "write --set imbalance=balanced",
    "--jitter": "write --set jitter=0.05",
    "--kv-dtype": "write --set kv_dtype=fp8",
    "--perfetto": "write --set perfetto=FILE",
    "--plot": "write --set plot=FILE",
    "--prefill-replicas": "write --set prefill_replicas=2",
    "--prefill-tp": "write --set prefill_tp=4",
    "--prefix": "write --set prefix=512",
    "--router": "write --set router=least-loaded",
    "--save": "redirect the output: --json > FILE, --csv > FILE, or > FILE alone for text",
    "--seed": "write --set seed=1",
    "--sp": "write --set sp=true",
    "--speculate": "write --set speculate=3:0.7",
    "--speed": "write --set speed=2",
    "--timeline": "write --set timeline=FILE",
}
