"""The launch plan: a pure function from profile, extra flags and environment to argv and env."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy import door, memory, vocabulary
from deploy.memory import Memory
from deploy.recipe import Profile
from deploy.rules import Intent, check
from deploy.vocabulary import Vocabulary, nearest

# Runs vLLM's command line in a named interpreter, so that the tree that was checked is the one run.
VLLM_MODULE = "vllm.entrypoints.cli.main"

# Flags that are secrets, and the variable of docker/launch.py that takes a file instead.
_SECRETS = {"api-key": "VLLM_API_KEY_FILE", "hf-token": "HF_TOKEN_FILE"}

_PLACEHOLDER = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")


class PlanError(ValueError):
    """The plan may not start; the message is one line that names setting, value and fix."""


@dataclass(frozen=True)
class Plan:
    """What would run: `argv` beginning with `vllm serve`, `env` to add, and what to say first.

    `asks` and `longest` are what decides whether a fault of vLLM hits it: see `Intent`.
    """

    profile: str
    evidence: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    warnings: tuple[str, ...]
    asks: frozenset[str]
    longest: int | None

    @property
    def speculates(self) -> bool:
        """Whether the server drafts."""
        return "draft" in self.asks

    memory: Memory | None  # of each card, None without a card

    def exec_argv(self, python: str) -> list[str]:
        """The same command run by a given interpreter."""
        return [python, "-m", VLLM_MODULE, *self.argv[1:]]

    def render(self, form: str) -> str:
        """The plan as `argv` (one word a line), `env` (NAME=value lines), `json` or `shell`."""
        if form == "argv":
            return "\n".join(self.argv)
        if form == "env":
            return "\n".join(f"{name}={value}" for name, value in self.env.items())
        if form == "json":
            fields = {
                "profile": self.profile,
                "evidence": self.evidence,
                "argv": list(self.argv),
                "env": dict(self.env),
                "warnings": list(self.warnings),
            }
            return json.dumps(fields, indent=2)
        if form == "shell":
            words = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
            return " \\\n  ".join(
                [*words, " ".join(shlex.quote(a) for a in self.argv[:3]), *_lines(self.argv[3:])]
            )
        raise ValueError(f"no such form: {form}")


def make(
    profile: Profile,
    extra: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    speculation: bool = True,
    graphs: bool = False,
) -> Plan:
    """The plan of a profile.

    `extra` are `vllm serve` flags laid over the recipe's, as a user adds them to the container.
    `environ` is the environment the server will start in: what it already sets wins over the
    recipe and is told as a warning. `speculation=False` serves without a draft, `graphs=True` with
    the profile's graph mode.
    Raises PlanError for a flag vLLM does not know and for a broken rule, RecipeError for graphs
    where the profile has no mode of them.
    """
    environ = environ or {}
    given = read_flags(extra, vocabulary.load())
    intended = intent(profile, given, environ, speculation, graphs)
    overrides = [
        f"--{name} {_text(value)} overrides the recipe's {_text(profile.serve[name])}"
        for name, value in given.items()
        if name in profile.serve and profile.serve[name] != value
    ]
    env = {name: expand(intended.env[name], environ) for name in profile.env}
    overrides += [
        f"environment {name}={env[name]} overrides the recipe's {value}"
        for name, value in profile.env.items()
        if environ.get(name, value) != value
    ]
    findings = check(intended)
    fatal = [f.message for f in findings if f.fatal]
    if fatal:
        raise PlanError(fatal[0])
    argv = ["vllm", "serve", expand(profile.model.id, environ)]
    identity: dict[str, Any] = {"served-model-name": profile.served_model_name}
    if profile.revision:
        identity["revision"] = profile.revision
    identity["port"] = profile.ports.serve
    for name, value in {**identity, **intended.serve}.items():
        argv += flag_words(name, value)
    speculative = intended.speculative or {}
    if speculative:
        table = {k: expand(v, environ) if isinstance(v, str) else v for k, v in speculative.items()}
        argv += flag_words("speculative-config", table)
    if environ.get(door.KEY):
        argv += flag_words("middleware", door.NAME)  # beside a user's own, and before it
    return Plan(
        profile=profile.name,
        evidence=profile.evidence,
        argv=tuple(argv),
        env=env,
        warnings=(*(f.message for f in findings), *overrides),
        asks=intended.asks,
        longest=intended.longest,
        memory=memory.of(intended, profile.gpu) if profile.gpu else None,
    )


def intent(
    profile: Profile,
    given: Mapping[str, Any],
    environ: Mapping[str, str],
    speculation: bool = True,
    graphs: bool = False,
) -> Intent:
    """The profile with the user's flags (as `read_flags` gives them) and environment laid over it.

    Raises PlanError for a speculative-config that is no JSON object, RecipeError for graphs where
    the profile has no mode of them.
    """
    serve = {**profile.serve, **(_with_graphs(profile) if graphs else {}), **given}
    speculative = profile.speculative if speculation else None
    if "speculative-config" in serve:
        speculative = _json_table("speculative-config", serve.pop("speculative-config"))
    return Intent(
        model=profile.model,
        is_rehearsal=profile.is_rehearsal,
        arch=profile.gpu.arch if profile.gpu else None,
        vllm_version=profile.vllm_version,
        serve=serve,
        speculative=speculative,
        env={**profile.env, **environ},
        health=profile.health,
    )


def _with_graphs(profile: Profile) -> dict[str, Any]:
    """The flag that serves with the profile's graph mode."""
    config = _json_table("compilation-config", profile.serve.get("compilation-config", {}))
    return {"compilation-config": {**config, "cudagraph_mode": profile.chosen_graphs}}


