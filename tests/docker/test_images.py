"""The images: what they hold, what they refuse, who they run as, and how they are built."""

import http.server
import json
import os
import re
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from docker.errors import ContainerError

import docker
from deploy import recipe
from deploy.containers.variables import HEALTH_UID
from deploy.rehearsal import image as stand_in
from deploy.rehearsal.supervisor import free_port
from patches import series
from tests.support import bom, tools
from tests.support.containers import Build, Images
from tests.support.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("starting")]

ROOT = Path(__file__).resolve().parents[2]
ADDED_BYTES = 15_000_000  # of which py-spy is 8
HEALTH_ADDED_BYTES = 20_000_000
HEALTH_BYTES = 150_000_000


def run(engine: docker.DockerClient, image: str, *command: str, **options: object) -> str:
    """Output of a container that must end well."""
    output: bytes = engine.containers.run(image, list(command), remove=True, **options)
    return output.decode()


def refused(engine: docker.DockerClient, image: str, *command: str, **options: object) -> str:
    """The stderr of a container that must end with an error: one line without a traceback."""
    with pytest.raises(ContainerError) as caught:
        engine.containers.run(image, list(command), remove=True, **options)
    text = caught.value.stderr.decode().strip()
    assert "Traceback" not in text
    assert len(text.splitlines()) == 1, text
    return text


def test_the_server_image_carries_the_series_and_says_so(
    engine: docker.DockerClient, images: Images
) -> None:
    """The provenance in the image names every patch as applied, by the hash that the file has."""
    proven = json.loads(run(engine, images.server, "cat", "/opt/dspark-rocm/provenance.json"))
    loaded = series.load()
    assert proven["series"]["sha256"] == loaded.sha256
    assert {s["patch"] for s in proven["tree"]["status"]} == {p.name for p in loaded.patches}
    assert {s["state"] for s in proven["tree"]["status"]} == {"applied"}
    assert proven["tree"]["vllm_version"].startswith(recipe.load().vllm.version)
    assert proven["audit"]["trees"][0]["gaps"] == []
    # The stand-in has no torch until it runs, and the build says so instead of claiming a load.
    assert proven["load_check"]["level"] == "not imported"
    assert "No module named 'torch'" in proven["load_check"]["stopped_by"]
    assert proven["compile"]["verdict"] == "unknown"
    assert proven["compile"]["told"].startswith("compile: torch and triton: not installed for ")
    assert proven["image"] == dict.fromkeys(("aiter", "triton", "torch", "rocm"), "unknown")
    assert "AITER unknown: may have 32-bit page offsets, not met" in proven["aiter"]["told"]
    package = proven["tree"]["package"]
    targets = sorted({t.path for p in loaded.patches for t in p.targets})
    sums = run(engine, images.server, "sha256sum", *(f"{package}/../{t}" for t in targets))
    after = {pair.after for p in loaded.patches for t in p.targets for pair in t.pairs}
    assert all(line.split()[0] in after for line in sums.splitlines())


def run_patches(engine: docker.DockerClient, images: Images, command: str, *words: str) -> str:
    """A command of `patches` on the image's tree, with torch and Triton at hand and no network."""
    tree = "/usr/local/lib/python3.11/dist-packages"
    return run(
        engine,
        images.server,
        *("python3", "-m", "patches", command, tree, *words),
        network_mode="none",
        volumes={str(stand_in.site_packages()): {"bind": str(stand_in.SITE), "mode": "ro"}},
    )


def test_the_build_argument_of_the_compile_proof_reaches_it(build: Build, images: Images) -> None:
    """A word that it does not know is refused, in the one line that names the legal ones."""
    options = ("--network", "none", "--build-arg", "COMPILE_PROOF=no")
    ended = build.attempt("docker/Dockerfile", "dspark-rocm/server:none", images.base, *options)
    assert ended.returncode != 0
    assert "prove: COMPILE_PROOF: got 'no'; give on, warn or off" in ended.stdout


