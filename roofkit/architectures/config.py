"""Config: a config.json dictionary -> Architecture, exactly, or a refusal that names what is not understood. Room: architectures.

Order: find the text dictionary; read it with the family of its model_type (families/*.py); else answer the ordinary case
generically (generic.py); then refuse if a key that would change the structure was read by nobody. Data only: `auto_map`,
which names remote code, is never followed.
"""
import importlib
import json
import pkgutil
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from roofkit.architectures import families, generic, towers
from roofkit.architectures.architecture import Architecture
from roofkit.architectures.keys import Keys, is_set, shown
from roofkit.architectures.quantization_config import collapse_layers, read_quantization
from roofkit.errors import ConfigError, MissingKeyError, UnsupportedArchitectureError

MAX_BYTES = 8 * 2**20  # the longest real files (4-bit exclusion lists) have about 2 MB
MAX_DEPTH, MAX_NODES = 32, 120_000
TEXT_KEYS = ("text_config", "language_config", "llm_config")
ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert", "albert", "electra", "deberta", "deberta-v2", "modernbert", "nomic_bert",
            "new", "esm", "vit", "clip", "siglip", "wav2vec2", "hubert", "layoutlm", "mpnet", "camembert", "neobert")
ENCODER_DECODERS = ("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "whisper", "m2m_100", "blenderbot", "led", "longt5",
                    "prophetnet", "switch_transformers", "seamless_m4t", "speech_to_text", "t5gemma", "florence2", "encoder-decoder")
NOT_MODELLED = {  # model types whose structure is known to be outside the model: a sentence instead of a generic answer
    "afmoe": "gated attention", "doge": "dynamic masks and experts in product keys", "helium": "a square output projection",
    "hrm_text": "recurrent depth", "jetmoe": "a mixture of attention heads", "moshi": "audio codebooks", "phi4_multimodal": "adapters for each modality",
    "phi4mm": "adapters for each modality",
    "step3_text": "attention with factorised queries", "step3p5": "heads that vary by layer", "step3p7": "heads that vary by layer",
    "minimax_m3": "block-sparse attention", "minimax_m3_vl": "block-sparse attention", "bailing_hybrid": "linear attention in groups",
    "deepseek_v4": "compressed and hash-routed attention", "kimi_k3": "a layout without a published reference",
    "arctic": "a dense feed-forward beside the experts", "snowflake_arctic": "a dense feed-forward beside the experts",
    "longcat_flash": "zero-computation experts and two attention blocks a layer", "rwkv": "a recurrent mixer without a description here",
    "rwkv5": "a recurrent mixer without a description here", "rwkv6": "a recurrent mixer without a description here",
    "rwkv7": "a recurrent mixer without a description here", "zamba": "blocks shared between layers", "zamba2": "blocks shared between layers",
    "xlnet": "permutation attention", "recurrent_gemma": "a gated linear recurrence", "dots_vlm": "an unverified layout"}
STRUCTURE_KEYS = (  # set and read by nobody: the model is not what the reader thinks
    "is_encoder_decoder", "kv_lora_rank", "q_lora_rank", "index_topk", "compress_ratios", "o_lora_rank", "o_groups", "hc_mult", "state_size",
    "ssm_state_size", "attn_type_list", "hybrid_override_pattern", "hybrid_layer_pattern", "layers_block_type", "block_configs",
    "conv_L_cache", "layer_types", "cross_attention_layers", "num_kv_shared_layers", "hidden_size_per_layer_input", "laurel_rank",
    "attention_k_eq_v", "global_head_dim", "swa_head_dim", "multi_query", "new_decoder_architecture", "parallel_attn",
    "use_parallel_residual", "use_parallel_block", "attn_config", "ffn_config", "word_embed_proj_dim", "n_positions",
    "blocksparse_block_size", "moe_latent_size", "routed_expert_hidden_size", "interleave_moe_layer_step", "intermediate_size_mlp",
    "parallel_attn_mlp_res", "zero_expert_num", "num_loops", "attention_hidden_size", "per_layer_config", "num_attention_groups",
    "attention_other_setting", "moe_layers_enum", "use_head_wise_attn_gate", "sparse_attention_config", "layer_group_size", "attn_layer_indices",
    "ssm_cfg", "use_mla", "moe_every_n_layers", "num_dense_layers", "use_per_layer_embedding", "ngram_vocab_size_ratio", "oe_vocab_size_ratio", "expert_dtype", "use_cla", "cla_share_factor")
