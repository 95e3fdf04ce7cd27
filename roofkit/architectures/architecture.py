"""Architecture: a decoder as groups of equal layers, each a mixer and a feed-forward. Room: architectures.

Everything is frozen and says what is computed, never how fast. Counts (parameters, cache, state) are in counting.py,
config.json -> Architecture in config.py and families/. The components are in mixers.py and feed_forward.py. Widths are those of the whole model, before any parallel split.
"""
from dataclasses import dataclass

import pandas as pd

from roofkit.architectures import counting
from roofkit.architectures.feed_forward import Dense, FeedForward, MoE
from roofkit.architectures.mixers import (MLA, Attention, GatedDeltaNet, Indexer, LightningAttention, Mamba1, Mamba2,
                                          Mixer, ShortConv)
from roofkit.architectures.quantization import Quantization
from roofkit.errors import UnsupportedArchitectureError

__all__ = ["MLA", "Architecture", "Attention", "Dense", "FeedForward", "GatedDeltaNet", "Indexer", "LayerGroup",
           "LightningAttention", "Mamba1", "Mamba2", "Mixer", "MoE", "Quantization", "ShortConv"]


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
    lookup_params              of other_params, tables that are looked up and not multiplied: positions, per-layer inputs
    head_bias                  bias of the output matrix [parameters]
    max_context                longest position the config allows; None = unknown [tokens]
    vision_params, mtp_params  towers of other modalities (None = there is one that roofkit does not describe); multi-token-prediction layers: both outside text_params
    mtp                        the layers that draft further tokens, if the checkpoint has any: for speculative decoding
    dtype                      number format of the weights that are not quantised
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
    vision_params: int | None = 0
    mtp_params: int = 0
    quantization: Quantization | None = None
    confidence: str = "exact"
    assumptions: tuple[str, ...] = ()
    source: str = ""
    released: str = ""
    dtype: str = "bf16"
    mtp: LayerGroup | None = None
    lookup_params: int = 0

    @property
    def n_layers(self) -> int:
        return sum(g.count for g in self.groups)

    @property
    def text_params(self) -> int:
        """Parameters of the language model, tied matrices once [parameters]."""
        return counting.text_params(self)

    @property
    def total_params(self) -> int:
        """text_params plus vision tower; without MTP layers, buffers and quantisation scales [parameters].

        Raises UnsupportedArchitectureError when the model has a tower that roofkit does not describe.
        """
        if self.vision_params is None:
            raise UnsupportedArchitectureError(f"{self.name} of model_type {self.model_type!r}, key 'vision_config': its tower is not described, "
                                               f"so total_params is unknown; text_params is exact")
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

    def parameter_table(self) -> pd.DataFrame:
        """Parameters by component, columns component, total, active; sums are text_params and active_params."""
        return counting.parameter_table(self)

    @property
    def state_elements(self) -> int:
        """Recurrent state of one sequence (convolutions, state spaces, linear attention) [elements]."""
        return counting.state_elements(self)
