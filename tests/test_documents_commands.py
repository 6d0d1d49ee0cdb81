"""The commands, options and variables that the documents tell, against what reads them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import recipe
from deploy.containers.variables import PASSED, env_text, variables
from deploy.rehearsal.environment import FAULTS
from healthcheck.judge import Outcome
from healthcheck.smoke.results import Check, Report
from patches import series
from tests.support import (
    audit_trees,
    documents,
    in_process,
    slurm,
    told_commands,
    told_programs,
    told_routes,
    told_variables,
    told_words,
    tools,
)
from tests.support.documents import GENERATED, GUIDES, ROOT, Block, Command, Span
from tests.support.told_programs import OTHERS, PROGRAMS
from tests.support.told_words import Wrong
from tests.support.vllm_trees import slim_copy

LOGS = ROOT / "tests/healthcheck/data"
SLURM = ("sbatch", "scancel", "scontrol", "squeue")
UNPACKAGED = ("apptainer",)


@functools.cache
def told() -> tuple[Command, ...]:
    """Every command of every guide."""
    return tuple(c for path in GUIDES for c in documents.commands(path, PROGRAMS))


@functools.cache
def inline() -> tuple[Span, ...]:
    """Inline code of every guide."""
    return tuple(span for path in GUIDES for span in documents.spans(path))


@functools.cache
def fenced() -> tuple[Block, ...]:
    """Code blocks of every guide."""
    return tuple(block for path in GUIDES for block in documents.blocks(path))


def wrong(items: Sequence[Any], judge: Callable[[Any], object]) -> list[str]:
    """What is wrong with which of them."""
    found = []
    for item in items:
        try:
            judge(item)
        except Wrong as e:
            found.append(f"{item.place}: {e}")
    return found


# --- reading


DOCUMENT = """\
# Words

Do `make   up
PROFILE=x`, or `not a
command`; `git` alone is a name, and so is `show`. But `show --all` is a command.

```sh
# a comment
A=1 make up B=2  # another
make one && docker pull "a b" | gzip > out.gz
make two \\
  three
```

- in a list

      no code

```console
$ make it
what it says
```

| a \\| b | `make x \\| gzip` |

    make indented
