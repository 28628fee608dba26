"use strict";
// Draws the report from the JSON inside the page. All text goes through textContent: nothing in it can become markup.

const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = 7;
const DASHES = ["", "7 4", "2 4", "9 3 2 3"];
const view = { quantity: 0, axis: "steps", smoothing: 0, seeds: true, hidden: new Set() };
const charts = [];

// ---------------------------------------------------------------- elements and numbers

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined)); // strings become text nodes
  return element;
}

function number(value) {
  const size = Math.abs(value);
  const digits = size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : size >= 0.01 ? 3 : 5;
  return value.toLocaleString("en-US", { maximumFractionDigits: digits }).replace("-", "−");
}

function short(value) {
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= unit) return `${+(value / unit).toPrecision(4)}${name}`.replace("-", "−");
  }
  return `${+value.toPrecision(4)}`.replace("-", "−");
}

function ticks(low, high, most) {
  const rough = (high - low) / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => power * factor >= rough * 0.999);
  const found = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) {
    found.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  }
  return found;
}

function nearest(sorted, x) {
  let low = 0, high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < x) low = middle;
    else high = middle;
  }
  return Math.abs(sorted[low] - x) <= Math.abs(sorted[high] - x) ? low : high;
}

function smooth(values, reach) {
  // The mean of each point and of its neighbours on both sides, fewer of them at the ends: it does not lag.
  if (!reach) return values;
  const sums = [0];
  for (const value of values) sums.push(sums[sums.length - 1] + value);
  return values.map((_, i) => {
    const side = Math.min(reach, i, values.length - 1 - i);
    return (sums[i + side + 1] - sums[i - side]) / (2 * side + 1);
  });
}

function swatch(entry) {
  return draw("svg", { class: "swatch", viewBox: "0 0 26 10", "aria-hidden": "true" }, draw("line", {
    x1: 0, x2: 26, y1: 5, y2: 5, "stroke-width": 3, stroke: colour(entry), "stroke-dasharray": DASHES[entry.dash],
  }));
}

const colour = (entry) => `var(--c${entry.colour % COLOURS})`;

// ---------------------------------------------------------------- a chart

class Chart {
  // The curves of one task in one quantity: `quantity` is its number, or null for the one that is chosen above.
  constructor(task, quantity, title) {
    this.task = task;
    this.fixed = quantity;
    this.zoom = null; // [from, to] of the horizontal axis
    this.cursor = null; // a point of that axis
    this.curves = data.curves.filter((curve) => curve.task === task);
    this.caption = make("span", { class: "quiet" });
    this.reset = make("button", { type: "button", hidden: "", onclick: () => this.show(null) }, "Whole range");
    this.plot = draw("svg", { class: "plot", "aria-hidden": "true" });
    this.tip = make("div", { class: "tip", hidden: "", role: "status" });
    this.host = make("div", {
      class: "canvas", tabindex: 0, role: "group", onkeydown: (event) => this.key(event), onblur: () => this.point(null),
      onpointermove: (event) => this.move(event), onpointerleave: () => this.dragged === undefined && this.point(null),
      onpointerdown: (event) => this.press(event), onpointerup: (event) => this.release(event),
      onpointercancel: () => this.drop(), ondblclick: () => this.show(null),
    }, this.plot);
    this.figure = make("figure", { class: "chart" },
      make("figcaption", {}, make("h3", {}, title, " ", this.caption), this.reset), this.host, this.tip);
    charts.push(this);
    new ResizeObserver(() => requestAnimationFrame(() => this.host.clientWidth !== this.width && this.redraw())).observe(this.host);
  }

  get quantity() {
    return this.fixed ?? view.quantity;
  }

  // What is to be drawn of each curve that is not hidden: points x, y, and the range from low to high.
  lines() {
    const found = [];
    for (const curve of this.curves) {
      const entry = data.entries[curve.entry];
      if (view.hidden.has(curve.entry)) continue;
      const seeds = curve.runs.map((run) => data.runs[run].lines[this.quantity]).filter(Boolean);
      const whole = curve.lines[this.quantity];
      if (!whole) continue;
      const shaped = (line) => ({ x: line[view.axis], y: smooth(line.values, view.smoothing) });
      found.push({
        entry, limit: curve.limits[this.quantity], ...shaped(whole),
        low: whole.low && smooth(whole.low, view.smoothing), high: whole.high && smooth(whole.high, view.smoothing),
        seeds: view.seeds && seeds.length > 1 ? seeds.map(shaped) : [],
      });
    }
    return found;
  }

