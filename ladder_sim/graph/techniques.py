"""Techniques that change how a pass is run, and not what it computes: rewrites of its layout, and when each applies.

Engines decide by the size of a pass. Passes of one form have the same ops in the same order.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from ladder_sim.graph.layout import Layout
from ladder_sim.graph.ops import COLLECTIVE_KINDS, InChunks, OpKind, PassInputs, PortionOf, ResidualOp, Role
from ladder_sim.kernels import STATE_BYTES, WHOLE, Count, Phase, Portion
from ladder_sim.kernels.shape import TILE_ROWS
from ladder_sim.specs.techniques import family_of, parameter_of


class Step(NamedTuple):
    """One op of a layout that is being rewritten."""

    name: str
    kind: OpKind
    layer: int
    """As `Op.layer`."""
    role: Role
    after: tuple[int, ...]
    """Keys of the steps that it needs; in an unchanged layout their positions."""

    def needing(self, after: tuple[int, ...]) -> "Step":
        """Return the same step with other needs; `_replace` takes five times as long."""
        return Step(self.name, self.kind, self.layer, self.role, after)


def steps_of(layout: Layout) -> list[Step]:
    """Return the ops of a layout, in issue order."""
    roles = [layout.roles[like] for like in layout.same_as]
    return list(map(Step, layout.names, layout.kinds, layout.layers, roles, layout.after))


def readers_of(steps: Sequence[Step]) -> Mapping[int, list[int]]:
    """Return the positions of the steps that need each step."""
    readers: dict[int, list[int]] = defaultdict(list)
    for position, step in enumerate(steps):
        for needed in step.after:
            readers[needed].append(position)
    return readers


def layout_of(layout: Layout, steps: Iterable[tuple[int, Step]]) -> Layout:
    """Return the layout with other ops, in issue order, each with the key by which others need it."""
    positions: dict[int, int] = {}
    roles: dict[Role, int] = {}
    names, kinds, layers, after, same_as = [], [], [], [], []
    for position, (own, (name, kind, layer, role, keys)) in enumerate(steps):
        positions[own] = position
        names.append(name)
        kinds.append(kind)
        layers.append(layer)
        needed = [positions[key] for key in keys]
        after.append(tuple(dict.fromkeys(needed) if len(needed) > 1 else needed))
        same_as.append(roles.setdefault(role, len(roles)))

    def number_of(other: Role, role: Role) -> int:
        """Return the number of another role, for the same tokens as `role`."""
        return roles[PortionOf(other, role.portion) if isinstance(role, PortionOf) else other]

    firsts = {layout.roles[other]: layout.roles[first] for first, others in layout.next_to.items() for other in others}
    next_to: dict[int, tuple[int, ...]] = {}
    chunked: dict[int, int] = {}
    for role, number in roles.items():
        whole = role.role if isinstance(role, PortionOf) else role
        if whole in firsts:
            first = number_of(firsts[whole], role)
            next_to[first] = (*next_to.get(first, ()), number)
        if isinstance(whole, ResidualOp) and whole.gemm is not None:
            chunked[number] = number_of(whole.gemm, role)
    return replace(
        layout,
        names=tuple(names),
        kinds=tuple(kinds),
        layers=tuple(layers),
        after=tuple(after),
        same_as=tuple(same_as),
        roles=tuple(roles),
        next_to=next_to,
        chunked=chunked,
    )


# bytes of a message from which quantising pays: vLLM's smallest are 1 to 16 MiB, by GPUs and bits (0.32.0,
# quick_all_reduce.py, _QR_MIN_SIZE, fp16)
QUANTIZED_BYTES = 2.0 * 2**20


def _quantize_allreduces(layout: Layout, bits: str) -> Layout:
    """Quantise every all-reduce but the embedding's, before each of two shots. Lossy.

    Flash Communication, arXiv 2412.04964; QuickReduce in vLLM 0.32.0 (quick_all_reduce.py) and SGLang.
    """

    def quantized(step: Step) -> Step:
        role = step.role
        if not isinstance(role, ResidualOp) or role.op != "all_reduce" or step.name.startswith("embedding"):
            return step
        return step._replace(role=role._replace(kernel=bits))

    return layout_of(layout, [(at, quantized(step)) for at, step in enumerate(steps_of(layout))])


_REDUCE, _ADD, _NORM, _ADD_NORM = (ResidualOp(op) for op in ("all_reduce", "add", "norm", "add_norm"))


def _fuse_norms(layout: Layout, *, adjacent: bool = False) -> Layout:
    """Fuse every all-reduce whose only reader adds it and is normalised.

    With `adjacent` only those that the very next kernel adds and normalises: what engines fuse by themselves. The
    kernel reads the rank's partial sums and the residual, and writes the new residual and its norm. It runs where the
    all-reduce ran: if a block waits for it, nothing changes but that two kernels are one; in ladder the add and the
    norm of the older block leave the compute stream.

    TokenWeave, arXiv 2505.11329; FlashInfer's kernels in vLLM (vllm-project/vllm#20691).
    """
    steps = steps_of(layout)
    readers = readers_of(steps)
    if not layout.wiring.reduces and not adjacent:
        return _without_norms(layout, steps, readers)
    # the key of the fused op in place of each that it replaces
    fused: dict[int, int] = {}
    placed: dict[int, Step] = {}
    for at, step in enumerate(steps):
        if step.role != _REDUCE or len(readers[at]) != 1:
            continue
        (add,) = readers[at]
        norm = _norm_of(steps, readers, add)
        if norm is None or (adjacent and norm != at + 1):
            continue
        (residual,) = (fused.get(needed, needed) for needed in steps[add].after if needed != at)
        place = at
        if residual > at:
            if any(between.kind in COLLECTIVE_KINDS for between in steps[at + 1 : norm]):
                continue
            place = norm
        name = f"{steps[norm].name.removesuffix('norm')}all_reduce_norm"
        placed[place] = Step(
            name, "all_reduce_norm", steps[norm].layer, ResidualOp("all_reduce_norm"), (residual, *step.after)
        )
        fused |= dict.fromkeys((at, add, norm), place)
    kept = [(at, placed.get(at, step)) for at, step in enumerate(steps) if at in placed or at not in fused]
    return layout_of(
        layout, [(at, step.needing(tuple([fused.get(key, key) for key in step.after]))) for at, step in kept]
    )


def _without_norms(layout: Layout, steps: list[Step], readers: Mapping[int, list[int]]) -> Layout:
    """Leave out adds and norms that are part of an all-reduce, where all-reduces are left out."""
    # keys of what is left out, and of the block's output in its place: every older one is behind that
    instead: dict[int, int] = {}
    for at, step in enumerate(steps):
        if step.role in (_ADD, _ADD_NORM) and not isinstance(steps[step.after[-1]].role, ResidualOp):
            norm = _norm_of(steps, readers, at)
            instead |= {} if norm is None else dict.fromkeys((at, norm), step.after[-1])
    kept = [(at, step) for at, step in enumerate(steps) if at not in instead]
    return layout_of(
        layout, [(at, step.needing(tuple([instead.get(key, key) for key in step.after]))) for at, step in kept]
    )


def _norm_of(steps: list[Step], readers: Mapping[int, list[int]], add: int) -> int | None:
    """Return the key of the norm of what a step adds, maybe the step itself; None if there is no norm."""
    if steps[add].role == _ADD_NORM:
        return add
    norms = [reader for reader in readers[add] if steps[reader].role == _NORM] if steps[add].role == _ADD else []
    return norms[0] if norms else None


def _prefetch_weights(layout: Layout) -> Layout:
    """Pair every block's all-reduce that the next kernel waits for with the first GEMM behind it.

    The all-reduce leaves the device memory idle, on which a GEMM of few tokens spends its time. A small kernel on its
    own stream reads the weights into the L2 cache; `ladder_sim.simulate.lower.op_times` says how long both take then.
    Experts are chosen after the all-reduce: until then nobody knows which weights to read.

    PRESERVE, arXiv 2501.08192.
    """
    steps = steps_of(layout)
    # by position; as roles of their own, because elsewhere the same ops run as they are
    paired: dict[int, Step] = {}
    gemms: dict[int, int] = {}

    # shared experts run next to routed ones
    side_by_side = {*layout.next_to, *(other for others in layout.next_to.values() for other in others)}
    for at, step in enumerate(steps[:-1]):
        if step.kind not in ("all_reduce", "all_reduce_norm") or step.layer < 0 or at not in steps[at + 1].after:
            continue
        gemm = next((n for n in range(at + 1, len(steps)) if steps[n].kind in ("gemm", *COLLECTIVE_KINDS)), at)
        if steps[gemm].kind == "gemm" and layout.same_as[gemm] not in side_by_side:
            gemms[gemm] = at
            paired |= {each: steps[each]._replace(role=PortionOf(steps[each].role, WHOLE)) for each in (at, gemm)}
    rewritten = layout_of(layout, [(at, paired.get(at, step)) for at, step in enumerate(steps)])
    roles = rewritten.same_as
    collective_of = {roles[gemm]: roles[at] for gemm, at in gemms.items()}
    prefetching: dict[int, tuple[int, ...]] = {}
    for gemm, collective in collective_of.items():
        prefetching[collective] = (*prefetching.get(collective, ()), gemm)
    return replace(rewritten, prefetching=prefetching)


# bytes of a rank's chunk of the residual from which overlap with a GEMM pays, because each chunk reads the weights: on
# H100 in vLLM (0.17.0, sequence_parallelism.py, SP_MIN_PER_GPU_SIZE_MB)
OVERLAPPED_BYTES = 8.0 * 2**20


def _overlap_gemms(layout: Layout) -> Layout:
    """Pair every reduce-scatter and all-gather of the residual with the GEMM that alone feeds it or reads it.

    In a sequence-parallel pass the output projection of a block feeds its reduce-scatter chunk by chunk, and the
    all-gather before the next block feeds that block's first GEMM (asynchronous tensor parallelism). There are as many
    chunks as ranks, each large enough to pay and a kernel of its own; what ranks sent of a chunk is added up at the
    end. Experts, whose tokens are sorted first, run as they are.

    Wang et al., ASPLOS 2023 (decomposed collectives); Flux, arXiv 2406.06858. Chunks and the sum as in PyTorch 2.13
    (torch/distributed/_symmetric_memory, _fused_matmul_reduce_scatter_impl), which vLLM calls.
    """
    steps = steps_of(layout)
    readers = readers_of(steps)
    # by position: the collective with its GEMM, and the GEMM
    paired: dict[int, Step] = {}

    # keys of the sums that follow reduce-scatters
    sums: dict[int, int] = {}
    for at, step in enumerate(steps):
        near = step.after if step.role == ResidualOp("reduce_scatter") else readers[at]
        if step.role not in (ResidualOp("reduce_scatter"), ResidualOp("all_gather")) or len(near) != 1:
            continue
        (gemm,) = near
        if steps[gemm].kind == "gemm":
            role = InChunks(steps[gemm].role)
            paired[gemm] = steps[gemm]._replace(role=role)
            paired[at] = step._replace(role=step.role._replace(gemm=role))
            if step.role.op == "reduce_scatter":
                sums[at] = len(steps) + at
    ordered: list[tuple[int, Step]] = []
    for at, step in enumerate(steps):
        step = paired.get(at, step)
        ordered.append((at, step._replace(after=tuple(sums.get(key, key) for key in step.after))))
        if at in sums:
            name = f"{step.name}.sum"
            ordered.append((sums[at], Step(name, "add", step.layer, ResidualOp("sum_parts", True), (at,))))
    return layout_of(layout, ordered)


def _overlap_ideally(layout: Layout) -> Layout:
    """Let streams wait for each other between layers only: a limit, in which neither slows the other.

    A layer takes the longer of its kernels and its collectives, whatever needs whatever. Where layers are alike, what
    overlaps and leaves out no work gains no more.
    """
    steps = steps_of(layout)
    # the last kernel and the last collective before a layer
    kernel, collective = -1, -1
    ordered: list[tuple[int, Step]] = []
    for layer, members in groupby(range(len(steps)), key=lambda at: steps[at].layer):
        own = list(members)
        computes = [at for at in own if steps[at].kind not in COLLECTIVE_KINDS]
        for at in own:
            step = steps[at]
            if layer >= 0:
                is_collective = step.kind in COLLECTIVE_KINDS
                needed = [key for key in step.after if not is_collective and steps[key].kind not in COLLECTIVE_KINDS]
                joint = kernel if is_collective else collective if at == computes[0] else -1
                step = step._replace(after=tuple(sorted({*needed, joint} - {-1})))
            ordered.append((at, step))
        kernel = computes[-1] if computes else kernel
        collective = max((at for at in own if at not in computes), default=collective)
    return replace(layout_of(layout, ordered), uncontended=True)


# tokens from which vLLM splits a step that only decodes, and any other (0.32.0, config/parallel.py, dbo_*_threshold)
DECODE_TOKENS, PROMPT_TOKENS = 32, 512


def _splits_tokens(inputs: PassInputs, phase: Phase, tokens: Count) -> Any:
    return tokens >= (DECODE_TOKENS if phase == "decode" else PROMPT_TOKENS)


def _split_tokens(layout: Layout, parts: int) -> Layout:
    """Run every op between embedding and LM head for each of several parts of the batch in turn.

    Parts go block by block, so that a block of one part runs next to the all-reduce of another. Weights are read once
    for each part. In a prompt that is cut, attention of a part reads what those before it left in the cache.

    TokenWeave, arXiv 2505.11329; dual-batch overlap (vLLM 0.32.0, v1/worker/ubatch_utils.py); NanoFlow, arXiv
    2408.12757.
    """
    steps = steps_of(layout)
    first = next(at for at, step in enumerate(steps) if step.layer >= 0)
    last = next(at for at, step in enumerate(steps) if step.role == ResidualOp("lm_head"))
    if COLLECTIVE_KINDS.isdisjoint(step.kind for step in steps[first:last]):
        return layout
    turns = [first]
    for before, at in pairwise(range(first, last)):
        if steps[before].kind in COLLECTIVE_KINDS and steps[at].kind not in COLLECTIVE_KINDS:
            turns.append(at)

    def key(at: int, part: int) -> int:
        return at * parts + (part if first <= at < last else 0)

    @cache
    def portion_of(role: Role, part: int) -> PortionOf:
        return PortionOf(role, Portion(part, parts))

    def split(at: int, part: int) -> tuple[int, Step]:
        step = steps[at]
        needed = tuple(key(before, part) for before in step.after)
        if step.kind == "attention" and part:
            needed += tuple(key(before, part - 1) for before in step.after)
        name = f"{step.name}[{part + 1}]"
        return key(at, part), Step(name, step.kind, step.layer, portion_of(step.role, part), needed)

    ordered = [
        (key(at, 0), step.needing(tuple(key(need, 0) for need in step.after))) for at, step in enumerate(steps[:first])
    ]
    for start, end in pairwise([*turns, last]):
        ordered += [split(at, part) for part in range(parts) for at in range(start, end)]
    for at, step in enumerate(steps[last:], last):
        needed = tuple(dict.fromkeys(key(before, part) for before in step.after for part in range(parts)))
        ordered.append((key(at, 0), step.needing(needed)))
    return layout_of(layout, ordered)


class Rewrite(NamedTuple):
    """A change of a layout, and the passes that undergo it."""

    applies: Callable[[PassInputs, Phase, Count], Any]
    """Whether a pass of so many tokens undergoes it; an array for an array."""
    apply: Callable[[Layout, str], Layout]
    """Given the technique's parameter; empty if it has none."""


