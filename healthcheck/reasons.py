"""Every reason a verdict can give: its code, what it means, what to do, and whose fault it is.

Codes are stable: dashboards and tests key on them. Codes of log lines are in signatures.tsv.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Whose fault a reason is."""

    SERVER = "server"
    MODEL = "model"
    SPECULATION = "speculation"
    CONFIGURATION = "configuration"
    UNKNOWN = "unknown"  # we could not tell
    STATE = "state"  # nobody's: the ordinary course of things


@dataclass(frozen=True)
class Reason:
    """One row of the table."""

    code: str
    kind: Kind
    meaning: str
    remedy: str


_ROWS: tuple[tuple[str, Kind, str, str], ...] = (
    # --- the server's process and port
    ("server.refused", Kind.SERVER, "nothing listens on the server's port",
     "see whether the process runs; vLLM leaves with exit code 0 when its engine dies, so restart "
     "it always, and look for the cause in its log (python3 -m healthcheck explain)"),
    ("server.reset", Kind.SERVER, "the server closes connections without an answer",
     "the process behind the port is gone or going: look at its log"),
    ("server.unresolved", Kind.SERVER, "the server's name has no address",
     "the container of that name is gone, or the name is wrong: see whether it runs, and its log"),
    ("server.tls", Kind.SERVER, "no encrypted connection to the server comes about",
     "see the detail: a certificate that is over or of another name, or a port without TLS"),
    ("server.engine_dead", Kind.SERVER, "/health answers 503: vLLM's engine is dead",
     "restart the server; the cause is earlier in its log (python3 -m healthcheck explain)"),
    ("server.timeout", Kind.UNKNOWN, "the server did not answer in time",
     "wait; if it lasts, look at CPU load of the API process and at the network"),
    ("server.truncated", Kind.UNKNOWN, "the server's answers end before their announced end",
     "look at what stands in between, and at the server's log"),
    ("server.too_large", Kind.UNKNOWN, "the server's answers are longer than any of vLLM's",
     "check that the target URL is a vLLM server"),
    ("server.malformed", Kind.UNKNOWN, "what answers on the server's port is not HTTP",
     "check the target URL: its scheme and its port"),
    ("server.unreachable", Kind.UNKNOWN, "there is no way to the server's address",
     "see the detail; look at routes and network policies"),
    ("server.unknown", Kind.UNKNOWN, "the server's answer could not be read",
     "see the detail; check the target URL and what stands in between"),
    ("server.unexpected_status", Kind.UNKNOWN, "/health answers neither 200 nor 503",
     "check that the target URL is a vLLM server and not a proxy's error page"),
    ("server.error", Kind.SERVER, "the server answers a generation with an error of its own",
     "look at the server's log; a dying engine answers 500 before the port closes"),
    ("server.slow", Kind.UNKNOWN, "the server is alive but answers late",
     "the API process is short of CPU or its event loop is blocked"),
    ("server.redirect", Kind.CONFIGURATION, "the server answers with a redirect",
     "give the final address as target: redirects are not followed"),
    ("server.overloaded", Kind.UNKNOWN, "the server refuses work for now (429 or 503)",
     "wait, or send less"),
    ("process.stopped", Kind.SERVER, "a process of the server is stopped by a signal",
     "see who stopped it (SIGSTOP, a debugger); kill -CONT PID lets it go on"),
    ("process.died", Kind.SERVER, "a process of the server has ended",
     "restart the server; SIGKILL by the kernel is a want of memory, and for the rest the cause is "
     "in its log (python3 -m healthcheck explain)"),
    ("gpu.uncorrected", Kind.SERVER, "a GPU has counted errors that it could not correct",
     "answers of that card may be wrong: drain the server, look at dmesg and amd-smi, and have the "
     "card reset or replaced"),
    ("start.waiting", Kind.STATE, "the server is not up yet",
     "wait: loading takes from a minute to two hours by storage and caches"),
    ("start.over_budget", Kind.SERVER, "the server is still not up after the start budget",
     "look at the server's log (python3 -m healthcheck explain); raise start_budget_s only if it "
     "is still loading"),
    # --- what was configured
    ("config.unauthorized", Kind.CONFIGURATION, "the server refuses the API key (401 or 403)",
     "give the server's key with --api-key-file"),
    ("config.wrong_model", Kind.CONFIGURATION, "the server does not serve the expected model",
     "compare --model with the ids of /v1/models"),
    ("probe.rejected", Kind.CONFIGURATION, "the server refuses the probe's request as invalid",
     "see the detail; a shorter max-model-len needs smaller gate_tokens"),
    # --- progress
    ("gate.running", Kind.STATE, "the start gate is not through yet", "wait"),
    ("gate.failed", Kind.MODEL, "the start gate failed", "see the findings beside this reason"),
    ("gate.no_progress", Kind.SERVER, "the start gate's generation makes no step",
     "look at the server's log; a first compile can take minutes"),
    ("progress.none", Kind.SERVER, "work is outstanding and the engine makes no step",
     "if it lasts: see what each process waits for (python3 -m healthcheck flights), then restart"),
    ("progress.deadlock", Kind.SERVER,
     "work waits and makes no step, and every process of the engine sleeps beside idle cards",
     "nothing will come of it: see what each process waits for (python3 -m healthcheck flights), "
     "then restart"),
    ("progress.rank_asleep", Kind.SERVER,
     "some ranks of an engine sleep while others work: they wait for different things",
     "a collective that not all have entered: see what each waits for (python3 -m healthcheck "
     "flights), then restart"),
    ("progress.stalled", Kind.SERVER,
     "no step for longer than the slowest legal step, or asleep for longer than a lock is held",
     "restart the server; its stacks and its log's end are kept (python3 -m healthcheck flights)"),
    ("evidence.stale", Kind.UNKNOWN, "nothing has proved the server healthy for too long",
     "see why generations do not answer"),
    ("recovery.pending", Kind.STATE, "the cause is gone; a passed generation is awaited", "wait"),
    ("generation.timeout", Kind.UNKNOWN, "a generation did not answer in time",
     "wait; if it lasts the progress budget decides"),
    ("generation.failed", Kind.UNKNOWN, "a generation got no readable answer", "see the detail"),
    ("generation.unanswered", Kind.SERVER, "generations are not answered though nothing waits",
     "look at the API process and at what stands between: the engine may well make the tokens"),
    ("text.unread", Kind.UNKNOWN, "no text of an engine could be read for long",
     "it serves, what it writes is not known: more capacity, or less work, lets a canary through"),
    # --- what the model wrote
    ("numerics.nan", Kind.MODEL, "the model computes NaN (the server cannot write it as JSON)",
     "do not serve it: check weights, quantization and kernels"),
    ("numerics.not_finite", Kind.MODEL, "a logprob is not finite, or a sampled token had none",
     "do not serve it: check weights, quantization and kernels"),
    ("numerics.constant", Kind.MODEL, "every token has the same logprob: the head is dead",
     "do not serve it: check the weights of lm_head"),
    ("text.empty", Kind.MODEL, "tokens are counted but there is no text",
     "NaN logits decode to nothing: check weights and kernels"),
    ("text.missing_tokens", Kind.MODEL, "fewer tokens came than were asked for with ignore_eos",
     "check the server's generation settings"),
    ("text.one_token", Kind.MODEL, "one token is repeated over and over",
     "do not serve it: check weights and kernels"),
    ("text.loop", Kind.MODEL, "a short run of tokens is repeated over and over",
     "do not serve it: check weights, kernels and KV cache"),
    ("text.garbage", Kind.MODEL, "the answer has none of its prompt's words",
     "do not serve it: with HIP graphs on start again, or serve with DSPARK_GRAPHS=off; if it "
     "stays: check weights and kernels"),
    ("text.needle_missed", Kind.MODEL, "what stands in a prompt is not given back, twice",
     "the shortest prompt of the gate is missed already, so it is no matter of length: check "
     "weights and KV cache; with HIP graphs on start again, or serve with DSPARK_GRAPHS=off"),
    ("text.needle_missed_past_2048", Kind.MODEL,
     "what stands in a prompt is given back from a short one and missed in one past 2,048 tokens, "
     "twice",
     "attention looks at the wrong tokens: see whether the server carries patch 0004 of the series "
     "(python3 -m patches show SITE_PACKAGES), and the sparse indexer among the faults below"),
    ("question.wrong", Kind.MODEL, "a chat of three small sums is answered wrongly, three times",
     "it writes text, and not what is right: with HIP graphs on start again, or serve with "
     "DSPARK_GRAPHS=off; if it stays: check weights and kernels, and see how much is right "
     "(make accuracy)"),
    ("question.untold", Kind.UNKNOWN, "the gate's question got no answer that can be judged",
     "nothing waits for it; where clients chat, see the detail and run the smoke test"),
    ("text.crossed", Kind.MODEL, "requests that run at once get the same text",
     "serve with max-num-seqs 1 to confirm; requests share state in the draft or the KV cache"),
    ("text.replayed", Kind.SERVER, "a generation got the text of an earlier one",
     "something between answers from a cache: give the server's own address as target"),
    ("sampling.greedy", Kind.MODEL, "temperature 1 gives plain argmax: sampling is not on",
     "check the runner: vLLM's V1 CPU runner and a greedy draft do this"),
    ("sampling.seed_ignored", Kind.MODEL, "two seeds give the same text",
     "check that temperature and seed reach the sampler"),
    ("answer.malformed", Kind.UNKNOWN, "the answer is not a completion", "see the detail"),
    # --- speculation
    ("speculation.absent", Kind.SPECULATION, "the server exports no counters of speculation",
     "it serves without a draft: give --speculative-config (python3 -m deploy plan)"),
    ("speculation.not_drafting", Kind.SPECULATION, "tokens are made and the draft counter stays",
     "the draft is loaded and not used: check the speculative config and the runner"),
    ("acceptance.low", Kind.SPECULATION, "too few drafts are accepted at the first position",
     "the draft does not fit the target, or is broken: compare with the reference figures"),
    ("acceptance.collapsed", Kind.SPECULATION, "drafts are accepted at the first position only",
     "the draft's later positions are broken: its KV or Markov head"),
    ("acceptance.insufficient", Kind.UNKNOWN, "too few drafts to judge acceptance",
     "send more requests"),
    ("acceptance.high", Kind.SPECULATION, "nearly every draft is accepted",
     "degenerate output is easy to predict: read some of it"),
    # --- the service's own sight
    ("metrics.unavailable", Kind.UNKNOWN, "/metrics cannot be read",
     "progress cannot be seen: check the path and --disable-log-stats"),
    ("metrics.no_engine", Kind.UNKNOWN, "/metrics shows no engine",
     "progress cannot be seen: drop --disable-log-stats"),
    ("metrics.uncounted", Kind.UNKNOWN, "answers come whose tokens /metrics does not count",
     "/metrics is cached, or of another process: give the server's own address as target"),
    ("engine.vanished", Kind.SERVER, "an engine that was there is not in /metrics any more",
     "see whether it runs; if it was taken away on purpose, restart the health service"),
    ("engine.new", Kind.STATE, "a new engine answers: the start gate runs again", "wait"),
    ("operator.drain", Kind.STATE, "draining on request", "start the service again to serve"),
    ("service.loop_stopped", Kind.UNKNOWN, "the health service's own loop does not turn",
     "restart the health service"),
    ("service.error", Kind.UNKNOWN, "the health service met an error of its own",
     "it goes on; if that lasts it ends itself to be started again: report the detail"),
    ("service.unreachable", Kind.UNKNOWN, "the health service does not answer",
     "see whether it runs and on which port"),
)  # fmt: skip

