"""Plans of programs that are in memory: the compiler's way, without a directory.

The steps are those that `write_spyrecode` would write for the same kernels, so that a plan made
here is what the directory would give. Needs the extension.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from openspyre import _C
from openspyre.card import CardSpec
from openspyre.program.binary import encode, read_header, symbol_words
from openspyre.program.model import Program, Role
from openspyre.runtime.plan import (
    JobPlan,
    _check_card,
    _cost_function,
    _describe_step,
    _step_names,
)
from openspyre.runtime.spyrecode_check import largest_bytes
from openspyre.runtime.spyrecode_model import (
    PROGRAM_BASE,
    Allocate,
    ComputeOnDevice,
    ComputeOnHost,
    Correction,
    CorrectionSymbol,
    DataTransfer,
    InitTransfer,
    Patch,
    SpyreCode,
    Step,
)
from openspyre.runtime.spyrecode_write import IMAGE_FILE, Kernel


def spyrecode_of(
    kernels: Sequence[Kernel], name: str, images: Sequence[bytes] | None = None
) -> SpyreCode:
    """The SpyreCode of kernels, as if read from a directory `name`. `images`: the encoded programs,
    if they are at hand. Raises ProgramFormatError for a program that has no binary form."""
    data = bytearray()
    before: list[Step] = []
    run: list[Step] = []
    programs: dict[int, Program] = {}
    dynamic = 0
    for number, kernel in enumerate(kernels):
        program = kernel.program
        image = encode(program) if images is None else images[number]
        pointer = PROGRAM_BASE + len(data)
        data += image
        programs[pointer] = program
        args = tuple(range(len(program.arguments))) if kernel.args is None else kernel.args
        for operand in program.operands:
            if operand.role is Role.SCRATCH:
                size = largest_bytes(f"kernel {number}", program, operand)
                dynamic = max(dynamic, operand.offset + size)
        before += _correction(f"correction{number}", pointer, image, program, args)
        run.append(ComputeOnDevice(pointer, kernel.name or program.name, tuple(args)))
    whole = bytes(data)
    allocate = Allocate(len(whole), -(-dynamic // 128) * 128)
    digest = hashlib.sha256(whole)
    digest.update(repr([k.args for k in kernels]).encode())
    init = InitTransfer(IMAGE_FILE, PROGRAM_BASE, len(whole), whole)
    steps = (*before, *run)
    return SpyreCode(Path(name), allocate, (init,), steps, programs, digest.hexdigest())


def prepare_programs(
    kernels: Sequence[Kernel],
    device: int,
    card: CardSpec,
    *,
    name: str = "region",
    images: Sequence[bytes] | None = None,
    sizes: Collection[str] | None = None,
) -> JobPlan:
    """A plan that runs the kernels one after the other in one launch. Nothing is verified here.
    `sizes`: the symbols that durations depend on; None: all.

    Raises SpyreCodeError for a card that is too small, torch.OutOfMemoryError.
    """
    code = spyrecode_of(kernels, name, images)
    _check_card(code, card)
    names = _step_names(code, None)
    description: dict[str, Any] = {
        "name": name,
        "hash": code.content_hash,
        "static_size": code.allocate.static_size,
        "dynamic_size": code.allocate.dynamic_size,
        "slots": 0,
        "overlap": -1,
        "inits": [(init.dev_ptr, init.data) for init in code.inits],
        "steps": [_describe_step(s, n) for s, n in zip(code.steps, names, strict=True)],
    }
    for step, kernel in zip(reversed(description["steps"]), reversed(kernels), strict=False):
        step["sources"] = ", ".join(kernel.sources)
    native = _C.Plan(device, description, _memoized(code, card, sizes))
    return JobPlan(code, device, native, names)


def _memoized(
    code: SpyreCode, card: CardSpec, sizes: Collection[str] | None
) -> Callable[[int, Sequence[int]], int]:
    """The cost function, asked once for all values of symbols that durations do not depend on."""
    cost = _cost_function(code, card)
    if sizes is None:
        return cost
    known: dict[tuple[int, ...], int] = {}
    which: dict[int, list[int]] = {}
    for number, step in enumerate(code.steps):
        if isinstance(step, ComputeOnDevice):
            symbols = code.programs[step.job_bin_ptr].symbols
            which[number] = [i for i, s in enumerate(symbols) if s.name in sizes]

    def memoized(step: int, values: Sequence[int]) -> int:
        key = (step, *(values[i] for i in which[step]))
        found = known.get(key)
        if found is None:
            found = known[key] = cost(step, values)
        return found

    return memoized


def _correction(
    handle: str, pointer: int, image: bytes, program: Program, args: tuple[int, ...]
) -> list[Step]:
    """The two steps that fill an image's symbol words."""
    words = symbol_words(program)
    if not words:
        return []
    header = read_header(image)
    addresses = iter(args)
    dimensions = {symbol.name: symbol for symbol in program.symbols}
    symbols = []
    for number, word in enumerate(words):
        if word.kind == "address":
            symbols.append(CorrectionSymbol(number, word.kind, next(addresses)))
        elif word.kind == "dimension":
            dim = dimensions[word.name]
            symbols.append(CorrectionSymbol(number, word.kind, args[dim.argument], dim.dim))
        else:
            named = word.name if word.kind != "dynamic" else ""
            symbols.append(CorrectionSymbol(number, word.kind, name=named))
    patches = tuple(Patch(8 * n, 8, n) for n in range(len(symbols)))
    size = header.body_offset - header.words_offset  # whole sticks
    correction = Correction(tuple(symbols), patches, header.checksum)
    return [
        ComputeOnHost(handle, size, (len(symbols),), "", correction),
        DataTransfer(True, handle, pointer + header.words_offset, size),
    ]
