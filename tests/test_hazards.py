"""RT43: copies of two streams that nothing orders are refused (check) or ordered (insert).

The tracker judges by submission order, so a race is found even when it went well this time.
"""

from __future__ import annotations

import pytest
import torch
from conftest import RunPython

from openspyre import env

# `a` writes x on one stream, `b` touches it on another; `hold` keeps the first stream busy.
PROGRAM = """
import torch
s = torch.spyre
a, b = s.Stream(), s.Stream()
x = torch.zeros(4, 100, dtype=torch.float16, device="spyre")
host = torch.zeros(4, 100, dtype=torch.float16, pin_memory=True)
s.synchronize()
def on_a(hold=0.0):
    with s.stream(a):
        if hold:
            s.synthetic.submit("h2d", 1000, stream=a, hold_seconds=hold)
        x[1].copy_(torch.ones(100).half(), non_blocking=True)
def read_on_b(row=slice(None)):
    with s.stream(b):
        host[row].copy_(x[row], non_blocking=True)
"""
CHECK = {"OPENSPYRE_HAZARDS": "check"}


def test_rt43_check_names_both_operations_streams_bytes_and_the_kind(run_python: RunPython) -> None:
    run_python(
        PROGRAM
        + """
on_a(hold=0.05)
read_on_b(0)          # another row: no hazard, to the byte
try:
    read_on_b()
except s.Hazard as error:
    text = str(error)
    assert isinstance(error, RuntimeError)
else:
    raise AssertionError("the race was not found")
assert "RAW" in text and "[128, 256)" in text, text   # row 1: its first stick
assert f"stream {a.stream_id} of device 0" in text and f"stream {b.stream_id} of" in text
assert "aten::copy_ to card" in text and "aten::copy_ to host" in text
assert b.query() and s.stream_get_error(b) == 0        # nothing was submitted
b.wait_stream(a)
read_on_b()
b.synchronize()
assert torch.equal(host[1], torch.ones(100).half())
""",
        CHECK,
    )


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("x.fill_(1)", "x.fill_(2)", "WAW"),
        ("host.copy_(x, non_blocking=True)", "x[:, 99].fill_(2)", "WAR"),
        ("x[2:].fill_(1)", "torch.empty_like(x).copy_(x)", "RAW"),
        ("torch.empty_like(x).copy_(x)", "x.copy_(host, non_blocking=True)", "WAR"),
    ],
)
def test_rt43_every_kind_of_hazard_and_every_kind_of_order(
    run_python: RunPython, first: str, second: str, kind: str
) -> None:
    run_python(
        PROGRAM
        + f"""
def race(order):
    with s.stream(a):
        {first}
        event = a.record_event()
    order(event)
    with s.stream(b):
        {second}
try:
    race(lambda event: None)
except s.Hazard as error:
    assert "{kind}" in str(error), error
else:
    raise AssertionError("not found")
s.synchronize()
for order in (lambda e: b.wait_event(e), lambda e: b.wait_stream(a), lambda e: e.synchronize(),
              lambda e: a.synchronize(), lambda e: s.synchronize()):
    race(order)
    s.synchronize()
""",
        CHECK,
    )


@pytest.mark.parametrize("env_", [{"OPENSPYRE_HAZARDS": "insert"}, {"SPYRE_HAZARD_TRACKER": "1"}])
def test_rt43_insert_gives_correct_data(run_python: RunPython, env_: dict[str, str]) -> None:
    run_python(
        PROGRAM
        + """
for i in range(5):
    x.zero_()
    s.synchronize()
    on_a(hold=0.02)
    read_on_b()
    b.synchronize()
    assert torch.equal(host[1], torch.ones(100).half()), i
""",
        env_,
    )


def test_rt43_ordinary_programs_have_no_hazard(run_python: RunPython) -> None:
    """Training with a side stream, freed blocks, two cards: nothing is reported."""
    run_python(
        """
import torch
s = torch.spyre
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(7, 65), torch.nn.ReLU(), torch.nn.Linear(65, 3))
model.to("spyre")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
side = s.Stream()
for _ in range(6):
    with s.stream(side):
        batch = torch.randn(5, 7).pin_memory().to("spyre", non_blocking=True)
    s.current_stream().wait_stream(side)
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
y = torch.arange(70.0, device="spyre:0").to("spyre:1").add(1).to("spyre:0")
for i in range(50):
    with s.stream(s.Stream()):
        z = torch.full((100 + i,), float(i), device="spyre")
        assert z.sum().item() == i * (100 + i)
    del z
s.synchronize()
""",
        {**CHECK, "OPENSPYRE_CARDS": "2"},
    )


def test_off_is_the_default_and_upstreams_switch_means_insert() -> None:
    def mode(environ: dict[str, str]) -> str:
        return env.configuration(environ).devices[0].streams.hazards

    assert mode({}) == mode({"SPYRE_HAZARD_TRACKER": "0"}) == "off"
    assert mode({"SPYRE_HAZARD_TRACKER": "1"}) == "insert"
    assert mode({"SPYRE_HAZARD_TRACKER": "1", "OPENSPYRE_HAZARDS": "check"}) == "check"
    assert "SPYRE_HAZARD_TRACKER" in env.configuration({"SPYRE_HAZARD_TRACKER": "yes"}).error


def test_without_tracking_nothing_is_refused() -> None:
    x = torch.zeros(10, device="spyre")
    with torch.spyre.stream(torch.spyre.Stream()):
        x.fill_(1)
    torch.spyre.synchronize()
    assert x.sum().item() == 10
