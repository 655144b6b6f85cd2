"""The process that reads untrusted files: what it cannot do, what it does not have, and that it always ends."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from ckptzoo.errors import IntegrityError, MissingExtraError
from ckptzoo.hub.untrusted import Limits, read, read_all
from ckptzoo.hub.untrusted.sandbox import filter_program
from ckptzoo.hub.untrusted.supervisor import Supervisor
from tests.support.checkpoint_files import saved, torch_zip, written

ROOT = Path(__file__).parents[3]
TRY = """
import ctypes, json, os, resource, socket, sys
sys.path[:0] = [{root!r}]
from ckptzoo.hub.untrusted.limits import Limits
from ckptzoo.hub.untrusted.sandbox import install_audit_hook, install_filter, leave_network, set_limits
limits = Limits(memory_bytes=2**28, tensor_bytes=2**20, cpu_seconds=5)
libc = ctypes.CDLL(None, use_errno=True)
made = {{}}
def tried(name, call):
    try:
        made[name] = f"done: {{call()}}"
    except BaseException as error:
        made[name] = type(error).__name__
{body}
print(json.dumps(made))
"""


def told(body: str) -> dict[str, str]:
    """What became of what was tried in a process of its own."""
    code = TRY.format(root=str(ROOT), body=textwrap.dedent(body))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def slow(mebibytes: int) -> bytes:
    """A sound archive with a pickle of so many small operations that following it takes long."""
    return torch_zip(b"\x80\x02" + b"N\x85" * (mebibytes << 19) + b".")


def test_the_filter_alone_refuses_network_files_and_processes() -> None:
    made = told(
        """
        file = os.open("/dev/null", os.O_RDWR)
        made["reason"] = str(install_filter())
        for family in (1, 2, 10, 16, 17):
            tried(f"socket {family}", lambda: socket.socket(family, 1))
        tried("pair", socket.socketpair)
        tried("open", lambda: os.open("/etc/passwd", os.O_RDONLY))
        tried("create", lambda: os.open("/tmp/ran", os.O_CREAT | os.O_WRONLY))
        tried("list", lambda: os.listdir("/"))
        tried("unlink", lambda: os.unlink("/tmp/none"))
        tried("fork", os.fork)
        tried("exec", lambda: os.execv("/bin/true", ["true"]))
        tried("spawn", lambda: os.posix_spawn("/bin/true", ["true"], {}))
        tried("kill", lambda: os.kill(os.getppid(), 0))
        tried("limit", lambda: resource.setrlimit(resource.RLIMIT_CPU, (1, 1)))
        tried("uid", lambda: os.setuid(0))
        tried("chdir", lambda: os.chdir("/"))
        tried("pipe", os.pipe)
        tried("nice", lambda: os.nice(1))
        made["ptrace"] = str(libc.ptrace(0, 0, 0, 0))
        made["unshare"] = str(libc.unshare(0x10000000))
        made["code"] = str(libc.mprotect(ctypes.c_void_p(id(made) & ~4095), 4096, 7))
        tried("write", lambda: os.write(file, b"x"))
        tried("memory", lambda: len(bytearray(2**24)))
        """
    )
    assert made.pop("reason") == "None"
    assert made.pop("write") == "done: 1" and made.pop("memory") == "done: 16777216"
    assert {made.pop(name) for name in ("ptrace", "unshare", "code")} == {"-1"}
    assert made.pop("limit") == "ValueError"
    assert len(made) == 18 and set(made.values()) == {"PermissionError"}, made


def test_the_limits_alone_bound_memory_bytes_written_and_processor_time(tmp_path: Path) -> None:
    made = told(
        f"""
        file = os.open({str(tmp_path / "out")!r}, os.O_CREAT | os.O_WRONLY)
        set_limits(limits)
        tried("memory", lambda: len(bytearray(2**29)))
        tried("less", lambda: len(bytearray(2**26)))
        tried("write", lambda: [os.pwrite(file, b"x", 2**20 + 64 * 2**20 + 1)])
        tried("files", lambda: [os.open("/dev/null", 0) for _ in range(20)])
        made["core"] = str(resource.getrlimit(resource.RLIMIT_CORE))
        made["cpu"] = str(resource.getrlimit(resource.RLIMIT_CPU))
        """
    )
    assert made["memory"] == "MemoryError" and made["less"].startswith("done")
    assert made["write"] == "OSError" and made["files"] == "OSError"
    assert made["core"] == "(0, 0)" and made["cpu"] == "(5, 10)"


def test_the_audit_hook_alone_refuses_what_python_code_would_try(tmp_path: Path) -> None:
    made = told(
        f"""
        import subprocess, shutil, urllib.request
        install_audit_hook()
        tried("socket", socket.socket)
        tried("system", lambda: os.system("true"))
        tried("popen", lambda: subprocess.Popen(["true"]))
        tried("write", lambda: open({str(tmp_path / "ran")!r}, "w"))
        tried("read", lambda: open("/etc/passwd"))
        tried("remove", lambda: os.remove({str(tmp_path)!r}))
        tried("tree", lambda: shutil.rmtree({str(tmp_path)!r}))
        tried("foreign", lambda: ctypes.CDLL("libc.so.6"))
        tried("url", lambda: urllib.request.urlopen("http://192.0.2.1"))
        """
    )
    assert set(made.values()) <= {"PermissionError", "URLError"} and tmp_path.is_dir() and not any(tmp_path.iterdir())


def test_a_network_of_its_own_has_no_way_out() -> None:
    made = told(
        """
        made["reason"] = str(leave_network())
        tried("udp", lambda: socket.socket(2, 2).connect(("192.0.2.1", 53)))
        tried("tcp", lambda: socket.create_connection(("127.0.0.1", 9), timeout=5))
        made["devices"] = ",".join(name for _, name in socket.if_nameindex())
        """
    )
    if made["reason"] != "None":
        pytest.skip(f"no network namespaces here: {made['reason']}")
    assert made["udp"] == "OSError" and made["tcp"] == "OSError" and made["devices"] == "lo"


BESIDE = """
import ctypes, os, sys
sys.path[:0] = [{root!r}]
libc = ctypes.CDLL(None, use_errno=True)
uid, gid = os.getuid(), os.getgid()
if {without_network}:
    assert libc.unshare(0x10000000) == 0
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {{uid}} 1"), ("gid_map", f"0 {{gid}} 1")):
        open("/proc/self/" + name, "w").write(text)
    open("/proc/sys/user/max_net_namespaces", "w").write("0")
