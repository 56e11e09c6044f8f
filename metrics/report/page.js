"use strict";
// Draws the charts of the page as they come into view, sorts and filters by the table of results, plays the rounds.
(() => {
  const views = new Map(); // name of a chart -> its view
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let charts = {}, look = {};

  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (tag, more = {}, ...inside) => {
    const made = Object.assign(document.createElement(tag), more);
    made.append(...inside);
    return made;
  };

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  const rows = (table) => {
    const names = Object.keys(table), count = names.length ? table[names[0]].length : 0;
    return Array.from({ length: count }, (_, k) => Object.fromEntries(names.map((name) => [name, table[name][k]])));
  };

  function change(spec, path, value) {
    const way = path.split("."), last = way.pop();
    way.reduce((place, step) => place[step], spec)[last] = value;
  }

  const chosen = () => $$("#results tbody tr").filter((row) => $("input", row).checked).map((row) => $(".name", row).textContent);

  // ---- charts

  function specOf(figure) {
    const chart = charts[figure.dataset.chart], spec = structuredClone(chart.spec);
    for (const select of $$("select", figure))
      for (const [path, value] of Object.entries(chart.choices[select.name][select.value])) change(spec, path, value);
    spec.datasets = Object.fromEntries(Object.entries(chart.tables).map(([name, table]) => [name, rows(table)]));
    spec.data ??= { name: Object.keys(chart.tables)[0] };
    if (spec.facet) {
      spec.columns = Math.max(1, Math.round(figure.clientWidth / 175));
      spec.spec.width = Math.floor((figure.clientWidth - 40) / spec.columns) - spec.spacing - 8;
    }
    if (typeof spec.width === "number") spec.width = Math.min(spec.width, figure.clientWidth - 150);
    const columns = Math.max(1, Math.floor(figure.clientWidth / 170));
    spec.config = { ...look, legend: { ...look.legend, columns } };
    spec.description = $("h2, h3", figure).textContent + ". " + $("figcaption", figure).textContent;
    for (const param of spec.params ?? []) {
      if (param.name === "shown") param.value = param.value.filter((name) => chosen().includes(name));
      if (param.name === "round") param.value = roundOf(figure);
    }
    return spec;
  }

  async function draw(figure) {
    const name = figure.dataset.chart;
    views.get(name)?.finalize();
    views.set(name, await vegaEmbed($(".drawn", figure), specOf(figure), { ast: true, actions: false, renderer: "svg", logLevel: 1 }));
    for (const part of $$(".drawn g[class*=voronoi]", figure)) part.setAttribute("aria-hidden", "true"); // what senses the pointer
    figure.dataset.ready = "";
  }

  function prepare(figure) {
    const chart = charts[figure.dataset.chart];
    for (const [control, options] of Object.entries(chart.choices)) {
      if (Object.keys(options).length < 2) continue;
      const select = make("select", { name: control }, ...Object.keys(options).map((each) => make("option", {}, each)));
      select.addEventListener("change", () => draw(figure));
      $(".controls", figure).append(make("label", {}, control + " ", select));
    }
    const again = make("button", { type: "button", textContent: "reset zoom" });
    again.addEventListener("click", () => draw(figure));
    if (JSON.stringify(chart.spec).includes('"bind":"scales"')) $(".controls", figure).append(again);
    const values = $("details.values", figure);
    values.addEventListener("toggle", () => {
      if (!values.open || $("table", values)) return;
      for (const [name, table] of Object.entries(chart.tables)) values.append(tableOf(name, table));
    });
  }

  function tableOf(name, table, most = 300) {
    const names = Object.keys(table), count = names.length ? table[names[0]].length : 0;
    const head = make("tr", {}, ...names.map((each) => make("th", { scope: "col", textContent: each })));
    const cell = (value) => make("td", { textContent: value ?? "" });
    const body = Array.from({ length: Math.min(count, most) }, (_, k) => make("tr", {}, ...names.map((each) => cell(table[each][k]))));
    const more = count > most ? ` (the first ${most} of ${count} rows)` : "";
    const made = make("table", {}, make("caption", { textContent: name + more }), make("thead", {}, head), make("tbody", {}, ...body));
    const wide = make("div", { className: "wide", tabIndex: 0 }, made);
    wide.setAttribute("role", "region");
    wide.setAttribute("aria-label", `values: ${name}`);
    return wide;
  }

  // ---- the table of results

  function sortable(table) {
    $$("thead th", table).forEach((head, column) => {
      const button = make("button", { type: "button" }, ...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of $$("thead th", table)) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const key = (row) => row.children[column].textContent.trim();
        const amount = (text) => (/^[<>≈]?\s*-?[\d.,]/.test(text) ? parseFloat(text.replace(/[<>≈,\s]/g, "")) : NaN);
        const sorted = $$("tbody tr", table).sort((one, other) => {
          const [a, b] = [key(one), key(other)], [x, y] = [amount(a), amount(b)];
          const order = isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) || a.localeCompare(b) : x - y;
          return up ? order : -order;
        });
        $("tbody", table).append(...sorted);
      });
    });
  }

  function selectable(table) {
    const boxes = $$("tbody input", table);
    if (boxes.length < 2) return;
    for (const box of boxes) {
      box.hidden = false;
      box.addEventListener("change", () => {
        for (const [name, { view }] of views) {
          const param = (charts[name].spec.params ?? []).find((each) => each.name === "shown");
          if (param) view.signal("shown", param.value.filter((each) => chosen().includes(each))).runAsync();
        }
      });
    }
  }

  // ---- one method, and the rounds

  const framesOf = (figure) => [...new Set(charts[figure.dataset.chart].tables.edges.round)];
  const isGraph = (figure) => (charts[figure.dataset.chart].spec.params ?? []).some((each) => each.name === "round");

  function roundOf(figure) {
    const frames = framesOf(figure), slider = $("#round");
    return frames[Math.round((slider.value / Math.max(1, slider.max)) * (frames.length - 1))];
  }

  function toRound() {
    for (const figure of $$("#one > div:not([hidden]) figure").filter(isGraph)) {
      const round = roundOf(figure);
      $("#at").textContent = round;
      $("#round").setAttribute("aria-valuetext", `round ${round}`);
      views.get(figure.dataset.chart)?.view.signal("round", round).runAsync();
    }
  }

  function playable() {
    const slider = $("#round"), play = $("#play");
    if (!slider) return;
    let timer = 0;
    const stop = () => ((timer = clearInterval(timer) ?? 0), (play.textContent = "▶"));
    slider.addEventListener("input", toRound);
    play.addEventListener("click", () => {
      if (timer) return stop();
      if (slider.value === slider.max) slider.value = 0;
      play.textContent = "❚❚";
      timer = setInterval(() => {
        slider.value = +slider.value + 1;
        toRound();
        if (slider.value === slider.max) stop();
      }, 250);
    });
    toRound();
  }

  function only(name) {
    for (const part of $$("#one > div")) {
      part.hidden = part.dataset.of !== name;
      for (const figure of $$("figure", part)) if (!part.hidden && !("ready" in figure.dataset)) draw(figure);
    }
    toRound();
  }

  // ---- start

  function themed() {
    const css = getComputedStyle(document.documentElement), of = (name) => css.getPropertyValue(name).trim();
    const [ink, soft, grid] = [of("--ink"), of("--soft"), of("--grid")];
    const axis = { domainColor: soft, tickColor: soft, gridColor: grid, labelColor: ink, titleColor: ink };
    const words = { labelColor: ink, titleColor: ink };
    const merged = structuredClone(charts[""]);
    Object.assign(merged.axis, axis);
    Object.assign(merged.legend, words);
    Object.assign(merged.header, words);
    Object.assign(merged, { text: { fill: ink }, title: { ...merged.title, color: ink } });
    return merged;
  }

  async function start() {
    charts = await unpack($("#charts").textContent);
    look = themed();
    const table = $("#results");
    if (table) (sortable(table), selectable(table));
    const figures = $$("figure[data-chart]");
    figures.forEach(prepare);
    const seen = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries)
        if (isIntersecting) (seen.unobserve(target), draw(target));
    }, { rootMargin: "300px" });
    const method = $("#method");
    if ($("#one")) only(method ? method.value : $("#one > div").dataset.of);
    method?.addEventListener("change", () => only(method.value));
    playable();
    for (const figure of figures) seen.observe(figure);
    const again = async () => {
      look = themed();
      for (const figure of figures) if ("ready" in figure.dataset) await draw(figure);
    };
    dark.addEventListener("change", again);
    const rest = async () => {
      for (const figure of figures)
        if (!("ready" in figure.dataset) && figure.offsetParent) (seen.unobserve(figure), await draw(figure));
      document.documentElement.dataset.ready = "";
    };
    (window.requestIdleCallback ?? setTimeout)(rest);
  }
  start();
})();
