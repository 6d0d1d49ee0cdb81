"""`python3 -m healthcheck accuracy URL`: are a server's answers right, and how sure is that.

The smoke test sees that text comes; a server whose attention picks the wrong tokens, or whose
experts lost a clamp, writes text as well. Tasks are drawn by a seed, scores have intervals, and the
report says what they do not see.
"""

from healthcheck.accuracy.cli import main
from healthcheck.accuracy.results import Report
from healthcheck.accuracy.run import run

__all__ = ["Report", "main", "run"]
