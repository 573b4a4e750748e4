"use strict";
// Small multiples with a shared cursor. A series is { at, value, of, bad }: iterations, values (null if not finite), the number of points before thinning, the number of values that are not finite.

const plots = [];
const sync = () => uPlot.sync("iteration");

// The latest value at or before row `i`; without `i`, the last value.
function valueAt(ys, i) {
  for (let k = i ?? ys.length - 1; k >= 0; k--) if (ys[k] !== undefined) return ys[k];
  return null;
}

// All series of `spec` that any run has, with labels and colours. Colours differ by series for one run, by run for several.
function seriesOf(spec, runs) {
  const many = runs.length > 1;
  const lines = [];
  Object.entries(spec.metric_labels).forEach(([name, label], s) => runs.forEach((run, r) => {
    const series = run.series.get(name);
    if (!series) return;
    const band = spec.interval_metrics?.[name]?.map((edge) => run.series.get(edge));
    lines.push({ ...series, name, run, label, band: band?.every(Boolean) && (!many || s === 0) ? band : null, colour: (many ? r : s) % 8, dash: many ? Math.min(s, 3) : 0 });
  }));
  return lines;
}

// A metric's name, meaning and direction, for tooltips.
function meaning(name) {
  const metric = DATA.metrics[name];
  return visible(metric ? `${name}: ${metric.meaning}${metric.better ? ` (${metric.better} is better)` : ""}` : name);
}

// One figure: a caption with the values at the cursor, the plot, and a table.
function figure(spec, runs, pick) {
  const lines = seriesOf(spec, runs);
  if (!lines.length) return null;
  const outs = lines.map((line) => el("output", { "data-series": line.name, "data-run": line.run.name, "data-value": exact(valueAt(line.value)) }, short(valueAt(line.value))));
  const mark = (line) => el("i", { class: `k${line.colour} d${line.dash}` });
  const keys = runs.length > 1
    ? [...new Set(lines.map((line) => line.name))].map((name) => el("span", { title: meaning(name) }, lines.find((line) => line.name === name).label, lines.map((line, i) => (line.name === name ? el("span", { class: "pair", title: visible(line.run.name) }, mark(line), outs[i]) : null))))
    : lines.map((line, i) => el("span", { title: meaning(line.name) }, mark(line), line.label, outs[i]));
  const holder = el("div", { class: "plot", role: "img", "aria-label": `${spec.title}, a curve over iterations; the table below has the values` });
  const notes = [];
  const hint = spec.subtitle || (!spec.stack && lines.some(dense) ? "bold: running mean" : "");
  for (const [flag, note] of Object.entries(spec.flag_notes ?? {})) if (runs.some((run) => run.flags.includes(flag))) notes.push(note);
  const bad = lines.reduce((sum, line) => sum + line.bad, 0);
  if (bad) notes.push(`${bad} ${bad === 1 ? "value was" : "values were"} not finite.`);
  const thinned = lines.find((line) => line.at.length < line.of);
  if (thinned) notes.push(`The plot shows the lowest and the highest value of each bucket: ${thinned.at.length.toLocaleString("en")} of ${thinned.of.toLocaleString("en")} points.`);
  const numbers = () => {
    const [at, ...columns] = uPlot.join(lines.map((line) => [line.at, line.value]));
    return { head: ["iteration", ...lines.map((line) => (runs.length > 1 ? `${line.run.name} ${line.name}` : line.name))], rows: at.map((x, i) => [x, ...columns.map((c) => exact(c[i]))]) };
  };
  const node = el("figure", { class: spec.spans_two_columns ? "chart wide" : "chart" },
    el("figcaption", {}, spec.question ? el("div", { class: "question" }, spec.question) : null, el("b", {}, spec.title), hint ? el("span", { class: "hint" }, hint) : null, el("div", { class: "keys" }, keys)),
    holder, notes.map((note) => el("p", { class: "byrule" }, note)), folded("Table", spec.title, numbers));
  plots.push({ spec, lines, outs, holder, runs, pick, chart: null });
  return node;
}

