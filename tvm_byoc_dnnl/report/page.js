"use strict";
const { report, drawings, regions: regionTable, timing } = JSON.parse(document.getElementById("data").textContent);
const calls = report.calls, $ = id => document.getElementById(id);
const readers = calls.map(() => []);
calls.forEach(c => c.inputs.forEach(i => readers[i].push(c.id)));
// of each call, the steps that were measured: a step that runs several calls belongs to all of them
const stepsOf = calls.map(() => new Set());
if (timing) for (const s of timing.steps) for (const id of s.ids) if (stepsOf[id]) stepsOf[id].add(s);
const secondsOf = ids => [...new Set(ids.flatMap(id => [...stepsOf[id]]))].reduce((t, s) => t + s.seconds, 0);

// ------------------------------------------------------------------ words and elements
function el(name, attrs = {}, ...children) {
  const node = document.createElement(name);
  for (const [k, v] of Object.entries(attrs)) k === "onclick" ? node.onclick = v : node.setAttribute(k, v);
  node.append(...children.filter(c => c != null));
  return node;
}
function svg(name, attrs = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [k, v] of Object.entries(attrs)) node.setAttribute(k, v);
  node.append(...children);
  return node;
}
function quantity(value) {
  const prefixes = ["", " k", " M", " G", " T", " P"];
  let i = 0;
  while (value >= 999.5 && i < prefixes.length - 1) { value /= 1000; i++; }
  return (i === 0 || value >= 99.95 ? value.toFixed(0) : String(+value.toPrecision(3))) + prefixes[i];
}
const percent = x => x >= 1 ? "100 %" : x >= .9995 ? ">99.9 %" : x > 0 && x < .0005 ? "<0.1 %" : (100 * x).toFixed(1) + " %";
const label = c => c.kernel || c.op.replace(/^relax\./, "");
const cut = (text, width, char) => { const n = Math.floor((width - 14) / char); return text.length > n ? text.slice(0, n - 1) + "…" : text; };

// A region keeps its hue; neighbours in the list are far apart on the wheel.
const hue = new Map(report.regions.map((r, i) => [r.name, (212 + i * 137.5) % 360]));
// By operator, the same wheel goes from the most frequent operator on.
const frequency = new Map();
for (const c of calls) frequency.set(label(c), (frequency.get(label(c)) || 0) + 1);
const opHue = new Map([...frequency].sort((a, b) => b[1] - a[1]).map(([op], i) => [op, (24 + i * 137.5) % 360]));
const light_of = h => `hsl(${h} var(--fill-s) var(--fill-l))`, dark_of = h => `hsl(${h} var(--stroke-s) var(--stroke-l))`;
const fill = region => light_of(hue.get(region)), stroke = region => dark_of(hue.get(region));
function chip(region) {
  const node = el("span", { class: "chip" + (region ? "" : " host") });
  if (region) { node.style.background = fill(region); node.style.borderColor = stroke(region); }
  return node;
}
const link = id => el("a", { class: "call", onclick: () => select(id, true) }, `${label(calls[id])} `, el("small", {}, `#${id}`));
function linked(ids) { return ids.flatMap((id, i) => i ? [", ", link(id)] : [link(id)]); }

