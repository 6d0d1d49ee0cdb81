"""Read deploy/recipe.toml into frozen values; refuse what it should not hold.

Every refusal is a RecipeError of one line: file, key, the value seen, the fix.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from deploy import vocabulary
from deploy.files import read_text
from deploy.vocabulary import Vocabulary, nearest

FILE = Path(__file__).with_name("recipe.toml")
SCHEMA = 1
UNVERIFIED = "unverified"
LIMIT_BYTES = 1 << 20  # ours is 10 kB

# No wait is longer; 11 days, so that every clock and timer takes it.
MOST_S = 1e6

# Tables that a profile lays its differences over; SHARED ones also reach a profile that does not
# inherit the AMD server: how to speculate, and how to judge.
MERGED = ("model", "serve", "speculative", "env", "health")
SHARED = frozenset({"speculative", "health"})

# Flags that the plan writes from other tables.
RESERVED = {
    "model": "model.id",
    "revision": "model.revision",
    "served-model-name": "model.served_name",
    "port": "ports.serve",
    "speculative-config": "[speculative]",
    "config": "this file (vLLM's YAML loader drops false booleans silently)",
}

EFFECTS = ("degraded", "not-ready")
# vLLM's CUDAGraphMode (0.27.1, config/compilation.py).
GRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")

T = TypeVar("T")

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


class RecipeError(ValueError):
    """The recipe cannot be used; the message is one line that names key, value and fix."""


@dataclass(frozen=True)
class Model:
    """What is served: a hub id or a folder, its revision, the name clients ask for."""

    id: str
    revision: str | None = None
    served_name: str | None = None
    weights_bytes: int | None = None
    dspark_block_size: int | None = None
    moe_intermediate_size: int | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None


@dataclass(frozen=True)
class Vllm:
    """The pinned vLLM: release, commit, the image's ROCm, and the image by tag and digest."""

    version: str
    commit: str
    rocm: str
    image: str
    digest: str

    @property
    def pinned_image(self) -> str:
        """Tag and digest together, as docker pulls it."""
        return f"{self.image}@{self.digest}"


@dataclass(frozen=True)
class Ports:
    """TCP ports of the two services."""

    serve: int
    health: int


@dataclass(frozen=True)
class Gpu:
    """The card a profile is made for; memory in GiB, count = cards one server uses."""

    name: str
    arch: str
    compute_units: int
    memory_gb: int
    count: int


@dataclass(frozen=True)
class Reference:
    """Published speculation figures to stand beside measured ones; rates are fractions."""

    source: str
    acceptance_rate: float
    acceptance_length: float
    acceptance_position_0: float


@dataclass(frozen=True)
class Health:
    """Budgets of the health service, in seconds unless the name says otherwise.

    No `long_prompt_tokens` leave the gate's long probes out, `gate_requests` 1 the one that sends
    several requests at once. `graph_restarts` is how many starts may be ended for a new one.
    """

    scrape_interval_s: float = 5.0
    connect_timeout_s: float = 2.0
    probe_timeout_s: float = 5.0
    start_budget_s: float = 7200.0
    warmup_timeout_s: float = 900.0
    generation_timeout_s: float = 180.0
    gate_tokens: int = 64
    long_prompt_tokens: tuple[int, ...] = (1500, 8000, 32000)
    long_tokens: int = 320
    gate_requests: int = 4
    graph_restarts: int = 3
    needle: bool = True
    canary_after_s: float = 45.0
    canary_timeout_s: float = 30.0
    canary_tokens: int = 8
    idle_check_after_s: float = 600.0
    evidence_max_age_s: float = 300.0
    readiness_budget_s: float = 60.0
    stall_budget_s: float = 660.0
    stall_confirmations: int = 3
    dead_after_s: float = 30.0
    bad_verdicts: int = 3
    good_verdicts: int = 2
    acceptance_window_drafts: int = 128
    acceptance_floor: float = 0.15
    acceptance_ceiling: float = 0.99
    acceptance_effect: str = "degraded"


@dataclass(frozen=True)
class Profile:
    """One way to serve, with the common tables merged in; `serve` is keyed by vLLM's flag names.

    `graphs` is the mode that it may be served with by choice, None where no public run held one up.
    """

    name: str
    evidence: str
    note: str
    model: Model
    serve: Mapping[str, Any]
    speculative: Mapping[str, Any] | None
    env: Mapping[str, str]
    health: Health
    vllm: Vllm
    ports: Ports
    reference: Reference
    gpu: Gpu | None = None
    graphs: str | None = None

    @property
    def vllm_version(self) -> str:
        """The release of the pinned vLLM."""
        return self.vllm.version

    @property
    def is_rehearsal(self) -> bool:
        """True for the CPU profile, whose models are generated and whose draft stands alone."""
        return self.gpu is None

    @property
    def chosen_graphs(self) -> str:
        """The mode that DSPARK_GRAPHS=on stands for. Raises RecipeError where there is none."""
        if self.graphs is None:
            raise RecipeError(
                f"DSPARK_GRAPHS: got 'on'; no public run of {self.name} held up with graphs: leave "
                "it off"
            )
        return self.graphs

    @property
    def served_model_name(self) -> str:
        """The name clients pass as `model`."""
        return self.model.served_name or self.model.id

    @property
    def revision(self) -> str | None:
        """The pinned revision of the weights, None for generated ones."""
        return self.model.revision


