"""Train a Llama whose layers are wired as ladder, with transformers' Trainer: from scratch, or adapting a checkpoint.

The two experiments of Ladder Residual (arXiv 2501.06589), with sizes that you choose:

    # from scratch: the config.json says the size, --tokenizer whose tokens
    accelerate launch examples/train/train.py --model config.json --scratch --tokenizer TOKENIZER --variant ladder \
        --data HuggingFaceFW/fineweb-edu --subset sample-100BT --context 2048 --max_steps 50000 --bf16 --output_dir out

    # a checkpoint with its upper half as ladder, distilled from itself as it was
    accelerate launch examples/train/train.py --model CHECKPOINT --teacher CHECKPOINT --variant hybrid-ladder:16 \
        --data text.jsonl --max_steps 3000 --learning_rate 2e-5 --bf16 --fsdp --output_dir out

Without --teacher a checkpoint learns from the text. Every option of transformers' TrainingArguments is one here: --fsdp
splits weights and optimiser over the GPUs, without it each GPU has all of them.
Training is in float32, with --bf16 for products. `eval_loss` is that of held-out text in nats per token, first before
any step: what rewiring alone costs. OUT/model is the result, in the type of the checkpoint that was adapted, with the
code that `trust_remote_code=True` runs: its config says which layers are ladder.

After a kill or a full disk the same command goes on from the last whole checkpoint, OUT/checkpoint-N. It is refused
if data, tokenizer, weights, teacher or schedule are others. A checkpoint is written only after its weights had a finite
loss on the held-out text: a run whose numbers are not finite ends, and the checkpoint before stays.
"""

import fcntl
import hashlib
import json
import math
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, Features, List, Value, load_dataset
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from ladder_sim.errors import UsageError
from ladder_sim.wirings.layout import lay_out
from ladder_sim.wirings.names import parse
from ladder_sim_runtime.checkpoint.modeling_llama_ladder import LlamaLadderConfig, LlamaLadderForCausalLM

