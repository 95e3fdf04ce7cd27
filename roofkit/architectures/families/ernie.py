"""ERNIE-4.5, dense and mixture of experts: the routing bias is a parameter here, shared experts after a dense prefix.

Source: transformers Ernie4_5Config, Ernie4_5_MoeConfig and modelling code. The draft layer is a dense block.
"""
from roofkit.architectures.building import FULL, Layer, decoder, heads, plain, read_moe, windowed
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys

MODEL_TYPES = ("ernie4_5", "ernie4_5_moe")


def read(keys: Keys):
    sparse = keys.model_type == "ernie4_5_moe"
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    bias = keys.flag("use_bias")
    if sparse and bias:
        raise keys.refuse("use_bias", "biases in every matrix")
    shape = heads(keys, hidden, head_dim=None if sparse or "head_dim" in keys.data else 128, kv_default=4 if sparse else 2)
    mixer = windowed(keys, None, **shape, qkv_bias=bias, o_bias=bias)(FULL)
    dense = Dense(keys.size("intermediate_size"), bias=bias)
    ffns = [dense] * layers
    if sparse:
        width = keys.size("moe_intermediate_size")
        moe = read_moe(keys, width, router_bias=True, shared_width=keys.size("n_shared_experts", 2, least=0) * width)
        ffns = [moe if s else dense for s in _schedule(keys, layers)]
    count = keys.size("num_nextn_predict_layers", 0, least=0)
    return decoder(keys, "ernie", plain(keys, layers, mixer, ffns), tied=keys.tied(True), vocab=keys.size("vocab_size"), hidden=hidden,
                   mtp=[Layer(mixer, dense)] * count, mtp_extra=count * (2 * hidden * hidden + 2 * hidden))


def _schedule(keys: Keys, layers: int) -> list[bool]:
    first, step = keys.size("moe_layer_start_index", 1, least=0), keys.size("moe_layer_interval", 1)
    last = keys.size("moe_layer_end_index", -1, least=-1)
    last = layers - 1 if last == -1 else last
    return [(i + 1) % step == 0 and first <= i <= last for i in range(layers)]
