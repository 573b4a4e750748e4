"use strict";
// Builds the page from the JSON in #data.

let DATA = JSON.parse(document.getElementById("data").textContent);

// Unpacks the curves of a run: `series` maps a name to its curve, for metrics and timings.
function openRun(run) {
  const series = new Map();
  for (const [name, x, values, of, bad] of [...run.timings, ...run.metrics]) {
    series.set(name, { at: ascend(DATA.xs[x]), value: unpack(values).map((v) => (Number.isNaN(v) ? null : v)), of, bad });
  }
  return { ...run, series, metricNames: run.metrics.map(([name]) => name) };
}

const lastOf = (run, name) => { const s = run.series.get(name); return s ? valueAt(s.value) : null; };
const firstOf = (run, name) => run.series.get(name)?.value.find((v) => v !== null) ?? null;
const sumOf = (run, name) => run.series.get(name)?.value.reduce((a, b) => a + (b ?? 0), 0) ?? null;
const median = (values) => { const v = values.filter((x) => x !== null).sort((a, b) => a - b); return v.length ? v[v.length >> 1] : null; };

// The values of a tile, by its kind.
const SHOW = {
  change: (run, name) => [firstOf(run, name), lastOf(run, name)],
  sum: (run, name) => [sumOf(run, name)],
  duration: (run, name) => [run.series.has(name) ? duration(sumOf(run, name)) : null],
  median: (run, name) => [run.series.has(name) ? median(run.series.get(name).value) : null],
  iterations: (run) => [run.last],
};

function facts(runs) {
  const box = document.getElementById("facts");
  const methods = new Map();
  for (const run of runs) { const text = JSON.stringify(run.method); methods.set(text, [...(methods.get(text) ?? []), run]); }
  for (const [text, same] of methods) {
    const { name, formula, reference, changed, ...others } = JSON.parse(text);
    if (!name && !formula) continue;
    const label = methods.size > 1 ? `${same.map((run) => run.name).join(", ")}: ` : "";
    box.append(el("div", { class: "method" }, el("b", {}, label + (name ?? "")), formula ? el("div", { class: "formula" }, formula.split("\n").map((line) => el("div", {}, line))) : null,
      reference ? el("div", { class: "note" }, reference) : null, preset(name, changed), Object.keys(others).length ? el("div", { class: "note" }, Object.entries(others).map(([k, v]) => `${k} ${typeof v === "object" ? JSON.stringify(v) : v}`).join(" · ")) : null));
  }
  const summary = (run) => DATA.tiles.map(({ title, metric_choices, shown_statistic }) => [title, ...SHOW[shown_statistic](run, metric_choices.find((name) => run.series.has(name)))]).filter(([, ...values]) => values.every((v) => v !== null && v !== undefined));
  if (runs.length > 1) {
    const cells = runs.map((run) => new Map(summary(run).map(([word, ...values]) => [word, values.map((v) => (typeof v === "number" ? round(v) : v)).join(" → ")])));
    const words = [...new Set(cells.flatMap((c) => [...c.keys()]))];
    box.append(sheet(["run", ...words], runs.map((run, r) => [el("span", {}, el("i", { class: `swatch b${r % 8}` }), run.name), ...words.map((word) => cells[r].get(word) ?? "–")])));
    return;
  }
  box.append(el("div", { class: "tiles" }, summary(runs[0]).map(([word, ...values], i) => el("div", { class: values.length > 1 && i === 0 ? "tile main" : "tile" }, el("small", {}, word),
    el("b", {}, values.length > 1 ? [el("i", {}, `${round(values[0])} → `), el("span", {}, round(values[1]))] : typeof values[0] === "number" ? round(values[0]) : values[0])))));
}

// The recipe's changes to the published method, one per line.
const preset = (name, changed) => !Array.isArray(changed) ? null : !changed.length ? el("div", { class: "note" }, "as published, without changes")
  : el("div", { class: "note changed" }, `changed from ${name}`, el("ul", {}, changed.map((line) => el("li", {}, String(line)))));

const round = (x) => (Math.abs(x) >= 1e6 ? `${(x / 1e6).toFixed(2)} M` : Math.abs(x) >= 100 ? Math.round(x).toLocaleString("en") : Number.isInteger(x) ? String(x) : x.toPrecision(3));

