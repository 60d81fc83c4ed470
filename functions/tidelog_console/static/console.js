// The console's own script: refreshing, streams, shortcuts. Values become text nodes, never markup.
"use strict";
(() => {
  const ROWS_MAX = 200;
  const SAMPLES_MAX = 90; // three minutes
  const RETRY_MS = 3000;
  let isPaused = false;

  const byId = (id) => document.getElementById(id);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // -- refreshing --

  const refreshed = document.querySelector("[data-refresh]");
  if (refreshed) {
    const id = refreshed.id;
    let due = Date.now() + 1000 * refreshed.dataset.refresh;
    setInterval(() => {
      const part = byId(id);
      if (!part || Date.now() < due) return;
      due = Date.now() + 1000 * part.dataset.refresh;
      const isUsed = part.contains(document.activeElement) && document.activeElement !== document.body;
      if (document.hidden || isPaused || isUsed || part.querySelector("details[open]")) return;
      part.dispatchEvent(new CustomEvent("refresh"));
    }, 500);
  }

  const isAway = (value) => { byId("away").hidden = !value; };
  addEventListener("htmx:after:request", (event) => isAway(event.detail.ctx.response.status >= 400));
  addEventListener("htmx:error", () => isAway(true));

  // -- streams --

  // Follow a stream; handlers get its events' data. The browser connects again by itself after a
  // break, but not after a refusal: then this does, unless the session has ended.
  function follow(url, handlers, say) {
    let source = null, timer = 0;
    const again = () => {
      source.close();
      timer = setTimeout(async () => {
        const answer = await fetch(location.href, { redirect: "manual" }).catch(() => null);
        if (answer && answer.type === "opaqueredirect") location.reload();
        else open();
      }, RETRY_MS);
    };
    const open = () => {
      source = new EventSource(url());
      source.addEventListener("open", () => say("Live", "good"));
      for (const [name, handler] of Object.entries(handlers)) {
        source.addEventListener(name, (event) => handler(JSON.parse(event.data)));
      }
      source.addEventListener("problem", (event) => {
        say(JSON.parse(event.data).detail, "bad");
        again();
      });
      source.addEventListener("error", () => {
        say("Connecting again", "warn");
        if (source.readyState === EventSource.CLOSED) again();
      });
    };
    open();
    return () => { clearTimeout(timer); source.close(); };
  }

  // -- records as they arrive --

  function element(name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function bytes(cell, data) {
    if (data.kind === "null") cell.append(element("span", "null", "null"));
    else cell.append(element("span", data.kind, data.text));
    if (data.is_cut) cell.append(element("span", "more", ` … ${data.size_bytes} bytes`));
  }

  function time(ms) {
    const at = new Date(ms);
    return Number.isNaN(at.getTime()) ? String(ms) : at.toISOString().slice(11, 23);
  }

  function row(record) {
    const made = element("tr", "new");
    const when = element("td", "mono", time(record.timestamp_ms));
    const at = new Date(record.timestamp_ms);
    if (!Number.isNaN(at.getTime())) when.title = at.toISOString();
    const key = element("td", "cell key");
    bytes(key, record.key);
    const value = element("td", "cell value");
    for (const header of record.headers) {
      const line = element("span", "headers", `${header.name}: `);
      bytes(line, header.value);
      value.append(line);
    }
    if (record.headers_left_out) {
      value.append(element("span", "headers more", `${record.headers_left_out} more headers`));
    }
    bytes(value, record.value);
    made.append(when, element("td", "n", record.partition), element("td", "n", record.offset), key, value);
    return made;
  }

  const table = byId("tail");
  if (table) {
    const body = table.tBodies[0];
    const state = byId("tail-state");
    const pause = byId("tail-pause");
    const say = (text, kind) => { state.textContent = text; state.className = `state ${kind}`; };
    const add = (made) => {
      byId("tail-empty").hidden = true;
      body.prepend(made);
      while (body.rows.length > ROWS_MAX) body.lastElementChild.remove();
    };
    const skipped = (offsets) => {
      const made = element("tr", "skip-note");
      const cell = element("td", "", `${offsets} offsets left out: more arrive than can be shown`);
      cell.colSpan = 5;
      made.append(cell);
      add(made);
    };
    // After a pause or a break, only what is new.
    let url = table.dataset.tail;
    const begin = () => follow(() => url, {
      begin: () => { url = url.replace(/last=\d+/, "last=0"); },
      records: (records) => records.forEach((one) => add(row(one))),
      skipped: (data) => skipped(data.offsets),
    }, say);
    let end = begin();
    pause.addEventListener("click", () => {
      isPaused = !isPaused;
      pause.setAttribute("aria-pressed", String(isPaused));
      pause.firstChild.textContent = isPaused ? "Go on " : "Pause ";
      end();
      if (isPaused) say("Paused", "warn"); else end = begin();
    });
  }

  // -- numbers as they change --

  const chart = document.querySelector("[data-numbers]");
  if (chart && window.uPlot) {
    const times = [], rates = [];
    let plot = null;
    const options = () => ({
      width: Math.max(200, chart.clientWidth - 16), height: 124, legend: { show: false },
      cursor: { show: false },
      scales: { x: { range: () => [Date.now() / 1000 - 180, Date.now() / 1000] }, y: { range: (u, low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [
        { stroke: css("--soft"), grid: { show: false }, ticks: { show: false }, font: "12px system-ui",
          space: 110, size: 28, values: (u, ticks) => ticks.map((at) => new Date(at * 1000).toISOString().slice(11, 19)) },
        { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui", size: 56 },
      ],
      tzDate: (at) => window.uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      series: [{}, { stroke: css("--accent"), width: 2, fill: css("--accent-soft"), points: { show: false } }],
    });
    const draw = () => {
      if (plot) plot.destroy();
      plot = new window.uPlot(options(), [times, rates], chart);
    };
    draw();
    addEventListener("resize", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    const show = (sample) => {
      times.push(sample.at);
      rates.push(sample.rate);
      if (times.length > SAMPLES_MAX) { times.shift(); rates.shift(); }
      byId("rate-now").textContent = `now ${sample.rate.toFixed(sample.rate < 10 ? 1 : 0)}`;
      if (!document.hidden) plot.setData([times, rates]);
    };
    follow(() => chart.dataset.numbers, { sample: show }, () => {});
  }

  // -- keyboard --

  const keys = byId("keys");
  byId("show-keys").addEventListener("click", () => keys.showModal());
  let isGoing = false;
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
    if (event.target.closest("input, select, textarea")) return;
    if (isGoing) {
      isGoing = false;
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (event.key === "g") { isGoing = true; setTimeout(() => { isGoing = false; }, 1500); }
    else if (event.key === "?") { event.preventDefault(); keys.showModal(); }
    else if (event.key === "/") {
      const filter = byId("filter");
      if (filter) { event.preventDefault(); filter.focus(); filter.select(); }
    } else if (event.key === "p") {
      const pause = byId("tail-pause");
      if (pause) pause.click(); else isPaused = !isPaused;
    }
  });
})();