if {without_filter}:
    assert libc.personality(8) != -1
from ckptzoo.hub.untrusted import read_all
for made in read_all(sys.argv[1:]):
    print(made.error or made.states[0].guards)
"""


@pytest.mark.parametrize(("without_network", "without_filter"), [(True, False), (False, True), (True, True)])
def test_a_pickle_is_read_only_where_the_network_can_be_shut_off(
    tmp_path: Path, without_network: bool, without_filter: bool
) -> None:
    """On a machine that really lacks one wall or both: no network namespaces left, or a processor without a list."""
    paths = written(tmp_path, {"a.pt": saved({"w": torch.ones(2)})})
    np.savez(tmp_path / "b.npz", w=np.ones(2))
    code = BESIDE.format(root=str(ROOT), without_network=without_network, without_filter=without_filter)
    arguments = [sys.executable, "-c", code, str(paths[0]), str(tmp_path / "b.npz")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    if done.returncode:
        pytest.skip(f"this machine cannot be made to lack them: {done.stderr.strip().splitlines()[-1]}")
    pickled, plain = done.stdout.splitlines()
    network, filtered = "network namespace without devices", "filter on system calls"
    for name, lacks in ((network, without_network), (filtered, without_filter)):
        assert (f"without: {name}" in plain) == lacks
        assert lacks or f"'{name}'" in plain
    if without_network and without_filter:
        assert "expected no network, before a pickle is read" in pickled and "safetensors" in pickled
    else:
        assert pickled == plain


def test_the_filter_is_known_for_two_machines_and_else_not_claimed() -> None:
    assert len(filter_program("x86_64") or b"") == len(filter_program("aarch64") or b"") > 400
    assert filter_program("riscv64") is None


def test_no_secret_reaches_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    secret = (tmp_path / "secret").open("w")
    os.set_inheritable(secret.fileno(), True)
    path = written(tmp_path, {"a.npz": b"PK\x03\x04"})[0]
    with secret, Supervisor(with_torch=False) as supervisor, path.open("rb") as file:
        supervisor.read("npz", file.fileno(), location="a.npz", limits=Limits())[1].close()
        (worker,) = [int(pid) for pid in children(os.getpid()) if "untrusted.worker" in command(int(pid))]
        environment = Path(f"/proc/{worker}/environ").read_bytes()
        opened = [str(one.readlink()) for one in Path(f"/proc/{worker}/fd").iterdir()]
        assert b"hf_secret" not in environment and b"TOKEN" not in environment
        assert not any("secret" in name for name in opened)
        folder = Path(f"/proc/{worker}/cwd").readlink()
        assert folder.name.startswith("ckptzoo-untrusted-") and not any(folder.iterdir())
    assert not Path(f"/proc/{worker}").exists() and not folder.exists()


def children(parent: int) -> list[str]:
    return Path(f"/proc/{parent}/task/{parent}/children").read_text().split()


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


@pytest.mark.usefixtures("one_worker")
def test_a_file_that_takes_too_long_is_given_up_and_the_next_is_read(tmp_path: Path) -> None:
    files = {"slow.pt": slow(60), "good.pt": saved({"w": torch.ones(2)})}
    start = time.monotonic()
    late, good = read_all(written(tmp_path, files), limits=Limits(seconds=2))
    assert isinstance(late.error, IntegrityError) and "an end within 2 s, got none: it was killed" in str(late.error)
    assert good.error is None and time.monotonic() - start < 20
    busy, good = read_all(written(tmp_path, files), limits=Limits(cpu_seconds=1, seconds=30))
    assert isinstance(busy.error, IntegrityError) and "at most 1 s of the processor" in str(busy.error)
    assert good.error is None


@pytest.mark.usefixtures("one_worker")
def test_a_file_that_takes_too_much_memory_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, {"large.pt": saved({"w": torch.zeros(2**25)})})[0]
    with pytest.raises(IntegrityError, match="memory"):
        read(path, limits=Limits(memory_bytes=2**26))


@pytest.mark.usefixtures("one_worker")
def test_a_process_that_is_killed_is_said_to_be(tmp_path: Path) -> None:
    paths = written(tmp_path, {"slow.pt": slow(60), "good.pt": saved({"w": torch.ones(2)})})
    killed: list[int] = []

    def kill() -> None:
        end = time.monotonic() + 60
        while not killed and time.monotonic() < end:
            for worker in children(os.getpid()):
                for reader in children(int(worker)) if "untrusted.worker" in command(int(worker)) else []:
                    status = Path(f"/proc/{reader}/status").read_text()
                    if "Seccomp:\t2" in status and Path(f"/proc/{reader}").exists() and settled(int(reader)):
                        os.kill(int(reader), signal.SIGKILL)
                        killed.append(int(reader))
            time.sleep(0.02)

    thread = threading.Thread(target=kill)
    thread.start()
    first, second = read_all(paths, limits=Limits(seconds=60))
    thread.join()
    assert killed and "SIGKILL: it was killed" in str(first.error) and second.error is None


def settled(pid: int) -> bool:
    """Whether a process has used a tenth of a second, as the one that follows the slow pickle does."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) >= os.sysconf("SC_CLK_TCK") // 10


