"""Mamba, Falcon-Mamba and Mamba-2: state spaces alone, one norm a layer, no cache.

Source: transformers MambaConfig, FalconMambaConfig, Mamba2Config and modelling code; num_heads and head_dim of Mamba-2
belong to the mixer. A written intermediate_size rules over expand.
"""
from roofkit.architectures.building import Layer, decoder
from roofkit.architectures.keys import Keys
from roofkit.architectures.mixers import Mamba1, Mamba2

MODEL_TYPES = ("mamba", "falcon_mamba", "mamba2")


def read(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    keys.note("d_inner", "d_model", "n_layer", "ssm_cfg", "time_step_limit", "pad_vocab_size_multiple", "mamba_type")
    mixer = _mamba2(keys, hidden) if keys.model_type == "mamba2" else _mamba1(keys, hidden)
    family = {"mamba2": "mamba2", "falcon_mamba": "falcon_mamba"}.get(keys.model_type, "mamba")
    return decoder(keys, family, [Layer(mixer, None, 1)] * layers, tied=keys.tied(keys.model_type != "mamba2"), vocab=keys.size("vocab_size"),
                   hidden=hidden)


def _expanded(keys: Keys, hidden: int) -> int:
    width = keys.number("expand", 2.0) * hidden
    if width % 1:
        raise keys.bad("expand", keys.data["expand"], "gives a fractional inner width")
    return int(width)


def time_step_rank(keys: Keys, name: str, hidden: int) -> int:
    """Rank of dt; absent or "auto" = hidden / 16, rounded up."""
    return -(-hidden // 16) if keys.raw(name) in (None, "auto") else keys.size(name)


def _mamba1(keys: Keys, hidden: int) -> Mamba1:
    inner = keys.size("intermediate_size", None) or _expanded(keys, hidden)
    keys.note("expand")
    if keys.data.get("d_inner") not in (None, inner):
        raise keys.conflict(f"d_inner {keys.data['d_inner']} and intermediate_size {inner} disagree")
    return Mamba1(inner, keys.size("state_size", 16), keys.size("conv_kernel", 4), time_step_rank(keys, "time_step_rank", hidden),
                  keys.flag("use_conv_bias", True), keys.flag("use_bias"))


def _mamba2(keys: Keys, hidden: int) -> Mamba2:
    heads, width = keys.size("num_heads", 128, names=("num_heads",)), keys.size("head_dim", 64, names=("head_dim",))
    inner = _expanded(keys, hidden)
    if heads * width != inner:
        raise keys.conflict(f"num_heads {heads} x head_dim {width} is not expand x hidden_size = {inner}")
    if not keys.flag("rms_norm", True):
        raise keys.refuse("rms_norm", "a mixer without its gated norm")
    return Mamba2(heads, width, keys.size("state_size", 128), keys.size("n_groups", 8), keys.size("conv_kernel", 4),
                  keys.flag("use_conv_bias", True), keys.flag("use_bias"))
