"use strict";
// Draws the charts of the page as they come into view, sorts and filters by the table of results, plays the rounds.
(() => {
  const views = new Map(); // name of a chart -> its view
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let charts = {}, look = {}, coloured = (text) => text;

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
    const chart = charts[figure.dataset.chart], spec = JSON.parse(coloured(JSON.stringify(chart.spec)));
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

  // One after the other, so that what comes first is to be seen first.
  let queue = Promise.resolve();
  const pause = () => new Promise((go) => setTimeout(go));
  const draw = (figure) => (figure.drawing = queue = queue.catch(() => {}).then(pause).then(() => drawn(figure)));

  async function drawn(figure) {
    const name = figure.dataset.chart;
    views.get(name)?.finalize();
    const spec = specOf(figure), place = $(".drawn", figure);
    views.set(name, await vegaEmbed(place, spec, { ast: true, actions: false, renderer: "svg", logLevel: 1 }));
    if ("curve" in spec.datasets) tell(figure, spec);
    figure.dataset.ready = "";
  }

  // Tells, beside the pointer, each method's value where it is: at the nearest of its points.
  function tell(figure, spec) {
    const place = $(".drawn", figure), { view } = views.get(figure.dataset.chart);
    const column = /datum\.(\w+)/.exec(spec.transform[1].calculate)[1], title = spec.encoding.x.title;
    const line = make("div", { className: "line", hidden: true }), told = make("div", { className: "told", hidden: true });
    place.append(line, told);
    const hide = () => (line.hidden = told.hidden = true);
    view.addEventListener("pointerout", hide);
    view.addEventListener("pointermove", (event) => {
      const [svg, own] = [$("svg", place), place].map((part) => part.getBoundingClientRect());
      const [left, top] = view.origin(), scale = view.scale("x");
      const at = event.clientX - svg.left - left, high = event.clientY - svg.top - top;
      if (at < 0 || at > view.width() || high < 0 || high > view.height()) return hide();
      const found = nearest(charts[figure.dataset.chart].tables.curve, column, scale, at);
      if (!found.length) return hide();
      const near = found.reduce((one, other) => (Math.abs(other.place - at) < Math.abs(one.place - at) ? other : one));
      const values = found.sort((one, other) => other.value - one.value).map(({ method, value, error, x }) =>
        make("tr", {}, make("th", { scope: "row" }, chip(method), method), make("td", { textContent: precise(value) }),
          make("td", { textContent: error ? `± ${precise(error)}` : "" }),
          make("td", { textContent: x === near.x ? "" : x === null ? "sends nothing" : `at ${precise(x)}` })));
      told.replaceChildren(make("p", { textContent: `${title}: ${precise(near.x ?? scale.invert(at))}` }), make("table", {}, ...values));
      line.hidden = told.hidden = false;
      const from = svg.left - own.left + left + Math.min(Math.max(near.place, 0), view.width()), down = svg.top - own.top + top;
      Object.assign(line.style, { left: `${from}px`, top: `${down}px`, height: `${view.height()}px` });
      const besides = from + 12 + told.offsetWidth > place.clientWidth ? Math.max(0, from - 12 - told.offsetWidth) : from + 12;
      Object.assign(told.style, { left: `${besides}px`, top: `${down + 6}px` });
    });
  }

  const precise = (number) => String(+Number(number).toPrecision(4));
  const chip = (method) => $$("#results tbody tr").find((row) => $(".name", row).textContent === method)?.querySelector("i").cloneNode() ?? "";

  // Of each method that is shown the point that is nearest to the pointer, if the pointer is where its curve is.
  function nearest(curve, column, scale, at) {
    const best = new Map(), shown = chosen(), ends = new Map();
    curve.method.forEach((method, k) => {
      if (!shown.includes(method)) return;
      const x = curve[column][k], known = x !== null && (x > 0 || !column.endsWith("_mb"));
      if (!known && !curve.level[k]) return;
      const place = known ? scale(x) : at, [least, most] = ends.get(method) ?? [place, place];
      ends.set(method, [Math.min(least, place), Math.max(most, place)]);
      if (best.has(method) && Math.abs(best.get(method).place - at) <= Math.abs(place - at)) return;
      best.set(method, { method, place, x: known ? x : null, value: curve.metric[k], error: curve.high[k] - curve.metric[k] });
    });
    return [...best.values()].filter(({ method }) => ends.get(method)[0] - 8 <= at && at <= ends.get(method)[1] + 8);
  }

  const shape = ({ spec, choices }) => JSON.stringify([{ ...spec, params: spec.params?.map((each) => each.name) }, choices]);

  function enter(figure) {
    figure.dataset.entered = "";
    controls(figure);
    const values = $("details.values", figure);
    values.addEventListener("toggle", () => tabulate(figure, values));
    seen.observe(figure);
  }

  function tabulate(figure, values) {
    if (!values.open || $("table", values)) return;
    for (const [name, table] of Object.entries(charts[figure.dataset.chart].tables)) values.append(tableOf(name, table));
  }

  function controls(figure) {
    const chart = charts[figure.dataset.chart], place = $(".controls", figure);
    const before = Object.fromEntries($$("select", figure).map((each) => [each.name, each.value]));
    place.replaceChildren();
    for (const [control, options] of Object.entries(chart.choices)) {
      if (Object.keys(options).length < 2) continue;
      const select = make("select", { name: control }, ...Object.keys(options).map((each) => make("option", {}, each)));
      if (before[control] in options) select.value = before[control];
      select.addEventListener("change", () => draw(figure));
      place.append(make("label", {}, control + " ", select));
    }
    const again = make("button", { type: "button", textContent: "reset zoom" });
    again.addEventListener("click", () => draw(figure));
    if (JSON.stringify(chart.spec).includes('"bind":"scales"')) place.append(again);
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
    $$("thead th", table).forEach((head) => {
      const button = make("button", { type: "button" }, ...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of $$("thead th", table)) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        sort(table);
      });
    });
  }

  function sort(table) {
    const heads = $$("thead th", table), column = heads.findIndex((head) => head.hasAttribute("aria-sort"));
    if (column < 0) return;
    const up = heads[column].getAttribute("aria-sort") === "ascending";
    const key = (row) => row.children[column].textContent.trim();
    const amount = (text) => (/^[<>≈]?\s*-?[\d.,]/.test(text) ? parseFloat(text.replace(/[<>≈,\s]/g, "")) : NaN);
    const sorted = $$("tbody tr", table).sort((one, other) => {
      const [a, b] = [key(one), key(other)], [x, y] = [amount(a), amount(b)];
      const order = isNaN(x) || isNaN(y) ? isNaN(x) - isNaN(y) || a.localeCompare(b) : x - y;
      return up ? order : -order;
    });
    $("tbody", table).append(...sorted);
  }

  function select() {
    for (const [name, { view }] of views) {
      const param = (charts[name].spec.params ?? []).find((each) => each.name === "shown");
      if (param) view.signal("shown", param.value.filter((each) => chosen().includes(each))).runAsync();
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
    if (!slider || "entered" in slider.dataset) return;
    slider.dataset.entered = "";
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
    for (const part of $$("#one > div")) part.hidden = part.dataset.of !== name;
    toRound();
  }

  // ---- start

  function themed() {
    const css = getComputedStyle(document.documentElement), of = (name) => css.getPropertyValue(name).trim();
    const [ink, soft, grid] = [of("--ink"), of("--soft"), of("--grid")];
    const axis = { domainColor: soft, tickColor: soft, gridColor: grid, labelColor: ink, titleColor: ink };
    const words = { labelColor: ink, titleColor: ink };
    const merged = structuredClone(charts[""]);
    const colours = new Map(merged.range.category.map((colour, k) => [colour.toLowerCase(), of(`--c${k}`)]));
    coloured = (text) => text.replace(/#[0-9a-f]{6}\b/gi, (colour) => colours.get(colour.toLowerCase()) ?? colour);
    Object.assign(merged.axis, axis);
    Object.assign(merged.legend, words);
    Object.assign(merged.header, words);
    Object.assign(merged, { text: { fill: ink }, title: { ...merged.title, color: ink } });
    return merged;
  }

  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries)
      if (isIntersecting) (seen.unobserve(target), target.drawing ?? draw(target));
  }, { rootMargin: "300px" });

  function begin() {
    const table = $("#results"), method = $("#method");
    if (table && !$("thead button", table)) sortable(table);
    const boxes = $$("#results tbody input");
    for (const box of boxes) box.hidden = boxes.length < 2;
    $$("figure[data-chart]:not([data-entered])").forEach(enter);
    if ($("#one > div")) only(method ? method.value : $("#one > div").dataset.of);
    playable();
  }

  async function start() {
    charts = await unpack($("#charts").textContent);
    look = themed();
    document.addEventListener("change", ({ target }) => {
      if (target.id === "method") only(target.value), rest();
      if (target.matches("#results input")) select();
    });
    begin();
    const figures = () => $$("figure[data-chart]");
    dark.addEventListener("change", async () => {
      look = themed();
      for (const figure of figures()) if ("ready" in figure.dataset) await draw(figure);
    });
    const rest = async () => {
      for (const figure of figures())
        if (figure.offsetParent) await (figure.drawing ?? draw(figure));
      document.documentElement.dataset.ready = "";
    };
    (window.requestIdleCallback ?? setTimeout)(rest);
    if ($("#live")) follow(0);
  }

  // ---- while the runs go on

  async function follow(since) {
    const live = $("#live");
    let news = { version: since, state: "lost", text: "What serves this page has ended; it stays as it is." };
    try {
      const answer = await fetch(`news?since=${since}`, { signal: AbortSignal.timeout(60000) });
      if (answer.ok) news = await answer.json();
    } catch { /* told below */ }
    live.textContent = news.text;
    live.dataset.state = news.state;
    const before = charts;
    charts = { ...charts, ...news.charts };
    if (news.main !== undefined) swap(news.main);
    for (const figure of $$("figure[data-entered]")) {
      const name = figure.dataset.chart;
      if (name in (news.charts ?? {}) && before[name]) await refresh(figure, before[name]);
      $("h2, h3", figure).dataset.age = news.ages?.[name] ?? "";
    }
    if ($("header p")) $("header p").dataset.age = news.ages?.[""] ?? "";
    for (const each of $$("[data-age='']")) delete each.dataset.age;
    toRound();
    setTimeout(follow, news.more ? 0 : news.state === "running" || !news.fresh ? 1000 : 3000, news.version);
  }

  async function refresh(figure, before) {
    const chart = charts[figure.dataset.chart], same = shape(before) === shape(chart);
    const values = $("details.values", figure), places = $$(".wide", values).map((each) => each.scrollTop);
    $$(".wide", values).forEach((each) => each.remove());
    tabulate(figure, values);
    $$(".wide", values).forEach((each, k) => (each.scrollTop = places[k] ?? 0));
    if (!same) controls(figure);
    if (!figure.drawing) return;
    await figure.drawing;
    if (!same) return draw(figure);
    const { view } = views.get(figure.dataset.chart);
    for (const [name, table] of Object.entries(chart.tables)) view.data(name, rows(table));
    await view.runAsync();
  }

  const keyOf = (part) => part.id || part.dataset.of || $("figure", part)?.id || part.tagName + part.className + ($("h2", part)?.textContent ?? "");

  // Puts what has changed where it belongs, and leaves everything else alone: what is open, chosen, scrolled, pointed at.
  function swap(text) {
    renew($("main"), $("main", new DOMParser().parseFromString(`<main>${text}</main>`, "text/html")));
    document.title = $("h1").textContent;
    begin();
    if ($("#results")) sort($("#results"));
  }

  function renew(place, fresh) {
    const there = new Map([...place.children].map((part) => [keyOf(part), part]));
    const parts = [...fresh.children].map((part) => {
      const key = keyOf(part), old = there.get(key);
      if (!old) return ((part.written = part.outerHTML), part);
      there.delete(key);
      merge(old, part);
      return old;
    });
    for (const part of there.values()) part.remove();
    parts.forEach((part, k) => place.children[k] !== part && place.insertBefore(part, place.children[k] ?? null));
  }

  function merge(old, fresh) {
    const written = fresh.outerHTML;
    if (old.written === written) return;
    old.written = written;
    const slider = $("#round", old), choice = $("#method", old), table = $("#results", old);
    if (old.matches("figure")) for (const part of ["h2, h3", "figcaption"]) $(part, old).textContent = $(part, fresh).textContent;
    else if (old.id === "one" || $("figure", old)) renew(old, fresh);
    else if (slider) slide(slider, $("#round", fresh).max);
    else if (choice) {
      const value = choice.value;
      choice.replaceChildren(...$("#method", fresh).children);
      choice.value = value;
    } else if (table && $("thead", table).textContent === $("thead", fresh).textContent) {
      const before = new Map($$("tbody tr", table).map((row) => [$(".name", row).textContent, $("input", row).checked]));
      for (const row of $$("tbody tr", fresh)) $("input", row).checked = before.get($(".name", row).textContent) ?? true;
      $("tbody", table).replaceWith($("tbody", fresh));
      $(".note", old).replaceWith($(".note", fresh));
    } else {
      const open = $$("details", old).map((each) => each.open), wide = $$(".wide", old).map((each) => each.scrollLeft);
      old.replaceChildren(...fresh.childNodes);
      $$("details", old).forEach((each, k) => (each.open = open[k] ?? false));
      $$(".wide", old).forEach((each, k) => (each.scrollLeft = wide[k] ?? 0));
    }
  }

  // Whoever looks at the last round goes on with it; another round stays.
  function slide(slider, most) {
    const last = slider.value === slider.max, round = +$("#at").textContent;
    slider.max = most;
    const figure = $$("#one > div:not([hidden]) figure").find(isGraph);
    if (last || !figure) return (slider.value = most);
    const frames = framesOf(figure), near = frames.findIndex((each) => each >= round);
    slider.value = Math.round((near / Math.max(1, frames.length - 1)) * most);
  }

  start();
})();
