"""Keys: typed, guarded reading of a config.json dictionary. Room: architectures.

Every read names model_type, key and value when it refuses; every key that was read is remembered, so that what nobody
understood can be found afterwards. Spellings of one quantity are listed once, in ALIASES.
Source: spellings seen in published config.json files (test data, INDEX.csv).
"""
import math

from roofkit.errors import ConflictingConfigError, MissingKeyError, UnsupportedArchitectureError

REQUIRED = object()
ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_dim": ("head_dim", "attention_head_dim"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", "moe_topk", "moe_top_k",
                            "top_k_experts"),
    "n_shared_experts": ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "shared_expert_intermediate_size": ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
                                        "shared_intermediate_size", "share_expert_dim"),
    "hidden_act": ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act"),
    "num_nextn_predict_layers": ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers"),
}
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")
MOST = {"num_hidden_layers": 4096, "vocab_size": 2**26, "hidden_size": 2**20, "num_experts": 2**16}
LARGEST = 2**24  # no width, rank or head count comes near it
LONGEST = 2**40  # positions and windows [tokens]


def shown(value: object, most: int = 60) -> str:
    """A value for an error text, cut short so that hostile input cannot flood it."""
    try:
        text = repr(value) if not isinstance(value, (dict, list, str)) or len(value) < 200 else f"{type(value).__name__} of {len(value)}"
    except (ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= most else text[: most - 3] + "..."


def as_int(value: object) -> int | None:
    """A whole number as int, else None; booleans and strings are no numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not (math.isfinite(value) and value.is_integer()):
        return None
    return int(value)


def is_set(value: object) -> bool:
    """A key that says something: not null, false, zero or empty."""
    return not (value is None or value is False or (not isinstance(value, bool) and value in (0, "", [], {})))


class Keys:
    """Reads one dictionary; `outer` is the file around it when the text model is nested."""

    def __init__(self, data: dict, model_type: str, outer: dict | None = None, must_say_tied: bool = False) -> None:
        self.data, self.model_type, self.outer, self.must_say_tied = data, model_type, outer, must_say_tied
        self.read: set[str] = set()

    @property
    def nested(self) -> bool:
        return self.outer is not None

    def note(self, *names: str) -> None:
        """These keys are understood and change nothing that is counted here."""
        self.read.update(names)

    def has(self, name: str) -> bool:
        """The key is present, even when null."""
        self.read.add(name)
        return name in self.data

    def raw(self, name: str):
        self.read.add(name)
        return self.data.get(name)

    def where(self, name: str) -> str:
        return f"config of model_type {self.model_type!r}, key {name!r}"

    def bad(self, name: str, value: object, should: str) -> UnsupportedArchitectureError:
        return UnsupportedArchitectureError(f"{self.where(name)}: value {shown(value)} {should}")

    def refuse(self, name: str, why: str) -> UnsupportedArchitectureError:
        """The error for a structure that is not modelled."""
        return UnsupportedArchitectureError(
            f"{self.where(name)}: value {shown(self.data.get(name))} means {why}, which roofkit does not model; "
            f"it refuses instead of guessing")

    def missing(self, names: tuple[str, ...]) -> MissingKeyError:
        return MissingKeyError(f"config of model_type {self.model_type!r}: required key {names[0]!r} is absent or null; "
                               f"tried {', '.join(names)}; add it to the config")

    def conflict(self, text: str) -> ConflictingConfigError:
        return ConflictingConfigError(f"config of model_type {self.model_type!r}: {text}")

    def find(self, names: tuple[str, ...]) -> tuple[str | None, object]:
        """First spelling that is present and not null; spellings that disagree are an error."""
        self.read.update(names)
        found = [(n, self.data[n]) for n in names if self.data.get(n) is not None]
        if not found:
            return None, None
        for name, value in found[1:]:
            if type(value) in (int, float, list) and value != found[0][1]:
                raise self.conflict(f"{found[0][0]}={shown(found[0][1])} and {name}={shown(value)} name one quantity; remove the wrong one")
        return found[0]

    def size(self, name: str, default=REQUIRED, least: int = 1, most: int | None = None, names: tuple[str, ...] | None = None):
        """A whole number under any spelling of `name`, at least `least`; a constant list counts as one number.

        Raises MissingKeyError without a default, UnsupportedArchitectureError for a wrong type or range.
        """
        names = names or ALIASES.get(name, (name,))
        key, value = self.find(names)
        if key is None:
            if default is REQUIRED:
                raise self.missing(names)
            return default
        if isinstance(value, list):
            if not value or any(type(v) is not type(value[0]) or v != value[0] for v in value):
                raise self.bad(key, value, "is a list that is not constant where one number is due")
            value = value[0]
        number = as_int(value)
        limit = most or MOST.get(name, LARGEST)
        if number is None or not least <= number <= limit:
            raise self.bad(key, value, f"must be a whole number from {least} to {limit}")
        return number

    def tokens(self, name: str, default=None) -> int | None:
        """A window or position count [tokens]; null and 0 mean none."""
        if self.has(name) and self.data[name] is None:
            return None
        return self.size(name, default, least=0, most=LONGEST) or None

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or value in (0, 1):
            return bool(value)
        raise self.bad(name, value, "must be true or false")

    def text(self, name: str, default: str | None = None) -> str | None:
        names = ALIASES.get(name, (name,))
        self.read.update(names)
        for n in names:
            value = self.data.get(n)
            if value is not None:
                if not isinstance(value, str):
                    raise self.bad(n, value, "must be a string")
                return value
        return default

    def number(self, name: str, default: float) -> float:
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or not 0 < value <= LARGEST:
            raise self.bad(name, value, "must be a positive number")
        return float(value)

    def items(self, name: str, kind: type | tuple, length: int | None = None) -> list | None:
        """A list whose items are all of `kind`; None when absent, null or empty. Its length must be `length` if given."""
        value = self.raw(name)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or any(not isinstance(v, kind) or (kind is int and isinstance(v, bool)) for v in value):
            raise self.bad(name, value, "must be a list of one type")
        if length is not None and len(value) != length:
            raise self.conflict(f"{name} has {len(value)} entries for {length} layers; one of the two is wrong")
        return value

    def section(self, name: str) -> "Keys":
        """A nested dictionary; absent = empty."""
        value = self.raw(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.bad(name, value, "must be a dictionary")
        return Keys(value, f"{self.model_type}.{name}")

    def main(self, name: str, default: int) -> int:
        """A main size: nested files may leave out class defaults, flat files always write them."""
        return self.size(name, default if self.nested else REQUIRED)

    def tied(self, default: bool | None) -> bool:
        """tie_word_embeddings: the outer file decides, then the text dictionary, then the class default."""
        self.read.add("tie_word_embeddings")
        for source in (self.outer, self.data):
            value = None if source is None else source.get("tie_word_embeddings")
            if value is not None:
                if not isinstance(value, bool):
                    raise self.bad("tie_word_embeddings", value, "must be true or false")
                return value
        if default is None or self.must_say_tied:
            raise self.missing(("tie_word_embeddings",))
        return default

    def max_context(self) -> int | None:
        """Longest position the config allows [tokens]; None = not said."""
        self.note(*CONTEXT_KEYS)
        for name in CONTEXT_KEYS:
            if self.data.get(name) is not None:
                return self.size(name, most=LONGEST, names=(name,))
        return None
