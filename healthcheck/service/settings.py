"""What the health service runs with: the command line laid over the recipe's profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from deploy import recipe
from deploy.addresses import http_parts
from deploy.files import SecretError, read_secret
from deploy.recipe import RecipeError, budgets
from healthcheck.client import FileSecret, Secret, tls_context
from healthcheck.verdict import Policy

# A readiness probe every 5 s has seen the drain by then, and the endpoint is out of rotation.
DRAIN_S = 6.0


class SettingsError(ValueError):
    """A setting cannot be used; the message is one line: the setting, the value seen, the fix."""


@dataclass(frozen=True)
class Settings:
    """Everything effective. Secrets print as stars; `log` is the server's log, for causes."""

    profile: str
    target: str
    policy: Policy
    host: str
    port: int
    api_key: Secret | None = None
    token: Secret | None = None
    log: Path | None = None
    drain_s: float = DRAIN_S
    grpc_port: int | None = None
    authorities: Path | None = None  # of an https target's certificate, None for the public ones

    def shown(self) -> Mapping[str, object]:
        """For reports: every value but the secrets, of which only that they are set."""
        return {
            "profile": self.profile,
            "target": self.target,
            "model": self.policy.model,
            "speculates": self.policy.speculates,
            "host": self.host,
            "port": self.port,
            "grpc_port": self.grpc_port,
            "api_key": self.api_key is not None,
            "token": self.token is not None,
            "ca_file": self.authorities.name if self.authorities else None,
            "log": self.log.name if self.log else None,
            "drain_s": self.drain_s,
            "budgets": asdict(self.policy.health),
        }


def make(
    profile: str | None,
    *,
    target: str | None = None,
    model: str | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    api_key_file: Path | None = None,
    token_file: Path | None = None,
    ca_file: Path | None = None,
    log: Path | None = None,
    drain_s: float = DRAIN_S,
    grpc_port: int | None = None,
    recipe_file: Path | None = None,
    speculation: bool = True,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """The settings; `speculation` False: the server was started without a draft. `environ` are the
    variables that the server was given too.

    Raises SettingsError for what the recipe or a value forbids."""
    try:
        loaded = recipe.load(recipe_file)
        if profile is None:
            names = ", ".join(loaded.profiles)
            raise SettingsError(f"--profile: got none; it is one of {names}")
        chosen = loaded.profile(profile)
        health = budgets.of(chosen, environ or {})
    except RecipeError as e:
        raise SettingsError(str(e)) from e
    port = chosen.ports.health if port is None else port
    if not 0 <= port <= 65535:
        raise SettingsError(f"--port: got {port}; give a port from 1 to 65535")
    if grpc_port is not None and not 1 <= grpc_port <= 65535:
        raise SettingsError(f"--grpc-port: got {grpc_port}; give a port from 1 to 65535")
    if grpc_port is not None and grpc_port == port:
        raise SettingsError(f"--grpc-port: got {grpc_port}, which is --port; give another")
    seconds("--drain", drain_s)
    speculates = chosen.speculative is not None and speculation
    policy = Policy(health, model or chosen.served_model_name, speculates)
    return Settings(
        chosen.name,
        url("--target", target or f"http://127.0.0.1:{chosen.ports.serve}"),
        policy,
        host,
        port,
        secret("--api-key-file", api_key_file),
        secret("--token-file", token_file),
        log,
        drain_s,
        grpc_port,
        authorities(ca_file),
    )


def seconds(setting: str, value: float) -> float:
    """A time that can be waited for. Raises SettingsError."""
    if not 0 <= value <= recipe.MOST_S:
        raise SettingsError(f"{setting}: got {value}; give seconds from 0 to {recipe.MOST_S:g}")
    return value


def url(setting: str, value: str) -> str:
    """An http address without a trailing slash. Raises SettingsError."""
    fix = "give an address such as http://127.0.0.1:8000"
    parts = http_parts(value)
    if parts is None:
        raise SettingsError(f"{setting}: got {value!r}; {fix}")
    if parts.username or parts.password:
        raise SettingsError(f"{setting}: holds a user name; secrets go into --api-key-file")
    if parts.query or parts.fragment:
        raise SettingsError(f"{setting}: got {value!r}; leave the query out")
    return value.rstrip("/")


def secret(setting: str, path: Path | None) -> Secret | None:
    """The secret of a file, None without one. Raises SettingsError."""
    if path is None:
        return None
    try:
        value = read_secret(path)
        if not value:
            raise SecretError
    except OSError as e:
        raise SettingsError(f"{setting}: {path} cannot be read ({e.strerror}); mend it") from e
    except SecretError as e:
        raise SettingsError(f"{setting}: {path} {e}") from e
    return FileSecret(value, path)


def authorities(path: Path | None) -> Path | None:
    """A file of certificates to trust, None for none. Raises SettingsError."""
    if path is not None:
        try:
            tls_context(path)
        except OSError as e:  # of which what is no certificate is one
            fix = "give a file of certificates in PEM"
            raise SettingsError(f"--ca-file: {path}: {e.strerror or e}; {fix}") from e
    return path
