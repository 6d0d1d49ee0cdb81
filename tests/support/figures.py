"""Lines that a passing test shows, such as what a proof measured."""

from collections.abc import Iterable

import pytest


def show(request: pytest.FixtureRequest, lines: Iterable[str]) -> None:
    """Write lines to the terminal of the run, which keeps what a passing test prints to itself."""
    plugins = request.config.pluginmanager
    with plugins.getplugin("capturemanager").global_and_fixture_disabled():
        for line in lines:
            plugins.getplugin("terminalreporter").write_line(line)
