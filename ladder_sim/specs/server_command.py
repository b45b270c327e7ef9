"""The command line that starts an engine's server, as arguments of a scenario and settings."""

import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from ladder_sim.errors import UsageError
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario_warnings import DECISIVE, Caution
from ladder_sim.specs.settings import option_names

# what an option says: the name of an argument of `Scenario`, or a setting with its value; options of engines that
# `settings` knows are settings by their own names. vLLM 0.32.0, engine/arg_utils.py; SGLang 0.5.10,
# server_args.py; TensorRT-LLM 1.3, commands/serve.py
_ARGUMENTS: Mapping[str, str] = {
    **dict.fromkeys(("model", "model-path"), "model"),
    **dict.fromkeys(("tp", "tp-size", "tensor-parallel-size"), "tp"),
    **dict.fromkeys(("pp", "pp-size", "pipeline-parallel-size"), "pp"),
    **dict.fromkeys(("ep", "ep-size", "expert-parallel-size"), "ep"),
    **dict.fromkeys(("dp", "dp-size", "data-parallel-size"), "dp"),
    "nnodes": "nodes",
    "dtype": "dtype",
    **dict.fromkeys(("quantization", "q"), "quantization"),
    "kv-cache-dtype": "kv_dtype",
}
_SWITCHES: Mapping[str, tuple[str, str]] = {
    "enforce-eager": ("stack.cuda_graphs", "off"),
    "disable-cuda-graph": ("stack.cuda_graphs", "off"),
    "disable-custom-all-reduce": ("allreduce", "nccl"),
    "enable-expert-parallel": ("experts", "over all"),
    "enable-dp-attention": ("attention", "apart"),
    "enable-attention-dp": ("attention", "apart"),
    "no-enable-prefix-caching": ("enable-prefix-caching", "false"),
}
_DTYPES = {"bfloat16": "bf16", "half": "fp16", "float16": "fp16"}
# what leaves a checkpoint as it is
_OWN = ("", "auto", "compressed-tensors")
_QUANTIZED = {
    "fp8": "fp8",
    "mxfp4": "mxfp4",
    **dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin", "moe_wna16"), "w4a16"),
    "modelopt_fp4": "nvfp4",
    "modelopt": "fp8",
}
_RENAMED = {"kv-cache-free-gpu-memory-fraction": "free-gpu-memory-fraction"}
# options without a value that change nothing here: a model may follow them
_BARE = frozenset(("trust-remote-code", "enable-auto-tool-choice", "enable-metrics", "disable-log-requests"))
# beginnings of options that change no times: the others may, and are not read
_HARMLESS = re.compile(
    r"allow|api-|chat-template|code-revision|decode-log|disable-(fastapi|log|uvicorn)|dist-init|download-dir"
    r"|enable-(auto-tool|log|metrics|request-id)|generation-config|hf-token|host|load-format|log-|master-|max-log"
    r"|middleware|node-rank|otlp|override-generation|port|random-seed|reasoning-parser|response-role|revision"
    r"|root-path|seed|served-model-name|show-|skip-server-warmup|ssl|tokenizer|tool|trust-remote-code|uvicorn|watchdog"
)
# options of one or two letters
_SHORT = {"-tp": "tp", "-pp": "pp", "-dp": "dp", "-ep": "enable-expert-parallel", "-q": "quantization"}
_BEGINS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "vllm": (("vllm", "serve"), ("vllm.entrypoints.openai.api_server",)),
    "sglang": (("sglang.launch_server",), ("sglang", "serve")),
    "trtllm": (("trtllm-serve", "serve"), ("trtllm-serve",)),
}


class ServerCommand(NamedTuple):
    """What starts a server."""

    arguments: Mapping[str, Any]
    """Arguments of `ladder_sim.Scenario`, by name."""
    settings: Mapping[str, str]
    """Settings, as `--set` takes them."""
    ignored: tuple[str, ...]
    """Options that change nothing here."""
    unread: tuple[str, ...] = ()
    """Options that may change times, and that nothing here reads."""

    @property
    def cautions(self) -> tuple[str, ...]:
        """Sentences on the options that an answer leaves out."""
        unread = f"of --as, {', '.join(self.unread)} may change times and is not simulated"
        ignored = f"of --as, nothing here depends on {', '.join(self.ignored)}: ignored"
        said = [Caution(unread, DECISIVE)] if self.unread else []
        return (*said, *([ignored] if self.ignored else []))


