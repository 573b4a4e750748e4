"use strict";
// The inspector: the answers of one group side by side, with tokens coloured by a metric.

const FIELDS = {
  advantage: { word: "advantage", of: (s, i) => s.token_advantage?.[i], floor: 1e-6, show: signed },
  ratio: { word: "ratio", of: (s, i) => s.ratio?.[i], map: (r) => Math.log(r), floor: 0.01, show: (v) => short(Math.exp(v)) },
  logp: { word: "log-prob", of: (s, i) => s.logp?.[i], floor: 1, oneSided: true, show: signed },
  gap: { word: "engine gap", of: (s, i) => (s.logp && s.logp_engine ? s.logp[i] - s.logp_engine[i] : undefined), floor: 1e-5, show: signed },
};
const OTHERS = { "-1": "from the environment", "-2": "from the template", "-3": "from a demonstration" };
const GLYPH = { correct: "✓", wrong: "✗", malformed: "◌", unverifiable: "⚠" };
const number = (x) => (typeof x === "number" && !Number.isNaN(x) ? x : null);

// Unpacks the token columns of an answer, once.
function opened(sample) {
  if (sample.open || !sample.ends) return sample;
  sample.ends = ascend(sample.ends);
  for (const name of ["tokens", "logp_engine", "logp", "ratio", "token_advantage", "origin", "share", "weight", "gradient", "clip"]) if (sample[name] !== undefined) sample[name] = unpack(sample[name]);
  sample.open = true;
  return sample;
}

// How many answers of a group are right, as text. Samples with another role, such as branches of a tree, do not count.
function tallied(samples) {
  const answers = samples.filter((s) => (s.role ?? "answer") === "answer");
  if (!answers.length) return `${samples.length} with the role ${samples[0].role}, no answers`;
  const right = answers.filter((s) => s.outcome === "correct").length;
  const judged = answers.some((s) => ["correct", "wrong", "malformed"].includes(s.outcome));
  return judged ? `${right} of ${answers.length} right` : `${answers.length} answers`;
}

// The largest absolute value of a field over a group. It gets full colour.
function scale(group, field) {
  let top = field.floor;
  for (const s of group.samples) for (let i = 0; i < (s.ends?.length ?? 0); i++) {
    const raw = number(field.of(s, i));
    const v = raw === null ? 0 : Math.abs(field.map ? field.map(raw) : raw);
    if (Number.isFinite(v) && v > top) top = v;
  }
  return top;
}

// The CSS class of a token: p1..p5 above zero, n1..n5 below, `off` without a value.
function shade(raw, field, top) {
  if (raw === null) return "t off";
  const v = field.map ? field.map(raw) : raw;
  const level = Math.min(5, Math.ceil((Math.abs(v) / top) * 5 - 0.5));
  return level ? `t ${v > 0 ? "p" : "n"}${level}` : "t";
}

// The tokens of one answer as spans, or only those from `start` to `end`. Long answers are split into blocks that the browser
// lays out when they become visible.
function tokens(sample, field, top, start = 0, end = Infinity) {
  const body = el("div", { class: "body", tabindex: 0, "aria-label": "tokens; the left and right arrow keys read their values, Enter opens the chain of a token, Escape closes it" });
  if (!sample.ends) return write(body, sample.text);
  const stop = Math.min(end, sample.ends.length), long = stop - start > 3000;
  let block = long ? null : body, free = 0, from = start ? sample.ends[start - 1] : 0;
  for (let i = start; i < stop; i++) {
    const text = sample.text.slice(from, sample.ends[i]);
    if (long && (block === null || free <= 0 && (free < -800 || sample.text[from - 1] === "\n"))) { block = body.appendChild(el("span", { class: "block" })); free = 1200; }
    free--;
    const span = document.createElement("span");
    span.className = shade(number(field.of(sample, i)), field, top);
    if (sample.origin?.[i] in OTHERS) span.classList.add("theirs");
    span.dataset.i = i;
    if (text) write(span, text);
    else span.classList.add(i === stop - 1 && (end < sample.ends.length || sample.finish === "stop") ? "end" : "none");
    block.append(span);
    from = sample.ends[i];
  }
  if (end === Infinity && from < sample.text.length) write(body, sample.text.slice(from));
  return body;
}