def flag_words(name: str, value: Any) -> list[str]:
    """A flag as argv words: true is --name, false is --no-name, tables are compact JSON."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list):
        return [f"--{name}", *(str(v) for v in value)]
    return [f"--{name}", _text(value)]


def read_flags(extra: Sequence[str], words: Vocabulary) -> dict[str, Any]:
    """Extra `vllm serve` flags as a table keyed by long name; the last one of a name wins.

    Takes `--flag value`, `--flag=value`, `--no-flag` and vLLM's short forms. Raises PlanError.
    """
    found: dict[str, Any] = {}
    rest = list(extra)
    while rest:
        option, joined, value = rest.pop(0).partition("=")
        name = words.resolve(option) if option.startswith("-") else None
        if name is None:
            known = [f"--{f}" for f in words.flags]
            raise PlanError(
                f"{option}: got an unknown server flag; vLLM {words.vllm_version} has no such"
                f" flag{nearest(option, known)}"
            )
        if name in _SECRETS:
            raise PlanError(
                f"{option}: got a secret, which the plan would print into the log; write it into a"
                f" file and name that in {_SECRETS[name]}"
            )
        if name == "config":
            raise PlanError(
                "--config: got a YAML file; vLLM's loader drops false booleans: give the flags"
            )
        flag = words.flags[name]
        if flag.kind == "bool":
            if joined:
                raise PlanError(
                    f"{option}: got {value!r}; it takes no value: --{name} or --no-{name}"
                )
            found[name] = not option.lstrip("-").startswith("no-") or name.startswith("no-")
            continue
        if flag.kind == "list":
            values = [value] if joined else []
            while not joined and rest and not rest[0].startswith("-"):
                values.append(rest.pop(0))
        elif joined:
            values = [value]
        elif rest and not (rest[0].startswith("--") or words.resolve(rest[0])):
            values = [rest.pop(0)]
        else:
            values = []
        if not values:
            raise PlanError(f"{option}: got no value; give {option} VALUE")
        found[name] = _typed(name, flag.kind, values)
    return found


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Fill ${NAME} from the environment. Raises PlanError for a variable that is not set."""

    def fill(match: re.Match[str]) -> str:
        value = environ.get(match[1])
        if value is None:
            raise PlanError(
                f"{match[1]}: is not set and {text!r} needs it; start the CPU rehearsal with"
                " `make rehearsal`"
            )
        return value

    return _PLACEHOLDER.sub(fill, text)


def _typed(name: str, kind: str, values: list[str]) -> Any:
    text = values[0]
    try:
        if kind == "list":
            return values
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
        if kind == "json" and text.startswith("{"):
            return _json_table(name, text)
    except ValueError as e:
        if isinstance(e, PlanError):
            raise
        raise PlanError(f"--{name}: got {text!r}; give {kind}") from e
    return text


def _json_table(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    try:
        table = json.loads(value)
    except (ValueError, RecursionError) as e:
        raise PlanError(f"--{name}: got {value!r}; give a JSON object") from e
    if not isinstance(table, dict):
        raise PlanError(f"--{name}: got {value!r}; give a JSON object")
    return table


def _text(value: Any) -> str:
    return (
        json.dumps(value, separators=(",", ":")) if isinstance(value, dict | list) else str(value)
    )


def _lines(words: Sequence[str]) -> list[str]:
    """Each flag with its values as one shell line."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return [" ".join(line) for line in lines]
