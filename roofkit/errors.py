"""Errors a user can cause. Room: ground (imports nothing).

All derive from `RoofkitError`, a `ValueError`, and their text says what was wrong, where, and what to do.
`assert` is for what cannot happen; a class from here is for what a user can cause.
"""


class RoofkitError(ValueError):
    """Base of every error that an input can cause."""


class DataError(RoofkitError):
    """A preset file, a figure or a table is missing, malformed or without its source; or a preset name is unknown."""


class UnitError(DataError):
    """A quantity has a unit that does not fit its dimension."""


class ConfigError(RoofkitError):
    """A model's config.json cannot be read as an architecture. The text names model_type, key and value."""


class UnsupportedArchitectureError(ConfigError):
    """The config describes a structure that roofkit does not model; it refuses instead of guessing."""


class MissingKeyError(ConfigError):
    """A required size is absent; the text lists the spellings that were tried."""


class ConflictingConfigError(ConfigError):
    """Two keys of the config disagree."""


class UnsupportedQuantizationError(ConfigError):
    """The config's quantisation scheme is not known."""


class HubError(ConfigError):
    """The Hugging Face Hub could not give the file: offline, gated, private, absent, or timed out."""


class PlanError(RoofkitError):
    """A parallel plan does not divide the model or the machine, or names an unknown number format."""


class WorkloadError(RoofkitError):
    """A workload is impossible: a batch below one, a negative length."""


class CostModelError(RoofkitError):
    """A cost model cannot price an op on a device: unknown model or stack, format without a peak."""


class MeasurementError(RoofkitError):
    """A measurement table lacks columns, units or rows that a fit or a validation needs."""
