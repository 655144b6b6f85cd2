"""The run of a checkpoint file, and the step at which it was saved, from its path and from its own facts."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_STEP_WORDS = "global_?steps?|steps?|iterations?|iters?|itr?|updates?|kimg"
_SAVE_WORDS = "checkpoints?|ckpts?|chkpts?|chk|cp|snapshots?|snap|rounds?|levels?"
_EPOCH_WORDS = "epochs?|ep"
_TIME = re.compile(
    rf"(?:^|(?<=[-_. =,]))(?:(?P<step>{_STEP_WORDS})|(?P<save>{_SAVE_WORDS})|(?P<epoch>{_EPOCH_WORDS}))"
    r"[-_= .]?(?P<number>\d{1,12}(?:\.\d+)?(?:[km]|e\d)?)(?=$|[-_. ,])"
    rf"|(?:^|(?<=[-_. ]))(?P<before>\d{{1,12}}[km]?)[-_ ]?(?:(?P<steps>{_STEP_WORDS})|(?P<epochs>{_EPOCH_WORDS}))"
    r"(?![-_= .]?\d)(?=$|[-_. ])",
    re.IGNORECASE,
)
"""A number beside a word that says when in its run a file was saved."""
_OF_TIMES = re.compile(rf"(?P<step>{_STEP_WORDS}|trajectory|history)|(?P<epoch>{_EPOCH_WORDS})", re.IGNORECASE)
"""A folder or key whose numbered items were saved one after the other."""
_MOMENT = re.compile(
    r"(?:^|(?<=[-_. ]))(?:best|last|final|latest|current|initial|init|end|ema|swa|avg|average)(?=$|[-_. ])",
    re.IGNORECASE,
)
_FIGURE = re.compile(
    r"(?:^|(?<=[-_. ]))(?:(?:val|valid|test|train)[-_.]?)?(?:accuracy|acc|loss|error|err|score|metric|f1|auc|fid|psnr)"
    r"[-_=]?\d+(?:\.\d+)?(?=$|[-_. ])"
    r"|(?:^|(?<=[-_. ]))(?:tokens?[-_=]?\d+(?:\.\d+)?[kmbt]?|\d+(?:\.\d+)?[kmbt][-_ ]?tokens?)(?=$|[-_. ])",
    re.IGNORECASE,
)
"""A figure in a name, which differs from one checkpoint of a run to the next; OLMo's: step1000-tokens4B."""
_EPOCH_AND_FIGURE = re.compile(
    r"(?P<name>weights|weights[-_.]improvement|model|checkpoint|ckpt)[-_.](?P<epoch>\d{2,6})-\d{1,6}\.\d{2,6}",
    re.IGNORECASE,
)
"""A name as the examples of Keras have it: ``weights.{epoch:02d}-{val_loss:.2f}``."""
_THOUSANDS = {"k": 10**3, "m": 10**6}
_ANY_WORD = re.compile(
    r"\d-\d+\.\d|step|iter|itr|update|kimg|check|ckpt|chkpt|chk|cp|snap|round|level|ep|best|last|final|current|init|end"
    r"|ema|swa|av|traj|hist"
)
"""Paths without any of these in small letters, as most have, name no moment of a run."""
PLAIN_NAMES = {
    "checkpoint", "checkpoints", "ckpt", "ckpts", "model", "models", "net", "network", "weights", "state_dict",
    "pytorch_model", "model_state", "snapshots", "diffusion_pytorch_model", "adapter_model",
    "epoch", "step", "iter", "iteration",
}  # fmt: skip
"""Names of files and folders that say nothing about a run."""
_NATURAL = re.compile(r"[0-9]{1,18}")
_OF_A_RUN = re.compile(
    r"(?:^|(?<=[-_. =,/]))(?P<word>(?:random[-_ ]?)?seed|fold|split|repeat|client|rank|level|round)[-_= .]?"
    r"(?P<number>[0-9]{1,9})(?=$|[-_. ,/])",
    re.IGNORECASE,
)
"""A number beside a word that says which run of several it is."""
_RANK = {"step": 0, "steps": 0, "save": 1, "epoch": 2, "epochs": 2}
_UNSUITABLE = re.compile(r"[^A-Za-z0-9._=,@+-]+")
_SUITABLE = "._=,@+-"
STEP_FACTS = (
    "global_step", "step", "iteration", "iter", "n_iter", "iter_num", "global_steps", "num_steps", "current_step",
    "current_iter", "ss_steps", "round",
)  # fmt: skip
"""Names of a checkpoint's number of optimiser steps in programs, the likeliest first."""
_STEP_FACTS = frozenset(STEP_FACTS)


@dataclass(frozen=True)
class Run:
    """The run of a file.

    ``member`` is its path without the words for the time of saving, and without names that say nothing; it may be
    empty. ``step`` and ``epoch`` are numbers in the path, None without one; ``is_part`` says that the path is
    that of one of several checkpoints of a run.
    """

    member: str
    step: int | None
    epoch: float | None
    is_part: bool


