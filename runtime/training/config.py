"""What a training run does, read and checked before any rank is started. Imports no torch."""

import json
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ladder_sim.errors import InfeasibleError, UsageError
from ladder_sim.system.files import write_file
from ladder_sim.system.schema import Schema
from runtime.checkpoint.convert import beyond_llama, hybrid, wired
from runtime.checkpoint.files import CONFIG, Checkpoint, read_config
from runtime.config import ModelConfig, Wish, check_counts
from runtime.fields import field, read_object
from runtime.model.wiring import Wiring, lay_out
from runtime.training.corpus import Corpus

Objective = Literal["next-token", "distill"]
Trained = Literal["all", "rewired"]
DeviceChoice = Literal["auto", "cpu", "cuda"]

# of a run: what it does, with its result, and what it goes on from
RUN, STATES = "run.json", "states"
SCHEMA = Schema()
# what may differ between a run and its continuation: it changes rounding at most
_MAY_CHANGE = ("out", "resume", "threads")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """What `train` and `adapt` are to do."""

    model: Path
    """A config.json, or with `pretrained` the folder of a checkpoint."""
    texts: tuple[Path, ...]
    """Files of text, or folders of a Hugging Face dataset."""
    out: Path
    """Folder of everything that a run writes."""
    pretrained: bool = False
    """Begin with the checkpoint's weights instead of random ones."""
    variant: str = "standard"
    """Wiring."""
    objective: Objective = "next-token"
    """Loss: of the text's next tokens, or the divergence from a teacher's distribution."""
    teacher: Path | None = None
    """Checkpoint that is distilled, in its own wiring; None: the one that is adapted."""
    trained: Trained = "all"
    """Layers that learn: all, or those from the first that is rewired on, without embedding and LM head."""
    tokenizer: Path | None = None
    """Folder with a tokenizer.json; None: the checkpoint's, or bytes if there is none."""
    steps: int = 1000
    """Of the optimiser."""
    batch: int = 16
    """Sequences of a step."""
    accumulate: int = 1
    """Parts in which a step's sequences are computed, one after the other."""
    context: int = 256
    """Tokens of a sequence."""
    lr: float = 1e-3
    """Highest learning rate; it falls along a cosine to a tenth."""
    warmup: int = 100
    """Steps in which the learning rate rises."""
    weight_decay: float = 0.1
    """Of matrices."""
    clip: float = 1.0
    """Longest gradient."""
    dtype: str = "fp32"
    """In which matrices are multiplied, fp32 or bf16; weights and optimiser are always fp32."""
    seed: int = 0
    """Of weights and of the order of the text."""
    eval_every: int = 100
    """Steps between two losses on held-out text."""
    eval_windows: int = 64
    """Sequences of held-out text."""
    save_every: int = 200
    """Steps between two states to resume from."""
    resume: bool = False
    """Go on where a run in the same folder stopped."""
    tp: int = 1
    """Tensor-parallel degree."""
    threads: int = 1
    """CPU threads of each rank."""
    device: DeviceChoice = "auto"
    """Where it is computed; auto: on a GPU if there is one."""
    compile: Wish = "off"
    """Run blocks through torch.compile."""

    def __post_init__(self) -> None:
        check_counts(steps=self.steps, batch=self.batch, accumulate=self.accumulate, tp=self.tp, threads=self.threads)
        check_counts(eval_every=self.eval_every, eval_windows=self.eval_windows, save_every=self.save_every)
        check_counts(0, warmup=self.warmup)
        check_counts(2, context=self.context)
        if self.batch % self.accumulate:
            raise UsageError(f"--accumulate {self.accumulate}: must divide the batch, {self.batch}")
        for name in ("lr", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"--{name} {getattr(self, name)}: must be above 0 and finite")
        if not 0 <= self.weight_decay < math.inf:
            raise UsageError(f"--weight-decay {self.weight_decay}: must be 0 or more and finite")
        if self.dtype not in ("fp32", "bf16"):
            raise UsageError(f"--dtype {self.dtype}: must be fp32 or bf16")
        if self.teacher is not None and self.objective != "distill":
            raise UsageError("--teacher: only distillation has one", hint="add --objective distill, or leave it out")
        if not self.texts:
            raise UsageError("no text to train on", hint="give files or folders with --text")

    @property
    def fingerprint(self) -> dict[str, object]:
        """All that changes numbers by more than rounding."""
        kept = {name: value for name, value in asdict(self).items() if name not in _MAY_CHANGE}
        return {name: json.loads(json.dumps(value, default=str)) for name, value in kept.items()}