// ------------------------------------------------------------------ what is known of a call, a region
function facts(rows) {
  const list = el("dl");
  for (const [name, value] of rows) if (value !== null && value !== "" && value !== undefined)
    list.append(el("dt", {}, name), el("dd", {}, ...(Array.isArray(value) ? value : [String(value)])));
  return list;
}
function aboutCall(c, isTip) {
  const parts = [el("h2", {}, chip(c.region), c.op + (c.kernel ? ` → ${c.kernel}` : ""))];
  for (const reason of c.reasons) parts.push(el("div", { class: "why" }, reason));
  parts.push(facts([
    ["result", `${c.output} ${c.name}`], ["ONNX node", c.onnx_node],
    ["runs on", c.compiler ? `${c.compiler}, region ${c.region}` : "TVM"],
    ["candidates", c.candidates.length > 1 ? c.candidates.filter(x => !x.reason).map(x => x.compiler).join(", ") : null],
    ["pattern", c.pattern], ["runs as", c.primitive], ["kernel", c.implementation],
    ["FLOP", `${quantity(c.flops)} (${percent(c.flops / Math.max(1, report.totals.flops))})`], ["bytes", quantity(c.bytes)],
    ["time", stepsOf[c.id].size ? ms(secondsOf([c.id])) : null], ["attributes", c.attrs],
  ]));
  if (c.near_misses.length) parts.push(el("h3", {}, "Nearly matched"));
  for (const m of c.near_misses) parts.push(el("div", { class: "why" }, el("b", {}, m.pattern), ` (${m.matched} of ${m.of} calls): ${m.reason}`));
  if (!isTip) {
    if (c.inputs.length) parts.push(el("h3", {}, "Reads"), el("p", {}, ...linked(c.inputs)));
    if (readers[c.id].length) parts.push(el("h3", {}, "Read by"), el("p", {}, ...linked(readers[c.id])));
  }
  return parts;
}
function aboutRegion(name, isTip) {
  const r = report.regions.find(r => r.name === name), counts = new Map();
  const inside = calls.filter(c => c.region === name);
  for (const c of inside) counts.set(label(c), (counts.get(label(c)) || 0) + 1);
  const ops = [...counts].sort((a, b) => b[1] - a[1]).map(([op, n]) => n > 1 ? `${op} ×${n}` : op);
  const parts = [el("h2", {}, chip(name), name + (r.uses > 1 ? `, called ${r.uses} times` : "")), facts([
    ["compiler", r.compiler], ["calls", r.ops], ["FLOP", `${quantity(r.flops)} (${percent(r.flops / Math.max(1, report.totals.flops))})`],
    ["bytes", `${quantity(r.bytes)} cross its border`], ["reorders", r.reorders === null ? "unknown" : r.reorders],
    ["operators", ops.slice(0, 12).join(", ") + (ops.length > 12 ? ", …" : "")],
  ])];
  if (!isTip) parts.push(el("h3", {}, "Calls"), callTable(inside));
  return parts;
}
function row(go, ...cells) {
  const tr = el("tr", go === null ? {} : { "data-go": "" }, ...cells.map(c => c instanceof Element && c.tagName === "TD" ? c : el("td", {}, c)));
  if (go !== null) { tr.onclick = go; tr.tabIndex = 0; tr.onkeydown = e => { if (e.key === "Enter") go(); }; }
  return tr;
}
const num = text => el("td", { class: "n" }, text);
function head(...names) { return el("tr", {}, ...names.map(n => el("th", n.startsWith(">") ? { class: "n" } : {}, n.replace(">", "")))); }
function callTable(list) {
  return el("table", {}, head(">#", "call", "result", ">FLOP"), ...list.map(c =>
    row(() => select(c.id, true), num(String(c.id)), el("td", { class: "op" }, chip(c.region), label(c)), c.output, num(quantity(c.flops)))));
}

