"""Names: what measured tables call models and machines, matched to presets. Room: evidence."""
from roofkit.hardware.device import Device
from roofkit.hardware.network import Cluster
from roofkit.hardware.presets import default_cluster


def resolve_model(name: str, known) -> str | None:
    """`Qwen/Qwen3-30B-A3B-Instruct-2507` -> `qwen3-30b-a3b`: the longest preset that the name starts with; None without one."""
    plain = str(name).split("/")[-1].lower().replace("_", "-").replace("llama2", "llama-2").replace("llama3", "llama-3")
    fitting = [k for k in known if plain == k or plain.startswith(k + "-")]
    return max(fitting, key=len, default=None)


def usual_cluster(device: Device, ranks: int) -> Cluster:
    """The device's usual machine, or a larger one of its kind when `ranks` do not fit."""
    usual = default_cluster(device)
    return usual if usual.devices_per_node >= ranks else Cluster(device, max(ranks, 8))