def test_the_image_compiles_the_kernels_of_the_series(
    engine: docker.DockerClient, images: Images
) -> None:
    """With torch and Triton at hand and no network, as a build on the ROCm image has them."""
    told = run_patches(engine, images, "compile", "--profile", "mi355x", "--touched")
    assert re.search(r"kernels compiled: \d+ on gfx950 with Triton \d", told)
    assert re.search(r"^_flat_paged_mqa_logits_kernel .* new$", told, re.MULTILINE)


@pytest.mark.parametrize("kind", ["server", "health"])
def test_an_image_lists_what_it_is_made_of(
    engine: docker.DockerClient, images: Images, kind: str
) -> None:
    """Its bill of materials is CycloneDX, and has what the image's own tools find in it."""
    image = getattr(images, kind)

    def told(program: str, *words: str) -> str:
        return run(engine, image, *words, entrypoint=program)

    made = json.loads(told("cat", "/opt/dspark-rocm/sbom.cdx.json"))
    bom.check(made)
    urls = [part["purl"] for part in made["components"]]
    listed = told("dpkg-query", "-W", "-f", "${Package}@${Version}\\n").split()
    assert len(listed) == sum(url.startswith("pkg:deb/") for url in urls) > 50
    patched = {p["name"] for p in made["components"] if "pedigree" in p}
    assert patched == ({"vllm"} if kind == "server" else set())
    assert kind == "server" or any(url.startswith("pkg:pypi/uvicorn@") for url in urls)


def test_the_image_loads_its_draft_class(engine: docker.DockerClient, images: Images) -> None:
    """With torch at hand and no network, as in a build, the load check ends with a loaded draft."""
    told = run_patches(engine, images, "loadcheck", "--at-least", "loaded")
    assert "DSparkDeepseekV4ForCausalLM: loaded" in told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
@pytest.mark.parametrize(
    ("user", "groups", "opens"), [("0", [], True), ("65532", [], False), ("65532", [993], True)]
)
def test_root_opens_a_device_whatever_its_group(
    engine: docker.DockerClient,
    images: Images,
    tmp_path: Path,
    user: str,
    groups: list[int],
    opens: bool,
) -> None:
    """The server is root, whose /dev/kfd is: without a capability or a group it opens it. Only a
    user who is not root would have to be in the group that owns it on the host."""
    node = tmp_path / "kfd"  # a stand-in: /dev/zero's numbers, the owner and mode of a GPU's
    os.mknod(node, stat.S_IFCHR | 0o660, os.makedev(1, 5))
    os.chown(node, 0, 993)
    node.chmod(0o660)
    told = engine.containers.run(
        images.server,
        ["-c", "import os; print(os.access('/dev/kfd', os.R_OK | os.W_OK))"],
        entrypoint="python3",
        user=user,
        group_add=groups,
        devices=[f"{node}:/dev/kfd"],
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        remove=True,
    )
    assert told.decode().split() == [str(opens)]


def test_the_layers_added_to_the_base_are_small(
    engine: docker.DockerClient, images: Images
) -> None:
    """Server layers stay within 15 MB over the base, those of the health service within 20 MB, and
    the whole of it on a small Debian with Python within 150 MB."""
    sizes = {
        name: engine.images.get(getattr(images, name)).attrs["Size"]
        for name in ("server", "base", "health", "root")
    }
    assert 0 < sizes["server"] - sizes["base"] <= ADDED_BYTES
    assert 0 < sizes["health"] - sizes["root"] <= HEALTH_ADDED_BYTES
    assert sizes["health"] <= HEALTH_BYTES


@pytest.mark.parametrize("kind", ["server", "health"])
def test_an_image_holds_nothing_of_rehearsal_tests_or_history(
    engine: docker.DockerClient, images: Images, kind: str
) -> None:
    """Only the product's own packages are below its folder."""
    listed = engine.containers.run(
        getattr(images, kind),
        ["/opt/dspark-rocm", "-path", "*/site/*", "-prune", "-o", "-type", "f", "-print"],
        entrypoint="find",
        remove=True,
    )
    files = listed.decode().split()
    assert any(f.endswith("healthcheck/__main__.py") for f in files)
    strangers = ("rehearsal", "/tests/", "/.git", "Dockerfile", ".yaml", ".whl", "/k8s/")
    assert [f for f in files if any(s in f for s in strangers)] == []