// Links the warnings to their iterations, and lists the rules and the notes on unreadable data.
function warnings(runs, jump) {
  for (const link of document.querySelectorAll("#warnings a")) link.addEventListener("click", (e) => { e.preventDefault(); jump(Number(link.dataset.iteration)); });
  const rules = Object.entries(DATA.rules);
  const absent = rules.filter(([key]) => runs.every((run) => run.unchecked.includes(key)));
  const quiet = runs.every((run) => !run.warnings.length);
  const done = rules.length - absent.length;
  document.getElementById("checked").append(el("details", {}, el("summary", {}, `${quiet ? "No warning. " : ""}${done} of ${rules.length} rules checked`),
    el("ul", { class: "note" }, rules.map(([key, description]) => el("li", {}, `${description}${absent.some(([k]) => k === key) ? " (not checked: the run has no such metric)" : ""}`)))));
  for (const run of runs) for (const note of run.notes) document.getElementById("checked").append(el("p", { class: "note" }, `${run.name}: ${note}`));
}

// The Systems section: seconds by phase, as one bar per run and over iterations; speed and memory.
function systems(runs, pick) {
  const section = el("section", { id: "systems" }, el("header", {}, el("h2", {}, "Systems")));
  const phase = (name) => name.slice(DATA.seconds.length + 1);
  const phases = [...new Set(runs.flatMap((run) => [...run.series.keys()].filter((name) => name.startsWith(`${DATA.seconds}/`))))];
  phases.sort((a, b) => sumOf(runs[0], b) - sumOf(runs[0], a));
  for (const run of runs) {
    const sums = phases.map((name) => sumOf(run, name) ?? 0);
    const timed = sums.reduce((a, b) => a + b, 0);
    const total = Math.max(sumOf(run, DATA.seconds) ?? timed, timed);
    if (!(total > 0)) continue;
    const parts = [...phases.map((name, i) => [phase(name), sums[i], i % 8]), ["other", total - timed, 6]].filter(([, s], i) => i < phases.length || s > total * 1e-3);
    const bar = el("div", { class: "phases", role: "img", "aria-label": "share of time by phase" }, parts.map(([, s, c]) => { const i = el("i", { class: `b${c}` }); i.style.flexGrow = s; return i; }));
    section.append(el("p", { class: "note" }, `${runs.length > 1 ? `${run.name}: ` : ""}${duration(total)} in total`), bar, el("div", { class: "phase-keys" }, parts.map(([word, s, c]) => el("span", {}, el("i", { class: `b${c}` }), `${word} `, el("b", {}, `${((100 * s) / total).toFixed(1)} %`), ` ${duration(s)}`))));
  }
  const byPhase = { title: "Seconds by phase", metric_labels: Object.fromEntries(phases.map((name) => [name, phase(name)])), stack: runs.length === 1, spans_two_columns: true, subtitle: runs.length === 1 ? "stacked" : "" };
  const others = singles(runs.flatMap((run) => run.timings.map(([name]) => name))).filter((spec) => !phases.includes(spec.title));
  const specs = [phases.length ? byPhase : null, ...DATA.charts.filter((chart) => chart.question === DATA.speed), ...others];
  const flat = specs.filter((spec) => spec && isFlat(spec, runs));
  const figures = specs.filter((spec) => spec && !flat.includes(spec)).map((spec) => figure(spec, runs, pick)).filter(Boolean);
  if (figures.length) section.append(el("h3", {}, DATA.speed), el("div", { class: "charts" }, figures), ...[constants(flat, runs)].filter(Boolean));
  return figures.length ? section : null;
}

function recipe(runs) {
  const section = el("section", { id: "recipe" }, el("header", {}, el("h2", {}, "Recipe")));
  if (runs.length > 1) {
    section.append(el("h3", {}, "What differs"), DATA.diff.length ? sheet(["field", ...runs.map((run) => run.name)], DATA.diff.map(([key, values]) => [key, ...values.map((v) => v ?? "–")]), runs.length + 1) : el("p", { class: "note" }, "The recipes are equal."));
  }
  for (const run of runs) {
    if (runs.length > 1) section.append(el("h3", {}, run.name));
    if (run.command) {
      const copy = el("button", { type: "button", onclick: async () => { try { await navigator.clipboard.writeText(run.command); copy.textContent = "Copied"; } catch { getSelection().selectAllChildren(copy.previousSibling); } } }, "Copy");
      section.append(el("p", { class: "note" }, "Command of the run"), el("div", { class: "command" }, el("pre", {}, run.command), copy));
    }
    const about = Object.entries(run.about);
    if (about.length) section.append(el("dl", {}, about.map(([key, value]) => [el("dt", {}, key), el("dd", { class: "mono" }, value)]).flat()));
    if (run.recipe) section.append(el("details", { open: runs.length === 1 }, el("summary", {}, "recipe.toml, every field"), write(el("pre", {}), run.recipe)));
  }
  return section;
}

