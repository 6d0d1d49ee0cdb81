"""Rules, routes, dashboard and compose file: checked with Prometheus' own tools."""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import recipe
from deploy.monitoring import dashboard
from healthcheck import verdict
from healthcheck.judge import acceptance
from healthcheck.service import loop, report
from tests.support import tools
from tests.support.made_signs import card, signs

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
RULES = MONITORING / "rules.yaml"
CASES = Path(__file__).with_name("rules.test.yaml")
EXPORTER = Path(__file__).with_name("device_metrics_exporter.txt")
# An image by tag and digest, with a variable that names a mirror.
PINNED = r"\$\{[A-Z]+_IMAGE:-[\w./-]+:v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}\}"
RECIPE = recipe.load()
HEALTH = RECIPE.profile("mi355x").health


def groups() -> list[dict[str, Any]]:
    """The rule groups."""
    return yaml.safe_load(RULES.read_text())["groups"]  # type: ignore[no-any-return]


def rules(kind: str) -> dict[str, dict[str, Any]]:
    """The rules of a kind, `alert` or `record`, by name."""
    return {r[kind]: r for group in groups() for r in group["rules"] if kind in r}


def run_cases(rule_file: Path, scratch: Path, begins: str = "") -> subprocess.CompletedProcess[str]:
    """Run the written cases whose names begin so against a rule file."""
    written = yaml.safe_load(CASES.read_text())
    chosen = [test for test in written["tests"] if test["name"].startswith(begins)]
    assert chosen, begins
    cases = scratch / "cases.yaml"
    cases.write_text(yaml.safe_dump({**written, "rule_files": [str(rule_file)], "tests": chosen}))
    return tools.run("promtool", "test", "rules", cases)


# --- rules ----------------------------------------------------------------------------------------


