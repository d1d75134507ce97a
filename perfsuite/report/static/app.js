"use strict";
(() => {
  const $ = (query) => document.querySelector(query);
  const form = $("#filter"), body = $("#rows");
  const lines = body ? [...body.rows].filter((row) => row.dataset.k).map((row, at) => ({
    row, at, kind: +row.dataset.g, link: row.querySelector("a"), text: row.textContent.toLowerCase(),
  })) : [];
  for (const line of lines) line.section = line.link && document.getElementById(line.link.hash.slice(1));
  const fields = form ? [...form.querySelectorAll("[name]:not(output)")] : [];
  let sorted = [...lines], order = 0, current = -1;

  const show = (line, on) => {
    if (line.row.hidden !== on) return;
    line.row.hidden = !on;
    if (line.section) line.section.hidden = !on;
  };
  const filter = () => {
    const words = form.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = fields.filter((field) => field.value && field.selectedOptions)
      .map((field) => new Set(field.selectedOptions[0].dataset.g.split(" ").map(Number)));
    let shown = 0;
    for (const line of lines) {
      const on = kept.every((kinds) => kinds.has(line.kind)) && words.every((word) => line.text.includes(word));
      shown += on;
      show(line, on);
    }
    form.shown.value = `${shown} of ${lines.length}`;
  };

  // The key of a line in a column: numbers by data-k, the variant's id as text.
  const key = (line, column) => column === 2 ? line.link.textContent : parseFloat(line.row.dataset.k.split(" ")[column - 1]);
  const compare = (a, b) => typeof a === "string" ? (a < b ? -1 : +(a > b)) : isNaN(a) || isNaN(b) ? NaN : a - b;
  const sort = (wanted) => {
    order = wanted;
    const column = Math.abs(order), sign = Math.sign(order);
    for (const head of document.querySelectorAll("th[data-k]")) {
      if (+head.dataset.k === column) head.ariaSort = sign > 0 ? "ascending" : "descending";
      else head.removeAttribute("aria-sort");
    }
    const keys = new Map(lines.map((line) => [line, column ? key(line, column) : line.at]));
    sorted = [...lines].sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)], found = compare(x, y);
      // What has no value stands last either way.
      return (isNaN(found) ? isNaN(x) - isNaN(y) : (sign || 1) * found) || a.at - b.at;
    });
    body.append(...sorted.map((line) => line.row));
  };

  // A link to the page as it is filtered and sorted; other hashes are anchors.
  const remember = () => {
    const state = new URLSearchParams(fields.filter((field) => field.value).map((field) => [field.name, field.value]));
    if (order) state.set("sort", order);
    history.replaceState(null, "", `#${state}`);
  };
  const open = (section) => {
    section.hidden = false;
    section.open = true;
    section.scrollIntoView();
    section.firstElementChild.focus({ preventScroll: true });
  };
  const follow = () => {
    const hash = location.hash.slice(1), at = hash && document.getElementById(hash);
    if (at && at.matches("details")) open(at);
    if (!form || !hash.includes("=")) return;
    const state = new URLSearchParams(hash), wanted = Math.trunc(state.get("sort")) || 0;
    for (const field of fields) field.value = state.get(field.name) ?? "";
    filter();
    if (wanted !== order && $(`th[data-k="${Math.abs(wanted)}"]`)) sort(wanted);
  };
  addEventListener("hashchange", follow);
  if (!form) return follow();

  const move = (step) => {
    const shown = sorted.filter((line) => !line.row.hidden);
    const here = shown.findIndex((line) => line.at === current);
    const next = shown[Math.min(Math.max(here + step, 0), shown.length - 1)];
    if (next) next.link.focus();
  };
  body.addEventListener("focusin", (event) => {
    current = lines.find((line) => line.row.contains(event.target))?.at ?? -1;
  });
  addEventListener("keydown", (event) => {
    const types = event.target.matches("input, select, textarea");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const arrows = body.contains(event.target) || event.target === form.text;
    const step = { j: types ? 0 : 1, k: types ? 0 : -1, ArrowDown: +arrows, ArrowUp: -arrows }[event.key];
    if (step) move(step);
    else if (event.key === "/" && !types) form.text.focus();
    else if (event.key === "Escape" && types) { form.reset(); filter(); remember(); } else return;
    event.preventDefault();
  });
  form.addEventListener("input", () => { filter(); remember(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const link of document.querySelectorAll("[data-verdict]")) {
    link.addEventListener("click", () => { form.reset(); form.verdict.value = link.dataset.verdict; filter(); remember(); });
  }
  for (const head of document.querySelectorAll("th[data-k]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const column = +head.dataset.k;
      sort(order === column ? -column : order === -column ? 0 : column);
      remember();
    });
  }
  form.hidden = false;
  filter();
  follow();
})();
