/* The page's script: a control changes the link, and the link is the question. Nothing here computes a prediction. */
(() => {
  "use strict";

  const $ = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const start = JSON.parse($("#state").textContent);
  const held = window.LADDER_ANSWERS;
  const REST_MS = 150;
  const VIEWS = all("[data-tab]").map((tab) => tab.dataset.tab);

  let reply = start.reply; // the latest
  let answered = ""; // the link of the answer on the page
  let asking = null; // the question on its way
  let next = null; // the question that waits for it: the latest wins
  let rest = 0;

  /* A link with its fields in one order, without empty ones and without the view. */
  const sorted = (query) => {
    const fields = [...new URLSearchParams(query)].filter(([key, value]) => value && key !== "view" && key !== "pin");
    return new URLSearchParams(fields.sort(([a], [b]) => (a < b ? -1 : 1))).toString();
  };
  const keyed = (table) => Object.fromEntries(Object.entries(table).map(([key, value]) => [sorted(key), value]));
  const replies = held && keyed(held.replies);
  const panels = held && Object.fromEntries(
    Object.entries(held.panels).map(([key, value]) => [`${key.split("?")[0]}?${sorted(key.split("?")[1] || "")}`, value]),
  );

  const banner = (text) => `<div class="banner"><p><strong>${text}</strong></p></div>`;

  async function fetched(address) {
    for (let wait = 100; ; wait = Math.min(2 * wait, 2000)) {
      try {
        return await (await fetch(address)).json();
      } catch {
        // lost on its way: asked again
        await new Promise((done) => setTimeout(done, wait));
      }
    }
  }

  /* A copy keeps no view: its replies are those of the question alone. */
  function answerOf(query) {
    if (!held) return fetched(`answer?${query}`);
    const missing = { parts: { error: banner("This copy does not hold this question.") }, fields: {}, copies: {} };
    const found = replies[sorted(query)] || missing;
    // groups of lists are held once
    const whole = (html) => html.replace(/<!(\d+)>/g, (_, number) => held.groups[number]);
    const parts = Object.fromEntries(Object.entries(found.parts).map(([id, html]) => [id, whole(html)]));
    return Promise.resolve({ ...found, parts, query });
  }

  const panelOf = (name, query) =>
    held
      ? Promise.resolve(panels[`${name}?${sorted(query)}`] || { html: "<p class='tail'>Not in this copy: ladder-sim explore has it.</p>", figures: {}, command: "" })
      : fetched(`view/${name}?${query}`);

  let link = location.search.slice(1) || start.reply.query; // of the page
  const view = () => new URLSearchParams(link).get("view") || VIEWS[0];

  function address(to, how) {
    link = to;
    try {
      history[how](null, "", `?${to}`);
    } catch {
      // a page on a disk has no history of its own
    }
  }

  /* The link with some fields changed; an empty text is a default. */
  function changed(change) {
    const fields = new URLSearchParams(link);
    for (const [key, value] of new URLSearchParams(change)) {
      if (value) fields.set(key, value);
      else fields.delete(key);
    }
    return fields.toString();
  }

  function go(to) {
    address(to, "pushState");
    ask(to);
  }

  async function ask(to) {
    next = to;
    if (asking !== null) return;
    while (next !== null) {
      asking = next;
      next = null;
      $("#answer").ariaBusy = "true";
      show(await answerOf(asking), asking);
    }
    asking = null;
    $("#answer").ariaBusy = "false";
  }

  function show(told, asked) {
    reply = told.query ? told : { ...told, query: asked };
    const focus = document.activeElement?.id;
    for (const [id, html] of Object.entries(told.parts)) document.getElementById(id).innerHTML = html;
    document.body.classList.toggle("stale", Boolean(told.parts.error));
    for (const [key, [value, hint]] of Object.entries(told.fields)) fill(key, value, hint);
    if (focus && !document.activeElement?.id) document.getElementById(focus)?.focus({ preventScroll: true });
    if (!told.parts.error) {
      if (told.query && next === null) address(told.query, "replaceState");
      answered = told.query;
      all("[data-file]").forEach(download);
      clearTimeout(rest);
      rest = setTimeout(() => {
        open();
        all("#answer [data-view]").forEach(load);
      }, shown ? REST_MS : 0);
    }
  }

  function fill(key, value, hint) {
    for (const field of all(`[data-key="${key}"]`)) {
      field.dataset.was = value;
      if (field === document.activeElement) continue;
      if (field.type === "checkbox") field.checked = value === "1";
      else field.value = value;
      if (field.tagName === "SELECT") field.options[0].textContent = hint || "as usual";
      else field.placeholder = hint;
    }
  }

  function download(file) {
    file.hidden = Boolean(held);
    file.href = `download/${file.dataset.file}?${answered}`;
    file.download = "";
  }

  /* Views: computed when they are opened, for the answer on the page. */
  let shown = "";
  function open() {
    const name = view();
    for (const tab of all("[data-tab]")) {
      tab.ariaSelected = String(tab.dataset.tab === name);
      tab.tabIndex = tab.dataset.tab === name ? 0 : -1;
    }
    const panel = $("#view");
    panel.setAttribute("aria-labelledby", `tab-${name}`);
    panel.dataset.view = name;
    load(panel);
  }

  async function load(box) {
    const name = box.dataset.view;
    const wanted = `${name}?${answered}`;
    if (box.dataset.asked === wanted || (box.closest("details.fold") && !box.closest("details.fold").open)) return;
    const unfolded = box.dataset.shows === name ? all("details[open] > [data-view]", box).map((each) => each.dataset.view) : [];
    box.dataset.asked = wanted;
    const began = performance.now();
    const wait = setInterval(() => {
      const seconds = Math.round((performance.now() - began) / 1000);
      let said = $(":scope > .busy", box);
      if (!said) {
        said = Object.assign(document.createElement("p"), { className: "busy tail" });
        said.setAttribute("role", "status");
        box.prepend(said);
      }
      said.textContent = `Computing${seconds > 1 ? `, ${seconds} s` : ""} \u2026`;
    }, 300);
    const panel = await panelOf(name, answered);
    clearInterval(wait);
    if (box.dataset.asked !== wanted || !box.isConnected) return;
    const focus = box.contains(document.activeElement) ? document.activeElement.id : "";
    box.innerHTML = panel.html;
    box.dataset.shows = name;
    if (box.id === "view") {
      shown = name;
      $("#command").textContent = panel.command || reply.copies.cli || "";
    }
    if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
    all("[data-file]", box).forEach(download);
    for (const [key, [value, hint]] of Object.entries(reply.fields)) if ($(`[data-key="${key}"]`, box)) fill(key, value, hint);
    await draw(panel.figures);
    for (const inner of all("[data-view]", box)) {
      const fold = inner.closest("details.fold");
      if (fold && unfolded.includes(inner.dataset.view)) fold.open = true;
      load(inner);
    }
  }

  document.addEventListener("toggle", ({ target }) => {
    if (target.matches?.("details.fold") && target.open) all(":scope > [data-view]", target).forEach(load);
  }, true);

  /* Figures; plotly is loaded with the first of them. */
  let plotly = null;
  const drawn = {};
  const library = () => (plotly ||= new Promise((done) => {
    const script = Object.assign(document.createElement("script"), { src: "plotly.min.js", onload: done });
    document.head.append(script);
  }));

  async function draw(figures) {
    if (!Object.keys(figures).length) return;
    await library();
    for (const [id, figure] of Object.entries(figures)) {
      const box = document.getElementById(id);
      if (!box) continue;
      drawn[id] = figure;
      const dark = document.documentElement.dataset.theme === "dark";
      const text = JSON.stringify(figure);
      const { data, layout } = JSON.parse(dark ? text.replace(/"(#[0-9A-Fa-f]{6}|white)"/g, (all_, colour) => `"${start.dark[colour] || start.dark[colour.toUpperCase()] || colour}"`) : text);
      if (box.clientWidth < 500) layout.legend = { ...layout.legend, orientation: "h" };
      const axis = layout.xaxis || {};
      // every second name on a phone, level: they would be turned
      if (box.clientWidth < 400 && axis.tickvals?.length > 6) {
        for (const each of ["tickvals", "ticktext"]) axis[each] = axis[each].filter((_, at) => at % 2 === 0);
      }
      window.Plotly.react(box, data, { ...layout, autosize: true }, { displaylogo: false, displayModeBar: false, responsive: true });
    }
  }

  function theme(name) {
    document.documentElement.dataset.theme = name;
    $("#theme").textContent = name === "dark" ? "Light" : "Dark";
    const there = Object.fromEntries(Object.entries(drawn).filter(([id]) => document.getElementById(id)?.data));
    draw(there);
  }

  /* Storage may be off: then the system decides each time. */
  const kept = (set) => {
    try {
      if (set) localStorage.setItem("ladder-sim-theme", set);
      return localStorage.getItem("ladder-sim-theme");
    } catch {
      return null;
    }
  };

  /* Says it on the screen, where it fades, and to screen readers. */
  function say(text) {
    const said = document.createElement("span");
    said.textContent = text;
    $("#said").replaceChildren(said);
  }

  async function copy(what) {
    const text = what === "link" ? `${location.href.split("?")[0]}?${link}` : what === "command" ? $("#command").textContent : reply.copies[what];
    try {
      await navigator.clipboard.writeText(text);
      say(what === "link" ? "Link copied" : "Copied");
    } catch {
      // forbidden, or the page comes over plain http from another machine
      say("The browser does not let the page copy: select the text instead");
    }
  }

  function reveal(what) {
    if (what === "settings" || what === "help") {
      document.getElementById(what).showModal();
      if (what === "settings") $("#find").focus();
    } else if (what === "upload") $("#upload").click();
    else go(changed("view=load"));
  }

  async function upload(file) {
    if (!file) return;
    // no more than the server needs to see that it is too much
    const answer = await (await fetch(`model?${encodeURIComponent(file.name)}`, { method: "POST", body: file.slice(0, 1_000_001) })).json();
    if (answer.error) {
      $("#error").innerHTML = answer.error;
      return;
    }
    go(changed(new URLSearchParams({ model: answer.model, shape: answer.shape, tp: "", pp: "", ep: "", attention_dp: "", dp: "", sp: "" })));
  }

  function pin() {
    const fields = new URLSearchParams(link);
    const pins = fields.getAll("pin");
    fields.delete("pin");
    fields.delete("view");
    const own = fields.toString();
    const to = new URLSearchParams(link);
    to.delete("pin");
    [...pins, own].slice(-2).forEach((each) => to.append("pin", each));
    say("Pinned: change the question to compare");
    go(to.toString());
  }

  document.addEventListener("change", ({ target }) => {
    if (target.matches("#question select, [data-changes]")) {
      if (!target.value.startsWith("@")) return go(changed(`${target.dataset.clears || ""}&${target.value}`));
      const what = target.value.slice(1);
      target.selectedIndex = 0;
      return reveal(what);
    }
    if (target.id === "upload") {
      upload(target.files[0]);
      // the same file again is a change again
      target.value = "";
    }
    const { key, was } = target.dataset;
    if (!key) return undefined;
    const change = new URLSearchParams();
    // the figures that the field had are gone
    if (key === "settings") for (const part of (was || "").split(",")) change.set(part.split("=")[0].trim(), "");
    change.set(key, target.type === "checkbox" ? (target.checked ? "1" : "") : target.value.trim());
    change.delete("");
    if (key === "model") change.set("shape", "");
    go(changed(change));
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!event.target.closest("#export")) $("#export").open = false;
    if (!button) return undefined;
    const { tab, copy: what, open: part, close, change, serve } = button.dataset;
    if (tab) go(changed(`view=${tab === VIEWS[0] ? "" : tab}`));
    else if (what) copy(what);
    else if (part) reveal(part);
    else if (close) document.getElementById(close).close();
    else if (change !== undefined) go(changed(change));
    else if (serve !== undefined) go(changed(`rate=${$('[data-key="rate"]').value || $('[data-key="rate"]').placeholder}`));
    else if (button.id === "theme") {
      const other = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      kept(other);
      theme(other);
    }
    else if (button.id === "pin") pin();
    else if (button.id === "unpin") go(changed("pin="));
    return undefined;
  });

  document.addEventListener("keydown", (event) => {
    const { target, key } = event;
    const lane = target.closest?.(".lane");
    const tabs = target.closest?.("[role=tablist]");
    const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (lane && step) {
      const bars = all("[tabindex]", lane);
      const to = bars[bars.indexOf(target) + step];
      if (to) {
        target.tabIndex = -1;
        to.tabIndex = 0;
        to.focus();
      }
      event.preventDefault();
    } else if (tabs && step) {
      const to = VIEWS[(VIEWS.indexOf(target.dataset.tab) + step + VIEWS.length) % VIEWS.length];
      $(`#tab-${to}`).focus();
      $(`#tab-${to}`).click();
    }
    if (/INPUT|SELECT|TEXTAREA/.test(target.tagName) || event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
    const act = {
      "/": () => $("#ask-model").focus(),
      s: () => copy("link"),
      e: () => { $("#export").open = true; $("#export summary").focus(); },
      p: () => $("#pin")?.click(),
      "?": () => reveal("help"),
    }[key] || (VIEWS[Number(key) - 1] && (() => $(`#tab-${VIEWS[Number(key) - 1]}`).click()));
    if (act) {
      event.preventDefault();
      act();
    }
  });

  /* A bar of a lane says what it is. */
  const tell = ({ target }) => {
    if (target.matches?.(".lane [role=img]") && $("#op")) $("#op").textContent = target.ariaLabel;
  };
  document.addEventListener("pointerover", tell);
  document.addEventListener("focusin", tell);

  $("#find").addEventListener("input", ({ target }) => {
    const sought = target.value.trim().toLowerCase();
    for (const row of all("#settings .set")) row.hidden = !`${row.textContent} ${$("[data-key]", row).dataset.key}`.toLowerCase().includes(sought);
    for (const group of all("#settings fieldset")) group.hidden = !$(".set:not([hidden])", group);
  });

  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    upload(event.dataTransfer.files[0]);
  });

  window.addEventListener("popstate", () => {
    link = location.search.slice(1) || start.reply.query;
    ask(link);
  });

  theme(kept() || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  if (held && sorted(link) !== sorted(start.reply.query)) ask(link);
  else show(start.reply, link);
})();