// Downloads all metrics of all runs as CSV, one row per iteration.
function allNumbers(runs) {
  const lines = runs.flatMap((run) => [...run.series].map(([name, s]) => ({ head: runs.length > 1 ? `${run.name} ${name}` : name, ...s })));
  const [at, ...columns] = uPlot.join(lines.map((line) => [line.at, line.value]));
  download(runs.map((run) => run.name).join("-"), ["iteration", ...lines.map((line) => line.head)], at.map((x, i) => [x, ...columns.map((c) => exact(c[i]))]));
}

function theme(repaint) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("groupwise-theme"); } catch { /* some browsers forbid storage for files */ }
  const button = el("button", { type: "button", id: "theme" });
  const apply = () => {
    const now = chosen ?? (system.matches ? "dark" : "light");
    document.documentElement.dataset.theme = now;
    button.textContent = now === "dark" ? "☀ Light" : "☾ Dark";
    repaint();
  };
  button.addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("groupwise-theme", chosen); } catch { /* as above */ }
    apply();
  });
  system.addEventListener("change", apply);
  return { button, apply };
}

function navigation(sections) {
  const nav = document.getElementById("nav");
  const links = sections.map((section) => el("a", { href: `#${section.id}` }, section.querySelector("h2").textContent));
  nav.replaceChildren(...links, el("span", { class: "grow" }), el("output", { id: "here" }));
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) links.forEach((link, i) => (sections[i] === entry.target ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
  }, { rootMargin: "-20% 0px -70% 0px" });
  sections.forEach((section) => observer.observe(section));
  return observer;
}

function keys() {
  const turns = { n: [1, false], p: [-1, false], j: [1, true], k: [-1, true] };
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest?.("input, select, textarea")) return;
    const { inspector } = view;
    if (e.key === "Escape") tip("");
    if (e.key === "c") inspector.colours?.querySelector('[aria-pressed="true"] + button[data-field], button[data-field]')?.click();
    if (!(e.key in turns)) return;
    inspector.turn(...turns[e.key]);
    const { top, bottom } = inspector.node.getBoundingClientRect();
    if (top > innerHeight * 0.7 || bottom < innerHeight * 0.3) inspector.node.scrollIntoView();
  });
}

// The runs and sections on the page. The live page builds them again from newer data.
let view;

// Fills the page from DATA.
function build() {
  const runs = DATA.runs.map(openRun);
  document.querySelectorAll("#names .name").forEach((node, i) => { if (runs.length > 1) node.prepend(el("i", { class: `swatch b${i % 8}` })); });
  const inspector = new Inspector(runs, markAll);
  const jump = (iteration, run) => {
    const at = runs.indexOf(run);
    if (at >= 0 && at !== inspector.run) { inspector.run = at; inspector.at = 0; }
    inspector.jump(iteration);
  };
  facts(runs);
  warnings(runs, jump);
  const map = prompts(runs, jump);
  const sections = [curves(runs, jump), beforeAndAfter(runs), inspector.node, map?.section, systems(runs, jump), recipe(runs)].filter(Boolean);
  document.getElementById("app").replaceChildren(...sections);
  view = { runs, inspector, map, observer: navigation(sections) };
}

function start() {
  build();
  document.querySelector("#summary details").open = false;
  keys();
  const look = theme(() => { drawAll(); view.map?.paint(); });
  document.getElementById("tools").append(el("button", { type: "button", onclick: () => allNumbers(view.runs) }, "CSV"), " ", look.button);
  look.apply();
  markAll(view.inspector.group?.iteration);
  let width = innerWidth, wait;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; clearTimeout(wait); wait = setTimeout(look.apply, 120); } });
  addEventListener("scroll", () => tip(""), { passive: true });
  setTimeout(() => { document.documentElement.dataset.ready = "yes"; });
}

start();
