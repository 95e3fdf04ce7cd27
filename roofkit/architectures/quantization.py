"""Quantisation of a checkpoint: which weights are stored narrower and what their scales cost. Room: architectures."""
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint stores its linear weights.

    method       scheme as named in the config: fp8, awq, gptq, mxfp4, compressed-tensors, modelopt, ...
    weights      number format of quantised weights (a name of roofkit.formats)
    activations  number format of activations in those products
    kv           number format of the KV cache, None = not said; independent of the weights
    excluded     patterns of modules kept at 16 bit: names, globs, or "re:..." (embeddings, norms, router, head always are)
    bytes_per_weight   bytes of one quantised weight, scales included; None = that of the format [bytes]
    block        weights that share one scale, rows x columns; (0, 0) = one scale a tensor, (1, 0) = one a row
    static_activations   scales of the activations are stored, one per matrix
    """

    method: str
    weights: str
    activations: str = "bf16"
    kv: str | None = None
    excluded: tuple[str, ...] = ()
    bytes_per_weight: float | None = None
    block: tuple[int, int] = (0, 0)
    static_activations: bool = False
