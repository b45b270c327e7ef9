"""The steps of a run: loss, gradients, AdamW; one rank's part.

Shapes: B batch, T tokens of a sequence, V vocabulary.
"""

import csv
import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder_sim.errors import LadderSimError, MissingDependencyError, UsageError
from ladder_sim.system.files import locked, read_text, write_file
from ladder_sim.system.progress import Progress
from runtime.assemble import TORCH_DTYPES, device_of, load
from runtime.checkpoint.convert import COMPANIONS
from runtime.checkpoint.files import Checkpoint
from runtime.checkpoint.save import save
from runtime.checkpoint.weights import Source
from runtime.comm.base import Communicator
from runtime.comm.process_group import Degrees
from runtime.comm.rendezvous import CommConfig, connect
from runtime.config import EngineConfig, ExecutionConfig, ModelConfig
from runtime.environment import environment
from runtime.execution import Execution
from runtime.fields import read_object
from runtime.memory import Workload, enough_memory
from runtime.model.decoder import Decoder
from runtime.model.wiring import Wiring, lay_out
from runtime.training.batches import Batches
from runtime.training.config import RUN, SCHEMA, STATES, TrainingConfig, TrainingInput, prepare_training
from runtime.training.loss import divergence, next_token
from runtime.training.state import States

# of GPT-2's weights; projections that write to the residual stream are divided by the root of their number (both as in
# transformers, models/gpt2)
_SPREAD = 0.02
# of AdamW: an assumption, as is usual for language models
BETAS, EPS = (0.9, 0.95), 1e-8
# the last learning rate, of the highest
_LAST = 0.1
# of the losses; the last two of held-out text
Row = dict[str, Any]
EVALUATED = ("held_out", "divergence")
_COLUMNS = ("step", "tokens", "lr", "loss", "gradient", *EVALUATED)


def train(config: TrainingConfig, links: CommConfig) -> dict[str, object]:
    """Run to the end, and write the checkpoint; returns the result of rank 0, which is in ``run.json``, too.

    Raises
    ------
    LadderSimError
        The loss or its gradient is not finite; the last state stays.
    """
    task = prepare_training(config)
    torch.set_num_threads(config.threads)
    if config.device == "cpu" and links.backend == "auto":
        links = replace(links, backend="gloo")
    comm = connect(links, Degrees(config.tp))
    with locked(config.out) if comm.rank == 0 else nullcontext():
        return Run(task, config, comm).to_the_end()


