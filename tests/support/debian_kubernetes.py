"""A real Kubernetes 1.20 of one node, from Debian 12's packages alone, for `make test-kubernetes`.

    sudo python3 -m tests.support.debian_kubernetes build      once: 6 minutes of one core, 3 GB
    sudo python3 -m tests.support.debian_kubernetes up         prints what the tests are to be given
    sudo python3 -m tests.support.debian_kubernetes restart-kubelet
    sudo python3 -m tests.support.debian_kubernetes down

Debian has no newer kubelet: 1.20 is the last whose source package holds all of its sources. It is
built with Debian's Go, without network, below the cache folder (`DSPARK_CACHE`). Everything runs in a
network namespace of its own with a Docker engine of its own; an engine of this machine is not
touched. Whoever reaches the node's address, which this machine and its pods do, may do anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from deploy.environment import cache_dir
from tests.support.waiting import until

FOLDER = cache_dir(os.environ) / "kubernetes"
SOURCE = FOLDER / "gopath" / "src" / "k8s.io" / "kubernetes"
DEBIAN, BUILT, RUN = FOLDER / "debian", FOLDER / "bin", FOLDER / "run"
SOCKET, KUBECONFIG = RUN / "docker.sock", RUN / "kubeconfig"

VERSION = "1.20.2"
GO = "1.19"
PACKAGES = (
    *(f"golang-{GO}-go", f"golang-{GO}-src", "golang-github-modern-go-reflect2-dev"),
    *("etcd-server", "conntrack", "libnetfilter-conntrack3", "kubernetes-client"),
)
PROGRAMS = (
    *("kube-apiserver", "kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy"),
)
#: In the order in which they end.
RUNNING = (
    *("kube-proxy", "kubelet", "kube-scheduler", "kube-controller-manager", "kube-apiserver"),
    *("etcd", "dockerd"),
)

NAMESPACE, NODE = "dspark-kubernetes", "node"
HERE_IP, NODE_IP, PODS = "10.99.0.2", "10.99.0.1", "172.31.250.1/24"
API = f"https://{NODE_IP}:6443"
#: What the kubelet sets for the whole machine, and would leave so.
SYSCTLS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
#: Where a kubelet writes whatever its options say.
OUTSIDE = (Path("/var/log/pods"), Path("/var/log/containers"), Path("/var/lib/dockershim"))

_VERSIONED = ("component-base", "client-go/pkg")
_SOURCES = """Types: deb deb-src
URIs: http://deb.debian.org/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
_APT = """Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{folder}/sources";
Dir::Etc::preferencesparts "/dev/null";
Dir::State::lists "{folder}/lists";
Dir::Cache "{folder}/cache";
APT::Sandbox::User "root";
Acquire::Languages "none";
"""
# Nobody but a machine's real root may lower a process's score, as the pod's own container asks for.
_RUNC = """#!/bin/sh
b= ; p=
for a in "$@"; do [ "$p" = --bundle ] && b=$a; p=$a; done
[ -f "$b/config.json" ] && sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' "$b/config.json"
exec runc "$@"
"""


