"""Towers: parameters of vision towers and their projectors, counted apart from the text model. Room: architectures.

Each count is the sum of tensor shapes of the published class; checked to the integer on the files of the test table.
A tower that is not described here leaves `vision_params` unknown (None): the text model stays exact.
Source: transformers modelling code of each class: Llama4VisionModel, MllamaVisionModel, SiglipVisionModel,
CLIPVisionModel, PixtralVisionModel, Qwen2 / 2.5 / 3 vision transformers, Gemma4VisionModel.
"""
from roofkit.architectures.keys import Keys, is_set

# outer model_type -> (text model_type where the file does not say, text spellings to rename)
WRAPPERS: dict[str, tuple[str, dict[str, str]]] = {
    "llava": ("llama", {}), "llava_next": ("llama", {}), "mistral3": ("mistral", {}), "mllama": ("mllama_text_model", {}),
    "llama4": ("llama4_text", {}), "gemma3": ("gemma3_text", {}), "gemma3n": ("gemma3n_text", {}), "gemma4": ("gemma4_text", {}),
    "qwen2_vl": ("qwen2_vl_text", {"qwen2_vl": "qwen2_vl_text"}), "qwen2_5_vl": ("qwen2_5_vl_text", {"qwen2_5_vl": "qwen2_5_vl_text"}),
    "qwen3_vl": ("qwen3_vl_text", {"qwen3": "qwen3_vl_text"}), "qwen3_vl_moe": ("qwen3_vl_moe_text", {"qwen3_moe": "qwen3_vl_moe_text"}),
    "qwen3_5": ("qwen3_5_text", {}), "qwen3_5_moe": ("qwen3_5_moe_text", {}), "kimi_k25": ("deepseek_v3", {}), "kimi_vl": ("deepseek_v3", {}),
    "deepseek_vl_v2": ("deepseek_v2", {}), "glm4v_moe": ("glm4v_moe_text", {}), "multi_modality": ("llama", {}),
}
MUST_SAY_TIED = ("mistral3", "kimi_k25", "kimi_vl")  # the outer class and the text class have different defaults
TOWER_KEYS = ("vision_config", "audio_config", "vision_tower", "img_processor", "embd_layer", "visual", "vit_config", "speech_config",
              "vision_tower_config", "sound_config", "mm_vision_tower")


def linear(n_in: int, n_out: int, bias: bool = True) -> int:
    """Parameters of one matrix with its bias [parameters]."""
    return n_in * n_out + (n_out if bias else 0)


def block(width: int, inner: int, *, attn_bias: bool = True, mlp_bias: bool = True, gated: bool = False, norm: int = 2) -> int:
    """One transformer layer of a tower: square attention, feed-forward, two norms of `norm` parameters per channel."""
    attention = 4 * linear(width, width, attn_bias)
    mlp = (2 if gated else 1) * linear(width, inner, mlp_bias) + linear(inner, width, mlp_bias)
    return attention + mlp + 2 * norm * width


def _merger(width: int, merge: int, out: int, norm_width: int) -> int:
    """Joins merge x merge patches: norm, two matrices."""
    joined = width * merge**2
    return norm_width + linear(joined, joined) + linear(joined, out)


def _qwen2_vl(v: Keys, text_width: int) -> int:
    width, out = v.size("embed_dim", 1280), v.size("hidden_size", 3584, names=("hidden_size",))
    patch = v.size("in_channels", 3, names=("in_channels", "in_chans")) * v.size("temporal_patch_size", 2) * v.size("patch_size", 14) ** 2 * width
    inner = int(width * v.number("mlp_ratio", 4.0))
    return patch + v.size("depth", 32) * block(width, inner) + _merger(width, v.size("spatial_merge_size", 2), out, 2 * width)


def _qwen2_5_vl(v: Keys, text_width: int) -> int:
    width = v.size("hidden_size", 3584 if "hidden_size" not in v.data else None, names=("hidden_size",))
    patch = v.size("in_channels", 3, names=("in_channels", "in_chans")) * v.size("temporal_patch_size", 2) * v.size("patch_size", 14) ** 2 * width
    layers = v.size("depth", 32) * block(width, v.size("intermediate_size", 3420, names=("intermediate_size",)), gated=True, norm=1)
    return patch + layers + _merger(width, v.size("spatial_merge_size", 2), v.size("out_hidden_size", 3584), width)


