"""The page of explain, looked at by a real browser (``make test-browser``; skipped where none is installed)."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from xml.etree import ElementTree

import pytest
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.unit.importing import module
from tests.unit.test_explain import const, convnet
from tvm_byoc_dnnl.report import explain

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,900",
    "--virtual-time-budget=5000",
]
CATCH = "<script>window.problems = []; onerror = (m, _, line) => { problems.push(`${m} in line ${line}`); };</script>"
REPORT = """<script>
const answer = document.createElement("pre");
answer.id = "answer";
try { answer.textContent = JSON.stringify({value: (() => { SCRIPT })(), problems: window.problems}); }
catch (error) { answer.textContent = JSON.stringify({problems: [String(error)]}); }
document.body.append(answer);
</script>"""

# ---------------------------------------------------------------- scripts that run in the page
HOVER = """
  const box = drawing.nodes[NUMBER], r = box.getBoundingClientRect();
  box.dispatchEvent(new MouseEvent("mousemove", {bubbles: true, clientX: r.x + r.width / 2, clientY: r.y + 5}));
  const tip = document.getElementById("tip"), t = tip.getBoundingClientRect();
  return {text: tip.innerText, shown: !tip.hidden && t.width > 50,
          inside: t.left >= 0 && t.top >= 0 && t.right <= innerWidth && t.bottom <= innerHeight};
"""
SEARCH = """
  const field = document.getElementById("search");
  field.value = "WORDS";
  field.dispatchEvent(new Event("input"));
  return {hits: document.getElementById("hits").textContent,
          marked: [...document.querySelectorAll(".box.hit .label")].map(e => e.textContent)};
"""
LEGIBLE = """
  build("calls");
  fit();
  const boxes = drawing.nodes.map(n => n.querySelector(".body").getBoundingClientRect());
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  let overlaps = 0;
  for (const [i, a] of boxes.entries()) for (const b of boxes.slice(i + 1)) if (meet(a, b)) overlaps++;
  const spills = drawing.nodes.filter(n => [...n.querySelectorAll("text")].some(
    t => t.getComputedTextLength() > n.querySelector(".body").width.baseVal.value));
  return {overlaps, spills: spills.length, boxes: boxes.length, lines: drawing.lines.length};
"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = os.environ.get("BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None and os.environ.get("REQUIRE_BROWSER"):
        pytest.fail(f"no browser; looked for: {', '.join(BROWSERS)}", pytrace=False)
    if found is None:
        pytest.skip(f"needs a browser; looked for: {', '.join(BROWSERS)}")
    return found


@pytest.fixture
def look(browser, tmp_path):
    """Open a page, run the body of a JavaScript function in it, and return what that returned."""

    def run(page: str, script: str, fragment: str = "") -> object:
        page = page.replace("<head>", "<head>" + CATCH).replace("</body>", REPORT.replace("SCRIPT", script) + "</body>")
        path = tmp_path / "page.html"
        path.write_text(page, encoding="utf-8")
        command = [browser, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"file://{path}{fragment}"]
        done = subprocess.run(command, text=True, capture_output=True, timeout=120)
        found = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, re.S)
        assert found, f"the page did not run to its end:\n{done.stderr[-2000:]}"
        answer = json.loads(html.unescape(found.group(1)))
        assert answer["problems"] == []
        return answer["value"]

    return run


@pytest.fixture(scope="module")
def report():
    return explain(module(convnet, (1, 3, 16, 16)))


@pytest.fixture(scope="module")
def page(report) -> str:
    return report.to_html()


def transformer(layers: int):
    """A long graph with residual edges and, in every third layer, a call that stays with TVM."""
    op, nn = relax.op, relax.op.nn

    def model(bb, x):
        for layer in range(layers):
            norm = bb.emit(nn.softmax(x))
            heads = []
            for _ in range(3):
                h = bb.emit(op.matmul(norm, const(32, 32)))
                h = bb.emit(op.add(h, const(32)))
                heads.append(bb.emit(op.reshape(h, (8, 4, 32))))
            scores = bb.emit(op.multiply(heads[0], heads[1]))
            if layer % 3 == 2:
                scores = bb.emit(op.cumsum(scores, axis=-1))
            mixed = bb.emit(op.multiply(bb.emit(nn.softmax(scores)), heads[2]))
            x = bb.emit(op.add(x, bb.emit(op.matmul(bb.emit(op.reshape(mixed, (32, 32))), const(32, 32)))))
        return nn.relu(x)

    return explain(module(model, (32, 32)))


def test_every_call_is_drawn_where_a_pointer_finds_it(look, page, report):
    found = look(
        page,
        """
        fit();
        return drawing.nodes.map(node => {
          const r = node.querySelector(".body").getBoundingClientRect();
          const hit = document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2);
          const style = getComputedStyle(node.querySelector(".body"));
          return {label: node.querySelector(".label").textContent, found: node.contains(hit), fill: style.fill};
        });""",
    )
    assert [f["label"] for f in found] == [c.label for c in report.calls]
    assert all(f["found"] for f in found)
    fills = [f["fill"] for f in found]
    assert fills[0] == fills[1] and fills[3] == fills[4] == fills[5], "one colour per region"
    assert len({fills[0], fills[2], fills[3]}) == 3, "two regions and TVM look different"


