"""A list of `vllm serve` flags as the values that vLLM reads out of it, and back into words.

vLLM takes a flag in many spellings: short forms, underscores, beginnings of a name that fit one
flag alone, `-O3`, sizes like 16k, and the keys of an object one by one (`-cc.cudagraph_mode=NONE`).
Its parser is read in 0.27.1 (utils/argparse_utils.py, engine/arg_utils.py); a test compares the two
over made lists. Nothing here needs vLLM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.recipe.vocabulary import Flag, Vocabulary, nearest, number_of

# vLLM's loader drops false booleans of a file, and reads the file only where the two words stand
# apart; this code is to run where no YAML reader is.
NO_FILE = "--config: got a YAML file; vLLM's loader drops false booleans: give the flags"
# Flags that are secrets, and the variable of docker/launch.py that takes a file instead.
SECRETS = {"api-key": "VLLM_API_KEY_FILE", "hf-token": "HF_TOKEN_FILE"}
OPTIMIZATION = "optimization-level"

_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
_OBJECT = re.compile(r"\s*\{.*\}\s*", re.DOTALL)
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*")')
_BARE_SIZE = re.compile(r"\b\d+(?:\.\d+)?[kmgtKMGT]\b")


class ArgumentsError(ValueError):
    """A list that vLLM would refuse; the message is one line that names flag, value and fix."""


@dataclass(frozen=True)
class Given:
    """What a list gives: values by long name, each as vLLM reads it.

    `keyed` are those given key by key: vLLM takes only these keys then, and no object beside them.
    `unread` are those of which it drops something for that.
    """

    values: Mapping[str, Any]
    keyed: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()

    def over(self, name: str, under: object) -> Any:
        """A flag's value laid over the one from before: single keys over its keys, else whole."""
        value = self.values[name]
        if name in self.keyed and isinstance(under, Mapping):
            return _merged(under, value)
        return value


def read(words: Sequence[str], vocabulary: Vocabulary) -> Given:
    """The values of a list of flags; the last one of a name wins. Raises ArgumentsError."""
    plain, by_key, lost = _without_keys(_spelt_alike(words), vocabulary)
    found: dict[str, Any] = {}
    rest = list(plain)
    while rest:
        word = rest.pop(0)
        option = _option(word, vocabulary)
        if option is None:
            raise _unknown(word, vocabulary)
        name, is_negated, value = option
        flag = vocabulary.flags[name]
        shown = word.partition("=")[0]
        if flag.kind in ("bool", "switch"):
            if value is not None:
                forms = f"--{name}" if flag.kind == "switch" else f"--{name} or --no-{name}"
                raise ArgumentsError(f"{shown}: got {value!r}; it takes no value: {forms}")
            found[name] = not is_negated
            continue
        texts = [] if value is None else [value]
        most = len(rest) if flag.kind == "list" else 1
        while value is None and rest and len(texts) < most and not _is_option(rest[0], vocabulary):
            texts.append(rest.pop(0))
        if texts:
            found[name] = _typed(name, flag, texts, found.get(name))
        elif flag.bare:
            found[name] = True
        else:
            raise ArgumentsError(f"{shown}: got no value; give {shown} VALUE")
    unread = frozenset(found.keys() & by_key.keys()) | lost
    for name, table in by_key.items():
        found[name] = _typed(name, vocabulary.flags[name], [json.dumps(table)], None)
    return Given(found, frozenset(by_key), unread)


