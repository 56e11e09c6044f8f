"""A section of the configuration is a frozen dataclass, with bounds and conditions beside its fields, and beside or
below each its text in docs/configuration.md. The launcher has pydantic validate sections; clients read the same classes
without it. What concerns several keys raises ValueError in ``__post_init__``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, get_args

from annotated_types import Ge, Gt, Le

Fraction = Annotated[float, Ge(0), Le(1)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Count = Annotated[int, Ge(1)]
Index = Annotated[int, Ge(0)]


class Section:
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}


class Needs:
    """The key has an effect only where another has one of ``values``; without values, where that is set and not 0.
    ``key`` is one of the same table, or one with dots from the top; of "a or b" one suffices."""

    def __init__(self, key: str, *values: Any):
        self.keys, self.values = tuple(key.split(" or ")), values

    def met(self, found: Any) -> bool:
        return found in self.values if self.values else bool(found)


@dataclass(frozen=True)
class Read:
    """What is written is first passed through ``by``, which may change it and raises ValueError."""

    by: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self.by, handler(source))


class WordOrTable:
    """Of a type ``Literal[...] | SECTION``: a mistake is told of the one that was written. The tags stand in the places
    of mistakes, behind the key."""

    TAGS = ("(word)", "(table)")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        choices = dict(zip(cls.TAGS, map(handler.generate_schema, get_args(source)), strict=True))
        return core_schema.tagged_union_schema(choices, lambda value: cls.TAGS[isinstance(value, dict | Section)])