@dataclass(frozen=True, slots=True)
class TrainingInput:
    """The checked input of a training run."""

    shape: ModelConfig
    """Of the model."""
    wiring: Wiring
    """That is trained."""
    config: dict[str, object]
    """The config.json of the result."""
    start: Checkpoint | None
    """Its first weights; None: random ones."""
    teacher: Checkpoint | None
    """Of distillation."""
    corpus: Corpus
    """Tokens."""


def prepare_training(config: TrainingConfig) -> TrainingInput:
    """Read everything but the weights, and make tokens of the text.

    Raises
    ------
    UsageError
        A file is damaged or does not fit the others, or the folder holds another run.
    InfeasibleError
        The ranks do not divide the model.
    """
    start = Checkpoint.open(config.model) if config.pretrained else None
    file = config.model / CONFIG if config.model.is_dir() else config.model
    described = read_config(file, what="a model's config.json")
    shape = start.shape if start else ModelConfig.from_file(config.model)
    _check_ranks(shape, config.tp)
    shape.check_context(config.context, hint="choose shorter sequences with --context")
    wiring = lay_out(config.variant, shape.layers, shape.ladder_layers)
    wiring.check_norms(shape, config.tp)
    if not wiring.reduces:
        raise UsageError(
            f"variant '{wiring.name}' is no model: its ranks learn nothing of each other", hint="choose another"
        )
    teacher = _teacher(config, shape)
    _claim(config)
    rewired = _rewired(described, wiring, shape)
    tokenizer = config.tokenizer or (config.model if (config.model / "tokenizer.json").exists() else None)
    corpus = Corpus.open(config.texts, tokenizer, shape, config.context, config.out)
    return TrainingInput(shape, wiring, rewired, start, teacher, corpus)


def _teacher(config: TrainingConfig, student: ModelConfig) -> Checkpoint | None:
    if config.objective != "distill":
        return None
    folder = config.teacher or (config.model if config.pretrained else None)
    if folder is None:
        raise UsageError("--objective distill: there is no teacher", hint="give a checkpoint with --teacher")
    teacher = Checkpoint.open(folder)
    _check_ranks(teacher.shape, config.tp)
    if teacher.shape.vocab != student.vocab:
        raise UsageError(
            f"--teacher {folder}: its vocabulary has {teacher.shape.vocab} tokens, the model's {student.vocab}",
            hint="teacher and student need the same tokenizer",
        )
    return teacher


def _check_ranks(shape: ModelConfig, tp: int) -> None:
    shape.check_ranks(tp)
    if tp == 1:
        return
    # gradients of what several ranks hold inside of a block are parts of theirs (model/autograd.py)
    held = beyond_llama(shape) or ("biases" if shape.qkv_bias or shape.out_bias or shape.mlp_bias else "")
    if held:
        raise InfeasibleError(f"--tp {tp}: the model has {held}, which are trained on one rank alone", hint="--tp 1")
    if shape.kv_heads % tp:
        raise InfeasibleError(
            f"--tp {tp}: must divide the {shape.kv_heads} key/value heads to be trained", hint="give a smaller --tp"
        )


def _rewired(config: dict[str, object], wiring: Wiring, shape: ModelConfig) -> dict[str, object]:
    """The config.json with this wiring."""
    ladder = re.fullmatch(r"ladder|hybrid-ladder:(\d+)", wiring.name)
    if ladder:
        return hybrid(config, int(ladder[1] or shape.layers))
    return wired(config, wiring.name)


def _claim(config: TrainingConfig) -> None:
    """Take the folder: a new one, that of the run to be continued, or of one that got nowhere."""
    file, out = config.out / RUN, config.out
    if not (out / STATES).exists():
        # tokens may have been made before
        own = (".", "tokens", RUN)
        if out.exists() and (not out.is_dir() or any(not each.name.startswith(own) for each in out.iterdir())):
            raise UsageError(f"--out {out}: exists already", hint="give a new folder")
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {out}: {error.strerror}", hint="give a folder that can be written") from None
        write_file(file, json.dumps(SCHEMA.marked(config=config.fingerprint)))
        return
    if not config.resume:
        raise UsageError(f"--out {out}: holds a run", hint="add --resume to go on, or give a new folder")
    run = read_object(file, what="the run of a training folder", schema=SCHEMA)
    before: dict[str, object] = field(run, "config", dict, {})
    for name, value in config.fingerprint.items():
        if before.get(name) != value:
            raise UsageError(
                f"--out {out}: holds a run whose {name} is {before.get(name)}, not {value}",
                hint="repeat its options, or give a new folder",
            )