class Run:
    """One rank of a training run."""

    def __init__(self, task: TrainingInput, config: TrainingConfig, comm: Communicator) -> None:
        self.config, self.task, self.comm = config, task, comm
        self.device = _device(config, comm)
        weights = task.start.source if task.start else first_weights(config.seed, task.shape)
        self.model = self._load(task.shape, task.wiring, weights, torch.float32).requires_grad_(True)
        if config.trained == "rewired":
            freeze(self.model, task.wiring)
        if Execution.of(self.model, ExecutionConfig(compile=config.compile)).blocks == "compiled":
            self.model.compile_blocks()
        self._teacher: Callable[[Tensor], Tensor] | None = None
        if task.teacher:
            self._teacher = self._as_teacher(task.teacher)
        self.optimizer = optimizer(self.model, config)
        self.batches = Batches(task.corpus, config.context, config.seed)
        self._states = States(config.out / STATES, comm)

    def to_the_end(self) -> dict[str, object]:
        """Every step that is missing, then the checkpoint."""
        config = self.config
        rows: list[Row] = []
        first, started_s = self._states.step, time.perf_counter()
        if first:
            self._check_text()
            state = self._states.load(self.device)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            rows = _read_rows(config.out / "loss.csv", first)
        elif self.comm.rank == 0:
            self._describe({})
        if not rows:
            rows = [{"step": 0, "tokens": 0, **self.evaluate()}]
        with Progress(config.steps, "steps", wanted=self.comm.rank == 0) as progress:
            for step in range(first, config.steps):
                rows.append(self._row(step, *self.step(step)))
                progress(step + 1)
                if (step + 1) % config.save_every == 0 or step + 1 == config.steps:
                    self._write_rows(rows)
                    state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
                    self._states.save(step + 1, state)
        self._save()
        result: dict[str, object] = {
            **{f"first_{name}": value for name, value in evaluated(rows[0]).items()},
            **evaluated(rows[-1]),
            "tokens": int(rows[-1]["tokens"]),
            "steps_now": config.steps - first,
            "seconds_now": time.perf_counter() - started_s,
        }
        if self.comm.rank == 0:
            self._describe(result)
        return result

    def step(self, step: int) -> tuple[float, float]:
        """Take one step; returns its loss, nats per token, and how long its gradient was before it was shortened.

        Raises LadderSimError if one of them is not finite: the weights stay as they were.
        """
        config, batch_BT = self.config, self.batches.training(step, self.config.batch)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, config)
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        with enough_memory("a step", self.comm.rank):
            for part_BT in batch_BT.to(self.device).chunk(config.accumulate):
                part = self._loss(part_BT) / config.accumulate
                part.backward()
                total += part.detach()
        gradient, loss = clip(self.model, config.clip).item(), total.item()
        if not (math.isfinite(loss) and math.isfinite(gradient)):
            kept = self._states.step
            raise LadderSimError(
                f"step {step + 1}: the loss is {loss:g} and its gradient {gradient:g}: "
                + (f"the state of step {kept} is kept" if kept else "there is no state before it"),
                hint="a lower --lr, a longer --warmup or --dtype fp32 in a new --out",
            )
        self.optimizer.step()
        return loss, gradient

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Of held-out text, nats per token: the mean of -log p, and how far the model is from its teacher, if any."""
        windows_BT = self.batches.held_out(self.config.eval_windows).to(self.device)
        totals = {name: 0.0 for name in EVALUATED if name == "held_out" or self._teacher}
        for part_BT in windows_BT.split(max(1, self.config.batch // self.config.accumulate)):
            logits_BTV = self._logits(part_BT)
            totals["held_out"] += next_token(logits_BTV, part_BT[:, 1:]).item() * len(part_BT)
            if self._teacher:
                totals["divergence"] += divergence(logits_BTV, self._teacher(part_BT[:, :-1])).item() * len(part_BT)
        return {name: total / len(windows_BT) for name, total in totals.items()}

    def _row(self, step: int, loss: float, gradient: float) -> Row:
        """What is written of a step."""
        config, done = self.config, step + 1
        row: Row = {
            "step": done,
            "tokens": done * config.batch * config.context,
            "lr": learning_rate(step, config),
            "loss": loss,
            "gradient": gradient,
        }
        if done % config.eval_every == 0 or done == config.steps:
            row |= self.evaluate()
        return row

    def _logits(self, tokens_BT: Tensor) -> Tensor:
        """Of all tokens but the last."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.dtype == "bf16"):
            logits_BTV: Tensor = self.model(tokens_BT[:, :-1], self.task.wiring)
        return logits_BTV

    def _loss(self, tokens_BT: Tensor) -> Tensor:
        logits_BTV = self._logits(tokens_BT)
        if self._teacher is None:
            return next_token(logits_BTV, tokens_BT[:, 1:])
        return divergence(logits_BTV, self._teacher(tokens_BT[:, :-1]))

    def _as_teacher(self, checkpoint: Checkpoint) -> Callable[[Tensor], Tensor]:
        shape = checkpoint.shape
        wiring = lay_out(shape.variant, shape.layers, shape.ladder_layers)
        model = self._load(shape, wiring, checkpoint.source, TORCH_DTYPES[self.config.dtype])

        def logits(tokens_BT: Tensor) -> Tensor:
            with torch.no_grad():
                logits_BTV: Tensor = model(tokens_BT, wiring)
            return logits_BTV

        return logits

    def _load(self, shape: ModelConfig, wiring: Wiring, source: Source, dtype: torch.dtype) -> Decoder:
        batch = self.config.batch // self.config.accumulate
        work = Workload(batch=batch, prompt=self.config.context, gen=0, dtype=dtype, wirings=[wiring])
        return load(shape, EngineConfig(prefill_logits="all"), self.comm, source, work, self.device)

    def _check_text(self) -> None:
        file, sha256 = self.config.out / RUN, self.task.corpus.sha256
        before = read_object(file, what="the run of a training folder", schema=SCHEMA).get("tokens_sha256")
        if before != sha256:
            raise UsageError(
                f"{file}: the run learned from tokens {before}, and these are {sha256}",
                hint="give the same text, or a new --out",
            )

    def _describe(self, result: dict[str, object]) -> None:
        corpus = self.task.corpus
        text = SCHEMA.marked(
            config=self.config.fingerprint,
            wiring=self.task.wiring.name,
            parameters=sum(weight.numel() for weight in self.model.parameters()) if self.comm.size == 1 else None,
            tokens_sha256=corpus.sha256,
            tokens=corpus.ends[-1],
            bytes_per_token=corpus.bytes_per_token,
            environment=environment(),
            result=result,
        )
        write_file(self.config.out / RUN, json.dumps(text, indent=1) + "\n")

    def _write_rows(self, rows: Sequence[Row]) -> None:
        if self.comm.rank == 0:
            lines = [",".join(_COLUMNS), *(",".join(str(row.get(name, "")) for name in _COLUMNS) for row in rows)]
            write_file(self.config.out / "loss.csv", "\n".join(lines) + "\n")

    def _save(self) -> None:
        """The checkpoint, in the type of the one that was adapted; complete or not there."""
        folder, part = self.config.out / "checkpoint", self.config.out / "checkpoint.part"
        if self.comm.rank == 0:
            for old in (folder, part):
                shutil.rmtree(old, ignore_errors=True)
        self.comm.barrier()
        if self.task.start:
            self.model.to(TORCH_DTYPES[self.task.start.dtype])
        save(self.model, part, self.task.config)
        if self.comm.rank == 0:
            source = self.config.tokenizer or self.config.model
            for name in COMPANIONS:
                if (source / name).exists():
                    shutil.copyfile(source / name, part / name)
            part.rename(folder)
        self.comm.barrier()


