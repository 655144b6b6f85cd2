"""The environment variables of the cache, the network and the hub; importing this imports nothing large."""

import os
from collections.abc import Mapping
from pathlib import Path

from ckptzoo.text import parse_size

DEFAULT_LIMIT = 32 * 2**30
"""The default size of the cache in bytes."""
PUBLIC_HUB = "https://huggingface.co"
_TRUE = ("1", "on", "yes", "true")
"""Values that huggingface_hub takes as true, in small letters."""


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """``$CKPTZOO_CACHE``, else ``$HF_HOME/ckptzoo``, else ``$XDG_CACHE_HOME/ckptzoo``, else ``~/.cache/ckptzoo``.

    Parameters
    ----------
    environment
        that of the process.
    """
    if named := environment.get("CKPTZOO_CACHE"):
        return Path(named).expanduser().absolute()
    above = environment.get("HF_HOME") or environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(above).expanduser().absolute() / "ckptzoo"


def cache_limit(environment: Mapping[str, str] = os.environ) -> int:
    """Bytes from ``$CKPTZOO_CACHE_SIZE`` (``20GB``, ``512MiB``), else 32 GiB.

    Parameters
    ----------
    environment
        that of the process.
    """
    text = environment.get("CKPTZOO_CACHE_SIZE")
    return parse_size(text, location="CKPTZOO_CACHE_SIZE") if text else DEFAULT_LIMIT


def is_offline(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether ``$CKPTZOO_OFFLINE`` or ``$HF_HUB_OFFLINE`` says that the network is not to be used."""
    return any(environment.get(name, "").lower() in _TRUE for name in ("CKPTZOO_OFFLINE", "HF_HUB_OFFLINE"))


def hub_endpoint(environment: Mapping[str, str] = os.environ) -> str:
    """``$HF_ENDPOINT``, else huggingface.co, without a slash at the end."""
    return (environment.get("HF_ENDPOINT") or PUBLIC_HUB).rstrip("/")


def s3_endpoint(environment: Mapping[str, str] = os.environ) -> str | None:
    """``$AWS_ENDPOINT_URL_S3``, else ``$AWS_ENDPOINT_URL``, without a slash at the end; None for Amazon's own."""
    named = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    return named.rstrip("/") if named else None