```toml
make = "no command"
```
"""


def test_commands_are_read_with_their_lines() -> None:
    """Comments, continued lines, pipes, `&&`, prompts, variables before, and spans over two lines."""
    found = documents.commands(ROOT / "X.md", PROGRAMS, DOCUMENT)
    assert [(c.place.line, c.environment, c.words) for c in found] == [
        (9, (("A", "1"),), ("make", "up", "B=2")),
        (10, (), ("make", "one")),
        (10, (), ("docker", "pull", "a b")),
        (10, (), ("gzip",)),
        (11, (), ("make", "two", "three")),
        (20, (), ("make", "it")),
        (3, (), ("make", "up", "PROFILE=x")),
        (5, (), ("show", "--all")),
        (24, (), ("make", "x")),
        (24, (), ("gzip",)),
    ]
    assert str(found[0]) == "X.md:9: A=1 make up B=2 # another"
    languages = [b.language for b in documents.blocks(ROOT / "X.md", DOCUMENT)]
    assert languages == ["sh", "console", "", "toml"]


def test_a_block_says_its_language() -> None:
    """A fence with a language, so that a command is known as one; an indented block has none."""
    known = (*documents.SHELL, *documents.OTHER)
    assert [
        f"{block.place}: {block.language or 'no language'}; fence it as one of {', '.join(known)}"
        for block in fenced()
        if block.language not in known
    ] == []


# --- judging


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("frobnicate --now", "no class of command"),
        ("show --format json", "no class of command"),
        ("make upp PROFILE=mi355x", "no target"),
        ("make up PROFILE=mi999", "PROFILE: got mi999"),
        ("make up PROFIL=mi355x", "reads PROFIL"),
        ("make smoke-test PROFILE=mi355x", "reads PROFILE"),
        ("make up SMOKE_URL=URL", "reads SMOKE_URL"),
        ("make plan WEIGHTS=/w", "reads WEIGHTS"),
        ("make up DSPARK_SPECULATION=no", "it is one of on, off"),
        ("make rehearsal REHEARSAL_FAULT=hang", "it is one of"),
        ("DSPARK_PROFIL=mi355x python3 docker/entrypoint.py", "reads it"),
        ("python3 docker/entrypoint.py --max-num-seq 8", "no flag of vllm serve"),
        ("python3 docker/entry.py", "no program of ours"),
        ("python3 -m deploi plan", "no program of ours"),
        ("python3 -m deploy plann", "invalid choice"),
        ("python3 -m deploy plan --profil NAME", "unrecognized arguments"),
        ("python3 -m deploy plan --profile mi999", "PROFILE: got mi999"),
        ("python3 -m patches audit", "TREE"),
        ("python3 -m healthcheck check --for always", "invalid choice"),
        ("python3 -m healthcheck smoke compare A", "required"),
        ("python3 -m healthcheck explain LOGG", "no placeholder"),
        ("python3 -m healthcheck.reference --chek", "does not take"),
        ("python3 -m pip download --hashes -r healthcheck/requirements.lock", "--hashes"),
        ("python3 -m pip download -r healthcheck/requirement.lock", "is not there"),
        ("docker compose -f deploy/composed.yaml up -d", "is not there"),
        ("docker compose -f deploy/compose.yaml upp", "docker compose"),
        ("docker compose -f deploy/compose.yaml exec health make", "no such service"),
        ("docker compose -f deploy/compose.yaml exec server make upp", "no target"),
        ("kubectl exec deployment/dspark-NAME -- python3 -m patchs show", "no program of ours"),
        ("pip install dspark-rocm", "no index"),
        ("diff -uq A B", "diff -q"),
        ("docker build --no-network .", "--no-network"),
        ("docker build --build-arg GPRC=1 .", "ARG"),
        ("kubectl apply -k deploy/k8s/overlays/mi999", "is not there"),
        ("kubectl apply -k deploy/k8s/overlays", "kustomization.yaml"),
        ("kubectl rollout undo deployment/NAME", "no overlay makes it"),
        ("kubectl logs --previous deployment/dspark-NAME -c vllm", "no such container"),
        ("kubectl create secret generic dspark --from-literal=key=1", "reads no key"),
        ("kubectl create configmap dspark --from-literal=A=1", "does not read it"),
        ("curl http://HOST:8080/ready", "no route"),
        ("curl http://HOST:8088/readyz", "port 8088"),
    ],
)
def test_a_wrong_command_is_refused(line: str, said: str) -> None:
    """Each class refuses what could not be run, and says what of it."""
    (command,) = documents.split(documents.Place(ROOT / "X.md", 1), line)
    with pytest.raises(Wrong, match=re.escape(said)):
        told_commands.judge(command)


def test_every_told_command_can_be_run() -> None:
    """Each belongs to a class, and what would read it takes it as it stands."""
    assert wrong(told(), told_commands.judge) == []


def test_documents_tell_commands_of_every_class() -> None:
    """The reader of documents finds what is there: no class is tested on nothing."""
    classes = {told_commands.judge(command) for command in told()}
    assert classes >= {"make", "own", "script", "pip", "docker", "kubectl"}


def test_commands_begin_with_python3() -> None:
    """Debian has no `python`; generated pages take theirs from tables."""
    assert [
        str(command)
        for command in told()
        if command.words[0] == "python"
        and str(command.place.document.relative_to(ROOT)) not in GENERATED
    ] == []


def test_programs_named_in_prose_exist() -> None:
    """Remedies and sentences name modules and commands that there are."""
    bad = []
    for document in GUIDES:
        text = document.read_text("utf-8")
        for match in re.finditer(r"python3? -m ([a-z][\w.]*)(?: ([a-z][a-z-]+))?", text):
            module, name = match[1].rstrip("."), match[2]
            line = text.count("\n", 0, match.start()) + 1
            if module in ("pip", *told_commands.WITHOUT_PARSER):
                continue
            commands = told_commands.subcommands(module) if module in told_commands.OWN else None
            if commands is None or (commands and name and name not in commands):
                bad.append(f"{documents.Place(document, line)}: {match[0]}")
    assert bad == []


def test_options_by_themselves_exist() -> None:
    """Inline code that begins with an option names one of ours, of vLLM's, or of a known program."""
    assert [
        f"{span.place}: {span.text}"
        for span in inline()
        if re.match(r"--[a-z]", span.text)
        and re.split(r"[ =]", span.text)[0] not in told_commands.all_options()
    ] == []


