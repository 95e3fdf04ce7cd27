"""Shapes: the weight matrices and the remaining weights of each component. Room: architectures.

One list per component, so that parameter counts, bytes of a quantised checkpoint and its scales have one origin.
Names are those of the common checkpoints, relative to a layer. Depthwise kernels, norms, biases and decays are
`vectors`: they are no matrix products and no scheme quantises them.
Source: closed forms of the published architectures, each checked against instantiated models (tests/test_config_files.py).
"""
from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch

from roofkit.architectures.feed_forward import Dense, MoE
from roofkit.architectures.mixers import (MLA, Attention, GatedDeltaNet, LightningAttention, Mamba1, Mamba2,
                                          ShortConv)


@dataclass(frozen=True, slots=True)
class Matrix:
    """One weight matrix: `part` says what it belongs to (mixer, router, routed, shared, ffn), `copies` how often it occurs."""

    name: str
    rows: int
    cols: int
    copies: int = 1
    part: str = "mixer"

    @property
    def params(self) -> int:
        return self.rows * self.cols * self.copies


@singledispatch
def matrices(component, hidden: int) -> list[Matrix]:
    """Matrices of a mixer or feed-forward in a model of width `hidden`; rows = outputs, cols = inputs [elements]."""
    raise TypeError(f"no shapes known for {type(component).__name__}")


@singledispatch
def vectors(component, hidden: int) -> int:
    """Parameters of a mixer or feed-forward outside its matrices: biases, inner norms, kernels, decays [parameters]."""
    raise TypeError(f"no shapes known for {type(component).__name__}")


@matrices.register
def _(component: None, hidden: int) -> list[Matrix]:
    return []


@vectors.register
def _(component: None, hidden: int) -> int:
    return 0


# ---- mixers ---------------------------------------------------------------------------------------------------------


@matrices.register
def _(m: Attention, hidden: int) -> list[Matrix]:
    found = [Matrix("self_attn.q_proj", m.n_heads * m.head_dim * (2 if m.output_gate else 1), hidden),
             Matrix("self_attn.o_proj", hidden, m.n_heads * m.value_dim)]
    if m.kv != "shared":
        found.append(Matrix("self_attn.k_proj", m.n_kv_heads * m.head_dim, hidden))
        if not m.k_eq_v:
            found.append(Matrix("self_attn.v_proj", m.n_kv_heads * m.value_dim, hidden))
    return found


@vectors.register
def _(m: Attention, hidden: int) -> int:
    q, k, v = m.n_heads * m.head_dim, m.n_kv_heads * m.head_dim, m.n_kv_heads * m.value_dim
    if m.kv == "shared":
        k = v = 0
    if m.k_eq_v:
        v = 0
    norms = {"none": 0, "unit": 0, "full": q + k, "head": m.head_dim * (1 if m.kv == "shared" else 2)}[m.qk_norm]
    q_bias = q * (2 if m.output_gate else 1)
    return (norms + (q_bias + k + v if m.qkv_bias else 0) + (hidden if m.o_bias else 0)
            + (m.n_heads if m.sinks else 0) + m.extra_params)


@matrices.register
def _(m: MLA, hidden: int) -> list[Matrix]:
    q_width = m.n_heads * (m.qk_nope_head_dim + m.qk_rope_head_dim)
    if m.q_lora_rank is None:
        found = [Matrix("self_attn.q_proj", q_width, hidden)]
    else:
        found = [Matrix("self_attn.q_a_proj", m.q_lora_rank, hidden), Matrix("self_attn.q_b_proj", q_width, m.q_lora_rank)]
    found += [Matrix("self_attn.kv_a_proj_with_mqa", m.kv_lora_rank + m.qk_rope_head_dim, hidden),
              Matrix("self_attn.kv_b_proj", m.n_heads * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank),
              Matrix("self_attn.o_proj", hidden, m.n_heads * m.v_head_dim)]
    if m.indexer is not None and not m.indexer.shared:
        x = m.indexer
        found += [Matrix("self_attn.indexer.wq_b", x.n_heads * x.head_dim, m.q_lora_rank or hidden),
                  Matrix("self_attn.indexer.wk", x.head_dim, hidden),
                  Matrix("self_attn.indexer.weights_proj", x.n_heads, hidden)]
    return found


@vectors.register
def _(m: MLA, hidden: int) -> int:
    scorer = 2 * m.indexer.head_dim if m.indexer is not None and not m.indexer.shared else 0
    return (m.q_lora_rank or 0) + m.kv_lora_rank + scorer + m.extra_params


@matrices.register
def _(m: GatedDeltaNet, hidden: int) -> list[Matrix]:
    keys, values = m.n_k_heads * m.k_head_dim, m.n_v_heads * m.v_head_dim
    return [Matrix("linear_attn.in_proj_qkvz", 2 * keys + 2 * values, hidden),
            Matrix("linear_attn.in_proj_ba", 2 * m.n_v_heads, hidden), Matrix("linear_attn.out_proj", hidden, values)]


