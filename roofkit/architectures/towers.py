"""Towers: parameters of vision towers and their projectors, counted apart from the text model. Room: architectures."""
WRAPPERS: dict[str, tuple[str, dict[str, str]]] = {}


def vision_params(data: dict, text: dict, arch):
    return 0, None