// A running mean over a fiftieth of the points, for dense series.
function trend(line) {
  const half = Math.floor(line.value.length / 100);
  const sums = [0], counts = [0];
  for (const v of line.value) { sums.push(sums.at(-1) + (v ?? 0)); counts.push(counts.at(-1) + (v === null ? 0 : 1)); }
  return line.value.map((_, i) => {
    const a = Math.max(0, i - half), b = Math.min(line.value.length, i + half + 1);
    return counts[b] > counts[a] ? (sums[b] - sums[a]) / (counts[b] - counts[a]) : null;
  });
}
const dense = (line) => line.at.length > 400 && line.at.length === line.of;

// The columns for uPlot: all lines on one axis of iterations over the whole run. A missing value is undefined, a value that is not finite is null.
function columns(plot) {
  const { spec, lines, runs } = plot;
  const last = Math.max(1, ...runs.map((run) => run.last));
  const tables = lines.map((line) => [line.at, line.value]);
  const bands = lines.filter((line) => line.band);
  for (const line of bands) for (const edge of line.band) tables.push([edge.at, edge.value]);
  const trends = spec.stack ? [] : lines.filter(dense);
  for (const line of trends) tables.push([line.at, trend(line)]);
  const joined = uPlot.join([...tables, [[0, last], [undefined, undefined]]]).slice(0, -1);
  if (!spec.stack) return { data: joined, shown: joined.slice(1), bands, trends };
  const shown = joined.slice(1);
  const sums = joined[0].map(() => 0);
  const stacked = shown.map((ys) => ys.map((y, i) => (y === undefined || y === null ? y : (sums[i] += y))));
  return { data: [joined[0], ...stacked], shown, bands, trends };
}

function draw(plot, width, height) {
  const { spec, lines, outs, holder, pick } = plot;
  const { data, shown, bands, trends } = columns(plot);
  const read = (i) => outs.forEach((out, k) => {
    const value = valueAt(shown[k], i);
    out.value = short(value);
    out.dataset.value = exact(value);
  });
  const all = shown.flatMap((ys) => ys.filter((y) => y !== null && y !== undefined));
  const [min, max] = all.reduce(([a, b], y) => [y < a ? y : a, y > b ? y : b], [Infinity, -Infinity]);
  const log = spec.allows_log_axis && min > 0 && max / min > 200;
  const pad = { pad: 0.08, soft: 0, mode: 3 };
  const axis = { stroke: css("--faint"), font: `11px ${css("--text")}`, ticks: { show: false }, border: { show: false } };
  const grid = { stroke: css("--grid"), width: 1 };
  const strokes = lines.map((line) => css(`--c${line.colour}`));
  const series = lines.map((line, k) => ({
    label: line.label, stroke: trends.includes(line) ? strokes[k] + "40" : strokes[k], width: trends.includes(line) ? 1 : 1.8, dash: [[], [7, 4], [2, 3], [9, 3, 2, 3]][line.dash], fill: spec.stack ? strokes[k] + "cc" : undefined,
    points: { show: line.at.length <= 24 && !spec.stack, size: 5, fill: strokes[k] },
  }));
  for (let i = 0; i < 2 * bands.length; i++) series.push({ label: "edge", stroke: "transparent", width: 0, points: { show: false } });
  for (const line of trends) series.push({ label: `${line.label}, mean`, stroke: strokes[lines.indexOf(line)], width: 1.8, points: { show: false } });
  const options = {
    width: Math.max(200, width), height: Math.max(120, height), legend: { show: false }, padding: [8, 10, 0, 0],
    cursor: { sync: { key: "iteration", scales: ["x", null], setSeries: false }, points: { size: 7, width: 1.5 }, y: false, drag: { x: true, y: false } },
    scales: {
      x: { time: false },
      y: spec.axis_range ? { range: spec.axis_range } : log ? { distr: 3 } : { range: (u, a, b) => (!a && !b ? [0, 1] : spec.stack ? [0, b * 1.06] : uPlot.rangeNum(a, b, { min: pad, max: pad })) },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 24, space: 48, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6] },
      { ...axis, grid, size: (u, labels) => Math.max(48, 12 + 6.5 * Math.max(0, ...(labels ?? []).map((label) => label.length))), space: 30, values: (u, ticks) => tickLabels(ticks) },
    ],
    series: [{}, ...series],
    bands: bands.map((line, i) => ({ series: [lines.length + 2 * i + 2, lines.length + 2 * i + 1], fill: strokes[lines.indexOf(line)] + "22" })),
    hooks: {
      setCursor: [(u) => {
        const i = u.cursor.left >= 0 ? u.cursor.idx : null;
        read(i);
        document.getElementById("here").value = i === null || i === undefined ? "" : `iteration ${u.data[0][i]}`;
      }],
      draw: [(u) => {
        if (plot.marked === undefined || plot.marked === null) return;
        const x = Math.round(u.valToPos(plot.marked, "x", true));
        if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) return;
        u.ctx.save();
        u.ctx.strokeStyle = css("--c1");
        u.ctx.globalAlpha = 0.75;
        u.ctx.lineWidth = devicePixelRatio;
        u.ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
        u.ctx.beginPath();
        u.ctx.moveTo(x, u.bbox.top);
        u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
        u.ctx.stroke();
        u.ctx.restore();
      }],
    },
  };
  if (spec.stack) { options.series = [{}, ...series.slice().reverse()]; data.splice(1, data.length - 1, ...data.slice(1).reverse()); }
  plot.chart = new uPlot(options, data, holder);
  plot.chart.over.addEventListener("click", () => { if (plot.chart.cursor.idx !== null) pick(plot.chart.data[0][plot.chart.cursor.idx]); });
  read(null);
}

