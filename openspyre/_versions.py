"""Which torch this package works with, and what to do when it is another one. Imports no torch."""

from __future__ import annotations

SUPPORTED = ((2, 13), (2, 14))
SUPPORTED_TEXT = ">=2.13,<2.15"
TESTED = "2.13.0"


def minor(version: str) -> tuple[int, int]:
    """(major, minor) of a version text such as "2.13.0+cpu" or "2.14.0a0+git12ab".

    Raises ValueError when the text does not start with two numbers.
    """
    parts = version.split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (IndexError, ValueError):
        raise ValueError(f"not a torch version: {version!r}") from None


def check_supported(torch_version: str) -> None:
    """Raises ImportError unless `torch_version` lies in the supported range."""
    try:
        supported = minor(torch_version) in SUPPORTED
    except ValueError:
        supported = False
    if not supported:
        raise ImportError(
            f"openspyre supports torch {SUPPORTED_TEXT}, and this is torch {torch_version}. "
            f"Way out: pip install torch=={TESTED}, then build openspyre again "
            f"(pip install --no-build-isolation openspyre, or make setup in a checkout)."
        )


def check_built_for(torch_version: str, built_with: str) -> None:
    """Raises ImportError when the extension was built for another minor version of torch.

    A binary of another minor may load and run by luck; the C++ classes it derives from change
    between minors, so luck is not accepted.
    """
    if minor(torch_version) != minor(built_with):
        raise ImportError(
            f"openspyre was built for torch {built_with}, and this is torch {torch_version}. "
            f"Way out: build it again for this torch (pip install --no-build-isolation "
            f"--force-reinstall --no-deps openspyre, or make clean setup in a checkout), "
            f"or go back with pip install torch=={built_with.split('+')[0]}."
        )
