"""Llama-3.2-Vision, text side: Llama-3 with cross-attention layers that read image states and cache no text.

Source: transformers MllamaTextConfig and modelling code. The input table has 8 rows more than the vocabulary; a
cross-attention layer has q/k norms and two gates, one on the attention and one on the feed-forward.
"""
from roofkit.architectures.building import Layer, decoder, heads
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys
from roofkit.architectures.mixers import Attention

MODEL_TYPES = ("mllama_text_model",)


def read(keys: Keys):
    hidden, layers = keys.main("hidden_size", 4096), keys.main("num_hidden_layers", 40)
    shape = heads(keys, hidden, kv_default=8, heads_default=32)
    at = keys.items("cross_attention_layers", int)
    cross_at = set(at if at is not None else (3, 8, 13, 18, 23, 28, 33, 38))
    if any(not 0 <= i < layers for i in cross_at):
        raise keys.conflict(f"cross_attention_layers names a layer outside 0..{layers - 1}")
    own, cross = Attention(**shape), Attention(**shape, kv="cross", qk_norm="head", rope=False, extra_params=2)
    ffn = Dense(keys.main("intermediate_size", 14336))
    vocab = keys.main("vocab_size", 128256)
    return decoder(keys, "llama", [Layer(cross if i in cross_at else own, ffn) for i in range(layers)], tied=keys.tied(False), vocab=vocab,
                   hidden=hidden, embed_rows=vocab + 8)
