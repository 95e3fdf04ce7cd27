"""Phi 1.5 to 4: parallel blocks with biases (phi, phi-msft), Llama's block (phi3), experts with LayerNorm (phimoe), phi3small.

Source: transformers PhiConfig, Phi3Config, PhimoeConfig and modelling code; remote code of phi-msft and phi3small.
"""
from roofkit.architectures.building import FULL, SLIDING, decoder, heads, plain, read_moe, windowed
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys
from roofkit.architectures.mixers import Attention

MODEL_TYPES = ("phi", "phi-msft", "phi3", "phi3_v", "phimoe", "phi3small")


def read(keys: Keys):
    return {"phi": _phi, "phi-msft": _phi, "phimoe": _phimoe, "phi3small": _phi3small}.get(keys.model_type, _phi3)(keys)


def _phi(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    keys.note("n_positions", "rotary_dim")
    if keys.flag("qk_layernorm"):
        raise keys.refuse("qk_layernorm", "norms on q and k")
    mixer = Attention(**heads(keys, hidden), qkv_bias=True, o_bias=True)
    ffn = Dense(keys.size("intermediate_size", 4 * hidden) if keys.model_type == "phi-msft" else keys.size("intermediate_size"), gated=False, bias=True)
    return decoder(keys, "phi", plain(keys, layers, mixer, ffn, norms=1), tied=keys.tied(False), vocab=keys.size("vocab_size"), hidden=hidden,
                   norm="layer", head_bias=True)


def _phi3(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    window = keys.tokens("sliding_window")
    if keys.flag("attention_bias"):
        raise keys.refuse("attention_bias", "biases that the class does not have")
    mixer = windowed(keys, window, **heads(keys, hidden))
    return decoder(keys, "phi", plain(keys, layers, mixer(SLIDING if window else FULL), Dense(keys.size("intermediate_size"))),
                   tied=keys.tied(False), vocab=keys.size("vocab_size"), hidden=hidden)


def _phimoe(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    window, bias = keys.tokens("sliding_window"), keys.flag("attention_bias")
    mixer = windowed(keys, window, **heads(keys, hidden, kv_default=8), qkv_bias=bias, o_bias=bias)
    return decoder(keys, "phi", plain(keys, layers, mixer(SLIDING if window else FULL), read_moe(keys, keys.size("intermediate_size"))),
                   tied=keys.tied(False), vocab=keys.size("vocab_size"), hidden=hidden, norm="layer", head_bias=keys.flag("lm_head_bias"))


def _phi3small(keys: Keys):
    """Block-sparse attention in all but every dense_attention_every_n_layers-th layer; the cache keeps every token."""
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    keys.note("blocksparse_block_size", "blocksparse_num_local_blocks", "blocksparse_vert_stride", "num_local_blocks",
              "dense_attention_every_n_layers", "blocksparse_homo_head_pattern", "dummy_token_indices")
    width = keys.size("ff_intermediate_size", names=("ff_intermediate_size", "intermediate_size"))
    bias = keys.raw("attention_bias")
    if bias is False:
        raise keys.refuse("attention_bias", "a phi3small without biases")
    mixer = Attention(**heads(keys, hidden), qkv_bias=True, o_bias=True)
    return decoder(keys, "phi", plain(keys, layers, mixer, Dense(width, bias=True)), tied=keys.tied(True), vocab=keys.size("vocab_size"),
                   hidden=hidden, norm="layer")
