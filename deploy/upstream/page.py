"""The survey as one page of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from deploy.upstream.names import Names
from deploy.upstream.survey import Survey
from deploy.upstream.wordings import Wordings

# A low line within a word is no markup.
_MARKUP = re.compile(r"[`*<|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def page(survey: Survey) -> str:
    """What a move to this vLLM would need, and what was seen."""
    needs, load = survey.needs(), survey.load
    return "\n".join(
        [
            f"# What a move to vLLM {survey.version} would need",
            "",
            "For those who decide on the move.",
            f"Written by `make watch-upstream VERSION={survey.version}` from its wheel's sources.",
            "No card and no weights were used: nothing is said of speed, memory, kernels, answers.",
            "",
            "## To do",
            "",
            *(_points(needs) or ["Nothing that sources tell."]),
            "",
            "## Series",
            "",
            "| patch | file | state |",
            "|---|---|---|",
            *(
                f"| {s.patch[:4]} | {s.target.removeprefix('vllm/')} | {s.state} |"
                for s in survey.statuses
            ),
            "",
            *(
                _points(f.sentence() for f in survey.faults)
                or ["None of the known faults is left."]
            ),
            "",
            "## The AMD draft class",
            "",
            f"Load check: {_plain(load if isinstance(load, str) else load.sentence())}",
            "",
            *_audit(survey),
            "",
            "## Facts",
            "",
            "| fact | by the table | by the sources |",
            "|---|---|---|",
            *(
                f"| {f.key} | {_word(f.expected)} | {f.why or _word(f.seen)} |"
                for f in survey.facts
            ),
            "",
            "## Names",
            "",
            *_names(survey.names),
            "",
            "## Wordings of logs",
            "",
            *_wordings(survey.wordings),
            "",
        ]
    )


def _audit(survey: Survey) -> list[str]:
    if isinstance(survey.audit, str):
        return [f"Audit: {_plain(survey.audit)}"]
    if not survey.audit.failing and not survey.audit.others:
        return ["Audit: no gap."]
    told = [f"fails: {gap}" for gap in survey.audit.failing]
    return [
        "Audit:",
        "",
        *_points([*told, *(f"is no fault: {gap}" for gap in survey.audit.others)]),
    ]


def _names(found: Names | str) -> list[str]:
    if isinstance(found, str):
        return [f"Not asked: {_plain(found)}"]
    lines = [f"Against the vocabulary of {found.since}."]
    for verb, kinds in (("Gone", found.gone), ("New", found.new)):
        lines += ["", *_points(_listed(verb, kinds))] if any(kinds.values()) else []
    if found.other:
        lines += ["", f"Flags that take other values: {_plain(', '.join(found.other))}"]
    if not found.unknown:
        lines += ["", "Every flag, variable and setting of the recipe is taken."]
    return lines


def _listed(verb: str, kinds: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [f"{verb} in {kind}: {', '.join(names)}" for kind, names in kinds.items() if names]


def _wordings(found: Wordings | str) -> list[str]:
    if isinstance(found, str):
        return [f"Not compared: {_plain(found)}"]
    lines = [
        f"Of the texts of signatures.tsv {found.kept} stand in the sources of {found.earlier} and",
        f"in these. Of {found.untold} nothing is said: they are composed when they are logged, or",
        "not vLLM's own.",
    ]
    if found.gone:
        lines += ["", "Gone:", ""]
        lines += [f"- {name}: `{text.strip()}`" for name, text in found.gone]
    return lines


def _points(lines: Iterable[str]) -> list[str]:
    return [f"- {_plain(line)}" for line in lines]


def _word(holds: bool | None) -> str:
    return "holds" if holds else "does not hold"


def _plain(text: str) -> str:
    """A text without what Markdown would read as markup, and without line ends."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))
