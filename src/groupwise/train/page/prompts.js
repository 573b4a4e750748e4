"use strict";
// Prompts by iterations: who was solved when, and what was forgotten.

// Between the two ends of the diverging scale, through the colour of the page: 0 none right, 1 all right.
function passColour(rate) {
  const [end, part] = rate < 0.5 ? [css("--down"), 1 - 2 * rate] : [css("--up"), 2 * rate - 1];
  return `rgba(${end}, ${0.16 + 0.84 * part})`;
}

function prompts(runs, jump) {
  const section = el("section", { id: "prompts" }, el("header", {}, el("h2", {}, "Prompts")));
  const redraws = [];
  for (const run of runs) {
    const map = run.map;
    if (!map.rows.length) continue;
    if (runs.length > 1) section.append(el("h3", {}, run.name));
    const some = map.rows.length < map.of ? `Showing ${map.rows.length.toLocaleString("en")} of ${map.of.toLocaleString("en")} prompts, those drawn most often. ` : "";
    const once = map.rows.every((row) => row.visits === 1) ? " No prompt was drawn twice: each has one cell." : "";
    const bucket = map.width > 1 ? ` A column is ${map.width} iterations.` : "";
    section.append(el("p", { class: "note" }, `${some}A row is a prompt, sorted by first solve; colour is the share of its answers that were right.${bucket} Solved means at least half.${once}`));
    const canvas = el("canvas", { role: "img", "aria-label": "pass rate of each prompt over iterations; the table below has its numbers" });
    const ramp = el("span", { class: "ramp" });
    const tall = Math.max(1, Math.min(14, Math.floor(420 / map.rows.length)));
    const paint = () => {
      const width = Math.max(200, canvas.clientWidth) * devicePixelRatio, height = tall * map.rows.length * devicePixelRatio;
      canvas.width = width;
      canvas.height = height;
      canvas.style.height = `${tall * map.rows.length}px`;
      const pen = canvas.getContext("2d");
      const w = width / map.columns, h = height / map.rows.length, gap = h >= 4 ? devicePixelRatio : 0;
      map.rows.forEach((row, y) => {
        for (let i = 0; i < row.cells.length; i += 3) {
          pen.fillStyle = passColour(row.cells[i + 1] / row.cells[i + 2]);
          pen.fillRect(Math.floor(row.cells[i] * w), y * h, Math.max(Math.ceil(w) - (w > 4 ? devicePixelRatio : 0), 2), h - gap);
        }
      });
      ramp.style.background = `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map(passColour).join(", ")})`;
    };
    const under = (e) => {
      const box = canvas.getBoundingClientRect();
      const row = map.rows[Math.floor(((e.clientY - box.top) / box.height) * map.rows.length)];
      const column = Math.floor(((e.clientX - box.left) / box.width) * map.columns);
      const i = row ? row.cells.findIndex((x, k) => k % 3 === 0 && x === column) : -1;
      return { row, column, right: i < 0 ? null : row.cells[i + 1], of: i < 0 ? null : row.cells[i + 2] };
    };
    canvas.addEventListener("pointermove", (e) => {
      const { row, column, right, of } = under(e);
      tip(row ? `${visible(row.text)}\niteration ${column * map.width}${right === null ? ": not drawn" : `: ${right} of ${of} right`}` : "", e.clientX, e.clientY);
    });
    canvas.addEventListener("pointerleave", () => tip(""));
    canvas.addEventListener("click", (e) => jump(under(e).column * map.width, run));
    const numbers = () => ({ words: 2, head: ["id", "prompt", "first solved", "visits", "last seen", "solved then", "right", "answers"], rows: map.rows.map((row) => {
      const sum = (k) => row.cells.reduce((total, x, i) => total + (i % 3 === k ? x : 0), 0);
      return [row.id, row.text, row.solved ?? "never", row.visits, row.seen, row.now ? "yes" : "no", sum(1), sum(2)];
    }) });
    const recent = map.last - Math.max(1, Math.ceil(map.last / 10));
    const list = (title, rows, say) => el("div", {}, el("h4", {}, `${title} · ${rows.length}`), el("ul", {}, rows.slice(0, 100).map((row) => el("li", { title: visible(row.text) }, row.text, el("small", {}, say(row))))), rows.length > 100 ? el("p", { class: "note" }, `the first 100 of ${rows.length}`) : null);
    section.append(
      el("div", { class: "map" }, el("p", { class: "note" }, "none right", ramp, "all right"), canvas, el("div", { class: "ends" }, el("span", {}, "iteration 0"), el("span", {}, `iteration ${map.last}`)), folded("Table", `prompts-${run.name}`, numbers)),
      el("div", { class: "lists" },
        list("Newly solved", map.rows.filter((row) => row.solved !== null && row.solved > recent), (row) => `at ${row.solved}`),
        list("Forgotten", map.rows.filter((row) => row.solved !== null && !row.now), (row) => `solved at ${row.solved}, not at ${row.seen}`),
        list("Never solved", map.rows.filter((row) => row.solved === null), (row) => `${row.visits} ${row.visits === 1 ? "visit" : "visits"}`)));
    redraws.push(paint);
  }
  return redraws.length ? { section, paint: () => redraws.forEach((paint) => paint()) } : null;
}
