"""The cost model: measured where there are tables, the roofline where there are none, the same formula for both.

Every kernel's time is ``roofline(this GPU) * ratio``, with the ratio measured / roofline from the profile's tables. On
the measured GPU that is the measurement; on another it is the measurement carried over by the roofline ratio.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from ladder_sim.costs.base import Estimate, Source
from ladder_sim.costs.coordinates import Kind, decode_point, grid_roofline_s, prefill_point
from ladder_sim.costs.network import COLLECTIVE_ERROR, Network
from ladder_sim.costs.profile import ELEMENT_BYTES, CalibrationProfile
from ladder_sim.costs.table import RatioTable
from ladder_sim.graph.ops import AttentionShape, CollectiveShape, GemmShape, Op, Shape
from ladder_sim.specs.cluster import GpuSpec
from ladder_sim.specs.scenario import Scenario

HBM_EFFICIENCY = 2.93 / 3.35
# memory-bound H100 kernels reach 2.93 of 3.35 TB/s (GEMM tables of aiconfigurator-core 0.12.0, m <= 16)
MATH_ATTENTION_KERNELS = 5
# expand keys, expand values, scores, softmax with mask, values
KERNEL_ERROR: Mapping[Source, float] = {"measured": 0.15, "fitted": 0.2, "transferred": 0.3, "roofline": 0.4}
# 90 % interval as a fraction either way. Measured: independent tables of one H100 agree within 15 %. The others are
# judgement, widening with the distance from a measurement.


class KernelCosts:
    """Times of every op of one scenario, each alone on its GPU. Equal shapes are looked up once."""

    def __init__(self, scenario: Scenario, profile: CalibrationProfile | None) -> None:
        self._gpu = scenario.cluster.gpu
        self._profile = profile
        self._network = Network(scenario, profile) if scenario.tp > 1 else None
        self._known: dict[tuple[str, Shape], Estimate] = {}

    def estimate(self, op: Op) -> Estimate:
        """Time of one op, alone on its GPU."""
        key = (op.kind, op.shape)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._estimate(op)
        return found

    def _estimate(self, op: Op) -> Estimate:
        shape = op.shape
        if isinstance(shape, GemmShape):
            dtype = "fp8" if shape.weight_element_bytes == 1 else "bf16"
            tables = self._profile.gemm if self._profile else {}
            return self._tabled("gemm", dtype, tables, {"m": shape.m, "n": shape.n, "k": shape.k})
        if isinstance(shape, AttentionShape):
            return self._math_attention(shape) if shape.kernel == "math" else self._flash_attention(shape)
        if isinstance(shape, CollectiveShape):
            return self._collective(op, shape)
        seconds = self._gpu.kernel_s + shape.moved_bytes / (HBM_EFFICIENCY * self._gpu.hbm_bandwidth_Bps)
        return _unmeasured(seconds)

    def _flash_attention(self, shape: AttentionShape) -> Estimate:
        sizes = {
            "batch": shape.batch,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
        }
        kind: Kind
        if shape.q_len == 1:
            kind, point = "attention_decode", decode_point(**sizes, kv_len=shape.kv_len)
            kernels = self._profile.attention_decode if self._profile else {}
        else:
            kind, point = "attention_prefill", prefill_point(**sizes, q_len=shape.q_len)
            kernels = self._profile.attention_prefill if self._profile else {}
        return self._tabled(kind, "bf16", kernels.get("flash", {}), point)

    def _tabled(
        self, kind: Kind, dtype: str, tables: Mapping[str, RatioTable], point: Mapping[str, ArrayLike]
    ) -> Estimate:
        gpu = self._gpu
        ideal_s = float(
            grid_roofline_s(
                kind,
                point,
                element_bytes=ELEMENT_BYTES[dtype],
                flops_per_s=gpu.fp8_flops if dtype == "fp8" else gpu.bf16_flops,
                bandwidth_Bps=gpu.hbm_bandwidth_Bps,
                kernel_s=gpu.kernel_s,
            )
        )
        table = tables.get(dtype)
        if table is None or self._profile is None:
            return _unmeasured(ideal_s / HBM_EFFICIENCY)
        ratio, inside = table.ratio(**point)
        source: Source = "measured" if bool(inside) else "fitted"
        if not self._measured_here(gpu):
            source = "transferred"
        return Estimate.within(ideal_s * float(ratio), KERNEL_ERROR[source], source=source)

    def _measured_here(self, gpu: GpuSpec) -> bool:
        reference = self._profile.reference if self._profile else None
        return reference is not None and all(
            np.isclose(getattr(gpu, field), getattr(reference, field), rtol=1e-3)
            for field in ("bf16_flops", "fp8_flops", "hbm_bandwidth_Bps", "kernel_s")
        )

    def _math_attention(self, shape: AttentionShape) -> Estimate:
        gpu = self._gpu
        traffic_s = shape.moved_bytes / (HBM_EFFICIENCY * gpu.hbm_bandwidth_Bps)
        return _unmeasured(MATH_ATTENTION_KERNELS * gpu.kernel_s + max(traffic_s, shape.flops / gpu.bf16_flops))

    def _collective(self, op: Op, shape: CollectiveShape) -> Estimate:
        if self._network is None:
            raise ValueError(f"{op.name}: a collective on one rank")
        kind = op.kind
        times = self._network.times(kind, np.array([shape.message_bytes]))  # type: ignore[arg-type]
        source: Source = "measured" if bool(times.in_range[0]) else times.source
        return Estimate.within(float(times.seconds[0]), COLLECTIVE_ERROR[source], source=source)


def _unmeasured(seconds: float) -> Estimate:
    return Estimate.within(seconds, KERNEL_ERROR["roofline"], source="roofline")