def build() -> None:
    """Fetch the packages and build the five programs; what is there is kept."""
    if not SOURCE.exists():
        _fetch()
    go = DEBIAN / "usr" / "lib" / f"go-{GO}"
    environ = {
        **os.environ,
        "GOROOT": str(go),
        "GOPATH": str(FOLDER / "gopath"),
        "GOCACHE": str(FOLDER / "gocache"),
        "GOPROXY": "off",
        "GO111MODULE": "off",
        "GOFLAGS": "",
        "CGO_ENABLED": "0",
        "PATH": f"{go / 'bin'}:{os.environ['PATH']}",
    }

    def made(program: str, package: str, *options: str) -> None:
        if not (BUILT / program).exists():
            print(f"building {program}", flush=True)
            unfinished = BUILT / f"{program}.new"
            command = ["go", "build", *options, "-o", str(unfinished), package]
            subprocess.run(command, cwd=SOURCE, env=environ, check=True)
            unfinished.rename(BUILT / program)

    BUILT.mkdir(exist_ok=True)
    made("openapi-gen", "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
    _generate(environ)
    # what a program says of itself, and what the server says of itself
    versions = [f"k8s.io/kubernetes/vendor/k8s.io/{p}/version" for p in _VERSIONED]
    told = {"gitVersion": f"v{VERSION}", "gitMajor": "1", "gitMinor": VERSION.split(".")[1]}
    stamps = [f"-X {place}.{name}={value}" for place in versions for name, value in told.items()]
    for program in PROGRAMS:
        options = ["-trimpath", "-tags", "providerless", "-ldflags", " ".join(["-s -w", *stamps])]
        made(program, f"./cmd/{program}", *options)


def _fetch() -> None:
    """Debian's packages, unpacked beside the system, and the sources with one library replaced:
    that of the source package does not bear Go 1.18 or newer."""
    apt = FOLDER / "apt"
    for name in ("lists/partial", "cache/archives/partial", "sources", "packages"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "sources" / "debian.sources").write_text(_SOURCES)
    (apt / "apt.conf").write_text(_APT.format(folder=apt))
    environ = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    for words in (
        ["apt-get", "-qq", "update"],
        ["apt-get", "-qq", "download", *PACKAGES],
        ["apt-get", "-qq", "source", "--download-only", "kubernetes"],
    ):
        subprocess.run(words, cwd=apt / "packages", env=environ, check=True)
    for package in sorted((apt / "packages").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(package), str(DEBIAN)], check=True)
    (description,) = (apt / "packages").glob("kubernetes_1.20*.dsc")
    unpacked = FOLDER / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    subprocess.run(["dpkg-source", "--no-copy", "-x", str(description), str(unpacked)], check=True)
    library = Path("github.com", "modern-go", "reflect2")
    shutil.rmtree(unpacked / "vendor" / library)
    shutil.copytree(DEBIAN / "usr/share/gocode/src" / library, unpacked / "vendor" / library)
    SOURCE.parent.mkdir(parents=True, exist_ok=True)
    unpacked.rename(SOURCE)


