"""What the health service is told to expect."""

import pytest

from healthcheck import settings
from healthcheck.settings import SettingsError


def test_a_server_without_a_draft_is_not_asked_for_one() -> None:
    """The entrypoint's switch reaches the service, or such a server would never pass the gate."""
    assert settings.make("mi355x").policy.speculates
    assert not settings.make("mi355x", speculation="off").policy.speculates


def test_an_unknown_switch_is_refused() -> None:
    """One line: the setting, the value, the legal ones."""
    with pytest.raises(SettingsError) as refused:
        settings.make("mi355x", speculation="no")
    assert str(refused.value) == "DSPARK_SPECULATION: got 'no'; give on or off"
