"""Attention blocks: GQA and MLA mixers -> ops of one rank. Room: ops.

GQA: fused qkv product, optional q/k norms, rope with the cache write, attention, output product. KV heads are
replicated when tp exceeds them. MLA decodes with its up-projections absorbed (one shared latent head of
kv_lora_rank + qk_rope elements) and prefills plain (keys and values up-projected). Source: DeepSeek-V2, arXiv 2405.04434.
"""
from roofkit.architectures.architecture import MLA, Attention
from roofkit.architectures.counting import kv_elements
from roofkit.errors import PlanError
from roofkit.ops import kinds
from roofkit.ops.kinds import Elementwise, Gemm, Op
from roofkit.ops.site import Part, Site, split


def kv_heads_per_rank(mixer: Attention, tp: int) -> int:
    """KV heads one rank holds: n_kv_heads / tp, or one replicated head when tp is larger. Raises PlanError otherwise."""
    kv = mixer.n_kv_heads
    if kv % tp == 0:
        return kv // tp
    if tp % kv == 0:
        return 1
    good = [w for w in (1, 2, 4, 8, 16, 32, 64) if (kv % w == 0 or w % kv == 0) and mixer.n_heads % w == 0]
    raise PlanError(f"{kv} key/value heads cannot be split or replicated over tp={tp} ranks; sizes that work: {', '.join(map(str, good))}")


def gqa_ops(mixer: Attention, site: Site) -> list[Op]:
    """Ops of a softmax-attention mixer, norms and collectives excluded."""
    tp, hd, vd, t, c = site.plan.tp, mixer.head_dim, mixer.value_dim, site.tokens, site.count
    heads = split(mixer.n_heads, tp, "query heads")
    kv = 0 if mixer.kv != "own" else kv_heads_per_rank(mixer, tp)
    cached_heads = max(kv, kv_heads_per_rank(mixer, tp))
    q_width, kv_width = heads * hd * (2 if mixer.output_gate else 1), kv * (hd if mixer.k_eq_v else hd + vd)
    ops: list[Op] = [Gemm("qkv_proj" if kv else "q_proj", "projections", t, site.d, q_width + kv_width, site.linear("mixer"), c)]
    if mixer.qk_norm != "none":
        ops.append(_pass("qk_norm", t, (heads + kv) * hd, (heads + kv) * hd, site, flops=4.0))
    cache_el = site.plan.kv_bytes_per_el / site.act_bytes
    ops.append(_pass("rope_kv_write", t, (heads + kv) * hd + kv * vd, (heads + kv) * hd + kv * (hd + vd) * cache_el, site, flops=3.0))
    if mixer.kv != "cross":
        ops += [_attention(mixer, site, p, heads, cached_heads) for p in site.parts]
    if mixer.output_gate:
        ops.append(_pass("attention_gate", t, 2 * heads * vd, heads * vd, site, flops=4.0, category="attention"))
    ops.append(Gemm("o_proj", "projections", t, heads * vd, site.d, site.linear("mixer"), c))
    return ops


def _attention(mixer: Attention, site: Site, part: Part, heads: int, kv: int) -> kinds.Attention:
    name = "attention" if mixer.window is None else f"attention_window_{mixer.window}"
    return kinds.Attention(site.name(name, part), "attention", part.phase, part.batch, part.q, part.kv, heads, kv,
                           mixer.head_dim, mixer.value_dim, mixer.head_dim + mixer.value_dim, site.plan.kv_bytes_per_el, site.plan.kv,
                           site.math, mixer.window, count=site.count)


def _pass(name: str, rows, read: float, written: float, site: Site, flops: float = 1.0, category: str = "norm_elementwise") -> Elementwise:
    return Elementwise(name, category, rows, read, written, flops * read, site.act_bytes, site.count)


