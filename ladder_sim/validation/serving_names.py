"""What tables of servings call models, systems, engines and precisions, in the names of the catalog.

Theirs are those of aiconfigurator-core, of InferenceX, or our own.
"""

from collections.abc import Mapping
from types import MappingProxyType

from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.hf.quantization import DType
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario

# names of systems that are not those of our clusters with underscores
_SYSTEMS = MappingProxyType(
    {
        "a100_sxm": "a100-sxm-hdr",
        "gb200": "gb200-nvl72",
        "gb200_sxm": "gb200-nvl72",
        "gb300": "gb300-nvl72",
        "l40s": "l40s-pcie",
        "rtx_pro_6000_server": "rtx-pro-6000",
        # of InferenceX
        "h100": "h100-sxm",
        "h200": "h200-sxm",
        "b200": "b200-sxm",
        "b300": "b300-sxm",
    }
)
# its names of precisions; what is left is our own
_FORMATS = MappingProxyType(
    {
        "bfloat16": "bf16",
        "float16": "fp16",
        "fp8_static": "fp8",
        "fp8_block": "fp8-block",
        "fp4": "nvfp4",
        "int4_wo": "w4a16",
    }
)


def model_name(path: str) -> str:
    """Return the model of a cell of ``model_path``: its name in the catalog, or the path of its file."""
    # checked here, so that the message names the column
    try:
        catalog.model(path)
    except UsageError as error:
        raise UsageError(f"model_path: {error.message}", hint=error.hint) from error
    name = catalog.model_id(path)
    return name if name in catalog.model_names() else path


def cluster_name(system: str) -> str:
    """Return the cluster of a cell of ``system``: its name in the catalog, or the path of its file."""
    key = system.lower()
    name = _SYSTEMS.get(key, key.replace("_", "-"))
    if name in catalog.cluster_names():
        return name
    if key.endswith(".toml"):
        return system
    known = (*_SYSTEMS, *(each.replace("-", "_") for each in catalog.cluster_names()))
    raise UnknownNameError("system", system, known, more="`ladder-sim list clusters` shows all, with - for _")


def stack_name(backend: str, version: str) -> str:
    """Return the stack of ``backend`` and ``backend_version``, e.g. "vllm@0.12.0"; without a version the newest."""
    is_file = backend.lower().endswith(".toml")
    name = backend if is_file else backend.lower()
    # made after the newest release
    version = "" if version.lower().startswith("nightly") else version
    known = tuple(each for each in catalog.stack_names() if catalog.stack(each).serves)
    if not is_file and name not in known:
        raise UnknownNameError("backend", backend, known, more="a stack's file ends in .toml")
    stack = f"{name}@{version}" if version else name
    try:
        catalog.stack(stack)
    except UsageError as error:
        raise UsageError(f"backend_version: {error.message}", hint=error.hint) from error
    return stack


def format_name(cell: Mapping[str, str], model: str, fp8: DType | None = None) -> str:
    """Return the precision of linear layers by a row's cells, as `ladder_sim.Scenario` has it for ``dtype``.

    `fp8` is which fp8 the checkpoint has, if its campaign is known; else the model's own.
    """
    # most weights of a model with experts are theirs
    columns = ("moe_quant_mode", "gemm_quant_mode") if catalog.model(model).experts else ("gemm_quant_mode",)
    column = next((each for each in columns if cell[each]), "dtype")
    key = cell[column].lower()
    name = _FORMATS.get(key, key.replace("_", "-"))
    own = catalog.model(model).weights_dtype
    if name == "fp8":
        checkpoint = fp8 or own
        name = checkpoint if checkpoint.startswith("fp8") else name
    elif name == "nvfp4" and own == "mxfp4":
        # tables have one name for formats of 4 bits
        name = own
    try:
        # the spec checks it
        Scenario(dtype=name)
    except UsageError as error:
        raise UsageError(f"{column}: {error.message}", hint=error.hint) from error
    return name
