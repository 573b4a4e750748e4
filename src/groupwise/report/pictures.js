"use strict";
// Pictures of samples: one per answer, trajectories of points in the plane, and prompts before and after training.

const REACH = 3.5; // the largest coordinate of the plane, as in models/flow/latent_pictures.py
const SECONDS = 2.5; // of an animation from the noise to the last state
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(key, String(value));
  node.append(...children);
  return node;
}

const isPicture = (uri) => uri?.startsWith("data:image/png;base64,");
const leaning = (sample) => (sample.advantage > 0 ? "pos" : sample.advantage < 0 ? "neg" : "even");
const described = (sample, i) => `answer ${i + 1}, ${sample.outcome ?? "no verdict"}${typeof sample.advantage === "number" ? `, advantage ${signed(sample.advantage)}` : ""}`;

// The picture of an answer, if its policy makes pictures.
function picture(sample, i) {
  return isPicture(sample.picture) ? el("img", { class: "picture", src: sample.picture, alt: `picture of ${described(sample, i)}` }) : null;
}

// The pictures of a prompt, if it has some.
function asked(group) {
  const pictures = (group.prompt_pictures ?? []).filter(isPicture);
  return pictures.length ? el("div", { class: "asked" }, pictures.map((src, i) => el("img", { src, alt: `picture ${i + 1} of the prompt` }))) : null;
}

// The state of a trajectory at a time between two steps.
function stateAt(points, time) {
  const k = Math.min(Math.floor(time), points.length - 1), share = time - k;
  return share ? points[k].map((x, axis) => x + share * (points[k + 1][axis] - x)) : points[k];
}

const at = ([x, y]) => `${x.toFixed(3)},${(-y).toFixed(3)}`;

// The plane with the trajectories of some answers. `draw(time)` draws them up to a step; `pick(i)` is called for a click.
function plane(samples, pick = null) {
  const names = samples.map((sample, i) => [sample, i]).filter(([sample]) => sample.points);
  const lines = names.map(([sample, i]) => svg("g", { class: `path ${leaning(sample)}`, "data-i": i }, svg("title", {}, described(sample, i)), svg("polyline"), svg("circle", { r: 0.09 })));
  const view = `${-REACH} ${-REACH} ${2 * REACH} ${2 * REACH}`;
  const node = svg("svg", { class: "plane", viewBox: view, role: "img", "aria-label": `the plane, with the trajectories of ${names.length} answers` },
    svg("path", { class: "axes", d: `M${-REACH} 0H${REACH}M0 ${-REACH}V${REACH}` }), ...lines);
  if (pick) for (const line of lines) line.addEventListener("click", () => pick(Number(line.dataset.i)));
  const draw = (time) => names.forEach(([{ points }], k) => {
    const last = Math.min(time, points.length - 1), tip = stateAt(points, last);
    lines[k].children[1].setAttribute("points", [...points.slice(0, Math.floor(last) + 1), tip].map(at).join(" "));
    lines[k].children[2].setAttribute("cx", tip[0].toFixed(3));
    lines[k].children[2].setAttribute("cy", (-tip[1]).toFixed(3));
  });
  const steps = Math.max(0, ...names.map(([{ points }]) => points.length - 1));
  draw(steps);
  return { node, draw, steps };
}

// The controls of an animation over steps: a button that plays and pauses, and a slider that arrow keys move.
// It plays only when asked, and with reduced motion from step to step.
function player(draw, steps) {
  const slider = el("input", { type: "range", min: 0, max: steps, step: "any", value: steps, "aria-label": "step of the trajectories" });
  const caption = el("output", {}), button = el("button", { type: "button", class: "play" });
  let playing = false;
  const show = (time) => {
    slider.value = time;
    draw(time);
    caption.textContent = `step ${Math.floor(time)} of ${steps}`;
    slider.setAttribute("aria-valuetext", caption.textContent);
  };
  const press = (on) => {
    playing = on;
    button.textContent = on ? "Pause" : "Play";
  };
  const run = (from, start = null) => requestAnimationFrame((now) => {
    if (!playing || !button.isConnected) return;
    start ??= now;
    const time = Math.min(steps, from + ((now - start) / (1000 * SECONDS)) * steps);
    show(reducedMotion.matches ? Math.floor(time) : time);
    if (time < steps) run(from, start);
    else press(false);
  });
  button.addEventListener("click", () => {
    press(!playing);
    const time = Number(slider.value);
    if (playing) run(time < steps ? time : 0);
  });
  slider.addEventListener("input", () => { press(false); show(Number(slider.value)); });
  slider.addEventListener("keydown", (e) => {
    const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[e.key];
    if (!by) return;
    e.preventDefault();
    press(false);
    show(Math.min(Math.max((by > 0 ? Math.floor : Math.ceil)(Number(slider.value)) + by, 0), steps));
  });
  press(false);
  show(steps);
  return el("div", { class: "player row" }, button, slider, caption);
}

// The trajectories of a group in one plane, from the noise to the last state; null without points.
function trajectories(group, pick) {
  const { node, draw, steps } = plane(group.samples, pick);
  if (!steps) return null;
  return el("figure", { class: "trajectories" }, node, el("figcaption", {},
    el("p", { class: "note" }, "The group in the plane, from the noise to the last state. Solid lines have a positive advantage, dotted ones a negative one."), player(draw, steps)));
}

// One side of a prompt: its iteration, how many answers were right, and their pictures or the plane.
function pictured({ iteration, of, right, judged, reward, samples }) {
  const share = judged ? `${right} of ${of} right` : reward === null ? `${of} answers` : `mean reward ${short(reward)}`;
  const { node, steps } = plane(samples);
  return el("div", { class: "side" }, el("p", { class: "note" }, el("b", {}, `iteration ${iteration}`), ` ${share}`),
    steps ? node : el("div", { class: "thumbs" }, samples.map((sample, i) => el("span", { class: `thumb ${sample.outcome in GLYPH ? sample.outcome : ""}` }, picture(sample, i), el("i", { "aria-hidden": "true" }, GLYPH[sample.outcome] ?? "")))));
}

// The section of prompts whose first and last samples stand side by side; null if no run has any.
function beforeAndAfter(runs) {
  const shown = runs.filter((run) => run.pairs.length);
  if (!shown.length) return null;
  const section = el("section", { id: "before" }, el("header", {}, el("h2", {}, "Before and after"), el("span", { class: "note" }, "The same prompt in the first and in the last iteration that sampled it. The prompts with the most iterations between them are shown.")));
  for (const run of shown) {
    if (runs.length > 1) section.append(el("h3", {}, run.name));
    section.append(el("div", { class: "pairs" }, run.pairs.map(({ prompt, sides }) => el("article", { class: "pair-of-sides" }, write(el("div", { class: "text" }), prompt), el("div", { class: "sides" }, sides.map(pictured))))));
  }
  return section;
}
