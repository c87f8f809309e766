"""Generated calls of operations agree with the CPU, and what they once found stays mended.

`python tests/operation_fuzz.py` runs any number of them; here are a slice, and 20,000 as slow
tests.
"""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import warnings
from collections.abc import Callable

import operation_fuzz as fuzz
import pytest
import torch
from operation_cases import generate

NATIVE = True

SLICES = range(0, 150, 25)
CHUNKS = range(0, 20_000, 1_000)


def near(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 0.0) -> None:
    """Same elements on the card."""
    assert found.device.type == "spyre"
    torch.testing.assert_close(found.cpu().to(wanted.dtype), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("first", SLICES)
def test_generated_calls_are_right_or_refused(first: int) -> None:
    verdicts = [fuzz.judge(1, number) for number in range(first, first + 25)]
    assert len(verdicts) == 25
    assert not [fuzz.show(v) for v in verdicts if not v.right]
    assert sum(v.kind == "native" for v in verdicts) >= 15


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", CHUNKS)
def test_twenty_thousand_generated_calls_are_right_or_refused(first: int) -> None:
    verdicts = list(fuzz.sweep(0, first, 1_000))
    assert len(verdicts) == 1_000
    assert not [fuzz.show(v) for v in verdicts if not v.right]


def test_a_case_is_the_same_whenever_it_is_generated() -> None:
    for number in range(120):
        once, again = generate(3, number), generate(3, number)
        assert once.text == again.text
        for one, two in zip(once.operands, again.operands, strict=True):
            torch.testing.assert_close(one.make(), two.make(), rtol=0, atol=0, equal_nan=True)
    assert len({generate(3, number).name for number in range(400)}) > 100


def test_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One element that is wrong, of any dtype, makes a mismatch."""
    on_card = fuzz._on_card

    def disturbed(*args: object) -> list[object]:
        made = on_card(*args)  # type: ignore[arg-type]
        (host, strides), *rest = made
        host = host.clone()
        flat = host.reshape(-1)
        flat[-1] = ~flat[-1] if host.dtype is torch.bool else flat[-1] * 1.02 + 2
        return [(flat.reshape(host.shape), strides), *rest]

    numbers = [n for n in range(40) if fuzz.judge(1, n).kind == "native" and _has_elements(1, n)][
        :20
    ]
    monkeypatch.setattr(fuzz, "_on_card", disturbed)
    assert {fuzz.judge(1, n).kind for n in numbers} == {"mismatch"}


def _has_elements(seed: int, number: int) -> bool:
    case = generate(seed, number)
    bases = [operand.make() for operand in case.operands]
    first = fuzz.results(case, bases, case.function)[0]
    return isinstance(first, torch.Tensor) and bool(first.numel())


# --- what the generated calls found


def test_cat_in_several_launches_leaves_out_an_operand_without_elements() -> None:
    strided = torch.arange(2234).as_strided((1, 63, 1, 33), (2206, 35, 35, 1), 31)
    turned = (torch.arange(63 * 33).reshape(63, 1, 1, 33)).permute(2, 0, 1, 3)
    nothing = torch.empty((0, 63, 1, 33), dtype=torch.int64)
    wanted = torch.cat([turned, nothing, strided])
    views = [
        torch.arange(63 * 33, device="spyre").reshape(63, 1, 1, 33).permute(2, 0, 1, 3),
        nothing.to("spyre"),
        torch.arange(2234, device="spyre").as_strided((1, 63, 1, 33), (2206, 35, 35, 1), 31),
    ]
    with torch.spyre.fallback("error"):
        near(torch.cat(views), wanted)


@pytest.mark.parametrize("turned", ["input", "weight"])
def test_convolution_of_operands_that_are_not_contiguous_is_native(turned: str) -> None:
    x, w = torch.randint(-4, 5, (2, 3, 5, 8)).float(), torch.randint(-4, 5, (4, 3, 3, 2)).float()
    wanted = torch.nn.functional.conv2d(x, w)
    if turned == "input":
        x = x.permute(2, 0, 3, 1).contiguous()
    else:
        w = w.permute(2, 0, 3, 1).contiguous()
    on_card = [x.to("spyre"), w.to("spyre")]
    place = ("input", "weight").index(turned)
    on_card[place] = on_card[place].permute(1, 3, 0, 2)
    with torch.spyre.fallback("error"):
        made = torch.nn.functional.conv2d(on_card[0], on_card[1])
    near(made, wanted)
    assert made.is_contiguous()


def test_hypot_of_integers_is_refused_as_the_cpu_does() -> None:
    x = torch.ones(3, dtype=torch.int8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for device in ("cpu", "spyre"):
            with pytest.raises(NotImplementedError, match="hypot"):
                torch.hypot(x.to(device), x.to(device))


@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_a_number_and_a_tensor_without_elements_need_no_fallback(name: str) -> None:
    x = torch.empty(32, 0, dtype=torch.uint8, device="spyre")
    with torch.spyre.fallback("error"):
        made = getattr(torch, name)(x, 3)
    assert made.shape == (32, 0) and made.dtype is torch.uint8


INTERLEAVED: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda t: t[::3].add_(t[1::3]),
    "out": lambda t: torch.add(t[::3], t[1::3], out=t[2::3]),
    "scan": lambda t: torch.cumsum(t[:, ::3], 1, out=t[:, 1::3]),
    "reduction": lambda t: torch.amax(t[::3], 0, out=t[1]),
    "columns": lambda t: t[:, 1::3].mul_(t[:, 2::3]),
}


@pytest.mark.parametrize("kind", sorted(INTERLEAVED))
def test_interleaved_parts_of_one_tensor_are_read_before_one_is_written(kind: str) -> None:
    host = torch.randint(-4, 5, (96, 99)).float()
    card = host.to("spyre")
    INTERLEAVED[kind](host)
    with torch.spyre.fallback("error"):
        INTERLEAVED[kind](card)
    near(card, host)


def test_dense_parts_that_overlap_are_refused_as_the_cpu_does() -> None:
    for device in ("cpu", "spyre"):
        t = torch.ones(8, 64, device=device)
        with pytest.raises(RuntimeError, match="single memory location"):
            t[1:].add_(t[:-1])


def test_a_compiled_write_to_a_tensor_without_elements_is_no_region(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENSPYRE_STRICT", "1")
    torch._dynamo.reset()
    a = torch.zeros(0, 32, dtype=torch.uint8, device="spyre")
    b = torch.arange(32, dtype=torch.uint8, device="spyre")
    made, added = torch.compile(lambda a, b: (a.ge_(b), b + 1))(a, b)
    assert made.shape == (0, 32)
    near(added, torch.arange(1, 33, dtype=torch.uint8))
