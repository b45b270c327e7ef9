/* The page's script: controls -> query -> link. The server answers queries; nothing here computes a prediction. */
(function () {
  "use strict";

  const SPACING_MS = 60;
  const PATIENCE_MS = 1500;
  const REST_MS = 120;
  // as in explorer.css
  const NARROW = matchMedia("(max-width: 900px)");

  const skip = () => window.dash_clientside.no_update;
  const context = () => window.dash_clientside.callback_context;
  const keyOf = (id) => id.replace(/^c-/, "").replace(/-slider$/, "").replaceAll("-", ".");
  const idOf = (key) => "c-" + key.replaceAll(".", "-");

  const page = {
    defaults: {}, // what a query leaves out
    opened: null, // the query as it was opened, until a control moves
    slid: null, // the field that a slider has just written
    sliding: null, // the field that a slider wrote last, if nothing else has changed since
    shape: null, // an uploaded model, as a query holds it
    placed: {}, // where the server's answer has put each slider
    texts: {}, // what the server's answer has written next to it
    send: null, // the query that waits to be sent
    query: "", // the latest
    asked: "", // the query that was sent last
    sentAt: 0,
    unanswered: false,
    timer: 0,
    rest: null, // the query that the other views wait for
    restTimer: 0,
  };

  /* One query on its way at a time, the latest wins. */
  function later(query) {
    return new Promise((resolve) => {
      if (page.send) page.send.resolve(skip());
      page.send = { query, resolve };
      page.query = query;
      schedule();
    });
  }

  function schedule() {
    clearTimeout(page.timer);
    const wait = (page.unanswered ? PATIENCE_MS : SPACING_MS) - (performance.now() - page.sentAt);
    page.timer = setTimeout(() => {
      if (!page.send) return;
      const { query, resolve } = page.send;
      page.send = null;
      page.asked = query;
      page.sentAt = performance.now();
      page.unanswered = true;
      document.getElementById("results").ariaBusy = "true";
      resolve(query);
    }, Math.max(0, wait));
  }

  /* Of an uploaded model; a link may hold any text instead. */
  function nameOf(shape) {
    try {
      return String(JSON.parse(shape).name);
    } catch {
      return "damaged";
    }
  }

  function variantsOf(values) {
    const chosen = values.variants || [];
    const usual = page.defaults.variants;
    const others = String(values.others || "").split(",").map((name) => name.trim()).filter(Boolean);
    if (!others.length && chosen.length === usual.length && usual.every((name) => chosen.includes(name))) return "";
    const amount = { "hybrid-ladder": values.layers, desync: values.every };
    const names = chosen.map((name) => (name in amount ? `${name}:${amount[name] ?? ""}` : name));
    return ["standard", ...names, ...others].join(",");
  }

  function queryOf(values, pins) {
    const query = new URLSearchParams();
    const put = (key, value) => {
      if (value !== null && value !== undefined && String(value).trim() && (key === "model" || String(value) !== page.defaults[key])) {
        query.append(key, String(value).trim());
      }
    };
    put("model", page.shape ? nameOf(page.shape) : values.model);
    put("shape", page.shape);
    for (const [key, value] of Object.entries(values)) {
      if (["model", "variants", "layers", "every", "others", "settings"].includes(key)) continue;
      put(key, Array.isArray(value) ? value[0] : value);
    }
    for (const part of String(values.settings || "").split(",")) {
      const [key, ...rest] = part.split("=");
      if (key.trim()) query.append(key.trim(), rest.join("=").trim());
    }
    put("variants", variantsOf(values));
    (pins || []).forEach((pin) => query.append("pin", pin));
    return query.toString();
  }

  function spread(visit, start, defaults) {
    page.defaults = defaults;
    // above the results only the names of the controls' groups have room; one that the reader opens shows in full
    if (!visit && NARROW.matches) document.querySelectorAll(".section").forEach((group) => (group.open = false));
    page.sliding = null;
    const query = window.location.search.replace(/^\?/, "") || start || "";
    const given = new URLSearchParams(query);
    const settings = [];
    const known = context().outputs_list.map((output) => keyOf(output.id));
    for (const [key, value] of given) if (key.includes(".") && !known.includes(key)) settings.push(`${key}=${value}`);
    const variants = given.get("variants");
    const named = variants ? variants.split(",") : defaults.variants;
    const amount = (family) =>
      Number((named.find((name) => name.startsWith(`${family}:`)) || `:${defaults.amounts[family]}`).split(":")[1]);
    // a tick box stands for its name, or for its name and one number
    const amounts = Object.keys(defaults.amounts);
    const boxed = (name) => defaults.variants.includes(name) || amounts.some((family) => new RegExp(`^${family}:[^:]*$`).test(name));
    page.opened = query;
    page.shape = given.get("shape");
    document.getElementById("guide").open = !query;
    const values = {
      model: page.shape ? null : given.get("model") || defaults.model,
      variants: named.filter(boxed).map((name) => name.split(":")[0]),
      others: named.filter((name) => !boxed(name) && name !== "standard").join(", "),
      layers: amount("hybrid-ladder"),
      every: amount("desync"),
      settings: settings.join(", "),
      ...Object.fromEntries(defaults.switches.map((key) => [key, given.get(key) ? ["1"] : []])),
      pins: given.getAll("pin"),
      shape: page.shape,
    };
    return known.map((key) => (key in values ? values[key] : given.get(key) ?? defaults[key] ?? (defaults.doubling.includes(key) || key.includes(".") ? "" : null)));
  }

  function gather() {
    const inputs = context().inputs_list;
    const values = {};
    for (const input of inputs) values[keyOf(input.id)] = input.value;
    const { pins, shape } = values;
    delete values.pins;
    delete values.shape;
    const changed = (context().triggered || []).map((input) => input.prop_id.split(".")[0]);
    if (page.opened !== null) {
      // as it was opened, mistakes included: the server says what is wrong with it
      const query = page.opened;
      page.opened = null;
      if (query && !window.location.search) window.history.replaceState(null, "", `?${query}`);
      return later(query);
    }
    if (changed.includes("shape")) page.shape = shape;
    else if (changed.includes(idOf("model"))) page.shape = values.model ? null : shape;
    const query = queryOf(values, pins);
    // Back undoes a change; all that one slider does is one
    const goesOn = page.slid !== null && page.slid === page.sliding;
    page.sliding = page.slid;
    page.slid = null;
    window.history[goesOn ? "replaceState" : "pushState"](null, "", `?${query}`);
    return later(query);
  }

  // links within the page come here too
  window.addEventListener("popstate", () => {
    if (window.location.search !== `?${page.query}`) window.dash_clientside.set_props("visit", { data: performance.now() });
  });

  /* The list of models also offers the one that was uploaded. */
  function own_model(shape) {
    return shape ? nameOf(shape) : "";
  }

  /* The other views follow when the headline is there and no control has moved for a moment. */
  function settle(query) {
    return new Promise((resolve) => {
      if (page.rest) page.rest.resolve(skip());
      page.rest = { query, resolve };
    });
  }

  function rest() {
    clearTimeout(page.restTimer);
    page.restTimer = setTimeout(() => {
      // a newer query comes here again when it is answered
      if (!page.rest || page.send || page.unanswered) return;
      page.rest.resolve(page.rest.query);
      page.rest = null;
    }, REST_MS);
  }

  function link(query) {
    document.querySelectorAll("[data-file]").forEach((anchor) => {
      anchor.setAttribute("href", `/download/${anchor.dataset.file}?${query}`);
    });
  }

  const UNITS = [
    ["bandwidth", [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"]]],
    ["allreduce_floor", [[1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]]],
    ["flops", [[1e15, "PFLOP/s"], [1e12, "TFLOP/s"]]],
  ];

  function typed(key, position) {
    if (page.defaults.doubling.includes(key)) return String(2 ** position);
    const value = Number((10 ** position).toPrecision(2));
    const units = (UNITS.find(([ending]) => key.endsWith(ending)) || [])[1] || [[1, ""]];
    const [scale, unit] = units.find(([size]) => value >= size * 0.9999) || units[units.length - 1];
    return `${Number((value / scale).toPrecision(3))}${unit}`;
  }

  function slide(position, id) {
    const key = keyOf(id);
    const placed = page.placed[key];
    if (placed === undefined || Math.abs(Number(position) - placed) < 1e-6) return skip();
    page.placed[key] = Number(position);
    page.slid = key;
    return typed(key, Number(position));
  }

  /* Puts an answer on the page, and the controls where the scenario is. */
  function show(answer) {
    page.unanswered = false;
    schedule();
    rest();
    document.getElementById("results").ariaBusy = "false";
    // files are those of the answer on the page, also when a later question has none
    if (!answer.views.error) link(page.asked);
    for (const [id, text] of Object.entries(answer.views)) document.getElementById(id).innerHTML = text;
    return context().outputs_list.map((output) => {
      const key = keyOf(output.id);
      const fact = answer.facts[key];
      if (!fact) return skip();
      if (output.property === "placeholder") {
        if (page.texts[key] === fact.text) return skip();
        page.texts[key] = fact.text;
        return fact.text;
      }
      const slider = document.getElementById(output.id);
      slider.ariaValueText = fact.text;
      // never under the reader's hand
      if (slider === document.activeElement && page.sliding === key) return skip();
      const exact = page.defaults.doubling.includes(key) ? Math.round(Math.log2(fact.value)) : Math.round(Math.log10(fact.value) * 50) / 50;
      const position = Math.min(Number(slider.max), Math.max(Number(slider.min), exact));
      if (page.placed[key] === position) return skip();
      page.placed[key] = position;
      return position;
    });
  }

  function reset() {
    return context().outputs_list.map(() => "");
  }

  /* From now on requests arrive, at the rate that the field shows. */
  function serve(_clicks, rate) {
    return rate || page.texts.rate;
  }

  /* Shows another scenario, from one of its views on. */
  function go(link, place) {
    window.history.pushState(null, "", link);
    window.dash_clientside.set_props("visit", { data: performance.now() });
    const view = document.getElementById(place);
    view.focus({ preventScroll: true });
    view.scrollIntoView();
  }

  /* Links of tables lead to scenarios. */
  document.addEventListener("click", (event) => {
    const anchor = event.target.closest(".tables a");
    if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(anchor.getAttribute("href"), "cards");
  });

  /* Shows the answer to the three questions: their scenario, and the view that the last one is about. */
  function guide(_clicks, model, cluster, nodes, aim) {
    const { fields, place } = page.defaults.aims[Number(aim)];
    const query = new URLSearchParams({ model });
    if (cluster !== page.defaults.cluster) query.append("cluster", cluster);
    if (nodes > 1) query.append("nodes", nodes);
    for (const [key, value] of Object.entries(fields)) query.append(key, value);
    go(`?${query}`, place);
    return skip();
  }

  function pin(_pinned, _unpinned, pins, query) {
    if (context().triggered[0].prop_id.startsWith("unpin")) return [];
    say("Pinned");
    const own = new URLSearchParams(query || "");
    own.delete("pin");
    return [...(pins || []), own.toString()].slice(-2);
  }

  function theme(clicks) {
    let chosen = null;
    try {
      chosen = localStorage.getItem("ladder-sim-theme");
    } catch {
      // storage is off: the system decides each time
    }
    chosen = chosen || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    if (clicks) {
      chosen = chosen === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("ladder-sim-theme", chosen);
      } catch {
        // as above
      }
    }
    document.documentElement.dataset.theme = chosen;
    return [chosen, chosen === "dark" ? "Light" : "Dark"];
  }

  /* Says it on the screen, where it fades, and to screen readers. */
  function say(text) {
    const said = document.createElement("span");
    said.textContent = text;
    document.getElementById("said").replaceChildren(said);
  }

  async function copy(_clicks, id) {
    const what = id.replace("copy-", "");
    const text = what === "link" ? window.location.href : document.getElementById(what).textContent;
    try {
      await navigator.clipboard.writeText(text);
      say(what === "link" ? "Link copied" : "Copied");
    } catch {
      // forbidden, or the page comes over plain http from another machine
      say("The browser does not let the page copy: select the text instead");
    }
    return skip();
  }

  function png(_clicks, id) {
    const name = id.replace("png-", "");
    const drawn = document.querySelector(`#${name} .js-plotly-plot`);
    const paper = getComputedStyle(document.documentElement).getPropertyValue("--panel");
    const layout = {
      ...drawn.layout,
      title: { text: drawn.layout.meta.title },
      margin: { l: 70, r: 30, t: 98, b: 60 },
      paper_bgcolor: paper,
      autosize: false,
    };
    window.Plotly.downloadImage(
      { data: drawn.data, layout },
      { format: "png", filename: `ladder-sim-${name}`, width: 1100, height: 640, scale: 2 },
    );
    return skip();
  }

  /* A question that is lost on its way, or its answer, is asked again, unless a newer one has taken its place. */
  const ask = window.fetch;
  window.fetch = async (...question) => {
    for (let wait = SPACING_MS; ; wait = Math.min(2 * wait, PATIENCE_MS)) {
      try {
        const answer = await ask(...question);
        const body = answer.status === 204 ? null : await answer.arrayBuffer();
        return new Response(body, { status: answer.status, statusText: answer.statusText, headers: answer.headers });
      } catch (error) {
        await new Promise((resolve) => setTimeout(resolve, wait));
        if (outdated(question[1])) throw error;
      }
    }
  };

  function outdated(request) {
    const { inputs } = JSON.parse(request?.body || "{}");
    return (inputs || []).some(({ id, value }) => ["query", "settled"].includes(id) && value !== page.asked);
  }

  /* A slider reports at most once per SPACING_MS, and when it rests: each time Dash looks through the whole page. */
  let sentAt = 0;
  let pending = 0;
  document.addEventListener(
    "input",
    (event) => {
      const slider = event.target;
      if (slider.type !== "range") return;
      clearTimeout(pending);
      const wait = sentAt + SPACING_MS - performance.now();
      if (wait <= 0) {
        sentAt = performance.now();
        return;
      }
      event.stopPropagation();
      pending = setTimeout(() => slider.dispatchEvent(new Event("input", { bubbles: true })), wait);
    },
    true,
  );

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    explorer: { spread, gather, own_model, settle, slide, show, reset, serve, guide, pin, theme, copy, png },
  });
})();
