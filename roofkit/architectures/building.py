"""Building: the steps that families share, from keys to an Architecture. Room: architectures."""
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from roofkit.architectures.architecture import Architecture, LayerGroup
from roofkit.architectures.counting import layer_params
from roofkit.architectures.feed_forward import Dense, FeedForward, MoE
from roofkit.architectures.keys import REQUIRED, Keys
from roofkit.architectures.mixers import MLA, Attention, Indexer, Mixer

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
NORM_PARAMS = {"rms": 1, "layer": 2, "layer_no_bias": 1, "unit": 0}  # weights per channel of one norm


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer before equal layers are grouped; `norms` counts norms over the hidden width."""

    mixer: Mixer
    ffn: FeedForward
    norms: int = 2
    extra_params: int = 0


def group_layers(layers: Iterable[Layer], norm_width: int) -> tuple[LayerGroup, ...]:
    """Equal layers -> groups, in order of first appearance; `norm_width` = parameters of one norm."""
    positions: dict[Layer, list[int]] = {}
    for i, layer in enumerate(layers):
        positions.setdefault(layer, []).append(i)
    return tuple(LayerGroup(tuple(at), x.mixer, x.ffn, x.norms, x.norms * norm_width, x.extra_params) for x, at in positions.items())


def decoder(keys: Keys, family: str, layers: list[Layer], *, tied: bool, vocab: int, hidden: int, norm: str = "rms",
            final_norms: int = 1, embed_rows: int | None = None, embed_width: int | None = None, other_params: int = 0,
            head_bias: bool = False, mtp: list[Layer] | None = None, mtp_extra: int = 0, **facts) -> Architecture:
    """An Architecture from its layers; `norm` is a key of NORM_PARAMS.

    embed_rows, embed_width   input table where it differs from vocab x hidden
    other_params              parameters outside the layers besides the final norm
    mtp, mtp_extra            draft layers and their parameters besides the block itself (projection, norms, copies)
    """
    per_norm = NORM_PARAMS[norm] * hidden
    width = hidden if embed_width is None else embed_width
    draft = group_layers(mtp or (), per_norm)
    assert len(draft) < 2, "draft layers of one model are equal"
    arch = Architecture(
        name=keys.model_type, family=family, model_type=keys.model_type, hidden=hidden, vocab=vocab,
        groups=group_layers(layers, per_norm), tied=tied, embed_params=(vocab if embed_rows is None else embed_rows) * width,
        head_params=0 if tied else vocab * width, other_params=final_norms * per_norm + other_params,
        head_bias=vocab if head_bias else 0, max_context=keys.max_context(),
        mtp=LayerGroup(tuple(range(len(layers), len(layers) + len(mtp))), draft[0].mixer, draft[0].ffn, draft[0].n_norms,
                       draft[0].norm_params, draft[0].extra_params) if draft else None,
        mtp_params=0, **facts)
    if not draft:
        return arch
    return replace(arch, mtp_params=len(mtp) * layer_params(arch.mtp, hidden) + mtp_extra)


# ---- pieces that many families read alike ---------------------------------------------------------------------------


def heads(keys: Keys, hidden: int, *, head_dim: int | None = None, kv_default: int | None = None, heads_default=None) -> dict:
    """n_heads, n_kv_heads, head_dim of ordinary attention.

    head_dim     class default when the key is absent; None = hidden / heads, which must divide
    kv_default   class default of absent kv heads; None = equal to heads; a null key always means equal to heads
    """
    n = keys.size("num_attention_heads", REQUIRED if heads_default is None or not keys.nested else heads_default)
    written = any(keys.has(k) for k in ("num_key_value_heads", "num_kv_heads", "n_head_kv"))
    kv = keys.size("num_key_value_heads", n if written or kv_default is None else kv_default)
    width = keys.size("head_dim", head_dim)
    if width is None:
        if hidden % n:
            raise keys.conflict(f"hidden_size {hidden} is not divisible by {n} heads and head_dim is absent; add head_dim")
        width = hidden // n
    if n % kv:
        raise keys.conflict(f"num_attention_heads {n} is not divisible by num_key_value_heads {kv}")
    return {"n_heads": n, "n_kv_heads": kv, "head_dim": width}


def active_window(keys: Keys, window: int | None) -> int | None:
    """A window at least as long as the longest context is full attention: None."""
    longest = keys.max_context()
    return None if window is None or (longest is not None and window >= longest) else window


def layer_kinds(keys: Keys, n_layers: int, allowed: tuple[str, ...] = (FULL, SLIDING)) -> list[str] | None:
    """layer_types of the config, checked against the kinds that the family has; None when absent."""
    kinds = keys.items("layer_types", str, n_layers)
    for kind in kinds or ():
        if kind not in allowed:
            raise keys.bad("layer_types", kind, f"is not a layer kind of this family; known: {', '.join(allowed)}")
    return kinds


def every(n_layers: int, period: int, kind: str = FULL, other: str = SLIDING) -> list[str]:
    """Layers `period`-1, 2 x `period`-1, ... are `kind`, the rest `other`."""
    return [kind if (i + 1) % period == 0 else other for i in range(n_layers)]


def read_mla(keys: Keys, indexer: Indexer | None = None) -> MLA:
    """Multi-head latent attention; head_dim and kv heads are other things here and are ignored.

    attention_bias adds a bias to the down projections and to o_proj. Source: DeepSeek-V2/V3 published modelling code.
    """
    keys.note("head_dim", "num_key_value_heads", "qk_head_dim")
    hidden = keys.size("hidden_size")
    if not keys.has("q_lora_rank"):
        raise keys.missing(("q_lora_rank",))  # null means a direct projection, absent a class default that varies
    q_rank = keys.size("q_lora_rank", None)
    rank, rope = keys.size("kv_lora_rank"), keys.size("qk_rope_head_dim", least=0)
    bias = (q_rank or 0) + rank + rope + hidden if keys.flag("attention_bias") else 0
    return MLA(keys.size("num_attention_heads"), q_rank, rank, keys.size("qk_nope_head_dim"), rope, keys.size("v_head_dim"), indexer, bias)


def moe_layers(keys: Keys, n_layers: int, first_dense: int) -> list[bool]:
    """Which layers are MoE: after a dense prefix, every moe_layer_freq-th (or where a list of 0/1 says so)."""
    freq = keys.raw("moe_layer_freq")
    if isinstance(freq, list):
        marks = keys.items("moe_layer_freq", int, n_layers)
        if marks is None or any(m not in (0, 1) for m in marks):
            raise keys.bad("moe_layer_freq", freq, "must be a number or a list of 0 and 1, one per layer")
        if first_dense and any(marks[:first_dense]):
            raise keys.conflict(f"first_k_dense_replace {first_dense} and moe_layer_freq disagree about the first layers")
        return [m == 1 for m in marks]
    step = keys.size("moe_layer_freq", 1)
    if first_dense > n_layers:
        raise keys.conflict(f"first_k_dense_replace {first_dense} exceeds num_hidden_layers {n_layers}")
    return [i >= first_dense and i % step == 0 for i in range(n_layers)]


def check_top_k(keys: Keys, n_experts: int, top_k: int) -> None:
    if top_k > n_experts:
        raise keys.conflict(f"{top_k} experts per token of {n_experts} experts; one of the two is wrong")


def read_moe(keys: Keys, width: int, **over) -> MoE:
    """Experts with `width` inner channels each, counts and top_k under any spelling."""
    n, k = keys.size("num_experts"), keys.size("num_experts_per_tok")
    check_top_k(keys, n, k)
    return MoE(n, k, width, **over)


def plain(keys: Keys, n_layers: int, mixer: Callable[[str], Mixer] | Mixer, ffn, kinds: list[str] | None = None, norms: int = 2,
          extra_params: int = 0) -> list[Layer]:
    """Layers with one feed-forward (or one per layer as list) and a mixer, one per kind when `kinds` is given."""
    made = []
    for i in range(n_layers):
        made.append(Layer(mixer(kinds[i]) if callable(mixer) else mixer, ffn[i] if isinstance(ffn, list) else ffn, norms, extra_params))
    return made


def windowed(keys: Keys, window: int | None, **fields) -> Callable[[str], Attention]:
    """kind -> attention: sliding and chunked kinds get the window, the full kind none."""
    window = active_window(keys, window)

    def make(kind: str) -> Attention:
        return Attention(**fields, window=None if kind == FULL else window, chunked=kind == CHUNKED and window is not None)
    return make


def dense(keys: Keys, **over) -> Dense:
    return Dense(keys.size("intermediate_size"), **over)
