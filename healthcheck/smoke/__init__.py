"""`python3 -m healthcheck smoke URL`: one look at a server, as a table and as reports.

It asks what users ask (does it listen, write, chat, stream, call tools, draft) and judges the
answers by the rules of the health gate. `smoke compare A B` sets two reports side by side.
"""

from healthcheck.judge.acceptance import Acceptance
from healthcheck.smoke.cli import Files, finish, main
from healthcheck.smoke.results import Check, Report
from healthcheck.smoke.run import run
from healthcheck.smoke.target import Stopped, Target

__all__ = ["Acceptance", "Check", "Files", "Report", "Stopped", "Target", "finish", "main", "run"]
