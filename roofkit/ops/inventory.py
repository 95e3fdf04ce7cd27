"""Inventory: architecture x plan x workload -> the ops that one rank runs in a step. Room: ops.

Ops cover one device's timeline of the step. With pipeline stages a device runs its share of the layers (the busiest
stage: ceil(layers / pp)) for each of min(pp, batch) microbatches; `pipeline_scale` says what it waits for besides.
"""
from dataclasses import fields, replace
from operator import attrgetter

import numpy as np

from roofkit.architectures.architecture import (MLA, Architecture, Attention, Dense, GatedDeltaNet, LayerGroup, LightningAttention,
                                                Mamba1, Mamba2, MoE, ShortConv)
from roofkit.errors import PlanError
from roofkit.ops import attention_blocks, ffn_blocks, recurrent_blocks
from roofkit.ops.kinds import KIND, Collective, Elementwise, Gemm, Num, Op, Transfer
from roofkit.ops.plan import Plan
from roofkit.ops.site import Site, site_of
from roofkit.ops.workload import Workload

MIXERS = {
    Attention: attention_blocks.gqa_ops, MLA: attention_blocks.mla_ops, GatedDeltaNet: recurrent_blocks.gated_delta_net_ops,
    LightningAttention: recurrent_blocks.lightning_ops, Mamba1: recurrent_blocks.mamba1_ops, Mamba2: recurrent_blocks.mamba2_ops,
    ShortConv: recurrent_blocks.short_conv_ops,
}
HEAD = ("final_norm", "logits", "all_gather_logits", "sampling")  # ops of `_head`, which see only the rows that are sampled
FEED_FORWARDS = {Dense: ffn_blocks.dense_ops, MoE: ffn_blocks.moe_ops}


def inventory(arch: Architecture, plan: Plan, workload: Workload) -> list[Op]:
    """Every op of one forward step on the busiest rank, in order of execution; equal ops of several layers are one entry.

    Raises PlanError when a width does not divide over the ranks, WorkloadError from the workload itself.
    """
    site = site_of(arch, plan, workload)
    plan = site.plan
    ops = _embedding(site)
    for group in arch.groups:
        ops += _layer(group, replace(site, count=group.count))
    ops += _head(site)
    ops = _merge(ops)
    if plan.pp > 1:
        calls, _ = pipeline_scale(arch, plan, site.microbatches, workload.phase)
        ops.append(Transfer("stage_transfer", "collectives", site.tokens * site.d * site.act_bytes / plan.tp, stride=plan.tp, count=plan.pp - 1))
        ops = [replace(op, count=op.count * calls) for op in ops]
    return ops


def draft_inventory(arch: Architecture, plan: Plan, workload: Workload) -> list[Op]:
    """Ops of one pass of the model's own draft: its multi-token-prediction layers, once per further token.

    Embedding of the last token, norms of it and of the hidden state, their projection 2d -> d, the layers, the output matrix.
    Raises PlanError when the checkpoint has no such layers. Source: DeepSeek-V3, arXiv 2412.19437, section 2.2.
    """
    if arch.mtp is None:
        raise PlanError(f"{arch.name} has no multi-token-prediction layers that roofkit knows; a draft needs another model")
    site = site_of(arch, replace(plan, pp=1), workload)
    layer = replace(site, count=arch.mtp.count)
    joined = [_pass("mtp_norms", layer, site.tokens, 2 * site.d, 2 * site.d, 6.0 * site.d),
              Gemm("mtp_proj", "projections", site.tokens, 2 * site.d, site.d, site.wide, arch.mtp.count)]
    return _merge(_embedding(site) + joined + _layer(arch.mtp, layer) + _head(site))


