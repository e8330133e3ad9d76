"""A mixture from a YAML file."""

from __future__ import annotations

import inspect
import numbers
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from loaders.mixture import Mixture
from loaders.sources import open_source
from packing.checks import nearest

_OF_MIXTURE = ("by", "stop", "temperature", "seed")
_OF_SOURCE = tuple(inspect.signature(open_source).parameters)[1:]


def read_mixture(path: str) -> Mixture:
    """See `Mixture.from_yaml`."""
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            config = yaml.load(file, Loader=_loader())
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is no such mixture file (looked in {os.getcwd()})") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{path} must be a mixture's YAML file, it is a folder") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not YAML: {error}") from error
    return _from_config(config, path)


def _loader() -> Any:
    """YAML's safe loader, except that a key that is there twice is refused: the first would be lost."""
    import yaml

    # the module has no types where its stubs are not installed, and a class cannot be made of Any
    loader_class: Any = type("Loader", (yaml.SafeLoader,), {})

    def mapping(loader: Any, node: Any) -> Any:
        seen = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is not None and name != "<<" and name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {name!r} is there twice", key.start_mark
                )
            seen.add(name)
        loader.flatten_mapping(node)
        return loader.construct_mapping(node, deep=True)

    loader_class.add_constructor("tag:yaml.org,2002:map", mapping)
    return loader_class


def _from_config(config: Any, path: str, group: str = "the mixture") -> Mixture:
    if not isinstance(config, Mapping) or not isinstance(config.get("sources"), list):
        raise ValueError(f"{path}: a mixture needs a list named sources, each with a name and a path.")
    _refuse_unknown(config, (*_OF_MIXTURE, "sources"), path, group)
    sources: dict[str, Any] = {}
    weights: dict[str, float] = {}
    repeat: dict[str, float] = {}
    for number, entry in enumerate(config["sources"]):
        if not isinstance(entry, Mapping):
            raise ValueError(f"{path}: source {number} must have a name and a path, it is {entry!r}.")
        options = dict(entry)
        name = str(options.pop("name", f"source {number}"))
        if name in sources:
            raise ValueError(f"{path}: two sources are named {name!r}.")
        if "weight" in options:
            weights[name] = _number(options.pop("weight"), f"{path}: the weight of {name!r}")
        if "repeat" in options:
            repeat[name] = _number(options.pop("repeat"), f"{path}: repeat of {name!r}")
        if "sources" in options:
            sources[name] = _from_config(options, path, f"group {name!r}")
        elif "path" in options:
            where = options.pop("path")
            _refuse_unknown(options, _OF_SOURCE, path, f"source {name!r}")
            with _told_of(path, f"source {name!r}"):
                sources[name] = open_source(where, name=name, **options)
        else:
            raise ValueError(
                f"{path}: source {name!r} has neither a path nor sources; "
                f"it has {', '.join(map(str, options)) or 'nothing'}."
            )
    known = {key: config[key] for key in _OF_MIXTURE if key in config}
    with _told_of(path, group):
        return Mixture(sources, weights or None, repeat=repeat, **known)


@contextmanager
def _told_of(path: str, what: str) -> Iterator[None]:
    """Name the mixture's file and the source in it that cannot be used."""
    try:
        yield
    except (ValueError, TypeError, FileNotFoundError) as error:
        kind = next(kind for kind in (ValueError, TypeError, FileNotFoundError) if isinstance(error, kind))
        raise kind(f"{path}: {what}: {error}") from error


def _refuse_unknown(given: Collection[Any], known: Collection[str], path: str, what: str) -> None:
    unknown = sorted(str(key) for key in given if key not in known)
    if unknown:
        raise ValueError(
            f"{path}: {what} has {', '.join(unknown)}, which means nothing; known: {', '.join(known)}."
            f"{nearest(unknown[0], known)}"
        )


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"{what} must be a number, got {value!r}.")
    return float(value)
