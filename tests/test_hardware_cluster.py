"""Clusters: links that come from the device, how far each reaches, what a user can get wrong."""
import math
import pickle

import pytest

from roofkit.errors import DataError, PlanError
from roofkit.hardware.network import Cluster
from roofkit.hardware.presets import load_cluster, load_device

H100 = load_device("h100-sxm-80gb")

REACH = [  # cluster, nodes, ranks, slowest link crossed
    ("dgx-h100", 1, 1, "one"), ("dgx-h100", 1, 2, "scaleup"), ("dgx-h100", 1, 8, "scaleup"), ("dgx-h100", 2, 9, "scaleout"), ("dgx-h100", 2, 16, "scaleout"),
    ("gb200-nvl72", 18, 8, "scaleup"), ("gb200-nvl72", 18, 72, "scaleup"), ("gb200-nvl72", 36, 73, "scaleout"), ("tpu-v5e-256", 32, 256, "scaleup"),
    ("l40s-8-pcie", 1, 8, "scaleup"), ("l40s-8-pcie", 2, 16, "scaleout"), ("gh200-node", 1, 1, "one"), ("gh200-node", 4, 2, "scaleout"),
]


@pytest.mark.parametrize("name, nodes, ranks, link", REACH)
def test_reach_of_a_group(name, nodes, ranks, link):
    assert load_cluster(name, nodes).reach(ranks) == link


def test_a_group_larger_than_the_cluster_is_refused():
    with pytest.raises(PlanError, match="more than the 8 there are"):
        load_cluster("dgx-h100").reach(9)


LINKS = [  # cluster, nodes, ranks, bytes/s of one device in one direction, source of the expectation
    ("dgx-h100", 1, 8, 450e9, "NVLink 4: 18 links of 25 GB/s"), ("dgx-h100", 2, 16, 50e9, "one 400 Gb/s adapter per device"),
    ("mi300x-8", 1, 2, 64e9, "one link per peer"), ("mi300x-8", 1, 4, 192e9, "three peers"), ("mi300x-8", 1, 8, 448e9, "seven peers"),
    ("a40-8-pairs", 1, 2, 56.25e9, "bridge"), ("a40-8-pairs", 1, 8, 31.5e9, "beyond the pair PCIe"), ("dgx-h100", 1, 1, math.inf, "no link"),
    ("aws-p4d", 2, 16, 6.25e9, "four 100 Gb/s adapters for eight devices"), ("dgx-a100-40gb", 2, 16, 25e9, "eight of 200"),
]


@pytest.mark.parametrize("name, nodes, ranks, speed, source", LINKS)
def test_what_a_device_of_a_group_can_send(name, nodes, ranks, speed, source):
    assert load_cluster(name, nodes).link_bytes_per_s(ranks) == pytest.approx(speed), source


BUILT = [  # device, devices per node, nodes, domain, scale-up, pair, scale-out, topology
    ("h100-sxm-80gb", 8, 2, 8, 450e9, 450e9, 50e9, "switched"), ("h100-sxm-80gb", 4, 2, 4, 450e9, 450e9, 50e9, "switched"),
    ("gb200-186gb", 4, 18, 72, 900e9, 900e9, 50e9, "switched"), ("gb200-186gb", 4, 36, 72, 900e9, 900e9, 50e9, "switched"),
    ("h100-pcie-80gb", 2, 1, 2, 300e9, 300e9, 0, "switched"), ("h100-pcie-80gb", 8, 1, 1, 64e9, 64e9, 0, "pcie"),
    ("mi300x", 8, 1, 8, 448e9, 64e9, 50e9, "full-mesh"), ("rtx-5090", 8, 2, 1, 63e9, 63e9, 12.5e9, "pcie"), ("gh200-96gb", 1, 4, 1, 450e9, 450e9, 12.5e9, "none"),
    ("tpu-v5e", 8, 4, 32, 200e9, 200e9, 3.125e9, "torus"), ("rtx-5090", 1, 1, 1, 63e9, 63e9, 0, "none"),
]


@pytest.mark.parametrize("name, per_node, nodes, domain, up, pair, out, topology", BUILT, ids=[f"{r[0]}-{r[1]}x{r[2]}" for r in BUILT])
def test_a_cluster_built_by_hand_takes_its_links_from_the_device(name, per_node, nodes, domain, up, pair, out, topology):
    c = Cluster(load_device(name), devices_per_node=per_node, nodes=nodes)
    assert (c.scaleup_domain, c.scaleup_bytes_per_s, c.p2p_bytes_per_s, c.scaleout_bytes_per_s, c.topology) == (domain, up, pair, out, topology)


def test_a_default_link_is_marked_as_assumed_and_a_given_one_is_not():
    c = Cluster(H100, devices_per_node=8, nodes=2)
    assert c.in_switch_reduction and any("typical, assumed" in text for text in c.assumptions)
    assert c.figures["scaleout_bandwidth_per_direction_per_device"].kind == "assumed"
    own = Cluster(H100, 8, 2, scaleup_bytes_per_s=200e9, scaleout_bytes_per_s=0, in_switch_reduction=False)
    assert (own.scaleup_bytes_per_s, own.p2p_bytes_per_s, own.scaleout_bytes_per_s, own.in_switch_reduction) == (200e9, 200e9, 0, False)
    assert own.assumptions == () and own.figures == {}


BAD = [({"devices_per_node": 0}, PlanError, "devices_per_node is 0"), ({"devices_per_node": 2.5}, PlanError, "whole number"), ({"nodes": -1}, PlanError, "nodes is -1"),
       ({"nodes": "2"}, PlanError, "whole number"), ({"scaleup_domain": -2}, PlanError, "scaleup_domain"), ({"scaleup_bytes_per_s": -1.0}, DataError, "scaleup_bytes_per_s"),
       ({"scaleout_bytes_per_s": math.nan}, DataError, "scaleout_bytes_per_s"), ({"p2p_bytes_per_s": 900e9}, DataError, "exceeds scaleup"), ({"device": "h100"}, DataError, "load_device")]


@pytest.mark.parametrize("change, error, words", BAD, ids=[str(r[0]) for r in BAD])
def test_impossible_clusters_are_refused(change, error, words):
    with pytest.raises(error, match=words):
        Cluster(**{"device": H100, "devices_per_node": 8, **change})


def test_more_nodes_of_a_machine():
    c = load_cluster("dgx-h100", nodes=4)
    assert (c.n_devices, c.scaleup_bytes_per_s, c.scaleout_bytes_per_s, c.label) == (32, 450e9, 50e9, "DGX H100, 4 nodes")


def test_devices_and_clusters_can_be_keys_and_travel_to_other_processes():
    c = load_cluster("dgx-h100")
    assert pickle.loads(pickle.dumps(c)) == c and {c: 1, c.device: 2}[pickle.loads(pickle.dumps(c))] == 1
