"use strict";
// The prompt map: when each prompt was solved, and which were forgotten.

// The colour of a pass rate on a diverging scale: 0 none right, 1 all right.
function passColour(rate) {
  const [end, part] = rate < 0.5 ? [css("--down"), 1 - 2 * rate] : [css("--up"), 2 * rate - 1];
  return `rgba(${end}, ${0.16 + 0.84 * part})`;
}

// The visits of all rows: column, right answers, answers, and the row of the prompt.
function visits(map) {
  return map.rows.flatMap((row, y) => Array.from({ length: row.cells.length / 3 }, (_, i) => ({ row, y, x: row.cells[3 * i], right: row.cells[3 * i + 1], of: row.cells[3 * i + 2] })));
}

// The position of each visit as shares of the height, with one row per prompt.
const rows = (map) => visits(map).map((visit) => ({ ...visit, top: visit.y / map.rows.length, bottom: (visit.y + 1) / map.rows.length }));

// The layout for prompts that do not return: a column contains its visits, sorted by pass rate.
function mosaic(map) {
  const columns = new Map();
  for (const visit of visits(map)) columns.set(visit.x, [...(columns.get(visit.x) ?? []), visit]);
  return [...columns.values()].flatMap((column) => column.sort((a, b) => a.right / a.of - b.right / b.of).map((visit, i) => ({ ...visit, top: i / column.length, bottom: (i + 1) / column.length })));
}

function prompts(runs, jump) {
  const section = el("section", { id: "prompts" }, el("header", {}, el("h2", {}, "Prompts")));
  const redraws = [];
  for (const run of runs) {
    const map = run.map;
    if (!map.rows.length) continue;
    if (runs.length > 1) section.append(el("h3", {}, run.name));
    const cells = map.once ? mosaic(map) : rows(map);
    const count = (n) => n.toLocaleString("en");
    const some = map.rows.length < map.of ? `Showing ${count(map.rows.length)} of ${count(map.of)} prompts, ${map.once ? "evenly spread" : "the most frequent ones"}. ` : "";
    const column = map.width > 1 ? `${map.width} iterations` : "an iteration";
    section.append(el("p", { class: "note" }, some + (map.once
      ? `Few prompts are drawn twice. A column is ${column}, and a cell is one of its prompts, with the highest pass rates at the bottom.`
      : `A row is a prompt, sorted by first solve; a column is ${column}. A prompt is solved if at least half of its answers are right.`)));
    const canvas = el("canvas", { role: "img", "aria-label": "pass rate of each prompt over iterations; the table below has the values" });
    const ramp = el("span", { class: "ramp" });
    const tall = map.once ? 220 : map.rows.length * Math.max(1, Math.min(14, Math.floor(420 / map.rows.length)));
    const paint = () => {
      const width = canvas.width = Math.max(200, canvas.clientWidth) * devicePixelRatio, height = canvas.height = tall * devicePixelRatio;
      canvas.style.height = `${tall}px`;
      const pen = canvas.getContext("2d"), w = width / map.columns;
      for (const { x, top, bottom, right, of } of cells) {
        const from = Math.round(top * height), to = Math.round(bottom * height);
        pen.fillStyle = passColour(right / of);
        pen.fillRect(Math.floor(x * w), from, Math.max(Math.ceil(w) - (w > 4 ? devicePixelRatio : 0), 2), Math.max(to - from - (to - from > 4 ? devicePixelRatio : 0), 1));
      }
      ramp.style.background = `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map(passColour).join(", ")})`;
    };
    const under = (e) => {
      const box = canvas.getBoundingClientRect(), y = (e.clientY - box.top) / box.height;
      const x = Math.floor(((e.clientX - box.left) / box.width) * map.columns);
      return [x, cells.find((cell) => cell.x === x && cell.top <= y && y < cell.bottom)];
    };
    canvas.addEventListener("pointermove", (e) => {
      const [x, cell] = under(e);
      tip(cell ? `${visible(cell.row.text)}\niteration ${x * map.width}: ${cell.right} of ${cell.of} right` : "", e.clientX, e.clientY);
    });
    canvas.addEventListener("pointerleave", () => tip(""));
    canvas.addEventListener("click", (e) => jump(under(e)[0] * map.width, run));
    const numbers = () => ({ words: 2, head: ["id", "prompt", "first solved", "visits", "last visit", "solved at last visit", "right", "answers"], rows: map.rows.map((row) => {
      const sum = (k) => row.cells.reduce((total, x, i) => total + (i % 3 === k ? x : 0), 0);
      return [row.id, row.text, row.solved ?? "never", row.visits, row.last, row.now ? "yes" : "no", sum(1), sum(2)];
    }) });
    const recent = map.last - Math.max(1, Math.ceil(map.last / 10));
    const list = (title, rows, note) => el("div", {}, el("h4", {}, `${title} · ${rows.length}`), el("ul", {}, rows.slice(0, 100).map((row) => el("li", { title: visible(row.text) }, row.text, el("small", {}, note(row))))), rows.length > 100 ? el("p", { class: "note" }, `the first 100 of ${rows.length}`) : null);
    section.append(
      el("div", { class: "map" }, el("p", { class: "note" }, "none right", ramp, "all right"), canvas, el("div", { class: "ends" }, el("span", {}, "iteration 0"), el("span", {}, `iteration ${map.last}`)), folded("Table", `prompts-${run.name}`, numbers)),
      map.once ? "" : el("div", { class: "lists" },
        list("Newly solved", map.rows.filter((row) => row.solved !== null && row.solved > recent), (row) => `at ${row.solved}`),
        list("Forgotten", map.rows.filter((row) => row.solved !== null && !row.now), (row) => `solved at ${row.solved}, not at ${row.last}`),
        list("Never solved", map.rows.filter((row) => row.solved === null), (row) => `${row.visits} ${row.visits === 1 ? "visit" : "visits"}`)));
    redraws.push(paint);
  }
  return redraws.length ? { section, paint: () => redraws.forEach((paint) => paint()) } : null;
}
