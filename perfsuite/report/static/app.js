"use strict";
(() => {
  const $ = (query) => document.querySelector(query);
  for (const code of document.querySelectorAll(".copied")) {
    // A line breaks between words, not behind a hyphen.
    const words = code.textContent.split(" ").map((word) => Object.assign(document.createElement("span"), { textContent: word }));
    code.replaceChildren(...words.flatMap((word, at) => (at ? [" ", word] : [word])));
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy";
    button.addEventListener("click", () => {
      // Where the clipboard is refused the text is marked, for the keyboard to copy.
      const mark = () => getSelection().selectAllChildren(code);
      const done = () => { button.textContent = "copied"; };
      navigator.clipboard ? navigator.clipboard.writeText(code.textContent).then(done, mark) : mark();
    });
    code.after(" ", button);
  }
  const form = $("#filter"), table = $("#rows"), count = (number) => number.toLocaleString("en").replaceAll(",", "\u202f");
  const kinds = (charts.data.kinds || []).map((kind) => kind.split("\t"));
  const lines = [...table.rows].filter((row) => row.dataset.k).map((row, at) => {
    const [pack, tag, metric] = kinds[row.dataset.of] || [];
    const link = row.querySelector("a"), section = link && document.getElementById(link.id || link.hash.slice(1));
    // A row without a section is its own place.
    if (link?.id) link.href = `#${link.id}`;
    return { row, at, on: true, link, section, text: row.textContent.toLowerCase(), verdict: row.dataset.verdict, pack, tag, metric };
  });
  // What rows can be filtered by: verdicts come in their order, time before all other metrics. A field
  // with one choice chooses nothing.
  for (const name of ["verdict", "pack", "tag", "metric"]) {
    const counts = new Map();
    for (const line of lines) {
      for (const word of (line[name] || "").split("\n").filter(Boolean)) counts.set(word, (counts.get(word) || 0) + 1);
    }
    if (counts.size < 2) continue;
    const words = [...counts.keys()], label = document.createElement("label"), select = document.createElement("select");
    if (name !== "verdict") words.sort((a, b) => (b === "time_us") - (a === "time_us") || (a < b ? -1 : 1));
    select.name = name;
    select.append(new Option("all", ""), ...words.map((word) => new Option(`${word} (${count(counts.get(word))})`, word)));
    label.append(name[0].toUpperCase() + name.slice(1), " ", select);
    form.shown.before(label);
  }
  const fields = [...form.elements].filter((field) => field.name && field !== form.shown);
  const valueOf = (field) => (field.type === "checkbox" ? (field.checked ? "1" : "") : field.value);
  const fold = table.tFoot, hasStayed = (line) => /^same/.test(line.verdict);
  const size = table.tBodies[0].rows.length;
  let sorted = [...lines], order = 0, current = -1, later = 0;

  // Chunks out of sight are not laid out: each is as high as the lines that it shows. What is
  // hidden with its chunk need not be hidden itself, which would be work for the browser.
  const settle = (chunk, parts) => {
    const shown = parts.filter(([, on]) => on).length;
    chunk.hidden = !shown;
    chunk.style.containIntrinsicHeight = `${shown * 50}px`;
    if (shown) for (const [part, on] of parts) if (part.hidden === on) part.hidden = !on;
  };
  const settleRows = () => [...table.tBodies].forEach((chunk, at) => {
    settle(chunk, sorted.slice(at * size, (at + 1) * size).map((line) => [line.row, line.on]));
  });
  const settleSections = () => {
    for (const line of lines) if (line.section.matches("details")) line.section.hidden = !line.on;
  };
  const filter = () => {
    const words = form.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = fields.filter((field) => field.value && field.options).map(({ name, value }) => [name, `\n${value}\n`]);
    // What did not change is folded away until somebody asks for it or filters.
    const folds = fold && !form.all.checked && !words.length && !kept.length;
    let shown = 0;
    for (const line of lines) {
      line.on = !(folds && hasStayed(line)) && kept.every(([name, word]) => `\n${line[name]}\n`.includes(word)) && words.every((word) => line.text.includes(word));
      shown += line.on;
    }
    if (fold) fold.hidden = words.length > 0 || kept.length > 0;
    // Of an empty table nothing needs to be explained.
    for (const part of [table.tHead, $("#legend")]) if (part) part.hidden = !shown;
    settleRows();
    // The sections follow the rows, but nobody waits for them.
    clearTimeout(later);
    later = setTimeout(settleSections, 250);
    const folded = folds ? `, ${count(lines.filter(hasStayed).length)} unchanged folded away` : "";
    form.shown.value = `${count(shown)} of ${count(lines.length)} shown${folded}`;
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
    [...table.tBodies].forEach((chunk, at) => {
      chunk.replaceChildren(...sorted.slice(at * size, (at + 1) * size).map((line) => line.row));
    });
    settleRows();
  };

  // A link to the page as it is filtered and sorted; other hashes are anchors.
  const remember = () => {
    const state = new URLSearchParams(fields.filter(valueOf).map((field) => [field.name, valueOf(field)]));
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
    else if (at && table.contains(at) && !at.checkVisibility()) {
      if (fold) form.all.checked = true;
      filter();
      at.scrollIntoView();
      at.focus();
    }
    if (!hash.includes("=")) return;
    const state = new URLSearchParams(hash), wanted = Math.trunc(state.get("sort")) || 0;
    for (const field of fields) {
      if (field.type === "checkbox") field.checked = state.has(field.name);
      else field.value = state.get(field.name) ?? "";
    }
    filter();
    if (wanted !== order && $(`th[data-k="${Math.abs(wanted)}"]`)) sort(wanted);
  };
  addEventListener("hashchange", follow);
  if (!lines.length) return;

  const move = (step) => {
    const shown = sorted.filter((line) => line.on);
    const here = shown.findIndex((line) => line.at === current);
    const next = shown[Math.min(Math.max(here + step, 0), shown.length - 1)];
    if (next) next.link.focus();
  };
  table.addEventListener("focusin", (event) => {
    current = lines.find((line) => line.row.contains(event.target))?.at ?? -1;
  });
  addEventListener("keydown", (event) => {
    const types = event.target.matches("input, select, textarea");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const arrows = table.contains(event.target) || event.target === form.text;
    const step = { j: types ? 0 : 1, k: types ? 0 : -1, ArrowDown: +arrows, ArrowUp: -arrows }[event.key];
    if (step) move(step);
    else if (event.key === "/" && !types) form.text.focus();
    else if (event.key === "Escape" && types) { form.reset(); filter(); remember(); } else return;
    event.preventDefault();
  });
  for (const part of [form, fold]) part?.addEventListener("input", () => { filter(); remember(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const link of document.querySelectorAll("a[data-verdict]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      form.reset();
      if (form.verdict) form.verdict.value = link.dataset.verdict;
      form.text.value = link.dataset.text || "";
      filter();
      remember();
      $("#changes").scrollIntoView();
    });
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
