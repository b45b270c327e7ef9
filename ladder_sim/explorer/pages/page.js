/* Reads times between the answers of a grid and draws them. */
(function () {
  "use strict";

  const data = JSON.parse(document.getElementById("data").textContent);
  const place = { batch: data.batches.indexOf(data.batch), at: data.axes.map(() => 0) };
  const element = (id) => document.getElementById(id);
  const dark = () => document.documentElement.dataset.theme === "dark";

  const SCALES = {
    _Bps: [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"]],
    _s: [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]],
  };

  function scaleOf(name, value) {
    const scales = SCALES[Object.keys(SCALES).find((unit) => name.endsWith(unit))];
    return scales.find(([size]) => value >= size * 0.9995) || scales[scales.length - 1];
  }

  function shown(name, value) {
    const [scale, unit] = scaleOf(name, value);
    return `${Number((value / scale).toPrecision(3))} ${unit}`;
  }

  /* Position on an axis, 0 to the last index, -> value; values lie evenly in logarithms. */
  const valueAt = (axis, position) => {
    const values = axis.values;
    return values[0] * (values[values.length - 1] / values[0]) ** (position / (values.length - 1));
  };

  function home() {
    place.batch = Math.max(0, data.batches.indexOf(data.batch));
    place.at = data.axes.map((axis) => {
      const span = Math.log(axis.values[axis.values.length - 1] / axis.values[0]);
      return Math.round((1e6 * (axis.values.length - 1) * Math.log(axis.here / axis.values[0])) / span) / 1e6;
    });
  }

  /* Multilinear in logarithms. */
  function read(times, batch, at) {
    let corners = [[batch, 1]];
    data.axes.forEach((axis, number) => {
      const size = axis.values.length;
      const low = Math.min(size - 2, Math.floor(at[number]));
      const share = at[number] - low;
      corners = corners.flatMap(([index, weight]) => [
        [index * size + low, weight * (1 - share)],
        [index * size + low + 1, weight * share],
      ]);
    });
    return Math.exp(corners.reduce((sum, [index, weight]) => (weight ? sum + weight * Math.log(times[index]) : sum), 0));
  }

  function answer(variant, batch, at) {
    const ttft = read(variant.ttft_s, batch, at);
    const tpot = variant.tpot_s ? read(variant.tpot_s, batch, at) : 0;
    const request = ttft + (data.gen - 1) * tpot;
    return { ttft, tpot, request, rate: (data.batches[batch] * data.gen) / request };
  }

  const speedup = (variant, batch, at) => answer(data.variants[0], batch, at).request / answer(variant, batch, at).request;

  const titled = (axis) => (axis.title ? { ...axis, title: { standoff: 8, font: { size: 13 }, ...axis.title } } : axis);

  /* 1, 2, 5, 10, ... between two numbers. */
  function roundTicks(low, high) {
    const ticks = [];
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade += 1) {
      for (const digit of [1, 2, 5]) ticks.push(digit * 10 ** decade);
    }
    return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  }

  function layout(more) {
    const text = dark() ? "#E4E7EB" : "#262626";
    const grid = dark() ? "#323943" : "#E5E5E5";
    const axis = { gridcolor: grid, linecolor: text, zeroline: false, automargin: true, ticks: "outside", tickfont: { size: 12 } };
    return {
      font: { family: "Helvetica, Arial, sans-serif", size: 13, color: text },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 12, r: 16, t: 34, b: 44 },
      legend: { orientation: "h", y: 1, yanchor: "bottom", x: 0 },
      ...more,
      xaxis: { ...axis, ...titled(more.xaxis) },
      yaxis: { ...axis, ...titled(more.yaxis) },
    };
  }

  const CONFIG = { displaylogo: false, displayModeBar: false, responsive: true };
  const colour = (variant) => (dark() && variant.name === "standard" ? "#A3ABB5" : variant.colour);

  function drawCards() {
    const start = home.key === key();
    const cards = data.variants.map((variant, number) => {
      const one = answer(variant, place.batch, place.at);
      const gain = speedup(variant, place.batch, place.at);
      const card = document.createElement("article");
      card.className = "card";
      card.dataset.variant = variant.name;
      card.style.setProperty("--variant", variant.colour);
      const line = (tag, text, className) => {
        const part = document.createElement(tag);
        part.textContent = text;
        if (className) part.className = className;
        return part;
      };
      const list = document.createElement("dl");
      const facts = { "tok/s": one.rate.toPrecision(4), TTFT: shown("x_s", one.ttft), TPOT: one.tpot ? shown("x_s", one.tpot) : "-" };
      for (const [name, text] of Object.entries(facts)) {
        const row = document.createElement("div");
        row.append(line("dt", name), line("dd", text));
        list.append(row);
      }
      const [low, , high] = variant.interval;
      const interval = number && start ? `90 %: ${low.toFixed(2)}-${high.toFixed(2)}` : number ? "over standard" : "baseline";
      card.append(line("h3", variant.name), line("div", `${gain.toFixed(2)}x`, "gain"), line("div", interval, "interval"), list);
      return card;
    });
    element("cards").replaceChildren(...cards);
  }

  function drawTimes() {
    const every = data.variants.map((variant) => answer(variant, place.batch, place.at));
    const bar = (name, values, shade) => ({
      type: "bar",
      orientation: "h",
      name,
      y: data.variants.map((variant) => variant.name),
      x: values,
      marker: { color: shade },
      hovertemplate: "%{y}: %{x:.3g} s<extra>%{fullData.name}</extra>",
    });
    const bars = [
      bar("prefill", every.map((one) => one.ttft), "#56B4E9"),
      bar("decode", every.map((one) => (data.gen - 1) * one.tpot), "#0072B2"),
    ];
    const more = { barmode: "stack", bargap: 0.35, xaxis: { title: { text: "seconds per request" } }, yaxis: { autorange: "reversed" } };
    window.Plotly.react("times", bars, layout(more), CONFIG);
  }

  const along = (number, position) => place.at.map((own, index) => (index === number ? position : own));

  // the axis of curve and map: the latency, if there is one, since at a small batch it decides
  const number = Math.max(0, data.axes.findIndex((axis) => axis.name.endsWith(".allreduce_floor_s")));

  function drawCurve() {
    const axis = data.axes[number];
    const [scale, unit] = scaleOf(axis.name, axis.values[axis.values.length - 1]);
    const steps = Array.from({ length: 49 }, (_, step) => (step * (axis.values.length - 1)) / 48);
    const lines = data.variants.slice(1).map((variant) => ({
      type: "scatter",
      mode: "lines",
      name: variant.name,
      x: steps.map((step) => valueAt(axis, step) / scale),
      y: steps.map((step) => speedup(variant, place.batch, along(number, step))),
      line: { color: colour(variant), width: 2.5 },
      hovertemplate: "%{y:.2f}x",
    }));
    const now = valueAt(axis, place.at[number]) / scale;
    const ticks = (low, high) => {
      const ticks = roundTicks(low, high);
      return { type: "log", tickmode: "array", tickvals: ticks, ticktext: ticks.map((tick) => String(Number(tick.toPrecision(3)))) };
    };
    const speedups = lines.flatMap((one) => one.y);
    const highest = Math.max(1, ...speedups);
    const more = {
      hovermode: "x unified",
      xaxis: { ...ticks(axis.values[0] / scale, axis.values[axis.values.length - 1] / scale), title: { text: `${axis.title} (${unit})` }, unifiedhovertitle: { text: `%{x:.3~g} ${unit}` } },
      // an upper bound would press all others flat
      yaxis: { ...(highest > 3 ? ticks(Math.min(1, ...speedups), highest) : {}), title: { text: "speedup over standard" } },
      shapes: [{ type: "line", x0: now, x1: now, yref: "paper", y0: 0, y1: 1, line: { color: "#D55E00", width: 1, dash: "dash" } }],
    };
    element("curve-title").textContent = `Speedup by ${axis.title.toLowerCase()}`;
    window.Plotly.react("curve", lines, layout(more), CONFIG);
  }

  function drawMap() {
    const up = data.axes[number];
    const chosen = data.variants.find((variant) => variant.name.includes("ladder")) || data.variants[data.variants.length - 1];
    const rows = Array.from({ length: 40 }, (_, step) => (step * (up.values.length - 1)) / 39);
    const z = rows.map((row) => data.batches.map((_, batch) => speedup(chosen, batch, along(number, row))));
    const flat = z.flat();
    const pays = Math.min(...flat) < 1;
    const ticks = (title, tickvals, ticktext) => ({ tickmode: "array", tickvals, ticktext, showgrid: false, title: { text: title } });
    const marked = rows.map((_, index) => index).filter((index) => index % 13 === 0);
    const x = ticks(data.load, data.batches.map((_, index) => index), data.batches.map(String));
    const y = ticks(up.title, marked, marked.map((index) => shown(up.name, valueAt(up, rows[index]))));
    const traces = [{ type: "heatmap", z, colorscale: pays ? "RdBu" : "Cividis", ...(pays ? { zmid: 1 } : {}), colorbar: { thickness: 10 }, hovertemplate: "speedup %{z:.3f}<extra></extra>" }];
    if (pays && Math.max(...flat) > 1) {
      traces.push({ type: "contour", z, contours: { start: 1, end: 1, size: 1, coloring: "none" }, line: { color: dark() ? "#E4E7EB" : "#262626", width: 3 }, showscale: false, hoverinfo: "skip" });
    }
    const here = (39 * place.at[number]) / (up.values.length - 1);
    traces.push({ type: "scatter", mode: "markers", x: [place.batch], y: [here], hoverinfo: "skip", showlegend: false, marker: { color: "#D55E00", size: 13, symbol: "diamond", line: { color: "white", width: 1.5 } } });
    element("map-title").textContent = `Where it pays: ${chosen.name} over standard`;
    window.Plotly.react("map", traces, layout({ xaxis: x, yaxis: y }), CONFIG);
  }

  /* Figures that no slider moves. */
  function drawReports() {
    for (const [name, schemes] of Object.entries(data.figures)) {
      const figure = schemes[dark() ? "dark" : "light"];
      window.Plotly.react(name, figure.data, figure.layout, CONFIG);
    }
  }

  const key = () => JSON.stringify(place);
  let waiting = 0;

  function draw() {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => {
      drawCards();
      drawTimes();
      drawCurve();
      drawMap();
    });
  }

  function slider(id, title, max, step, position, text) {
    const row = document.createElement("div");
    row.className = "slider";
    const label = document.createElement("label");
    label.textContent = title;
    label.htmlFor = id;
    const value = document.createElement("output");
    const input = document.createElement("input");
    Object.assign(input, { id, type: "range", min: 0, max, step });
    input.className = "range";
    input.value = position();
    const update = () => (value.textContent = text());
    input.addEventListener("input", () => {
      if (id === "batch") place.batch = Number(input.value);
      else place.at[Number(id.replace("axis-", ""))] = Number(input.value);
      update();
      draw();
    });
    row.append(label, value, input);
    update();
    return row;
  }

  function sliders() {
    element("sliders").replaceChildren(
      slider("batch", data.load, data.batches.length - 1, 1, () => place.batch, () => String(data.batches[place.batch])),
      ...data.axes.map((axis, number) =>
        slider(`axis-${number}`, axis.title, axis.values.length - 1, 0.02, () => place.at[number], () => shown(axis.name, valueAt(axis, place.at[number]))),
      ),
    );
  }

  function start() {
    home();
    home.key = key();
    sliders();
    draw();
  }

  element("summary").textContent = data.summary;
  element("command").textContent = data.command;
  const measured = document.createElement("p");
  measured.textContent = `${Math.round(100 * data.measured)}% of standard's time is measured at the start. ${data.validated} Between grid values times are interpolated in logarithms.`;
  const notes = document.createElement("ul");
  notes.className = "warnings";
  for (const note of data.notes) notes.append(Object.assign(document.createElement("li"), { textContent: note }));
  element("evidence").append(measured, notes);
  element("reset").addEventListener("click", start);
  element("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    element("theme").textContent = dark() ? "Light" : "Dark";
    draw();
    drawReports();
  });
  if (matchMedia("(prefers-color-scheme: dark)").matches) element("theme").click();
  start();
  drawReports();
})();