def test_routes_exist() -> None:
    """Paths and URLs in inline code are routes of the health service or of vLLM."""
    paths = [s for s in inline() if re.fullmatch(r"/[\w./*?-]*", s.text)]
    posts = [Span(s.place, s.text.split()[1]) for s in inline() if s.text.startswith("POST /")]
    assert len(paths) > 20
    assert wrong([*paths, *posts], lambda span: told_routes.check_path(span.text)) == []
    urls = [
        Span(documents.Place(document, line.count("\n", 0, match.start()) + 1), match[0])
        for document in GUIDES
        for line in [document.read_text("utf-8")]
        for match in re.finditer(r"http://(?:127\.0\.0\.1|localhost|HOST)[^\s`)\"]*", line)
    ]
    assert len(urls) >= 3
    assert wrong(urls, lambda span: told_routes.check_url(told_words.filled(span.text))) == []


def test_vllm_answers_the_routes_that_are_named() -> None:
    """The pinned vLLM's source registers each path that the documents may speak of."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        pytest.skip("vllm: is not installed; make environment")
    entrypoints = Path(next(iter(found.submodule_search_locations))) / "entrypoints"
    text = "".join(path.read_text("utf-8") for path in entrypoints.rglob("*.py"))
    named = (*told_routes.VLLM_ROUTES, *told_routes.GUARDED)
    assert [route for route in named if f'"{route}"' not in text] == []


def test_paths_in_inline_code_exist() -> None:
    """A path below a folder of the checkout, or below the document's own, is there."""
    bad = []
    for span in inline():
        if not re.fullmatch(r"[\w.-]+(/[\w.*-]+)+/?", span.text):
            continue
        first = span.text.partition("/")[0]
        roots = [r for r in (ROOT, span.place.document.parent) if (r / first).is_dir()]
        if first != "build" and roots and not any(any(r.glob(span.text)) for r in roots):
            bad.append(f"{span.place}: {span.text}")
    assert bad == []


# --- variables


def test_variables_of_the_documents_are_read() -> None:
    """Each variable named is one that code, compose files or the Makefile read, or vLLM does."""
    known = told_variables.all_read() | told_variables.foreign_variables()
    bad = []
    for document in GUIDES:
        for number, line in enumerate(document.read_text("utf-8").splitlines(), 1):
            for name in re.findall(r"\b(?:DSPARK|SMOKE|REHEARSAL|HEALTH)_[A-Z][A-Z_]+\b", line):
                if name not in known | set(told_words.PLACEHOLDERS):
                    bad.append(f"{documents.Place(document, number)}: {name}")
    for span in inline():
        match = re.fullmatch(r"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?:=(\S+))?", span.text)
        if match and match[1] not in known | set(told_words.PLACEHOLDERS):
            bad.append(f"{span.place}: {span.text}")
    assert bad == []


def test_values_of_variables_are_taken() -> None:
    """Inline code that sets a variable sets it to a value that it takes."""
    given = [s for s in inline() if re.fullmatch(r"[A-Z][A-Z0-9_]*=\S+", s.text)]
    assert given
    assert wrong(given, lambda s: told_variables.check_value(*s.text.split("=", 1))) == []


def test_variables_for_users_are_documented() -> None:
    """Each variable that a user may set stands in a document; the others say who sets them."""
    text = "".join(path.read_text("utf-8") for path in GUIDES)
    words = set(re.findall(r"\b[A-Z][A-Z0-9_]*\b", text))
    wanted = told_variables.for_users()
    assert sorted(wanted - words - set(told_variables.INTERNAL)) == []
    assert sorted(set(told_variables.INTERNAL) - wanted) == [], "no longer read"
    assert sorted(set(told_variables.INTERNAL) & words) == [], "documented, so not internal"