@pytest.mark.parametrize(
    ("environment", "arguments", "told"),
    [
        ({}, [], "DSPARK_PROFILE: is not set"),
        ({"DSPARK_PROFILE": "rehearsal"}, ["--no-such-flag"], "--no-such-flag"),
        ({"VLLM_API_KEY_FILE": "/run/secrets/none"}, [], "VLLM_API_KEY_FILE: /run/secrets/none"),
        ({"DSPARK_LOG": "/proc/log"}, [], "DSPARK_LOG: /proc/log"),
    ],
)
def test_the_server_image_refuses_bad_input_in_one_line(
    engine: docker.DockerClient,
    images: Images,
    environment: dict[str, str],
    arguments: list[str],
    told: str,
) -> None:
    """A refusal inside the image names the setting and starts nothing."""
    assert told in refused(engine, images.server, *arguments, environment=environment)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("mv {p}/vllm-*.dist-info {p}/vllm-0.28.0.dist-info && sed -i s/^Version:.*/Version:0.28.0/"
         " {p}/vllm-0.28.0.dist-info/METADATA", "is 0.28.0, the recipe pins"),
        ("echo '# changed' >> {p}/vllm/models/deepseek_v4/amd/dspark.py", "drifted"),
        ("rm {p}/vllm/models/deepseek_v4/amd/dspark.py", "missing"),
    ],
    ids=["other-release", "drifted-file", "missing-file"],
)  # fmt: skip
def test_a_base_that_the_series_does_not_fit_gives_no_image(
    engine: docker.DockerClient, build: Build, images: Images, change: str, told: str
) -> None:
    """The build fails with the reason, and no image is left."""
    packages = "/usr/local/lib/python3.11/dist-packages"
    changed = engine.containers.create(images.base, ["sh", "-c", change.format(p=packages)])
    try:
        changed.start()
        assert changed.wait()["StatusCode"] == 0, changed.logs()
        changed.commit("dspark-rocm/changed-base", "test")
    finally:
        changed.remove(force=True)
    tag = "dspark-rocm/server:never"
    done = build.attempt("docker/Dockerfile", tag, "dspark-rocm/changed-base:test")
    engine.images.remove("dspark-rocm/changed-base:test", force=True)
    assert done.returncode != 0
    assert "prove: " in done.stdout
    assert told in done.stdout
    assert engine.images.list(tag) == []


def test_the_health_image_runs_without_root_or_a_writable_file(
    engine: docker.DockerClient, images: Images
) -> None:
    """As user 65532 on a read-only root without capabilities it serves, and says why not ready."""
    container = engine.containers.run(
        images.health,
        ["serve", "--profile", "rehearsal", "--target", "http://127.0.0.1:9"],
        detach=True,
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
    )
    try:
        ask = ["python3", "-m", "healthcheck", "check", "--for", "ready"]
        line = until(
            lambda: container.exec_run(ask).output.decode(), good=lambda said: "LOADING" in said
        )
        assert "server.refused" in line or "start.waiting" in line
        assert container.exec_run(["id", "-u"]).output.decode().strip() == str(HEALTH_UID)
        assert container.exec_run(["touch", "/opt/dspark-rocm/x"]).exit_code != 0
        container.stop(timeout=20)
        assert container.wait()["StatusCode"] == 0
    finally:
        container.remove(force=True)