  redraw() {
    this.width = this.host.clientWidth || 600;
    this.height = Math.round(Math.min(340, Math.max(230, this.width * 0.5)));
    this.drawn = this.lines();
    const { label } = data.quantities[this.quantity];
    this.caption.textContent = label;
    this.host.setAttribute("aria-label",
      `Chart of ${label} on ${data.tasks[this.task]}. Left and right arrow keys read values, plus and minus zoom, 0 shows the whole range.`);
    this.frame();
    this.plot.replaceChildren();
    this.plot.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    if (!this.drawn.length) {
      const why = view.hidden.size ? "Nothing is chosen in the legend." : "There is nothing of this here.";
      this.plot.append(draw("text", { x: this.width / 2, y: this.height / 2, "text-anchor": "middle" }, why));
      return;
    }
    this.axes();
    const clip = `clip${charts.indexOf(this)}`;
    const { left, right, top, bottom } = this.box;
    this.plot.append(draw("clipPath", { id: clip },
      draw("rect", { x: left, y: top - 3, width: right - left, height: bottom - top + 6 })));
    const layer = draw("g", { "clip-path": `url(#${clip})` });
    for (const line of this.drawn) if (line.low) layer.append(this.band(line));
    for (const line of this.drawn) for (const seed of line.seeds) layer.append(this.path(seed, line.entry, "line seed"));
    for (const line of this.drawn) layer.append(this.path(line, line.entry, "line"));
    this.plot.append(layer);
    this.limits();
    this.mark = draw("g");
    this.plot.append(this.mark);
  }

  // Which part of the data is seen, and where on the screen it is.
  frame() {
    let [from, to, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { x } of this.drawn) [from, to] = [Math.min(from, x[0]), Math.max(to, x[x.length - 1])];
    if (this.zoom) [from, to] = this.zoom;
    const see = (line, values) => {
      for (let i = 0; i < values.length; i++) {
        const seen = line.x[i] >= from && line.x[i] <= to;
        const beside = (line.x[i + 1] >= from && line.x[i] < from) || (line.x[i - 1] <= to && line.x[i] > to);
        if (seen || beside) [low, high] = [Math.min(low, values[i]), Math.max(high, values[i])];
      }
    };
    for (const line of this.drawn) {
      for (const part of [line, ...line.seeds]) see(part, part.y);
      if (line.low) see(line, line.low), see(line, line.high);
      if (line.limit !== undefined) [low, high] = [Math.min(low, line.limit), Math.max(high, line.limit)];
    }
    if (!(low <= high)) [low, high] = [0, 1];
    if (data.quantities[this.quantity].from_zero) low = Math.min(low, 0);
    const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 0.5;
    if (!(from < to)) [from, to] = [from - 1, to + 1];
    this.range = { from, to, low: low - room, high: high + room };
    const marks = ticks(this.range.low, this.range.high, 5);
    const widest = Math.max(...marks.map((mark) => short(mark).length));
    this.box = { left: 14 + 7.2 * widest, right: this.width - 12, top: 8, bottom: this.height - 40 };
    const { left, right, top, bottom } = this.box;
    this.x = (value) => left + ((value - from) / (to - from)) * (right - left);
    this.y = (value) => bottom - ((value - this.range.low) / (this.range.high - this.range.low)) * (bottom - top);
    this.back = (pixel) => from + ((Math.min(Math.max(pixel, left), right) - left) / (right - left)) * (to - from);
  }

