"""Takes out of texts that are sent what names a machine, a person or a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s'\"<>)]{1,2000}")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?(?![\w.])")
_ADDRESS_6 = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{0,4}(?![\w:])")
_KEY = re.compile(r"\b(?:hf_|sk-|Bearer )[\w.-]{6,}")
_QUOTED_PATH = re.compile(r"(['\"])([/~][^'\"\n]{1,1000})\1")
_PATH = re.compile(r"(?<![\w.<~/])~?(?:/[\w.+@~:-]{1,200}){1,40}/?")
# Places that are the same on every machine, and the server's own routes.
_PLACES = re.compile(r"/(?:dev|proc|sys|v1|health|metrics|version|tokenize|ping)(?:/|$)")


@dataclass(frozen=True)
class Redaction:
    """`words` are texts that are known to name something, and what stands for them."""

    words: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, hosts: Iterable[str], keys: Iterable[str], kept: Iterable[str] = ()) -> Redaction:
        """Of these keys and of the names of these hosts, in full and in short, but for those that
        are `kept`. Empty ones pass."""
        names = set(hosts)
        names |= {name.partition(".")[0] for name in names if not name[:1].isdigit()}
        names -= set(kept)
        hidden = [(key, "<key>") for key in keys if key]
        hidden += [
            (name, "<host>") for name in sorted(names, key=len, reverse=True) if len(name) > 2
        ]
        return cls(tuple(hidden))

    def clean(self, value: object) -> object:
        """The same value, with every text in it cleaned; the keys of tables are this project's."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {str(key): self.clean(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.clean(inner) for inner in value]
        return value

    def text(self, text: str) -> str:
        """One text without keys, URLs, paths, addresses and names of hosts."""
        for word, shown in self.words:
            if shown == "<key>":
                text = text.replace(word, shown)
        text = _KEY.sub("<key>", text)
        text = _URL.sub("<url>", text)
        text = _QUOTED_PATH.sub(lambda m: f"{m[1]}{_place(m[2])}{m[1]}", text)
        text = _PATH.sub(lambda m: _place(m[0]), text)
        text = _ADDRESS.sub("<address>", text)
        text = _ADDRESS_6.sub("<address>", text)
        for word, shown in self.words:
            text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", shown, text)
        return text


def _place(path: str) -> str:
    return path if _PLACES.match(path) else "<path>"