def test_the_health_image_is_built_through_a_private_ca_and_index(
    build: Build, images: Images, tmp_path: Path
) -> None:
    """With secrets `ca` and `pip` the packages come from an index that only they make reachable;
    with GRPC=1 those of the extra too."""
    wheels = build.context / "docker" / "wheels"
    with private_index(wheels, tmp_path) as (index, certificate):
        configuration = tmp_path / "pip.conf"
        configuration.write_text(f"[global]\nindex-url = {index}\nretries = 0\n")
        empty = tmp_path / "wheels-moved"
        empty.mkdir()
        moved = [(w, w.rename(empty / w.name)) for w in list(wheels.glob("*.whl"))]
        try:
            arguments = ("docker/Dockerfile.healthcheck", "dspark-rocm/healthcheck:mirror")
            options = ["--network", "host", "--no-cache-filter", "packages", "--target", "packages"]
            options += ["--secret", f"id=pip,src={configuration}"]
            without = build.attempt(*arguments, images.root, *options)
            assert without.returncode != 0
            # After pip's own last word, as the build tells what the step printed.
            said = re.split(
                r"^#\d+ [\d.]+ build: pip got no packages; ", without.stdout, flags=re.M
            )
            assert len(said) == 2 and "certificate verify failed" in said[0]
            assert said[1].splitlines()[0].endswith("set CA_FILE and PIP_CONFIG")
            options += ["--secret", f"id=ca,src={certificate}", "--build-arg", "GRPC=1"]
            built = build(*arguments, images.root, *options)
        finally:
            for before, now in moved:
                now.rename(before)
    imports = "import sys; sys.path.insert(0, '/build/site'); import grpc_health.v1.health"
    run = ("docker", "run", "--rm", "--network", "none", built, "python3", "-c", imports)
    subprocess.run(run, check=True)


def test_a_wheel_that_is_not_the_locked_one_gives_no_image(build: Build, images: Images) -> None:
    """A wheelhouse whose file has another hash than the lock's is refused."""
    wheel = next((build.context / "docker" / "wheels").glob("idna-*.whl"))
    content = wheel.read_bytes()
    wheel.write_bytes(content + b"\0")
    try:
        options = ["--network", "none", "--no-cache-filter", "packages", "--target", "packages"]
        done = build.attempt(
            "docker/Dockerfile.healthcheck", "dspark-rocm/healthcheck:bad", images.root, *options
        )
    finally:
        wheel.write_bytes(content)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stdout


def test_a_base_is_pinned_by_the_digest_of_a_registry(
    engine: docker.DockerClient, build: Build, images: Images, tmp_path: Path
) -> None:
    """Tag and digest together build; the same tag with another digest does not."""
    with registry(tmp_path) as address:
        repository = f"{address}/root"
        engine.images.get(images.root).tag(repository, "1")
        try:
            pushed = [json.loads(line) for line in engine.images.push(repository, "1").splitlines()]
            digest = next(p["aux"]["Digest"] for p in pushed if "aux" in p)
            options = ["--target", "packages", "--network", "none"]
            name = ("docker/Dockerfile.healthcheck", "dspark-rocm/healthcheck:pinned")
            build(*name, f"{repository}:1@{digest}", *options)
            other = f"{repository}:1@sha256:{'0' * 64}"
            assert build.attempt(*name, other, *options).returncode != 0
        finally:
            engine.images.remove(f"{repository}:1", force=True)


def test_container_structure(images: Images, tmp_path: Path) -> None:
    """Entrypoint, user, ports, labels and files are as container-structure-test reads them."""
    tool = Path(sys.executable).with_name("container-structure-test")
    assert tool.exists(), "container-structure-test: is not in this environment"
    for kind in ("server", "health"):
        config = Path(__file__).with_name(f"structure-{kind}.yaml")
        done = subprocess.run(
            [str(tool), "test", "--image", getattr(images, kind), "--config", str(config)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def private_index(wheels: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """A package index of the wheels over TLS, by a certificate that nobody else trusts."""
    site = folder / "index"
    for wheel in wheels.glob("*.whl"):
        project = re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
        page = site / "simple" / project
        page.mkdir(parents=True)
        (page / wheel.name).write_bytes(wheel.read_bytes())
        (page / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    certificate, key = folder / "ca.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}/simple/", certificate
    finally:
        server.shutdown()
        server.server_close()


def answers(address: str) -> bool:
    """Whether something listens there."""
    name, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((name, int(port))) == 0


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Debian's image registry on a port of the loopback."""
    address = f"127.0.0.1:{free_port()}"
    config = folder / "registry.json"
    settings = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": address},
    }
    config.write_text(json.dumps(settings))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(
            [tools.find("docker-registry"), "serve", str(config)],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: answers(address))
        yield address
    finally:
        process.terminate()
        process.wait(20)
