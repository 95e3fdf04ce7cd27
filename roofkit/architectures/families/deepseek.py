"""DeepSeek MoE, V2, V3, R1, V3.2, Kimi-K2 and GLM-5: latent attention, a dense prefix, routed and shared experts.

Source: transformers DeepseekV2Config, DeepseekV3Config, DeepseekV32Config, GlmMoeDsaConfig and modelling code; reports
arXiv 2405.04434, 2412.19437. The draft layer of V3 stores its own copies of both tables, GLM-5 does not.
"""
from roofkit.architectures.building import Layer, decoder, heads, moe_layers, read_mla, read_moe
from roofkit.architectures.feed_forward import Dense
from roofkit.architectures.keys import Keys
from roofkit.architectures.mixers import Attention, Indexer

MODEL_TYPES = ("deepseek", "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa")
FAMILY = {"kimi_k2": "kimi", "glm_moe_dsa": "glm"}


def read(keys: Keys):
    kind = keys.model_type
    hidden, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    vocab = keys.size("vocab_size")
    mixers = _mixers(keys, kind, hidden, layers)
    ffns = _feed_forwards(keys, layers)
    draft, extra = [], 0
    if kind not in ("deepseek", "deepseek_v2") and (count := keys.size("num_nextn_predict_layers", 0, least=0)):
        draft = [Layer(mixers[-1], ffns[-1])] * count
        copies = 0 if kind == "glm_moe_dsa" else 2 * vocab * hidden
        extra = count * (2 * hidden * hidden + 3 * hidden + copies)
    return decoder(keys, FAMILY.get(kind, "deepseek"), [Layer(m, f) for m, f in zip(mixers, ffns, strict=True)],
                   tied=keys.tied(False), vocab=vocab, hidden=hidden, mtp=draft, mtp_extra=extra)


def _mixers(keys: Keys, kind: str, hidden: int, layers: int) -> list:
    latent = kind != "deepseek" and keys.flag("use_mla", True) and (keys.has("kv_lora_rank") and keys.data["kv_lora_rank"] is not None)
    if not latent:
        if kind not in ("deepseek", "deepseek_v2"):
            keys.size("kv_lora_rank")  # required: raises when absent
            raise keys.refuse("use_mla", "attention without the latent")
        if kind == "deepseek_v2" and not keys.has("kv_lora_rank"):
            raise keys.missing(("kv_lora_rank",))
        keys.note("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")
        bias = keys.flag("attention_bias")
        return [Attention(**heads(keys, hidden), qkv_bias=bias, o_bias=bias)] * layers
    if kind not in ("deepseek_v32", "glm_moe_dsa"):
        return [read_mla(keys)] * layers
    scorer = (keys.size("index_n_heads"), keys.size("index_head_dim"), keys.size("index_topk"))
    if keys.size("q_lora_rank", None) is None:
        raise keys.refuse("q_lora_rank", "an indexer without query compression")
    for kind in keys.items("layer_types", str, layers) or ():
        if kind not in ("indexed_attention", "deepseek_sparse_attention", "full_attention"):
            raise keys.bad("layer_types", kind, "is not a layer kind of sparse latent attention")
    kinds = _indexer_kinds(keys, layers)
    for k in kinds:
        if k not in ("full", "shared"):
            raise keys.bad("indexer_types", k, "is not a kind of indexer; known: full, shared")
    if kinds[0] != "full":
        raise keys.conflict("indexer_types starts with a shared indexer, which has no earlier layer to share with")
    return [read_mla(keys, Indexer(*scorer, shared=k == "shared")) for k in kinds]


def _indexer_kinds(keys: Keys, layers: int) -> list[str]:
    """Layers with an indexer of their own ("full") and layers that reuse the last choice ("shared")."""
    kinds = keys.items("indexer_types", str, layers)
    pattern = keys.raw("index_topk_pattern")
    if kinds is None and pattern is not None:
        if not isinstance(pattern, (str, list)) or len(pattern) != layers:
            raise keys.bad("index_topk_pattern", pattern, f"must have one entry for each of {layers} layers")
        kinds = [{"F": "full", "S": "shared"}.get(c, c) for c in pattern]
    if kinds is None:
        freq, offset = keys.size("index_topk_freq", 1), keys.size("index_skip_topk_offset", 2, least=0)
        kinds = ["full" if max(i - offset + 1, 0) % freq == 0 else "shared" for i in range(layers)]
    keys.note("index_topk_freq", "index_skip_topk_offset")
    return kinds


def _feed_forwards(keys: Keys, layers: int) -> list:
    if keys.model_type in ("deepseek", "deepseek_v2") and keys.raw("n_routed_experts") is None and not keys.raw("num_experts"):
        return [Dense(keys.size("intermediate_size"))] * layers
    first = keys.size("first_k_dense_replace", 0, least=0)
    width = keys.size("moe_intermediate_size")
    shared = keys.size("n_shared_experts", 0, least=0)
    is_moe = _sparse(keys, layers, first)
    moe = read_moe(keys, width, shared_width=shared * width)
    dense = None if all(is_moe) else Dense(keys.size("intermediate_size"))
    keys.note("intermediate_size")
    return [moe if m else dense for m in is_moe]


def _sparse(keys: Keys, layers: int, first: int) -> list[bool]:
    if not isinstance(keys.raw("moe_layer_freq"), list) and keys.size("moe_layer_freq", 1) != 1:
        raise keys.refuse("moe_layer_freq", "a schedule of experts that published classes disagree about")
    kinds = keys.items("mlp_layer_types", str, layers)
    by_prefix = moe_layers(keys, layers, first)
    if kinds is None:
        return by_prefix
    for k in kinds:
        if k not in ("dense", "sparse"):
            raise keys.bad("mlp_layer_types", k, "is not a feed-forward kind; known: dense, sparse")
    found = [k == "sparse" for k in kinds]
    if keys.data.get("first_k_dense_replace") is not None and found != by_prefix:
        raise keys.conflict("mlp_layer_types and first_k_dense_replace disagree; remove the wrong one")
    return found