STRUCTURE_PREFIXES = ("mamba_", "linear_", "altup_")
HARMLESS = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype", "linear_attention_dtype")
WEIGHT_KEYS = (  # in a file of a known family: flags and sizes that would add weights its reader does not know of
    "attention_bias", "mlp_bias", "bias", "use_bias", "qkv_bias", "use_qkv_bias", "add_qkv_bias", "add_bias_linear", "use_qk_norm",
    "qk_layernorm", "qk_ln", "attn_output_gate", "lm_head_bias", "num_experts", "num_local_experts", "n_routed_experts",
    "moe_num_experts", "moe_intermediate_size", "n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size",
    "shared_intermediate_size", "first_k_dense_replace", "use_moe", "enable_moe_block", "v_head_dim", "num_global_key_value_heads")
SIZE_SUFFIXES, SIZE_PREFIXES = ("_size", "_dim", "_rank", "_heads"), ("num_", "n_")
NOT_SIZES = frozenset((  # look like sizes and change nothing that is counted
    "chunk_size", "chunk_size_feed_forward", "num_beams", "num_beam_groups", "num_return_sequences", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "num_logits_to_keep", "n_group", "n_special", "n_ctx", "num_labels", "rotary_dim", "ep_size",
    "context_window_size", "prefill_chunk_size", "cross_attention_hidden_size", "time_step_rank", "type_vocab_size",
    "vocab_size_per_layer_input", "num_hash_layers", "qk_head_dim", "num_expert_group", "num_experts_per_group",
    "num_expert_groups", "router_dim", "num_sink_tokens", "tensor_parallel_size", "num_hidden_groups"))


@lru_cache(maxsize=1)
def _registry() -> dict:
    """model_type -> family module; every module of families/ declares MODEL_TYPES and read(keys)."""
    found = {}
    for info in pkgutil.iter_modules(families.__path__):
        module = importlib.import_module(f"{families.__name__}.{info.name}")
        for model_type in module.MODEL_TYPES:
            assert model_type not in found, f"two families read {model_type}"
            found[model_type] = module
    return found


def known_model_types() -> list[str]:
    """The model_type values that have a reader, vision-language wrappers included."""
    return sorted({*_registry(), *towers.WRAPPERS})


