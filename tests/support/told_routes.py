"""Routes that the documents name: of the health service, and of vLLM."""

from __future__ import annotations

import functools
import re
from unittest import mock

from deploy import recipe
from healthcheck.service import app as service
from tests.support.told_words import Wrong

# What vLLM answers to over HTTP, of which the documents speak.
VLLM_ROUTES = (
    *("/health", "/metrics", "/version", "/tokenize", "/v1/models", "/invocations"),
    *("/generative_scoring", "/scale_elastic_ep"),
)
# Of the paths that vLLM's own guard covers, the beginnings.
GUARDED = ("/v1", "/v2", "/inference", "/cohere")
_SYSTEM = ("/dev/", "/opt/", "/path/", "/var/")


@functools.cache
def routes() -> frozenset[str]:
    """Paths of the health service."""
    made = service.app(mock.MagicMock(), mock.MagicMock())
    return frozenset(str(getattr(route, "path", "")) for route in made.routes)


def check_url(url: str) -> None:
    """Raises Wrong for a port or path of this host that neither server nor health service has."""
    match = re.fullmatch(r"https?://[^/:]+(?::(\d+))?(/[^?#]*)?([?#].*)?", url)
    if match is None:
        raise Wrong(f"{url}: is no URL")
    ports = recipe.load().ports
    known = {ports.serve: VLLM_ROUTES, ports.health: tuple(routes())}
    port = int(match[1] or 0)
    if port not in known:
        raise Wrong(f"{url}: port {port} is neither the server's nor the health service's")
    if match[2] and match[2] not in known[port] and match[2] != "/":
        raise Wrong(f"{url}: {match[2]} is no route there")


def check_path(path: str) -> None:
    """Raises Wrong for inline code that looks like a route and is none, nor a place of a system."""
    plain = path.partition("?")[0]
    known = {*routes(), *VLLM_ROUTES, *GUARDED}
    if plain not in known and not plain.startswith(_SYSTEM):
        raise Wrong(f"{path}: is a route of neither the server nor the health service")
