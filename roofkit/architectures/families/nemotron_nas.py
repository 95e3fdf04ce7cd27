"""Nemotron Super and Ultra (derived from Llama by architecture search): each layer has its own attention and width, or none.

Source: DeciLMConfig (remote code): block_configs; KV heads = heads / n_heads_in_group; width = 2 x ffn_mult x hidden / 3,
rounded up to a multiple of 256.
"""
from roofkit.architectures.building import Layer, decoder
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys, is_set
from roofkit.architectures.mixers import Attention

MODEL_TYPES = ("nemotron-nas",)
UNSUPPORTED = ("replace_with_linear", "sparsify", "num_sink_tokens", "window_length", "unshifted_sink", "use_prefill_window_in_sink_attention")


def read(keys: Keys):
    hidden, layers, n = keys.size("hidden_size"), keys.size("num_hidden_layers"), keys.size("num_attention_heads")
    if hidden % n:
        raise keys.conflict(f"hidden_size {hidden} is not divisible by {n} heads")
    if keys.flag("attention_bias") or keys.flag("mlp_bias"):
        raise keys.refuse("attention_bias", "biases")
    keys.note("intermediate_size", "num_key_value_heads", "head_dim")
    blocks = keys.items("block_configs", dict, layers)
    if blocks is None:
        raise keys.missing(("block_configs",))
    made = [_layer(Keys(b, f"{keys.model_type}.block_configs[{i}]"), hidden, n) for i, b in enumerate(blocks)]
    return decoder(keys, "nemotron_nas", made, tied=keys.tied(False), vocab=keys.size("vocab_size"), hidden=hidden)


def _layer(block: Keys, hidden: int, n: int) -> Layer:
    attn, ffn = block.section("attention"), block.section("ffn")
    for part in (attn, ffn):
        for name in UNSUPPORTED:
            if is_set(part.raw(name)):
                raise part.refuse(name, "a variant of the block")
    mixer = dense = None
    if not attn.flag("no_op"):
        group = attn.size("n_heads_in_group")
        if n % group:
            raise attn.conflict(f"{n} heads are not divisible by n_heads_in_group {group}")
        mixer = Attention(n, n // group, hidden // n)
    if not ffn.flag("no_op"):
        width = ffn.size("intermediate_size", None) or int(2 * ffn.number("ffn_mult", 0.0) * hidden / 3)
        if width < 1:
            raise ffn.missing(("ffn_mult", "intermediate_size"))
        dense = Dense(-(-width // 256) * 256)
    return Layer(mixer, dense, (mixer is not None) + (dense is not None))