  axes() {
    const { left, right, top, bottom } = this.box;
    for (const tick of ticks(this.range.low, this.range.high, 5)) {
      const y = this.y(tick);
      this.plot.append(draw("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }),
        draw("text", { x: left - 7, y: y + 4, "text-anchor": "end" }, short(tick)));
    }
    for (const tick of ticks(this.range.from, this.range.to, Math.max(2, Math.floor((right - left) / 75)))) {
      const x = this.x(tick);
      this.plot.append(draw("line", { class: "grid", x1: x, x2: x, y1: top, y2: bottom }),
        draw("text", { x: Math.min(x, right - 8), y: bottom + 17, "text-anchor": "middle" }, short(tick)));
    }
    const name = view.axis === "steps" ? "agent–environment interactions" : "minutes of training";
    this.plot.append(draw("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
      draw("text", { x: (left + right) / 2, y: this.height - 6, "text-anchor": "middle" }, name));
  }

  path(line, entry, kind) {
    const points = line.x.map((x, i) => `${this.x(x).toFixed(1)},${this.y(line.y[i]).toFixed(1)}`);
    if (points.length === 1) {
      const [cx, cy] = points[0].split(",");
      return draw("circle", { cx, cy, r: kind === "line" ? 4 : 2.5, fill: colour(entry) });
    }
    return draw("path", { class: kind, d: `M${points.join("L")}`, stroke: colour(entry), "stroke-dasharray": DASHES[entry.dash] });
  }

  band(line) {
    const along = (values) => line.x.map((x, i) => `${this.x(x).toFixed(1)},${this.y(values[i]).toFixed(1)}`);
    return draw("path", { class: "band", fill: colour(line.entry), d: `M${[...along(line.high), ...along(line.low).reverse()].join("L")}Z` });
  }

  limits() {
    const { left, right } = this.box;
    for (const limit of new Set(this.drawn.map((line) => line.limit).filter((limit) => limit !== undefined))) {
      const y = this.y(limit);
      this.plot.append(draw("line", { class: "limit", x1: left, x2: right, y1: y, y2: y }),
        draw("text", { class: "limit-name", x: right, y: y - 5, "text-anchor": "end" }, `limit ${number(limit)}`));
    }
  }

  // Show the values near a point of the horizontal axis; null hides them.
  point(x) {
    this.cursor = x;
    this.mark?.replaceChildren();
    this.tip.hidden = x === null || !this.drawn.length;
    if (this.tip.hidden) return;
    const tolerance = (this.range.to - this.range.from) / 25;
    const all = this.drawn.map((line) => ({ line, i: nearest(line.x, x) }));
    const closest = all.reduce((best, one) => Math.abs(one.line.x[one.i] - x) < Math.abs(best.line.x[best.i] - x) ? one : best);
    const here = closest.line.x[closest.i];
    const near = all.map(({ line }) => ({ line, i: nearest(line.x, here) })).filter(({ line, i }) => Math.abs(line.x[i] - here) <= tolerance);
    near.sort((one, other) => other.line.y[other.i] - one.line.y[one.i]);
    this.mark.append(draw("line", { class: "cursor", x1: this.x(here), x2: this.x(here), y1: this.box.top, y2: this.box.bottom }));
    const rows = make("div");
    for (const { line, i } of near.slice(0, 15)) {
      this.mark.append(draw("circle", { cx: this.x(line.x[i]), cy: this.y(line.y[i]), r: 4, fill: colour(line.entry) }));
      const range = line.low ? ` [${number(line.low[i])} – ${number(line.high[i])}]` : "";
      rows.append(swatch(line.entry), make("span", {}, line.entry.name), make("span", { class: "number" }, number(line.y[i]) + range));
    }
    const where = view.axis === "steps" ? `${number(here)} steps` : `${number(here)} minutes`;
    const averaged = view.smoothing ? `, mean of ${2 * view.smoothing + 1} points` : "";
    this.tip.replaceChildren(make("b", {}, where + averaged), rows);
    const across = this.x(here) + this.host.offsetLeft;
    const space = this.figure.clientWidth - this.tip.offsetWidth - 4;
    const beside = across + 16 <= space ? across + 16 : across - 16 - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(4, beside < 4 ? Math.min(across + 16, space) : beside)}px`;
    const height = near.reduce((sum, { line, i }) => sum + this.y(line.y[i]), 0) / near.length;
    const below = height < (this.box.top + this.box.bottom) / 2; // away from the points, which it would hide
    this.tip.style.top = `${this.host.offsetTop + (below ? this.box.bottom - this.tip.offsetHeight - 6 : 10)}px`;
  }

  at(event) {
    return this.back((event.clientX - this.host.getBoundingClientRect().left));
  }

  press(event) {
    if (event.button || !this.drawn.length) return;
    this.dragged = this.at(event);
    if (event.pointerType === "mouse") this.host.setPointerCapture(event.pointerId);
  }

  move(event) {
    const x = this.at(event);
    if (this.drawn.length) this.point(x);
    if (this.dragged === undefined || Math.abs(this.x(x) - this.x(this.dragged)) < 6) return;
    const [a, b] = [this.x(Math.min(x, this.dragged)), this.x(Math.max(x, this.dragged))];
    this.mark.append(draw("rect", { class: "selection", x: a, width: b - a, y: this.box.top, height: this.box.bottom - this.box.top }));
  }

  release(event) {
    const [begin, end] = [this.dragged, this.at(event)];
    this.drop();
    if (begin !== undefined && Math.abs(this.x(end) - this.x(begin)) >= 6) this.show([Math.min(begin, end), Math.max(begin, end)]);
  }

  drop() {
    this.dragged = undefined;
    this.point(null);
  }

  show(zoom) {
    this.zoom = zoom;
    this.reset.hidden = zoom === null;
    this.point(null);
    this.redraw();
  }

  key(event) {
    if (!this.drawn.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const { from, to } = this.range;
    const middle = this.cursor ?? (from + to) / 2;
    const visible = [...new Set(this.drawn.flatMap((line) => line.x))].filter((x) => x >= from && x <= to).sort((a, b) => a - b);
    const step = (by) => visible.length && this.point(this.cursor === null ? visible[by > 0 ? 0 : visible.length - 1]
      : visible[Math.min(Math.max(nearest(visible, this.cursor) + by, 0), visible.length - 1)]);
    const zoom = (factor) => this.show([middle - (middle - from) * factor, middle + (to - middle) * factor]);
    const keys = {
      ArrowLeft: () => step(-1), ArrowRight: () => step(1), "+": () => zoom(0.5), "=": () => zoom(0.5),
      "-": () => (this.zoom ? zoom(2) : null), 0: () => this.show(null), Escape: () => (this.cursor === null ? this.show(null) : this.point(null)),
    };
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  }
}

function redrawAll(forgetZoom = false) {
  for (const chart of charts) {
    if (forgetZoom) chart.zoom = null;
    chart.show(chart.zoom);
  }
}

// ---------------------------------------------------------------- sections

function section(id, title, ...children) {
  document.getElementById("contents").append(make("a", { href: `#${id}` }, title));
  document.getElementById("page").append(make("section", { id, "aria-labelledby": `${id}-title` },
    make("h2", { id: `${id}-title` }, title), ...children));
}

function grid(panels) {
  return make("div", { class: panels.length === 1 ? "charts single" : "charts" }, ...panels.map((chart) => chart.figure));
}

// A table from {columns, rows}: a cell is a text, or {text, small, kind} with a second line and a class, or an element.
function table(columns, rows) {
  const cell = (content, column, i) => {
    const plain = typeof content === "string" ? { text: content } : content;
    const inside = plain instanceof Element ? [plain] : [plain.text, plain.small ? make("small", {}, plain.small) : null];
    const kind = [column.number ? "number" : null, plain.kind].filter(Boolean).join(" ") || null;
    if (i === 0) return make("th", { scope: "row", class: kind }, ...inside);
    return make("td", { "data-label": column.label, class: kind }, ...(inside[1] ? [make("span", {}, ...inside)] : inside));
  };
  return make("div", { class: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ...columns.map(({ label, number: right }) => make("th", { scope: "col", class: right ? "number" : null }, label)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((content, i) => cell(content, columns[i], i)))))));
}

