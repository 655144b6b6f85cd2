"""Python, the packages that ckptzoo needs, its extras, and the GPU."""

import platform
import re
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from ckptzoo.checks import NOTE, OK, PROBLEM, Check
from ckptzoo.text import excerpt

PACKAGE = "ckptzoo"
BUILDERS = "builders"
"""The package that trains zoos; it is looked for, never imported."""
EXTRA = "extra "
"""The prefix of the names of checks of extras."""
_DRIVER = Path("/proc/driver/nvidia/version")
"""A path that exists where NVIDIA's kernel module is loaded."""
_HIDDEN_EXTRAS = ("dev",)
"""Extras for work on ckptzoo itself."""


def checks() -> Iterator[Check]:
    """Check the installation."""
    from ckptzoo import __version__

    yield Check("python", OK, f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    yield Check("ckptzoo", OK, f"{__version__} in {Path(__file__).parents[1]}")
    yield builders_package()
    yield from packages()
    yield gpu()


def packages() -> Iterator[Check]:
    """Check the packages that ckptzoo needs, and each extra, as the metadata of the installed release lists them."""
    listed = [Requirement(text) for text in metadata.requires(PACKAGE) or ()]
    needed = [item for item in listed if _applies(item, "")]
    installed, missing, wrong = _state(needed)
    if missing or wrong:
        yield Check("packages", PROBLEM, _words(installed, missing, wrong), f"pip install --upgrade {PACKAGE}")
    else:
        yield Check("packages", OK, ", ".join(installed))
    # the name of the field in core metadata, once for each extra
    for extra in sorted(metadata.metadata(PACKAGE).get_all("Provides-Extra") or ()):
        if extra in _HIDDEN_EXTRAS:
            continue
        installed, missing, wrong = _state(_of_extra(extra, listed, frozenset()))
        step = f"pip install '{PACKAGE}[{extra}]'"
        if wrong:
            yield Check(f"{EXTRA}{extra}", PROBLEM, _words(installed, missing, wrong), step)
        elif missing:
            yield Check(f"{EXTRA}{extra}", NOTE, _words(installed, missing, wrong), step)
        else:
            yield Check(f"{EXTRA}{extra}", OK, ", ".join(installed))


def builders_package() -> Check:
    """Check whether ``builders``, which trains zoos, is the one that comes with this package, beside it in a checkout
    and in an installation, and not another of that name.
    """
    own = Path(__file__).parents[2] / BUILDERS
    spec = find_spec(BUILDERS)
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    got = "none" if spec is None else ", ".join(map(str, folders)) or str(spec.origin)
    if not (own / "recipes").is_dir():
        step = f"pip install --force-reinstall --no-deps {PACKAGE}"
        return Check(BUILDERS, PROBLEM, f"expected the recipes in {own}, got {got} without them", step)
    if not any(folder.resolve() == own.resolve() for folder in folders):
        step = "Rename that one, or take its folder out of PYTHONPATH."
        return Check(BUILDERS, PROBLEM, f"expected {own}, got another package of that name, {got}", step)
    others = sorted({*metadata.packages_distributions().get(BUILDERS, ())} - {PACKAGE})
    if others:
        step = f"pip uninstall {others[0]}, then pip install --force-reinstall --no-deps {PACKAGE}."
        return Check(
            BUILDERS, PROBLEM, f"expected files of {PACKAGE} alone in {own}, got those of {', '.join(others)}", step
        )
    here = Path.cwd() / BUILDERS
    if here.is_dir() and here.resolve() != own.resolve() and not _has_this_version(here.parent / PACKAGE):
        step = "Use ckptzoo-build there, or another folder: python -m builders takes that one."
        return Check(BUILDERS, NOTE, f"{own}; the current folder has another {here}", step)
    return Check(BUILDERS, OK, str(own))


def _has_this_version(package: Path) -> bool:
    """Whether a folder is this package in the same version, as of a checkout."""
    from ckptzoo import __version__

    init = package / "__init__.py"
    return init.is_file() and f'__version__ = "{__version__}"' in init.read_text(errors="replace").splitlines()


def gpu() -> Check:
    """Check whether torch computes on the GPU, where there is one."""
    driver = _driver()
    if find_spec("torch") is None:
        detail = "no NVIDIA driver" if driver is None else f"NVIDIA driver {driver}; torch is not installed"
        return (
            Check("gpu", OK, detail) if driver is None else Check("gpu", NOTE, detail, "pip install 'ckptzoo[torch]'")
        )
    import torch

    version = f"torch {torch.__version__}"
    if driver is None:
        return Check("gpu", OK, f"no NVIDIA driver; {version} computes on the CPU")
    # so in builds for the CPU, and for GPUs of others
    if torch.version.cuda is None:
        step = "Install a build of torch with CUDA; pytorch.org has the command."
        return Check("gpu", NOTE, f"NVIDIA driver {driver}, but {version} was built for the CPU", step)
    if not torch.cuda.is_available():
        step = f"Install a driver for CUDA {torch.version.cuda}, or a build of torch for this one; see nvidia-smi."
        return Check("gpu", PROBLEM, f"NVIDIA driver {driver}, but {version} cannot use it", step)
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return Check("gpu", OK, f"{', '.join(names)}; NVIDIA driver {driver}, {version} for CUDA {torch.version.cuda}")


def _driver() -> str | None:
    """Return the version of NVIDIA's driver; None where there is none."""
    try:
        text = _DRIVER.read_text()
    except OSError:
        return None
    matched = re.search(r"\s(\d+\.\d[\d.]*)\s", text)
    return matched[1] if matched else "of an unknown version"


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _of_extra(extra: str, listed: list[Requirement], seen: frozenset[str]) -> list[Requirement]:
    """Return the packages that an extra needs beyond ckptzoo itself, with those of the extras that it names."""
    own = [item for item in listed if not _applies(item, "") and _applies(item, extra)]
    inner = [name for item in own if item.name == PACKAGE for name in sorted(item.extras - seen - {extra})]
    rest = [item for name in inner for item in _of_extra(name, listed, seen | {extra})]
    return [*(item for item in own if item.name != PACKAGE), *rest]


def _state(needed: list[Requirement]) -> tuple[list[str], list[str], list[str]]:
    """Return the packages that are installed with their versions, are missing, and have versions that do not fit."""
    installed, missing, wrong = list[str](), list[str](), list[str]()
    for item in {requirement.name: requirement for requirement in needed}.values():
        try:
            version = metadata.version(item.name)
        except metadata.PackageNotFoundError:
            missing.append(item.name)
            continue
        # by default a specifier contains no prereleases (PEP 440)
        fits = item.specifier.contains(version, prereleases=True)
        (installed if fits else wrong).append(
            f"{item.name} {version}" if fits else f"{item.name}{item.specifier}, got {version}"
        )
    return installed, missing, wrong


def _words(installed: list[str], missing: list[str], wrong: list[str]) -> str:
    said = [f"expected {item}" for item in wrong]
    said += [f"not installed: {', '.join(missing)}"] if missing else []
    said += [f"installed: {', '.join(installed)}"] if installed else []
    return excerpt("; ".join(said), 400)
