"use strict";
// What other methods make of a group: their numbers for each answer side by side, as `whatif --report` stored them.

const COMPARED = {
  reward: { word: "reward", title: "reward of the answer", show: short },
  advantage: { word: "advantage", title: "advantage, mean over the answer's tokens", show: signed },
  weight: { word: "weight", title: "weight, mean over the answer's tokens", show: short },
  clipped_fraction: { word: "clipped", title: "share of the answer's tokens that are clipped", show: short },
  gradient_sum: { word: "gradient", title: "d loss / d logp, sum over the answer's tokens: a step raises the log-probs of a negative one", show: signed },
};
const NUMBERS = Object.keys(COMPARED); // in the order of stored_comparisons.py

// A number in a cell, with its six digits for the pointer and for tests; a dash for none.
const digits = (value, show) => el("span", { title: value ?? null, "data-value": value ?? "" }, show(value));

// The rows of a table: the cosines of the group's gradients, then a number of each answer.
function side(group, key) {
  const at = NUMBERS.indexOf(key), { show } = COMPARED[key];
  const rows = group.samples.map((s, i) => [`#${i + 1}`, s.outcome ?? "", ...s.compared.map((numbers) => (numbers ? digits(numbers[at], show) : el("span", { title: "this method drops the answer" }, "dropped")))]);
  return [["cosine", "gradient", ...group.cosines.map((x) => digits(x, signed))], ...rows];
}

// The comparison over the whole iteration, with what the methods lack.
function overall({ methods, figures, cosines, notes }, iteration) {
  const numbers = () => ({ words: 1, head: ["", ...methods], rows: [...figures.map(([name, values]) => [name, ...values.map(exact)]), ...methods.map((name, i) => [`cosine with ${name}`, ...cosines[i].map(exact)])] });
  return [folded("The whole iteration", `whatif-${iteration}`, numbers), ...notes.map((note) => el("div", { class: "note" }, note))];
}

// The section for a group; `change` redraws it with another number, `jump` shows another iteration.
function comparison(group, rollouts, key, change, jump) {
  const of = rollouts.compared[group.iteration], iterations = Object.keys(rollouts.compared).map(Number);
  const box = el("section", { id: "compared", "aria-label": "other methods on this group" }, el("h3", {}, "The same group under other methods"));
  for (const note of rollouts.notes) box.append(el("div", { class: "note" }, note));
  if (!of || !group.samples.every((s) => s.compared)) {
    const others = iterations.filter((i) => i !== group.iteration);
    if (others.length) box.append(el("div", { class: "row" }, el("span", { class: "note" }, "Compared iterations"), others.map((i) => el("button", { type: "button", onclick: () => jump(i) }, i))));
    box.append(el("div", { class: "note" }, "To compare methods here, in a shell: ", el("code", {}, `groupwise whatif RUN --iteration ${group.iteration} --methods grpo,dapo,gspo --report`)));
    return box;
  }
  const buttons = NUMBERS.map((name) => el("button", { type: "button", "data-number": name, "aria-pressed": name === key, onclick: () => change(name) }, COMPARED[name].word));
  const csv = () => download(`whatif-${group.iteration}-${group.draw}`, ["answer", "outcome", "method", ...NUMBERS], group.samples.flatMap((s, i) => of.methods.map((name, m) => [`#${i + 1}`, s.outcome, name, ...(s.compared[m] ?? NUMBERS.map(() => null))])));
  box.append(el("div", { class: "row", role: "group", "aria-label": "number" }, buttons), el("p", { class: "note" }, `${COMPARED[key].title}; first row: cosine with the gradient of ${of.methods[0]}, over the group's tokens`),
    sheet(["answer", "outcome", ...of.methods], side(group, key), 2), el("button", { type: "button", onclick: csv }, "CSV"), ...overall(of, group.iteration));
  return box;
}
