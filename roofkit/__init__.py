"""roofkit: what a language model's step costs on a machine, and why. `import roofkit as rk`.

The public names; the rooms behind them are listed in CONTRIBUTING.md. Importing this loads numpy and pandas and nothing
else that is heavy: widgets, the Hub client and fitting libraries are imported where they are used.
"""
from importlib import import_module

from roofkit.architectures.presets import list_architectures, load_architecture
from roofkit.errors import (
    ConfigError,
    ConflictingConfigError,
    CostModelError,
    DataError,
    HubError,
    MeasurementError,
    MissingKeyError,
    PlanError,
    RoofkitError,
    UnitError,
    UnsupportedArchitectureError,
    UnsupportedQuantizationError,
    WorkloadError,
)
from roofkit.hardware.network import Cluster
from roofkit.hardware.presets import list_clusters, list_devices, load_cluster, load_device
from roofkit.inference.step import Step, estimate
from roofkit.ops.plan import Plan
from roofkit.ops.workload import Decode, MixedBatch, Prefill

# fitting, measuring and serving load their modules on first use, so that `import roofkit` stays quick
_ON_DEMAND = {"predict": "evidence.predict", "calibrate": "evidence.calibrate", "validate": "evidence.validate", "measure_this_machine": "evidence.measure",
              "simulate": "serving.simulate", "Scheduler": "serving.scheduler", "poisson_requests": "serving.requests", "closed_loop": "serving.requests",
              "load_trace": "serving.requests", "emulate_benchmark": "serving.benchmark"}

__version__ = "0.1.0"
__all__ = [
    "Cluster", "ConfigError", "ConflictingConfigError", "CostModelError", "DataError", "Decode", "HubError",
    "MeasurementError", "MissingKeyError", "MixedBatch", "Plan", "PlanError", "Prefill", "RoofkitError", "Scheduler", "Step", "UnitError",
    "UnsupportedArchitectureError", "UnsupportedQuantizationError", "WorkloadError", "calibrate", "closed_loop", "emulate_benchmark", "estimate",
    "list_architectures", "list_clusters", "list_devices", "load_architecture", "load_cluster", "load_device", "load_trace", "measure_this_machine",
    "poisson_requests", "predict", "simulate", "validate",
]


def __getattr__(name: str):
    if name in _ON_DEMAND:
        return getattr(import_module(f"roofkit.{_ON_DEMAND[name]}"), name)
    raise AttributeError(f"module 'roofkit' has no attribute {name!r}")
