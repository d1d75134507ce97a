"use strict";
(() => {
  const { data, past } = charts;
  const rows = [...document.querySelectorAll("details")];
  rows.forEach((row, one) => {
    const show = () => {
      const place = row.querySelector(".chart");
      if (row.open && !place.firstChild) past(place, data.series[one], data.runs);
    };
    row.addEventListener("toggle", show);
    show();
  });
  const form = document.getElementById("filter");
  if (!rows.length) return;
  form.hidden = false;
  const texts = data.series.map((series) => series.name.toLowerCase());
  const filter = () => {
    const words = form.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, one) => {
      const keep = (!form.shifted.checked || data.series[one].changes.length > 0) && words.every((word) => texts[one].includes(word));
      shown += keep;
      row.hidden = !keep;
    });
    form.shown.value = shown + " of " + rows.length;
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
  // A report links to the row of a variant.
  const follow = () => {
    const row = document.getElementById(location.hash.slice(1));
    if (row?.matches("details")) row.open = true, row.scrollIntoView();
  };
  addEventListener("hashchange", follow);
  follow();
})();
