"""Architecture: a decoder as groups of equal layers, each a mixer and a feed-forward. Room: architectures.

Everything is frozen and says what is computed, never how fast. Counts (parameters, cache, state) are in counting.py,
config.json -> Architecture in config.py and families/. Widths are those of the whole model, before any parallel split.
"""
from dataclasses import dataclass, field

from roofkit.architectures import counting
from roofkit.architectures.quantization import Quantization

# ---- mixers: what moves information between tokens ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with its own heads: MHA, GQA or MQA by `n_kv_heads`.

    n_heads, n_kv_heads, head_dim   query heads, key/value heads [heads]; width of one head [elements]
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


@dataclass(frozen=True, slots=True)
class Indexer:
    """DeepSeek sparse attention: a small scorer picks `top_k` cached tokens per query. Source: DeepSeek-V3.2 report."""

    n_heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True, slots=True)
class MLA:
    """Multi-head latent attention: the cache holds kv_lora_rank + qk_rope_head_dim elements per token and layer.

    q_lora_rank None = one direct q_proj. `indexer` = DeepSeek sparse attention on top of it.
    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    n_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Linear attention with a gated delta rule (Qwen3-Next): constant state n_v_heads x k_head_dim x v_head_dim.

    `split_projections`: q, k, v, z, a, b are separate matrices; counts are equal, launches are not.
    """

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

# ---- feed-forwards --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dense:
    """Dense feed-forward of inner width `width`: three matrices when gated (gate, up, down), else two."""

    width: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class MoE:
    """Mixture of experts: each token uses `top_k` of `n_experts`, plus the shared expert if there is one.

    expert_width   inner width of one routed expert
    shared_width   inner width of all shared experts together, 0 = none; always read
    shared_gate    a d-sized gate on the shared expert (Qwen2-MoE)
    gated, expert_bias, router_bias   three matrices per expert; biases in them; bias of the router (E parameters)
    latent_width   experts act on this narrower width between one down and one up projection (Nemotron-3)
    extra_params   parameters of this block that are none of the above
    """

    n_experts: int
    top_k: int
    expert_width: int
    shared_width: int = 0
    shared_gate: bool = False
    gated: bool = True
    expert_bias: bool = False
    router_bias: bool = False
    latent_width: int | None = None
    extra_params: int = 0


FeedForward = Dense | MoE | None


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Equal layers: `positions` are their indices in the model, counted from 0.

    n_norms     norms over the hidden width in one layer
    norm_params parameters of those norms in one layer (2 x d for two RMSNorms, 4 x d for two LayerNorms with bias)
    extra_params parameters of a layer that belong to no component (e.g. layer scalars)
    """

    positions: tuple[int, ...]
    mixer: Mixer
    ffn: FeedForward
    n_norms: int
    norm_params: int
    extra_params: int = 0

    @property
    def count(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class Architecture:
    """A decoder-only language model.

    name, family, model_type   preset name or path; family as people say it; config.json's model_type
    hidden, vocab              model width, vocabulary as written in the config
    groups                     layers by kind, see LayerGroup
    tied                       the output matrix is the input table
    embed_params, head_params  input table (with extra rows); output matrix, 0 when tied
    other_params               final norm, learned positions, embedding norm, projections around the stack
    head_bias                  bias of the output matrix [parameters]
    max_context                longest position the config allows; None = unknown [tokens]
    vision_params, mtp_params  towers of other modalities; multi-token-prediction layers: both outside text_params
    quantization               how the checkpoint stores its weights; None = 16 bit
    confidence                 "exact" | "generic"; assumptions in words
    """

    name: str
    family: str
    model_type: str
    hidden: int
    vocab: int
    groups: tuple[LayerGroup, ...]
    tied: bool
    embed_params: int
    head_params: int
    other_params: int
    head_bias: int = 0
    max_context: int | None = None
    vision_params: int = 0
    mtp_params: int = 0
    quantization: Quantization | None = None
    confidence: str = "exact"
    assumptions: tuple[str, ...] = ()
    source: str = ""
    released: str = ""
    dtype: str = "bf16"
    extras: dict = field(default_factory=dict, compare=False, hash=False)

    @property
    def n_layers(self) -> int:
        return sum(g.count for g in self.groups)

    @property
    def text_params(self) -> int:
        """Parameters of the language model, tied matrices once [parameters]."""
        return counting.text_params(self)

    @property
    def total_params(self) -> int:
        """text_params plus vision tower; without MTP layers, buffers and quantisation scales [parameters]."""
        return self.text_params + self.vision_params

    @property
    def active_params(self) -> int:
        """text_params minus the routed experts that a token does not use [parameters]."""
        return counting.active_params(self)

    def kv_bytes_per_token(self, kv_bytes_per_el: float = 2.0, context_tokens: int | None = None) -> float:
        """Cache bytes one more token adds [bytes/token]; past a window if `context_tokens` says so. See counting.py."""
        return counting.kv_bytes_per_token(self, kv_bytes_per_el, context_tokens)

    def kv_bytes(self, context_tokens, kv_bytes_per_el: float = 2.0):
        """Cache of one sequence of `context_tokens`, windows respected [bytes]."""
        return counting.kv_bytes(self, context_tokens, kv_bytes_per_el)

    @property
    def state_elements(self) -> int:
        """Recurrent state of one sequence (convolutions, state spaces, linear attention) [elements]."""
        return counting.state_elements(self)
