// ------------------------------------------------------------------ measured times: longest steps, timeline, roofline
const steps = timing ? timing.steps : [], stepsTotal = steps.reduce((s, p) => s + p.seconds, 0);
const stepName = s => s.source.length ? s.source.map(o => o.replace(/^relax\.(nn\.)?/, "")).join(" + ") : s.is_reorder ? "reorder (layout)" : s.kind;
const stepFill = s => s.is_reorder ? "var(--edge)" : hue.has(s.region) ? fill(s.region) : "var(--host-soft)";
const stepStroke = s => s.is_reorder ? "var(--edge)" : hue.has(s.region) ? stroke(s.region) : "var(--host-line)";
const ms = seconds => { const v = seconds * 1e3; return (v >= 100 ? v.toFixed(0) : v >= 1 ? v.toPrecision(3) : v.toFixed(3)) + " ms"; };
function paint(node, s) { node.style.fill = stepFill(s); node.style.stroke = stepStroke(s); return node; }
function aboutStep(s) {
  return [el("h2", {}, stepName(s)), facts([
    ["time", `${ms(s.seconds)} (${percent(s.seconds / stepsTotal)})`], ["from", `${ms(s.start)} on`], ["nodes", s.calls.join(", ")],
    ["runs on", hue.has(s.region) ? `region ${s.region}` : "TVM"], ["kind", s.kind], ["kernel", s.implementation],
    ["rate", s.flops ? `${quantity(s.gflops_per_second * 1e9)}FLOP/s` : null], ["work", s.flops ? `${quantity(s.flops)}FLOP` : null],
    ["data", s.bytes ? `${quantity(s.bytes)}B` : null], ["layouts", s.layouts.join(" ")],
  ])];
}
function onStep(node, s) {
  node.addEventListener("mousemove", e => showParts(aboutStep(s), e.clientX, e.clientY));
  node.addEventListener("mouseleave", () => { tip.hidden = true; });
  node.addEventListener("click", () => { tip.hidden = true; if (s.ids.length) { look("stage"); select(s.ids[0], true); } });
  return node;
}
function longest() {
  const top = [...steps].sort((a, b) => b.seconds - a.seconds).slice(0, 10), most = top.length ? top[0].seconds : 1;
  const rest = stepsTotal - top.reduce((s, p) => s + p.seconds, 0);
  return [el("h2", {}, top.length < steps.length ? `The ${top.length} longest of ${steps.length} steps` : "All steps"),
    el("p", {}, `They take ${percent(1 - rest / (stepsTotal || 1))} of the steps' time. A click shows the call in the graph.`),
    el("div", { class: "bars", id: "bars" }, ...top.map(s => {
      const bar = el("i", { style: `width:${100 * s.seconds / most}%` });
      bar.style.background = stepFill(s); bar.style.borderColor = stepStroke(s);
      return onStep(el("div", {}, el("span", { class: "what" }, stepName(s) + " ", el("small", {}, s.calls.join(", ") || s.kind)),
        el("span", {}, bar), el("span", { class: "n" }, ms(s.seconds)), el("span", { class: "n" }, percent(s.seconds / stepsTotal))), s);
    }))];
}
const text = (x, y, words, more = {}) => { const t = svg("text", { x, y, ...more }); t.textContent = words; return t; };
function ticks(low, high, count) {
  const raw = (high - low) / count, base = 10 ** Math.floor(Math.log10(raw)), step = base * [1, 2, 5, 10].find(m => base * m >= raw);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high; v += step) found.push(v);
  return found;
}
const span = { from: 0, to: 0 };
function timeline(width) {
  const rows = [...new Set(steps.map(s => (report.regions.find(r => r.name === s.region) || { compiler: "tvm" }).compiler))];
  const left = 64, high = 34, h = rows.length * (high + 8) + 34, end = Math.max(...steps.map(s => s.start + s.seconds), 1e-9);
  span.from = 0; span.to = end;
  const box = svg("svg", { id: "timeline", viewBox: `0 0 ${width} ${h}`, height: h }), inner = svg("g");
  box.append(inner);
  const draw = () => {
    const x = v => left + (v - span.from) / (span.to - span.from) * (width - left - 12);
    const clip = svg("svg", { x: left, y: 0, width: width - left - 12, height: h - 24, viewBox: `${left} 0 ${width - left - 12} ${h - 24}` });
    const parts = rows.map((r, i) => text(left - 8, i * (high + 8) + high / 2 + 8, r, { class: "name", style: "text-anchor:end" }));
    for (const v of ticks(span.from, span.to, width / 110)) parts.push(svg("line", { class: "axis", x1: x(v), x2: x(v), y1: 0, y2: h - 22 }), text(x(v), h - 8, `${+(v * 1e3).toPrecision(4)} ms`));
    for (const s of steps) {
      const x0 = x(s.start), w = Math.max(.6, x(s.start + s.seconds) - x0);
      if (x0 > width || x0 + w < left) continue;
      const row = rows.indexOf((report.regions.find(r => r.name === s.region) || { compiler: "tvm" }).compiler), y = row * (high + 8) + 4;
      clip.append(onStep(paint(svg("rect", { class: "step", x: x0, y, width: w, height: high, rx: Math.min(3, w / 3) }), s), s));
      const from = Math.max(x0, left), seen = Math.min(x0 + w, width - 12) - from, words = cut(stepName(s), seen + 6, 6.4);
      if (seen > 44) clip.append(text(from + seen / 2, y + high / 2 + 4, words, { class: "name" }));
    }
    inner.replaceChildren(...parts, clip);
  };
  const move = (from, to) => { const d = Math.min(to - from, end); span.from = Math.min(Math.max(0, from), end - d); span.to = span.from + d; draw(); };
  const at = e => { const r = box.getBoundingClientRect(); return span.from + ((e.clientX - r.left) * width / r.width - left) / (width - left - 12) * (span.to - span.from); };
  box.addEventListener("wheel", e => { if (!e.ctrlKey && !e.metaKey) return; e.preventDefault(); const f = Math.exp(e.deltaY / 240), m = at(e); move(m - (m - span.from) * f, m + (span.to - m) * f); }, { passive: false });
  let held = null;
  box.addEventListener("pointerdown", e => { held = at(e); });
  box.addEventListener("pointermove", e => { if (held !== null && e.buttons) { const d = held - at(e); move(span.from + d, span.to + d); } });
  box.addEventListener("pointerup", () => { held = null; });
  box.addEventListener("dblclick", () => move(0, end));
  draw();
  return [el("h2", {}, "Timeline of one call"), el("p", {}, `${ms(timing.total_seconds)} for one call, the median of ${timing.repeat}. Ctrl and the wheel zoom, dragging moves, a double click shows all.` +
    (timing.others_share > .1 ? ` The machine was not quiet: others took ${percent(timing.others_share)} of the cores.` : "")), box];
}
function roofline(width) {
  const known = steps.filter(s => s.flops && s.bytes && s.seconds), h = 330, left = 76, low = h - 44;
  const title = [el("h2", {}, "Roofline")];
  if (!known.length) return [...title, el("p", {}, "No step of this model says how much it computes.")];
  const roof = timing.roof, xs = known.map(s => s.flops / s.bytes), ys = known.map(s => s.gflops_per_second);
  const ridge = roof ? roof.gflops / roof.gbytes : xs[0];
  const range = (values, pad) => [Math.log10(Math.min(...values)) - pad, Math.log10(Math.max(...values)) + pad];
  const [x0, x1] = range([...xs, ridge], .25), [y0, y1] = range([...ys, ...(roof ? [roof.gflops] : [])], .2);
  const x = v => left + (Math.log10(v) - x0) / (x1 - x0) * (width - left - 20), y = v => low - (Math.log10(v) - y0) / (y1 - y0) * (low - 12);
  const box = svg("svg", { id: "roofline", viewBox: `0 0 ${width} ${h}`, height: h });
  const decades = (a, b) => { const all = []; for (let e = Math.floor(a); e <= b; e++) for (const m of [1, 2, 5]) { const v = m * 10 ** e, l = Math.log10(v); if (l >= a && l <= b && (m === 1 || b - a < 2.2)) all.push(v); } return all; };
  for (const v of decades(x0, x1)) box.append(svg("line", { class: "axis", x1: x(v), x2: x(v), y1: 12, y2: low }), text(x(v), low + 16, String(+v.toPrecision(2))));
  for (const v of decades(y0, y1)) box.append(svg("line", { class: "axis", x1: left, x2: width - 20, y1: y(v), y2: y(v) }), text(left - 8, y(v) + 4, String(+v.toPrecision(2)), { style: "text-anchor:end" }));
  box.append(text((left + width) / 2, h - 8, "FLOP per byte of operands and results"), text(-(12 + low) / 2, 22, "GFLOP/s", { transform: "rotate(-90)" }));
  if (roof) {
    const start = 10 ** x0, bottom = 10 ** y0, from = Math.max(start, bottom / roof.gbytes);
    box.append(svg("path", { class: "roof", d: `M${x(from)} ${y(from * roof.gbytes)}L${x(ridge)} ${y(roof.gflops)}H${width - 20}` }));
  }
  for (const s of [...known].sort((a, b) => b.seconds - a.seconds)) {
    const r = 3 + 16 * Math.sqrt(s.seconds / stepsTotal), dot = paint(svg("circle", { class: "step", cx: x(s.flops / s.bytes), cy: y(s.gflops_per_second), r }), s);
    dot.style.fillOpacity = .8;
    box.append(onStep(dot, s));
  }
  const without = stepsTotal - known.reduce((t, s) => t + s.seconds, 0);
  return [...title, el("p", {}, `Each dot is a step; the larger, the longer it took. ${roof ? `The lines are this machine's limits: ${roof.gflops.toFixed(0)} GFLOP/s in a float32 product, ${roof.gbytes.toFixed(0)} GB/s reading memory. Steps` : "Steps"} above a line read from a cache, or compute with fewer or smaller numbers. Steps without arithmetic (${percent(without / stepsTotal)} of the time) are not here.`), box];
}
function drawTimes() {
  const width = Math.max(420, $("times").clientWidth - 44);
  $("times").replaceChildren(...longest(), ...timeline(width), ...roofline(width));
}
function look(which) {
  $("stage").hidden = which !== "stage"; $("times").hidden = which !== "times";
  for (const b of $("views").children) b.setAttribute("aria-pressed", b.dataset.view === which);
  if (which === "times") drawTimes(); else place();
}