def test_hovering_shows_the_reason(look, page):
    tip = look(page, HOVER.replace("NUMBER", "2"))
    assert tip["shown"] and tip["inside"]
    assert "dnnl: 'dnnl' does not take relax.cumsum" in tip["text"]


def test_hovering_shows_what_a_call_runs_as(look, page):
    tip = look(page, HOVER.replace("NUMBER", "1"))
    assert "convolution + relu" in tip["text"] and "dnnl_0" in tip["text"]


def test_clicking_selects_and_links_lead_on(look, page):
    found = look(
        page,
        """
        const r = drawing.nodes[3].getBoundingClientRect(), at = {bubbles: true, clientX: r.x + 9, clientY: r.y + 9};
        drawing.nodes[3].dispatchEvent(new PointerEvent("pointerdown", at));
        drawing.nodes[3].dispatchEvent(new PointerEvent("pointerup", at));
        const panel = document.getElementById("panel"), first = panel.innerText;
        const lit = document.querySelectorAll(".edge.on").length;
        panel.querySelector("a.call").click();
        return {first, lit, second: panel.innerText, hash: location.hash};""",
    )
    assert found["first"].startswith("relax.add") and found["lit"] == 3
    assert found["second"].startswith("relax.cumsum") and found["hash"] == "#call=2"


def test_a_link_opens_at_its_call(look, page):
    text = look(page, "return document.getElementById('panel').innerText", "#call=2")
    assert text.startswith("relax.cumsum")
    text = look(page, "return document.getElementById('panel').innerText", "#region=dnnl_1")
    assert text.startswith("dnnl_1")


def test_an_open_page_obeys_its_address(look, page):
    script = """
        location.hash = "#call=2";
        dispatchEvent(new HashChangeEvent("hashchange"));
        return document.getElementById("panel").innerText;"""
    assert look(page, script).startswith("relax.cumsum")


def test_arrow_keys_follow_the_data(look, page):
    script = """
        const stage = document.getElementById("stage"), seen = [];
        stage.focus();
        for (const key of ["ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp", "ArrowLeft"]) {
          stage.dispatchEvent(new KeyboardEvent("keydown", {key}));
          seen.push(document.querySelector(".box.on .label").textContent);
        }
        return {seen, focused: document.activeElement === stage, at: stage.getAttribute("aria-activedescendant")};"""
    found = look(page, script)
    assert found["seen"] == ["nn.conv2d", "nn.relu", "cumsum", "nn.relu", "nn.relu"]
    assert found["focused"] and found["at"] == "box-1"


def test_the_drawing_is_saved_with_its_colours_inputs_and_outputs(look, page):
    found = look(page, "return {file: drawingAsFile(), panel: document.getElementById('panel').innerText}")
    root = ElementTree.fromstring(found["file"])
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"nn.conv2d", "cumsum", "▾ x0", "▸ output_0"} <= set(texts)
    bodies = [n.get("style", "") for n in root.iter() if n.get("class") == "body"]
    assert len(bodies) == 6 and all("fill: rgb" in style and "var(" not in style for style in bodies)
    assert root.get("viewBox") and "Inputs" in found["panel"] and "float32[1, 3, 16, 16]" in found["panel"]


def test_colours_by_operator(look, page):
    script = """
        const colour = document.getElementById("colour");
        const fills = () => drawing.nodes.map(n => n.querySelector(".body").style.fill);
        const before = fills();
        colour.value = "operator"; colour.onchange();
        return {before, after: fills()};"""
    found = look(page, script)
    assert len(set(found["before"])) == 3 and len(set(found["after"])) == 6


def test_printing_shows_the_whole_drawing_and_all_reasons(look, page):
    script = """
        dispatchEvent(new Event("beforeprint"));
        const box = document.querySelector("#stage > svg").getAttribute("viewBox");
        const text = document.getElementById("panel").innerText;
        dispatchEvent(new Event("afterprint"));
        return {box, text, after: document.querySelector("#stage > svg").getAttribute("viewBox")};"""
    found = look(page, script)
    assert found["box"].startswith("0 0 ") and found["after"] is None
    assert "does not take relax.cumsum" in found["text"] and "dnnl_1" in found["text"]


@pytest.mark.parametrize(
    ("words", "marked"),
    [
        ("softmax", ["nn.softmax"]),
        ("no scan", ["cumsum"]),
        ("dnnl_0 conv", ["nn.conv2d", "nn.relu"]),
        ("tvm", ["cumsum"]),
        ("2048", ["reshape", "nn.softmax"]),
        ("nowhere", []),
    ],
)
def test_searching(look, page, words, marked):
    found = look(page, SEARCH.replace("WORDS", words))
    assert found == {"hits": f"{len(marked)} of 6", "marked": marked}


