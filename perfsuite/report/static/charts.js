"use strict";
// What uPlot draws from the page's one block of data: rooflines, samples in time order, histories.
const charts = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const TONES = ["slot0", "slot1", "slot2"];

  const axis = (more) => {
    const line = { stroke: colour("line"), width: 1 };
    return { stroke: colour("soft"), grid: line, ticks: line, ...more };
  };
  const options = (place, height, more) => ({
    width: Math.max(260, place.clientWidth), height, legend: { show: false }, cursor: { drag: { x: false, y: false } }, ...more,
  });
  const dots = (tone, size) => ({ stroke: colour(tone), paths: () => null, points: { show: true, size, width: 0, fill: colour(tone) } });

  // A series over runs: what counts is joined, what does not is dots; the accepted level is behind.
  const past = (place, series, labels) => {
    const is_left = (at) => at in series.not;
    const counted = series.centers.map((y, at) => (is_left(at) ? null : y));
    const left = series.centers.map((y, at) => (is_left(at) ? y : null));
    const levels = series.runs.map((at) => (series.levels || []).findLast(([start]) => start <= at)?.[1]);
    const label = (at) => labels[at] || ["", "", ""];
    const rules = ({ ctx, bbox, valToPos }) => {
      ctx.save();
      ctx.strokeStyle = colour("slower");
      ctx.setLineDash([6, 4]);
      ctx.beginPath();
      for (const run of series.changes) {
        const x = valToPos(labels.findIndex((each) => each[0] === run) - 0.5, "x", true);
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
      }
      ctx.stroke();
      ctx.restore();
    };
    // Nothing until the mouse is over the chart.
    const value = (_, y) => (y === null || y === undefined ? "" : y.toPrecision(5));
    const days = (_, ticks) => ticks.map((at) => (Number.isInteger(at) ? label(at)[1].slice(0, 10) : ""));
    return new uPlot(options(place, place.closest(".body") ? 180 : 300, {
      legend: { show: true },
      padding: [null, 40, null, null],
      scales: { x: { time: false } },
      hooks: { draw: [rules] },
      axes: [axis({ space: 110, values: days }), axis({ size: 80, label: series.unit === "us" ? "µs" : series.unit })],
      series: [
        { label: "run", value: (_, at) => (at === null ? "" : label(at).slice(0, 3).join(" ")) },
        { label: "accepted", value, stroke: colour("before"), width: 6, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } },
        { label: series.name, value, stroke: colour("now"), width: 1.5, spanGaps: true, points: { size: 5 } },
        { label: "left out", value, ...dots("soft", 7) },
      ],
    }), [series.runs, levels, counted, left], place);
  };

  // A process is label, tone, slot, blocks and medians; a block its times, start, clocks and health.
  const UNITS = [[1e6, "s"], [1e3, "ms"], [1, "µs"], [1e-3, "ns"]];
  const unitOf = (time) => UNITS.find(([least]) => time >= least) || UNITS[3];
  const uprights = (places) => ({ ctx, bbox, valToPos }) => {
    for (const [x, tone, from, to] of places) {
      ctx.beginPath();
      ctx.strokeStyle = colour(tone);
      ctx.lineWidth = 2 * devicePixelRatio;
      const [at, top, height] = [valToPos(x, "x", true), bbox.top, bbox.height];
      ctx.moveTo(at, top + from * height);
      ctx.lineTo(at, top + to * height);
      ctx.stroke();
    }
  };
  // All medians and all but the outermost samples, with some room: a few stray ones would hide the rest.
  const extent = (times, middles) => {
    const sorted = [...times].sort((a, b) => a - b), cut = Math.floor(sorted.length / 100);
    const kept = [...sorted.slice(cut, sorted.length - cut), ...middles], low = Math.min(...kept), high = Math.max(...kept);
    const margin = (high - low) * 0.08 || low * 0.001;
    return [low - margin, high + margin];
  };
  const scaled = (processes) => {
    const [size, unit] = unitOf(processes[0][4][0]);
    const each = processes.map(([label, tone, slot, blocks, middles]) => ({
      label, tone, times: blocks.flatMap(([times]) => times.map((time) => time / size)), middles: middles.map((time) => time / size),
    }));
    return [each, extent(each.flatMap(({ times }) => times), each.flatMap(({ middles }) => middles)), unit];
  };

  // How samples are spread, now over before; of a baseline without samples its processes' medians.
  const spread = (place, processes) => {
    const [each, [low, high], unit] = scaled(processes.filter(([, tone]) => tone !== "screen"));
    const xs = Array.from({ length: 200 }, (_, at) => low + ((high - low) * at) / 199);
    const density = (tone) => {
      const values = each.filter((one) => one.tone === tone).flatMap(({ times }) => times).sort((a, b) => a - b);
      if (!values.length) return xs.map(() => null);
      const quartile = (part) => values[Math.floor(part * (values.length - 1))];
      const width = Math.max((quartile(0.75) - quartile(0.25)) * 0.8 * values.length ** -0.2, (high - low) / 150);
      return xs.map((x) => values.reduce((sum, value) => sum + Math.exp(-0.5 * ((x - value) / width) ** 2), 0) / values.length / width);
    };
    const ticks = each.flatMap(({ tone, times, middles }) => {
      const [from, to] = tone === "now" ? [0.86, 0.93] : times.length ? [0.93, 1] : [0.05, 1];
      return middles.map((x) => [x, tone, from, to]);
    });
    const series = ["before", "now"].map((tone) => ({
      label: tone === "now" ? tone : "baseline", stroke: colour(tone), width: 1.5, fill: `${colour(tone)}40`, points: { show: false }, value: () => "",
    }));
    return new uPlot(options(place, 190, {
      legend: { show: true },
      scales: { x: { time: false, range: () => [low, high] }, y: { range: (_, __, top) => [-0.16 * (top || 1), 1.05 * (top || 1)] } },
      hooks: { draw: [uprights(ticks)] },
      axes: [axis({ space: 70, values: (_, at) => at.map((x) => `${+x.toPrecision(6)} ${unit}`) }), axis({ show: false })],
      series: [{ label: "time", value: (_, x) => (x === null ? "" : `${x.toPrecision(5)} ${unit}`) }, ...series],
    }), [xs, density("before"), density("now")], place);
  };

  // A line of samples for each process.
  const strips = (place, processes) => {
    const [each, [low, high], unit] = scaled(processes), lane = (at) => each.length - at;
    const isWide = place.clientWidth > 500;
    const points = each.flatMap(({ tone, times }, at) => times.map((x, one) => [x, lane(at) + 0.12 * ((one % 5) - 2), tone])).sort((a, b) => a[0] - b[0]);
    const tones = ["now", "screen", "before"], xs = points.map(([x]) => Math.min(Math.max(x, low), high));
    const middles = each.flatMap(({ tone, middles }, at) => middles.map((x) => [x, tone, (at + 0.1) / each.length, (at + 0.9) / each.length]));
    return new uPlot(options(place, 50 + 24 * each.length, {
      scales: { x: { time: false, range: () => [low, high] }, y: { range: () => [0.5, each.length + 0.5] } },
      hooks: { draw: [uprights(middles)] },
      axes: [
        axis({ space: 70, values: (_, at) => at.map((x) => `${+x.toPrecision(6)} ${unit}`) }),
        axis({ size: isWide ? 150 : 80, splits: () => each.map((_, at) => lane(at)), values: () => each.map(({ label }) => (isWide ? label : label.split(" · ")[0])), filter: (_, at) => at }),
      ],
      series: [{}, ...tones.map((tone) => dots(tone, 3))],
    }), [xs.length ? xs : [low], ...tones.map((tone) => points.map((one) => (one[2] === tone ? one[1] : null)))], place);
  };

  // Samples in the order measured, by slot; turns are shaded in alternation.
  const track = (place, turns, label, value) => {
    const xs = [], slots = TONES.map(() => []), starts = [];
    for (const [slot, turn] of turns) {
      starts.push(xs.length);
      turn[0].forEach((_, at) => {
        xs.push(xs.length);
        slots.forEach((ys, tone) => ys.push(tone === slot % TONES.length ? value(turn, at) ?? null : null));
      });
    }
    if (slots.flat().every((one) => one === null)) return;
    const shade = ({ ctx, bbox, valToPos }) => {
      ctx.fillStyle = colour("wash");
      starts.forEach((start, turn) => {
        const [left, right] = [start, starts[turn + 1] ?? xs.length].map((at) => valToPos(at - 0.5, "x", true));
        if (turn % 2) ctx.fillRect(left, bbox.top, right - left, bbox.height);
      });
    };
    // What hardly moves is drawn so: a percent at least from top to bottom.
    const room = (low, high) => Math.max((high - low) * 0.1, (high * 0.01 - (high - low)) / 2);
    new uPlot(options(place, 84, {
      scales: {
        x: { time: false, range: () => [-0.5, xs.length - 0.5] },
        y: { range: (_, low, high) => [low - room(low, high), high + room(low, high)] },
      },
      hooks: { drawClear: [shade] },
      axes: [axis({ show: false }), axis({ size: 62, label, labelSize: 18, labelFont: "11px system-ui", space: 22 })],
      series: [{}, ...TONES.map((tone) => dots(tone, 4))],
    }), [xs, ...slots], place);
  };

  const QUANTITIES = {
    "Time, µs": ([times], at) => times[at],
    // Of exactly the window that was timed.
    "SM clock, MHz": ([, , clocks], at) => clocks[at] || null,
    "Power, W": (turn) => turn[3]?.[0],
    "Temperature, °C": (turn) => turn[3]?.[1],
  };
  const tracks = (place, processes) => {
    const now = processes.filter(([, tone]) => tone === "now");
    const sorted = now.flatMap(([, , slot, blocks]) => blocks.map((block) => [slot, block])).sort(([, a], [, b]) => a[1] - b[1]);
    for (const [label, value] of Object.entries(QUANTITIES)) track(place, sorted, label, value);
  };

  // Round values of an axis by powers of ten; only these on a long one.
  const powers = (_, __, low, high) => {
    const found = [], steps = high / low < 1000 ? [1, 2, 5] : [1];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      found.push(...steps.map((step) => step * 10 ** power).filter((value) => value >= low && value <= high));
    }
    return found;
  };
  const flow = (unit) => (_, ticks) => ticks.map((value) => {
    const [size, prefix] = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]].find(([least]) => value >= least) || [1, ""];
    return `${+(value / size).toPrecision(3)} ${prefix}${unit}`.trim();
  });

  // The ceilings that some places have at an index, those of one rate together: text, rate, measured.
  const ceilings = (places, index, known, unit) => {
    const named = {};
    for (const name of new Set(places.map((place) => place[index]))) {
      if (Object.hasOwn(known, name)) (named[known[name]] ??= []).push(name);
    }
    return Object.values(named).map((names) => {
      const [rate, measured] = known[names[0]];
      return [`${names.sort().join(", ")} ${flow(unit)(null, [rate])}`, rate, measured];
    });
  };
  // A place is link, dtype, operations per byte, rate now and before, tone and text.
  const under = (places) => ({
    points: places.map((place) => place.slice(2)),
    links: ceilings(places, 0, data.links, "B/s"),
    operations: ceilings(places, 1, data.operations, "FLOP/s"),
  });

  // Variants under their ceilings: over operations per byte, or along one line by bytes alone.
  const roof = (place, { points, links, operations }) => {
    const flat = points[0][0] === null, small = place.closest("details") !== null;
    const rates = points.flatMap(([, now, before]) => (before ? [now, before] : [now]));
    const ceilings = flat ? links : operations;
    const tops = ceilings.map(([, rate]) => rate), fastest = Math.max(...links.map(([, rate]) => rate)), highest = Math.max(...tops);
    const room = (values) => [Math.min(...values) * 0.45, Math.max(...values) * 1.8];
    const ridge = !flat && links.length && tops.length ? [highest / fastest] : [];
    const [xs, ys] = flat ? [room([...rates, ...tops]), [0, 1]] : [room([...points.map(([x]) => x), ...ridge]), room([...rates, ...tops])];
    const spots = (plot) => points.map(([x, rate, before, tone, text], at) => {
      const y = flat ? 0.25 + 0.25 * (at % 3) : rate;
      return { x: plot.valToPos(flat ? rate : x, "x", true), y: plot.valToPos(y, "y", true), before, tone, text };
    });
    const draw = (plot) => {
      const { ctx, valToPos } = plot, ratio = devicePixelRatio;
      const at = (x, y) => [valToPos(x, "x", true), valToPos(y, "y", true)];
      const line = (start, end, measured) => {
        ctx.setLineDash(measured ? [] : [5 * ratio, 4 * ratio]);
        ctx.beginPath();
        ctx.moveTo(...start);
        ctx.lineTo(...end);
        ctx.stroke();
      };
      const write = (text, x, y, align) => {
        ctx.textAlign = align;
        ctx.strokeText(text, x, y);
        ctx.fillText(text, x, y);
      };
      ctx.save();
      ctx.font = `${11 * ratio}px system-ui`;
      const label = (text, x, y, align) => {
        ctx.save();
        ctx.setLineDash([]);
        ctx.strokeStyle = colour("card");
        ctx.fillStyle = colour("ink");
        ctx.lineWidth = 3 * ratio;
        write(text, x, y, align);
        ctx.restore();
      };
      ctx.strokeStyle = colour("ink");
      ctx.lineWidth = 1.5 * ratio;
      let lowest = -Infinity;
      if (flat) {
        for (const [name, rate, measured] of links) {
          line(at(rate, 0), at(rate, 1), measured);
          label(name, at(rate, 1)[0] + 6 * ratio, at(rate, 1)[1] + 10 * ratio, "left");
        }
      } else {
        for (const [name, rate, measured] of links) {
          const low = Math.max(xs[0], ys[0] / rate), high = Math.min(xs[1], (tops.length ? highest : ys[1]) / rate);
          line(at(low, low * rate), at(high, high * rate), measured);
          const [x, y] = at(low, low * rate);
          label(name, x + 12 * ratio, y + 4 * ratio, "left");
        }
        for (const [name, rate, measured] of [...operations].sort((a, b) => b[1] - a[1])) {
          const start = at(Math.max(rate / fastest, xs[0]), rate), end = at(xs[1], rate);
          line(start, end, measured);
          // Names of ceilings that lie close together are pushed apart, downwards.
          lowest = Math.max(lowest + 14 * ratio, start[1] - 6 * ratio);
          if (small && start[0] < (plot.bbox.left + end[0]) / 2) label(name, start[0] + 6 * ratio, lowest, "left");
          else label(name, end[0], lowest, "right");
        }
      }
      // What moved is drawn last, above the others; its arrow comes from where it was.
      for (const { x, y, before, tone } of spots(plot).sort((a, b) => !!a.before - !!b.before)) {
        ctx.strokeStyle = ctx.fillStyle = colour(tone);
        ctx.setLineDash([]);
        ctx.globalAlpha = before ? 1 : 0.6;
        if (before && !flat) {
          const way = valToPos(before, "y", true) - y, sign = Math.sign(way) || 1;
          ctx.beginPath();
          ctx.lineWidth = 2 * ratio;
          ctx.moveTo(x, y + sign * Math.max(Math.abs(way), 24 * ratio));
          ctx.lineTo(x, y + sign * 7 * ratio);
          ctx.moveTo(x - 4 * ratio, y + sign * 12 * ratio);
          ctx.lineTo(x, y + sign * 7 * ratio);
          ctx.lineTo(x + 4 * ratio, y + sign * 12 * ratio);
          ctx.stroke();
        }
        ctx.beginPath();
        ctx.arc(x, y, (before ? 5 : 4) * ratio, 0, 2 * Math.PI);
        ctx.fill();
      }
      ctx.restore();
    };
    const plot = new uPlot(options(place, flat ? 100 : small ? 210 : 420, {
      scales: { x: { time: false, distr: 3, range: () => xs }, y: { distr: flat ? 1 : 3, range: () => ys } },
      hooks: { draw: [draw] },
      axes: [
        axis({ splits: powers, filter: (_, ticks) => ticks, values: flow(flat ? "B/s" : ""), label: flat ? undefined : "operations per byte (FLOP/byte)", labelFont: "11px system-ui", labelSize: 18 }),
        axis({ show: !flat, size: 90, splits: powers, filter: (_, ticks) => ticks, values: flow("FLOP/s") }),
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
    }), [xs, ys], place);
    // The text of the nearest point, where the mouse rests.
    plot.over.addEventListener("mousemove", (event) => {
      const box = plot.over.getBoundingClientRect(), ratio = devicePixelRatio;
      const [x, y] = [(event.clientX - box.left) * ratio + plot.bbox.left, (event.clientY - box.top) * ratio + plot.bbox.top];
      const far = (one) => Math.hypot(one.x - x, one.y - y);
      const nearest = spots(plot).reduce((a, b) => (far(b) < far(a) ? b : a));
      plot.over.title = far(nearest) < 14 * ratio ? nearest.text : "";
    });
    return plot;
  };

  const draw = (place) => {
    if (place.classList.contains("drawn")) return;
    place.classList.add("drawn");
    const { chart, of } = place.dataset, places = Object.values(data.places || {});
    const byProcess = { spread, strips, turns: tracks }[chart];
    if (byProcess) byProcess(place, data.processes[of]);
    else if (chart === "past") {
      const { labels, ...series } = JSON.parse(place.dataset.past);
      past(place, series, labels);
    }
    else if (chart === "roof") roof(place, under([data.places[of]]));
    else if (chart === "plane") roof(place, under(places.filter(([, dtype, x]) => dtype && x !== null)));
    else roof(place, under(places.filter(([link, dtype]) => (!of || link === of) && !dtype)));
  };
  const drawIn = (part) => {
    for (const place of part.querySelectorAll("[data-chart]")) if (!place.closest("details:not([open])")) draw(place);
  };
  document.addEventListener("toggle", (event) => drawIn(event.target), true);
  addEventListener("beforeprint", () => document.querySelectorAll("details.loud [data-chart]").forEach(draw));
  drawIn(document);
  return { data, past };
})();