def _generate(environ: Mapping[str, str]) -> None:
    """The one generated file that the source package lacks: what `kubectl apply` asks the server."""
    package = "pkg/generated/openapi"
    if (SOURCE / package / "zz_generated.openapi.go").exists():
        return
    looking = ("grep", "-Rl", "--include=*.go", "--exclude=*_test.go", "--exclude-dir=testdata")
    marked = subprocess.run(
        [*looking, "+k8s:openapi-gen=", "pkg", "cmd", "plugin", "vendor/k8s.io"],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    folders = {str(Path("k8s.io/kubernetes", file).parent) for file in marked}
    others = ("code-generator", "sample-apiserver", "generated/openapi", "cmd/openapi-gen")
    chosen = sorted(f for f in folders if not any(other in f for other in others))
    command = [str(BUILT / "openapi-gen"), "-i", ",".join(chosen), "-O", "zz_generated.openapi"]
    command += ["-p", f"k8s.io/kubernetes/{package}", "-o", str(FOLDER / "gopath" / "src")]
    command += ["-h", "hack/boilerplate/boilerplate.generatego.txt", "-r", "/dev/null"]
    subprocess.run(command, cwd=SOURCE, env=environ, check=True)


def up() -> None:
    """Start the cluster, wait until its node is Ready, and print the variables of the tests."""
    missing = [name for name in PROGRAMS if not (BUILT / name).exists()]
    if missing:
        sys.exit(f"debian_kubernetes: {missing[0]} is not built: give `build` first")
    if _lives("dockerd"):
        sys.exit("debian_kubernetes: a cluster runs: give `down` first")
    RUN.mkdir(exist_ok=True)
    (RUN / "sysctls").write_text(
        json.dumps({n: (Path("/proc/sys") / n).read_text() for n in SYSCTLS})
    )
    _network()
    _engine()
    _control()
    start_kubelet()
    _start(
        *("kube-proxy", f"--kubeconfig={KUBECONFIG}", f"--hostname-override={NODE}"),
        *("--proxy-mode=iptables", "--bind-address=127.0.0.1", "--conntrack-max-per-core=0"),
        *("--conntrack-min=0", "--conntrack-tcp-timeout-established=0"),
        "--conntrack-tcp-timeout-close-wait=0",
    )
    ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    until(lambda: _kubectl("get", "node", NODE, "-o", ready), good=lambda told: told == "True")
    until(lambda: _kubectl("get", "serviceaccount", "default", "-o", "name"))
    print(f"export KUBECONFIG={KUBECONFIG}")
    print(f"export DOCKER_HOST=unix://{SOCKET}")
    print(
        f"export KUBELET_RESTART='{sys.executable} -m tests.support.debian_kubernetes restart-kubelet'"
    )


def _network() -> None:
    """A network namespace with the node's address, which this machine reaches."""
    if Path("/run/netns", NAMESPACE).exists():
        return
    inside = ("nsenter", f"--net=/run/netns/{NAMESPACE}")
    for words in (
        ("ip", "netns", "add", NAMESPACE),
        (
            "ip",
            "link",
            "add",
            "dspark-kube",
            "type",
            "veth",
            "peer",
            "name",
            "node0",
            "netns",
            NAMESPACE,
        ),
        ("ip", "address", "add", f"{HERE_IP}/30", "dev", "dspark-kube"),
        ("ip", "link", "set", "dspark-kube", "up"),
        (*inside, "ip", "address", "add", f"{NODE_IP}/30", "dev", "node0"),
        (*inside, "ip", "link", "set", "node0", "up"),
        (*inside, "ip", "link", "set", "lo", "up"),
        (*inside, "ip", "route", "add", "default", "via", HERE_IP),
        (*inside, "sysctl", "-qw", "net.ipv4.ip_forward=1"),
    ):
        subprocess.run(words, check=True)


def _engine() -> None:
    """A Docker engine inside, and the image that holds a pod's namespaces."""
    runtime = RUN / "runc"
    runtime.write_text(_RUNC)
    runtime.chmod(0o755)
    _start(
        *("dockerd", f"--data-root={FOLDER / 'docker'}", f"--exec-root={RUN / 'docker'}"),
        *(f"--pidfile={RUN / 'docker.pid'}", f"--host=unix://{SOCKET}", f"--bip={PODS}"),
        *("--exec-opt=native.cgroupdriver=cgroupfs", "--log-level=warn"),
        *(f"--add-runtime=here={runtime}", "--default-runtime=here"),
    )
    until(lambda: _docker("info").returncode == 0)
    if _docker("image", "inspect", "pause:debian").returncode:
        program = RUN / "pause"
        pause = SOURCE / "build" / "pause" / "linux" / "pause.c"
        subprocess.run(["gcc", "-Os", "-static", "-o", str(program), str(pause)], check=True)
        archive = subprocess.run(
            ["tar", "-C", str(RUN), "-c", "pause"], capture_output=True, check=True
        )
        done = _docker(
            "import", "--change", 'ENTRYPOINT ["/pause"]', "-", "pause:debian", stdin=archive.stdout
        )
        assert done.returncode == 0, done.stderr


def _control() -> None:
    """etcd in memory, the API server, and what acts by it."""
    token = secrets.token_hex(16)
    (RUN / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    (RUN / "tokens.csv").chmod(0o600)
    key = RUN / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    data = Path("/dev/shm") / NAMESPACE
    shutil.rmtree(data, ignore_errors=True)
    _start(
        *("etcd", f"--data-dir={data}", "--listen-client-urls=http://127.0.0.1:2379"),
        *("--advertise-client-urls=http://127.0.0.1:2379", "--log-level=warn", "--logger=zap"),
        "--listen-peer-urls=http://127.0.0.1:2380",
    )
    certificates = RUN / "apiserver"
    _start(
        *("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", f"--bind-address={NODE_IP}"),
        *(f"--advertise-address={NODE_IP}", f"--cert-dir={certificates}", "--profiling=false"),
        *(f"--token-auth-file={RUN / 'tokens.csv'}", "--authorization-mode=RBAC"),
        *("--service-cluster-ip-range=10.96.0.0/24", f"--service-account-key-file={key}"),
        *(
            f"--service-account-signing-key-file={key}",
            "--kubelet-preferred-address-types=InternalIP",
        ),
        "--service-account-issuer=https://kubernetes.default.svc",
    )
    certificate = certificates / "apiserver.crt"
    until(certificate.exists)
    user = {"clusters": {"cluster": {"server": API, "certificate-authority": str(certificate)}}}
    user |= {"users": {"user": {"token": token}}}
    user |= {"contexts": {"context": {"cluster": NODE, "user": NODE}}}
    named = {kind: [{"name": NODE, **value}] for kind, value in user.items()}
    KUBECONFIG.touch(0o600)
    KUBECONFIG.write_text(
        json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": NODE, **named})
    )
    until(lambda: _kubectl("get", "--raw", "/readyz"), good=lambda told: told == "ok")
    managing = ("--leader-elect=false", "--bind-address=127.0.0.1", f"--kubeconfig={KUBECONFIG}")
    _start("kube-controller-manager", *managing, f"--service-account-private-key-file={key}")
    _start("kube-scheduler", *managing)


def start_kubelet() -> None:
    """The kubelet, until it says that it is well."""
    _start(
        *("kubelet", f"--kubeconfig={KUBECONFIG}", f"--root-dir={FOLDER / 'kubelet'}"),
        *(f"--cert-dir={RUN / 'kubelet'}", f"--docker-endpoint=unix://{SOCKET}"),
        *("--container-runtime=docker", "--pod-infra-container-image=pause:debian"),
        *("--cgroup-driver=cgroupfs", "--fail-swap-on=false", f"--hostname-override={NODE}"),
        *(f"--node-ip={NODE_IP}", f"--address={NODE_IP}", "--authorization-mode=AlwaysAllow"),
        *("--anonymous-auth=true", "--image-gc-high-threshold=100", "--resolv-conf="),
        *("--eviction-hard=memory.available<100Mi", f"--volume-plugin-dir={RUN / 'plugins'}"),
        *(f"--seccomp-profile-root={RUN / 'seccomp'}", "--healthz-bind-address=127.0.0.1", "--v=2"),
    )
    well = ("curl", "-fsS", "--max-time", "5", "http://127.0.0.1:10248/healthz")
    until(lambda: _inside(*well).stdout == "ok")


def restart_kubelet() -> None:
    """End the kubelet and start it again; its pods go on."""
    _stop("kubelet")
    start_kubelet()


def down() -> None:
    """End everything and leave nothing but what `build` made and the images."""
    for name in RUNNING:
        if name == "kube-apiserver":  # no kubelet starts them again
            left = _docker("ps", "--all", "--quiet").stdout.decode().split()
            if left:
                _docker("rm", "--force", *left)
        _stop(name)
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in reversed(mounted):
        if f"{place}/".startswith((f"{FOLDER / 'kubelet'}/", f"{RUN}/")):
            subprocess.run(["umount", "--lazy", place], check=False)
    subprocess.run(["ip", "netns", "delete", NAMESPACE], capture_output=True, check=False)
    for group in Path("/sys/fs/cgroup").glob("*/kubepods"):
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
    for left_over in (FOLDER / "kubelet", Path("/dev/shm") / NAMESPACE, *OUTSIDE):
        shutil.rmtree(left_over, ignore_errors=True)
    if (RUN / "sysctls").exists():
        for name, value in json.loads((RUN / "sysctls").read_text()).items():
            (Path("/proc/sys") / name).write_text(value)
    shutil.rmtree(RUN, ignore_errors=True)


def _start(program: str, *options: str) -> None:
    """Start it inside, in a session of its own, with its output in a file."""
    path = f"{BUILT}:{DEBIAN / 'usr/bin'}:{DEBIAN / 'usr/sbin'}:{os.environ['PATH']}"
    libraries = DEBIAN / "usr/lib/x86_64-linux-gnu"
    with (RUN / f"{program}.log").open("ab") as log:
        running = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{NAMESPACE}", program, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PATH": path, "LD_LIBRARY_PATH": str(libraries)},
        )
    (RUN / f"{program}.pid").write_text(str(running.pid))


