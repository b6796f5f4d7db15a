// ------------------------------------------------------------------ start
const t = report.totals, share = t.flops ? t.offloaded_flops / t.flops : 0;
$("subtitle").textContent = Object.entries(report.versions).map(([k, v]) => `${k} ${v}`).slice(0, 2).join(", ");
function figure(value, text, part) {
  const bar = part === undefined ? null : el("div", { class: "share" }, el("i", { style: `width:${100 * part}%` }));
  $("figures").append(el("div", { class: "figure" }, el("b", {}, value), el("span", {}, text), bar));
}
figure(`${t.offloaded_calls} / ${t.calls}`, "calls offloaded", t.calls ? t.offloaded_calls / t.calls : 0);
figure(percent(share), `of ${quantity(t.flops)}FLOP offloaded`, share);
figure(String(t.regions), t.regions === 1 ? "region" : "regions");
if (t.reorders !== null) figure(String(t.reorders), t.reorders === 1 ? "reorder" : "reorders");
theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
if (timing) figure(ms(timing.total_seconds), "per call");
for (const [value, words] of Object.entries(SECOND_LINES)) if (value !== "time" || timing)
  if (value !== "node" || calls.some(c => c.onnx_node)) $("below").append(el("option", { value }, words));
$("below").hidden = $("below").length < 2;
for (const [value, words] of [["region", "colour: region"], ["operator", "colour: operator"], ["load", timing ? "colour: time" : "colour: FLOP"]])
  $("colour").append(el("option", { value }, words));
$("views").hidden = !timing;
$("repeats").hidden = !drawings.repeats.repeats.length;
build("calls"); readable(); show("summary");
if (drawings.repeats.repeats.length && calls.length > MANY) fold($("repeats"), "repeats");
if (!obey() && timing) look("times");