# defaults that differ from the Trainer's; --max_steps and --learning_rate are yours to choose
DEFAULTS = {
    "adam_beta2": 0.95,
    "dataloader_pin_memory": torch.cuda.is_available(),
    "eval_on_start": True,
    "logging_steps": 10,
    "lr_scheduler_type": "cosine_with_min_lr",
    "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
    "report_to": "none",
    "save_total_limit": 2,
    "warmup_steps": 100,
    "weight_decay": 0.1,
}
# what a run may not change when it goes on, next to its data and weights
SCHEDULE = (
    *("adam_beta1", "adam_beta2", "adam_epsilon", "bf16", "data_seed", "fp16", "learning_rate", "lr_scheduler_kwargs"),
    *("lr_scheduler_type", "max_grad_norm", "max_steps", "num_train_epochs", "optim", "seed", "warmup_steps"),
    "weight_decay",
)
LOADERS = {".txt": "text", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
# written into a checkpoint after all ranks have written their parts of it
WHOLE = "whole"


@dataclass
class Experiment:
    """What is trained, and on what."""

    model: str = field(metadata={"help": "Checkpoint to adapt, or with --scratch a config.json."})
    data: list[str] = field(metadata={"help": "Files (.txt, .jsonl, .parquet), or the name of a data set on the Hub."})
    variant: str = field(default="ladder", metadata={"help": "Wiring: a name, or a file of your own (mine.toml)."})
    scratch: bool = field(default=False, metadata={"help": "Begin with random weights."})
    teacher: str | None = field(default=None, metadata={"help": "Checkpoint whose distribution is learned."})
    tokenizer: str | None = field(default=None, metadata={"help": "Its folder or name; default: that of --model."})
    subset: str | None = field(default=None, metadata={"help": "Configuration of the data set."})
    revision: str | None = field(default=None, metadata={"help": "Commit of the data set: name it to go on later."})
    split: str = field(default="train", metadata={"help": "Split of the data set."})
    context: int = field(default=2048, metadata={"help": "Tokens of a sequence."})
    held_out: int = field(default=64, metadata={"help": "Sequences at the end of the data that are not learned."})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one experiment to its end, or from its last checkpoint on."""
    parser = HfArgumentParser((Experiment, TrainingArguments))
    parser.set_defaults(**DEFAULTS)
    own, args = parser.parse_args_into_dataclasses(arguments)
    check(own, args)
    folder = Path(args.output_dir)
    with hold(folder) if args.process_index == 0 else nullcontext():
        if (folder / "model").exists():
            print(f"{folder / 'model'} is there: this run is complete")
        else:
            run(own, args, folder)


def run(own: Experiment, args: TrainingArguments, folder: Path) -> None:
    """Train from the last whole checkpoint in the folder on, if there is one."""
    tokenizer = AutoTokenizer.from_pretrained(own.tokenizer or own.model)
    with args.main_process_first(local=False):
        tokens, key = tokens_of(own, tokenizer, folder)
    model, dtype = model_of(own, len(tokenizer))
    teacher = teacher_of(own, model, args)
    with args.main_process_first(local=False):
        if args.process_index == 0:
            remember(folder, {"data and tokenizer": key, **identity(own, args, model, teacher)})
        last = newest(folder)
    trainer = Distilling(
        teacher,
        model=model,
        args=args,
        train_dataset=tokens.select(range(len(tokens) - own.held_out)),
        eval_dataset=tokens.select(range(len(tokens) - own.held_out, len(tokens))),
        data_collator=sequences,
        processing_class=tokenizer,
        callbacks=[OnlyGoodCheckpoints()],
    )
    try:
        trainer.train(resume_from_checkpoint=str(last) if last else None)
        save(trainer, folder, dtype)
    except FloatingPointError as error:
        sys.exit(f"error: {error}: {way_back(folder)}\n  hint: a lower --learning_rate, in a new --output_dir")
    except BaseException as error:
        error.add_note(f"{way_back(folder)}; once the cause is gone, such as a full disk, the same command goes on")
        raise


def check(own: Experiment, args: TrainingArguments) -> None:
    """Refuse options that cannot work, and set those that whole checkpoints depend on."""
    if own.context < 2 or own.held_out < 1:
        sys.exit(f"error: --context {own.context} --held_out {own.held_out}: must be 2 or more, and 1 or more")
    if not 0 < args.learning_rate < 1:
        sys.exit(f"error: --learning_rate {args.learning_rate}: must be above 0 and below 1")
    if args.save_total_limit is not None and args.save_total_limit < 2:
        sys.exit("error: --save_total_limit 1: must be 2 or more: one is whole while the next is written")
    if args.save_only_model:
        sys.exit("error: --save_only_model: a run goes on with its optimiser's state, too\n  hint: leave it out")
    # a mean over finite losses alone would hide the others
    args.logging_nan_inf_filter = False
    args.remove_unused_columns = False


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock the folder before anything else in it is touched; the lock ends with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"error: --output_dir {folder}: another process trains there\n  hint: give another folder")
        yield


def tokens_of(own: Experiment, tokenizer: PreTrainedTokenizerBase, folder: Path) -> tuple[Dataset, str]:
    """Make sequences of `context` tokens of the data, one text after the other.

    Rows have a column `text`, or `messages`, which the tokenizer's chat template makes a text of. Sequences are kept in
    the folder under a hash of all that they depend on, which is returned, too.
    """
    rows, source = rows_of(own)
    made_of = json.dumps([source, own.context, tokenizer.backend_tokenizer.to_str(), tokenizer.chat_template])
    key = hashlib.sha256(made_of.encode()).hexdigest()
    # lines of a text go on; rows of a data set are documents
    end = [] if Path(own.data[0]).suffix == ".txt" or tokenizer.eos_token_id is None else [tokenizer.eos_token_id]

    def blocks() -> Iterator[dict[str, list[int]]]:
        rest: list[int] = []
        count = 0
        for batch in rows.iter(batch_size=1000):
            texts = batch.get("text") or [
                tokenizer.apply_chat_template(row, tokenize=False) for row in batch["messages"]
            ]
            for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]:
                rest += ids + end
            whole = len(rest) // own.context * own.context
            yield from ({"input_ids": rest[at : at + own.context]} for at in range(0, whole, own.context))
            rest, count = rest[whole:], count + whole
        if not count:
            sys.exit(f"error: --data {' '.join(own.data)}: {len(rest)} tokens: must be --context {own.context} or more")

    columns = Features({"input_ids": List(Value("int32"))})
    tokens = Dataset.from_generator(blocks, columns, cache_dir=str(folder / "tokens"), fingerprint=key[:16])
    if len(tokens) <= own.held_out:
        sys.exit(
            f"error: --data {' '.join(own.data)}: {len(tokens)} sequences of --context {own.context}: must be more "
            f"than --held_out {own.held_out}"
        )
    return tokens, key


def rows_of(own: Experiment) -> tuple[Any, list[Any]]:
    """Open the data, and say what identifies it: the bytes of files, or the name of a data set."""
    files = [Path(name) for name in own.data]
    if not any(file.exists() for file in files):
        if len(files) > 1 or files[0].suffix in LOADERS:
            sys.exit(f"error: --data {' '.join(own.data)}: no such file")
        rows = load_dataset(own.data[0], own.subset, split=own.split, revision=own.revision, streaming=True)
        return rows, [own.data[0], own.subset, own.split, own.revision]
    kinds = {LOADERS.get(file.suffix) for file in files}
    if len(kinds) > 1 or None in kinds or not all(file.is_file() for file in files):
        sys.exit(f"error: --data {' '.join(own.data)}: must be files of one kind: {', '.join(LOADERS)}")
    (kind,) = kinds
    # streaming: nothing is kept that a later file of the same name could be taken for
    options = {"keep_linebreaks": True} if kind == "text" else {}
    rows = load_dataset(kind, data_files=list(map(str, files)), split="train", streaming=True, **options)
    digests = []
    for file in files:
        with file.open("rb") as opened:
            digests.append(hashlib.file_digest(opened, "sha256").hexdigest())
    return rows, digests


def model_of(own: Experiment, tokens: int) -> tuple[PreTrainedModel, torch.dtype]:
    """Build the model in float32 with the variant's layers as ladder; also return the type of its checkpoint."""
    AutoConfig.register("llamaLadder", LlamaLadderConfig, exist_ok=True)
    AutoModelForCausalLM.register(LlamaLadderConfig, LlamaLadderForCausalLM, exist_ok=True)
    # checkpoints bring the code of their wiring
    LlamaLadderConfig.register_for_auto_class()
    LlamaLadderForCausalLM.register_for_auto_class("AutoModelForCausalLM")
    before = AutoConfig.from_pretrained(own.model)
    if before.model_type not in ("llama", "llamaLadder"):
        sys.exit(f"error: --model {own.model}: model_type is {before.model_type}: must be llama or llamaLadder")
    if own.context > before.max_position_embeddings or tokens > before.vocab_size:
        sys.exit(
            f"error: --model {own.model}: has a context of {before.max_position_embeddings} and {before.vocab_size} "
            f"tokens: must be at least --context {own.context}, and the tokenizer's {tokens}"
        )
    wired = wiring_of(own.variant, before.num_hidden_layers)
    names = ("model_type", "architectures", "auto_map", "ladder_layers", "ladder_sim_wiring", "dtype")
    names += ("transformers_version",)
    kept = {name: value for name, value in before.to_dict().items() if name not in names}
    if wired:
        config, kind = LlamaLadderConfig(**wired, **kept), LlamaLadderForCausalLM
    else:
        config, kind = LlamaConfig(**kept), LlamaForCausalLM
    if own.scratch:
        torch.manual_seed(0)
        return kind(config), torch.float32
    model, report = kind.from_pretrained(own.model, config=config, dtype=torch.float32, output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[what]:
            sys.exit(f"error: --model {own.model}: {what}: {', '.join(map(str, sorted(report[what])[:3]))}")
    return model, before.dtype or torch.float32


def wiring_of(variant: str, layers: int) -> dict[str, Any]:
    """Return the fields of a config that say a wiring; none for standard."""
    try:
        wiring = parse(variant)
        rules = wiring.expanded(layers)
        lay_out(variant, layers)
        fields = {"ladder_sim_wiring": rules} if rules["layers"] else {}
        if wiring.family.name == "ladder" and wiring.number == 1:
            fields = {"ladder_layers": wiring.last or layers}
        LlamaLadderConfig(num_hidden_layers=layers, **fields).blocks()
    except (UsageError, ValueError) as error:
        sys.exit(f"error: --variant {variant}: {error}")
    return fields


def teacher_of(own: Experiment, model: PreTrainedModel, args: TrainingArguments) -> PreTrainedModel | None:
    """Load the teacher, whole on every device."""
    if own.teacher is None:
        return None
    teacher = AutoModelForCausalLM.from_pretrained(own.teacher, dtype=torch.bfloat16 if args.bf16 else torch.float32)
    if teacher.config.vocab_size != model.config.vocab_size:
        sys.exit(
            f"error: --teacher {own.teacher}: its vocabulary has {teacher.config.vocab_size} tokens: must be the "
            f"model's {model.config.vocab_size}"
        )
    return teacher.eval().requires_grad_(False).to(args.device)


def identity(
    own: Experiment, args: TrainingArguments, model: PreTrainedModel, teacher: PreTrainedModel | None
) -> dict[str, Any]:
    """Say what the numbers of a run depend on, but for the tokens."""
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    said = {name: str(getattr(args, name)) for name in SCHEDULE} | {"batch": batch}
    weights = {"first weights": digest(model), "teacher": digest(teacher) if teacher else None}
    rules = getattr(model.config, "ladder_sim_wiring", None)
    variant = json.dumps(rules) if rules else own.variant
    chosen = {"variant": variant, "scratch": own.scratch, "held_out": own.held_out}
    return {**weights, **chosen, **said}


def digest(model: PreTrainedModel) -> str:
    """Hash a model's config and weights, wherever they were read from."""
    places = ("_name_or_path", "transformers_version")
    config = {name: value for name, value in model.config.to_dict().items() if name not in places}
    made = hashlib.sha256(str(config).encode())
    for name, weight in model.state_dict().items():
        made.update(name.encode())
        made.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy())
    return made.hexdigest()


def remember(folder: Path, facts: dict[str, Any]) -> None:
    """Write what a new run is, or refuse to go on with another one; remove checkpoints that a kill cut short."""
    file = folder / "run.json"
    before = json.loads(file.read_text()) if file.exists() else facts
    others = [name for name in facts if facts[name] != before.get(name)]
    if others:
        name = others[0]
        sys.exit(
            f"error: --output_dir {folder}: holds a run whose {name} was {before.get(name)}, and now is {facts[name]}\n"
            "  hint: repeat its options and data, or give another folder"
        )
    part = file.with_suffix(".part")
    part.write_text(json.dumps(facts, indent=1))
    os.replace(part, file)
    for checkpoint in folder.glob("checkpoint-*"):
        if not (checkpoint / WHOLE).exists():
            shutil.rmtree(checkpoint)


def newest(folder: Path) -> Path | None:
    """Return the last whole checkpoint."""
    whole = [mark.parent for mark in folder.glob(f"checkpoint-*/{WHOLE}")]
    return max(whole, key=lambda each: int(each.name.rpartition("-")[2]), default=None)


def way_back(folder: Path) -> str:
    """Say which checkpoint is left."""
    last = newest(folder)
    return f"{last} is whole" if last else "there is no checkpoint yet"


def sequences(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Make a batch; the model shifts the labels itself."""
    ids = torch.tensor([row["input_ids"] for row in rows])
    return {"input_ids": ids, "labels": ids}


class OnlyGoodCheckpoints(TrainerCallback):
    """Evaluates before each save, ends a run whose numbers are not finite, and marks whole checkpoints."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        control.should_evaluate |= control.should_save or control.should_training_stop

    on_epoch_end = on_step_end

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any], **_: Any
    ) -> None:
        for name in ("loss", "grad_norm", "eval_loss"):
            if not math.isfinite(logs.get(name, 0.0)):
                raise FloatingPointError(f"step {state.global_step}: {name} is {logs[name]}")

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        args.distributed_state.wait_for_everyone()
        if state.is_world_process_zero:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / WHOLE).touch()