def mla_ops(mixer: MLA, site: Site) -> list[Op]:
    """Ops of multi-head latent attention; the down-projections and the latent cache are replicated over tp ranks."""
    t, c, lin = site.tokens, site.count, site.linear("mixer")
    heads = split(mixer.n_heads, site.plan.tp, "query heads")
    r, rope, nope, v, q_lora = mixer.kv_lora_rank, mixer.qk_rope_head_dim, mixer.qk_nope_head_dim, mixer.v_head_dim, mixer.q_lora_rank
    if q_lora:
        ops: list[Op] = [Gemm("qkv_a_proj", "projections", t, site.d, q_lora + r + rope, lin, c),
                         _pass("latent_norm", t, q_lora + r, q_lora + r, site, flops=4.0),
                         Gemm("q_b_proj", "projections", t, q_lora, heads * (nope + rope), lin, c)]
    else:
        ops = [Gemm("q_proj", "projections", t, site.d, heads * (nope + rope), lin, c),
               Gemm("kv_a_proj", "projections", t, site.d, r + rope, lin, c),
               _pass("latent_norm", t, r, r, site, flops=4.0)]
    cache_el = site.plan.kv_bytes_per_el / site.act_bytes
    width = heads * rope + r + rope
    ops.append(_pass("rope_kv_write", t, width, heads * rope + (r + rope) * cache_el, site, flops=3.0))
    if mixer.indexer and not mixer.indexer.shared:
        ops += _indexer_ops(mixer, site)
    for part in site.parts:
        ops += (_absorbed if part.phase == "decode" else _plain)(mixer, site, part, heads)
    ops.append(Gemm("o_proj", "projections", t, heads * v, site.d, lin, c))
    return ops


def _absorbed(mixer: MLA, site: Site, part: Part, heads: int) -> list[Op]:
    r, rope, c = mixer.kv_lora_rank, mixer.qk_rope_head_dim, site.count
    return [
        Gemm("absorb_q", "attention", part.tokens, mixer.qk_nope_head_dim, r, site.wide, c, batch=heads),
        kinds.Attention(site.name("attention", part), "attention", part.phase, part.batch, part.q, part.kv, heads, 1, r + rope, r,
                        r + rope, site.plan.kv_bytes_per_el, site.plan.kv, site.math, select=_top_k(mixer), latent=True, count=c),
        Gemm("absorb_v", "attention", part.tokens, r, mixer.v_head_dim, site.wide, c, batch=heads)]


def _plain(mixer: MLA, site: Site, part: Part, heads: int) -> list[Op]:
    r, rope, nope, v, c = mixer.kv_lora_rank, mixer.qk_rope_head_dim, mixer.qk_nope_head_dim, mixer.v_head_dim, site.count
    return [
        Gemm("kv_b_proj", "projections", part.batch * part.kv, r, heads * (nope + v), site.wide, c),
        kinds.Attention(site.name("attention", part), "attention", part.phase, part.batch, part.q, part.kv, heads, heads, nope + rope, v,
                        nope + rope + v, site.act_bytes, site.math, site.math, select=_top_k(mixer), latent=True, count=c)]


def _top_k(mixer: MLA) -> int | None:
    return mixer.indexer.top_k if mixer.indexer else None


def _indexer_ops(mixer: MLA, site: Site) -> list[Op]:
    """DeepSeek sparse attention's scorer: q, k and head-weight products, then one score per (query, cached token)."""
    ix, t, c = mixer.indexer, site.tokens, site.count
    width_in = mixer.q_lora_rank or site.d
    ops: list[Op] = [Gemm("indexer_q", "attention", t, width_in, ix.n_heads * ix.head_dim, site.linear("mixer"), c),
                     Gemm("indexer_k", "attention", t, site.d, ix.head_dim + ix.n_heads, site.linear("mixer"), c)]
    for part in site.parts:
        ops.append(kinds.Attention(site.name("indexer_scores", part), "attention", part.phase, part.batch, part.q, part.kv, ix.n_heads, 1,
                                   ix.head_dim, 0, ix.head_dim, site.plan.kv_bytes_per_el, site.plan.kv, site.math, latent=True, count=c))
    return ops


def cache_elements_per_token(mixer, tp: int) -> float:
    """Elements one token adds to the cache of one rank in one layer of this mixer [elements]; latents are replicated."""
    whole = kv_elements(mixer)
    return whole * kv_heads_per_rank(mixer, tp) / mixer.n_kv_heads if isinstance(mixer, Attention) and whole else float(whole)
