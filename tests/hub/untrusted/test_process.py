"""The process that reads files of others: what it does not have, its limits, and that it always ends."""

import os
import re
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

from ckptzoo.errors import IntegrityError
from ckptzoo.hub.untrusted import Limits, read, read_all
from ckptzoo.hub.untrusted.process import ReadingProcess
from ckptzoo.hub.untrusted.protocol import Job
from tests.support.checkpoint_files import saved, torch_zip, written

ROOT = Path(__file__).parents[3]
GOOD = saved({"w": torch.ones(2)})


def slow(mebibytes: int) -> bytes:
    """A sound archive with a pickle of so many small operations that following it takes long."""
    return torch_zip(b"\x80\x02" + b"N0" * (mebibytes << 19) + b".")


def nested_key(levels: int) -> bytes:
    """A pickle whose dictionary has a key of so many tuples within one another: to hash it takes as much stack."""
    return torch_zip(b"\x80\x02})" + b"\x85" * levels + b"K\x01s.")


def children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def readers(parent: int) -> list[int]:
    """The reading processes of a process; one of them is seen once it runs Python code."""
    return [pid for pid in children(parent) if b"untrusted.reader" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def waited(condition, seconds: float = 60):
    """What a condition gives, once it gives something."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def test_no_secret_and_no_descriptor_reaches_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    secret = (tmp_path / "secret").open("w")
    os.set_inheritable(secret.fileno(), True)
    with secret, ReadingProcess(Limits()) as process:
        process.read([Job("a.pt", "torch", len(GOOD), strict=True)], [GOOD])
        (reader,) = readers(os.getpid())
        environment = Path(f"/proc/{reader}/environ").read_bytes()
        opened = [str(one.readlink()) for one in Path(f"/proc/{reader}/fd").iterdir()]
        assert b"hf_secret" not in environment and b"TOKEN" not in environment
        assert len(opened) <= 4 and not any("secret" in name for name in opened)
        folder = Path(f"/proc/{reader}/cwd").readlink()
        assert folder.name.startswith("ckptzoo-untrusted-") and not any(folder.iterdir())
        limits = Path(f"/proc/{reader}/limits").read_text()
        assert re.search(r"core file size +0 ", limits) and re.search(r"Max file size +1048576 ", limits)
        assert not re.search(r"address space +unlimited", limits)
        # what reads files imports no library that could run what they name
        assert not any("torch" in line for line in Path(f"/proc/{reader}/maps").read_text().splitlines())
    assert not Path(f"/proc/{reader}").exists() and not folder.exists()


def test_a_file_that_takes_too_long_is_given_up_and_the_next_is_read(tmp_path: Path) -> None:
    files = {"slow.pt": slow(200), "good.pt": GOOD}
    late, good = read_all(written(tmp_path, files), limits=Limits(seconds=1.5))
    assert isinstance(late.error, IntegrityError) and "an answer within 1.5 s, got none: it was killed" in str(
        late.error
    )
    assert good.error is None, good.error


def test_a_file_that_takes_too_much_memory_is_refused_and_the_next_is_read(tmp_path: Path) -> None:
    files = {"large.pt": saved({"w": torch.zeros(2**25)}), "good.pt": GOOD}
    large, good = read_all(written(tmp_path, files), limits=Limits(memory_bytes=2**26))
    assert isinstance(large.error, IntegrityError) and good.error is None


def test_a_file_that_ends_the_process_is_refused_alone(tmp_path: Path) -> None:
    crash = nested_key(1_000_000)
    jobs = [Job(name, "torch", len(data), strict=True) for name, data in (("a", GOOD), ("b", crash), ("c", GOOD))]
    with ReadingProcess(Limits()) as process:
        (first, second, third), arrays = process.read(jobs, [GOOD, crash, GOOD])
        assert isinstance(second, IntegrityError) and "reading process: expected an end of its own" in str(second)
        assert isinstance(first, list) and isinstance(third, list)
        assert all(arrays[file[0].tensor_indices[0]].tolist() == [1, 1] for file in (first, third))
        ((again,), _) = process.read(jobs[:1], [GOOD])
        assert isinstance(again, list)


def test_a_process_that_is_killed_costs_one_file(tmp_path: Path) -> None:
    made = read_all(written(tmp_path, {"a.pt": GOOD, "b.pt": GOOD, "c.pt": GOOD}))
    assert next(made).error is None
    (reader,) = readers(os.getpid())
    os.kill(reader, signal.SIGKILL)
    # the signal has arrived once the process has no memory left
    assert waited(lambda: "VmRSS" not in Path(f"/proc/{reader}/status").read_text())
    second, third = made
    assert isinstance(second.error, IntegrityError) and "SIGKILL: it was killed" in str(second.error)
    assert third.error is None


@pytest.mark.exhaustive
def test_reading_ends_with_the_program_that_reads(tmp_path: Path) -> None:
    path = written(tmp_path, {"slow.pt": slow(200)})[0]
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from ckptzoo.hub.untrusted import read; read({str(path)!r})"
    program = subprocess.Popen([sys.executable, "-c", code])
    started = waited(lambda: readers(program.pid))
    # the limits are set before the first file is read
    assert waited(lambda: re.search(r"Max file size +1048576 ", Path(f"/proc/{started[0]}/limits").read_text()))
    program.kill()
    program.wait()
    assert waited(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


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
        "a text",
        "Input/output error",
        "null",
    ]
    for made, words in zip(read_all([tmp_path / name for name in names]), got, strict=True):
        assert isinstance(made.error, IntegrityError) and words in str(made.error), made
    assert [found.source for found in read(tmp_path / "link.pt")] == ["link.pt"]
    with pytest.raises(IntegrityError, match="size: expected at most 10 bytes"):
        read(good, limits=Limits(file_bytes=10))


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


def test_files_of_torch_are_read_without_torch(tmp_path: Path) -> None:
    """A real interpreter with numpy and without torch."""
    site = Path(np.__file__).parents[1]
    (tmp_path / "site").mkdir()
    for name in ("numpy", "numpy.libs", "ml_dtypes"):
        if (site / name).exists():
            (tmp_path / "site" / name).symlink_to(site / name)
    (tmp_path / "site" / "ckptzoo").symlink_to(ROOT / "ckptzoo")
    np.savez(tmp_path / "a.npz", w=np.arange(3))
    written(tmp_path, {"a.pt": GOOD})
    code = f"""
        import sys
        sys.path[:] = [{str(tmp_path / "site")!r}, *[one for one in sys.path if "site-packages" not in one]]
        from ckptzoo.hub.untrusted import read_all
        for made in read_all([{str(tmp_path / "a.npz")!r}, {str(tmp_path / "a.pt")!r}]):
            print(made.error, [list(found.tensors) for found in made.states])
        print("torch" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == ["None [['w']]", "None [['w']]", "False"]
