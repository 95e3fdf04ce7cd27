"""Counting: exact parameters, active parameters, cache and state of an architecture. Room: architectures.

Conventions (CONTRIBUTING.md): tied matrices once; multi-token-prediction layers, buffers and quantisation scales apart;
"active" is the text model minus the routed experts that a token does not use, in three published variants.
"""
from functools import singledispatch

import numpy as np
import pandas as pd

from roofkit.architectures import shapes
from roofkit.architectures.feed_forward import Dense, MoE
from roofkit.architectures.mixers import (MLA, Attention, GatedDeltaNet, LightningAttention, Mamba1, Mamba2,
                                          ShortConv)

ACTIVE_CONVENTIONS = ("all", "excl_input_embedding", "excl_embedding_and_head")

# ---- parameters -----------------------------------------------------------------------------------------------------


def layer_params(group, hidden: int) -> int:
    """Parameters of one layer of a LayerGroup, all experts included [parameters]."""
    return (shapes.params(group.mixer, hidden) + shapes.params(group.ffn, hidden)
            + group.norm_params + group.extra_params)


def routed_params(ffn, hidden: int) -> int:
    """Parameters of all routed experts of one feed-forward, 0 where it has none [parameters]."""
    if not isinstance(ffn, MoE):
        return 0
    return sum(m.params for m in shapes.matrices(ffn, hidden) if m.part == "routed") + shapes.expert_vectors(ffn, hidden)


def inactive_params(ffn, hidden: int) -> int:
    """Parameters of the routed experts that one token does not use [parameters]."""
    if not isinstance(ffn, MoE):
        return 0
    return routed_params(ffn, hidden) // ffn.n_experts * (ffn.n_experts - ffn.top_k)


def text_params(arch) -> int:
    """Parameters of the language model, tied matrices once [parameters]."""
    layers = sum(g.count * layer_params(g, arch.hidden) for g in arch.groups)
    return arch.embed_params + arch.head_params + arch.head_bias + arch.other_params + layers


def active_params(arch) -> int:
    """text_params minus the routed experts that a token does not use [parameters]."""
    return text_params(arch) - sum(g.count * inactive_params(g.ffn, arch.hidden) for g in arch.groups)


def active_params_by_convention(arch) -> dict[str, int]:
    """The three published meanings of "active parameters" [parameters].

    all                        every weight a token touches, embedding and head included
    excl_input_embedding       without the input table, unless it is tied: then it still computes the logits
    excl_embedding_and_head    without both tables
    Source: Qwen3 "22B" and MiniMax-M1 "45.9B" use the last, gpt-oss "3.6B" the second.
    """
    active = active_params(arch)
    return {"all": active,
            "excl_input_embedding": active if arch.tied else active - arch.embed_params,
            "excl_embedding_and_head": active - arch.embed_params - arch.head_params}


_MIXER_LABEL = {Attention: "attention", MLA: "attention", GatedDeltaNet: "linear_attention",
                LightningAttention: "linear_attention", Mamba1: "state_space", Mamba2: "state_space", ShortConv: "convolution"}


def _layer_parts(group, hidden: int) -> dict[str, int]:
    parts = {"norms": group.norm_params, "layer_extras": group.extra_params}
    if group.mixer is not None:
        parts[_MIXER_LABEL[type(group.mixer)]] = shapes.params(group.mixer, hidden)
    ffn = group.ffn
    if isinstance(ffn, Dense):
        parts["dense_ffn"] = shapes.params(ffn, hidden)
    elif isinstance(ffn, MoE):
        by_part: dict[str, int] = {}
        for m in shapes.matrices(ffn, hidden):
            by_part[m.part] = by_part.get(m.part, 0) + m.params
        experts = shapes.expert_vectors(ffn, hidden)
        parts["router"] = by_part["router"] + (ffn.n_experts if ffn.router_bias else 0)
        parts["routed_experts"] = by_part["routed"] + experts
        parts["shared_experts"] = by_part.get("shared", 0) + (hidden if ffn.shared_gate else 0)
        parts["dense_ffn"] = by_part.get("ffn", 0)
        parts["ffn_extras"] = ffn.extra_params
    return parts