@pytest.mark.usefixtures("one_worker")
def test_a_worker_that_is_killed_costs_one_file(tmp_path: Path) -> None:
    paths = written(
        tmp_path,
        {"a.pt": saved({"w": torch.ones(2)}), "b.pt": saved({"w": torch.ones(2)}), "c.pt": saved({"w": torch.ones(2)})},
    )
    made = read_all(paths)
    assert next(made).error is None
    for pid in children(os.getpid()):
        if "untrusted.worker" in command(int(pid)):
            os.kill(int(pid), signal.SIGKILL)
    second, third = made
    assert isinstance(second.error, IntegrityError) and "reading process" in str(second.error)
    assert third.error is None


def test_reading_ends_with_the_program_that_reads(tmp_path: Path) -> None:
    path = written(tmp_path, {"slow.pt": slow(60)})[0]
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from ckptzoo.hub.untrusted import read; read({str(path)!r})"
    program = subprocess.Popen([sys.executable, "-c", code])
    end = time.monotonic() + 60
    while time.monotonic() < end and not (workers := children(program.pid)):
        time.sleep(0.05)
    while time.monotonic() < end and not (readers := children(int(workers[0]))):
        time.sleep(0.05)
    program.kill()
    program.wait()
    while time.monotonic() < end and any(Path(f"/proc/{pid}").exists() for pid in [*workers, *readers]):
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in [*workers, *readers])


