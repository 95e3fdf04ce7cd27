"""Presets: architectures by name, path, dictionary or Hub repository. Room: architectures; the only reader of data/architectures.

A preset is one TOML file of facts in our own layout (hidden, groups of layers with their mixers and feed-forwards, source,
release date). A config.json is read by config.py, and fetched from the Hub by hub.py.
"""
import os
import re
import tomllib
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import pandas as pd

from roofkit.architectures import feed_forward, mixers
from roofkit.architectures.architecture import Architecture, LayerGroup
from roofkit.architectures.quantization import Quantization
from roofkit.errors import ConfigError, DataError

SCHEMA = 1
KINDS = {c.__name__: c for c in (mixers.Attention, mixers.MLA, mixers.GatedDeltaNet, mixers.LightningAttention, mixers.Mamba1,
                                 mixers.Mamba2, mixers.ShortConv, feed_forward.Dense, feed_forward.MoE)}
FACTS = ("family", "model_type", "hidden", "vocab", "tied", "embed_params", "head_params", "other_params", "lookup_params", "head_bias", "max_context",
         "vision_params", "mtp_params", "confidence", "source", "released", "dtype")
_HUB_NAME = r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*"


def load_architecture(source, revision: str | None = None, token: str | None = None, strict: bool = False,
                      ignore_quantization: bool = False) -> Architecture:
    """An architecture from a preset name, a config.json (path or its folder), a dictionary, or "org/name" on the Hub.

    revision, token   Hub only: branch, tag or commit; access token of a gated repository (never stored, never shown)
    strict            refuse configs with unknown keys that look like sizes
    ignore_quantization   count weights at 16 or 32 bit, whatever the quantisation section says

    Raises DataError for an unknown preset name, HubError for the Hub, ConfigError and its kinds for the config.
    """
    if isinstance(source, Architecture):
        return source
    if isinstance(source, dict):
        from roofkit.architectures.config import read_config
        return read_config(source, strict=strict, source="dictionary", ignore_quantization=ignore_quantization)
    if isinstance(source, str) and source in preset_names():
        return _preset(source)
    if not isinstance(source, (str, os.PathLike)) or not str(source):
        raise ConfigError(f"{type(source).__name__} is no architecture; give a preset name, a path to config.json, a dictionary or 'org/name' on the Hub")
    return _load_named(source, revision, token, {"strict": strict, "ignore_quantization": ignore_quantization})


def _load_named(source, revision, token, options) -> Architecture:
    try:
        there = Path(source).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        there = False
    if there:
        return load_config_file(Path(source).expanduser(), **options)
    text = os.fspath(source)
    if isinstance(source, str) and re.fullmatch(_HUB_NAME, text) and not text.endswith(".json"):
        from roofkit.architectures.hub import fetch_config
        return fetch_config(text, revision=revision, token=token, **options)
    if isinstance(source, str) and "/" not in text and not text.endswith(".json"):
        raise unknown_preset(text)
    raise ConfigError(f"no file {text[:200]!r}; give the path of a config.json or of the folder that holds it, a preset name such as "
                      f"'llama-3.1-8b', or 'org/name' on the Hub")


def unknown_preset(name: str) -> DataError:
    """The error for a name that is no preset; it suggests the nearest."""
    names = preset_names()
    near = get_close_matches(name.lower()[:80], names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}."
    return DataError(f"no architecture preset {name[:80]!r} in data/architectures/; {hint} "
                     f"Other models load from a path to config.json or from 'org/name' on the Hub")


def load_architecture_text(text: str | bytes, quant_text: str | bytes | None = None, strict: bool = False) -> Architecture:
    """An architecture from the pasted contents of a config.json; never a path, never the network: safe to serve to strangers.

    quant_text   contents of hf_quant_config.json, None = absent

    Raises ConfigError for text that is too long or no JSON object, and the kinds of ConfigError for its contents.
    """
    from roofkit.architectures.config import parse_text, read_config

    quant = None if quant_text is None else parse_text(quant_text, "hf_quant_config.json")
    return read_config(parse_text(text, "pasted config"), quant, strict=strict, source="pasted config")


