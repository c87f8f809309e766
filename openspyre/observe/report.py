"""Watching a run, and writing the page that tells of it: `watch` and `write_report`.

    with watch("a model") as run:
        with run.phase("decode", unit="tokens") as decode:
            decode.count = generate()
    write_report("page.html", run)

Watching records the card's steps, reads its statistics, is told of the regions that run, and looks
at the memory now and then; it changes no bit and clears nothing. The figures come from
`report_gather.py`, the drawings from `report_figures.py`, the page from `report_page.py`. Needs
torch and the extension; what draws is imported when a page is written.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openspyre import _C
from openspyre.card import SEGMENT_BITS
from openspyre.observe.recorded import Event, Recording, recorded

if TYPE_CHECKING:
    import torch

    from openspyre.compiler.runner import Planned
    from openspyre.observe.report_data import FormatRow, ReportData
    from openspyre.ops.fallback import FallbackReport, FallbackRow

SAMPLE_SECONDS = 0.05
"""Between two looks at the memory."""
SNAPSHOT_SECONDS = 0.25
"""Between two snapshots of a memory that grows."""
ENGINES = ("host_compute", "h2d", "compute", "d2h")


class ReportError(RuntimeError):
    """A page cannot be written: a package is missing, a path is not writable, nothing was seen."""


@dataclass
class Phase:
    """A named part of a run. `count` of `unit`s were done in it (0: not counted). Wall seconds are
    measured here, times `*_ns` are those of the card's virtual clock (modelled)."""

    name: str
    unit: str = "calls"
    count: int = 0
    wall_seconds: float = 0.0
    start_ns: int = 0
    end_ns: int = 0


@dataclass(frozen=True)
class Launched:
    """A region that ran: its plan, the modelled host time just before, and the wall clock's."""

    plan: Planned
    host_ns: int
    seconds: float


@dataclass(frozen=True)
class MemorySample:
    """Tensor memory at one moment, in bytes of the card; `at_ns`: modelled host time."""

    at_ns: int
    allocated: int
    reserved: int


@dataclass
class Run:
    """What was seen of one device inside a `watch`. Filled when it ends; `phase` is for use within.

    `rows`: the steps of the device, fields as in `torch.spyre.synthetic.timeline`; `totals`:
    (steps, bytes, busy ns) of each engine, exact even where the recorder was full (`lost` steps).
    `names`: what blocks of the memory are, by device address.
    """

    title: str = ""
    device: int = 0
    phases: list[Phase] = field(default_factory=list)
    launched: list[Launched] = field(default_factory=list)
    fallbacks: list[FallbackRow] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    totals: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    lost: int = 0
    memory: list[MemorySample] = field(default_factory=list)
    snapshot: list[dict[str, Any]] = field(default_factory=list)
    stats: dict[str, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    eager: dict[str, int] = field(default_factory=dict)
    compile_counts: dict[str, int] = field(default_factory=dict)
    wall_seconds: float = 0.0
    start_ns: int = 0
    end_ns: int = 0
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str, *, unit: str = "calls", count: int = 0) -> Iterator[Phase]:
        """Times what runs inside, by the wall and on the virtual clock; waits for the card before
        and after. Set `count` of what it yields to the number of `unit`s that were done."""
        made = Phase(name, unit, count)
        self._wait()
        made.start_ns = self._now()
        began = time.perf_counter()
        try:
            yield made
        finally:
            self._wait()
            made.wall_seconds = time.perf_counter() - began
            made.end_ns = self._now()
            self.phases.append(made)

    def name_tensors(self, tensors: Mapping[str, torch.Tensor] | Any) -> None:
        """Gives blocks of the memory map the names of tensors on the card: a mapping, or a module,
        whose parameters and buffers are taken."""
        import torch

        if isinstance(tensors, torch.nn.Module):
            tensors = {**dict(tensors.named_parameters()), **dict(tensors.named_buffers())}
        for name, tensor in tensors.items():
            if tensor.device.type == "spyre" and tensor.untyped_storage().nbytes():
                found = _C.find_token(tensor.untyped_storage().data_ptr())
                if found is not None and found["device"] == self.device:
                    self.names.setdefault(_address(found), name)

    def _wait(self) -> None:
        if _C.is_started():
            _C.device_synchronize(self.device)

    def _now(self) -> int:
        return _C.device_time_ns(self.device) if _C.is_started() else 0


@contextmanager
def watch(title: str = "", *, device: int = 0) -> Iterator[Run]:
    """Watches one device; the Run is filled at the end, also when the block raises.

    Compiled regions are launched through Python meanwhile (some microseconds each); what they
    compute does not change. `title` heads the page.
    """
    run = Run(title, device)
    watcher = _Watcher(run)
    watcher.start()
    try:
        yield run
    finally:
        watcher.stop()


def write_report(
    path: str | os.PathLike[str],
    run: Run,
    *,
    formats: Sequence[FormatRow] = (),
    notes: Sequence[str] = (),
) -> ReportData:
    """Writes one self-contained HTML page about a run that `watch` has seen; gives its figures.

    `formats`: what `openspyre.observe.report_formats.format_errors` found; without it the page says
    how to get that section. `notes`: sentences for the head of the page. The file appears whole or
    not at all. Times of the card are modelled and labelled so; only wall times are measured.

    Raises ReportError when plotly is missing or the path cannot be written.
    """
    check_target(path)
    from openspyre.observe.report_gather import gather
    from openspyre.observe.report_page import page

    data = gather(run, formats=formats, notes=notes)
    text = page(data)
    target = Path(path)
    temporary = ""
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as file:
            temporary = file.name
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except OSError as error:
        raise ReportError(f"{target}: {error.strerror or error}") from error
    finally:
        if temporary:
            with suppress(OSError):
                os.unlink(temporary)
    return data


