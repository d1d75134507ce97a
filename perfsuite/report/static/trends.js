"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const rows = [...document.querySelectorAll("details")];
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const draw = (one, place) => {
    const series = data.series[one];
    const counted = series.centers.map((y, at) => (at in series.not ? null : y));
    const left = series.centers.map((y, at) => (at in series.not ? y : null));
    const label = (at) => data.runs[at] || ["", "", ""];
    const axis = { stroke: colour("--ink"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
    const rules = (plot) => {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.strokeStyle = colour("--worse");
      ctx.setLineDash([6, 4]);
      ctx.beginPath();
      for (const run of series.changes) {
        const x = plot.valToPos(data.runs.findIndex((each) => each[0] === run) - 0.5, "x", true);
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
      }
      ctx.stroke();
      ctx.restore();
    };
    const options = {
      width: Math.max(320, place.clientWidth), height: 300,
      scales: { x: { time: false } },
      hooks: { draw: [rules] },
      axes: [
        { ...axis, space: 110, values: (_, ticks) => ticks.map((at) => (Number.isInteger(at) ? label(at)[1].slice(0, 10) : "")) },
        { ...axis, size: 80, label: series.unit },
      ],
      series: [
        { label: "run", value: (_, at) => (at === null ? "" : label(at).join(" ")) },
        { label: series.name, stroke: colour("--now"), width: 1.5, spanGaps: true, points: { size: 5 } },
        { label: "left out", stroke: colour("--soft"), width: 0, paths: () => null, points: { show: true, size: 7 } },
      ],
    };
    new uPlot(options, [series.runs, counted, left], place);
  };
  rows.forEach((row, one) => {
    const show = () => {
      const place = row.querySelector(".chart");
      if (row.open && !place.firstChild) draw(one, place);
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
})();