def _always(inputs: PassInputs, phase: Phase, tokens: Count) -> Any:
    return np.ones(np.shape(tokens), bool)


def _bytes(inputs: PassInputs, tokens: Count) -> Any:
    return tokens * float(inputs.model.hidden * STATE_BYTES)


def _reduced(inputs: PassInputs, phase: Phase, tokens: Count) -> Any:
    """Return the tokens of one all-reduce; the parts of a split pass are reduced one by one."""
    parts = next((int(parameter_of(name)) for name in inputs.techniques if family_of(name) == "token-split"), 1)
    return tokens / np.where(_splits_tokens(inputs, phase, tokens), parts, 1) if parts > 1 else tokens


# in the order in which they are applied: what is quantised is not fused
REWRITES: Mapping[str, Rewrite] = {
    # all-reduces of fewer channels are asked one by one
    "quantized-allreduce": Rewrite(
        lambda inputs, *size: _bytes(inputs, _reduced(inputs, *size)) >= QUANTIZED_BYTES, _quantize_allreduces
    ),
    # what an engine fuses by itself
    "own-fused-norm": Rewrite(
        lambda inputs, *size: inputs.fuses_norm(_reduced(inputs, *size)),
        lambda layout, _: _fuse_norms(layout, adjacent=True),
    ),
    "fused-norm": Rewrite(_always, lambda layout, _: _fuse_norms(layout)),
    # of so few tokens GEMMs read their weights once, and take as long as that
    "weight-prefetch": Rewrite(
        lambda _, phase, tokens: (tokens <= TILE_ROWS) & (phase == "decode"),
        lambda layout, _: _prefetch_weights(layout),
    ),
    "sequence-parallel": Rewrite(_always, lambda layout, _: layout),
    "gemm-overlap": Rewrite(
        lambda inputs, _, tokens: _bytes(inputs, tokens) >= OVERLAPPED_BYTES * inputs.plan.tp,
        lambda layout, _: _overlap_gemms(layout),
    ),
    "ideal-overlap": Rewrite(_always, lambda layout, _: _overlap_ideally(layout)),
    "token-split": Rewrite(_splits_tokens, lambda layout, parts: _split_tokens(layout, int(parts))),
}


