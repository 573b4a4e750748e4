"use strict";
// An episode of an agent as one tree: its conversations, and the requests of each with messages, answer and tool calls.

const plural = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;

// The tree of the episode of an answer. `body(sample, field, top, start, end)` draws tokens.
function episode(group, answer, body, field, top) {
  const all = group.samples.filter((s) => s.requests && s.episode === answer.episode);
  const first = (s) => s.requests[0].number;
  all.sort((a, b) => first(a) - first(b));
  const numbers = new Set(all.flatMap((s) => s.requests.map((r) => r.number)));
  const beneath = (number) => all.filter((s) => s.branches_from === number);
  const beside = all.filter((s) => !numbers.has(s.branches_from));
  const total = (of) => all.flatMap((s) => s.requests).reduce((sum, r) => sum + of(r), 0);
  const calls = total((r) => r.calls.length);
  const facts = [plural(total(() => 1), "request"), plural(all.length, "conversation"), calls ? plural(calls, "tool call") : null, `${plural(total((r) => r.end - r.start), "token")} written`].filter(Boolean);
  const draw = (s) => conversation(s, s === answer, group.samples.indexOf(s), (r) => request(s, r, body, field, top), (r) => beneath(r.number).map(draw));
  return el("div", { class: "tree", tabindex: 0, "aria-label": "the requests of the episode" }, el("div", { class: "note" }, facts.join(" · ")), beside.map(draw));
}

// One conversation: a line about its sample, then its requests. The conversations that branch from a request are beneath it.
function conversation(s, compared, i, draw, branches) {
  const facts = [compared ? null : el("span", {}, s.role), s.advantage === null ? null : el("span", {}, `advantage ${signed(s.advantage)}`), s.length === null ? null : el("span", {}, plural(s.length, "token")), s.selected ? null : el("span", {}, "not trained"), s.cut ? el("span", {}, "cut") : null];
  const head = el("h4", {}, el("span", {}, `#${i + 1}`), compared ? el("b", {}, "compared answer") : null, facts);
  return el("section", { class: `conversation${compared ? " compared" : ""}`, id: compared ? null : `answer-${i}`, "aria-label": `conversation #${i + 1}` }, head, el("ol", {}, s.requests.map((r) => el("li", { class: "request" }, draw(r), branches(r)))));
}

// One request: its new messages, the answer's tokens, and the tool calls in the answer.
function request(s, r, body, field, top) {
  const left = r.messages_of - r.messages.length;
  const wrote = r.end > r.start ? `wrote ${plural(r.end - r.start, "token")}` : "no room for an answer";
  const answer = s.ends ? body(s, field, top, r.start, r.end) : r === s.requests[0] ? body(s, field, top) : [];
  return [
    el("div", { class: "note" }, `request ${r.number + 1} · read ${plural(r.prompt_tokens, "token")} · ${wrote}`),
    r.messages.map((m) => message(m.role, [write(el("div", { class: "text" }), m.text), omitted(m), m.calls.map(call)])),
    left ? el("div", { class: "note" }, `${plural(left, "message")} left out`) : null,
    message("policy", [answer, r.calls.map(call)], "policy"),
  ].flat();
}

// A message: who wrote it, and its content.
const message = (role, content, kind = "") => el("div", { class: `message ${kind}` }, el("b", {}, role), el("div", {}, content.flat(2)));

// A tool call: the name and the arguments.
const call = (c) => el("div", { class: "call" }, el("b", {}, `calls ${c.name}`), write(el("code", {}), c.text), omitted(c));

const omitted = (excerpt) => (excerpt.left_out ? el("span", { class: "note" }, ` … ${plural(excerpt.left_out, "character")} left out`) : null);