def test_prometheus_takes_configuration_and_rules() -> None:
    """promtool finds nothing wrong with the configuration, nor with the rules it names."""
    checked = tools.run("promtool", "check", "config", MONITORING / "prometheus.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "1 rule files found" in checked.stdout + checked.stderr


def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    """The written cases hold: series in, alerts out, at the minute they are due."""
    ended = run_cases(RULES, tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_alert_has_a_case() -> None:
    """No alert is without a case in which it fires."""
    fired = {
        case["alertname"]
        for test in yaml.safe_load(CASES.read_text())["tests"]
        for case in test.get("alert_rule_test", [])
        if case["exp_alerts"]
    }
    assert fired == set(rules("alert"))


@pytest.mark.parametrize(
    ("correct", "wrong", "case"),
    [
        ("vector(0.15)", "vector(0.10)", "acceptance out of its band"),
        ("vector(7200)", "vector(3600)", "a start of more than two hours"),
        ('position="0"', 'position="1"', "drafts accepted at the first position"),
        ("[1h]) >= 3", "[1h]) >= 2", "three new processes"),
        (
            "- scalar(dspark:limit:z) * sqrt",
            "+ scalar(dspark:limit:z) * sqrt",
            "acceptance out of its band",
        ),
        ("kv_cache_usage_perc > 0.95", "kv_cache_usage_perc > 0.99", "a full cache"),
        ("(amd_)?gpu_health", "gpu_health", "an unhealthy card of a node"),
        ("dspark:gpu:health == 0", "dspark:gpu:health > 0", "an unhealthy card of a node"),
        (', severity!="non_fatal_corrected"', "", "a RAS event"),
        ("dspark:gpu:afid offset 1h", "dspark:gpu:afid offset 2h", "a RAS event"),
        ("> dspark:gpu:uncorrected offset 1h", "> 0", "another error of a card"),
        (
            "socket_thermal|vr_thermal|hbm_thermal",
            "socket_thermal|vr_thermal|ppt",
            "a card that is slowed down by heat",
        ),
    ],
)
def test_the_cases_see_a_wrong_rule(correct: str, wrong: str, case: str, tmp_path: Path) -> None:
    """A rule that was changed for the worse fails the case that it is about."""
    text = RULES.read_text()
    assert correct in text
    changed = tmp_path / "rules.yaml"
    changed.write_text(text.replace(correct, wrong))
    assert run_cases(changed, tmp_path, case).returncode != 0


def test_limits_are_those_of_the_health_service() -> None:
    """Every number of the rules' limits is the recipe's or the health service's own."""
    limits = {
        name.removeprefix("dspark:limit:"): float(rule["expr"][len("vector(") : -1])
        for name, rule in rules("record").items()
        if name.startswith("dspark:limit:")
    }
    assert limits == {
        "acceptance_floor": HEALTH.acceptance_floor,
        "acceptance_ceiling": HEALTH.acceptance_ceiling,
        "acceptance_least_drafts": HEALTH.acceptance_window_drafts,
        "later_positions_floor": acceptance.COLLAPSED_FLOOR,
        "later_positions_least": acceptance.COLLAPSED_LEAST,
        "start_budget_seconds": HEALTH.start_budget_s,
        "evidence_max_age_seconds": HEALTH.evidence_max_age_s,
        "z": acceptance.Z_99,
    }


def test_limits_hold_for_every_profile() -> None:
    """One set of rules watches every AMD profile, so none may have limits of its own."""
    for profile in RECIPE.profiles.values():
        if not profile.is_rehearsal:
            assert profile.health == HEALTH, profile.name


def test_promql_and_the_health_service_agree_on_wilson_bounds(tmp_path: Path) -> None:
    """The recorded bounds are those that the health service computes, from 0 to every draft."""
    counts = [(a, n) for n in (1, 9, 100, 4000) for a in {0, 1, n // 7, n // 2, n - 1, n}]
    series, checks = [], []
    for engine, (accepted, drafts) in enumerate(counts):
        labels = f'job="vllm", instance="s", engine="{engine}"'
        first = f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels}, position="0"}}'
        drafted = f"vllm:spec_decode_num_drafts_total{{{labels}}}"
        series.append({"series": first, "values": f"0+{accepted}x30"})
        series.append({"series": drafted, "values": f"0+{drafts}x30"})
        # a sample a minute: a quarter of an hour counts fifteen steps
        bounds = acceptance.wilson(15 * accepted, 15 * drafts)
        for name, bound in zip(("lower", "upper"), bounds, strict=True):
            recorded = f'dspark:acceptance_first:{name}15m{{engine="{engine}"}}'
            close = f"count(abs(clamp({recorded}, 0, 1) - {bound!r}) < 1e-9) or vector(0)"
            checks.append({"expr": close, "eval_time": "30m", "exp_samples": [{"value": 1}]})
    cases = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": checks}],
    }
    file = tmp_path / "wilson.yaml"
    file.write_text(yaml.safe_dump(cases))
    ended = tools.run("promtool", "test", "rules", file)
    assert ended.returncode == 0, ended.stdout + ended.stderr


# --- names ----------------------------------------------------------------------------------------


WORDS = {"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring"} | {
    "group_left",
    "group_right",
}


def metrics_in(expression: str) -> set[str]:
    """The series that a PromQL expression reads."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]", "", bare)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", bare)
    names = re.findall(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)(?!\s*\()(?![\w:])", bare)
    return set(names) - WORDS


def vllm_series() -> set[str]:
    """Every series of the families in the release's sample; a histogram has three."""
    names: set[str] = set()
    for line in RECIPE.vllm.metrics.read_text().splitlines():
        if not line.startswith("# TYPE "):
            continue
        name, kind = line.split()[2:]
        names |= (
            {f"{name}_{s}" for s in ("bucket", "sum", "count")} if kind == "histogram" else set()
        )
        names.add(name)
    return names


def health_series() -> set[str]:
    """Every series of the health service's registry, from a snapshot in which all are present."""
    memory = replace(verdict.begin(0.0), good_generation_at=1.0, signs=signs(1.0, cards=(card(),)))
    snapshot = loop.Snapshot(memory, verdict.verdict(memory, 2.0), at=2.0, turns=1)
    names: set[str] = set()
    for family in report.metrics(snapshot, 2.0, True):
        names.add(f"{family.name}_total" if family.type == "counter" else family.name)
    return names


