"use strict";
// Text and numbers of the page. The page never parses markup: all text is set with textContent.

const HIDDEN = /[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udc7f]/g;

// A visible symbol for a control or bidi character.
function symbol(c) {
  const code = c.codePointAt(0);
  if (c === "\n") return "↵";
  if (c === "\t") return "→";
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

// Text on one line, with visible symbols for characters that hide or reorder text.
const visible = (text) => String(text).replace(HIDDEN, symbol);

// Creates an element. Attributes have their HTML names; `on…` keys are listeners; children are nodes or text.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || (value === false && !key.startsWith("aria-"))) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true && !key.startsWith("aria-") ? "" : String(value));
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child instanceof Node ? child : visible(child));
  return node;
}

// Appends model text to `node`, with symbols for hidden characters and a line break after each ↵.
function write(node, text) {
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > from) node.append(text.slice(from, match.index));
    const mark = el("span", { class: "sym" });
    mark.textContent = symbol(match[0]);
    node.append(mark);
    if (match[0] === "\n") node.append("\n");
    from = match.index + match[0].length;
  }
  if (from < text.length) node.append(text.slice(from));
  return node;
}

// A number with so many significant digits.
function rounded(x, digits) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (Number.isInteger(x) && Math.abs(x) < 1e15) return x.toLocaleString("en");
  const text = Number(x.toPrecision(digits));
  return Math.abs(text) < 1e-4 || Math.abs(text) >= 1e7 ? text.toExponential().replace("e+", "e") : String(text);
}

// A number with four significant digits. It has one argument, so that lists can be mapped with it.
const short = (x) => rounded(x, 4);

// The numbers of an axis, with as many digits as tell them apart; null is a tick without a label.
function tickLabels(ticks) {
  for (let digits = 4; ; digits++) {
    const labels = ticks.map((t) => (t === null ? "" : rounded(Number(t.toPrecision(12)), digits)));
    const shown = labels.filter(Boolean);
    if (digits === 12 || new Set(shown).size === shown.length) return labels;
  }
}

const signed = (x) => (x > 0 ? "+" : "") + short(x).replace("-", "−");
const exact = (x) => (x === null || x === undefined || Number.isNaN(x) ? "" : String(x));

function duration(seconds) {
  if (seconds < 90) return `${seconds.toPrecision(3)} s`;
  if (seconds < 5400) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

// Decodes the numbers of sample_selection.py `packed`: a list, a value with a count, or base64 of a typed array.
function unpack(value) {
  if (Array.isArray(value)) return value;
  if (typeof value === "object") return new Array(value.n).fill(value.v);
  const bytes = Uint8Array.from(atob(value.slice(3)), (c) => c.charCodeAt(0)).buffer;
  const kind = { u1: Uint8Array, u2: Uint16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array }[value.slice(0, 2)];
  return Array.from(new kind(bytes));
}

const ascend = (value) => { let sum = 0; return unpack(value).map((d) => (sum += d)); };

// A table of `head` and `rows`. The first column has the row names; the first `words` columns are text.
function sheet(head, rows, words = 1) {
  const body = rows.map((row) => el("tr", {}, row.map((cell, i) => el(i ? "td" : "th", { class: i < words ? "word" : null, scope: i ? null : "row" }, cell))));
  return el("div", { class: "scroll", tabindex: 0 }, el("table", {}, el("thead", {}, el("tr", {}, head.map((h, i) => el("th", { scope: "col", class: i < words ? "word" : null }, h)))), el("tbody", {}, body)));
}

// A CSV cell that a spreadsheet does not read as a formula.
function cell(value) {
  let text = value === null || value === undefined ? "" : String(value);
  if (/^[=+\-@\t\r]/.test(text) && !/^-?\d+(\.\d+)?([eE][+-]?\d+)?$/.test(text)) text = "'" + text;
  return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}

function download(name, head, rows) {
  const text = [head, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
  const link = el("a", { download: name.replace(/[^\w.-]+/g, "-") + ".csv" });
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A folded table with a CSV button, built when it is first opened.
function folded(title, name, make) {
  const box = el("details", {}, el("summary", {}, title));
  box.addEventListener("toggle", () => {
    if (!box.open || box.children.length > 1) return;
    const { head, rows, words } = make();
    box.append(el("div", { class: "row tools" }, el("button", { type: "button", onclick: () => download(name, head, rows) }, "CSV"), `${rows.length} rows`), sheet(head, rows, words));
  });
  return box;
}

// Shows a tooltip at a point of the window; an empty text hides it.
function tip(text, x, y) {
  const box = document.getElementById("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 6))}px`;
  box.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 10) : y + 18}px`;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
