"""Recurrent blocks: state-space, linear-attention and short-convolution mixers -> ops of one rank. Room: ops.

Each has products around a scan whose state is read and written once per call and sequence: constant memory, no cache
per token. FLOPs of the scan count the recurrence itself (2 per multiply-add); a chunked prefill kernel does the same
work as products inside chunks. Sources: Mamba arXiv 2312.00752; Mamba-2 arXiv 2405.21060; gated delta net arXiv
2412.06464; lightning attention arXiv 2401.04658.
"""
from roofkit.architectures.architecture import GatedDeltaNet, LightningAttention, Mamba1, Mamba2, ShortConv
from roofkit.ops.kinds import Elementwise, Gemm, Op, Scan
from roofkit.ops.site import Site, split


def _scans(site: Site, state: float, io: float, flops_per_token: float) -> list[Op]:
    return [Scan(site.name("scan", p), "attention", p.batch, p.q, state, io, flops_per_token, 4.0, site.act_bytes, site.math, site.count)
            for p in site.parts]


def _gemm(name: str, k: int, n: int, site: Site) -> Gemm:
    return Gemm(name, "projections", site.tokens, k, n, site.linear("mixer"), site.count)


def _convolution(site: Site, channels: float, kernel: int) -> list[Op]:
    """Depthwise convolution: kernel taps per channel; its last kernel inputs are the state."""
    return [Scan(site.name("conv", p), "attention", p.batch, p.q, channels * kernel, 2 * channels, 2.0 * kernel * channels,
                 site.act_bytes, site.act_bytes, site.math, site.count) for p in site.parts]


def _gated_norm(site: Site, width: float) -> Op:
    return Elementwise("gated_norm", "norm_elementwise", site.tokens, 2 * width, width, 8.0 * width, site.act_bytes, site.count)


def gated_delta_net_ops(mixer: GatedDeltaNet, site: Site) -> list[Op]:
    """q, k, v, gate and two per-head scalars; convolution; delta-rule scan; gated norm; output product."""
    tp = site.plan.tp
    k_heads, v_heads = split(mixer.n_k_heads, tp, "key heads"), split(mixer.n_v_heads, tp, "value heads")
    keys, values = k_heads * mixer.k_head_dim, v_heads * mixer.v_head_dim
    state = v_heads * mixer.k_head_dim * mixer.v_head_dim
    return [_gemm("in_proj_qkvz", site.d, 2 * keys + 2 * values, site), _gemm("in_proj_ba", site.d, 2 * v_heads, site),
            *_convolution(site, 2 * keys + values, mixer.conv_kernel), *_scans(site, state, 2 * keys + 2 * values, 7.0 * state),
            _gated_norm(site, values), _gemm("out_proj", values, site.d, site)]


def lightning_ops(mixer: LightningAttention, site: Site) -> list[Op]:
    """q, k, v; per-head decayed outer-product scan; norm; output gate; output product."""
    heads = split(mixer.n_heads, site.plan.tp, "heads")
    width, state = heads * mixer.head_dim, heads * mixer.head_dim**2
    return [_gemm("qkv_proj", site.d, 3 * width, site), *_scans(site, state, 4 * width, 5.0 * state), _gated_norm(site, width),
            _gemm("output_gate", site.d, width, site), _gemm("out_proj", width, site.d, site)]


def mamba2_ops(mixer: Mamba2, site: Site) -> list[Op]:
    """in_proj to z, x, B, C, dt; convolution over x, B, C; scan; gated norm; out_proj. B and C groups replicate below tp."""
    tp = site.plan.tp
    heads = split(mixer.n_heads, tp, "state-space heads")
    inner, groups = heads * mixer.head_dim, max(1, mixer.n_groups // tp)
    shared, state = 2 * groups * mixer.d_state, heads * mixer.head_dim * mixer.d_state
    return [_gemm("in_proj", site.d, 2 * inner + shared + heads, site), *_convolution(site, inner + shared, mixer.conv_kernel),
            *_scans(site, state, 2 * inner + shared + heads, 5.0 * state), _gated_norm(site, inner), _gemm("out_proj", inner, site.d, site)]


def mamba1_ops(mixer: Mamba1, site: Site) -> list[Op]:
    """in_proj to x and gate; convolution; x_proj to dt, B, C; dt_proj; selective scan; gate; out_proj."""
    inner = split(mixer.d_inner, site.plan.tp, "inner width")
    state = inner * mixer.d_state
    gate = Elementwise("gate", "norm_elementwise", site.tokens, 2 * inner, inner, 5.0 * inner, site.act_bytes, site.count)
    return [_gemm("in_proj", site.d, 2 * inner, site), *_convolution(site, inner, mixer.conv_kernel),
            _gemm("x_proj", inner, mixer.dt_rank + 2 * mixer.d_state, site), _gemm("dt_proj", mixer.dt_rank, inner, site),
            *_scans(site, state, 3 * inner + 2 * mixer.d_state, 9.0 * state), gate, _gemm("out_proj", inner, site.d, site)]


def short_conv_ops(mixer: ShortConv, site: Site) -> list[Op]:
    """in_proj to three streams, gated depthwise convolution, out_proj."""
    width = split(mixer.width, site.plan.tp, "convolution width")
    return [_gemm("in_proj", site.d, 3 * width, site), *_convolution(site, width, mixer.kernel),
            Elementwise("conv_gates", "norm_elementwise", site.tokens, 4 * width, 2 * width, 2.0 * width, site.act_bytes, site.count),
            _gemm("out_proj", width, site.d, site)]


def state_bytes_per_sequence(mixer, tp: int) -> float:
    """Recurrent state of one sequence on one rank in one layer [bytes]: scans in fp32, convolutions at 16 bit."""
    if isinstance(mixer, GatedDeltaNet):
        channels = 2 * mixer.n_k_heads * mixer.k_head_dim + mixer.n_v_heads * mixer.v_head_dim
        return (4.0 * mixer.n_v_heads * mixer.k_head_dim * mixer.v_head_dim + 2.0 * channels * mixer.conv_kernel) / tp
    if isinstance(mixer, LightningAttention):
        return 4.0 * mixer.n_heads * mixer.head_dim**2 / tp
    if isinstance(mixer, Mamba2):
        inner = mixer.n_heads * mixer.head_dim
        return (4.0 * inner * mixer.d_state + 2.0 * (inner + 2 * mixer.n_groups * mixer.d_state) * mixer.conv_kernel) / tp
    if isinstance(mixer, Mamba1):
        return (4.0 * mixer.d_inner * mixer.d_state + 2.0 * mixer.d_inner * mixer.conv_kernel) / tp
    if isinstance(mixer, ShortConv):
        return 2.0 * mixer.width * mixer.kernel / tp
    return 0.0
