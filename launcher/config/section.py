"""What readers of the sections know of their keys, and the error where one is wrong."""

from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from ...topology.errors import UserError


class ConfigError(UserError):
    """What is wrong with a configuration: a line for each key at fault."""


@dataclass(frozen=True)
class Key:
    kind: Any
    """Its type, without the ``metadata`` that it is annotated with."""
    metadata: tuple[Any, ...]
    default: Any
    """MISSING: it is required."""


def keys_of(section: type) -> dict[str, Key]:
    """{name: key}, in their order, of a section or an algorithm's settings."""
    declared: Any = section
    return _keys_of(declared)


@cache
def _keys_of(section: Any) -> dict[str, Key]:
    hints, keys = get_type_hints(section, include_extras=True), {}
    for field in fields(section):
        hint = hints[field.name]
        kind, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        keys[field.name] = Key(kind, tuple(metadata), default)
    return keys