def words_of(name: str, value: Any, vocabulary: Vocabulary) -> list[str]:
    """A flag as words that vLLM reads as this value; false is --no-name."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    flag = vocabulary.flags.get(name)
    if isinstance(value, list) and flag is not None and flag.kind == "append":
        return [word for each in value for word in words_of(name, each, vocabulary)]
    if isinstance(value, list) and (flag is None or flag.kind != "json"):
        texts = [text_of(each) for each in value]
    else:
        texts = [text_of(value)]
    if len(texts) == 1 and texts[0].startswith("-") and not texts[0][1:].isdigit():
        return [f"--{name}={texts[0]}"]
    return [f"--{name}", *texts]


def text_of(value: object) -> str:
    """A value as one word: tables as compact JSON."""
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"))
    return str(value)


def _spelt_alike(words: Sequence[str]) -> Iterator[str]:
    """Names with dashes, and -O3 under its long name."""
    for i, word in enumerate(words):
        if word.startswith("--"):
            name, joined, value = word.partition("=")
            head, dot, keys = name.partition(".")
            yield head.replace("_", "-") + dot + keys + joined + value
        elif word.startswith("-O") and word != "-O":
            yield f"--{OPTIMIZATION}"
            yield word[3:] if word[2] == "=" else word[2:]
        elif word == "-O" and words[i + 1 : i + 2] and words[i + 1] in ("0", "1", "2", "3"):
            yield f"--{OPTIMIZATION}"
        else:
            yield word


def _without_keys(
    words: Iterator[str], vocabulary: Vocabulary
) -> tuple[list[str], dict[str, dict[str, Any]], frozenset[str]]:
    """The words that give no single key, the tables of those that do, and what of them is lost.

    Of two spellings of one flag vLLM reads the later one alone.
    """
    plain: list[str] = []
    by_spelling: dict[str, dict[str, Any]] = {}
    for word in words:
        option, joined, text = word.partition("=")
        if not option.startswith("-") or "." not in option:
            plain.append(word)
            continue
        value = text if joined else next(words, None)
        if value is None:
            raise ArgumentsError(f"{option}: got no value; give {option}=VALUE")
        adds = option.endswith("+")
        spelling, *keys = option.removesuffix("+").split(".")
        table = by_spelling.setdefault(spelling, {})
        _add(table, keys, value.split(",") if adds else _loose(value))
    found: dict[str, dict[str, Any]] = {}
    lost: set[str] = set()
    for spelling, table in by_spelling.items():
        option_read = _option(spelling, vocabulary)
        if option_read is None:
            raise _unknown(spelling, vocabulary)
        name = option_read[0]
        if vocabulary.flags[name].kind not in ("config", "json", "table"):
            raise ArgumentsError(f"{spelling}.{next(iter(table))}: --{name} takes no keys")
        if name in found:
            lost.add(name)
        found[name] = table
    return plain, found, frozenset(lost)


def _add(table: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Lay one value into a table of tables: lists grow, the rest is replaced."""
    *outer, last = keys
    for key in outer:
        if not isinstance(table.get(key), dict):
            table[key] = {}
        table = table[key]
    if isinstance(value, list) and isinstance(table.get(last), list):
        table[last] = table[last] + value
    elif isinstance(value, dict) and isinstance(table.get(last), dict):
        for key, each in value.items():
            _add(table[last], [key], each)
    else:
        table[last] = value


def _loose(text: str) -> Any:
    """The value of a single key: JSON, else a size, else text."""
    try:
        return json.loads(text)
    except RecursionError as e:
        raise ArgumentsError(f"got {text[:40]!r}...; give a shorter value") from e
    except ValueError:
        number = number_of(text)
        return text if number is None else number


def _option(word: str, vocabulary: Vocabulary) -> tuple[str, bool, str | None] | None:
    """The flag that a word gives, whether negated, and a value joined to it; None for none.

    A beginning that fits one flag alone is that flag. Raises ArgumentsError for --config and for a
    beginning of several flags.
    """
    spellings = vocabulary.spellings
    option, joined, value = word.partition("=")
    explicit = value if joined else None
    if option in spellings:
        return _found(option, explicit, vocabulary)
    if not word.startswith("-") or word in ("-", "--"):
        return None
    if word.startswith("--"):
        fitting = {spelt: explicit for spelt in spellings if spelt.startswith(option)}
    else:  # -q2 is -q 2
        fitting = {spelt: None for spelt in spellings if spelt.startswith(word)}
        if word[:2] in spellings:
            fitting[word[:2]] = word[2:]
    if len(fitting) > 1:
        some = ", ".join(sorted(fitting)[:4])
        raise ArgumentsError(f"{option}: got the beginning of several flags; give one of {some}")
    for spelt, explicit in fitting.items():
        return _found(spelt, explicit, vocabulary)
    return None


