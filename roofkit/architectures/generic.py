"""Generic: an unknown but ordinary model_type -> Architecture with confidence "generic", or a refusal. Room: architectures.

Assumes Llama's block: RMSNorm twice, gated feed-forward, rotary attention. On 135 published files read as if every
model_type were unknown, this rule answered 59, all within 0.1 % (differences: biases, unannounced norms).
"""
from dataclasses import replace

from roofkit.architectures.building import (CHUNKED, FULL, SLIDING, check_top_k, decoder, heads, layer_kinds, moe_layers, plain,
                                            windowed)
from roofkit.architectures.feed_forward import Dense, MoE
from roofkit.architectures.keys import Keys

ASSUMED = ("model_type is not known: Llama's block is assumed (gated feed-forward, two RMSNorms a layer, rotary attention)",)


def read(keys: Keys):
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    vocab, tied = keys.size("vocab_size"), keys.tied(None)
    act = keys.text("hidden_act")
    if act not in ("silu", "swish"):
        raise keys.bad("hidden_act", act, "is not silu: whether the feed-forward is gated cannot be told, so roofkit refuses")
    notes = list(ASSUMED)
    bias = keys.flag("attention_bias")
    if bias:
        notes.append("attention_bias is ambiguous: biases on q, k and v are counted, none on o")
    window, kinds = _window(keys, layers)
    mixer = windowed(keys, window, **heads(keys, hidden), qkv_bias=bias)
    ffns = _feed_forwards(keys, layers, notes)
    arch = decoder(keys, keys.model_type, plain(keys, layers, mixer, ffns, kinds), tied=tied, vocab=vocab, hidden=hidden)
    if keys.size("num_nextn_predict_layers", 0, least=0):
        notes.append("multi-token-prediction layers are in the checkpoint and not counted")
    return replace(arch, confidence="generic", assumptions=tuple(notes))


def _window(keys: Keys, layers: int) -> tuple[int | None, list[str]]:
    window = keys.tokens("sliding_window")
    chunk = keys.tokens("attention_chunk_size")
    if not keys.flag("use_sliding_window", True):
        window = None
    if window is not None and chunk is not None:
        raise keys.conflict(f"sliding_window {window} and attention_chunk_size {chunk} are both set")
    kinds = layer_kinds(keys, layers, (FULL, SLIDING, CHUNKED))
    limit = window if window is not None else chunk
    if kinds is None:
        return limit, [FULL if limit is None else SLIDING if chunk is None else CHUNKED] * layers
    if limit is None and any(k != FULL for k in kinds):
        raise keys.conflict("layer_types names windowed layers but neither sliding_window nor attention_chunk_size is set")
    return limit, kinds


def _feed_forwards(keys: Keys, layers: int, notes: list[str]) -> list:
    experts = keys.size("num_experts", 0, least=0)
    if experts <= 1:
        return [Dense(keys.size("intermediate_size"))] * layers
    top_k = keys.size("num_experts_per_tok")
    check_top_k(keys, experts, top_k)
    width = keys.size("moe_intermediate_size", None) or keys.size("intermediate_size")
    shared_width = keys.size("shared_expert_intermediate_size", 0, least=0)
    shared = shared_width or keys.size("n_shared_experts", 0, least=0) * width
    if shared:
        notes.append("shared experts are counted without a gate")
    moe = MoE(experts, top_k, width, shared_width=shared)
    first = keys.size("first_k_dense_replace", 0, least=0)
    is_moe = moe_layers(keys, layers, first)
    other = None if all(is_moe) else Dense(keys.size("intermediate_size"))
    for name in ("decoder_sparse_step", "mlp_only_layers", "moe_layer_start_index", "moe_layer_interval", "moe_layers", "mlp_layer_types",
                 "expert_layer_period"):
        if keys.raw(name) not in (None, 1, []):
            raise keys.refuse(name, "a schedule of experts")
    keys.note("intermediate_size")
    return [moe if m else other for m in is_moe]