@vectors.register
def _(m: GatedDeltaNet, hidden: int) -> int:
    channels = 2 * m.n_k_heads * m.k_head_dim + m.n_v_heads * m.v_head_dim
    return channels * m.conv_kernel + 2 * m.n_v_heads + m.v_head_dim


@matrices.register
def _(m: LightningAttention, hidden: int) -> list[Matrix]:
    width = m.n_heads * m.head_dim
    return [Matrix("self_attn.qkv_proj", 3 * width, hidden), Matrix("self_attn.output_gate", width, hidden),
            Matrix("self_attn.out_proj", hidden, width)]


@vectors.register
def _(m: LightningAttention, hidden: int) -> int:
    return m.n_heads * m.head_dim


@matrices.register
def _(m: Mamba1, hidden: int) -> list[Matrix]:
    return [Matrix("mixer.in_proj", 2 * m.d_inner, hidden), Matrix("mixer.x_proj", m.dt_rank + 2 * m.d_state, m.d_inner),
            Matrix("mixer.dt_proj", m.d_inner, m.dt_rank), Matrix("mixer.out_proj", hidden, m.d_inner)]


@vectors.register
def _(m: Mamba1, hidden: int) -> int:
    i = m.d_inner
    found = i * m.conv_kernel + i + i * m.d_state + i  # kernel, dt bias, A, D
    found += i if m.conv_bias else 0
    found += 2 * i + hidden if m.proj_bias else 0
    return found + (m.dt_rank + 2 * m.d_state if m.inner_norms else 0)


def _mamba2_widths(m: Mamba2) -> tuple[int, int, int]:
    inner = m.n_heads * m.head_dim
    channels = inner + 2 * m.n_groups * m.d_state
    return inner, channels, inner + channels + m.n_heads


@matrices.register
def _(m: Mamba2, hidden: int) -> list[Matrix]:
    inner, _, projected = _mamba2_widths(m)
    return [Matrix("mixer.in_proj", projected, hidden), Matrix("mixer.out_proj", hidden, inner)]


@vectors.register
def _(m: Mamba2, hidden: int) -> int:
    inner, channels, projected = _mamba2_widths(m)
    found = channels * m.conv_kernel + 3 * m.n_heads + inner  # kernel; A, D and dt bias; gated norm
    found += channels if m.conv_bias else 0
    return found + (projected + hidden if m.proj_bias else 0)


@matrices.register
def _(m: ShortConv, hidden: int) -> list[Matrix]:
    return [Matrix("conv.in_proj", 3 * m.width, hidden), Matrix("conv.out_proj", hidden, m.width)]


@vectors.register
def _(m: ShortConv, hidden: int) -> int:
    return m.width * m.kernel + (3 * m.width + m.width + hidden if m.bias else 0)


# ---- feed-forwards --------------------------------------------------------------------------------------------------


def _ffn(name: str, hidden: int, width: int, gated: bool, part: str, copies: int = 1) -> list[Matrix]:
    found = [Matrix(f"{name}.gate_proj", width, hidden, copies, part)] if gated else []
    return found + [Matrix(f"{name}.up_proj", width, hidden, copies, part), Matrix(f"{name}.down_proj", hidden, width, copies, part)]


@matrices.register
def _(f: Dense, hidden: int) -> list[Matrix]:
    return _ffn("mlp", hidden, f.width, f.gated, "ffn")


@vectors.register
def _(f: Dense, hidden: int) -> int:
    return ((2 if f.gated else 1) * f.width + hidden if f.bias else 0) + f.extra_params


@matrices.register
def _(f: MoE, hidden: int) -> list[Matrix]:
    inner = hidden if f.latent_width is None else f.latent_width
    found = [Matrix("mlp.gate", f.n_experts, hidden, 1, "router")]
    found += _ffn("mlp.experts.*", inner, f.expert_width, f.gated, "routed", f.n_experts)
    if f.shared_width:
        found += _ffn("mlp.shared_experts", hidden, f.shared_width, f.gated, "shared")
    if f.dense_width:
        found += _ffn("mlp", hidden, f.dense_width, True, "ffn")
    if f.latent_width is not None:
        found += [Matrix("mlp.latent_down_proj", inner, hidden, 1, "ffn"), Matrix("mlp.latent_up_proj", hidden, inner, 1, "ffn")]
    return found


def expert_vectors(f: MoE, hidden: int) -> int:
    """Biases of all routed experts together [parameters]."""
    inner = hidden if f.latent_width is None else f.latent_width
    return f.n_experts * ((2 if f.gated else 1) * f.expert_width + inner) if f.expert_bias else 0


@vectors.register
def _(f: MoE, hidden: int) -> int:
    return (expert_vectors(f, hidden) + (f.n_experts if f.router_bias else 0) + (hidden if f.shared_gate else 0)
            + f.extra_params)


def params(component, hidden: int) -> int:
    """All parameters of a mixer or feed-forward [parameters]."""
    return sum(m.params for m in matrices(component, hidden)) + vectors(component, hidden)


def layer_matrices(group, hidden: int) -> Iterator[Matrix]:
    """Matrices of one layer of a group."""
    yield from matrices(group.mixer, hidden)
    yield from matrices(group.ffn, hidden)
