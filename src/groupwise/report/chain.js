"use strict";
// The chain of one token: from the outcome of its sample to d loss / d logp, in the numbers that the run stored.

const BOUNDS = { "-1": "at the lower bound", 0: "not clipped", 1: "at the upper bound" };

// What a step does to the log-prob of a token with this gradient.
const push = (gradient) => (gradient < 0 ? "a step raises its log-prob" : gradient > 0 ? "a step lowers its log-prob" : "a step leaves its log-prob");

// The links of a token: name, value, and a note: the part that computes it, or the numbers behind it.
function links(sample, i, parts) {
  const at = (name) => number(sample[name]?.[i]);
  const [advantage, ratio, logp, share, gradient] = ["token_advantage", "ratio", "logp", "share", "gradient"].map(at);
  const weight = sample.weight === undefined ? 1 : at("weight");
  const found = [
    ["outcome", sample.outcome ?? "no verdict", sample.score === null ? "" : `score ${short(sample.score)}`],
    ["reward", short(sample.reward), parts.reward],
    ["advantage", advantage === null ? "not trained" : signed(advantage), parts.advantage],
  ];
  if (advantage === null) return found;
  found.push(["ratio", short(ratio), logp === null ? "" : `of this token: log-prob ${signed(logp)}, before ${signed(logp - Math.log(ratio))}`]);
  if (gradient === null || share === null) return [...found, ["share", "–", "this run stored no share and no gradient"]];
  if (sample.clip !== undefined) found.push(["clip", BOUNDS[sample.clip[i]], parts.clip]);
  found.push(["weight", short(weight), parts.weight], ["share", short(share), `${share ? `1 ÷ ${short(1 / share)} ` : ""}${parts.share}`]);
  const product = share * weight * advantage;
  if (product) found.push(["factor", short(-gradient / product), "gradient ÷ −(share × weight × advantage): ratio, clip and penalties"]);
  return [...found, ["gradient", signed(gradient), `d loss / d logp: ${push(gradient)}`]];
}

// The panel of a token's chain.
function chain(group, sample, i, parts) {
  const text = sample.text.slice(i ? sample.ends[i - 1] : 0, sample.ends[i]);
  const rows = links(sample, i, parts).map(([name, value, note]) => [el("dt", {}, name), el("dd", {}, el("b", {}, value), note ? el("span", {}, ` ${note}`) : null)]);
  return [el("h4", {}, `Token ${i + 1} of ${sample.tokens_of} “${visible(text)}”`), el("dl", {}, rows.flat()),
    el("div", { class: "note" }, "In a shell: ", el("code", {}, `groupwise explain RUN --iteration ${group.iteration} --sample ${sample.line} --token ${i + 1}`))];
}
