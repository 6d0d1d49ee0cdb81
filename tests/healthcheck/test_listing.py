"""What the health service makes of an answer of /v1/models."""

import pytest

from healthcheck.client import listing
from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.client.listing import Listing
from healthcheck.reasons import Note


def _answer(body: bytes, status: int = 200) -> Answer:
    return Answer(status, body, 0.1)


def test_the_names_and_the_first_ones_length_are_read() -> None:
    """A server may answer to several names, and need not say how much it takes."""
    body = b'{"data": [{"id": "a", "max_model_len": 8192}, {"id": "b"}]}'
    assert listing.read(_answer(body)) == Listing(("a", "b"), 8192)
    assert listing.read(_answer(b'{"data": [{"id": "a"}]}')) == Listing(("a",), None)
    assert listing.read(_answer(b'{"data": []}')) == Listing((), None)


def test_the_length_is_that_of_the_model_to_ask() -> None:
    """Not the first one's where another is asked for; an adapter's is that of its model."""
    body = (
        b'{"data": [{"id": "a", "max_model_len": 512}, {"id": "b", "max_model_len": 8192},'
        b'{"id": "tuned", "max_model_len": null, "parent": "b"}]}'
    )
    for model, longest in (("a", 512), ("b", 8192), ("tuned", 8192), (None, 512), ("c", None)):
        seen = listing.read(_answer(body), model)
        assert seen == Listing(("a", "b", "tuned"), longest)


@pytest.mark.parametrize(
    "length", ['"long"', "NaN", "1e999", "true", "0", "-1", "8192.0", f"{1 << 40}"]
)
def test_a_length_that_is_no_number_of_tokens_is_not_told(length: str) -> None:
    """The model is served all the same; what needs its length goes without."""
    body = f'{{"data": [{{"id": "a", "max_model_len": {length}}}]}}'.encode()
    assert listing.read(_answer(body)) == Listing(("a",), None)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Failure(FailureKind.TIMEOUT, "no whole answer in time"), "server.timeout"),
        (_answer(b"", 401), "config.unauthorized"),
        (_answer(b"", 403), "config.unauthorized"),
        (_answer(b"", 307), "server.redirect"),
        (_answer(b"", 500), "server.unknown"),
        (_answer(b"<html>"), "server.unknown"),
        (_answer(b"[" * 100_000), "server.unknown"),
        (_answer(b"[]"), "server.unknown"),
        (_answer(b'{"data": [1]}'), "server.unknown"),
    ],
)
def test_what_is_no_listing_has_its_reason(answer: Answer | Failure, code: str) -> None:
    """A refused key and a redirect are told apart from what is not understood, in one line."""
    seen = listing.read(answer)
    assert isinstance(seen, Note)
    assert seen.code == code
    assert "\n" not in str(seen)