def test_the_table_of_make_up_is_what_it_takes() -> None:
    """docker/README.md has a row for each variable that `make up` passes on, and for no other."""
    text = (ROOT / "docker/README.md").read_text("utf-8")
    table = text.partition("## Variables of `make up`")[2].partition("\n## ")[0]
    rows = {
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([A-Z_]+)`", line.split("|")[1])
    }
    assert rows == set(PASSED) - set(told_variables.INTERNAL)


def test_faults_of_the_rehearsal_are_listed() -> None:
    """The rehearsal's page names every fault that REHEARSAL_FAULT takes."""
    readme = (ROOT / "deploy" / "rehearsal" / "README.md").read_text("utf-8")
    assert [fault for fault in FAULTS if not re.search(rf"\b{fault}\b", readme)] == []


def test_settings_in_the_documents_are_the_recipes() -> None:
    """Blocks of TOML can be laid over the recipe, and settings in inline code are its keys."""
    pieces = [(b.place, b.text) for b in fenced() if b.language == "toml"]
    pieces += [(s.place, s.text) for s in inline() if re.match(r"[a-z_]+ = ", s.text)]
    assert len(pieces) >= 3
    whole = (ROOT / "deploy/recipe.toml").read_text("utf-8")
    known = set(re.findall(r"^([a-z_]+) = ", whole, re.MULTILINE))
    for place, text in pieces:
        for table in tomllib.loads(text).get("profiles", {"": {"": tomllib.loads(text)}}).values():
            for keys in table.values():
                assert set(keys) <= known, place


def test_yaml_in_the_documents_can_be_read() -> None:
    """What is to be pasted into a manifest parses."""
    for block in fenced():
        if block.language == "yaml":
            assert isinstance(yaml.safe_load(block.text), dict), block.place


# --- programs of others


def _help(words: tuple[str, ...]) -> str:
    if words[0] in SLURM:
        return slurm.usage(words[0])
    if words[0] in UNPACKAGED:
        if shutil.which(words[0]) is None:
            pytest.skip(
                f"{words[0]} is in no package here: its options are those of its documentation"
            )
        command = [*words, "--help"]
    elif words[0] == "pip":
        command = [sys.executable, "-m", "pip", *words[1:], "--help"]
    elif words[0] in ("git", "diff"):
        command = [tools.find(words[0]), *words[1:], "-h" if words[0] == "git" else "--help"]
    else:
        command = [tools.find(words[0]), *words[1:], "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


def test_tables_hold_what_the_documents_use() -> None:
    """No program, option or placeholder stays in the tables after the last document that told it."""
    rows, options, words = set(), set(), set()
    for command in told():
        for part in told_commands.parts(command):
            words |= set(part.words)
            if part.words[0] in {row[0] for row in OTHERS}:
                row = told_programs.subcommand(part.words)
                rows.add(row)
                options |= {(row, option) for option in told_programs.options(part.words)}
    alone = {span.text.split()[0] for span in inline()}
    for row, allowed in OTHERS.items():
        assert row in rows or row == ("docker", "compose"), row
        shared = {option for _, option in options} if row[1:] == ("compose",) else set()
        assert allowed <= {o for r, o in options if r == row} | shared | alone, row
    text = " ".join(words) + "".join(path.read_text("utf-8") for path in GUIDES)
    for name in told_words.PLACEHOLDERS:
        assert re.search(rf"(?<!\w){name}(?!\w)", text), name


# Judged by the vocabulary, or told without options of their own.
NOT_ASKED = {"gzip", "k3s", "kind", "minikube", "py-spy", "vi", "vllm"}


@pytest.mark.parametrize("words", [w for w in OTHERS if w[0] not in NOT_ASKED], ids=" ".join)
def test_options_of_others_exist(words: tuple[str, ...]) -> None:
    """Where the program is installed, its help knows the subcommand and every option listed."""
    if words[:2] == ("docker", "compose"):
        _require_compose()
    text = _help(words)
    assert re.search("usage|valid <option>", text.lower())  # scontrol says the other
    for option in OTHERS[words]:
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text), option


def _require_compose() -> None:
    version = [tools.find("docker"), "compose", "version"]
    if subprocess.run(version, capture_output=True, check=False).returncode:
        pytest.skip("docker compose: is not installed; tests marked docker install it")


def test_compose_files_fit_each_other_as_told(tmp_path: Path) -> None:
    """Compose reads the files of each command with what `make up` writes and what is set before."""
    _require_compose()
    loaded = recipe.load()
    made = variables(loaded, loaded.profile("mi355x"), {})
    env_file = tmp_path / "mi355x.env"
    env_file.write_text(env_text(made))
    commands = [c for c in told() if c.words[:2] == ("docker", "compose") and "-f" in c.words]
    assert commands
    for command in commands:
        files = [w for f in told_programs.compose_files(command.words) for w in ("-f", str(f))]
        done = subprocess.run(
            ["docker", "compose", "--env-file", str(env_file), *files, "config", "-q"],
            env={"PATH": os.environ["PATH"], "HOME": "/", **dict(command.environment)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, ""), command


def test_the_told_secret_can_be_made() -> None:
    """kubectl makes the secret of the Kubernetes guide, with every key that the pod reads."""
    kubectl = tools.find("kubectl")
    (command,) = [c for c in told() if c.words[:3] == ("kubectl", "create", "secret")]
    done = subprocess.run(
        [kubectl, *command.words[1:], "--dry-run=client", "-o", "yaml"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    made = yaml.safe_load(done.stdout)
    base = (ROOT / "deploy/k8s/base/deployment.yaml").read_text("utf-8")
    read = set(re.findall(r"(?:/run/secrets/dspark/|key: )([a-z-]+)$", base, re.MULTILINE))
    assert set(made["data"]) == read


# --- run


@dataclass(frozen=True)
class Run:
    """A told command that is really run: its exit code, and what begins its first line."""

    text: str
    exit_code: int
    begins: str


RUNS = (
    Run("python3 -m deploy profiles", 0, r"mi355x +unverified: "),
    Run("make plan PROFILE=mi355x", 0, r"VLLM_\w+=\S+ \\$"),
    Run("python3 -m deploy plan --profile NAME", 0, r"VLLM_\w+=\S+ \\$"),
    Run("python3 -m patches show", 0, r"series sha256 [0-9a-f]{64}$"),
    Run("python3 -m patches show SITE_PACKAGES", 0, r"series sha256 [0-9a-f]{64}$"),
    Run("python3 -m patches apply SITE_PACKAGES --check", 1, r"pending: 0001-"),
    Run("python3 -m patches apply SITE_PACKAGES", 0, r"applied: 0001-"),
    Run("python3 -m patches apply SITE_PACKAGES --reverse", 0, r"nothing to do: 0001-"),
    Run("python3 -m patches audit TREE", 1, r".*tree"),
    Run("python3 -m healthcheck explain LOGFILE", 1, r"FAILED: dspark\.missing_d2t_attr "),
    Run("python3 -m healthcheck smoke compare A B", 0, r"\S"),
)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.text)
def test_told_commands_do_what_is_told(run: Run, tmp_path: Path) -> None:
    """Quick commands without side effects run as the documents write them."""
    texts = {" ".join(c.words) for c in told()}
    assert run.text in texts, "no document tells it any more: take it out of RUNS"
    done = _run(run.text.split(), tmp_path)
    assert done.returncode == run.exit_code, done.stderr
    assert re.match(run.begins, done.stdout, re.MULTILINE), done.stdout


def _run(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    made = {name: made for name, make in FILLED.items() if name in words for made in [make(folder)]}
    command = [str(made.get(word, told_words.filled(word))) for word in words]
    if command[0] == "python3":
        command[0] = sys.executable
    else:
        command.append(f"PYTHON={shlex.quote(sys.executable)}")
    return subprocess.run(
        command,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def _site_packages(folder: Path) -> Path:
    targets = [target.path for patch in series.load().patches for target in patch.targets]
    return slim_copy("0.27.1", folder / "site-packages", targets)


def _report(folder: Path, name: str) -> Path:
    report = Report(
        target="http://127.0.0.1:8000",
        profile="mi355x",
        evidence="unverified",
        model="m",
        made_at="2026-01-02T03:04:05+00:00",
        checks=[Check("chat", Outcome.GOOD, "held", 0.3)],
    )
    path = folder / name
    path.write_text(report.as_json())
    return path


FILLED: dict[str, Callable[[Path], Path]] = {
    "SITE_PACKAGES": _site_packages,
    "TREE": lambda folder: audit_trees.tree(folder / "tree"),
    "LOGFILE": lambda _: LOGS / "log-missing-d2t.log",
    "A": lambda folder: _report(folder, "a.json"),
    "B": lambda folder: _report(folder, "b.json"),
}


def test_preflight_as_told(tmp_path: Path) -> None:
    """What `make preflight` runs looks at this host, and sums up its findings."""
    assert any(" ".join(c.words) == "make preflight PROFILE=mi355x" for c in told())
    ((module, arguments),) = told_commands.dry(["preflight", "PROFILE=mi355x"])
    done = _run(["python3", "-m", module, *arguments], tmp_path)
    assert done.returncode in (0, 1), done.stderr
    assert re.match(r"(fail|warn|unknown|ok) +[\w.]+: ", done.stdout)
    assert re.match(r"preflight of mi355x: \d+ fail, ", done.stdout.splitlines()[-1])


@pytest.mark.parametrize("module", told_commands.OWN)
def test_every_command_has_help(module: str) -> None:
    """`python3 -m NAME --help`, and that of each of its commands, say how to use it and exit 0."""
    main = importlib.import_module(f"{module}.__main__").main
    for words in ((), *((name,) for name in sorted(told_commands.subcommands(module)))):
        done = in_process.run(main, *words, "--help")
        assert (done.returncode, done.stderr) == (0, ""), words
        assert done.stdout.startswith("usage: python3 -m "), words
