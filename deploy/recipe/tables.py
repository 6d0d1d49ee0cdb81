"""Read a TOML file into frozen dataclasses; refuse what it should not hold.

Every refusal is a RecipeError of one line: file, key, the value seen, the fix.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from deploy.files import read_text
from deploy.recipe.vocabulary import nearest

LIMIT_BYTES = 1 << 20  # the largest of ours is 10 kB

T = TypeVar("T")


class RecipeError(ValueError):
    """The recipe cannot be used; the message is one line that names key, value and fix."""


def load(path: Path, what: str) -> dict[str, Any]:
    """The tables of a TOML file that is to be `what`, such as "a recipe". Raises RecipeError."""
    try:
        return tomllib.loads(read_text(path, LIMIT_BYTES))
    except OSError as e:
        raise RecipeError(f"{path}: cannot be read ({e.strerror}); give {what} file") from e
    except UnicodeDecodeError as e:
        raise RecipeError(f"{path}: is not UTF-8 text ({e.reason}); save it as UTF-8") from e
    except tomllib.TOMLDecodeError as e:
        raise RecipeError(f"{path}: is not TOML: {e}; mend that line") from e
    except RecursionError as e:
        raise RecipeError(f"{path}: is not {what}: tables in tables without end") from e


class Reader:
    """Turns TOML tables into dataclasses, with the file's name in every message."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, kind: type[T], key: str, table: Mapping[str, Any]) -> T:
        """A dataclass from a table: every field's type checked, nothing unknown, none missing."""
        hints = get_type_hints(kind)
        at = f"{key}." if key else ""
        self.refuse_unknown(key, table, hints)
        for f in dataclasses.fields(kind):  # type: ignore[arg-type]
            if f.name not in table:
                if f.default is dataclasses.MISSING:
                    raise RecipeError(f"{self.path}: {at}{f.name}: is missing; add it")
                continue
            if not _fits(table[f.name], hints[f.name]):
                fix = f"give {article(_type_name(hints[f.name]))}"
                raise self.refusal(f"{at}{f.name}", table[f.name], fix)
            if not _is_amount(table[f.name]):
                raise self.refusal(f"{at}{f.name}", table[f.name], "give a number above 0")
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in table.items()})

    def text(self, key: str, value: object, fix: str) -> str:
        """A string that says something; anything else is refused with the fix."""
        if not isinstance(value, str) or not value.strip():
            raise self.refusal(key, value, fix)
        return value

    def table(
        self, data: Mapping[str, Any], name: str, at: str = "", required: bool = True
    ) -> Mapping[str, Any]:
        key = f"{at}.{name}" if at else name
        if name not in data:
            if required:
                raise RecipeError(f"{self.path}: [{key}]: is missing; add the table")
            return {}
        value = data[name]
        if not isinstance(value, dict):
            raise self.refusal(key, value, "give a table")
        return value

    def refuse_unfit(self, key: str, value: object) -> None:
        """Nothing that would break a line, an argument or a sum, wherever it stands."""
        if isinstance(value, dict):
            for name, inner in value.items():
                if not name.isprintable():
                    raise self.refusal(key or "keys", name, "leave control characters out")
                self.refuse_unfit(f"{key}.{name}" if key else name, inner)
        elif isinstance(value, list):
            for i, inner in enumerate(value):
                self.refuse_unfit(f"{key}[{i}]", inner)
        elif isinstance(value, str) and not value.isprintable():
            raise self.refusal(key, value, "leave control characters out")
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise self.refusal(key, hex(value), "give a number of 64 bits")
        elif isinstance(value, float) and not math.isfinite(value):
            raise self.refusal(key, value, "give a finite number")

    def refuse_unknown(self, at: str, table: Mapping[str, Any], known: Collection[str]) -> None:
        for name in table:
            if name not in known:
                key = f"{at}.{name}" if at else name
                fix = f"no such key{nearest(name, known) or '; drop it'}"
                raise self.refusal(key, table[name], fix)

    def refusal(self, key: str, value: object, fix: str) -> RecipeError:
        shown = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return RecipeError(f"{self.path}: {key}: got {shown}; {fix}")


def _is_amount(value: object) -> bool:
    """Whether a value, or each of a list, is above 0 where it is a number."""
    if isinstance(value, list):
        return all(_is_amount(each) for each in value)
    return isinstance(value, bool) or not isinstance(value, int | float) or value > 0


def _fits(value: object, hint: object) -> bool:
    """Whether a TOML value is of a field's annotated type; an int serves as a float, a list of
    them as a tuple."""
    if get_origin(hint) is tuple:
        return isinstance(value, list) and all(_fits(each, get_args(hint)[0]) for each in value)
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if isinstance(value, bool):
        return bool in options
    if isinstance(value, int) and float in options:
        return True
    return any(isinstance(o, type) and isinstance(value, o) for o in options)


def _type_name(hint: object) -> str:
    if get_origin(hint) is tuple:
        return f"list of {_type_name(get_args(hint)[0])}"
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return next(o.__name__ for o in options if isinstance(o, type) and o is not type(None))


def article(noun: str) -> str:
    """The noun with a or an before it."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