// The tooltip of a token: one value per line.
function reading(sample, i) {
  const text = sample.text.slice(i ? sample.ends[i - 1] : 0, sample.ends[i]);
  const lines = [`token ${i + 1} of ${sample.tokens_of}   “${visible(text)}”${sample.tokens ? `   id ${sample.tokens[i]}` : ""}`];
  for (const field of Object.values(FIELDS)) {
    const value = number(field.of(sample, i));
    if (value !== null) lines.push(`${field.word} ${field === FIELDS.ratio ? short(value) : signed(value)}${field === FIELDS.logp ? `   p = ${short(Math.exp(value))}` : ""}`);
  }
  if (sample.origin?.[i] in OTHERS) lines.push(OTHERS[sample.origin[i]]);
  if (sample.token_advantage && number(sample.token_advantage[i]) === null) lines.push("not trained");
  return lines.join("\n");
}

class Inspector {
  constructor(runs, moved) {
    this.runs = runs;
    this.moved = moved;
    this.run = Math.max(0, runs.findIndex((run) => run.rollouts.groups.length));
    this.field = "advantage";
    this.number = "gradient_sum";
    this.node = el("section", { id: "rollouts" });
    this.at = 0;
    const start = this.groups.findIndex((g) => g.iteration === this.iterations.at(-1));
    this.at = Math.max(0, start);
    this.render();
  }

  get groups() { return this.runs[this.run].rollouts.groups; }
  get iterations() { return [...new Set(this.groups.map((g) => g.iteration))]; }
  get group() { return this.groups[this.at]; }

  show(at) {
    if (!this.groups[at]) return;
    this.at = at;
    this.render();
  }

  // Shows the group of the iteration nearest to `iteration`.
  jump(iteration) {
    if (!this.groups.length) return;
    const near = this.iterations.reduce((a, b) => (Math.abs(b - iteration) < Math.abs(a - iteration) ? b : a));
    this.show(this.groups.findIndex((g) => g.iteration === near));
    this.node.scrollIntoView();
  }

  // Moves to the next (+1) or previous (-1) group, or to the same position in the next or previous iteration.
  turn(by, iterations = false) {
    if (!this.groups.length) return;
    if (!iterations) return this.show(Math.min(Math.max(this.at + by, 0), this.groups.length - 1));
    const all = this.iterations;
    const next = all[Math.min(Math.max(all.indexOf(this.group.iteration) + by, 0), all.length - 1)];
    const rank = this.groups.filter((g, i) => g.iteration === this.group.iteration && i < this.at).length;
    const there = this.groups.map((g, i) => [g, i]).filter(([g]) => g.iteration === next);
    this.show(there[Math.min(rank, there.length - 1)][1]);
  }

  render() {
    const { groups, of, iterations, compared } = this.runs[this.run].rollouts;
    const title = el("header", {}, el("h2", {}, "Rollouts"));
    this.node.replaceChildren(title);
    if (this.runs.length > 1) title.append(el("select", { "aria-label": "run", onchange: (e) => { this.run = e.target.selectedIndex; this.at = 0; this.render(); } }, this.runs.map((run, i) => el("option", { selected: i === this.run }, run.name))));
    if (!groups.length) { this.node.append(el("p", { class: "note" }, of ? "The rollouts are too large for this page." : "This run has no samples yet.")); return; }
    title.append(el("span", { class: "note" }, `Showing ${groups.length.toLocaleString("en")} of ${of.toLocaleString("en")} groups, evenly spread over ${this.iterations.length} of ${iterations} iterations${Object.keys(compared).length ? "; those that whatif compared are among them" : ""}.`),
      el("span", { class: "note" }, el("kbd", {}, "n"), " ", el("kbd", {}, "p"), " group  ", el("kbd", {}, "j"), " ", el("kbd", {}, "k"), " iteration  ", el("kbd", {}, "c"), " colour  click a token: its chain"));
    const group = this.group;
    group.samples.forEach(opened);
    this.node.append(this.pickers(group), this.prompt(group));
    this.answers = el("div", { class: `answers${group.samples.some((s) => isPicture(s.picture)) ? " pictures" : ""}` });
    this.compared = el("div", {});
    this.node.append(...[trajectories(group, (i) => this.point(i)), this.answers, this.compared, this.table(group)].filter(Boolean));
    this.paint();
    this.compare();
    this.moved(group.iteration);
    document.getElementById("status").textContent = `iteration ${group.iteration}, group ${this.at + 1} of ${groups.length}`;
    this.node.dataset.iteration = group.iteration;
    this.node.dataset.at = this.at;
  }

