"""Quantisation of a checkpoint: quantization_config and hf_quant_config.json -> Quantization. Room: architectures."""


def read_quantization(data, text, quant, model_type):
    return None