function named(curve, withTask = data.tasks.length > 1) {
  const { task, entry } = data.curves[curve];
  return make("span", {}, swatch(data.entries[entry]), ` ${data.entries[entry].name}`,
    withTask ? make("span", { class: "quiet" }, ` on ${data.tasks[task]}`) : null);
}

function summary() {
  const results = data.summary.flatMap(({ title, columns, rows }) => [
    data.tasks.length > 1 ? make("h3", { class: "above" }, title) : null,
    table([{ label: "setting" }, ...columns.map((label) => ({ label, number: true }))], rows.map(({ curve, cells }) => [named(curve, false), ...cells])),
  ]);
  section("summary", "Summary", ...data.notes.map((note) => make("p", { class: "note" }, note)), ...results,
    make("p", { class: "quiet" }, data.about_summary));
}

function controls() {
  const quantity = make("select", { id: "quantity", onchange: (event) => { view.quantity = +event.target.value; redrawAll(); } },
    ...data.quantities.map(({ label }, i) => (data.curves.some(({ lines }) => lines[i]) ? make("option", { value: i }, label) : null)));
  const axis = (value, label) => make("label", {}, make("input", {
    type: "radio", name: "axis", value, ...(view.axis === value ? { checked: "" } : {}),
    onchange: () => { view.axis = value; redrawAll(true); },
  }), label);
  const reach = make("output", { for: "smoothing" }, "none");
  const smoothing = make("input", { id: "smoothing", type: "range", min: 0, max: 20, value: 0, oninput: (event) => {
    view.smoothing = +event.target.value;
    reach.textContent = view.smoothing ? `mean of ${2 * view.smoothing + 1} points` : "none";
    redrawAll();
  } });
  const seeds = make("input", { type: "checkbox", checked: "", onchange: (event) => { view.seeds = event.target.checked; redrawAll(); } });
  return make("div", { class: "controls" },
    make("label", { for: "quantity" }, "Quantity", quantity),
    make("fieldset", {}, make("legend", {}, "Against"), make("div", { class: "choice" }, axis("steps", "steps"), axis("minutes", "minutes"))),
    make("label", { for: "smoothing" }, make("span", {}, "Smoothing: ", reach), smoothing),
    data.curves.some(({ runs }) => runs.length > 1)
      ? make("fieldset", {}, make("legend", {}, "Show"), make("div", { class: "choice" }, make("label", {}, seeds, "each seed"))) : null,
    make("button", { type: "button", onclick: () => { view.hidden.clear(); legends(); redrawAll(true); } }, "Show all"));
}