def read_server_command(text: str) -> ServerCommand:
    """Read the command line of a server of vLLM, SGLang or TensorRT-LLM.

    Raises UsageError if it starts none of them, or an option that counts has no value or one that is not understood.

    Examples
    --------
    >>> command = read_server_command("vllm serve Qwen/Qwen3-32B -tp 4 --max-num-seqs 128 --port 8000")
    >>> dict(command.arguments), dict(command.settings), command.ignored
    ({'stack': 'vllm', 'tp': '4', 'model': 'Qwen/Qwen3-32B'}, {'max-num-seqs': '128'}, ('--port',))
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--as: {error}", hint="quote the whole command once") from error
    engine, rest = _begin(words)
    said: dict[str, str] = {}
    settings: dict[str, str] = {}
    ignored: list[str] = []
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            said.setdefault("model", word)
            continue
        flag, equals, value = word.partition("=")
        name = _SHORT.get(flag, flag.lstrip("-").replace("_", "-").lower())
        name = _RENAMED.get(name, name)
        if name in _SWITCHES:
            key, given = _SWITCHES[name]
            (settings if "." in key or key in option_names() else said)[key] = given
        elif name in _ARGUMENTS or name in option_names():
            switch = name.startswith(("enable-", "disable-"))
            if not equals:
                has_value = bool(rest) and not rest[0].startswith("-") and not switch
                value = rest.pop(0) if has_value else ("true" if switch else "")
            if not value:
                raise UsageError(f"--as: {flag} has no value", hint=f"write {flag} VALUE")
            (said if name in _ARGUMENTS else settings)[_ARGUMENTS.get(name, name)] = value
        else:
            ignored.append(flag)
            if not equals and name not in _BARE and rest and not rest[0].startswith("-"):
                rest.pop(0)
    unread = [flag for flag in ignored if not _HARMLESS.match(flag.lstrip("-").replace("_", "-").lower())]
    rest = [flag for flag in ignored if flag not in unread]
    return ServerCommand(_arguments(engine, said), settings, *(tuple(dict.fromkeys(each)) for each in (rest, unread)))


def _begin(words: list[str]) -> tuple[str, list[str]]:
    image = next((at for at, word in enumerate(words) if word.startswith("vllm/vllm-openai")), None)
    if image is not None:
        return "vllm", words[image + 1 :]
    words = [re.sub(r"^/.*/(vllm|sglang|trtllm-serve)$", r"\1", word) for word in words]
    for engine, begins in _BEGINS.items():
        for begin in begins:
            for at in range(len(words)):
                if tuple(words[at : at + len(begin)]) == begin:
                    return engine, words[at + len(begin) :]
    raise UsageError(
        f"--as '{' '.join(words[:3])}': starts no server that is known",
        hint='for example --as "vllm serve MODEL -tp 4", "python -m sglang.launch_server ..." or "trtllm-serve MODEL"',
    )


def _arguments(engine: str, said: dict[str, str]) -> dict[str, Any]:
    if "model" not in said:
        raise UsageError("--as: no model", hint="the command names it")
    arguments: dict[str, Any] = {"stack": engine}
    dtype, quantization = said.pop("dtype", "auto"), said.pop("quantization", "")
    kv_dtype, experts, attention = (said.pop(name, "") for name in ("kv_dtype", "experts", "attention"))
    model = catalog.model(said["model"])
    if model.weights_dtype in ("bf16", "fp16"):
        # a quantised checkpoint has a format of its own
        arguments |= _format(dtype, quantization)
    if kv_dtype.startswith("fp8"):
        arguments["kv_dtype"] = "fp8"
    elif kv_dtype not in ("", "auto", *_DTYPES):
        raise UsageError(f"--as: a KV cache in {kv_dtype} is not simulated", hint="fp8 or auto")
    tp, dp = (_degree(said, name) for name in ("tp", "dp"))
    has_experts = model.experts > 0
    if engine == "sglang" and attention:
        # its tp counts all ranks
        if tp % dp:
            raise UsageError(f"--as: tp {tp} is no multiple of dp {dp}", hint="attention of a group has tp / dp ranks")
        said |= {"tp": str(tp // dp), "attention_dp": str(dp)}
        said.pop("dp", None)
    elif has_experts and dp > 1:
        said["attention_dp"] = said.pop("dp")
    elif engine == "trtllm" and attention:
        said |= {"tp": "1", "attention_dp": str(tp)}
    if experts and has_experts:
        said["ep"] = str(tp * dp)
    # all engines take one GPU unless they are told otherwise
    return {**arguments, "tp": "1", **said}


def _format(dtype: str, quantization: str) -> dict[str, str]:
    if quantization not in (*_OWN, *_QUANTIZED):
        raise UsageError(
            f"--as: quantization {quantization} is not simulated", hint=f"known: {', '.join(sorted(_QUANTIZED))}"
        )
    if dtype not in ("auto", *_DTYPES):
        raise UsageError(f"--as: dtype {dtype} is not simulated", hint=f"known: auto, {', '.join(_DTYPES)}")
    if quantization in _QUANTIZED:
        return {"dtype": _QUANTIZED[quantization]}
    return {"dtype": _DTYPES[dtype]} if dtype in _DTYPES else {}


def _degree(said: Mapping[str, str], name: str) -> int:
    text = said.get(name, "1")
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--as: {name} {text}: must be a whole number above 0", hint=f"for example -{name} 8")
    return int(text)
