"""Contributed members that a review trains again, in a process of its own.

That process executes nothing that a contributor sent. It has no token and none of this process's environment but what
decides bits, an empty working folder, bounded memory, time and files, starts no process, opens no connection, and ends
with this one. Run as a program this module is that process.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptzoo.hub.contributions.report import ReviewCheck, check_result
from ckptzoo.loader.rebuilding import MAX_BYTES, MAX_SECONDS, Rebuilt, RebuiltMember
from ckptzoo.text import excerpt, size

REBUILT = "rebuilt"
"""The name of the check."""
# ``-I`` leaves out PYTHONPATH and the working folder, so this program's own path is passed on as arguments.
_CODE = "import sys; sys.path[:] = sys.argv[1:]; from ckptzoo.hub.contributions.rebuilding import main; main()"
_KEPT_VARIABLES = (
    *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "CUDA_VISIBLE_DEVICES"),
    *("ATEN_CPU_CAPABILITY", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_CACHE_DIR", "OPENBLAS_CORETYPE"),
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA"),
)
"""Where libraries are, and what decides which kernels compute."""
_BEGINNING = 300.0
"""Seconds for loading packages and data, compiling an engine, and measuring, besides those of training."""
_FILE_BYTES = 64 * 2**20
"""Bytes of a file that the process may write: an engine that was compiled."""
_OTHER_BYTES = 4 * 2**30
"""Addresses of the process besides those of training: Arrow reserves them by the GiB, threads have stacks."""
_ANSWER_BYTES = 16 * 2**20
_REFUSED_EVENTS = ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname")
_REFUSED_EVENTS += ("socket.__new__", "socket.sendmsg", "socket.gethostbyaddr", "socket.getnameinfo")
_REFUSED_EVENTS += ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.fork", "os.forkpty")
"""Audit events of Python (docs.python.org/3/library/audit_events.html) of connections and of other programs."""


@dataclass(frozen=True)
class ConfinedRebuild:
    """The members that a review trains again: how many, with data in a folder, in how much time and memory."""

    members: int
    data: str | Path | None
    max_seconds: float = MAX_SECONDS
    max_bytes: int = MAX_BYTES

    def carry_out(self, folder: Path) -> tuple[ReviewCheck, Rebuilt | None]:
        """Train members of the zoo in a folder again, drawn by a seed that nobody knew; return the check, and what was
        found, None where the process gave no answer.
        """
        request = {
            "folder": str(folder),
            "members": self.members,
            # drawn here, when the contribution cannot change any more
            "seed": secrets.randbelow(2**32),
            "data": None if self.data is None else str(Path(self.data).absolute()),
            "max_seconds": self.max_seconds,
            "max_bytes": self.max_bytes,
        }
        if request["data"] is None and (named := os.environ.get("CKPTZOO_DATA")):
            request["data"] = str(Path(named).absolute())
        answer = _answer(request, self.max_seconds + _BEGINNING)
        if "refused" in answer:
            return ReviewCheck(REBUILT, "not done", str(answer["refused"])), None
        members = tuple(
            RebuiltMember(item["member"], tuple(item["ids"]), tuple(item["differences"]), item["refused"])
            for item in answer["members"]
        )
        rebuilt = Rebuilt(
            answer["zoo"], members, answer["chosen_from"], answer["seed"], answer["environment"], tuple(answer["marks"])
        )
        return check_of(rebuilt), rebuilt


def check_of(rebuilt: Rebuilt) -> ReviewCheck:
    """Return the outcome: failed where something differs, not done where something could not be trained."""
    wrong = [member.line for member in rebuilt.members if member.differences]
    refused = [member.line for member in rebuilt.members if member.refused is not None]
    if not wrong and refused:
        return ReviewCheck(REBUILT, "not done", f"{rebuilt.verdict}; {refused[0]}")
    return check_result(REBUILT, wrong, rebuilt.verdict)


def _answer(request: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the answer of the process; ``refused`` says why there is none."""
    paths = [entry for entry in sys.path if Path(entry).is_absolute()]
    with tempfile.TemporaryDirectory(prefix="ckptzoo-rebuild-") as home, tempfile.TemporaryFile() as answers:
        environment = {"HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}
        environment |= dict.fromkeys(("CKPTZOO_OFFLINE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"), "1")
        environment |= {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _CODE, *dict.fromkeys([str(Path(__file__).parents[3]), *paths])],
            env=environment,
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=answers,
            stderr=subprocess.PIPE,
            # Ctrl-C at a terminal reaches this process alone, which ends the other one itself
            start_new_session=True,
        )
        try:
            _, errors = process.communicate(json.dumps(request).encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            return {"refused": f"the process did not end within {seconds:g} s: it was killed"}
        finally:
            process.kill()
            process.wait()
        answers.seek(0)
        text = answers.read(_ANSWER_BYTES + 1)
    if process.returncode == 0 and len(text) > _ANSWER_BYTES:
        return {"refused": f"the process gave an answer of more than {size(_ANSWER_BYTES)}: rebuild fewer members"}
    if process.returncode == 0:
        return json.loads(text)
    lines = errors.decode(errors="replace").strip().splitlines()
    said = excerpt((lines or ["nothing"])[-1])
    if process.returncode < 0:
        said = f"{signal.Signals(-process.returncode).name}, more memory than it may have or a crash; it said {said}"
    return {"refused": f"the process ended with {said}"}


def refuse_outside(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse what reaches beyond this process; a hook for ``sys.addaudithook``, which cannot be taken away again."""
    if event in _REFUSED_EVENTS:
        raise PermissionError(f"{event} is refused in the process that trains contributed members again")


def main() -> None:
    """Train the members that the standard input names, and write what is found to the standard output."""
    import warnings

    import ckptzoo
    from ckptzoo.errors import ZooError
    from ckptzoo.hub.untrusted.reader import set_limits
    from ckptzoo.loader.rebuilding import load_trainer

    warnings.simplefilter("ignore")
    request = json.load(sys.stdin)
    try:
        load_trainer()  # before memory is bounded: packages are large
        set_limits(request["max_bytes"] + _OTHER_BYTES, file_bytes=_FILE_BYTES)
        sys.addaudithook(refuse_outside)
        rebuilt = ckptzoo.open(request["folder"]).rebuild(
            request["members"],
            seed=request["seed"],
            data=request["data"],
            max_seconds=request["max_seconds"],
            max_bytes=request["max_bytes"],
        )
        answer = rebuilt.to_json()
    except ZooError as error:
        answer = {"refused": str(error)}
    except MemoryError:
        answer = {"refused": f"it needs more memory than {request['max_bytes']} bytes"}
    json.dump(answer, sys.stdout)
