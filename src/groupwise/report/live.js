"use strict";
// The live page of `groupwise watch`: asks its server for new iterations and draws the page again.

const PERIOD = 1500; // milliseconds between two requests
const state = el("output", { id: "live" });
let paused = false;

// What the reader has chosen: open boxes, zoomed plots, the shown group. Its names outlive the nodes.
function boxes() {
  const count = {};
  return [...document.querySelectorAll("#app details, #checked details")].map((box) => {
    const name = [box.closest("[id]")?.id, box.closest("figure")?.querySelector("b")?.textContent, box.firstChild.textContent].join("/");
    count[name] = (count[name] ?? 0) + 1;
    return [`${name}/${count[name]}`, box];
  });
}

const zoomed = ({ chart }) => chart && chart.data[0].length && (chart.scales.x.min > chart.data[0][0] || chart.scales.x.max < chart.data[0].at(-1));

function choices() {
  const { inspector } = view;
  const last = inspector.iterations.at(-1);
  return {
    open: new Map(boxes().map(([name, box]) => [name, box.open])),
    zooms: new Map(plots.filter(zoomed).map(({ spec, chart }) => [spec.title, { min: chart.scales.x.min, max: chart.scales.x.max }])),
    field: inspector.field,
    number: inspector.number,
    run: inspector.runs[inspector.run]?.name,
    group: inspector.group?.iteration === last ? null : inspector.group,
    top: scrollY,
  };
}

function restore({ open, zooms, field, number, run, group, top }) {
  for (const [name, box] of boxes()) if (open.has(name)) box.open = open.get(name);
  for (const { spec, chart } of plots) if (zooms.has(spec.title)) chart.setScale("x", zooms.get(spec.title));
  const { inspector } = view;
  inspector.field = field;
  inspector.number = number;
  inspector.run = Math.max(0, inspector.runs.findIndex((other) => other.name === run));
  const near = group ? inspector.iterations.reduce((a, b) => (Math.abs(b - group.iteration) < Math.abs(a - group.iteration) ? b : a), Infinity) : inspector.iterations.at(-1);
  const same = group ? inspector.groups.findIndex((g) => g.iteration === group.iteration && g.draw === group.draw && g.group === group.group) : -1;
  inspector.at = Math.max(0, same >= 0 ? same : inspector.groups.findIndex((g) => g.iteration === near));
  inspector.render();
  markAll(inspector.group?.iteration);
  scrollTo(0, top);
}

// The head of the page: names, headlines and warnings, as report.py writes them.
function head() {
  const many = DATA.runs.length > 1;
  document.getElementById("names").replaceChildren(...DATA.runs.map((run) => el("span", { class: "name" }, run.name)));
  document.getElementById("headlines").replaceChildren(...DATA.runs.map((run) => el("p", { class: "headline" }, run.headline)));
  document.getElementById("warnings").replaceChildren(...DATA.runs.flatMap((run) => run.warnings.map(({ text, iteration }) => el("li", {}, many ? el("b", {}, run.name) : null, many ? " " : "", text, " ", el("a", { href: "#curves", "data-iteration": iteration }, `iteration ${iteration}`)))));
  for (const id of ["facts", "checked"]) document.getElementById(id).replaceChildren();
}

// The table of every metric, from curves whose extremes survive thinning.
function totals() {
  const box = document.querySelector("#summary details");
  const ends = (values) => [values[0], values.at(-1), values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
  box.replaceChildren(box.firstElementChild, ...view.runs.map((run) => {
    const rows = [...run.series].map(([name, { value }]) => [name, value.filter((v) => v !== null)]).filter(([, values]) => values.length).sort(([a], [b]) => (a < b ? -1 : 1));
    return el("div", {}, el("h3", {}, run.name), sheet(["metric", "first", "last", "lowest", "highest"], rows.map(([name, values]) => [name, ...ends(values).map(short)])));
  }));
}

function redraw(data) {
  const chosen = choices();
  DATA = data;
  for (const plot of plots) plot.chart?.destroy();
  plots.length = 0;
  view.observer.disconnect();
  tip("");
  head();
  build();
  totals();
  drawAll();
  view.map?.paint();
  restore(chosen);
}

const showState = (text) => { state.value = text; state.dataset.iteration = Math.max(0, ...DATA.runs.map((run) => run.last)); };
const now = () => `live, iteration ${Math.max(0, ...DATA.runs.map((run) => run.last))}`;

async function poll() {
  let data = null;
  if (!paused && !document.hidden) {
    try {
      const answer = await fetch(`changes?since=${DATA.version}`, { cache: "no-store", credentials: "omit", redirect: "error" });
      if (!answer.ok) throw new Error(answer.status);
      data = await answer.json();
    } catch {
      showState("no connection to groupwise watch");
    }
  }
  setTimeout(poll, PERIOD);
  if (!data) return;
  if (data.runs && !paused) redraw(data); // outside of the try: an error here is no lost connection
  showState(now());
}

const pause = el("button", { type: "button", "aria-pressed": false, onclick: () => {
  paused = !paused;
  pause.setAttribute("aria-pressed", paused);
  pause.textContent = paused ? "Continue" : "Pause";
  showState(paused ? "paused" : now());
} }, "Pause");
document.getElementById("tools").prepend(state, " ", pause, " ");
showState(now());
setTimeout(poll, PERIOD);
