"""The page in a real browser: light and dark, narrow and wide, without overflow and without complaints."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from html import escape, unescape
from pathlib import Path

import numpy as np
import pytest

from loaders.reporting.page import page
from loaders.reporting.question import Setting
from loaders.reporting.report import gather
from tests.reporting.cases import admitted, modelled, quiet, some_lengths

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), None)
DARK, LIGHT = 0, 1

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(BROWSERS)} is installed"),
]

# Runs in a copy of the page without its content policy: what sticks out to the right, which texts overlap,
# and which words are cut off.
MEASURE = """<script>
addEventListener('load', () => {
  for (const one of document.querySelectorAll('details')) one.open = true;
  const wide = document.documentElement.clientWidth, found = {overflow: [], overlap: [], wide};
  const inside = (one) => one.closest('.scroll, .hidden, .track, .stack, svg');
  for (const one of document.body.querySelectorAll('*')) {
    const box = one.getBoundingClientRect();
    if (box.width && !inside(one) && (box.right > wide + 0.5 || box.left < -0.5))
      found.overflow.push(`${one.tagName}.${one.className}: ${box.left} to ${box.right}`);
  }
  for (const area of document.querySelectorAll('.area, .scale .lane')) {
    const ticks = [...area.querySelectorAll('.tick, .mark')].filter((t) => t.getBoundingClientRect().width);
    for (const a of ticks) for (const b of ticks) {
      const p = a.getBoundingClientRect(), q = b.getBoundingClientRect();
      const across = p.left < q.right && q.left < p.right, along = p.top < q.bottom && q.top < p.bottom;
      if (a !== b && across && along)
        found.overlap.push(`${a.textContent} and ${b.textContent}`);
    }
  }
  found.scroll = document.documentElement.scrollWidth - wide;
  found.background = getComputedStyle(document.body).backgroundColor;
  parent.document.documentElement.dataset.found = JSON.stringify(found);
});
</script>"""


def open_page(path: Path, width: int, scheme: int) -> tuple[str, list[str]]:
    """(the page as the browser has it, what its console says)."""
    done = subprocess.run(
        [
            str(BROWSER), "--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu",
            "--disable-dev-shm-usage", "--enable-logging=stderr", "--v=0", "--virtual-time-budget=2000",
            "--dump-dom", f"--window-size={width},2000",
            # one of its own: a helper of the browser before may not be gone yet
            f"--user-data-dir={tempfile.mkdtemp(prefix='profile-', dir=path.parent)}",
            f"--blink-settings=preferredColorScheme={scheme}",
            f"file://{path}",
        ],
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def measured(path: Path, width: int, scheme: int) -> dict[str, object]:
    """What the measuring script found."""
    page_html = re.sub(
        r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text(encoding="utf-8")
    )
    # A window cannot be narrower than 500 pixels, a frame can.
    inner = escape(page_html.replace("</body>", f"{MEASURE}</body>"), quote=True)
    copy = path.with_name("measured.html")
    copy.write_text(
        '<!doctype html><html><head><meta name="color-scheme" content="light dark"></head><body>'
        f'<iframe style="width:{width}px;height:2000px;border:0" srcdoc="{inner}"></iframe></body></html>',
        encoding="utf-8",
    )
    dom, _ = open_page(copy, width, scheme)
    found = re.search(r'data-found="([^"]*)"', dom)
    assert found is not None
    measured: dict[str, object] = json.loads(unescape(found[1]))
    return measured


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page with all that there can be on it, and one of long numbers."""
    folder = tmp_path_factory.mktemp("pages")
    long_name = "corpus/" + "a-folder-with-a-long-name/" * 6 + "part-00000-of-00001.parquet, row 12345678"
    giants = [(long_name, 12_345_678 + row, 98_765_432) for row in range(30)]
    asked = modelled(given=Setting(4096, (1, 2, 4), "micro_batch"), jitter=0.03)
    full = gather(asked, admitted(some_lengths(), giants, 3), "numbers", quiet)
    wide = gather(
        modelled(given=Setting(1 << 20, (1, 2, 4), "step"), steps=3),
        admitted(np.geomspace(1, 4_000_000, 500).astype(np.int64)), "numbers", quiet,
    )  # fmt: skip
    paths = {}
    for name, report in (("full", full), ("wide", wide)):
        paths[name] = folder / f"{name}.html"
        paths[name].write_text(page(report), encoding="utf-8")
    return paths


@pytest.mark.parametrize("name", ["full", "wide"])
@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_fits_and_the_console_is_quiet(
    pages: dict[str, Path], name: str, width: int, scheme: int
) -> None:
    dom, console = open_page(pages[name], width, scheme)
    assert console == []
    assert "How sure is that?" in dom
    found = measured(pages[name], width, scheme)
    assert found["wide"] == width
    assert (found["scroll"], found["overflow"], found["overlap"]) == (0, [], [])
    assert found["background"] == ("rgb(250, 250, 248)" if scheme == LIGHT else "rgb(17, 20, 23)")


def test_the_browser_would_tell(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<!doctype html><html><head><meta http-equiv="Content-Security-Policy" content="img-src \'none\'">'
        '</head><body><div style="width:2000px">x</div><img src="data:image/png;base64,AAAA">'
        '<div class="area" style="position:relative"><i class="tick">one</i>'
        '<i class="tick" style="margin-left:-1em">two</i></div></body></html>',
        encoding="utf-8",
    )
    _, console = open_page(bad, 390, LIGHT)
    assert len(console) == 1
    found = measured(bad, 390, LIGHT)
    assert found["scroll"] > 1000
    assert found["overflow"]
    assert found["overlap"]
