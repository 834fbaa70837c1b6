"""The report in a real browser: nothing is missing, on the console, or beside the edge."""

import pytest

from mlperf_bert.submission import report
from tests.mlperf.example_log import write_submission
from tests.submission.browsing import measured, served

# Tells how wide the page is that a frame of some width shows, and which texts are too small.
FRAME = """<!doctype html><link rel="icon" href="data:,"><body style="margin:0"><script>
const frame = document.createElement("iframe");
frame.width = WIDTH; frame.height = 9000; frame.style.border = 0;
frame.onload = () => {
  const page = frame.contentDocument;
  const texts = [...page.querySelectorAll("td, b, small, li, h1, h2, h3, svg text")];
  const shown = texts.filter(text => text.getBoundingClientRect().height > 0);
  const outside = shown.filter(text => text.getBoundingClientRect().right > WIDTH + 1);
  const heights = shown.map(text => text.getBoundingClientRect().height);
  document.title = [page.documentElement.scrollWidth, outside.length,
                    Math.floor(Math.min(...heights)), page.querySelectorAll("svg").length].join();
};
frame.src = "PAGE.html";
document.body.append(frame);
</script></body>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Pages on ten runs, one of them failed, on loopback; yields (folder, address, requests)."""
    folder = tmp_path_factory.mktemp("site")
    curves = [[0.4 + 0.02 * n for n in range(16)] + [last] for last in (0.71, *[0.73] * 9)]
    org = write_submission(folder / "example", curves, system="a-system-with-a-rather-long-name")
    assert report.main([str(org), f"--output={folder / 'report.html'}"]) == 0
    with served(folder) as found:
        yield found


@pytest.mark.parametrize("width", [1280, 400])
def test_readable_at_both_widths(browser, site, tmp_path, width):
    frame = FRAME.replace("PAGE", "report")
    title, console = measured(browser, site, tmp_path, "report", frame, width)
    assert console == []
    page_width, num_outside, least_height, found = map(int, title.split(","))
    assert page_width <= width
    assert num_outside == 0
    assert least_height >= 8
    assert found == 3
