"""A static audit: what shared vLLM code reads off draft models, and which class lacks it.

Nothing of the audited tree is imported or run; every file is only parsed. The reading direction is
`speculators` (who reads) -> `reads` (the data flow) -> `gaps` (against `classes`, per `platforms`).
A second direction is `options` (what a model sets for its experts) -> `backends` -> `dropped`.
"""
