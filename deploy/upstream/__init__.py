"""What a move to another vLLM would need, as far as its sources tell: `python3 -m deploy.upstream`.

Stays with the checkout, as the rehearsal does.
"""
