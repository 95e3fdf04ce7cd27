"""Nemotron-H and Nemotron-3: every layer is one of Mamba-2, feed-forward, experts or attention, with one norm.

Source: transformers NemotronHConfig and modelling code; two spellings of the schedule, a string (M - E *) and a list.
The draft layers are not decomposed.
"""
from dataclasses import replace

from roofkit.architectures.building import Layer, check_top_k, decoder, heads
from roofkit.architectures.feed_forward import Dense, MoE
from roofkit.architectures.keys import Keys
from roofkit.architectures.mixers import Attention, Mamba2

MODEL_TYPES = ("nemotron_h",)
LETTERS = {"M": "mamba", "-": "mlp", "E": "moe", "*": "attention"}
KINDS = {"mamba": "mamba", "linear_attention": "mamba", "mlp": "mlp", "moe": "moe", "attention": "attention", "full_attention": "attention"}


def read(keys: Keys):
    hidden = keys.size("hidden_size")
    kinds = _schedule(keys)
    if keys.tokens("sliding_window") is not None:
        raise keys.refuse("sliding_window", "a window on its attention")
    made = {k: READERS[k](keys, hidden) for k in sorted(set(kinds))}
    keys.note("intermediate_size", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_shared_expert_intermediate_size",
              "n_shared_experts", "expand", "time_step_limit", "mamba_ssm_cache_dtype", "mamba_hidden_act", "moe_latent_size", "attention_head_dim",
              "attention_bias", "mlp_bias")
    keys.note(*(k for k in keys.data if k.startswith(("mamba_dt", "mtp_"))), "num_nextn_predict_layers", "rescale_prenorm_residual")
    arch = decoder(keys, "nemotron_h", [made[k] for k in kinds], tied=keys.tied(False), vocab=keys.size("vocab_size"), hidden=hidden)
    if keys.data.get("num_nextn_predict_layers"):
        return replace(arch, assumptions=("multi-token-prediction layers are in the checkpoint and not counted",))
    return arch


def _schedule(keys: Keys) -> list[str]:
    layers = keys.size("num_hidden_layers", None)
    pattern = keys.text("hybrid_override_pattern")
    listed = keys.items("layers_block_type", str) or keys.items("layer_types", str)
    keys.note("layer_types")
    if pattern is not None:
        unknown = set(pattern) - set(LETTERS)
        if unknown:
            raise keys.bad("hybrid_override_pattern", pattern, f"contains {sorted(unknown)[0]!r}; known: M - E *")
        found = [LETTERS[c] for c in pattern]
    elif listed is not None:
        unknown = set(listed) - set(KINDS)
        if unknown:
            raise keys.bad("layers_block_type", sorted(unknown)[0], f"is not a layer kind; known: {', '.join(KINDS)}")
        found = [KINDS[k] for k in listed]
    else:
        raise keys.missing(("hybrid_override_pattern", "layers_block_type", "layer_types"))
    if pattern is not None and listed is not None and [KINDS.get(k) for k in listed] != found:
        raise keys.conflict("hybrid_override_pattern and layers_block_type disagree; remove the wrong one")
    if layers is not None and layers != len(found) or not found or len(found) > 4096:
        raise keys.conflict(f"the layer pattern has {len(found)} layers, num_hidden_layers says {layers}")
    return found


def _mamba(keys: Keys, hidden: int) -> Layer:
    return Layer(Mamba2(keys.size("mamba_num_heads"), keys.size("mamba_head_dim"), keys.size("ssm_state_size"), keys.size("n_groups"),
                        keys.size("conv_kernel", 4), keys.flag("use_conv_bias", True), _proj_bias(keys)), None, 1)


def _proj_bias(keys: Keys) -> bool:
    if keys.flag("mamba_proj_bias") and not keys.flag("use_bias"):
        raise keys.refuse("mamba_proj_bias", "a bias that use_bias contradicts")
    return keys.flag("use_bias")


def _attention(keys: Keys, hidden: int) -> Layer:
    if keys.flag("attention_bias"):
        raise keys.refuse("attention_bias", "attention biases, which published classes disagree about")
    return Layer(Attention(**heads(keys, hidden, head_dim=128, kv_default=8), rope=False), None, 1)


def _mlp(keys: Keys, hidden: int) -> Layer:
    return Layer(None, Dense(keys.size("intermediate_size"), gated=False, bias=keys.flag("mlp_bias")), 1)


def _moe(keys: Keys, hidden: int) -> Layer:
    if keys.flag("mlp_bias"):
        raise keys.refuse("mlp_bias", "biases in the experts")
    n, k = keys.size("n_routed_experts"), keys.size("num_experts_per_tok")
    check_top_k(keys, n, k)
    shared = keys.size("moe_shared_expert_intermediate_size", least=0)
    if keys.size("n_shared_experts", 1, least=0) != 1:
        raise keys.refuse("n_shared_experts", "another number of shared experts than one")
    return Layer(None, MoE(n, k, keys.size("moe_intermediate_size"), shared_width=shared, gated=False, latent_width=keys.size("moe_latent_size", None)), 1)


READERS = {"mamba": _mamba, "attention": _attention, "mlp": _mlp, "moe": _moe}