def load_config_file(path: Path, strict: bool = False, ignore_quantization: bool = False) -> Architecture:
    """config.json at `path`, or in the folder `path`, with hf_quant_config.json beside it if there is one.

    Beside `NAME.json`, `NAME.hf_quant_config.json` is looked for as well. Raises ConfigError.
    """
    from roofkit.architectures.config import read_config, read_json_file

    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise ConfigError(f"no file {str(path)!r}; give the path of a config.json or of the folder that holds it")
    plain = path.name == "config.json"
    beside = path.with_name("hf_quant_config.json" if plain else f"{path.stem}.hf_quant_config.json")
    quant = read_json_file(beside) if beside.is_file() else None
    name = path.resolve().parent.name if plain else path.stem
    return read_config(read_json_file(path), quant, name=name or None, source=path.name, strict=strict, ignore_quantization=ignore_quantization)


# ---- presets --------------------------------------------------------------------------------------------------------


def _folder():
    return files("roofkit_data") / "architectures"


@lru_cache(maxsize=1)
def _preset_names() -> tuple[str, ...]:
    return tuple(sorted(f.name.removesuffix(".toml") for f in _folder().iterdir() if f.name.endswith(".toml")))


def preset_names() -> list[str]:
    """Names of all presets, sorted."""
    return list(_preset_names())


@lru_cache(maxsize=None)
def _preset(name: str) -> Architecture:
    where = f"architectures/{name}.toml"
    try:
        return from_facts(tomllib.loads((_folder() / f"{name}.toml").read_text(encoding="utf-8")), name, where)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{where}: not valid TOML ({error})") from None


def from_facts(facts: dict, name: str, where: str) -> Architecture:
    """The facts of one preset file -> Architecture. Raises DataError naming file and key."""
    if facts.get("schema") != SCHEMA or not facts.get("source"):
        raise DataError(f"{where}: needs schema = {SCHEMA} and a source")
    known = {k: facts[k] for k in FACTS if k in facts}
    try:
        groups = tuple(_group(g) for g in facts["groups"])
        mtp = _group(facts["mtp"]) if "mtp" in facts else None
        quant = facts.get("quantization")
        if quant is not None:
            quant = Quantization(**{k: tuple(v) if isinstance(v, list) else v for k, v in quant.items()})
        return Architecture(name=name, groups=groups, mtp=mtp, quantization=quant, assumptions=tuple(facts.get("assumptions", ())), **known)
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(f"{where}: {type(error).__name__}: {error}; compare with another file there") from None


def _component(facts: dict | None):
    if not facts:
        return None
    fields = dict(facts)
    kind = KINDS[fields.pop("kind")]
    if fields.get("indexer"):
        fields["indexer"] = mixers.Indexer(**fields["indexer"])
    if kind is mixers.MLA:
        fields.setdefault("q_lora_rank", None)
    return kind(**fields)


def _group(facts: dict) -> LayerGroup:
    return LayerGroup(_positions(facts["layers"]), _component(facts.get("mixer")), _component(facts.get("ffn")), facts["n_norms"],
                      facts["norm_params"], facts.get("extra_params", 0))


def _positions(text: str) -> tuple[int, ...]:
    """'0-2,5,8-20:4' -> layer indices; a-b includes b, ':4' is the step."""
    found: list[int] = []
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        found.extend(range(int(first), int(last or first) + 1, int(step or 1)))
    return tuple(found)


def list_architectures() -> pd.DataFrame:
    """All presets: name, family, released, total_params, active_params [parameters], kv_bytes_per_token (bf16, no window full), confidence."""
    rows = []
    for name in preset_names():
        a = _preset(name)
        rows.append((name, a.family, a.released, a.total_params, a.active_params, a.kv_bytes_per_token(), a.confidence))
    return pd.DataFrame(rows, columns=["name", "family", "released", "total_params", "active_params", "kv_bytes_per_token", "confidence"])