def optimizer(model: Decoder, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW, which lets matrices decay."""
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in learned if weight.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [weight for weight in learned if weight.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=BETAS, eps=EPS)


def learning_rate(step: int, config: TrainingConfig) -> float:
    """It rises along a line, then falls along a cosine."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.lr * (_LAST + (1 - _LAST) * (1 + math.cos(math.pi * done)) / 2)


def first_weights(seed: int, shape: ModelConfig) -> Source:
    """GPT-2's random weights, each tensor with a seed of its own, the same for every tensor-parallel degree."""

    def draw(name: str, size: tuple[int, ...]) -> Tensor:
        if "norm" in name:
            return torch.ones(size)
        if name.endswith("bias"):
            return torch.zeros(size)
        digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=7).digest()
        spread = _SPREAD / math.sqrt(2 * shape.layers) if "o_proj" in name or "down_proj" in name else _SPREAD
        return torch.randn(size, generator=torch.Generator().manual_seed(int.from_bytes(digest))) * spread

    return draw


def freeze(model: Decoder, wiring: Wiring) -> None:
    """Let only the layers from the first that is not wired as standard on learn."""
    standard = lay_out("standard", model.config.layers).blocks
    # what a block reads and sums; whether the next one waits is the next one's
    read = (replace(block, overlaps=False, read_ahead="nothing") for block in wiring.blocks)
    rewired = [ours.layer for ours, theirs in zip(read, standard, strict=False) if ours != theirs]
    if not rewired:
        raise UsageError("--trained rewired: the wiring is standard", hint="choose another --variant, or --trained all")
    model.requires_grad_(False)
    for layer in model.layers[rewired[0] :]:
        layer.requires_grad_(True)


def clip(model: Decoder, longest: float) -> Tensor:
    """Shorten the gradient of the whole model to a length; returns the length that it had."""
    replicated, split = torch.zeros(2, device=model.embedding_VD.device).unbind()
    whole = {id(model.embedding_VD), id(model.lm_head_VD)}
    gradients = [(weight, weight.grad) for weight in model.parameters() if weight.grad is not None]
    for weight, gradient in gradients:
        square = gradient.float().square().sum()
        if weight.dim() == 1 or id(weight) in whole:
            replicated = replicated + square
        else:
            split = split + square
    model.comm.all_reduce(split, blocking=True).wait()
    length = (replicated + split).sqrt()
    factor = (longest / (length + 1e-6)).clamp(max=1.0)
    for _, gradient in gradients:
        gradient.mul_(factor)
    return length


def _device(config: TrainingConfig, comm: Communicator) -> torch.device:
    if config.device == "cpu" and comm.name != "nccl":
        return torch.device("cpu")
    here = device_of(comm)
    if config.device == "cpu":
        raise UsageError("--device cpu: NCCL is between GPUs", hint="leave out --backend")
    if config.device == "cuda" and here.type != "cuda":
        raise MissingDependencyError("--device cuda: no GPU, or ranks that communicate by gloo", hint="--device cpu")
    return here


def _read_rows(file: Path, last: int) -> list[Row]:
    """What was written up to a step."""
    text = read_text(file, what="the losses of a run", error=UsageError)
    return [dict(row) for row in csv.DictReader(text.splitlines()) if int(row["step"]) <= last]


def evaluated(row: Row) -> dict[str, float]:
    """What a row says of held-out text; what was read from a file is text."""
    return {name: float(row[name]) for name in EVALUATED if row.get(name) not in (None, "")}
