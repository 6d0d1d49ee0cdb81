"""The names that the pinned vLLM knows: server flags, environment variables, speculative settings.

`vocabulary.json` of each release (deploy/releases) is written by `python3 -m deploy.upstream
--vocabulary`, which asks vLLM's own argument parser; a test compares the file with that again.
With it a misspelt name in the recipe is refused in milliseconds, on a machine without vLLM.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from deploy import collector
from deploy.recipe import serve_parser

NAME = "vocabulary.json"
_LISTS = ("environment", "speculative")

# What a value may be. "any" is left to vLLM's own parser.
KINDS: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "size": (int, str),  # vLLM reads 16k
    "size-or-auto": (int, str),
    "string": (str,),
    "name": (str,),  # read in small letters, with _ for -
    "json": (dict, list),
    "config": (dict,),  # an object of the keys listed, whose bare numbers may be sizes
    "table": (dict, str),  # an object where it looks like one, else text
    "list": (list, str),  # several words
    "append": (list,),  # a word each time it is given
    "switch": (bool,),  # has no --no- form
    "any": (bool, int, float, str, dict, list),
}


@dataclass(frozen=True)
class Flag:
    """One `vllm serve` flag: its kind (a key of KINDS), legal values if listed, other spellings.

    `optional` says that "None" and "" stand for no value, `bare` that it may stand without one.
    `of` is the kind of a list's words, `keys` are those of a config.
    """

    kind: str
    choices: tuple[str | int, ...] = ()
    aliases: tuple[str, ...] = ()
    optional: bool = False
    bare: bool = False
    of: str = "string"
    keys: tuple[str, ...] = ()

    def accepts(self, value: object) -> bool:
        """Whether a TOML value has this flag's type; bool is not an int here."""
        if isinstance(value, bool) and self.kind not in ("bool", "switch", "any"):
            return False
        if self.kind == "switch" and value is False:
            return False
        return isinstance(value, KINDS[self.kind])


@dataclass(frozen=True)
class Vocabulary:
    """Names known to one vLLM version; flags are keyed without their leading dashes."""

    vllm_version: str
    flags: Mapping[str, Flag]
    environment: frozenset[str]
    speculative: frozenset[str]

    @cached_property
    def spellings(self) -> Mapping[str, tuple[str, bool]]:
        """Every way to write an option: the long name, and whether it is said with no-."""
        found: dict[str, tuple[str, bool]] = {}
        for name, flag in self.flags.items():
            found |= dict.fromkeys((f"--{name}", *flag.aliases), (name, False))
            if flag.kind == "bool":
                longs = (f"--{name}", *(a for a in flag.aliases if a.startswith("--")))
                found |= {f"--no-{long.removeprefix('--')}": (name, True) for long in longs}
        return found


_SIZE = re.compile(r"(\d+)(\.\d+)?([kmgtKMGT])")
_POWERS = "kmgt"


def size(value: object) -> int | None:
    """A size of 0 or more in whatever spelling; None for what is none, such as `auto`."""
    number = number_of(value) if isinstance(value, str) else value
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        return None
    return number


def number_of(text: str) -> int | None:
    """A number as vLLM reads one: 16k is 16,000 and 16K 16,384 (0.27.1, utils/argparse_utils.py).

    None for what is none.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        try:
            return int(text)
        except ValueError:
            return None
    whole, part, unit = match.groups()
    power = _POWERS.index(unit.lower()) + 1
    if unit.islower():
        return int(float(whole + (part or "")) * 1000**power)
    return None if part else int(whole) * 1024**power


def nearest(name: str, known: Collection[str]) -> str:
    """`; did you mean X?` for the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


@cache
def load(*files: Path) -> Vocabulary:
    """A release's vocabulary: a whole file, then those that say how a later release differs."""
    data = content(*files)
    flags = {name: _flag(entry) for name, entry in data["flags"].items()}
    return Vocabulary(
        data["vllm"], flags, frozenset(data["environment"]), frozenset(data["speculative"])
    )


def content(*files: Path) -> dict[str, Any]:
    """What `from_vllm` answered, from a whole file and the differences laid over it in turn."""
    whole: dict[str, Any] = {}
    for file in files:
        whole = _laid_over(whole, json.loads(file.read_text(encoding="utf-8")))
    return {key: sorted(v) if key in _LISTS else v for key, v in whole.items()}


