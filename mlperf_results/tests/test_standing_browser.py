"""The standing in a real browser: filters, sorting, curves, both widths, nothing on the console."""

import json
import re

import pytest

from mlperf_results import standing
from tests.mlperf.example_log import write_log
from tests.submission.browsing import measured, served

# Of closed results, counted in shared/facts/published_bert_results.json.
COUNTS = {
    "TensorFlow": 85,
    "8 accelerators": 140,
    "1000 and more": 18,
    "batch 448": 86,
    "NVIDIA/dgxh100": 6,
}

# Drives the page in a frame and puts what came of it into its own title.
FRAME = """<!doctype html><link rel="icon" href="data:,"><body style="margin:0"><script>
const frame = document.createElement("iframe");
frame.width = WIDTH; frame.height = 9000; frame.style.border = 0;
const pause = () => new Promise(done => setTimeout(done, 100));
frame.onload = async () => {
  const page = frame.contentDocument, {Bokeh} = frame.contentWindow;
  while (!Bokeh.documents.length || !Bokeh.documents[0].is_idle) await pause();
  await pause();
  const model = name => Bokeh.documents[0].get_model_by_name(name);
  const shown = () => model("row_filter").booleans.filter(x => x).length;
  const result = {first: shown(), count: model("count").text};
  const set = async (name, value) => {
    const widget = model(name);
    widget.value = value;
    if ("value_input" in widget.attributes) widget.value_input = value;
    await pause();
    const found = shown();
    widget.value = Array.isArray(value) ? [] : name == "filter_division" ? "closed" : "";
    if ("value_input" in widget.attributes) widget.value_input = "";
    await pause();
    return found;
  };
  result.all = await set("filter_division", "all");
  result.open = await set("filter_division", "open");
  result.round = await set("filter_round", ["5.0"]);
  result.family = await set("filter_family", ["H200"]);
  result.framework = await set("filter_framework", ["TensorFlow"]);
  result.eight = await set("filter_accelerators", "8");
  result.many = await set("filter_accelerators", "1000..");
  result.batch = await set("filter_batch", "448");
  result.text = await set("filter_text", "nvidia/dgxh100");
  result.last = shown();
  result.lines = model("lines").data.family.length;
  const curves = model("accuracy").renderers[0].data_source;
  result.curves = curves.data.name.length;
  const rows = model("rows");
  rows.selected.indices = [rows.data.name.indexOf("1.0/Habana/SYS-420GH-TNGR")];
  await pause();
  result.chosen = curves.data.name;
  const deep = root => [...root.querySelectorAll("*")].flatMap(
    element => element.shadowRoot ? [element, ...deep(element.shadowRoot)] : [element]);
  const elements = deep(page), headings = elements.filter(e => e.matches(".slick-header-column"));
  const minutes = () => deep(page).filter(e => e.matches(".slick-cell.l2")).map(
    e => [e.getBoundingClientRect().top, e.textContent]).sort((a, b) => a[0] - b[0]).map(e => e[1]);
  headings.find(e => e.textContent.trim() == "minutes").click();
  await pause();
  result.sorted = minutes().map(Number).filter(x => !isNaN(x));
  result.width = page.documentElement.scrollWidth;
  const texts = elements.filter(e => e.matches("td, b, small, li, h1, h2, h3, label, input, p"));
  const boxes = texts.map(e => e.getBoundingClientRect()).filter(box => box.height);
  result.outside = boxes.filter(box => box.right > WIDTH + 1).length;
  result.least = Math.floor(Math.min(...boxes.map(box => box.height)));
  result.canvases = elements.filter(e => e.matches("canvas")).length;
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
    folder, more_time = site[0], "--virtual-time-budget=20000"
    title, console = measured(browser, site, tmp_path, "standing", FRAME, width, more_time)
    # Bokeh says its version; a library in it what its next release will change.
    assert [line for line in console if not re.search("setting log level|allowHTML", line)] == []
    found = json.loads(title)
    own = 1
    assert found["count"] == "320 of 337 published results"
    assert found["first"] == found["last"] == own + 320
    assert (found["all"], found["open"]) == (own + 337, own + 17)
    assert found["round"] == own + 34
    assert found["family"] == own + 19
    assert found["framework"] == own + COUNTS["TensorFlow"]
    assert found["eight"] == own + COUNTS["8 accelerators"]
    assert found["many"] == own + COUNTS["1000 and more"]
    assert found["batch"] == own + COUNTS["batch 448"]
    assert found["text"] == own + COUNTS["NVIDIA/dgxh100"]
    assert found["lines"] > 15
    assert found["curves"] > 4
    assert found["chosen"] == ["1.0/Habana/SYS-420GH-TNGR", str(folder)]
    assert found["sorted"] == sorted(found["sorted"])
    assert len(found["sorted"]) > 5
    assert found["width"] <= width
    assert found["outside"] == 0
    assert found["least"] >= 8
    assert found["canvases"] >= 4
