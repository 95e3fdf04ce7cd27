"""Feed-forward blocks: dense and mixture-of-experts -> ops of one rank. Room: ops.

MoE: the expected number of distinct experts that T tokens touch is E (1 - (1 - k/E)^T), exactly, for uniform routing of
k different experts per token: a given expert is missed by one token with probability 1 - k/E. Nothing is rounded.
With ep > tp tokens travel to their experts (all-to-all dispatch and combine over the expert group); with ep <= tp every
rank already has all tokens and the layer's all-reduce sums the experts' parts.
"""
import numpy as np

from roofkit.architectures.architecture import Dense, MoE
from roofkit.ops.kinds import Collective, Elementwise, Gemm, GroupedGemm, Num, Op
from roofkit.ops.site import Site, split


def distinct_experts(n_experts: float, top_k: int, tokens: Num) -> Num:
    """Expected experts that get at least one of `tokens` tokens, uniform routing [experts]. Exact, not floored."""
    return n_experts * -np.expm1(tokens * np.log1p(-min(top_k / n_experts, 1 - 1e-15)))


def ranks_reached(n_experts: Num, top_k: Num, ep: int) -> Num:
    """Expected ranks that hold at least one of a token's top_k different experts, uniform routing [ranks]. Exact: hypergeometric."""
    elsewhere, missed = np.asarray(n_experts * (1.0 - 1.0 / ep)), 1.0
    for i in range(int(np.max(top_k))):
        missed = missed * np.where(i < top_k, np.clip((elsewhere - i) / np.maximum(n_experts - i, 1), 0.0, 1.0), 1.0)
    return ep * (1.0 - missed)


def dense_ops(ffn: Dense, site: Site) -> list[Op]:
    """Gate and up fused into one product, activation, down."""
    return _mlp(ffn.width, ffn.gated, site, "ffn", "")


def _mlp(full_width: int, gated: bool, site: Site, category: str, prefix: str) -> list[Op]:
    formats = site.linear("shared" if prefix else "ffn")
    width = split(full_width, site.plan.tp, f"{prefix or 'feed-forward '}width".replace("_", " "))
    first = 2 * width if gated else width
    return [Gemm(f"{prefix}{'gate_up' if gated else 'up'}_proj", category, site.tokens, site.d, first, formats, site.count),
            Elementwise(f"{prefix}activation", "norm_elementwise", site.tokens, first, width, 5.0 * width, site.act_bytes, site.count),
            Gemm(f"{prefix}down_proj", category, site.tokens, width, site.d, formats, site.count)]


def moe_ops(ffn: MoE, site: Site) -> list[Op]:
    """Router, dispatch, routed experts, combine, shared expert, a dense feed-forward beside them."""
    t, c = site.tokens, site.count
    ops: list[Op] = [Gemm("router", "experts", t, site.d, ffn.n_experts, site.wide, c),
                     Elementwise("router_top_k", "norm_elementwise", t, ffn.n_experts, 2 * ffn.top_k, 4.0 * ffn.n_experts, 4.0, c)]
    width = ffn.latent_width or site.d
    if ffn.latent_width:
        ops.append(Gemm("latent_down", "experts", t, site.d, width, site.linear("ffn"), c))
    ops += _exchange("dispatch", ffn, site, width, site.linear("experts").act_bytes_per_el)
    ops.append(_routed(ffn, site, width))
    ops += _exchange("combine", ffn, site, width, site.act_bytes)
    if ffn.latent_width:
        ops.append(Gemm("latent_up", "experts", t, width, site.d, site.linear("ffn"), c))
    if ffn.shared_width:
        ops += _mlp(ffn.shared_width, ffn.gated, site, "experts", "shared_")
    if ffn.dense_width:
        ops += _mlp(ffn.dense_width, True, site, "ffn", "")
    if ffn.shared_gate:
        ops.append(Gemm("shared_gate", "experts", t, site.d, 1, site.wide, c))
    return ops


def _routed(ffn: MoE, site: Site, width: int) -> GroupedGemm:
    plan = site.plan
    local = split(ffn.n_experts, plan.ep, "routed experts")
    inter = split(ffn.expert_width, plan.expert_tp, "expert width")
    tokens = site.tokens * plan.expert_replicas
    return GroupedGemm("experts", "experts", tokens, tokens * ffn.top_k / plan.ep, distinct_experts(ffn.n_experts, ffn.top_k, tokens) / plan.ep,
                       local, ffn.n_experts, ffn.top_k, width, inter, 3 if ffn.gated else 2, site.linear("experts"), plan.ep, plan.expert_tp, site.count)


def _exchange(name: str, ffn: MoE, site: Site, width: int, bytes_per_el: float) -> list[Op]:
    """All-to-all between data-parallel replicas; each of tp ranks sends its share of the replica's tokens, a copy per expert.

    At the least a copy per rank reached must travel, since one can be duplicated there, and partial sums added there.
    """
    if site.plan.expert_replicas == 1:
        return []
    sent = site.tokens * ffn.top_k * width * bytes_per_el / site.plan.tp
    return [Collective(name, "collectives", "all_to_all", sent, site.plan.ep, "ep", count=site.count,
                       needed=float(ranks_reached(ffn.n_experts, ffn.top_k, site.plan.ep)) / ffn.top_k)]
