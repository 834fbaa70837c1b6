"""The standing in a real browser: filters, sorting, curves, both widths, nothing on the console."""

import json

import pytest

from mlperf_results import standing
from tests.mlperf.example_log import write_log
from tests.submission.browsing import measured, served

# Filter, what is chosen, how many are left; counted in shared/facts/published_bert_results.json.
FILTERS = [
    ("division", "all", 337),
    ("division", "open", 17),
    ("round", "5.0", 34),
    ("family", "H200", 19),
    ("framework", "TensorFlow", 85),
    ("accelerators", "8", 140),
    ("accelerators", "1000..", 18),
    ("batch", "448", 86),
    ("text", "nvidia/dgxh100", 6),
]

# Drives the page in a frame and puts what came of it into its own title.
FRAME = """<!doctype html><link rel="icon" href="data:,"><body style="margin:0"><script>
const frame = document.createElement("iframe");
frame.width = WIDTH; frame.height = 9000; frame.style.border = 0;
frame.onload = () => {
  const page = frame.contentDocument, at = id => page.getElementById(id);
  const rows = () => [...page.querySelectorAll("#table tbody tr")];
  const cells = number => rows().map(row => row.cells[number].textContent);
  const marks = id => at(id).querySelectorAll(".mark").length;
  const names = () => [...at("legend").children].map(each => each.textContent);
  const result = {count: at("count").textContent, first: rows().length, curves: names().length};
  const filtered = ([name, value]) => {
    const filter = at(`filter_${name}`);
    filter.value = value;
    filter.dispatchEvent(new Event("input"));
    const left = rows().length;
    filter.value = name == "division" ? "closed" : "";
    filter.dispatchEvent(new Event("input"));
    return left;
  };
  result.left = FILTERS.map(filtered);
  result.last = rows().length;
  result.marks = ["minutes", "rate", "convergence", "accuracy"].map(marks);
  result.lines = at("minutes").querySelectorAll(".line").length;
  result.details = at("minutes").querySelector(".mark title").textContent;
  const choose = name => rows().find(row => row.cells[0].textContent == name).click();
  for (const row of [...page.querySelectorAll("#table .chosen td:first-child")])
    choose(row.textContent);
  choose("1.0/Habana/SYS-420GH-TNGR");
  result.chosen = names();
  const heading = () => page.querySelectorAll("#table th")[1];
  heading().click();
  result.rising = cells(1).map(Number).filter(x => !isNaN(x));
  heading().click();
  result.falling = cells(1).map(Number).filter(x => !isNaN(x));
  result.width = page.documentElement.scrollWidth;
  const texts = [...page.querySelectorAll("td, b, small, li, h1, h2, h3, label, input, p, svg")];
  const boxes = texts.filter(e => !e.closest(".scroll")).map(
    e => e.getBoundingClientRect()).filter(box => box.height);
  result.outside = boxes.filter(box => box.right > WIDTH + 1).length;
  result.least = Math.floor(Math.min(...boxes.map(box => box.height)));
  document.title = JSON.stringify(result);
};
frame.src = "standing.html";
document.body.append(frame);
</script></body>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The standing of a run of a miniature on loopback; as `served` yields."""
    folder = tmp_path_factory.mktemp("site")
    log = write_log(folder / "bert.log", [0.4, 0.5, 0.73], max_sequence_length=64)
    log.write_text(log.read_text().replace('"value": "closed"', '"value": "open"'))
    assert standing.main([str(folder), f"--output={folder / 'standing.html'}"]) == 0
    with served(folder) as found:
        yield found


@pytest.mark.gate
@pytest.mark.parametrize("width", [1280, 400])
def test_filters_table_and_curves_react(browser, site, tmp_path, width):
    folder = site[0]
    frame = FRAME.replace("FILTERS", json.dumps(FILTERS))
    title, console = measured(browser, site, tmp_path, "standing", frame, width)
    assert console == []
    found = json.loads(title)
    own = 1
    assert found["count"] == "320 of 337 published results"
    assert found["first"] == found["last"] == own + 320
    assert found["left"] == [own + number for *_, number in FILTERS]
    assert found["marks"][0] > 300 and found["marks"][1] > 300
    assert found["marks"][2] > 2000 and found["marks"][3] > 30
    assert found["lines"] > 15
    assert found["details"].startswith("1.0/") and "\nbatch " in found["details"]
    assert found["curves"] > 4
    assert found["chosen"] == ["1.0/Habana/SYS-420GH-TNGR", str(folder)]
    assert found["rising"] == sorted(found["rising"]) == found["falling"][::-1]
    assert len(found["rising"]) > 300
    assert found["width"] <= width
    assert found["outside"] == 0
    assert found["least"] >= 8