def test_folding_regions(look, page):
    labels = look(
        page,
        """
        document.getElementById("fold").click();
        return [...document.querySelectorAll(".box .label")].map(e => e.textContent);""",
    )
    assert labels == ["dnnl_0", "cumsum", "dnnl_1"]


def test_summary_tabs_and_theme(look, page):
    found = look(
        page,
        """
        const tabs = [...document.querySelectorAll("[role=tab]")].map(
          t => { t.click(); return [t.textContent, document.getElementById("panel").innerText.length]; });
        const colour = () => getComputedStyle(document.body).backgroundColor, before = colour();
        document.getElementById("theme").click();
        return {tabs, figures: document.querySelector("header").innerText, changed: before !== colour()};""",
    )
    assert [name for name, _ in found["tabs"]] == [
        "Summary", "Selected", "TVM (1)", "Regions (2)", "Near misses (1)", "Calls (6)",
    ]  # fmt: skip
    assert all(length > 10 for _, length in found["tabs"])
    assert "5 / 6" in found["figures"] and "98.4 %" in found["figures"]
    assert found["changed"]


def test_a_thousand_calls_are_legible(look):
    large = transformer(66)
    assert len(large.calls) > 1000
    found = look(large.to_html(), LEGIBLE)
    assert found["boxes"] == len(large.calls)
    assert found["overlaps"] == 0
    assert found["spills"] == 0
    assert found["lines"] == sum(len(c.inputs) for c in large.calls)


def test_repeated_blocks_are_folded_and_columns_make_the_whole_readable(look):
    """Twelve layers: one is drawn, with the calls of all; without folding, the layers stand in several columns."""
    layers = transformer(12)
    found = look(
        layers.to_html(),
        """
        const view = which => {
          build(which);
          const scale = Math.min(1000 / drawing.width, 780 / drawing.height);  // in a window of 1400 by 900
          return {boxes: drawing.boxes.length, scale};
        };
        const all = view("calls"), folded = view("repeats");
        const of = drawing.boxes.flatMap(b => b.calls).sort((a, b) => a - b);
        return {all, folded, of, marks: [...document.querySelectorAll(".block-tag")].map(t => t.textContent)};""",
    )
    assert found["of"] == [c.id for c in layers.calls]
    assert "block of 49 calls × 3" in found["marks"]  # every third layer has a call that stays with TVM
    assert found["all"]["boxes"] == len(layers.calls) and found["folded"]["boxes"] < 0.5 * len(layers.calls)
    assert found["all"]["scale"] > 0.2, found
    assert found["folded"]["scale"] > 0.45


TIMES = """
  const count = selector => document.querySelectorAll(selector).length, times = document.getElementById("times");
  const drawn = {bars: count("#bars > div"), dots: count("#roofline circle"), lines: count("#roofline .roof"),
                 boxes: count("#timeline rect.step"), fits: times.scrollWidth <= times.clientWidth};
  const colour = document.getElementById("colour");
  colour.value = "load";
  colour.onchange();
  look("stage");
  const fills = drawing.nodes.map(n => n.querySelector(".body").style.fill);
  const second = document.getElementById("below");
  second.value = "time";
  second.dispatchEvent(new Event("change"));
  return {...drawn, fills, below: drawing.nodes.map(n => n.querySelector(".below").textContent)};
"""


def test_the_page_of_a_profile(look):
    """Bars, timeline and roofline of what was measured, and the graph coloured by it."""
    profile = byoc.profile(byoc.compile(module(convnet, (1, 3, 16, 16))), repeat=2, roof=True)
    found = look(profile.to_html(), TIMES)
    assert found["bars"] == min(10, len(profile.steps)) and found["boxes"] == len(profile.steps)
    assert found["dots"] == sum(1 for s in profile.steps if s.flops) and found["lines"] == 1
    assert found["fits"]
    timed = {i for s in profile.steps for i in s.ids}
    assert timed
    assert [bool(words) for words in found["below"]] == [c.id in timed for c in profile.account.calls]
    assert all(fill.startswith("color-mix") for fill in found["fills"])


def test_a_model_without_calls(look):
    empty = explain(module(lambda bb, x: x, (4,)))
    assert empty.calls == []
    header = look(empty.to_html(), "fit(); drawMap(); return document.querySelector('header').innerText")
    assert "0 / 0" in header


def test_names_cannot_break_out_of_the_page(look, report):
    report = explain(module(convnet, (1, 3, 16, 16)))
    report.model = "<img src=x onerror=problems.push('ran')>"
    report.calls[2].reasons = ["</script><script>problems.push('ran')</script>"]
    tip = look(report.to_html(), HOVER.replace("NUMBER", "2"))
    assert "</script><script>" in tip["text"]


def test_the_page_needs_no_network(page):
    assert set(re.findall(r"https?://[^\"'\s<>]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"""<(link|img|iframe)\b|\bsrc=|@import|\burl\((?!#)""", page)