def parameter_table(arch) -> pd.DataFrame:
    """Parameters by component: columns component, total, active [parameters]; rows that are zero are left out.

    The column sums are text_params and active_params. Towers and MTP layers are outside (`arch.vision_params`, `arch.mtp_params`).
    """
    total: dict[str, int] = {"embedding": arch.embed_params}
    active = dict(total)
    for group in arch.groups:
        unused = group.count * inactive_params(group.ffn, arch.hidden)
        for name, n in _layer_parts(group, arch.hidden).items():
            total[name] = total.get(name, 0) + group.count * n
            active[name] = active.get(name, 0) + group.count * n - (unused if name == "routed_experts" else 0)
    for name, n in (("outside_layers", arch.other_params), ("head", arch.head_params + arch.head_bias)):
        total[name] = active[name] = n
    rows = [(name, n, active[name]) for name, n in total.items() if n]
    return pd.DataFrame(rows, columns=["component", "total", "active"])


# ---- cache and state ------------------------------------------------------------------------------------------------


def kv_elements(mixer) -> int:
    """Cache elements that one token adds in one layer, no window in the way [elements].

    Softmax attention 2 x kv heads x head_dim; latent attention latent + rope, plus the keys of its indexer; nothing
    for recurrent mixers, for layers that reuse another layer's cache and for cross-attention.
    """
    if isinstance(mixer, Attention):
        return mixer.n_kv_heads * (mixer.head_dim + mixer.value_dim) if mixer.kv == "own" else 0
    if isinstance(mixer, MLA):
        own = mixer.indexer is not None and not mixer.indexer.shared
        return mixer.kv_lora_rank + mixer.qk_rope_head_dim + (mixer.indexer.head_dim if own else 0)
    return 0


def _window(mixer) -> float:
    window = mixer.window if isinstance(mixer, Attention) else None
    return float("inf") if window is None else float(window)


def kv_bytes_per_token(arch, kv_bytes_per_el: float = 2.0, context_tokens: int | None = None) -> float:
    """Cache bytes that one more token adds to a sequence [bytes/token].

    context_tokens   tokens already cached; None = no window is full yet; a large number = every window is full
    """
    context = 0.0 if context_tokens is None else context_tokens
    per_token = sum(g.count * kv_elements(g.mixer) for g in arch.groups if _window(g.mixer) > context)
    return per_token * kv_bytes_per_el


def kv_bytes(arch, context_tokens, kv_bytes_per_el: float = 2.0):
    """Cache of one sequence of `context_tokens`, windows respected [bytes]; an array of contexts gives an array."""
    context = np.asarray(context_tokens, dtype=float)
    total = np.zeros_like(context)
    for group in arch.groups:
        elements = group.count * kv_elements(group.mixer)
        if elements:
            total = total + np.minimum(context, _window(group.mixer)) * elements
    total = total * kv_bytes_per_el
    return float(total) if total.ndim == 0 else total


@singledispatch
def mixer_state(mixer) -> int:
    """Recurrent state of one sequence in one layer, whatever its length [elements]."""
    return 0


@mixer_state.register
def _(m: GatedDeltaNet) -> int:
    channels = 2 * m.n_k_heads * m.k_head_dim + m.n_v_heads * m.v_head_dim
    return m.n_v_heads * m.k_head_dim * m.v_head_dim + channels * m.conv_kernel


@mixer_state.register
def _(m: LightningAttention) -> int:
    return m.n_heads * m.head_dim**2


@mixer_state.register
def _(m: Mamba1) -> int:
    return m.d_inner * (m.d_state + m.conv_kernel)


@mixer_state.register
def _(m: Mamba2) -> int:
    inner = m.n_heads * m.head_dim
    return inner * m.d_state + (inner + 2 * m.n_groups * m.d_state) * m.conv_kernel


@mixer_state.register
def _(m: ShortConv) -> int:
    return m.width * m.kernel


def state_elements(arch) -> int:
    """Recurrent state of one sequence over all layers, constant in its length [elements]."""
    return sum(g.count * mixer_state(g.mixer) for g in arch.groups)