  pickers(group) {
    const turns = this.iterations.map((i) => el("button", { type: "button", "aria-pressed": i === group.iteration, onclick: () => this.show(this.groups.findIndex((g) => g.iteration === i)) }, i));
    const siblings = this.groups.map((g, at) => [g, at]).filter(([g]) => g.iteration === group.iteration);
    const chips = siblings.map(([g, at]) => el("button", { type: "button", class: "chip", "aria-pressed": at === this.at, onclick: () => this.show(at) },
      el("span", { class: "text" }, g.prompt), el("span", { class: "dots", "aria-label": tallied(g.samples) }, g.samples.filter((s) => s.role !== "thread").map((s) => el("i", { class: s.outcome in GLYPH ? s.outcome : "" })))));
    this.colours = el("div", { class: "row" });
    return el("div", { class: "pickers" }, el("div", { class: "row" }, el("span", {}, "Iteration"), turns), el("div", { class: "row" }, el("span", {}, "Group"), chips), this.colours);
  }

  prompt(group) {
    const some = group.samples.length < group.of ? ` (showing ${group.samples.length} of its ${group.of} samples)` : "";
    return el("div", { class: "prompt" }, el("div", { class: "note" }, `prompt ${group.prompt_id} · draw ${group.draw} · group ${group.group}${group.gold === null ? "" : ` · gold ${group.gold}`} · ${tallied(group.samples)}${some}`), asked(group), write(el("div", { class: "text" }), group.prompt));
  }

  // Draws the cards in the chosen colours. A change of colours calls it again.
  paint() {
    const group = this.group, field = FIELDS[this.field], top = scale(group, field);
    this.answers.classList.toggle("episodes", group.samples.some((s) => s.requests));
    this.answers.replaceChildren(...group.samples.map((s, i) => (!s.requests ? this.card(s, i, this.body(s, field, top)) : s.role === "thread" ? null : this.card(s, i, episode(group, s, (...range) => this.body(...range), field, top)))).filter(Boolean));
    const level = (n) => `t ${n > 0 ? "p" : "n"}${Math.abs(n)}`;
    const ends = field.oneSided ? [[-5, -4, -3, -2, -1], [-top, 0]] : [[-5, -3, -1, 1, 3, 5], [-top, top]];
    this.colours.replaceChildren(el("span", {}, "Colour"), ...Object.entries(FIELDS).map(([key, f]) => el("button", { type: "button", "data-field": key, "aria-pressed": key === this.field, onclick: () => { this.field = key; this.paint(); } }, f.word)),
      el("span", { class: "legend", role: "img", "aria-label": `from ${field.show(ends[1][0])} to ${field.show(ends[1][1])}; below zero dotted, above zero solid underline` }, field.show(ends[1][0]), ends[0].map((n) => el("span", { class: level(n) }, n > 0 ? "+" : "−")), field.show(ends[1][1])));
  }

  // The card of one answer or episode: its facts, `content`, and notes.
  card(s, i, content) {
    const facts = [el("b", {}, `${GLYPH[s.outcome] ?? "·"} ${s.outcome ?? "no verdict"}`), s.reward === null ? null : `reward ${short(s.reward)}`, s.advantage === null ? null : `advantage ${signed(s.advantage)}`, s.length === null || s.requests ? null : `${s.length.toLocaleString("en")} tokens`, s.finish, ...Object.entries(s.subscores).map(([part, value]) => `${part} ${short(Number(value))}`)];
    const after = [s.cut ? `cut: showing ${(s.ends?.length ?? 0).toLocaleString("en")} of ${(s.tokens_of ?? 0).toLocaleString("en")} tokens` : null, s.ends ? null : "no values per token stored", s.cause ? `cause: ${s.cause}` : null, s.feedback ? `verifier: ${s.feedback}` : null, s.selected ? null : "not selected, not trained", s.dropped ? `group dropped: ${s.dropped}` : null, s.role && s.role !== "answer" ? `role: ${s.role}` : null, s.sampled_from && !s.requests ? `sampled from another prompt: ${s.sampled_from}` : null].filter(Boolean);
    return el("article", { class: `answer ${s.outcome in GLYPH ? s.outcome : ""}${s.selected ? "" : " dropped"}`, id: `answer-${i}` }, el("header", {}, el("span", {}, s.requests ? `Episode ${this.group.samples.slice(0, i + 1).filter((x) => x.role !== "thread").length}` : `#${i + 1}`), facts.filter(Boolean).map((f) => (f instanceof Node ? f : el("span", {}, f)))), picture(s, i), content, after.length ? el("footer", {}, after.map((line) => el("div", {}, line))) : null);
  }

