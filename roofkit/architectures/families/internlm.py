"""InternLM-1 (biases on q, k, v, o) and InternLM-3. InternLM-2 is ordinary and read generically.

Source: InternLMConfig and InternLM3Config (remote code), transformers InternLM3Config.
"""
from roofkit.architectures.building import FULL, decoder, heads, plain, windowed
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys

MODEL_TYPES = ("internlm", "internlm3")


def read(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    first = keys.model_type == "internlm"
    if first:
        bias = o_bias = keys.flag("bias", True)
        shape = heads(keys, hidden)
    else:
        shape = heads(keys, hidden, head_dim=128, kv_default=2)
        if keys.flag("mlp_bias") or keys.flag("bias"):
            raise keys.refuse("bias", "biases in the output or feed-forward matrices")
        bias = o_bias = keys.flag("attention_bias")
        bias = keys.flag("qkv_bias") or bias
    mixer = windowed(keys, None, **shape, qkv_bias=bias, o_bias=o_bias)
    return decoder(keys, "internlm", plain(keys, layers, mixer(FULL), Dense(keys.size("intermediate_size"))), tied=keys.tied(False),
                   vocab=keys.size("vocab_size"), hidden=hidden)