# What only the smoke test and the accuracy test ask.
_SMOKE_ROWS: tuple[tuple[str, Kind, str, str], ...] = (
    ("server.old", Kind.UNKNOWN, "a vLLM too old to be known: its answers may be of another shape",
     "read the rows with care, or serve a newer release (python3 -m deploy releases)"),
    ("stream.broken", Kind.SERVER, "a streamed answer is not whole",
     "ask the server without the proxy in between; look at its log"),
    ("stream.no_usage", Kind.SERVER, "a stream ends without the usage that was asked for",
     "clients that bill or limit by usage will miss it; compare with a vLLM without a proxy"),
    ("stream.buffered", Kind.CONFIGURATION, "a stream comes all at once at its end",
     "a proxy buffers it: turn buffering off for text/event-stream"),
    ("key.not_asked", Kind.CONFIGURATION, "the server answers who does not have its key",
     "start it by the recipe's entrypoint, whose door asks on all paths, or close them in a proxy"),
    ("stop.ignored", Kind.SERVER, "the text runs past its stop string",
     "report it with the answer; clients that rely on stop will see too much"),
    ("stop.not_seen", Kind.UNKNOWN, "the text never held a stop string", "run the test again"),
    ("usage.wrong", Kind.SERVER, "the usage of an answer does not add up",
     "report it with the answer; do not bill by it"),
    ("reasoning.in_content", Kind.CONFIGURATION, "thinking stands in the content of an answer",
     "serve with the reasoning parser of the recipe (python3 -m deploy plan)"),
    ("reasoning.none", Kind.UNKNOWN, "the model did not think when asked to",
     "ask again; check that the chat template takes `thinking`"),
    ("tools.refused", Kind.CONFIGURATION, "the server refuses a request with tools",
     "serve with tool-call-parser and enable-auto-tool-choice (python3 -m deploy plan)"),
    ("tools.in_content", Kind.CONFIGURATION, "a tool call stands in the content of an answer",
     "serve with the tool-call parser of the recipe (python3 -m deploy plan)"),
    ("tools.in_arguments", Kind.SERVER, "marks of a tool call stand in the call's own arguments",
     "the parser cuts calls in the wrong place, and a program would act on them: if streamed calls "
     "alone do it, do not stream them (vLLM issue 53227)"),
    ("tools.malformed", Kind.MODEL, "a tool call is not one of the tool's, or not JSON",
     "look at the answer: a parser that does not fit the model, or a model that writes garbage"),
    ("tools.none", Kind.UNKNOWN, "the model called no tool when asked to", "ask again"),
    ("tools.not_required", Kind.SERVER, "tool_choice required, and no tool is called",
     "guided decoding is off: look in the server's log for structured outputs, and serve with the "
     "tool-call parser of the recipe (python3 -m deploy plan)"),
    ("schema.ignored", Kind.SERVER, "an answer is not of the JSON schema that it was asked by",
     "guided decoding is off or broken: look in the server's log for structured outputs"),
    ("accuracy.low", Kind.MODEL, "fewer answers are right than a sound server gives",
     "look at the known faults below, and ask whether the server carries the patches for them "
     "(python3 -m patches apply SITE_PACKAGES --check)"),
    ("accuracy.unsettled", Kind.UNKNOWN,
     "the share of right answers is below its floor, by no more than chance may make it",
     "run it again with another --seed, and take the two runs together"),
    ("sampling.not_greedy", Kind.MODEL, "temperature 0 gives other tokens than the likeliest",
     "check the sampler and the rejection of drafts: greedy output must be argmax"),
    ("speculation.no_gain", Kind.SPECULATION, "a lone request is slower with speculation",
     "look at acceptance; serve without a draft (DSPARK_SPECULATION=off) until it gains"),
    ("baseline.unusable", Kind.UNKNOWN, "there is nothing to compare the speed with",
     "give the --full --json report of a server without speculation"),
)  # fmt: skip

