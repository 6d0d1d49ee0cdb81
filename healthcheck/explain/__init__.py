"""Explains a vLLM log: how far the start came, what stopped it, and what to do about it."""

from healthcheck.explain.cli import main
from healthcheck.explain.explainer import Explainer, explain_stream
from healthcheck.explain.findings import Explanation, Finding, Verdict

__all__ = ["Explainer", "Explanation", "Finding", "Verdict", "explain_stream", "main"]