NAMED = r'__name__=~"([^"]*)"'


def exporter_series() -> set[str]:
    """Every family of AMD's exporter that was looked up, plain and with the prefix of its example."""
    families = re.findall(r"^# TYPE (\w+) gauge$", EXPORTER.read_text(), re.MULTILINE)
    return {prefix + family for prefix in ("", "amd_") for family in families}


def expressions() -> Iterator[tuple[str, str]]:
    """Every PromQL expression here, with where it stands."""
    for group in groups():
        for rule in group["rules"]:
            yield str(rule.get("alert", rule.get("record"))), rule["expr"]
    for row in dashboard.rows(RECIPE):
        for panel in row.panels:
            for query in panel.queries:
                yield panel.title, query.expression


def test_every_series_asked_for_exists() -> None:
    """Rules and panels read what vLLM or the health service exports, what a rule records, or up."""
    known = vllm_series() | health_series() | set(rules("record")) | {"up"}
    asked = {name: where for where, e in expressions() for name in metrics_in(e)}
    assert len(asked) > 30
    assert {name: where for name, where in asked.items() if name not in known} == {}


def test_series_of_amds_exporter_are_its_own() -> None:
    """A pattern of names finds families that were looked up, and each of them is asked for."""
    patterns = [p for _, e in expressions() for p in re.findall(NAMED, e)]
    found = [{name for name in exporter_series() if re.fullmatch(p, name)} for p in patterns]
    assert patterns and all(found)
    assert set().union(*found) == exporter_series()


def test_states_in_rules_are_states_of_the_service() -> None:
    """An alert that names a state names one there is."""
    named = {
        state
        for _, expression in expressions()
        for match in re.findall(r'state=~?"([A-Z_|]+)"', expression)
        for state in match.split("|")
    }
    assert named and named <= {state.value for state in verdict.State}


def test_every_alert_links_to_its_place_in_the_runbook() -> None:
    """Each link is a heading of a file here, no heading is without an alert."""
    for name, rule in rules("alert").items():
        file, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        headings = re.findall(r"^## (.+)$", (ROOT / file).read_text(), re.MULTILINE)
        assert anchor == name.lower()
        assert name in headings
        assert sorted(headings) == sorted(rules("alert"))
        assert rule["labels"]["severity"] in ("page", "ticket")
    for link in re.findall(r"\(#(\w+)\)", (MONITORING / "runbook.md").read_text()):
        assert link in {name.lower() for name in rules("alert")}


# --- routes ---------------------------------------------------------------------------------------