def difference(whole: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """What makes `whole` of `base`: what is new or other, and null for what is gone."""
    return _difference(_by_name(whole), _by_name(base))


def _difference(whole: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(base.keys() - whole.keys())
    for key, value in whole.items():
        if key not in base or not isinstance(value, dict):
            found |= {key: value} if base.get(key) != value else {}
        elif inner := _difference(value, base[key]):
            found[key] = inner
    return dict(sorted(found.items()))


def _laid_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    made = _by_name(base)
    for key, value in _by_name(over).items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = _laid_over(made.get(key, {}), value) if isinstance(value, dict) else value
    return made


def _by_name(table: Mapping[str, Any]) -> dict[str, Any]:
    """A list of names as a table, which a difference can add to and take from."""
    return {
        key: dict.fromkeys(value, True) if key in _LISTS and isinstance(value, list) else value
        for key, value in table.items()
    }


def _flag(entry: Mapping[str, Any]) -> Flag:
    fields: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in entry.items()
    }
    return Flag(**fields)


def from_vllm() -> dict[str, Any]:
    """Ask the installed vLLM; needs vLLM importable. Returns the content of the JSON file."""
    collector.rest()
    from vllm import envs
    from vllm.config import SpeculativeConfig
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.version import __version__

    parser = serve_parser.module().make_arg_parser(FlexibleArgumentParser())
    flags = dict(_flags(parser._actions))
    return {
        "vllm": re.match(r"[\d.]+\d", __version__).group(),  # type: ignore[union-attr]
        "flags": dict(sorted(flags.items())),
        "environment": sorted(envs.environment_variables),
        "speculative": sorted(f.name for f in dataclasses.fields(SpeculativeConfig)),
    }


def _flags(actions: Iterable[Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    for action in actions:
        longs = [o for o in action.option_strings if o.startswith("--")]
        if not longs or longs[0] == "--help":
            continue
        entry: dict[str, Any] = {"kind": _kind(action)}
        choices = [choice for choice in action.choices or () if choice is not None]
        if choices:
            entry["choices"] = sorted(choices)
        others = [o for o in action.option_strings if o != longs[0] and not o.startswith("--no-")]
        if others:
            entry["aliases"] = others
        if action.nargs != 0 and action.type and _read(action.type, "None") is None:
            entry["optional"] = True
        if action.nargs == "?":
            entry["bare"] = True
        if action.nargs == "+" and _read(action.type, "1") == 1:
            entry["of"] = "int"
        if keys := _keys(action.type):
            entry["keys"] = keys
        yield longs[0].removeprefix("--"), entry


def _kind(action: Any) -> str:
    """The kind of an argparse action of vLLM's parser, found by what its type callable accepts."""
    if action.nargs == 0:
        negated = any(o.startswith("--no-") for o in action.option_strings)
        return "bool" if negated else "switch"
    if action.nargs in ("+", "*"):
        return "list"
    if type(action).__name__ == "_AppendAction":
        return "append"
    if action.type in (int, float):
        return str(action.type.__name__)
    if action.type in (str, None):
        return "string"
    read = partial(_read, action.type)
    if read("A-b") == "a_b":
        return "name"
    if read("A-b") == "A-b":
        return "table" if read("{}") == {} else "string"
    # What is a number in disguise (an optional one), or JSON; the rest is left to vLLM.
    if _keys(action.type):
        return "config"
    if read("{}") == {}:
        return "json"
    if read("16k") == 16_000:
        return "size-or-auto" if read("auto") == -1 else "size"
    if read("0.5") == 0.5:
        return "float"
    return "int" if read("1") == 1 else "any"


def _keys(convert: Any) -> list[str]:
    """The keys of the configuration object that a type callable makes, none for another."""
    made = _read(convert, "{}")
    if not dataclasses.is_dataclass(made):
        return []
    return sorted(f.name for f in dataclasses.fields(made) if f.init)


def _read(convert: Callable[[str], object], sample: str) -> object:
    """What a type callable makes of a sample, the error where it refuses."""
    try:
        return convert(sample)
    except Exception as e:
        return e
