"""Writing a SpyreCode that was read, wherever its directory has gone since. Imports no torch."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from openspyre.runtime.spyrecode_model import (
    CODE_FILE,
    VERSION,
    ComputeOnDevice,
    ComputeOnHost,
    Correction,
    CorrectionSymbol,
    SpyreCode,
    SpyreCodeError,
    Step,
)
from openspyre.runtime.spyrecode_read import read_spyrecode
from openspyre.runtime.spyrecode_write import _beside, _put_in_place, _write


def copy_spyrecode(code: SpyreCode, directory: str | Path) -> Path:
    """Writes a directory with the content hash of `code`, whole or not at all, and gives its path.

    What no check looks at (own properties, other files) is left out. Raises SpyreCodeError when
    other files are there, OSError.
    """
    target = Path(os.path.abspath(directory))
    target.parent.mkdir(parents=True, exist_ok=True)
    allocate = {
        "static_size": str(code.allocate.static_size),
        "dynamic_size": str(code.allocate.dynamic_size),
    }
    entries: list[dict[str, Any]] = [{"command": "Allocate", "properties": allocate}]
    aside = _beside(target)
    try:
        for number, init in enumerate(code.inits):
            file = f"init_binary{number or ''}.bin"
            _write(aside / file, init.data)
            where = {
                "init_bin_file": file,
                "dev_ptr": str(init.dev_ptr),
                "size": str(init.size),
            }
            entries.append({"command": "InitTransfer", "properties": where})
        text = {
            "version": str(VERSION),
            "JobPreparationPlan": entries,
            "JobExecPlan": [_step(step) for step in code.steps],
        }
        _write(aside / CODE_FILE, (json.dumps(text, indent=1) + "\n").encode())
        written = read_spyrecode(aside, verify=False)
        if written.content_hash != code.content_hash:
            raise SpyreCodeError(f"{code.directory}: its copy at {target} says something else")
        _put_in_place(aside, target, written.content_hash)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _step(step: Step) -> dict[str, Any]:
    properties: dict[str, Any]
    if isinstance(step, ComputeOnDevice):
        command = "ComputeOnDevice"
        properties = {
            "job_bin_ptr": str(step.job_bin_ptr),
            "name": step.name,
            "args": [str(number) for number in step.args],
        }
    elif isinstance(step, ComputeOnHost):
        command = "ComputeOnHost"
        properties = {
            "ohandle": step.ohandle,
            "size": str(step.size),
            "ishape": [str(size) for size in step.ishape],
            "ihandle": step.ihandle,
            "hcm": {} if step.correction is None else _correction(step.correction),
        }
    else:
        command = "DataTransfer"
        properties = {
            "dirn": "false" if step.to_device else "true",
            "host_handle": step.host_handle,
            "dev_ptr": str(step.dev_ptr),
            "size": str(step.size),
        }
    if step.cost_ns is not None:
        properties["cost_ns"] = str(step.cost_ns)
    return {"command": command, "properties": properties}


def _correction(correction: Correction) -> dict[str, Any]:
    return {
        "symbols": [_symbol(symbol) for symbol in correction.symbols],
        "patches": [
            {key: str(value) for key, value in vars(patch).items()} for patch in correction.patches
        ],
        "checksum": str(correction.checksum),
    }


def _symbol(symbol: CorrectionSymbol) -> dict[str, str]:
    out = {
        "id": str(symbol.id),
        "kind": symbol.kind,
        "offset": str(symbol.offset),
        "scale": str(symbol.scale),
    }
    if symbol.kind in ("address", "dimension"):
        out["arg_index"] = str(symbol.arg_index)
    if symbol.kind == "dimension":
        out["dim"] = str(symbol.dim)
    if symbol.kind in ("int", "float"):
        out["name"] = symbol.name
    return out