def _qwen3_vl(v: Keys, text_width: int) -> int:
    width, merge, out = v.size("hidden_size", 1152), v.size("spatial_merge_size", 2), v.size("out_hidden_size", 3584)
    patch = linear(v.size("in_channels", 3) * v.size("temporal_patch_size", 2) * v.size("patch_size", 16) ** 2, width)
    positions = v.size("num_position_embeddings", 2304) * width
    layers = v.size("depth", 27) * block(width, v.size("intermediate_size", 4304, names=("intermediate_size",)))
    deep = v.raw("deepstack_visual_indexes")
    n_deep = 0 if v.model_type.startswith("qwen3_5") else 3 if deep is None else len(v.items("deepstack_visual_indexes", int) or ())
    mergers = _merger(width, merge, out, 2 * width) + n_deep * _merger(width, merge, out, 2 * width * merge**2)
    return patch + positions + layers + mergers


def _llama4(v: Keys, text_width: int) -> int:
    width, patch = v.size("hidden_size", 768), v.size("patch_size", 14)
    patches = (v.size("image_size", 448) // patch) ** 2 + 1
    embed = v.size("num_channels", 3) * patch**2 * width + width + patches * width
    layers = v.size("num_hidden_layers", 34) * block(width, v.size("intermediate_size", 5632, names=("intermediate_size",)))
    p_in, p_out = v.size("projector_input_dim", 4096), v.size("projector_output_dim", 4096)
    adapter = v.size("intermediate_size", 5632, names=("intermediate_size",)) * p_in + p_out * p_out
    return embed + layers + 4 * width + adapter + v.size("vision_output_dim", 7680) * text_width


def _mllama(v: Keys, text_width: int) -> int:
    width, patch, tiles = v.size("hidden_size", 1280), v.size("patch_size", 14), v.size("max_num_tiles", 4)
    patches = (v.size("image_size", 448) // patch) ** 2 + 1
    ratios = len(v.items("supported_aspect_ratios", list) or [0] * 8) + 1
    inner = v.size("intermediate_size", 5120, names=("intermediate_size",))
    one = block(width, inner, attn_bias=False)
    n_global = v.size("num_global_layers", 8)
    layers = v.size("num_hidden_layers", 32) * one + n_global * (one + 2)
    embed = v.size("num_channels", 3) * patch**2 * width + width
    positions = 1 + patches * width + ratios * tiles * patches * width + 2 * (ratios * tiles * width + 1)
    return embed + positions + 4 * width + layers + linear(v.size("vision_output_dim", 7680), text_width)


def _clip(v: Keys) -> int:
    width, patch = v.size("hidden_size", 768), v.size("patch_size", 32)
    positions = (v.size("image_size", 224) // patch) ** 2 + 1
    embed = width + v.size("num_channels", 3) * patch**2 * width + positions * width
    layers = v.size("num_hidden_layers", 12) * block(width, v.size("intermediate_size", 3072, names=("intermediate_size",)))
    return embed + layers + 4 * width


def _siglip(v: Keys) -> int:
    if v.flag("vision_use_head", True):
        raise v.refuse("vision_use_head", "a pooling head")
    width, patch = v.size("hidden_size", 768), v.size("patch_size", 16)
    embed = linear(v.size("num_channels", 3) * patch**2, width) + (v.size("image_size", 224) // patch) ** 2 * width
    layers = v.size("num_hidden_layers", 12) * block(width, v.size("intermediate_size", 3072, names=("intermediate_size",)))
    return embed + layers + 2 * width


def _pixtral(v: Keys) -> int:
    width = v.size("hidden_size", 1024)
    embed = v.size("num_channels", 3) * v.size("patch_size", 16) ** 2 * width + width
    inner = v.size("intermediate_size", 4096, names=("intermediate_size",))
    return embed + v.size("num_hidden_layers", 24) * block(width, inner, attn_bias=False, mlp_bias=False, gated=True, norm=1)


def _llava(outer: Keys, v: Keys, text_width: int) -> int:
    tower = {"clip_vision_model": _clip, "siglip_vision_model": _siglip, "pixtral": _pixtral}.get(v.text("model_type", "clip_vision_model"))
    if tower is None or outer.model_type != "llava" or isinstance(outer.raw("vision_feature_layer"), list):
        raise v.refuse("model_type", "a tower of another kind")
    bias = outer.flag("multimodal_projector_bias", True)
    return tower(v) + linear(v.size("hidden_size", 768), text_width, bias) + linear(text_width, text_width, bias)


def _gemma3(outer: Keys, v: Keys, text_width: int) -> int:
    width = v.size("hidden_size", 768)
    return _siglip(v) + width * text_width + width


def _mistral3(outer: Keys, v: Keys, text_width: int) -> int:
    width, merge = v.size("hidden_size", 1024), outer.size("spatial_merge_size", 2)
    if isinstance(outer.raw("vision_feature_layer"), list):
        raise outer.refuse("vision_feature_layer", "several feature layers")
    bias = outer.flag("multimodal_projector_bias")
    return _pixtral(v) + width + merge**2 * width * width + linear(width, text_width, bias) + linear(text_width, text_width, bias)


def _gemma4(outer: Keys, v: Keys, text_width: int) -> int:
    width, inner = v.size("hidden_size", 768), v.size("intermediate_size", 3072, names=("intermediate_size",))
    h, kv, a = v.size("num_attention_heads", 12), v.size("num_key_value_heads", 12), v.size("head_dim", 64, names=("head_dim",))
    if v.flag("attention_bias"):
        raise v.refuse("attention_bias", "biases in the tower")
    layer = 2 * width * h * a + 2 * width * kv * a + 2 * a + 3 * width * inner + 4 * width
    embed = 3 * v.size("patch_size", 16) ** 2 * width + 2 * v.size("position_embedding_size", 10240) * width
    return embed + v.size("num_hidden_layers", 16) * layer + width * text_width


def _kimi_k25(outer: Keys, v: Keys, text_width: int) -> int:
    """Spellings of the published file (vt_...) and of the transformers class."""
    def size(*names: str) -> int:
        return v.size(names[0], names=names)
    width, merge = size("vt_hidden_size", "hidden_size"), v.items("merge_kernel_size", int) or [2, 2]
    inner, depth = size("vt_intermediate_size", "intermediate_size"), size("vt_num_hidden_layers", "num_hidden_layers")
    grid = size("init_pos_emb_height", "pos_emb_height") * size("init_pos_emb_width", "pos_emb_width")
    projected = v.size("mm_hidden_size", None) or outer.size("projection_hidden_size", width)
    if len(merge) != 2 or min(merge) < 1 or max(merge) > 64 or projected != width:
        raise v.refuse("merge_kernel_size", "a projector of another shape")
    joined = width * merge[0] * merge[1]
    patch = linear(3 * v.size("patch_size", 14) ** 2, width)
    return patch + grid * width + depth * block(width, inner) + 2 * width + 2 * projected + linear(joined, joined) + linear(joined, text_width)


def _alone(count):
    return lambda outer, v, text_width: count(v, text_width)


TOWERS = {"qwen2_vl": _alone(_qwen2_vl), "qwen2_5_vl": _alone(_qwen2_5_vl), "qwen3_vl": _alone(_qwen3_vl), "qwen3_vl_moe": _alone(_qwen3_vl),
          "qwen3_5": _alone(_qwen3_vl), "qwen3_5_moe": _alone(_qwen3_vl), "llama4": _alone(_llama4), "mllama": _alone(_mllama),
          "llava": _llava, "gemma3": _gemma3, "mistral3": _mistral3, "gemma4": _gemma4, "kimi_k25": _kimi_k25}


def vision_params(data: dict, text: dict, arch) -> tuple[int | None, str | None]:
    """(parameters of the towers of `data`, note); None = there is a tower that is not described here."""
    from roofkit.errors import ConfigError

    present = [k for part in ((data, text) if text is not data else (data,)) for k in TOWER_KEYS if is_set(part.get(k))]
    outer_type = data.get("model_type")
    if not present and not (text is not data and outer_type in TOWERS):
        return 0, None
    count = TOWERS.get(outer_type)
    try:
        if count is None or any(k != "vision_config" for k in present):
            raise ConfigError(f"key {present[0] if present else 'vision_config'!r}: a tower that roofkit does not describe")
        vision = data.get("vision_config")
        if not isinstance(vision, dict):
            raise ConfigError("key 'vision_config': must be a dictionary")
        return count(Keys(data, outer_type), Keys(vision, f"{outer_type}.vision_config" if outer_type not in ("qwen3_5", "qwen3_5_moe") else outer_type),
                     arch.hidden), None
    except ConfigError as error:
        return None, f"the vision or audio tower is not counted, total_params is unknown ({str(error)[:300]})"