// Redraws all plots. All are removed first, so that each gets the height of its row.
function drawAll() {
  for (const plot of plots) plot.chart?.destroy();
  const sizes = plots.map(({ holder }) => [holder.clientWidth, holder.clientHeight]);
  plots.forEach((plot, i) => draw(plot, ...sizes[i]));
}

// Draws a dashed line in every plot at the iteration of the shown rollouts.
function markAll(iteration) {
  for (const plot of plots) if (plot.marked !== iteration) { plot.marked = iteration; plot.chart?.redraw(false, false); }
}

// The metrics that a chart shows, as lines or as ends of an interval.
const chartedNames = () => new Set(DATA.charts.flatMap((chart) => [...Object.keys(chart.metric_labels), ...Object.values(chart.interval_metrics).flat()]));

// A chart of its own for each metric without one.
function singles(names) {
  const charted = chartedNames();
  return [...new Set(names)].filter((name) => !charted.has(name) && !DATA.uncharted.includes(name)).sort().map((name) => ({ title: name, metric_labels: { [name]: "value" } }));
}

// Whether a curve keeps one value over several iterations, up to the rounding of single precision.
const isConstant = ({ value }) => value.length > 1 && value.every((v) => v !== null && Math.abs(v - value[0]) <= 1e-6 * Math.abs(value[0]));

// Whether a chart would show constants only, and has no note to them. The leading charts stay: there a constant is news.
function isFlat(spec, runs) {
  const lines = seriesOf(spec, runs);
  const noted = Object.keys(spec.flag_notes ?? {}).some((flag) => runs.some((run) => run.flags.includes(flag)));
  return lines.length > 0 && !spec.spans_two_columns && !noted && lines.every(isConstant);
}

// One line for each metric without a chart, since it keeps its value in each run.
function constants(specs, runs) {
  const lines = specs.flatMap((spec) => seriesOf(spec, runs));
  if (!lines.length) return null;
  const names = [...new Set(lines.map((line) => line.name))].sort();
  const values = (name) => lines.filter((line) => line.name === name).map((line) => el("output", { "data-series": name, "data-run": line.run.name, "data-value": exact(valueAt(line.value)), title: visible(line.run.name) }, short(valueAt(line.value))));
  return el("div", { class: "constants" }, el("b", {}, "Without change"), names.map((name) => el("span", { title: meaning(name) }, name, values(name))));
}

// The section of curves: charts under their question, then all other metrics. Charts of speed are in another section.
function curves(runs, pick) {
  const section = el("section", { id: "curves" }, el("header", {}, el("h2", {}, "Curves"), el("span", { class: "note" }, "Click to see an iteration's rollouts. Drag to zoom, double click to reset.")));
  const others = singles(runs.flatMap((run) => run.metricNames)).map((spec) => ({ ...spec, question: "Also measured" }));
  const specs = [...DATA.charts.filter((chart) => chart.question !== DATA.speed), ...others];
  const figures = specs.filter((spec) => !isFlat(spec, runs)).map((spec) => figure(spec, runs, pick));
  section.append(el("div", { class: "charts" }, figures.filter(Boolean)));
  section.append(...[constants(specs.filter((spec) => isFlat(spec, runs)), runs)].filter(Boolean));
  return section;
}