def parse_text(text: str | bytes, where: str = "config") -> dict:
    """JSON text -> dictionary. Raises ConfigError when it is too long, no JSON, or no object; the text is never a path."""
    if not isinstance(text, (str, bytes)):
        raise ConfigError(f"{where}: {type(text).__name__} is no text; paste the contents of a config.json")
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{where}: {len(text)} characters are more than the {MAX_BYTES} that a config.json may have; paste config.json only")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid JSON ({shown(str(error), 120)}); paste the whole config.json, braces included") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: JSON holds a {type(data).__name__}, not an object; a config.json starts with {{")
    return data


def read_json_file(path: Path) -> dict:
    """A JSON object from a file, size capped. Raises ConfigError."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ConfigError(f"{path}: {size} bytes are more than the {MAX_BYTES} that a config.json may have")
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None
    return parse_text(text, str(path))


def check_tree(data: object, where: str = "config") -> None:
    """Refuses nesting deeper than MAX_DEPTH (cycles included), more than MAX_NODES entries, and keys that are no strings."""
    nodes, level = 0, [data]
    for _ in range(MAX_DEPTH):
        below: list = []
        for item in level:
            if isinstance(item, dict):
                if any(not isinstance(k, str) for k in item):
                    raise ConfigError(f"{where}: a key is not a string; a config.json has string keys only")
                below.extend(item.values())
            elif isinstance(item, (list, tuple)):
                below.extend(item)
            if len(below) > MAX_NODES:
                break
        nodes += len(below)
        if nodes > MAX_NODES:
            raise ConfigError(f"{where}: more than {MAX_NODES} entries; this is no config.json")
        level = [x for x in below if isinstance(x, (dict, list, tuple))]
        if not level:
            return
    raise ConfigError(f"{where}: nested deeper than {MAX_DEPTH} levels or in a cycle; this is no config.json")


def _text_part(data: dict) -> tuple[dict, dict | None, str | None]:
    """(text dictionary, outer file or None, key that held it)."""
    for key in TEXT_KEYS:
        inner = data.get(key)
        if inner is not None:
            if not isinstance(inner, dict):
                raise ConfigError(f"config of model_type {shown(data.get('model_type'))}, key {key!r}: value {shown(inner)} must be a dictionary")
            return inner, data, key
    return data, None, None


def _model_type(data: dict) -> str | None:
    value = data.get("model_type")
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > 100:
        raise UnsupportedArchitectureError(f"config key 'model_type': value {shown(value)} must be a string such as 'llama'")
    return value


def _reader(text: dict, outer: dict | None):
    """(model_type to read the text with, family module or None)."""
    own, wrapper = _model_type(text), None if outer is None else _model_type(outer)
    registry = _registry()
    if outer is not None and wrapper in towers.WRAPPERS:
        default, renames = towers.WRAPPERS[wrapper]
        own = renames.get(own, own) if own is not None else default
    elif outer is None and own in towers.WRAPPERS:
        default, renames = towers.WRAPPERS[own]
        own = own if own in registry else default  # flat file of a wrapper: text keys at top level
    if own is None:
        if outer is not None and wrapper in registry:
            own = wrapper
        else:
            raise MissingKeyError("config key 'model_type' is absent; it names the architecture (for example 'llama'): add it to the config")
    return own, registry.get(own)


def _refuse_encoders(model_type: str | None, data: dict) -> None:
    if data.get("is_encoder_decoder") is True or model_type in ENCODER_DECODERS:
        key = "is_encoder_decoder" if data.get("is_encoder_decoder") is True else "model_type"
        raise UnsupportedArchitectureError(f"config of model_type {model_type!r}, key {key!r}: value {shown(data.get(key))} is an "
                                           f"encoder-decoder; roofkit describes decoder-only language models")
    if model_type in ENCODERS:
        raise UnsupportedArchitectureError(f"config of model_type {model_type!r}, key 'model_type': value {model_type!r} is an encoder; "
                                           f"roofkit describes decoder-only language models")
    if model_type in NOT_MODELLED:
        raise UnsupportedArchitectureError(f"config of model_type {model_type!r}, key 'model_type': value {model_type!r} has "
                                           f"{NOT_MODELLED[model_type]}; roofkit refuses instead of guessing")


def _structure(name: str) -> bool:
    return name in STRUCTURE_KEYS or (name.startswith(STRUCTURE_PREFIXES) and name not in HARMLESS)


def _refuse_unread(keys: Keys, known: bool) -> None:
    """A structure key that is set and that no reader looked at: refuse."""
    for name, value in keys.data.items():
        if name not in keys.read and is_set(value) and (_structure(name) or (known and name in WEIGHT_KEYS)):
            raise keys.refuse(name, "a structure that the reader of this model_type does not know")


def _unread_sizes(keys: Keys) -> list[str]:
    return [name for name, value in keys.data.items()
            if name not in keys.read and name not in NOT_SIZES and not name.endswith(("_token_id", "_token_index"))
            and (name.endswith(SIZE_SUFFIXES) or name.startswith(SIZE_PREFIXES))
            and isinstance(value, (int, float, list)) and is_set(value)]


def _dtype(text: dict, outer: dict | None) -> str:
    for source in (text, outer or {}):
        value = source.get("torch_dtype") or source.get("dtype")
        if isinstance(value, str):
            return {"float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}.get(value.removeprefix("torch."), "bf16")
    return "bf16"


def read_config(data: dict, quant: dict | None = None, *, name: str | None = None, source: str = "", strict: bool = False,
                ignore_quantization: bool = False) -> Architecture:
    """A config.json dictionary -> Architecture.

    quant    contents of hf_quant_config.json beside it, None = absent
    ignore_quantization   count the weights at the file's 16 or 32 bit, whatever its quantisation section says
    strict   refuse keys that look like sizes and that no reader knows; otherwise they become an assumption

    Raises UnsupportedArchitectureError, MissingKeyError, ConflictingConfigError or UnsupportedQuantizationError; each
    text names model_type, key and value.
    """
    check_tree(data)
    text, outer, _ = _text_part(data)
    for part in (data, text):
        _refuse_encoders(_model_type(part), part)
    model_type, family = _reader(text, outer)
    keys = Keys(text, model_type, outer, must_say_tied=outer is not None and _model_type(outer) in towers.MUST_SAY_TIED)
    arch = family.read(keys) if family is not None else generic.read(keys)
    _refuse_unread(keys, family is not None)
    notes = list(arch.assumptions)
    if unread := _unread_sizes(keys):
        listed = ", ".join(f"{k}={shown(text[k], 30)}" for k in unread[:8])
        if strict:
            raise UnsupportedArchitectureError(f"config of model_type {model_type!r}, key {unread[0]!r}: value {shown(text[unread[0]])} looks like "
                                               f"a size and no reader knows it (strict=True); all: {listed}")
        notes.append(f"keys that look like sizes were not used: {listed}")
    vision, tower_note = towers.vision_params(data, text, arch)
    if tower_note:
        notes.append(tower_note)
    outer_type = _model_type(data) or model_type
    quantization = None
    if not ignore_quantization:
        quantization, quant_note = read_quantization(data, text, quant, outer_type)
        notes += [quant_note] if quant_note else []
        if quantization is not None:
            quantization = replace(quantization, excluded=collapse_layers(quantization.excluded, arch.n_layers))
    return replace(arch, name=name or arch.name, model_type=outer_type, source=source, dtype=_dtype(text, outer), vision_params=vision,
                   quantization=quantization, assumptions=tuple(notes))