def possible(inputs: PassInputs) -> Mapping[str, str]:
    """Return the names of the rewrites that passes of any size may undergo, by family, in the order of `REWRITES`."""
    if inputs.plan.ranks == 1:
        return {}
    names = {family_of(name): name for name in inputs.techniques}
    if "fused-norm" not in names:
        names["own-fused-norm"] = "own-fused-norm"
    return {family: names[family] for family in REWRITES if family in names}


def form(inputs: PassInputs, phase: Phase, tokens: Count) -> Any:
    """Return the form of a pass as an integer, with a bit for each rewrite of `possible`."""
    applied = (REWRITES[family].applies(inputs, phase, tokens) for family in possible(inputs))
    return sum((bit * 2**number for number, bit in enumerate(applied)), start=np.zeros(np.shape(tokens), np.int64))


def rewrites_of(inputs: PassInputs, form: int) -> tuple[str, ...]:
    """Return the names of the rewrites that a form stands for."""
    return tuple(name for bit, name in enumerate(possible(inputs).values()) if form >> bit & 1)


@lru_cache(maxsize=1024)
def rewritten(layout: Layout, rewrites: tuple[str, ...]) -> Layout:
    """Return a layout after some rewrites; a common beginning of several is rewritten once."""
    if not rewrites:
        return layout
    *before, last = rewrites
    return REWRITES[family_of(last)].apply(rewritten(layout, tuple(before)), parameter_of(last))
