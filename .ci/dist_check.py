"""Build the wheel and the sdist, and try them in environments where nothing else is installed: ``make dist-check``.

The base is tried with this Python and with the newest that this machine has; training and pictures in the environment
of ``make quickstart``, made from nothing, in which the wheel then takes the place of the checkout.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = str(ROOT / "constraints.txt")
READS = """
import importlib.metadata, importlib.resources, sys
import numpy as np
import ckptzoo
assert sys.flags.safe_path or "" not in sys.path, sys.path
assert all(getattr(ckptzoo, name) is not None for name in ckptzoo.__all__ if name != "ray_datasource")
assert importlib.resources.files("ckptzoo").joinpath("py.typed").is_file()
files = {str(file) for file in importlib.metadata.files("ckptzoo")}
assert any(name.endswith("licenses/LICENSE") for name in files) and "builders/recipes/toy.toml" in files
assert "builders/cards/mnist-optunet/card.toml" in files and "ckptzoo/explorer/web/bundle/explorer.js" in files
assert "ckptzoo/schema/catalogue.toml" in files and len(ckptzoo.catalogue()) > 12
assert not any(name.startswith(("tests/", "cards/", "benchmarks/")) for name in files)
rng = np.random.default_rng(0)
arch = ckptzoo.archs.architecture("mlp-2-2-1")
weights = {tensor.name: rng.normal(size=(5, *tensor.shape)).astype("f4") for tensor in arch.tensors}
with ckptzoo.create("zoo", arch=arch, symmetry=ckptzoo.archs.symmetry("mlp-2-2-1")) as writer:
    writer.add(weights, [{"id": f"member-{seed}", "seed": seed} for seed in range(5)])
zoo = ckptzoo.open("zoo").where("seed < 4")
names = list(weights)
assert [len(batch.ids) for batch in zoo.stream(*zoo.layers, batch_size=2)] == [2, 2]
assert zoo[names[0]][:].tobytes() == weights[names[0]][:4].tobytes()
print(sorted(name for name in ("torch", "scipy", "matplotlib", "huggingface_hub") if name in sys.modules))
"""
"""What a base installation does, as a program in an empty folder."""


def main() -> None:
    """Build, and try all of it."""
    started = time.monotonic()
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    # the wheel is built from the sdist, so that both are tried
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, ROOT])
    run([sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir()])
    (wheel,) = dist.glob("*.whl")
    (sdist,) = dist.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as scratch:
        for number, python in enumerate(pythons()):
            folder = Path(scratch) / f"base-{number}"
            try_base(python, sdist if number == 0 else wheel, folder)
            if number == 0:
                try_refusals(folder)
        try_training(wheel, Path(scratch) / "small")
    print(f"The wheel and the sdist install and run: {time.monotonic() - started:.0f} s.")


def pythons() -> Iterator[str]:
    """Yield this interpreter, then that of the newest later version which this machine has."""
    yield sys.executable
    for minor in range(19, sys.version_info.minor, -1):
        kept = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        for candidate in (f"python3.{minor}", *map(str, kept)):
            if shutil.which(candidate) and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
                yield candidate
                return


def try_base(python: str, source: Path, folder: Path) -> None:
    """Install without extras, and read, write, verify and derive."""
    run([python, "-m", "venv", folder])
    pip(folder, source)
    place = empty_place(folder)
    version, size = run([folder / "bin/python", "--version"]).strip(), used(folder)
    assert run([folder / "bin/python", "-P", "-W", "error", "-c", READS], place) == "[]\n"
    run([folder / "bin/ckptzoo", "verify", "zoo"], place)
    run([folder / "bin/ckptzoo", "derive", "zoo", "--certify", "none"], place)
    print(
        f"{source.suffixes[-1]} with {version}: {size / 1e6:.0f} MB, reads, writes, verifies and derives.", flush=True
    )


def try_refusals(folder: Path) -> None:
    """What needs an extra names it, from a folder with another package of the builders' name."""
    ckptzoo, build, place = folder / "bin/ckptzoo", folder / "bin/ckptzoo-build", folder / "place"
    run([ckptzoo, "mmd", "zoo", "zoo", "-o", "mmd"], place, fails="pip install 'ckptzoo[plot]'")
    run([ckptzoo, "page", "zoo", "-o", "page.html"], place, fails="pip install 'ckptzoo[page]'")
    run([ckptzoo, "serve", "--root", "server"], place, fails="pip install 'ckptzoo[server]'")
    run([build, "build", "toy", "--members", "1", "--to", "toy"], place, fails="pip install 'ckptzoo[build]'")


def try_training(wheel: Path, folder: Path) -> None:
    """Install the small environment from nothing, put the wheel into it, and train, draw and look from it."""
    started = time.monotonic()
    run([sys.executable, ROOT / ".ci/small_environment.py", folder])
    took = time.monotonic() - started
    pip(folder, wheel, "--no-deps", "--force-reinstall")
    place = empty_place(folder)
    build = folder / "bin/ckptzoo-build"
    run([build, "quickstart", "--members", "4", "--to", "zoos/quick"], place)
    run([build, "build", "toy", "--members", "2", "--epochs", "1", "--to", "toy"], place)
    assert "two Gaussian classes" in (place / "toy/card.toml").read_text()
    run([folder / "bin/ckptzoo", "study", "mass", "zoos/quick", "-o", "mass"], place)
    run([folder / "bin/ckptzoo", "page", "zoos/quick", "-o", "page.html"], place)
    assert (place / "page.html").stat().st_size > 100_000 and list((place / "mass").glob("*.png"))
    print(f"The environment of make quickstart: {used(folder) / 1e6:.0f} MB in {took:.0f} s.", flush=True)


def empty_place(folder: Path) -> Path:
    """A folder to start commands from, empty but for a foreign folder of the name of the builders."""
    place = folder / "place"
    (place / "builders").mkdir(parents=True)
    (place / "builders/__init__.py").write_text("raise SystemExit('the current folder was imported')\n")
    return place


def used(folder: Path) -> int:
    """Bytes of the files of an environment."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def pip(folder: Path, source: Path, *options: str) -> None:
    """Install into an environment, in the versions of constraints.txt."""
    command = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    run([*command, "-c", CONSTRAINTS, *options, source])


def run(command: list[str | Path], place: Path = ROOT, *, fails: str | None = None) -> str:
    """Run a program and return what it prints; with ``fails`` it must end with an error that says so."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([str(word) for word in command], cwd=place, env=environment, capture_output=True, text=True)
    shown = f"{' '.join(str(word)[:200] for word in command)}\n{done.stdout}\n{done.stderr}"
    if fails is None:
        assert done.returncode == 0, shown
    else:
        assert done.returncode != 0 and fails in done.stderr and "Traceback" not in done.stderr, shown
    return done.stdout


if __name__ == "__main__":
    main()