def check_target(path: str | os.PathLike[str]) -> None:
    """Raises ReportError if `write_report` could not write there: to be asked before a long run."""
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ModuleNotFoundError as error:
        raise ReportError(
            f"the report is drawn with {error.name}, which is not installed:"
            " pip install 'openspyre[report]'"
        ) from error
    target = Path(path)
    if target.is_dir():
        raise ReportError(f"{target}: is a directory; name a file, such as {target / 'page.html'}")
    if not target.parent.is_dir():
        raise ReportError(f"{target}: there is no directory {target.parent}")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise ReportError(f"{target}: no permission to write in {target.parent}")


# --- watching


class _Watcher:
    """Fills a Run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.began = time.perf_counter()
        self.before: dict[str, tuple[int, int, int]] = dict.fromkeys(ENGINES, (0, 0, 0))
        self.recording = Recording()
        self.recorder = ExitStack()
        self.fullest = -1
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._sample, name="openspyre-report", daemon=True)
        self.fallbacks: FallbackReport | None = None

    def start(self) -> None:
        from openspyre.compiler import cache, runner
        from openspyre.ops.fallback import fallback_report

        run = self.run
        self.fallbacks = fallback_report()
        self.eager = _C.native_counts()
        self.compiled = cache.counts()
        if _C.is_started():
            _C.device_synchronize(run.device)
            run.start_ns = _C.device_time_ns(run.device)
            self.before = {name: _C.engine_totals(run.device, name) for name in ENGINES}
        self.recording = self.recorder.enter_context(recorded(synchronize=False))
        runner.listen(self._launched)
        self.began = time.perf_counter()
        self.thread.start()

    def stop(self) -> None:
        from openspyre.compiler import cache, runner
        from openspyre.observe.explain import fallbacks_since

        run = self.run
        assert self.fallbacks is not None
        try:
            if _C.is_started():
                with suppress(RuntimeError):  # a stream in error has told its user already
                    _C.device_synchronize(run.device)
        finally:
            self.recorder.close()
            runner.unlisten(self._launched)
            self.ended.set()
            self.thread.join()
        run.wall_seconds = time.perf_counter() - self.began
        run.fallbacks = fallbacks_since(self.fallbacks)
        run.eager = _more(_C.native_counts(), self.eager)
        run.compile_counts = _more(cache.counts(), self.compiled)
        if not _C.is_started():
            return
        self._look(last=True)
        run.end_ns = _C.device_time_ns(run.device)
        run.rows = [_row(event) for event in self.recording.events if event.device == run.device]
        for name in ENGINES:
            now, old = _C.engine_totals(run.device, name), self.before[name]
            run.totals[name] = (now[0] - old[0], now[1] - old[1], now[2] - old[2])
        run.lost = max(0, sum(steps for steps, _, _ in run.totals.values()) - len(run.rows))
        run.stats = _C.memory_stats(run.device)
        for other in range(_C.device_count()):
            if other != run.device and _C.has_primary_context(other):
                run.notes.append(f"spyre:{other} was used too and is not shown")

    def _launched(self, plan: Planned, _: Sequence[torch.Tensor]) -> None:
        if plan.loaded.device == self.run.device:
            at = _C.host_time_ns(self.run.device)
            self.run.launched.append(Launched(plan, at, time.perf_counter()))

    # The memory, on a thread of its own: what a script frees before it ends is seen all the same.

    def _sample(self) -> None:
        looked = 0.0
        while not self.ended.wait(SAMPLE_SECONDS):
            if not _C.is_started():
                continue
            now = time.perf_counter()
            with suppress(RuntimeError):
                if self._look(snapshot=now - looked > SNAPSHOT_SECONDS):
                    looked = now

    def _look(self, snapshot: bool = True, last: bool = False) -> bool:
        """Notes the memory; whether a snapshot was taken, because it is fuller than ever."""
        run = self.run
        stats = _C.memory_stats(run.device)
        allocated = stats["allocated_bytes.all.current"]
        sample = MemorySample(
            _C.host_time_ns(run.device), allocated, stats["reserved_bytes.all.current"]
        )
        before = run.memory[-1] if run.memory else None
        if last or before is None or (before.allocated, before.reserved) != (
            sample.allocated, sample.reserved,
        ):  # fmt: skip
            run.memory.append(sample)
        if not snapshot or allocated <= self.fullest:
            return False
        self.fullest = allocated
        run.snapshot = _C.memory_snapshot(run.device)["segments"]
        return True


def _row(event: Event) -> tuple[int, str, str, int, int, int, int, int, str]:
    return (
        event.correlation, event.name, event.engine, event.stream, event.virtual_begin_ns,
        event.virtual_end_ns, event.virtual_submit_ns, event.bytes, event.status,
    )  # fmt: skip


def _more(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in now.items()}


def _address(found: Mapping[str, Any]) -> int:
    """The device address of a block, as snapshots give it: (1 + region) << 34, and the offset."""
    return ((1 + int(found["region"])) << SEGMENT_BITS) + int(found["offset"])
