"""Writes a preset of data/roofkit_data/architectures/ from a model's config.json: facts in our own layout.

    python tools/make_architecture_preset.py CONFIG_JSON NAME RELEASED SOURCE [--ignore-quantization]

RELEASED is YYYY-MM-DD or YYYY-MM; SOURCE says whose config.json it is. Add a row to tests/architectures_expected.csv.
"""
import dataclasses
import sys
from pathlib import Path

from roofkit.architectures.architecture import Architecture, LayerGroup
from roofkit.architectures.presets import FACTS, SCHEMA, load_config_file

FOLDER = Path(__file__).resolve().parent.parent / "data" / "roofkit_data" / "architectures"


def _value(value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_value(v)}" for k, v in value.items()) + " }"
    raise TypeError(f"no TOML for {value!r}")


def _fields(component) -> dict:
    """Fields of a component that differ from their defaults, after its kind."""
    found = {"kind": type(component).__name__}
    for f in dataclasses.fields(component):
        value = getattr(component, f.name)
        if value is not None and value != f.default:
            found[f.name] = {k: v for k, v in dataclasses.asdict(value).items() if v is not False} if dataclasses.is_dataclass(value) else value
    return found


def positions(at: tuple[int, ...]) -> str:
    """Layer indices as spans with a step: (0, 1, 2, 7) -> '0-2,7'."""
    parts, i = [], 0
    while i < len(at):
        step = at[i + 1] - at[i] if i + 1 < len(at) else 1
        j = i
        while j + 1 < len(at) and at[j + 1] - at[j] == step:
            j += 1
        if j == i or (j == i + 1 and step != 1):
            parts.append(str(at[i]))
            i += 1
            continue
        parts.append(f"{at[i]}-{at[j]}" + (f":{step}" if step != 1 else ""))
        i = j + 1
    return ",".join(parts)


def _group(header: str, group: LayerGroup) -> list[str]:
    lines = ["", header, f"layers = {_value(positions(group.positions))}", f"n_norms = {group.n_norms}", f"norm_params = {group.norm_params}"]
    if group.extra_params:
        lines.append(f"extra_params = {group.extra_params}")
    for key in ("mixer", "ffn"):
        if getattr(group, key) is not None:
            lines.append(f"{key} = {_value(_fields(getattr(group, key)))}")
    return lines


def to_toml(arch: Architecture) -> str:
    defaults = {f.name: f.default for f in dataclasses.fields(Architecture)}
    lines = [f"schema = {SCHEMA}"]
    for key in FACTS:
        value = getattr(arch, key)
        if value is not None and (key in ("family", "source", "released") or value != defaults.get(key, dataclasses.MISSING)):
            lines.append(f"{key} = {_value(value)}")
    if arch.assumptions:
        lines.append(f"assumptions = {_value(arch.assumptions)}")
    if arch.quantization is not None:
        lines += ["", "[quantization]"]
        for f in dataclasses.fields(arch.quantization):
            value = getattr(arch.quantization, f.name)
            if value is not None and value != f.default:
                lines.append(f"{f.name} = {_value(value)}")
    for group in arch.groups:
        lines += _group("[[groups]]", group)
    if arch.mtp is not None:
        lines += _group("[mtp]", arch.mtp)
    return "\n".join(lines) + "\n"


def main(config: str, name: str, released: str, source: str, *options: str) -> None:
    found = load_config_file(Path(config), ignore_quantization="--ignore-quantization" in options)
    arch = dataclasses.replace(found, name=name, released=released, source=source)
    (FOLDER / f"{name}.toml").write_text(to_toml(arch), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