@pytest.mark.usefixtures("one_worker")
def test_inputs_that_are_no_plain_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "folder.pt").mkdir()
    (tmp_path / "null.pt").symlink_to("/dev/null")
    (tmp_path / "zero.npz").symlink_to("/dev/zero")
    (tmp_path / "loop.pt").symlink_to(tmp_path / "loop.pt")
    (tmp_path / "gone.pt").symlink_to(tmp_path / "nothing.pt")
    (tmp_path / "secret.pt").symlink_to("/etc/passwd")
    (tmp_path / "memory.npz").symlink_to("/proc/self/mem")
    (good,) = written(tmp_path, {"good.pt": saved({"w": torch.ones(2)})})
    (tmp_path / "link.pt").symlink_to(good)
    names = ["pipe.pt", "folder.pt", "null.pt", "zero.npz", "loop.pt", "gone.pt", "secret.pt", "memory.npz", "a\0b.pt"]
    got = [
        "a named pipe",
        "a folder",
        "a device",
        "a device",
        "symbolic links",
        "No such file",
        "unknown bytes",
        "Input/output error",
        "null",
    ]
    for made, words in zip(read_all([tmp_path / name for name in names]), got, strict=True):
        assert isinstance(made.error, IntegrityError) and words in str(made.error), made
    assert [found.source for found in read(tmp_path / "link.pt")] == ["link.pt"]
    with pytest.raises(IntegrityError, match="size: expected at most 10 bytes"):
        read(good, limits=Limits(file_bytes=10))


@pytest.mark.usefixtures("one_worker")
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, {"a.npz": b""})[0]
    np.savez(path, w=np.zeros(2**22))
    stop = threading.Event()

    def touch() -> None:
        while not stop.is_set():
            os.utime(path)
            time.sleep(0.001)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        with pytest.raises(IntegrityError, match="a file that changed while it was read"):
            read(path)
    finally:
        stop.set()
        thread.join()
    assert read(path)[0].tensors["w"].shape == (2**22,)


def test_without_torch_other_formats_are_read(tmp_path: Path) -> None:
    """A real interpreter with numpy and without torch."""
    site = Path(np.__file__).parents[1]
    (tmp_path / "site").mkdir()
    for name in ("numpy", "numpy.libs", "ml_dtypes"):
        if (site / name).exists():
            (tmp_path / "site" / name).symlink_to(site / name)
    (tmp_path / "site" / "ckptzoo").symlink_to(ROOT / "ckptzoo")
    np.savez(tmp_path / "a.npz", w=np.arange(3))
    written(tmp_path, {"a.pt": saved({"w": torch.ones(2)})})
    code = f"""
        import sys
        sys.path[:] = [{str(tmp_path / "site")!r}, *[one for one in sys.path if "site-packages" not in one]]
        from ckptzoo.hub.untrusted import read_all
        for made in read_all([{str(tmp_path / "a.npz")!r}, {str(tmp_path / "a.pt")!r}]):
            print(type(made.error).__name__, made.error, [list(found.tensors) for found in made.states])
        print("torch" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    one, two, three = done.stdout.splitlines()
    assert one == "NoneType None [['w']]" and three == "False"
    assert two == f"{MissingExtraError.__name__} {MissingExtraError('torch', 'torch')} []"