// ------------------------------------------------------------------ side panel
const host = calls.filter(c => !c.compiler), missed = calls.filter(c => c.near_misses.length);
let selected = null, selectedRegion = null;
const tabs = {
  summary: ["Summary", () => [
    ...(report.advice.length ? [el("h2", {}, "Advice"), ...report.advice.map(a => el("p", {}, "• " + a))] : []),
    el("h2", {}, "Colours"), el("p", {}, `A filled box runs in a region, one colour each; a dashed one stays with TVM. The bar in a box is its share of the ${timing ? "time" : "work"}; a thick line joins calls that run as one primitive.`),
    ...[["Inputs", report.inputs], ["Outputs", report.outputs]].flatMap(([title, values]) => values.length ? [el("h3", {}, title),
      el("table", {}, ...values.map(v => row(v.calls.length ? () => select(v.calls[0], true) : null, v.name, v.type)))] : []),
    el("h3", {}, "Made with"), facts(Object.entries(report.versions)),
    ...(report.symbols.length ? [el("h3", {}, "Symbolic dims, counted as 1"), el("p", {}, report.symbols.join(", "))] : []),
  ]],
  call: ["Selected", () => selected !== null ? aboutCall(calls[selected]) : selectedRegion ? aboutRegion(selectedRegion)
    : [el("p", {}, "Click a box to keep what its tooltip says here.")]],
  host: [`TVM (${host.length})`, () => {
    const groups = new Map();
    for (const c of host) { const k = JSON.stringify([label(c), c.reasons]); groups.set(k, [...(groups.get(k) || []), c]); }
    const sorted = [...groups.values()].sort((a, b) => sum(b) - sum(a));
    return sorted.length ? sorted.flatMap(g => [el("h3", {}, `${label(g[0])}: ${g.length} call${g.length > 1 ? "s" : ""}, ${quantity(sum(g))} FLOP`),
      ...g[0].reasons.map(r => el("div", { class: "why" }, r)),
      el("p", {}, ...linked(g.slice(0, 12).map(c => c.id)), g.length > 12 ? ` and ${g.length - 12} more` : "")]) : [el("p", {}, "Nothing stays with TVM.")];
  }],
  regions: [`Regions (${report.regions.length})`, () => [el("table", {}, head("region", ...regionTable.columns.map(name => ">" + name)), ...report.regions.map(r =>
    row(() => selectRegion(r.name), el("td", {}, chip(r.name), r.name), ...regionTable.rows[r.name].map(num))))]],
  misses: [`Near misses (${missed.length})`, () => missed.length ? missed.map(c => el("div", {}, el("h3", {}, link(c.id)),
    ...c.near_misses.map(m => el("div", { class: "why" }, el("b", {}, m.pattern), ` (${m.matched} of ${m.of}): ${m.reason}`)))) : [el("p", {}, "No pattern came near without matching.")]],
  calls: [`Calls (${calls.length})`, () => [callTable(calls)]],
};
const sum = list => list.reduce((s, c) => s + c.flops, 0);
function show(tab) {
  for (const b of $("tabs").children) b.setAttribute("aria-selected", b.dataset.tab === tab);
  $("panel").replaceChildren(...tabs[tab][1]());
  $("panel").scrollTop = 0;
}
for (const [key, [title]] of Object.entries(tabs)) $("tabs").append(el("button", { role: "tab", "data-tab": key, onclick: () => show(key) }, title));

