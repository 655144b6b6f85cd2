"""The command that makes what is derived of a zoo, as a person types it."""

import re
from shlex import quote

from ckptzoo import archs
from ckptzoo.format.reader import Contents
from ckptzoo.schema import layout


def derived_command(contents: Contents, name: str, folder: str = "FOLDER") -> str:
    """The command that makes a variant, or outputs on a set of inputs, of those checkpoints that lack it.

    ``name`` is the variant or the set.
    """
    where, module = quote(folder), "" if archs.known(contents.architecture.forward) else " --module FILE.py:NAME"
    if "/" in name:
        extras = contents.raw.rows["extra"].to_pylist()
        # images of a known data set are found again where rows say how pixels are scaled
        own = "" if any('"mean"' in (extra or "") for extra in extras) else " --inputs FILE.npz"
        return f"ckptzoo predict {where} {quote(name)}{own}{module}"
    if not name.startswith(layout.ALIGNED):
        return f"ckptzoo derive {where} --gauge {quote(name)}{module}"
    facts, label = contents.derived(name).parts[-1].facts, name.removeprefix(layout.ALIGNED)
    source = str(facts.get("source"))
    checkpoint = re.fullmatch(r"checkpoint (.+) of .+?", source)
    reference = "barycentre" if source.startswith("barycentre in ") else checkpoint[1] if checkpoint else source
    options = [f" --gauge {quote(str(facts['scales']['name']))}"] if facts.get("scales") else []
    options += [" --scales fit"] if facts.get("fitted") else []
    if facts.get("method") == "activations":
        options.append(f" --method activations --inputs {quote(str(facts.get('inputs_name') or 'FILE'))}")
    return f"ckptzoo align {where} --to {quote(reference)} --label {quote(label)}{''.join(options)}{module}"