REASONS: Mapping[str, Reason] = {row[0]: Reason(*row) for row in _ROWS}

# What an answer that is no text at all is called. HIP graphs that replay wrongly give it for the
# whole life of a process, and the next process may be well (ROCm/clr issue 279). A needle that is
# missed past 2,048 tokens only is not among them: that does not change with the process.
GARBAGE = frozenset({
    "numerics.nan", "numerics.not_finite", "numerics.constant",
    "text.empty", "text.one_token", "text.loop", "text.garbage", "text.needle_missed",
    "question.wrong",
})  # fmt: skip

SMOKE_REASONS: Mapping[str, Reason] = {row[0]: Reason(*row) for row in _SMOKE_ROWS}


def reason(code: str) -> Reason | None:
    """The row of a code in either table, None for none."""
    return SMOKE_REASONS.get(code) or REASONS.get(code)


def remedy(code: str) -> str:
    """What to do about a code, empty for none."""
    found = reason(code)
    return found.remedy if found else ""


@dataclass(frozen=True)
class Note:
    """A reason as it applies now: its code and one line of detail."""

    code: str
    detail: str = ""

    def __post_init__(self) -> None:
        if self.code not in REASONS:
            raise KeyError(self.code)

    @property
    def reason(self) -> Reason:
        """The table's row."""
        return REASONS[self.code]

    def __str__(self) -> str:
        return f"{self.code} ({self.detail})" if self.detail else self.code