def _pid(program: str) -> int | None:
    """The process that was started as the program, while it is one."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((RUN / f"{program}.pid").read_text())
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state != "Z" and program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


def _lives(program: str) -> bool:
    return _pid(program) is not None


def _stop(program: str) -> None:
    """End it and wait until it has ended."""
    pid = _pid(program)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        until(lambda: not _lives(program), within_s=60)


def _inside(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["nsenter", f"--net=/run/netns/{NAMESPACE}", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _docker(*words: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    command = ["docker", "--host", f"unix://{SOCKET}", *words]
    return subprocess.run(command, input=stdin, capture_output=True, check=False)


def _kubectl(*words: str) -> str:
    command = [str(DEBIAN / "usr/bin/kubectl"), f"--kubeconfig={KUBECONFIG}", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


COMMANDS: Mapping[str, Callable[[], None]] = {
    "build": build,
    "up": up,
    "restart-kubelet": restart_kubelet,
    "down": down,
}

if __name__ == "__main__":
    if sys.argv[1:] not in [[name] for name in COMMANDS]:
        sys.exit(f"debian_kubernetes: give one of {', '.join(COMMANDS)}")
    if os.geteuid() != 0:
        sys.exit(f"debian_kubernetes: user {os.geteuid()} may not: be root")
    COMMANDS[sys.argv[1]]()
