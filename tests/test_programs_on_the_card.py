"""Every hand-written program, prepared and launched on spyre tensors, against its reference."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import RunPython
from program_zoo import ZOO, Case

from examples.programs import add, indexing, ksplit, matmul, pipeline, rows
from openspyre.device.plans import launch, prepare
from openspyre.formats import Format, Numerics
from openspyre.program.binary import decode, read_header
from openspyre.program.concrete import Instance
from openspyre.program.model import Program, Role, SymbolKind
from openspyre.program.verify import VerifyError
from openspyre.reference import numbers
from openspyre.runtime.plan import JobPlan
from openspyre.runtime.spyrecode import Kernel, write_spyrecode

ROOT = Path(__file__).parent.parent


def prepared(directory: Path, program: Program) -> JobPlan:
    return prepare(write_spyrecode(directory / program.name, [Kernel(program)]))


def to_spyre(array: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.from_numpy(np.array(array)).to(getattr(torch, dtype)).to("spyre")


def run_case(directory: Path, case: Case) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Output name -> (result, reference) of a launch on fresh tensors."""
    program = case.program
    inputs = case.make_inputs(np.random.default_rng(3))
    numbers = {
        s.name: case.symbols[s.name] for s in program.symbols if s.kind is not SymbolKind.DIMENSION
    }
    whole = {name: int(value) for name, value in case.symbols.items()}
    shapes = Instance(program, whole).shapes
    plan = prepared(directory, program)
    tensors = []
    for operand in program.arguments:
        if operand.name in inputs:
            tensors.append(to_spyre(inputs[operand.name], operand.dtype))
        else:
            dtype = getattr(torch, operand.dtype)
            tensors.append(torch.empty(shapes[operand.name], dtype=dtype, device="spyre"))
    launch(plan, tensors, symbols=numbers or None)
    expected = case.reference(inputs)
    results = {}
    for operand, tensor in zip(program.arguments, tensors, strict=True):
        if operand.role is not Role.IN:
            result = tensor.cpu()
            if result.is_floating_point():
                result = result.float()
            results[operand.name] = (result.numpy(), expected[operand.name])
    return results


@pytest.mark.parametrize("name", [name for name in ZOO if name != "views"])  # bound launches run it
def test_the_zoo_runs_on_spyre_tensors(name: str, tmp_path: Path) -> None:
    case = ZOO[name]()
    for what, (result, wanted) in run_case(tmp_path, case).items():
        np.testing.assert_allclose(
            result.astype(np.float64),
            np.asarray(wanted, dtype=np.float64),
            rtol=case.rtol,
            atol=case.atol,
            err_msg=what,
        )


