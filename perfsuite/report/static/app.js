"use strict";
(() => {
  const $ = (s) => document.querySelector(s);
  const openTarget = () => {
    const at = location.hash && document.getElementById(location.hash.slice(1));
    if (at && at.matches("details")) { at.open = true; at.scrollIntoView(); }
  };
  addEventListener("hashchange", openTarget);
  openTarget();
  const form = $("#filter"), body = $("#rows");
  if (!form) return;
  const lines = [...body.rows].map((row, at) => ({
    row, at, word: row.dataset.w, pack: row.dataset.p,
    text: row.cells[1].textContent.toLowerCase(),
    keys: row.dataset.k.split(" ").map((k) => (k === "-" ? NaN : +k)),
    section: document.getElementById(row.querySelector("a").hash.slice(1)),
  }));
  form.hidden = false;
  const filter = () => {
    const words = form.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const line of lines) {
      const keep = (!form.word.value || line.word === form.word.value)
        && (!form.pack.value || line.pack === form.pack.value)
        && words.every((word) => line.text.includes(word));
      shown += keep;
      if (line.row.hidden === keep) line.row.hidden = line.section.hidden = !keep;
    }
    form.shown.value = shown + " of " + lines.length;
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !/INPUT|SELECT/.test(event.target.tagName)) {
      event.preventDefault();
      form.text.focus();
    }
  });
  filter();
  for (const head of document.querySelectorAll("th[data-k]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const key = +head.dataset.k;
      const sign = head.ariaSort === "ascending" ? -1 : 1;
      for (const other of document.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
      head.ariaSort = sign > 0 ? "ascending" : "descending";
      const order = (a, b) => {
        if (key < 0) return sign * (a.text < b.text ? -1 : a.text > b.text);
        const x = a.keys[key], y = b.keys[key];
        return isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) : sign * (x - y);
      };
      for (const line of [...lines].sort((a, b) => order(a, b) || a.at - b.at)) body.append(line.row);
    });
  }
})();