@dataclass(frozen=True)
class Recipe:
    """The whole file, checked: pins, ports and every profile."""

    vllm: Vllm
    ports: Ports
    reference: Reference
    profiles: Mapping[str, Profile] = field(default_factory=dict)

    def profile(self, name: str) -> Profile:
        """The named profile. Raises RecipeError that lists the names there are."""
        if name in self.profiles:
            return self.profiles[name]
        raise RecipeError(f"profile: got {name!r}; it is one of {', '.join(self.profiles)}")


def load(path: Path | None = None) -> Recipe:
    """Read and check a recipe. Raises RecipeError."""
    path = path or FILE
    try:
        data = tomllib.loads(read_text(path, LIMIT_BYTES))
    except OSError as e:
        raise RecipeError(f"{path}: cannot be read ({e.strerror}); give a recipe file") from e
    except UnicodeDecodeError as e:
        raise RecipeError(f"{path}: is not UTF-8 text ({e.reason}); save it as UTF-8") from e
    except tomllib.TOMLDecodeError as e:
        raise RecipeError(f"{path}: is not TOML: {e}; mend that line") from e
    except RecursionError as e:
        raise RecipeError(f"{path}: is not a recipe: tables in tables without end") from e
    return _Reader(path, vocabulary.load()).recipe(data)