class Distilling(Trainer):
    """Learns the distribution of a teacher, if there is one; is evaluated on the text."""

    # both losses are means over the tokens of one micro-batch
    loss_is_scaled_for_ga = False

    def __init__(self, teacher: nn.Module | None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.teacher = teacher
        self.model_accepts_loss_kwargs = False

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        if self.teacher is None or not model.training:
            return super().compute_loss(model, inputs, *args, **kwargs)
        with torch.no_grad():
            aim_BTV = self.teacher(input_ids=inputs["input_ids"]).logits.float().log_softmax(-1)
        own_BTV = model(input_ids=inputs["input_ids"]).logits.float().log_softmax(-1)
        return nn.functional.kl_div(
            own_BTV.flatten(0, 1), aim_BTV.flatten(0, 1), reduction="batchmean", log_target=True
        )


def save(trainer: Trainer, folder: Path, dtype: torch.dtype) -> None:
    """Write the result to OUT/model, which is whole or not there."""
    part = folder / "model.part"
    if trainer.is_world_process_zero():
        shutil.rmtree(part, ignore_errors=True)
    # no rank may remove what another has begun to write
    trainer.accelerator.wait_for_everyone()
    if trainer.is_fsdp_enabled:
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    # the Trainer turned it off
    trainer.model.config.use_cache = True
    trainer.save_model(str(part))
    trainer.accelerator.wait_for_everyone()
    if not trainer.is_world_process_zero():
        return
    if dtype != torch.float32:
        type(trainer.accelerator.unwrap_model(trainer.model)).from_pretrained(part, dtype=dtype).save_pretrained(part)
    part.rename(folder / "model")
    losses = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    print(f"{folder / 'model'}: held-out loss {losses[0]:.4f} to {losses[-1]:.4f} nats per token")


if __name__ == "__main__":
    main()
