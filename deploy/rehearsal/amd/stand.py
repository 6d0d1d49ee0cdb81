"""Stand a process of vLLM on a card that is not there."""

import contextlib

from patches.loadcheck import card, draft

_standing: list[contextlib.AbstractContextManager[None]] = []


def stand(arch: str) -> None:
    """Dispatch to the AMD classes, play the card of ``arch``, put the substitutes in; once."""
    if _standing:
        return
    draft.stand_on_cpu()
    draft.dispatch_to_amd()
    played = card.play(card.CARDS[arch])
    _standing.append(played)
    played.__enter__()  # for the life of the process
    from deploy.rehearsal.amd import substitutes

    substitutes.install()