class _Reader:
    """Turns TOML tables into dataclasses, with the file's name in every message."""

    def __init__(self, path: Path, words: Vocabulary) -> None:
        self.path = path
        self.words = words

    def recipe(self, data: Mapping[str, Any]) -> Recipe:
        self.refuse_unfit("", data)
        self.refuse_unknown("", data, {"schema", "vllm", "ports", "reference", "profiles", *MERGED})
        if data.get("schema") != SCHEMA:
            raise self.refusal("schema", data.get("schema"), f"this code reads schema {SCHEMA}")
        vllm = self.read(Vllm, "vllm", self.table(data, "vllm"))
        if not _DIGEST.fullmatch(vllm.digest):
            raise self.refusal("vllm.digest", vllm.digest, "give sha256: and 64 hex digits")
        if vllm.version != self.words.vllm_version:
            fix = f"deploy/vocabulary.json is for {self.words.vllm_version}: write it again"
            raise self.refusal("vllm.version", vllm.version, fix)
        ports = self.read(Ports, "ports", self.table(data, "ports"))
        for name, port in dataclasses.asdict(ports).items():
            if not 1 <= port <= 65535:
                raise self.refusal(f"ports.{name}", port, "give a port from 1 to 65535")
        reference = self.read(Reference, "reference", self.table(data, "reference"))
        common = {part: self.table(data, part) for part in MERGED}
        self.check_parts("", common)
        tables = self.table(data, "profiles")
        if not tables:
            raise self.refusal("profiles", tables, "define at least one profile")
        profiles: dict[str, Profile] = {}
        for name in tables:
            key = f"profiles.{name}"
            table = self.table(tables, name, "profiles")
            parts = self.merged(key, table, common, tables)
            gpu = self.table(table, "gpu", key, required=False)
            profiles[name] = Profile(
                name=name,
                evidence=self.text(key, table, "evidence"),
                note=self.text(key, table, "note"),
                model=self.model(f"{key}.model", parts["model"]),
                serve=parts["serve"],
                speculative=parts["speculative"] or None,
                env=parts["env"],
                health=self.health(f"{key}.health", parts["health"]),
                vllm=vllm,
                ports=ports,
                reference=reference,
                gpu=self.read(Gpu, f"{key}.gpu", gpu) if gpu else None,
                graphs=self.graphs(key, table, tables),
            )
        return Recipe(vllm, ports, reference, profiles)

    def merged(
        self,
        key: str,
        table: Mapping[str, Any],
        common: Mapping[str, Mapping[str, Any]],
        tables: Mapping[str, Any],
    ) -> dict[str, dict[str, Any]]:
        """The profile's tables laid over those of the profile it is like, over the common ones."""
        own_keys = {"evidence", "note", "gpu", "graphs", "inherit", "like", *MERGED}
        self.refuse_unknown(key, table, own_keys)
        inherit = table.get("inherit", True)
        if not isinstance(inherit, bool):
            raise self.refusal(f"{key}.inherit", inherit, "give true or false")
        like = table.get("like")
        alone = [n for n, t in tables.items() if isinstance(t, dict) and "like" not in t]
        if like is not None and like not in alone:
            one_of = ", ".join(n for n in alone if f"profiles.{n}" != key)
            raise self.refusal(f"{key}.like", like, f"name a profile that stands alone: {one_of}")
        own = {part: self.table(table, part, key, required=False) for part in MERGED}
        self.check_parts(key, own)
        result: dict[str, dict[str, Any]] = {}
        for part in MERGED:
            base = dict(common[part]) if inherit or part in SHARED else {}
            if like is not None:
                base |= self.table(tables[like], part, f"profiles.{like}", required=False)
            for setting, value in own[part].items():
                if setting in base and _same(base[setting], value):
                    fix = "a profile holds differences only: drop the line"
                    raise self.refusal(f"{key}.{part}.{setting}", value, fix)
            result[part] = {**base, **own[part]}
        return result

    def graphs(self, key: str, table: Mapping[str, Any], tables: Mapping[str, Any]) -> str | None:
        """The profile's own graph mode, else that of the profile it is like."""
        source = tables[table["like"]] if "like" in table and "graphs" not in table else table
        mode = source.get("graphs")
        if mode is None:
            return None
        if mode not in GRAPH_MODES:
            raise self.refusal(f"{key}.graphs", mode, f"give one of {', '.join(GRAPH_MODES)}")
        return str(mode)

    def check_parts(self, key: str, parts: Mapping[str, Mapping[str, Any]]) -> None:
        """Names and types of one level's tables, against what the pinned vLLM knows."""
        at = f"{key}." if key else ""
        version = self.words.vllm_version
        for name, value in parts["serve"].items():
            flag = self.words.flags.get(name)
            if flag is None:
                fix = f"vLLM {version} has no such flag{nearest(name, self.words.flags)}"
                raise self.refusal(f"{at}serve.{name}", value, fix)
            if name in RESERVED:
                raise self.refusal(f"{at}serve.{name}", value, f"it comes from {RESERVED[name]}")
            if not flag.accepts(value):
                fix = f"vLLM {version} takes {_article(flag.kind)}"
                raise self.refusal(f"{at}serve.{name}", value, fix)
            if flag.choices and isinstance(value, str) and value not in flag.choices:
                fix = f"vLLM {version} takes one of {', '.join(map(str, flag.choices))}"
                raise self.refusal(f"{at}serve.{name}", value, fix)
        for name, value in parts["speculative"].items():
            if name not in self.words.speculative:
                close = nearest(name, self.words.speculative)
                fix = f"vLLM {version} has no such speculative setting{close}"
                raise self.refusal(f"{at}speculative.{name}", value, fix)
        for name, value in parts["env"].items():
            if not _ENV_NAME.fullmatch(name):
                raise self.refusal(f"{at}env.{name}", value, "give an upper-case variable name")
            if name.startswith("VLLM_") and name not in self.words.environment:
                close = nearest(name, self.words.environment)
                raise self.refusal(f"{at}env.{name}", value, f"vLLM {version} reads no such{close}")
            if not isinstance(value, str):
                raise self.refusal(
                    f"{at}env.{name}", value, "environment values are strings: quote"
                )

    def model(self, key: str, table: Mapping[str, Any]) -> Model:
        model = self.read(Model, key, table)
        if not model.id.strip() or model.id.startswith("-"):
            raise self.refusal(f"{key}.id", model.id, "name a model of a hub, or a folder")
        return model

    def health(self, key: str, table: Mapping[str, Any]) -> Health:
        health = self.read(Health, key, table)
        for setting, value in dataclasses.asdict(health).items():
            if setting.endswith("_s") and value > MOST_S:
                raise self.refusal(f"{key}.{setting}", value, f"give seconds, to {MOST_S:g}")
        lengths = health.long_prompt_tokens
        if list(lengths) != sorted(set(lengths)):
            fix = "give lengths from short to long"
            raise self.refusal(f"{key}.long_prompt_tokens", lengths, fix)
        for rate in ("acceptance_floor", "acceptance_ceiling"):
            if not getattr(health, rate) <= 1:
                raise self.refusal(f"{key}.{rate}", getattr(health, rate), "give a fraction to 1")
        if health.acceptance_effect not in EFFECTS:
            fix = f"give one of {', '.join(EFFECTS)}"
            raise self.refusal(f"{key}.acceptance_effect", health.acceptance_effect, fix)
        return health

    def read(self, kind: type[T], key: str, table: Mapping[str, Any]) -> T:
        """A dataclass from a table: every field's type checked, nothing unknown, none missing."""
        hints = get_type_hints(kind)
        self.refuse_unknown(key, table, hints)
        for f in dataclasses.fields(kind):  # type: ignore[arg-type]
            if f.name not in table:
                if f.default is dataclasses.MISSING:
                    raise RecipeError(f"{self.path}: {key}.{f.name}: is missing; add it")
                continue
            if not _fits(table[f.name], hints[f.name]):
                fix = f"give {_article(_type_name(hints[f.name]))}"
                raise self.refusal(f"{key}.{f.name}", table[f.name], fix)
            if not _is_amount(table[f.name]):
                raise self.refusal(f"{key}.{f.name}", table[f.name], "give a number above 0")
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in table.items()})

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

    def text(self, key: str, table: Mapping[str, Any], name: str) -> str:
        value = table.get(name, "")
        if not isinstance(value, str) or not value.strip():
            fix = f'say what ran, where and when, or "{UNVERIFIED}"'
            raise self.refusal(f"{key}.{name}", value, fix)
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


def _same(a: object, b: object) -> bool:
    return type(a) is type(b) and a == b


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


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