def pipeline_scale(arch: Architecture, plan: Plan, microbatches: Num, phase: str) -> tuple[Num, Num]:
    """(share of a full pass that one device runs, share it idles) of a step, both in units of one microbatch's full pass.

    Stage share f = ceil(L/p)/L. Decode repeats steps, so p microbatches hide the fill: max(1, m f) passes in all.
    A prefill fills and drains once: 1 + (m - 1) f. Source: 1F1B bubble (p-1)/(m+p-1), Narayanan et al. 2021, arXiv 2104.04473.
    """
    stage = -(-arch.n_layers // plan.pp) / arch.n_layers
    busy = microbatches * stage
    total = np.maximum(1.0, busy) if phase == "decode" else 1.0 + (microbatches - 1) * stage
    return busy, total - busy


def _layer(group: LayerGroup, site: Site) -> list[Op]:
    ops: list[Op] = []
    if group.n_norms:
        # the residual addition is fused into the norm: hidden and residual in, both out
        norms = replace(site, count=group.count * group.n_norms)
        ops.append(_pass("add_norm", norms, site.tokens, 2 * site.d, 2 * site.d, 6.0 * site.d))
    if group.mixer is not None:
        ops += MIXERS[type(group.mixer)](group.mixer, site)
        ops += _all_reduce("all_reduce_attention", site)
    ops += _extras("layer_extras", "projections", _extra_params(group), site)
    if group.ffn is not None:
        ops += FEED_FORWARDS[type(group.ffn)](group.ffn, site)
        gathered = isinstance(group.ffn, MoE) and site.plan.expert_replicas > 1
        ops += _all_gather_tokens(site) if gathered else _all_reduce("all_reduce_ffn", site)
    return ops


def _extra_params(group: LayerGroup) -> int:
    return group.extra_params + getattr(group.mixer, "extra_params", 0) + getattr(group.ffn, "extra_params", 0)


def _extras(name: str, category: str, params: int, site: Site) -> list[Op]:
    """Parameters that no block describes but that are too many to be scales and biases: one product with as many weights.

    Gates and per-layer inputs (Gemma-3n), projections around the stack (OPT-350m): 2 FLOPs and one read per parameter.
    """
    if params <= 4 * site.d:
        return []
    return [Gemm(name, category, site.tokens, site.d, -(-params // site.d), site.wide, site.count)]


def _pass(name: str, site: Site, rows: Num, read: float, written: float, flops: float, category: str = "norm_elementwise") -> Op:
    return Elementwise(name, category, rows, read, written, flops, site.act_bytes, site.count)


def _all_reduce(name: str, site: Site) -> list[Op]:
    if site.plan.tp == 1:
        return []
    return [Collective(name, "collectives", "all_reduce", site.tokens * site.d * site.act_bytes, site.plan.tp, "tp", count=site.count)]


def _all_gather_tokens(site: Site) -> list[Op]:
    """After a combine each tp rank has its share of the tokens; the next layer needs all of them."""
    if site.plan.tp == 1:
        return []
    shard = site.tokens * site.d * site.act_bytes / site.plan.tp
    return [Collective("all_gather_tokens", "collectives", "all_gather", shard, site.plan.tp, "tp", count=site.count)]


def _embedding(site: Site) -> list[Op]:
    ops = [_pass("embedding", site, site.tokens, site.d, site.d, 0.0, "embedding_head")]
    ops += _extras("outside_layers", "embedding_head", site.arch.other_params - site.arch.lookup_params, site)
    return ops + _all_reduce("all_reduce_embedding", site)


def _head(site: Site) -> list[Op]:
    """Final norm, output matrix for the rows that need logits (last token of a prompt), gather over tp, sampling."""
    rows, vocab = site.logits, -(-site.arch.vocab // site.plan.tp)
    ops: list[Op] = [_pass("final_norm", site, rows, 2 * site.d, site.d, 5.0 * site.d),
                     Gemm("logits", "embedding_head", rows, site.d, vocab, site.wide, 1)]
    if site.plan.tp > 1:
        ops.append(Collective("all_gather_logits", "collectives", "all_gather", rows * vocab * site.act_bytes, site.plan.tp, "tp"))
    return ops + [_pass("sampling", site, rows, site.arch.vocab, 1, 3.0 * site.arch.vocab, "embedding_head")]


_VALUES = {kind: attrgetter(*(f.name for f in fields(kind) if f.name != "count")) for kind in KIND}


def _key(op: Op) -> tuple:
    return (type(op), *(v.tobytes() if isinstance(v, np.ndarray) else v for v in _VALUES[type(op)](op)))


def _merge(ops: list[Op]) -> list[Op]:
    """Equal ops become one with their counts added; different ops of one name get a number so that names are unique."""
    merged: dict[tuple, Op] = {}
    for op in ops:
        key = _key(op)
        merged[key] = replace(merged[key], count=merged[key].count + op.count) if key in merged else op
    seen: dict[str, int] = {}
    result = []
    for op in merged.values():
        seen[op.name] = seen.get(op.name, 0) + 1
        result.append(op if seen[op.name] == 1 else replace(op, name=f"{op.name}_{seen[op.name]}"))
    return result


def check_plan(plan: Plan, n_devices: int) -> None:
    """Raise PlanError when the plan needs more devices than there are."""
    if plan.n_devices > n_devices:
        raise PlanError(f"the plan {plan.describe()} needs {plan.n_devices} devices, the cluster has {n_devices}; "
                        f"use fewer ranks or a larger cluster")
