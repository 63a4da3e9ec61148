"use strict";
const HEIGHT = 300;
const COLOURS = 10;
const DASHES = ["", "7 3", "2 2.5", "10 3 2 3", "14 4", "5 2 1 2", "4 4"];
const MARKS = [
  (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  (r) => `M${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
  (r) => `M0 ${-1.2 * r}L${1.15 * r} ${r}H${-1.15 * r}z`,
  (r) => `M0 ${-1.35 * r}L${1.35 * r} 0L0 ${1.35 * r}L${-1.35 * r} 0z`,
  (r) => `M0 ${1.2 * r}L${1.15 * r} ${-r}H${-1.15 * r}z`,
  (r) => `M${-r} ${-r / 2.5}h${0.6 * r}v${-0.6 * r}h${0.8 * r}v${0.6 * r}h${0.6 * r}v${0.8 * r}h${-0.6 * r}v${0.6 * r}h${-0.8 * r}v${-0.6 * r}h${-0.6 * r}z`,
  (r) => `M${-r} ${-r}L${r} ${r}V${-r}L${-r} ${r}z`,
];
// Past the last colour the hues come again, with other dashes and marks: there are ten of the first, seven of the others.
const hue = (colour) => colour % COLOURS;
const variant = (colour) => colour % DASHES.length;
const page = document.documentElement;

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";
const make = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const draw = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

// Numbers

function format(value, digits = 4) {
  if (value === null || typeof value === "string") return value ?? "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
    const [front, power] = value.toExponential(digits - 1).split("e");
    return `${trim(front)}·10${superscript(Number(power))}`.replace("-", "−");
  }
  const text = Number.isInteger(value) ? String(value) : value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size))));
  return text.replace("-", "−");
}

const trim = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
const superscript = (power) => String(power).replace(/./g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));

function linearTicks([low, high], count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((f) => f * power >= rough * 0.999);
  const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) {
    const value = i * step;
    const digits = Math.max(4, Math.ceil(Math.log10(Math.abs(i))) + 1); // in a deep zoom neighbours share the first ones
    ticks.push([value, places > 5 || Math.abs(value) >= 1e6 ? trim(format(value, digits)) : (value + 0).toFixed(places).replace("-", "−")]);
  }
  return ticks;
}

// Ticks of a logarithmic axis stand at positions log10(value): decades, or 1, 2 and 5 times them where few are in view.
function logTicks([low, high], count) {
  const every = Math.max(1, Math.ceil((high - low) / count));
  const far = low < -3 || high > 4;
  const steps = high - low < 1.2 ? [1, 2, 3, 5, 7] : high - low < 3 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = Math.floor(low); power <= Math.ceil(high); power++) {
    if (power % every) continue;
    for (const step of steps) {
      const at = power + Math.log10(step);
      if (at < low - 1e-9 || at > high + 1e-9) continue;
      const label = steps.length === 1 && far && power ? `10${superscript(power)}` : trim(format(step * 10 ** power, 3));
      ticks.push([at, label]);
    }
  }
  return ticks.length > 2 || high - low > 1 ? ticks : linearTicks([10 ** low, 10 ** high], count).filter(([v]) => v > 0).map(([v, label]) => [Math.log10(v), label]);
}

// One pair of axes. Positions ("u", "v") are values, their logarithms on a logarithmic axis, or numbers of categories.
class Plot {
  constructor(figure, panel, holder, index) {
    Object.assign(this, { figure, panel, holder, view: null, at: -1 });
    this.clip = `clip-${figure.name}-${index}`;
    this.svg = draw("svg", { class: "plot", role: "img", tabindex: 0, "aria-label": holder.querySelector(".canvas").ariaLabel, height: HEIGHT });
    this.tip = make("div", { class: "tip", "aria-hidden": "true", hidden: "" });
    this.reset = make("button", { type: "button", hidden: "" }, "Reset zoom");
    this.reset.addEventListener("click", () => this.show(null));
    this.scale = make("button", { type: "button" });
    this.scale.addEventListener("click", () => this.setLog(!this.y_log));
    this.scale.hidden = !panel.series.length || panel.series.some((one) => one.y.some((y) => y !== null && y <= 0));
    holder.querySelector(".panel-head").append(this.reset, this.scale);
    this.y_log = panel.y_log;
    holder.querySelector(".canvas").replaceWith(this.svg);
    holder.append(this.tip);
    this.place();
    listen(this);
    showFromLink(this);
    new ResizeObserver(() => this.draw()).observe(holder);
  }

  // Finds where each point stands; points that share a category stand side by side.
  place() {
    const { series, x_log } = this.panel, { y_log } = this;
    this.scale.textContent = y_log ? "Linear" : "Log";
    this.scale.setAttribute("aria-label", `Make the y axis of ${this.panel.title} ${y_log ? "linear" : "logarithmic"}`);
    const all = series.flatMap((one) => one.x);
    this.categories = all.some((x) => typeof x === "string") ? [...new Set(all.map(String))] : null;
    const u = (x) => (this.categories ? this.categories.indexOf(String(x)) : x_log ? Math.log10(x) : x);
    const v = (y) => (y === null || y === undefined ? NaN : y_log ? Math.log10(y) : y);
    const beside = series.filter((one) => this.categories && one.style === "points");
    this.sets = series.map((one) => {
      const points = one.x.map((x, i) => {
        const sharing = beside.filter((other) => other.x.includes(x));
        const slots = sharing.includes(one) ? sharing.length : 1;
        const shift = slots > 1 ? ((sharing.indexOf(one) - (slots - 1) / 2) * 0.8) / slots : 0;
        // A lower end that has no logarithm lies below every axis.
        const low = y_log && one.low?.[i] <= 0 && one.low[i] !== null ? -Infinity : v(one.low?.[i]);
        const high = v(one.high?.[i]);
        return { i, u: u(x) + shift, v: v(one.y[i]), low, high };
      });
      return { ...one, points: points.map((p) => (isFinite(p.u) && isFinite(p.v) ? p : null)) };
    });
  }

  visible() {
    return this.sets.filter((set) => !this.figure.hidden.has(set.colour));
  }

  extent() {
    const seen = this.visible();
    const sets = (seen.length ? seen : this.sets).map((set) => ({ ...set, points: set.points.filter(Boolean) }));
    const us = sets.flatMap((set) => set.points.map((p) => p.u));
    // Near zero an interval can reach many decades down on a logarithmic axis; it is cut where it says no more.
    const floor = this.y_log ? Math.min(...sets.flatMap((set) => set.points.map((p) => p.v))) - 0.5 : -Infinity;
    const vs = sets.flatMap((set) => set.points.flatMap((p) => [p.v, Math.max(p.low, floor), p.high])).filter(isFinite);
    const x = this.categories ? [-0.5, this.categories.length - 0.5] : pad(us, 0.03);
    return { x, y: pad(vs, 0.06) };
  }

  show(view) {
    this.view = view;
    this.reset.hidden = view === null;
    this.draw();
    keepInLink(this);
  }

  setLog(log) {
    this.y_log = log;
    this.place();
    this.show(null);
  }

  // Zooms by a factor about a point of the picture, given as fractions of the axes' lengths from the lower left.
  zoom(factor, [right, up]) {
    const { x, y } = this.view ?? this.extent();
    const about = ([low, high], part) => {
      const centre = low + part * (high - low);
      return [centre - (centre - low) * factor, centre + (high - centre) * factor];
    };
    this.show({ x: about(x, right), y: about(y, up) });
  }

  draw(width = this.holder.clientWidth) {
    if (!width) return;
    const { x, y } = this.view ?? this.extent();
    const yTicks = (this.y_log ? logTicks : linearTicks)(y, 6);
    const left = 30 + 7 * Math.max(...yTicks.map(([, label]) => label.length), 2);
    const w = width - left - 14;
    let xTicks, tilt = false, bottom = 46, taken = -Infinity;
    if (this.categories) {
      xTicks = this.categories.map((name, i) => [i, name]).filter(([i]) => i >= x[0] && i <= x[1]);
      const longest = Math.max(...xTicks.map(([, name]) => name.length), 1);
      tilt = longest * 7 > w / (x[1] - x[0]);
      if (tilt) bottom += Math.min(5 * longest, 90);
    } else {
      const ticks = this.panel.x_log ? logTicks : linearTicks, count = Math.max(3, Math.floor(w / 70));
      xTicks = ticks(x, count);
      if (xTicks.length < 3) xTicks = ticks(x, 2 * count);
    }
    const height = HEIGHT + bottom - 46;
    const h = height - 10 - bottom;
    const sx = (u) => left + ((u - x[0]) / (x[1] - x[0])) * w;
    const sy = (v) => 10 + (1 - (v - y[0]) / (y[1] - y[0])) * h;
    this.frame = { left, top: 10, w, h, sx, sy, x, y };
    const axes = draw("g");
    for (const [at, label] of yTicks) {
      axes.append(draw("path", { class: "grid", d: `M${left} ${sy(at)}h${w}` }));
      axes.append(draw("text", { x: left - 7, y: sy(at) + 4, "text-anchor": "end" }, label));
    }
    for (const [at, label] of xTicks) {
      const turn = tilt ? { "text-anchor": "end", transform: `rotate(-35 ${sx(at)} ${10 + h + 18})` } : { "text-anchor": "middle" };
      axes.append(draw("path", { class: "frame", d: `M${sx(at)} ${10 + h}v4` }));
      const half = 3.5 * label.length;
      if (!this.categories && sx(at) - half < taken) continue; // its label would touch the one before
      taken = sx(at) + half + 4;
      axes.append(draw("text", { x: sx(at), y: 10 + h + 18, ...turn }, label.length > 24 && tilt ? `${label.slice(0, 23)}…` : label));
    }
    axes.append(draw("path", { class: "frame", d: `M${left} 10v${h}h${w}` }));
    // A label that is too long for its axis is set narrower.
    const fit = (text, room) => (text.length * 6.6 > room ? { textLength: room, lengthAdjust: "spacingAndGlyphs" } : {});
    const { x_label, y_label } = this.panel;
    const side = `translate(13 ${10 + h / 2}) rotate(-90)`;
    axes.append(draw("text", { x: left + w / 2, y: height - 6, "text-anchor": "middle", ...fit(x_label, w) }, x_label));
    axes.append(draw("text", { "text-anchor": "middle", transform: side, ...fit(y_label, h) }, y_label));
    const clip = draw("clipPath", { id: this.clip }, draw("rect", { x: left, y: 4, width: w + 6, height: h + 6 }));
    const data = draw("g", { "clip-path": `url(#${this.clip})` }, ...this.visible().map((set) => drawSeries(set, this.frame)));
    if (!this.sets.some((set) => set.points.some(Boolean)))
      data.append(draw("text", { x: left + w / 2, y: 10 + h / 2, "text-anchor": "middle" }, "No data yet"));
    this.over = draw("g", { class: "over" });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    this.svg.replaceChildren(draw("defs", {}, clip), axes, data, this.over);
    this.hide();
  }

  // The places that can be read, from left to right, each with the points that stand there.
  stops() {
    const stops = new Map();
    for (const set of this.visible())
      for (const p of set.points) {
        if (!p) continue;
        const key = String(set.x[p.i]);
        if (!stops.has(key)) stops.set(key, { x: set.x[p.i], found: [] });
        stops.get(key).found.push({ set, p });
      }
    const order = (stop) => (this.categories ? this.categories.indexOf(stop.x) : stop.x);
    return [...stops.values()].sort((a, b) => order(a) - order(b));
  }

  // Reads at the stop nearest to a pixel; between separate points the height counts too.
  point(px, py) {
    const { sx, sy } = this.frame;
    let best = Infinity;
    this.stops().forEach((stop, i) => {
      for (const { set, p } of stop.found) {
        const away = Math.abs(sx(p.u) - px) + (set.style === "points" ? 0.3 * Math.abs(sy(p.v) - py) : 0);
        if (away < best) [best, this.at] = [away, i];
      }
    });
    if (best < Infinity) this.read();
  }

  read() {
    const { sx, sy, left, top, w, h } = this.frame;
    const stop = this.stops()[this.at];
    if (!stop) return "";
    const middle = stop.found.reduce((sum, { p }) => sum + sx(p.u), 0) / stop.found.length;
    this.over.replaceChildren(draw("path", { class: "cross", d: `M${middle} ${top}v${h}` }));
    const rows = stop.found.map(({ set, p }) => {
      this.over.append(draw("circle", { class: `dot s${hue(set.colour)}`, cx: sx(p.u), cy: sy(p.v), r: 4 }));
      const interval = !isNaN(p.low) && isFinite(p.high) ? `${format(set.low[p.i])} to ${format(set.high[p.i])}` : "";
      return [set, format(set.y[p.i]), interval];
    });
    const title = this.categories ? stop.x : `${this.panel.x_label}: ${format(stop.x)}`;
    const body = rows.map(([set, value, interval]) =>
      make("tr", {}, make("th", {}, make("span", { class: `key s${hue(set.colour)}` }), set.name), make("td", {}, value), make("td", {}, interval)));
    this.tip.replaceChildren(make("b", {}, title), make("table", {}, make("tbody", {}, ...body)));
    this.tip.hidden = false;
    const room = this.holder.clientWidth - this.tip.offsetWidth;
    const beside = middle > left + w / 2 ? middle - this.tip.offsetWidth - 14 : middle + 14;
    this.tip.style.left = `${Math.max(0, Math.min(beside, room))}px`;
    // On a phone there is no room beside the finger: the tip goes below the axes.
    const down = this.svg.getBoundingClientRect().top - this.holder.getBoundingClientRect().top;
    this.tip.style.top = `${down + (room < w / 3 ? top + h + 4 : top + 6)}px`;
    return `${title}. ${rows.map(([set, value, interval]) => `${set.name} ${value}${interval && `, ${interval}`}`).join("; ")}`;
  }

  hide() {
    this.tip.hidden = true;
    this.over?.replaceChildren();
  }
}

// The link of the page holds what is zoomed: for each plot its name, its axis, and the ends of both axes.
function keepInLink({ clip, view, y_log, panel }) {
  const link = new URLSearchParams(location.search);
  const changed = view !== null || y_log !== panel.y_log;
  if (changed) link.set(clip, [y_log ? "log" : "lin", ...(view ? [...view.x, ...view.y].map((end) => +end.toPrecision(5)) : [])].join(","));
  else link.delete(clip);
  try { history.replaceState(null, "", `${location.pathname}${link.size ? `?${link}` : ""}${location.hash}`); } catch { /* a frame may not */ }
}

function showFromLink(plot) {
  const [scale, ...ends] = (new URLSearchParams(location.search).get(plot.clip) ?? "").split(",");
  if (!scale) return;
  if ((scale === "log") !== plot.y_log) plot.setLog(scale === "log");
  if (ends.length === 4 && ends.every((end) => isFinite(Number(end)))) {
    const [x0, x1, y0, y1] = ends.map(Number);
    plot.show({ x: [x0, x1], y: [y0, y1] });
  }
}

function pad(values, part) {
  const low = values.length ? Math.min(...values) : 0;
  const high = values.length ? Math.max(...values) : 1;
  const room = (high - low) * part || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}

function drawSeries({ style, colour, points }, { sx, sy, y }) {
  const group = draw("g", { class: `series ${style} s${hue(colour)}`, "data-colour": colour });
  const bounded = (p) => p && !isNaN(p.low) && isFinite(p.high);
  const foot = (p) => Math.max(p.low, y[0] - (y[1] - y[0]));
  const whiskers = (p) => (bounded(p) ? `M${sx(p.u) - 3} ${sy(foot(p))}h6M${sx(p.u)} ${sy(foot(p))}V${sy(p.high)}m-3 0h6` : "");
  if (style === "line") {
    let curve = "", band = "";
    const spot = ([u, v]) => `${sx(u).toFixed(1)} ${sy(v).toFixed(1)}`;
    // A gap splits the curve; a point alone between gaps is a dash.
    for (const run of runs(points, (p) => p)) curve += `M${run.map((p) => spot([p.u, p.v])).join("L")}${run.length > 1 ? "" : "m-2 0h4"}`;
    for (const run of runs(points, bounded)) {
      const edge = [...run.map((p) => [p.u, p.high]), ...run.slice().reverse().map((p) => [p.u, foot(p)])];
      band += `M${edge.map(spot).join("L")}z`;
    }
    if (band) group.append(draw("path", { class: "band", d: band }));
    group.append(draw("path", { class: "curve", d: curve || "M0 0", "stroke-dasharray": DASHES[variant(colour)] || "none" }));
    return group;
  }
  for (const p of points.filter(Boolean)) {
    if (whiskers(p)) group.append(draw("path", { class: "whisker", d: whiskers(p) }));
    group.append(draw("path", { class: "mark", d: MARKS[variant(colour)](4), transform: `translate(${sx(p.u)} ${sy(p.v)})` }));
  }
  return group;
}

function runs(points, keep) {
  const found = [[]];
  for (const p of points) {
    if (keep(p)) found.at(-1).push(p);
    else if (found.at(-1).length) found.push([]);
  }
  return found.filter((run) => run.length);
}

// What pointers, wheels and keys do to a plot.
function listen(plot) {
  const { svg } = plot;
  const fingers = new Map();
  let start = null, spread = 0;
  const place = (event) => {
    const box = svg.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const part = ([px, py]) => {
    const { left, top, w, h } = plot.frame;
    return [(px - left) / w, 1 - (py - top) / h].map((value) => Math.max(0, Math.min(1, value)));
  };
  const gap = () => {
    const [a, b] = [...fingers.values()];
    return { size: Math.hypot(a[0] - b[0], a[1] - b[1]) || 1, centre: [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2] };
  };
  const box = (from, to) => {
    // A flat or a narrow box means one axis only.
    const [a, b] = [part(from), part(to)].map(([x, y]) => ({ x, y }));
    const { frame } = plot;
    const cut = (axis, far) => (far ? [Math.min(a[axis], b[axis]), Math.max(a[axis], b[axis])] : [0, 1]);
    return { x: cut("x", Math.abs(a.x - b.x) * frame.w > 14), y: cut("y", Math.abs(a.y - b.y) * frame.h > 14) };
  };

  svg.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse") {
      fingers.set(event.pointerId, place(event));
      plot.point(...place(event));
    } else if (event.button === 0) {
      start = place(event);
      svg.setPointerCapture(event.pointerId);
    }
    if (fingers.size === 2) spread = gap().size;
  });
  svg.addEventListener("pointermove", (event) => {
    const here = place(event);
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, here);
    if (fingers.size === 2) {
      const { size, centre } = gap();
      plot.zoom(spread / size, part(centre));
      spread = size;
    } else if (start && Math.hypot(here[0] - start[0], here[1] - start[1]) > 4) {
      const { left, top, w, h } = plot.frame;
      const { x, y } = box(start, here);
      plot.hide();
      plot.over.append(draw("rect", { class: "box", x: left + x[0] * w, y: top + (1 - y[1]) * h, width: (x[1] - x[0]) * w, height: (y[1] - y[0]) * h }));
    } else plot.point(...here);
  });
  const end = (event) => {
    fingers.delete(event.pointerId);
    const from = start;
    start = null;
    if (!from || event.type !== "pointerup") return;
    const { x, y } = box(from, place(event));
    if (x[1] - x[0] === 1 && y[1] - y[0] === 1) return;
    const { frame } = plot;
    const inside = ([low, high], [a, b]) => [low + a * (high - low), low + b * (high - low)];
    plot.show({ x: inside(frame.x, x), y: inside(frame.y, y) });
  };
  for (const name of ["pointerup", "pointercancel"]) svg.addEventListener(name, end);
  // A finger leaves when it lifts, and what it asked for stays until it taps elsewhere.
  svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && plot.hide());
  document.addEventListener("pointerdown", (event) => event.target !== svg && plot.hide());
  svg.addEventListener("blur", () => plot.hide());
  svg.addEventListener("dblclick", () => plot.show(null));
  // A wheel over a plot that was not chosen scrolls the page, as everywhere; a pinch on a touch pad holds "ctrl".
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== svg) return;
    event.preventDefault();
    plot.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.005), part(place(event)));
  }, { passive: false });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step !== undefined) {
      plot.at = Math.max(0, Math.min(plot.stops().length - 1, plot.at + step));
      document.getElementById("page-live").textContent = plot.read();
    } else if (event.key === "+" || event.key === "=") plot.zoom(0.75, [0.5, 0.5]);
    else if (event.key === "-") plot.zoom(1 / 0.75, [0.5, 0.5]);
    else if (event.key === "0" || event.key === "Escape") plot.show(null);
    else return;
    event.preventDefault();
  });
}