  // The tokens of an answer, or some of them, with the panel for the chain of one.
  body(sample, field, top, start, end) {
    const body = tokens(sample, field, top, start, end);
    const panel = el("section", { class: "chain", "aria-label": "chain of a token", "aria-live": "polite", hidden: true });
    this.listen(body, sample, panel);
    return [body, panel];
  }

  // Draws the comparison of methods, with the chosen number. The focus stays on the button of that number.
  compare() {
    const focused = this.compared.contains(document.activeElement);
    this.compared.replaceChildren(comparison(this.group, this.runs[this.run].rollouts, this.number, (name) => { this.number = name; this.compare(); }, (iteration) => this.show(this.groups.findIndex((g) => g.iteration === iteration))));
    if (focused) this.compared.querySelector(`[data-number="${this.number}"]`)?.focus();
  }

  // Shows the values of a token on hover, on tap and with the arrow keys; its chain on a click and with Enter.
  listen(body, sample, panel) {
    if (!sample.ends) return;
    const { group } = this, { parts } = this.runs[this.run].rollouts;
    const spans = body.querySelectorAll("[data-i]"), [first, last] = [spans[0], spans[spans.length - 1]].map((span) => Number(span?.dataset.i ?? -1));
    let here = first - 1;
    const over = (e) => { const i = e.target.closest?.(".t")?.dataset.i; tip(i === undefined ? "" : reading(sample, Number(i)), e.clientX, e.clientY); };
    const close = () => { panel.hidden = true; body.querySelector(".open")?.classList.remove("open"); };
    const open = (i) => {
      close();
      here = i;
      body.querySelector(`[data-i="${i}"]`).classList.add("open");
      panel.replaceChildren(...chain(group, sample, i, parts));
      panel.hidden = false;
    };
    body.addEventListener("pointermove", over);
    body.addEventListener("click", (e) => {
      over(e);
      const token = e.target.closest?.(".t");
      if (token) open(Number(token.dataset.i));
    });
    body.addEventListener("pointerleave", () => tip(""));
    const move = (by) => {
      body.querySelector(".at")?.classList.remove("at");
      here = Math.min(Math.max(here + by, first), last);
      const span = body.querySelector(`[data-i="${here}"]`);
      span.classList.add("at");
      const box = span.getBoundingClientRect();
      tip(reading(sample, here), box.left, box.bottom);
      document.getElementById("status").textContent = reading(sample, here);
      if (!panel.hidden) open(here);
    };
    const keys = { ArrowRight: () => move(1), ArrowLeft: () => move(-1), Enter: () => open(Math.max(here, first)), Escape: close };
    body.addEventListener("keydown", (e) => {
      if (!(e.key in keys) || first < 0) return;
      e.preventDefault();
      keys[e.key]();
    });
    body.addEventListener("blur", () => { tip(""); body.querySelector(".at")?.classList.remove("at"); });
  }

  table(group) {
    const top = Math.max(1e-9, ...group.samples.map((s) => Math.abs(s.advantage ?? 0)));
    const lean = (a) => { const bar = el("i", { class: a > 0 ? "pos" : "neg" }); bar.style.width = `${(Math.abs(a) / top) * 50}%`; return el("span", { class: "lean", "aria-hidden": "true" }, bar); };
    const head = ["answer", "outcome", "finish", "reward", "advantage", "length", "selected"];
    const row = (s, i) => [`#${i + 1}${s.role === "thread" ? " thread" : ""}`, s.outcome, s.finish, exact(s.reward), exact(s.advantage), exact(s.length), s.selected ? "yes" : "no"];
    const box = sheet(head, [], 3);
    box.querySelector("tbody").append(...group.samples.map((s, i) => el("tr", { class: "pick", onclick: () => this.point(i) }, row(s, i).map((value, k) => el(k ? "td" : "th", { class: k < 3 ? "word" : null, scope: k ? null : "row", title: k === 4 ? value : null, "data-value": k === 4 ? value : null },
      k === 1 ? `${GLYPH[s.outcome] ?? ""} ${value ?? ""}` : k === 4 && s.advantage !== null ? [signed(s.advantage), lean(s.advantage)] : value ?? "")))));
    return el("div", {}, el("h3", {}, "The group as numbers"), box, el("button", { type: "button", onclick: () => download(`group-${group.iteration}`, head, group.samples.map(row)) }, "CSV"));
  }

  point(i) {
    const card = document.getElementById(`answer-${i}`);
    this.answers.querySelector(".target")?.classList.remove("target");
    card.classList.add("target");
    card.scrollIntoView({ block: "center" });
  }
}