function legend(shown = data.curves) {
  const entries = [...new Set(shown.map(({ entry }) => entry))].sort((a, b) => a - b);
  return make("ul", { class: "legend", "aria-label": "Curves; press one to hide or show it" }, ...entries.map((i) =>
    make("li", {}, make("button", { type: "button", "data-entry": i, "aria-pressed": "true", onclick: () => {
      if (!view.hidden.delete(i)) view.hidden.add(i);
      legends();
      redrawAll();
    } }, swatch(data.entries[i]), make("span", {}, data.entries[i].name)))));
}

function legends() {
  for (const button of document.querySelectorAll(".legend button")) button.setAttribute("aria-pressed", !view.hidden.has(+button.dataset.entry));
}

function curves() {
  const panels = data.tasks.map((name, task) => new Chart(task, null, name));
  section("curves", "Learning curves", make("p", { class: "quiet" }, data.about_curves), controls(), legend(), grid(panels),
    make("p", { class: "quiet screen" }, "Point at a chart to read values; drag across it to zoom, double-click for the whole range."));
}

// Every trajectory is a dot, on a line from 0 to the longest that was allowed.
function dots(row) {
  const entry = data.entries[data.curves[row.curve].entry];
  return draw("svg", { class: "dots", role: "img", "aria-label": row.words },
    draw("line", { x1: "2%", x2: "98%", y1: 13, y2: 13, stroke: "var(--line)" }),
    ...row.lengths.map((length, i) => draw("circle", {
      cx: `${(2 + (96 * length) / row.most).toFixed(2)}%`, cy: 13 + ((i * 7) % 15) - 7, r: 3.5, fill: colour(entry),
    })));
}

function lengths() {
  const { quantity, rows } = data.lengths;
  if (!rows.length) return;
  const columns = ["setting", "mean steps", "reached the end", "each trajectory"].map((label, i) => ({ label, number: i === 1 || i === 2 }));
  section("lengths", "Trajectory lengths", make("p", { class: "quiet" },
    "Steps until a fall in the last evaluation of each run, on a line from 0 to the longest trajectory that was allowed."),
    table(columns, rows.map((row) => [named(row.curve), row.mean, row.reached, dots(row)])),
    grid(data.tasks.map((name, task) => new Chart(task, quantity, name))));
}

function limits() {
  if (!data.limits.length) return;
  section("limits", "Costs and limits", make("p", { class: "quiet" }, "Limits are dotted. Training keeps them for the policy as it explores."),
    legend(data.curves.filter((curve) => data.limits.some(({ quantity }) => curve.lines[quantity]))), grid(data.limits.map(({ task, quantity }) => new Chart(task, quantity, data.tasks[task]))));
}

function settings() {
  const { columns, rows, common } = data.settings;
  const differ = rows.length > 1 && columns.length
    ? table([{ label: "setting" }, ...columns.map((label) => ({ label }))], rows.map(({ curve, cells }) => [named(curve), ...cells]))
    : make("p", {}, rows.length > 1 ? "There are none." : "There is one curve, so there are none.");
  section("settings", "Settings that differ", differ,
    make("details", {}, make("summary", {}, `The ${Object.keys(common).length} settings that all runs share`), pairs(common)));
}

function pairs(values) {
  return make("dl", {}, ...Object.entries(values).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function runs() {
  section("runs", "Runs", ...data.runs.map((run) => make("article", { class: "run" },
    make("h3", {}, run.name), make("p", { class: "quiet" }, named(run.curve), ` · ${run.words}`), film(run),
    make("details", {}, make("summary", {}, "Settings and origin"), pairs(run.about)))));
}

function film(run) {
  if (!run.stills.length) return run.no_film ? make("p", { class: "quiet" }, run.no_film) : null;
  return make("ul", { class: "strip", "aria-label": `Film strip of ${run.name}` }, ...run.stills.map(({ step, image }) =>
    make("li", {}, make("img", { src: image, alt: `step ${number(step)}` }), make("span", {}, `step ${number(step)}`))));
}

document.getElementById("made").textContent = data.made;
summary();
curves();
lengths();
limits();
settings();
runs();
redrawAll();
