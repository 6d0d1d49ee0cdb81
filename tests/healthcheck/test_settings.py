"""What the health service is told to expect."""

from healthcheck import settings


def test_a_server_without_a_draft_is_not_asked_for_one() -> None:
    """The entrypoint's switch reaches the service, or such a server would never pass the gate."""
    assert settings.make("mi355x").policy.speculates
    assert not settings.make("mi355x", speculation=False).policy.speculates
