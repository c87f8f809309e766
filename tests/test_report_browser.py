"""The report's page in a real browser: what it draws, in light and dark, wide and narrow.

Needs Chromium (Debian's package `chromium`, or the path in CHROMIUM) and the package
playwright; skipped where one is missing.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openspyre import _C
from openspyre.observe.report import watch, write_report
from openspyre.observe.report_formats import format_errors

NATIVE = True

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no browser: apt-get install chromium, or CHROMIUM"
)
CHARTS = ("layers", "run", "call", "roofline", "regions", "memory", "formats")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A page with every section, and its figures."""
    _C.native_set_enabled(True)
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.Linear(512, 128), torch.nn.Softmax(-1)
    )
    model = model.half().eval().to("spyre")
    x = torch.randn(64, 128, dtype=torch.float16).to("spyre")
    forward = torch.compile(model, dynamic=False)
    with torch.no_grad():
        with watch("A page to look at") as run:
            run.name_tensors(model)
            with run.phase("forward", unit="rows", count=256):
                for _ in range(4):
                    y = forward(x)
            with run.phase("eager"):
                (y.float() * 2).sum().item()
            torch.linalg.eigvalsh(torch.eye(8, device="spyre"))
        rows = format_errors(model, x)
    page = tmp_path_factory.mktemp("page") / "page.html"
    data = write_report(page, run, formats=rows)
    return page, data.to_dict()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield found
        found.close()


class Looked:
    """A page as one reader sees it."""

    def __init__(self, browser: Any, path: Path, scheme: str, width: int) -> None:
        self.context = browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 900}
        )
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else 0
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        for chart in self.page.locator(".chart").all():
            chart.scroll_into_view_if_needed()
            self.page.wait_for_function(
                "element => element.dataset.drawn", arg=chart.element_handle()
            )

    def pixels(self, where: Any) -> np.ndarray[Any, Any]:
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(where.screenshot())).convert("RGB")).astype(int)


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 1280),
        ("dark", 390),
        pytest.param("dark", 1280, marks=pytest.mark.slow),
        pytest.param("light", 390, marks=pytest.mark.slow),
    ],
)
def test_every_chart_is_drawn(
    written: tuple[Path, dict[str, Any]], browser: Any, scheme: str, width: int, tmp_path: Path
) -> None:
    path, data = written
    look = Looked(browser, path, scheme, width)
    assert look.page.evaluate("document.documentElement.dataset.theme") == scheme
    assert [c.get_attribute("data-figure") for c in look.page.locator(".chart").all()] == [*CHARTS]
    back = np.array(
        look.page.evaluate(
            "getComputedStyle(document.querySelector('section')).backgroundColor.match(/\\d+/g).map(Number)"
        )
    )
    assert (back.mean() > 200) == (scheme == "light")
    for name in CHARTS:
        seen = look.pixels(look.page.locator(f"#chart-{name}"))
        # Something is drawn: text and marks of other colours than the card's.
        other = (np.abs(seen - back).sum(axis=2) > 60).mean()
        assert 0.004 < other < 0.9, (name, other)
        chroma = seen.max(axis=2) - seen.min(axis=2)
        assert (chroma > 60).sum() > 40, f"{name} has coloured marks"
    assert not look.errors
    assert [url for url in look.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    # Nothing but tables, which scroll on their own, is wider than the window.
    assert look.page.evaluate("document.documentElement.scrollWidth") <= width
    keep = os.environ.get("REPORT_SCREENSHOTS")
    folder = Path(keep) if keep else tmp_path
    shot = folder / f"report-{scheme}-{width}.png"
    look.page.screenshot(path=str(shot), full_page=True)
    assert shot.stat().st_size > 50_000
    text = look.page.inner_text("main")
    for engine in data["engines"]:
        assert f"{engine['steps']:,} steps" in text
    assert f"Bound by {data['bound']['name']}" in text
    assert "GELU" in text or "gelu" in text
    look.context.close()


def test_drawings_show_the_data_and_the_switch_their_theme(
    written: tuple[Path, dict[str, Any]], browser: Any
) -> None:
    path, data = written
    look = Looked(browser, path, "light", 1280)
    embedded = json.loads(look.page.locator("#report-data").text_content())
    assert embedded == json.loads(json.dumps(data))
    drawn = look.page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('.chart')].map("
        "c => [c.dataset.figure, c.data]))"
    )
    heat = [trace for trace in drawn["run"] if trace["type"] == "heatmap"]
    assert heat[0]["z"] == data["run"]["work"] and heat[1]["z"] == data["run"]["data"]
    bars = [trace for trace in drawn["run"] if trace["type"] == "bar"]
    assert sum(len(bar["x"]) for bar in bars) == sum(
        len(lane["segments"]) for lane in data["run"]["lanes"]
    )
    spent = sum(sum(trace["x"]) for trace in drawn["layers"])
    whole = sum(layer["total_ns"] for layer in data["layers"])
    assert spent == pytest.approx(whole / 1000, rel=1e-3)  # in microseconds, as the axis says
    tiles = look.page.locator(".tile").all_inner_texts()
    assert any("forward" in tile and "256 rows" in tile for tile in tiles)
    # The switch: the same drawings in the other theme.
    before = look.pixels(look.page.locator("#chart-run"))
    look.page.click("#theme")
    assert look.page.evaluate("document.documentElement.dataset.theme") == "dark"
    look.page.wait_for_timeout(200)
    after = look.pixels(look.page.locator("#chart-run"))
    assert before.mean() > 180 and after.mean() < 90
    look.page.click("#layers details summary >> nth=0")
    assert look.page.locator("#layers details table").first.is_visible()
    assert not look.errors
    look.context.close()
