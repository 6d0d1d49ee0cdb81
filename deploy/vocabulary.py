"""The names that the pinned vLLM knows: server flags, environment variables, speculative settings.

`deploy/vocabulary.json` is written by `python3 -m deploy vocabulary --write`, which asks vLLM's own
argument parser; a test compares the file with the parser again. With it a misspelt name in the
recipe is refused in milliseconds, on a machine that has no vLLM.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("vocabulary.json")

# What a value may be. "any" is left to vLLM's own parser.
KINDS: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "size": (int, str),  # vLLM reads 16k and, for some flags, auto
    "string": (str,),
    "json": (dict, str),
    "list": (list, str),
    "any": (bool, int, float, str, dict, list),
}


@dataclass(frozen=True)
class Flag:
    """One `vllm serve` flag: its kind (a key of KINDS), legal values if listed, short forms."""

    kind: str
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    def accepts(self, value: object) -> bool:
        """Whether a TOML value has this flag's type; bool is not an int here."""
        if isinstance(value, bool) and self.kind not in ("bool", "any"):
            return False
        return isinstance(value, KINDS[self.kind])


@dataclass(frozen=True)
class Vocabulary:
    """Names known to one vLLM version; flags are keyed without their leading dashes."""

    vllm_version: str
    flags: Mapping[str, Flag]
    environment: frozenset[str]
    speculative: frozenset[str]

    def resolve(self, option: str) -> str | None:
        """The long name of an option spelt long, short or negated, else None."""
        name = option.lstrip("-").replace("_", "-")
        if name in self.flags:
            return name
        if name.removeprefix("no-") in self.flags and name.startswith("no-"):
            return name.removeprefix("no-")
        return next((long for long, flag in self.flags.items() if option in flag.aliases), None)


_SIZE = re.compile(r"(\d+)(\.\d+)?([kmgtKMGT])?")
_POWERS = "kmgt"


def size(value: object) -> int | None:
    """A size as vLLM reads one: 16k is 16,000 and 16K 16,384 (0.27.1, utils/argparse_utils.py).

    None for what is none of 0 or more, such as `auto`.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value >= 0 else None
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return None
    whole, part, unit = match.groups()
    if unit is None or unit.isupper():
        power = _POWERS.index(unit.lower()) + 1 if unit else 0
        return None if part else int(whole) * 1024**power
    return int(float(whole + (part or "")) * 1000 ** (_POWERS.index(unit) + 1))


def nearest(name: str, known: Collection[str]) -> str:
    """`; did you mean X?` for the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def load(path: Path = FILE) -> Vocabulary:
    """Read the vocabulary that is shipped with the recipe."""
    data = json.loads(path.read_text(encoding="utf-8"))
    flags = {
        name: Flag(f["kind"], tuple(f.get("choices", ())), tuple(f.get("aliases", ())))
        for name, f in data["flags"].items()
    }
    return Vocabulary(
        data["vllm"], flags, frozenset(data["environment"]), frozenset(data["speculative"])
    )


def from_vllm() -> dict[str, Any]:
    """Ask the installed vLLM; needs vLLM importable. Returns the content of the JSON file."""
    from vllm import envs
    from vllm.config import SpeculativeConfig
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.version import __version__

    parser = make_arg_parser(FlexibleArgumentParser())
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
        if action.choices and all(isinstance(c, str) for c in action.choices):
            entry["choices"] = sorted(action.choices)
        shorts = [o for o in action.option_strings if not o.startswith("--")]
        if shorts:
            entry["aliases"] = shorts
        yield longs[0].removeprefix("--"), entry


def _kind(action: Any) -> str:
    """The kind of an argparse action of vLLM's parser, found by what its type callable accepts."""
    if action.nargs == 0:
        return "bool"
    if action.nargs in ("+", "*"):
        return "list"
    if action.type in (int, float):
        return str(action.type.__name__)
    if action.type in (str, None):
        return "string"
    accepts = {sample: _accepts(action.type, sample) for sample in ("{}", "1", "0.5", "16k", "x")}
    # int or float in disguise (an optional number), a size, a JSON value; the rest is left to vLLM.
    if accepts["{}"] and not accepts["x"]:
        return "json"
    if accepts["16k"] and not accepts["x"]:
        return "size"
    if accepts["0.5"] and not accepts["x"]:
        return "float"
    if accepts["1"] and not accepts["x"]:
        return "int"
    return "any"


def _accepts(convert: Callable[[str], object], sample: str) -> bool:
    try:
        convert(sample)
    except Exception:
        return False
    return True