def _found(spelt: str, value: str | None, vocabulary: Vocabulary) -> tuple[str, bool, str | None]:
    name, is_negated = vocabulary.spellings[spelt]
    if name == "config":
        raise ArgumentsError(NO_FILE)
    if name in SECRETS:
        raise ArgumentsError(
            f"{spelt}: got a secret, which the plan would print into the log; write it into a file"
            f" and name that in {SECRETS[name]}"
        )
    return name, is_negated, value


def _is_option(word: str, vocabulary: Vocabulary) -> bool:
    """Whether a word begins the next flag, so that it is no value of the one before."""
    if not word.startswith("-") or word == "-":
        return False
    if _option(word, vocabulary) is not None:
        return True
    return not _NEGATIVE.fullmatch(word) and " " not in word


def _unknown(word: str, vocabulary: Vocabulary) -> ArgumentsError:
    option = word.partition("=")[0]
    version = vocabulary.vllm_version
    close = nearest(option, [f"--{name}" for name in vocabulary.flags])
    return ArgumentsError(
        f"{option}: got an unknown server flag; vLLM {version} has no such flag{close}"
    )


def _typed(name: str, flag: Flag, texts: Sequence[str], before: Any) -> Any:
    """The value that vLLM makes of a flag's words; `before` is what was given already."""
    if flag.kind == "list":
        value: Any = [_one(name, flag, flag.of, text) for text in texts]
    elif flag.kind == "append":
        return [*(before or []), texts[0]]
    else:
        value = _one(name, flag, flag.kind, texts[0])
    chosen = value if isinstance(value, list) else [value]
    for each in chosen if flag.choices else ():
        if each not in flag.choices:
            several = ", ".join(str(choice) for choice in flag.choices)
            raise ArgumentsError(f"--{name}: got {text_of(each)!r}; give one of {several}")
    return value


def _one(name: str, flag: Flag, kind: str, text: str) -> Any:
    """One word as a value of a kind (deploy.recipe.vocabulary.KINDS)."""
    if flag.optional and text in ("", "None"):
        return None
    if kind in ("config", "json", "table"):
        return _from_json(name, flag, text)
    if kind == "name":
        return text.lower().replace("-", "_")
    if kind == "size-or-auto" and text.strip().lower() == "auto":
        return -1
    try:
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
    except ValueError as e:
        raise ArgumentsError(f"--{name}: got {text!r}; give {kind}") from e
    if kind in ("size", "size-or-auto"):
        number = number_of(text)
        if number is None:
            raise ArgumentsError(f"--{name}: got {text!r}; give a size, such as 4096, 16k or 16K")
        return number
    return text


def _from_json(name: str, flag: Flag, text: str) -> Any:
    if flag.kind == "table" and not _OBJECT.fullmatch(text):
        return text
    try:
        read = json.loads(_with_sizes(text) if flag.kind == "config" else text)
    except (ValueError, RecursionError) as e:
        raise ArgumentsError(f"--{name}: got {text!r}; give a JSON object") from e
    if not isinstance(read, dict if flag.kind == "config" else dict | list):
        raise ArgumentsError(f"--{name}: got {text!r}; give a JSON object")
    for key in read if flag.keys else ():
        if key not in flag.keys:
            close = nearest(key, flag.keys)
            raise ArgumentsError(
                f"--{name}: got the unknown key {key!r}{close}; it has {', '.join(flag.keys)}"
            )
    return read


def _with_sizes(text: str) -> str:
    """JSON whose bare numbers may be sizes, with these as numbers."""
    parts = _QUOTED.split(text)
    parts[::2] = [_BARE_SIZE.sub(lambda m: str(number_of(m[0])), part) for part in parts[::2]]
    return "".join(parts)


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(under[key], value)
        if isinstance(value, Mapping) and isinstance(under.get(key), Mapping)
        else value
        for key, value in over.items()
    }
    return {**under, **both}
