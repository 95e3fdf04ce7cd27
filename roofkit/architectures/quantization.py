"""Quantisation of a checkpoint: which weights are stored narrower and what their scales cost. Room: architectures."""
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint stores its linear weights.

    method       scheme as named in the config: fp8, awq, gptq, mxfp4, compressed-tensors, modelopt, ...
    weights      number format of quantised weights (a name of roofkit.formats)
    activations  number format of activations in those products
    kv           number format of the KV cache, None = not said
    excluded     patterns of modules kept at 16 bit
    """

    method: str
    weights: str
    activations: str = "bf16"
    kv: str | None = None
    excluded: tuple[str, ...] = ()