def relative_error(result: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((result.cpu().float() - wanted).abs().max() / wanted.abs().max())


def exact(*shape: int, seed: int = 0) -> torch.Tensor:
    """Multiples of 1/64 in -2..2, which 16-bit formats hold."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-127, 128, shape, generator=generator) / 64


def run(plan: JobPlan, inputs: list[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    out = torch.empty(shape, dtype=torch.float16, device="spyre")
    launch(plan, [*(t if t.device.type == "spyre" else t.half().to("spyre") for t in inputs), out])
    return out


def test_add_at_full_size(tmp_path: Path) -> None:
    x, y = exact(4096, 2048), exact(4096, 2048, seed=1)
    out = run(prepared(tmp_path, add.build(4096, 2048)), [x, y], (4096, 2048))
    assert torch.equal(out.cpu().float(), x + y)


def test_softmax_at_full_size(tmp_path: Path) -> None:
    x = exact(4096, 2048)
    out = run(prepared(tmp_path, rows.softmax(4096, 2048)), [x], (4096, 2048))
    assert relative_error(out, torch.softmax(x, -1)) < 2**-9


def test_layernorm_at_full_size(tmp_path: Path) -> None:
    x, weight, bias = exact(4096, 2048), exact(2048, seed=1), exact(2048, seed=2)
    out = run(prepared(tmp_path, rows.layernorm(4096, 2048)), [x, weight, bias], (4096, 2048))
    wanted = torch.nn.functional.layer_norm(x, (2048,), weight, bias)
    assert relative_error(out, wanted) < 2**-9


def test_a_multicast_matmul_at_full_size(tmp_path: Path) -> None:
    a, b = exact(512, 4096), exact(4096, 4096, seed=1)
    plan = prepared(tmp_path, matmul.build(512, 4096, 4096, grid=(4, 8)))
    assert relative_error(run(plan, [a, b], (512, 4096)), a @ b) < 2**-9


def test_a_ksplit_matmul_with_a_ring_reduction(tmp_path: Path) -> None:
    program = ksplit.build()
    shapes = [Instance(program).shapes[o.name] for o in program.arguments]
    a, b = exact(*shapes[0]), exact(*shapes[1], seed=1)
    out = run(prepared(tmp_path, program), [a, b], shapes[2])
    assert relative_error(out, a @ b) < 2**-9


def sequential(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The law of the accumulator: float32, k ascending, plain loops."""
    out = np.zeros((a.shape[0], b.shape[1]), dtype=np.float32)
    for k in range(a.shape[1]):
        out = out + a[:, k : k + 1] * b[k : k + 1]
    return out


def dl16(values: np.ndarray) -> np.ndarray:
    return numbers.rounded(values.astype(np.float32), Format.SEN169_FP16, Numerics())


def halves(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def on_card(plan: JobPlan, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    tensors = [torch.from_numpy(t) for t in (a, b)]
    return run(plan, tensors, (a.shape[0], b.shape[1])).cpu().float().numpy()


def test_n7_a_matmul_on_the_card_is_the_sequential_loop_rounded_once(tmp_path: Path) -> None:
    a, b = halves(1, 64, 256), halves(2, 256, 128)
    plan = prepared(tmp_path, matmul.build(64, 256, 128, grid=(2, 2), tile=(32, 64, 128)))
    x, y = dl16(a), dl16(b)
    wanted = dl16(sequential(x, y))
    np.testing.assert_array_equal(on_card(plan, a, b), wanted)
    assert (wanted != dl16(sequential(x[:, ::-1], y[::-1]))).any()  # the order shows


def test_n8_a_k_split_on_the_card_differs_as_its_partial_sums_predict(tmp_path: Path) -> None:
    a, b = halves(3, 64, 256), halves(4, 256, 128)
    x, y = dl16(a), dl16(b)
    whole = on_card(prepared(tmp_path, ksplit.build(64, 256, 128, grid=(1, 1))), a, b)
    np.testing.assert_array_equal(whole, dl16(sequential(x, y)))
    split = on_card(prepared(tmp_path / "2", ksplit.build(64, 256, 128, grid=(1, 2))), a, b)
    first, second = sequential(x[:, :128], y[:128]), sequential(x[:, 128:], y[128:])
    np.testing.assert_array_equal(split, dl16(first + second))
    assert (whole != split).any()


POISONED = """
import sys, torch
sys.path[:0] = [{root!r}]
from pathlib import Path
from examples.programs import columns, matmul, rows
from openspyre.runtime.spyrecode import Kernel, write_spyrecode
tmp = Path({tmp!r})

def run(program, inputs, shape, dtype=torch.float16):
    plan = torch.spyre.prepare(write_spyrecode(tmp / program.name, [Kernel(program)]))
    given = [t.to("spyre") for t in inputs]
    for t in given:  # the pads hold what no element holds
        layout = torch.spyre.layout_of(t)
        codes = torch.ops.openspyre._raw_read(t)[: layout.nbytes].view(torch.int16)
        pads = layout.nbytes // 2 - layout.numel
        assert pads > 0 and ((codes & 0x7FFF) == 0x7FFF).sum() == pads
    out = torch.empty(shape, dtype=dtype, device="spyre")
    torch.spyre.launch(plan, [*given, out])
    return out.cpu().double()

x = (torch.arange(500 * 150) % 7 - 3).half().view(500, 150)
w = (torch.arange(150 * 70) % 5 - 2).half().view(150, 70)
torch.testing.assert_close(run(rows.softmax(500, 150, cores=4), [x], (500, 150)),
                           torch.softmax(x.double(), 1), rtol=2e-3, atol=1e-5)
sums = columns.column_sum(500, 150, cores=2)
assert torch.equal(run(sums, [x], (150,)), x.double().sum(0))
assert torch.equal(run(matmul.build(500, 150, 70, grid=(2, 2)), [x, w], (500, 70)),
                   x.double() @ w.double())
"""


def test_l33_programs_do_not_see_poisoned_pads(tmp_path: Path, run_python: RunPython) -> None:
    run_python(POISONED.format(root=str(ROOT), tmp=str(tmp_path)), {"OPENSPYRE_POISON": "1"})


def test_a_gather_of_rows(tmp_path: Path) -> None:
    program = indexing.embedding()
    shapes = {o.name: Instance(program).shapes[o.name] for o in program.arguments}
    names = list(shapes)
    table = exact(*shapes[names[1]])
    index = torch.randint(0, len(table), shapes[names[0]], generator=torch.Generator())
    out = run(prepared(tmp_path, program), [index.to("spyre"), table], shapes[names[2]])
    assert torch.equal(out.cpu().float(), table[index])


def test_two_kernels_in_one_plan(tmp_path: Path) -> None:
    steps = pipeline.build()
    names = ("x", "w", "scores", "probabilities")
    kernels = [Kernel(step.program, args=tuple(map(names.index, step.arguments))) for step in steps]
    plan = prepare(write_spyrecode(tmp_path / "two", kernels))
    m, k = (int(str(size)) for size in steps[0].program.operands[0].shape)
    n = int(str(steps[0].program.operands[1].shape[1]))
    x, w = exact(m, k) / 8, exact(k, n, seed=1)
    scores = torch.empty(m, n, dtype=torch.float16, device="spyre")
    out = torch.empty(m, n, dtype=torch.float16, device="spyre")
    launch(plan, [x.half().to("spyre"), w.half().to("spyre"), scores, out])
    assert relative_error(scores, x @ w) < 2**-9
    # From the rounded scores: what softmax itself adds.
    assert relative_error(out, torch.softmax(scores.cpu().float(), -1)) < 2**-9


@pytest.mark.parametrize("cores", [1, 32])
def test_b080_a_program_beyond_the_span_of_a_core_is_refused_before_the_card(
    tmp_path: Path, cores: int
) -> None:
    """Rows of a [98000, 4096] tensor reach over all of it: its columns lie outermost."""
    program = add.build(98_000, 4096, dtype="bfloat16", cores=cores)
    torch.spyre.init()
    before = torch.spyre.memory_stats()
    with pytest.raises(VerifyError, match=r"bytes .* of x: .*256 MiB.* a core; split the dim"):
        prepared(tmp_path, program)
    assert torch.spyre.memory_stats() == before


def test_p7_the_written_program_is_what_executes_in_another_process(tmp_path: Path) -> None:
    """No builder, no example: the directory alone gives the same bytes."""
    x, y = exact(37, 150), exact(37, 150, seed=1)
    directory = write_spyrecode(tmp_path / "add", [Kernel(add.build(37, 150, cores=4))])
    here = run(prepare(directory), [x, y], (37, 150)).cpu()
    torch.save([x.half(), y.half()], tmp_path / "in.pt")
    torch.save([here], tmp_path / "out.pt")
    command = [sys.executable, "-c", "from openspyre.cli import main; main()", "program", "run"]
    files = [str(directory), "-i", str(tmp_path / "in.pt"), "-o", str(tmp_path / "out.pt")]
    there = subprocess.run(
        [*command, *files, "--exact"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert there.returncode == 0, there.stdout + there.stderr


def test_p8_other_addresses_give_the_same_result_and_change_only_the_symbols(
    tmp_path: Path,
) -> None:
    program = add.build(37, 150, cores=4)
    directory = write_spyrecode(tmp_path / "add", [Kernel(program)])
    plan = prepare(directory)
    x, y = exact(37, 150), exact(37, 150, seed=1)
    image = next(iter(directory.glob("*.bin"))).read_bytes()
    places, results, keep = [], [], []
    for size in (1000, 70_000, 123):
        keep.append(torch.empty(size, dtype=torch.float16, device="spyre"))  # moves what follows
        tensors = [t.half().to("spyre") for t in (x, y)] + [
            torch.empty(37, 150, dtype=torch.float16, device="spyre")
        ]
        launch(plan, tensors)
        places.append([tuple(torch.ops.openspyre._block_of(t)[1:3]) for t in tensors])
        results.append(tensors[2].cpu())
        keep.extend(tensors)
    assert len({place for launched in places for place in launched}) == 9
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    assert torch.equal(results[0].float(), x + y)
    # The image holds no address: its symbol words are the sentinel before and after.
    assert next(iter(directory.glob("*.bin"))).read_bytes() == image
    header = read_header(image)
    words = np.frombuffer(image, "<u8", header.words, header.words_offset)
    assert set(words.tolist()) == {0x3BAD5BAD5}
    assert decode(image) == program


def test_t7_bytes_do_not_depend_on_modelled_time(tmp_path: Path) -> None:
    program = rows.softmax(64, 150, cores=4)
    x = exact(64, 150)
    modelled = prepare(write_spyrecode(tmp_path / "timed", [Kernel(program)]))
    untimed = prepare(
        write_spyrecode(
            tmp_path / "untimed",
            [Kernel(program)],
            costs={"HostCompute": 0, "H2D": 0, "Compute": 0},
        )
    )
    first, second = (run(plan, [x], (64, 150)) for plan in (modelled, untimed))
    assert torch.equal(first.cpu(), second.cpu())
