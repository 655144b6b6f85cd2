"""Anonymous memory of a stream: run in a process of its own, watched from outside."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BATCH = 10
"""Checkpoints a batch, of the largest tensor: 94 MB, well above what the bound allows beside two batches."""
ALLOWANCE = 64_000_000


def watch(zoo: Path, tensor: str, *, row_bytes: int, members: int, shuffle: bool) -> dict[str, Any]:
    """Stream a tensor in a fresh interpreter and sample its RssAnon every millisecond.

    Returns
    -------
    dict[str, Any]
        Members, batch size, shuffle, and in bytes: the peak of RssAnon while streaming above what the interpreter held
        with the zoo open (``peak_growth``), that level (``before``), and the bound, 2 batches + 64 MB.
    """
    command = [sys.executable, __file__, str(zoo), tensor, str(BATCH), str(int(shuffle))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        before = peak = _rss_anon(child.pid)
        child.stdin.write("go\n")
        child.stdin.flush()
        while child.poll() is None:
            peak = max(peak, _rss_anon(child.pid))
            time.sleep(0.001)
        seen = child.stdout.read().split()
    if child.returncode or seen != [str(members)]:
        raise RuntimeError(f"stream of {tensor}: expected {members} checkpoints, got {seen or 'an error'}.")
    return {
        "members": members,
        "batch_size": BATCH,
        "shuffle": shuffle,
        "streamed": members * row_bytes,
        "before": before,
        "peak_growth": peak - before,
        "bound": 2 * BATCH * row_bytes + ALLOWANCE,
    }


def _rss_anon(pid: int) -> int:
    """Anonymous resident bytes of a process, 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")), 0)


def main(zoo: str, tensor: str, batch_size: str, shuffle: str) -> None:
    """Open the zoo, wait for a line, stream once, touch every byte, print how many checkpoints came."""
    import numpy as np

    import ckptzoo

    opened = ckptzoo.open(zoo)
    stream = opened.stream(tensor, batch_size=int(batch_size), shuffle=bool(int(shuffle)), seed=1)
    print("ready", flush=True)
    sys.stdin.readline()
    count = 0
    for batch in stream:
        np.bitwise_xor.reduce(batch[tensor].reshape(-1).view(np.uint32))
        count += len(batch)
    print(count, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