// ------------------------------------------------------------------ the graph
const MANY = 200; // calls, from which on repeated blocks are folded at first
let drawing, boxOf = [], view = { x: 0, y: 0, k: 1 };
const stage = $("stage"), group = $("view"), tip = $("tip"), map = $("map");
const line = (b, y, cls, words) => { const n = svg("text", { y, class: cls }); n.textContent = words; return n; };
// The second line of a box. Of a long ONNX name, the end says more than the beginning.
const SECOND_LINES = { result: "result", node: "ONNX node", time: "time" };
function below(b) {
  const c = calls[b.calls[0]], kind = $("below").value, few = Math.floor((b.w - 14) / 5.9);
  if (kind === "time" && timing) { const s = secondsOf(b.calls); return s ? ms(s) : ""; }
  if (kind === "node" && c.onnx_node && !isRegion(b)) return c.onnx_node.length > few ? "…" + c.onnx_node.slice(1 - few) : c.onnx_node;
  return cut(b.below, b.w, 5.9);
}
const isRegion = b => shown === "regions" && calls[b.calls[0]].region !== null;
let shown = "calls";
function build(which) {
  shown = which;
  drawing = drawings[which];
  const hulls = new Map(), edges = svg("g"), boxes = svg("g");
  const loads = drawing.boxes.map(b => timing ? secondsOf(b.calls) : b.calls.reduce((s, id) => s + calls[id].flops, 0));
  const most = Math.max(...loads, 1e-9), colour = $("colour").value, heat = colour === "load";
  drawing.nodes = [];
  boxOf = [];
  for (const [i, b] of drawing.boxes.entries()) {
    const c = calls[b.calls[0]], folded = which === "regions" && c.region;
    const box = svg("g", { class: "box" + (c.region ? "" : " host"), transform: `translate(${b.x} ${b.y})`, "data-box": i, id: `box-${i}`, role: "img", "aria-label": `${b.label}, ${c.region || "TVM"}` });
    const body = svg("rect", { class: "body", x: -b.w / 2, y: -20, width: b.w, height: 40, rx: 7 });
    const share = loads[i] / most;
    if (heat) { body.style.fill = `color-mix(in oklab, var(--heat) ${(90 * Math.sqrt(share)).toFixed(0)}%, var(--panel))`; body.style.stroke = "var(--edge)"; }
    else if (colour === "operator" && !folded) { body.style.fill = light_of(opHue.get(label(c))); body.style.stroke = dark_of(opHue.get(label(c))); }
    else if (c.region) { body.style.fill = fill(c.region); body.style.stroke = stroke(c.region); }
    box.append(body, line(b, -3, "label", cut(b.label, b.w, 7.7)), line(b, 11, "below", below(b)), svg("rect", { class: "load", x: 6 - b.w / 2, y: 15, width: Math.sqrt(share) * (b.w - 12), height: 2.5, rx: 1.2 }));
    boxes.append(box);
    drawing.nodes.push(box);
    for (const id of b.calls) boxOf[id] = i;
    if (c.region && !folded && !heat) {
      const key = c.region + "/" + c.use;
      if (!hulls.has(key)) {
        hulls.set(key, svg("g", { class: "hull" }));
        hulls.get(key).style.color = stroke(c.region);
        const tag = svg("text", { class: "tag", x: b.x - b.w / 2 - 15, y: b.y + 4 });
        tag.textContent = which === "repeats" ? "" : c.region;
        boxes.append(tag);
      }
      hulls.get(key).append(svg("rect", { x: b.x - b.w / 2 - 9, y: b.y - 29, width: b.w + 18, height: 58, rx: 13, fill: "currentColor" }));
    }
  }
  drawing.lines = drawing.edges.map(e => {
    const a = calls[drawing.boxes[e.from].calls[0]], b = calls[drawing.boxes[e.to].calls[0]];
    if (a.region && a.region === b.region && a.use === b.use && which !== "regions" && !heat) hulls.get(a.region + "/" + a.use).append(svg("path", { d: e.d, stroke: "currentColor" }));
    const line = svg("path", { class: "edge", d: e.d, "marker-end": "url(#tipmark)" });
    if (which !== "regions" && a.step !== null && a.step === b.step && a.region === b.region && a.use === b.use) {
      line.classList.add("fused");
      line.removeAttribute("marker-end");
      line.style.setProperty("--own", stroke(a.region));
    }
    edges.append(line);
    return line;
  });
  for (const [i, r] of (drawing.repeats || []).entries()) {
    const inside = drawing.boxes.filter(b => b.repeat === i), first = inside[0];
    boxes.append(line(first, first.y - 25, "block-tag", `block of ${inside.length} calls × ${r}`));
    boxes.lastChild.setAttribute("x", first.x - first.w / 2);
    for (const b of inside) edges.append(svg("rect", { class: "block", x: b.x - b.w / 2 - 5, y: b.y - 24, width: b.w + 10, height: 48, rx: 9 }));
  }
  for (const [values, y, mark] of [[report.inputs, -38, "▾ "], [report.outputs, 21, "▸ "]]) {
    const at = new Map();
    for (const v of values) for (const i of new Set(v.calls.map(id => boxOf[id]))) at.set(i, [...(at.get(i) || []), v.name]);
    for (const [i, names] of at) boxes.append(tagOf(drawing.boxes[i], y, mark + names.join(", ")));
  }
  group.replaceChildren(...hulls.values(), edges, boxes);
  if (selected !== null) light(boxOf[selected]);
  search();
}
// An input above the calls that read it, an output below the call that makes it.
function tagOf(b, y, words) {
  const nearest = Math.min(...drawing.boxes.map(o => o !== b && o.y === b.y ? Math.abs(o.x - b.x) : Infinity));
  const text = cut(words, Math.max(b.w, Math.min(160, nearest - 8)), 5.9), w = text.length * 5.9 + 12;
  const node = svg("g", { class: "value", transform: `translate(${b.x} ${b.y + y})` }, svg("rect", { x: -w / 2, y: 0, width: w, height: 14, rx: 7 }));
  node.append(line(b, 10.5, "", text));
  return node;
}
function place() {
  group.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.k})`);
  drawMap();
}
const room = () => stage.clientHeight - 48; // above the buttons
function readable() {
  const w = stage.clientWidth, h = room(), whole = Math.min(w / drawing.width, h / drawing.height), k = whole >= .6 ? Math.min(1, whole) : Math.min(1, Math.max(.55, w / drawing.width));
  view = { k, x: (w - drawing.width * k) / 2, y: 0 };
  if (drawing.height * k < h) view.y = (h - drawing.height * k) / 2;
  if (drawing.width * k > w && drawing.boxes.length) view.x = Math.min(0, w / 2 - drawing.boxes[0].x * k);
  place();
}
function fit() {
  const k = Math.min(1.2, stage.clientWidth / drawing.width, room() / drawing.height);
  view = { k, x: (stage.clientWidth - drawing.width * k) / 2, y: (room() - drawing.height * k) / 2 };
  place();
}
function zoomAt(factor, x, y) {
  const k = Math.min(4, Math.max(.02, view.k * factor)), f = k / view.k;
  view = { k, x: x - (x - view.x) * f, y: y - (y - view.y) * f };
  place();
}
function centre(i) {
  const b = drawing.boxes[i], k = Math.max(view.k, .6);
  view = { k, x: stage.clientWidth / 2 - b.x * k, y: stage.clientHeight / 2 - b.y * k };
  place();
}
let mapScale = 1;
function drawMap() {
  const fitsWhole = drawing.width * view.k <= stage.clientWidth && drawing.height * view.k <= stage.clientHeight;
  mapScale = Math.min(372 / drawing.width, 190 / drawing.height);
  const w = Math.max(18, drawing.width * mapScale), h = Math.max(18, drawing.height * mapScale), dpr = window.devicePixelRatio || 1;
  map.style.display = fitsWhole ? "none" : "block";
  if (fitsWhole) return;
  map.width = w * dpr; map.height = h * dpr; map.style.width = w + "px"; map.style.height = h + "px";
  const ctx = map.getContext("2d"), style = getComputedStyle(document.documentElement), light = document.documentElement.dataset.theme !== "dark";
  ctx.scale(dpr, dpr);
  drawing.boxes.forEach((b, i) => {
    const c = calls[b.calls[0]], hit = drawing.nodes[i].classList.contains("hit");
    ctx.fillStyle = hit ? style.getPropertyValue("--mark") : c.region ? `hsl(${hue.get(c.region)} 48% ${light ? 55 : 60}%)` : style.getPropertyValue("--host-line");
    ctx.fillRect((b.x - b.w / 2) * mapScale, (b.y - 20) * mapScale, Math.max(2, b.w * mapScale), Math.max(c.region && !hit ? 1 : 2, 40 * mapScale));
  });
  ctx.strokeStyle = style.getPropertyValue("--accent"); ctx.lineWidth = 1.5;
  ctx.strokeRect(-view.x / view.k * mapScale, -view.y / view.k * mapScale, stage.clientWidth / view.k * mapScale, stage.clientHeight / view.k * mapScale);
}

// ------------------------------------------------------------------ selecting, searching, hovering
function light(i) {
  drawing.nodes.forEach((n, j) => n.classList.toggle("on", j === i));
  drawing.lines.forEach((l, j) => l.classList.toggle("on", i !== null && (drawing.edges[j].from === i || drawing.edges[j].to === i)));
}
function select(id, move) {
  selected = id; selectedRegion = null;
  location.hash = `call=${id}`;
  light(boxOf[id]); show("call");
  if (move) centre(boxOf[id]);
}
function selectRegion(name) {
  selected = null; selectedRegion = name;
  location.hash = `region=${name}`;
  show("call");
  const first = boxOf[calls.find(c => c.region === name).id];
  light(shown === "regions" ? first : null); centre(first);
}
function obey() {  // the address: #call=12, #region=dnnl_0
  const [, what, which] = /^#(call|region)=(.+)$/.exec(location.hash) || [];
  const isNew = what === "call" ? calls[+which] && +which !== selected : what === "region" && hue.has(which) && which !== selectedRegion;
  if (isNew && timing) look("stage");
  if (isNew) what === "call" ? select(+which, true) : selectRegion(which);
  return what;
}
// Down and up follow the data, left and right the row; the first key goes to the first call.
function step(key) {
  const from = drawing.nodes.findIndex(n => n.classList.contains("on")), boxes = drawing.boxes, here = boxes[from];
  const beside = here ? boxes.flatMap((b, i) => b.y === here.y && (key === "ArrowLeft" ? b.x < here.x : b.x > here.x) ? [i] : []) : [];
  const next = !here ? [0] : key === "ArrowDown" ? drawing.edges.filter(e => e.from === from).map(e => e.to)
    : key === "ArrowUp" ? drawing.edges.filter(e => e.to === from).map(e => e.from) : beside;
  const far = i => here ? Math.hypot(boxes[i].x - here.x, boxes[i].y - here.y) : 0;
  const to = next.reduce((best, i) => best === null || far(i) < far(best) ? i : best, null);
  if (to === null || !boxes.length) return;
  if (isRegion(boxes[to])) selectRegion(calls[boxes[to].calls[0]].region); else select(boxes[to].calls[0], true);
  stage.setAttribute("aria-activedescendant", `box-${to}`);
}
const haystack = calls.map(c => [c.op, c.kernel, c.name, c.onnx_node, c.output, c.compiler || "tvm", c.region, c.pattern, c.primitive, c.implementation, c.attrs, ...c.reasons, ...c.near_misses.map(m => m.pattern + " " + m.reason)].join(" ").toLowerCase());
let hits = [], hit = -1;
function search() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean), hostOnly = $("only-host").getAttribute("aria-pressed") === "true";
  const seeking = words.length > 0 || hostOnly;
  hits = !seeking ? [] : calls.filter(c => (!hostOnly || !c.compiler) && words.every(w => haystack[c.id].includes(w))).map(c => c.id);
  const marked = new Set(hits.map(id => boxOf[id]));
  hit = -1;
  drawing.nodes.forEach((n, i) => n.classList.toggle("hit", marked.has(i)));
  group.classList.toggle("seeking", seeking);
  $("hits").textContent = seeking ? `${hits.length} of ${calls.length}` : "";
  drawMap();
}
function nextHit(step) {
  if (!hits.length) return;
  hit = (hit + step + hits.length) % hits.length;
  select(hits[hit], true);
  $("hits").textContent = `${hit + 1} of ${hits.length}`;
}
function showTip(i, x, y) {
  const b = drawing.boxes[i], c = calls[b.calls[0]];
  showParts(isRegion(b) ? aboutRegion(c.region, true) : [...aboutCall(c, true),
    ...(b.calls.length > 1 ? [el("h3", {}, `${b.calls.length} calls like this`), facts([["together", timing ? ms(secondsOf(b.calls)) : `${quantity(sum(b.calls.map(id => calls[id])))}FLOP`]])] : [])], x, y);
}
function showParts(parts, x, y) {
  tip.replaceChildren(...parts);
  tip.hidden = false;
  const r = tip.getBoundingClientRect();
  tip.style.left = Math.max(6, x + 18 + r.width > innerWidth ? x - r.width - 14 : x + 18) + "px";
  tip.style.top = Math.max(6, Math.min(y + 14, innerHeight - r.height - 8)) + "px";
}
const boxAt = e => { const g = e.target.closest && e.target.closest("[data-box]"); return g ? +g.dataset.box : null; };

// ------------------------------------------------------------------ events
let drag = null;
stage.addEventListener("pointerdown", e => { if (e.target.closest("button, canvas")) return; drag = { x: e.clientX, y: e.clientY, moved: false, box: boxAt(e) }; });
addEventListener("pointermove", e => {
  if (!drag) return;
  if (!drag.moved && Math.hypot(e.clientX - drag.x, e.clientY - drag.y) < 4) return;
  drag.moved = true; stage.classList.add("drag"); tip.hidden = true;
  view.x += e.clientX - drag.x; view.y += e.clientY - drag.y; drag.x = e.clientX; drag.y = e.clientY;
  place();
});
addEventListener("pointerup", () => {
  if (drag && !drag.moved) {
    if (drag.box === null) { light(null); }
    else {
      const b = drawing.boxes[drag.box], c = calls[b.calls[0]];
      if (isRegion(b)) { selected = null; selectedRegion = c.region; light(drag.box); show("call"); } else select(c.id, false);
    }
  }
  drag = null; stage.classList.remove("drag");
});
stage.addEventListener("mousemove", e => { const i = boxAt(e); if (i === null || (drag && drag.moved)) tip.hidden = true; else showTip(i, e.clientX, e.clientY); });
stage.addEventListener("mouseleave", () => { tip.hidden = true; });
stage.addEventListener("wheel", e => {
  e.preventDefault(); tip.hidden = true;
  const r = stage.getBoundingClientRect();
  if (e.ctrlKey || e.metaKey) zoomAt(Math.exp(-e.deltaY / 180), e.clientX - r.left, e.clientY - r.top);
  else { view.x -= e.shiftKey ? e.deltaY : e.deltaX; view.y -= e.shiftKey ? 0 : e.deltaY; place(); }
}, { passive: false });
$("zoom").onclick = e => {
  const z = e.target.dataset.zoom;
  if (z === "fit") fit(); else if (z === "1") readable(); else if (z) zoomAt(+z, stage.clientWidth / 2, stage.clientHeight / 2);
};
function toMap(e) {
  const r = map.getBoundingClientRect();
  view.x = stage.clientWidth / 2 - (e.clientX - r.left) / mapScale * view.k;
  view.y = stage.clientHeight / 2 - (e.clientY - r.top) / mapScale * view.k;
  place();
}
map.addEventListener("pointerdown", e => { map.setPointerCapture(e.pointerId); toMap(e); });
map.addEventListener("pointermove", e => { if (e.buttons) toMap(e); });
$("search").addEventListener("input", search);
$("search").addEventListener("keydown", e => { if (e.key === "Enter") nextHit(e.shiftKey ? -1 : 1); if (e.key === "Escape") { $("search").value = ""; search(); } });
addEventListener("keydown", e => { if (e.key === "/" && document.activeElement !== $("search")) { e.preventDefault(); $("search").focus(); } });
function toggle(button) { const on = button.getAttribute("aria-pressed") !== "true"; button.setAttribute("aria-pressed", on); return on; }
$("only-host").onclick = () => { toggle($("only-host")); search(); };
function fold(button, which) {
  for (const other of [$("fold"), $("repeats")]) if (other !== button) other.setAttribute("aria-pressed", false);
  build(toggle(button) ? which : "calls");
  readable();
}
$("fold").onclick = () => fold($("fold"), "regions");
$("repeats").onclick = () => fold($("repeats"), "repeats");
$("colour").onchange = () => { build(shown); place(); };
addEventListener("hashchange", obey);
stage.addEventListener("keydown", e => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target !== stage) return;
  if (e.key.startsWith("Arrow")) step(e.key);
  else if (e.key === "+" || e.key === "-") zoomAt(e.key === "+" ? 1.3 : .77, stage.clientWidth / 2, stage.clientHeight / 2);
  else if (e.key === "0") fit();
  else return;
  e.preventDefault();
});
const canvas = stage.querySelector("svg");
function whole(node) {  // the drawing without the view: what is printed and saved
  node.setAttribute("viewBox", `0 0 ${drawing.width} ${drawing.height}`);
  node.querySelector("#view").removeAttribute("transform");
  return node;
}
function drawingAsFile() {
  const copy = whole(canvas.cloneNode(true)), kept = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "opacity", "font-size", "font-weight", "font-family", "text-anchor"];
  const from = [...canvas.querySelectorAll("#view *")];
  [...copy.querySelectorAll("#view *")].forEach((node, i) => { const style = getComputedStyle(from[i]); for (const p of kept) node.style.setProperty(p, style.getPropertyValue(p)); });
  copy.setAttribute("width", drawing.width); copy.setAttribute("height", drawing.height);
  copy.style.background = getComputedStyle(document.body).backgroundColor;
  return new XMLSerializer().serializeToString(copy);
}
$("export").onclick = () => {
  const url = URL.createObjectURL(new Blob([drawingAsFile()], { type: "image/svg+xml" }));
  el("a", { href: url, download: `${document.title}.svg` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
};
let onScreen;  // the theme, as paper is white
addEventListener("beforeprint", () => { onScreen = document.documentElement.dataset.theme; theme("light"); whole(canvas); $("panel").replaceChildren(...["summary", "host", "regions"].flatMap(t => [el("h2", {}, tabs[t][0]), ...tabs[t][1]()])); });
addEventListener("afterprint", () => { theme(onScreen); canvas.removeAttribute("viewBox"); place(); show(document.querySelector("[role=tab][aria-selected=true]").dataset.tab); });
$("below").onchange = () => { build(shown); place(); };
$("views").onclick = e => { if (e.target.dataset.view) look(e.target.dataset.view); };
function theme(name) { document.documentElement.dataset.theme = name; if (drawing) drawMap(); }
$("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
addEventListener("resize", () => $("times").hidden ? place() : drawTimes());