def test_alertmanager_takes_its_configuration() -> None:
    """amtool finds nothing wrong with it."""
    checked = tools.run("amtool", "check-config", MONITORING / "alertmanager.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("severity", ["page", "ticket"])
def test_a_severity_reaches_the_receiver_of_its_name(severity: str) -> None:
    """Alertmanager's own router sends each severity where its name says."""
    routed = tools.run(
        "amtool",
        "config",
        "routes",
        "test",
        f"--config.file={MONITORING / 'alertmanager.yml'}",
        f"--verify.receivers={severity}",
        f"severity={severity}",
    )
    assert routed.returncode == 0, routed.stdout + routed.stderr


def test_inhibitions_name_alerts_there_are() -> None:
    """What silences what is spelt as in the rules."""
    config = yaml.safe_load((MONITORING / "alertmanager.yml").read_text())
    matchers = [
        m for rule in config["inhibit_rules"] for side in rule.values() for m in side if "=" in m
    ]
    named = {name for m in matchers for name in re.findall(r"Dspark\w+", m)}
    assert named and named <= set(rules("alert"))


# --- dashboard ------------------------------------------------------------------------------------


def test_the_dashboard_is_what_its_code_says() -> None:
    """The file that Grafana reads equals what the module writes."""
    assert dashboard.FILE.read_text() == dashboard.render(RECIPE)
    assert dashboard.main(["--check"]) == 0


def test_a_changed_dashboard_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file edited by hand fails the check with one line that names the command."""
    edited = tmp_path / "dashboard.json"
    edited.write_text(dashboard.render(RECIPE).replace("State", "Stat", 1))
    monkeypatch.setattr(dashboard, "FILE", edited)
    assert dashboard.main(["--check"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert dashboard.main([]) == 0 and dashboard.main(["--check"]) == 0
    assert dashboard.main(["--wrong"]) == 2


def test_panels_are_whole_and_do_not_overlap() -> None:
    """Every panel has a query, an id of its own and a place that no other takes."""
    made = json.loads(dashboard.render(RECIPE))
    cells: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        place = panel["gridPos"]
        taken = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells and max(x for x, _ in taken) < dashboard.COLUMNS
        cells |= taken
        assert panel["type"] == "row" or panel["targets"]
    ids = [panel["id"] for panel in made["panels"]]
    assert len(set(ids)) == len(ids)


def test_every_panels_expression_is_promql(tmp_path: Path) -> None:
    """Prometheus' parser takes each expression once Grafana's variables are filled in."""
    filled = [
        e.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$node", ".*")
        for row in dashboard.rows(RECIPE)
        for panel in row.panels
        for e in (query.expression for query in panel.queries)
    ]
    made = [{"record": f"panel:{i}:query", "expr": e} for i, e in enumerate(filled)]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": made}]}))
    checked = tools.run("promtool", "check", "rules", file)
    assert checked.returncode == 0, checked.stdout + checked.stderr


# --- compose --------------------------------------------------------------------------------------


def compose(name: str) -> dict[str, Any]:
    """A compose file of deploy/."""
    return yaml.safe_load((ROOT / "deploy" / name).read_text())  # type: ignore[no-any-return]


def test_prometheus_scrapes_the_services_of_the_compose_file() -> None:
    """Host names and ports are those of the compose file and of the recipe."""
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    targets = {
        job["job_name"]: job["static_configs"][0]["targets"][0] for job in config["scrape_configs"]
    }
    services = set(compose("compose.yaml")["services"])
    ports = {"vllm": RECIPE.ports.serve, "dspark-health": RECIPE.ports.health}
    for job, target in targets.items():
        host, _, port = target.partition(":")
        assert host in services and int(port) == ports[job]
    alertmanager = config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"][0]
    assert alertmanager.split(":")[0] in compose("compose.monitoring.yaml")["services"]


def test_the_monitoring_services_mount_what_exists_and_listen_on_loopback() -> None:
    """Every mounted file is here and read-only, images are pinned, ports bind to 127.0.0.1."""
    for name, service in compose("compose.monitoring.yaml")["services"].items():
        mounts = [v for v in service["volumes"] if v.startswith("./")]
        assert mounts, name
        for mount in mounts:
            source, _, mode = mount.split(":")
            assert (ROOT / "deploy" / source).is_file() and mode == "ro"
        assert re.fullmatch(PINNED, service["image"]), name
        bind = f"${{{name.upper()}_BIND:-127.0.0.1}}:"
        assert all(port.startswith(bind) for port in service["ports"])
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
        assert service["healthcheck"]


def test_grafana_is_given_the_dashboard_and_its_source() -> None:
    """The provider reads the folder where compose mounts the dashboard, the source is the panels'."""
    volumes = compose("compose.monitoring.yaml")["services"]["grafana"]["volumes"]
    places = {v.split(":")[0]: v.split(":")[1] for v in volumes}
    provider = yaml.safe_load((MONITORING / "grafana" / "provider.yaml").read_text())
    folder = provider["providers"][0]["options"]["path"]
    assert str(Path(places["./monitoring/dashboard.json"]).parent) == folder
    source = yaml.safe_load((MONITORING / "grafana" / "datasource.yaml").read_text())
    assert source["datasources"][0]["uid"] == dashboard.SOURCE["uid"]
