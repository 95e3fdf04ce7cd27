"""MiniCPM: Llama's block with tied tables (MiniCPM-1, 2) and latent attention with tied tables (MiniCPM-3).

Source: transformers MiniCPM3Config and modelling code; MiniCPMConfig (remote code, tied by the base default of its time).
"""
from roofkit.architectures.building import FULL, decoder, heads, plain, windowed
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys
from roofkit.architectures.mixers import MLA

MODEL_TYPES = ("minicpm", "minicpm3")


def read(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    keys.note("dim_model_base", "scale_emb", "scale_depth", "mup_denominator")
    mixer = _latent(keys, hidden) if keys.model_type == "minicpm3" else windowed(keys, None, **heads(keys, hidden))(FULL)
    return decoder(keys, "minicpm", plain(keys, layers, mixer, Dense(keys.size("intermediate_size"), bias=keys.flag("mlp_bias"))),
                   tied=keys.tied(True), vocab=keys.size("vocab_size"), hidden=hidden)


def _latent(keys: Keys, hidden: int) -> MLA:
    keys.note("head_dim", "num_key_value_heads", "qk_head_dim")
    if keys.flag("attention_bias"):
        raise keys.refuse("attention_bias", "biases in latent attention")
    n = keys.size("num_attention_heads")
    v = keys.size("v_head_dim", None)
    if v is None:
        if hidden % n:
            raise keys.conflict(f"hidden_size {hidden} is not divisible by {n} heads and v_head_dim is absent; add v_head_dim")
        v = hidden // n
    return MLA(n, keys.size("q_lora_rank"), keys.size("kv_lora_rank"), keys.size("qk_nope_head_dim"), keys.size("qk_rope_head_dim"), v)
