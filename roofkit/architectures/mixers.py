"""Mixers: what moves information between the tokens of a sequence. Room: architectures.

Frozen descriptions in widths of the whole model, before any parallel split; counts are in shapes.py and counting.py.
"""
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with its own heads: MHA, GQA or MQA by `n_kv_heads`.

    n_heads, n_kv_heads, head_dim   query heads, key/value heads [heads]; width of one head [elements]
    v_head_dim    width of one value head where it differs from head_dim (MiMo-V2); None = head_dim [elements]
    window        tokens that one query sees; None = all [tokens]
    chunked       the window is an aligned chunk (Llama-4), not a sliding one
    qkv_bias, o_bias   the projections carry a bias
    qk_norm       "none" | "head" (2 x head_dim weights) | "full" (one weight per q and k channel) | "unit" (no weights)
    output_gate   a gate as wide as the queries, so q_proj is doubled (Qwen3-Next)
    sinks         one learned scalar per head joins the softmax (gpt-oss)
    kv            "own" | "shared" (reuses an earlier layer's cache, has no K/V projection) | "cross" (keys of another modality)
    k_eq_v        there is no v_proj: values are the keys before rope and norm; both are still cached (Gemma-4)
    rope          queries and keys are rotated
    extra_params  parameters of this mixer that are none of the above (e.g. gates of cross-attention)
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    window: int | None = None
    chunked: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: str = "none"
    output_gate: bool = False
    sinks: bool = False
    kv: str = "own"
    k_eq_v: bool = False
    rope: bool = True
    extra_params: int = 0
    v_head_dim: int | None = None

    @property
    def value_dim(self) -> int:
        """Width of one value head [elements]."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim


@dataclass(frozen=True, slots=True)
class Indexer:
    """DeepSeek sparse attention: a small scorer picks `top_k` cached tokens per query. Source: DeepSeek-V3.2 report.

    shared   the layer reuses the choice of an earlier layer: no weights and no cached keys of its own (GLM-5.1)
    """

    n_heads: int
    head_dim: int
    top_k: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class MLA:
    """Multi-head latent attention: the cache holds kv_lora_rank + qk_rope_head_dim elements per token and layer.

    q_lora_rank None = one direct q_proj. `indexer` = DeepSeek sparse attention on top of it. `extra_params` = biases.
    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    n_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    indexer: Indexer | None = None
    extra_params: int = 0


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Linear attention with a gated delta rule (Qwen3-Next): constant state n_v_heads x k_head_dim x v_head_dim."""

    n_k_heads: int
    n_v_heads: int
    k_head_dim: int
    v_head_dim: int
    conv_kernel: int


@dataclass(frozen=True, slots=True)
class LightningAttention:
    """Linear attention with per-head decay and an output gate and norm (MiniMax-M1): state n_heads x head_dim^2."""

    n_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Selective state space: inner width, state size, convolution kernel, rank of dt; `inner_norms` = Jamba's extra norms."""

    d_inner: int
    d_state: int
    conv_kernel: int
    dt_rank: int
    conv_bias: bool = True
    proj_bias: bool = False
    inner_norms: bool = False


@dataclass(frozen=True, slots=True)
class Mamba2:
    """State space duality: n_heads x head_dim inner channels, n_groups shared B and C of d_state. arXiv 2405.21060."""

    n_heads: int
    head_dim: int
    d_state: int
    n_groups: int
    conv_kernel: int
    conv_bias: bool = True
    proj_bias: bool = False


@dataclass(frozen=True, slots=True)
class ShortConv:
    """Gated short convolution (LFM2): in_proj to three streams, a depthwise kernel, out_proj."""

    width: int
    kernel: int
    bias: bool = False


Mixer = Attention | MLA | GatedDeltaNet | LightningAttention | Mamba1 | Mamba2 | ShortConv | None
