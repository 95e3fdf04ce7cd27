"""Feed-forwards: what a layer computes on each token alone. Room: architectures."""
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dense:
    """Dense feed-forward of inner width `width`: three matrices when gated (gate, up, down), else two.

    extra_params   parameters of this block that are none of the above (e.g. a learned activation)
    """

    width: int
    gated: bool = True
    bias: bool = False
    extra_params: int = 0


@dataclass(frozen=True, slots=True)
class MoE:
    """Mixture of experts: each token uses `top_k` of `n_experts`, plus the shared expert if there is one.

    expert_width   inner width of one routed expert
    shared_width   inner width of all shared experts together, 0 = none; always read
    shared_gate    a d-sized gate on the shared expert (Qwen2-MoE)
    gated, expert_bias, router_bias   three matrices per expert; biases in them; bias of the router (E parameters)
    latent_width   experts act on this narrower width between one down and one up projection (Nemotron-3)
    extra_params   parameters of this block that are none of the above
    dense_width    inner width of a gated dense feed-forward that runs beside the experts (Gemma-4), 0 = none; always read
    """

    n_experts: int
    top_k: int
    expert_width: int
    shared_width: int = 0
    shared_gate: bool = False
    gated: bool = True
    expert_bias: bool = False
    router_bias: bool = False
    latent_width: int | None = None
    extra_params: int = 0
    dense_width: int = 0


FeedForward = Dense | MoE | None
