"""A mixture from a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loaders.mixture import Mixture


def read_mixture(path: str) -> Mixture:
    """See `Mixture.from_yaml`."""
    import yaml

    with open(path, encoding="utf-8") as file:
        return _from_config(yaml.safe_load(file), path)


def _from_config(config: Any, path: str) -> Mixture:
    if not isinstance(config, Mapping) or not isinstance(config.get("sources"), list):
        raise ValueError(f"{path}: a mixture needs a list named sources, each with a name and a path.")
    sources: dict[str, Any] = {}
    weights: dict[str, float] = {}
    repeat: dict[str, float] = {}
    for number, entry in enumerate(config["sources"]):
        options = dict(entry)
        name = str(options.pop("name", f"source {number}"))
        if name in sources:
            raise ValueError(f"{path}: two sources are named {name!r}.")
        if "weight" in options:
            weights[name] = options.pop("weight")
        if "repeat" in options:
            repeat[name] = options.pop("repeat")
        if "sources" in options:
            sources[name] = _from_config(options, path)
        elif "path" in options:
            from loaders.sources import open_source

            sources[name] = open_source(options.pop("path"), name=name, **options)
        else:
            raise ValueError(f"{path}: source {name!r} has neither a path nor sources.")
    known = {key: config[key] for key in ("by", "stop", "temperature", "seed") if key in config}
    return Mixture(sources, weights or None, repeat=repeat, **known)
