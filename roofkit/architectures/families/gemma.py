"""Gemma 1 to 3 and VaultGemma: tied tables, wide heads, four norms a layer from the second generation on.

Source: transformers GemmaConfig, Gemma2Config, Gemma3TextConfig, VaultGemmaConfig and modelling code. The window
schedule is in no key: every other layer full in Gemma-2, every sixth in Gemma-3.
"""
from roofkit.architectures.building import FULL, decoder, every, heads, layer_kinds, plain, windowed
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys

MODEL_TYPES = ("gemma", "gemma2", "gemma3_text", "vaultgemma")
# class defaults: hidden, layers, heads, kv heads, width, vocab, head_dim, window, period of full layers, norms, q/k norm
DEFAULTS = {
    "gemma": (3072, 28, 16, 16, 24576, 256000, 256, None, 1, 2, "none"),
    "gemma2": (2304, 26, 8, 4, 9216, 256000, 256, 4096, 2, 4, "none"),
    "gemma3_text": (2304, 26, 8, 4, 9216, 262208, 256, 4096, 6, 4, "head"),
    "vaultgemma": (2304, 26, 8, 4, 9216, 256000, 256, 4096, 2, 2, "none"),
}


def read(keys: Keys):
    d, n, h, kv, width, v, a, window, period, norms, qk = DEFAULTS[keys.model_type]
    hidden, layers = keys.main("hidden_size", d), keys.main("num_hidden_layers", n)
    bias = keys.flag("attention_bias")
    if keys.raw("use_bidirectional_attention") not in (None, False):
        raise keys.refuse("use_bidirectional_attention", "attention in both directions")
    if window is not None:
        window = keys.tokens("sliding_window", window)
        keys.note("sliding_window_size")
        period = keys.size("sliding_window_pattern", period)
    else:
        keys.note("sliding_window")
    kinds = layer_kinds(keys, layers) or every(layers, period)
    if window is None:
        kinds = [FULL] * layers
    mixer = windowed(keys, window, **heads(keys, hidden, head_dim=a, kv_default=kv, heads_default=h), qkv_bias=bias, o_bias=bias, qk_norm=qk)
    ffn = Dense(keys.main("intermediate_size", width))
    return decoder(keys, "gemma", plain(keys, layers, mixer, ffn, kinds, norms=norms), tied=keys.tied(True),
                   vocab=keys.main("vocab_size", v), hidden=hidden)