def run_of(path: str) -> Run:
    """Return the run of a file by its path.

    >>> run_of("seed0/ckpt_2.pth")
    Run(member='seed0', step=2, epoch=None, is_part=True)
    >>> run_of("run1/checkpoint-500/model.safetensors")
    Run(member='run1', step=500, epoch=None, is_part=True)
    >>> run_of("netG_epoch_3.pth").epoch, run_of("fold_0/model_best.pt").member, run_of("model_7.pt").member
    (3.0, 'fold_0', 'model_7')
    >>> run_of("seed0/steps/1000.pt")
    Run(member='seed0', step=1000, epoch=None, is_part=True)
    """
    names = without_suffixes(path).split("/")
    found: list[tuple[str, float]] = []
    kept: list[str] = []
    is_part = False
    if _ANY_WORD.search(path.lower()) is None:
        telling = [name for name in names if name.lower() not in PLAIN_NAMES] or names
        return Run("/".join(telling), None, None, is_part=False)
    for folder, name in zip(["", *names], names, strict=False):
        if _NATURAL.fullmatch(name) and (times := _OF_TIMES.fullmatch(folder)):
            found.append(("step" if times["step"] else "epoch", float(name)))
            kept, is_part = kept[:-1], True
            continue
        matches = list(_TIME.finditer(name))
        for item in matches:
            word = next(word for word in _RANK if item[word] is not None)
            found.append((word, _number(item["number"] or item["before"])))
        if (of_keras := _EPOCH_AND_FIGURE.fullmatch(name)) is not None:
            found.append(("epoch", float(of_keras["epoch"])))
            name, matches, is_part = "weights", list[re.Match[str]](), True
        rest = _FIGURE.sub("", _TIME.sub("", name)) if matches else name
        rest = _MOMENT.sub("", rest)
        is_part = is_part or rest != name
        rest = re.sub(r"[-_. =,]{2,}", lambda item: item[0][0], rest).strip("-_. =,")
        if matches and _NATURAL.fullmatch(rest) and matches[0]["step"] is None and matches[0]["number"] is not None:
            # fairseq: checkpoint_3_15000, of the epoch and the updates
            found[-len(matches) :] = [("epoch", _number(matches[0]["number"])), ("step", float(rest))]
            rest = ""
        if rest:
            kept.append(rest)
    telling = [name for name in kept if name.lower() not in PLAIN_NAMES]
    # without any other name the whole source is one run where it has steps, and each plain name a network where not
    member = "/".join(telling if telling or is_part else kept)
    steps = sorted((_RANK[word], number) for word, number in found if number.is_integer())
    epoch = next((number for word, number in found if word in ("epoch", "epochs")), None)
    return Run(member, int(steps[0][1]) if steps else None, epoch, is_part)


def without_plain_name(name: str) -> str:
    """Return a name without its last part where that says nothing about a run.

    >>> without_plain_name("seed0/model"), without_plain_name("gan")
    ('seed0', 'gan')
    """
    before, _, last = name.rpartition("/")
    return before if last.lower() in PLAIN_NAMES else name


def _number(text: str) -> float:
    """Parse ``40``, ``1e5``, or ``2000k``, which is two million."""
    times = _THOUSANDS.get(text[-1].lower(), 1)
    return float(text if times == 1 else text[:-1]) * times


def without_suffixes(path: str) -> str:
    """Return a path without the suffix of a checkpoint, and without that of the ImageNet example, ``.pth.tar``."""
    start = path.rpartition("/")[0]
    name = path[len(start) + 1 :] if start else path
    stem, _, suffix = name.rpartition(".")
    if name.lower().endswith(".pth.tar"):
        stem = name[:-8]
    elif suffix.isdecimal():  # a number's digits: lr0.1
        stem = name
    return (f"{start}/" if start else "") + (stem or name)


def id_of(path: str) -> str:
    """Return the id of a file's checkpoint: all of its path without the suffix.

    >>> id_of("run 1/net 3.pth.tar")
    'run-1-net-3'
    """
    return identifier(without_suffixes(path).replace("/", "-"))


def step_of(facts: Mapping[str, Any]) -> int | None:
    """Return the optimiser steps that a file says it was saved at.

    >>> step_of({"epoch": 3, "global_step": 2814}), step_of({"epoch": 3})
    (2814, None)
    """
    if _STEP_FACTS.isdisjoint(facts):  # as those of most files
        return None
    found = (facts.get(name) for name in STEP_FACTS)
    # facts of a safetensors file are texts
    numbers = (int(item) if isinstance(item, str) and _NATURAL.fullmatch(item) else item for item in found)
    return next((item for item in numbers if type(item) is int and 0 <= item < 2**63), None)


def facts_of(path: str) -> dict[str, int]:
    """Return the numbers beside words in a path that say which run of several a file is of.

    >>> facts_of("fold_10/seed3/model_best.pt")
    {'fold': 10, 'seed': 3}
    """
    found = _OF_A_RUN.finditer(without_suffixes(path))
    return {re.sub("random[-_ ]?", "", item["word"].lower()): int(item["number"]) for item in found}


def searched(pattern: re.Pattern[str], path: str) -> str | None:
    """Return what a pattern finds in a path: its first group, else all of the match; None without a match."""
    matched = pattern.search(path)
    return None if matched is None else matched[1 if pattern.groups else 0]


def identifier(text: str) -> str:
    """Return a text as part of an id.

    >>> identifier("run 3/net"), identifier("мережа №2")
    ('run-3-net', 'мережа-2')
    """
    if not text.isascii():
        # letters of any script, and the signs of vowels in some, which are marks
        kept = [
            letter if letter.isalnum() or letter in _SUITABLE or unicodedata.category(letter)[0] == "M" else " "
            for letter in unicodedata.normalize("NFC", text)
        ]
        return re.sub(" +", "-", "".join(kept)).strip("-.") or "checkpoint"
    return _UNSUITABLE.sub("-", text).strip("-.") or "checkpoint"
