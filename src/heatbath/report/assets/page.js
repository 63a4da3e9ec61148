// Numbers travel in few characters (page.py): x as a count, values as whole numbers that say how they change.
function unpack(series) {
  if (typeof series.x === "number") series.x = Array.from({ length: series.x }, (_, i) => i + 1);
  if (!("places" in series)) return;
  const scale = 10 ** series.places;
  let at = 0;
  const y = series.y.map((step) => (at += step));
  for (const key of ["low", "high"]) series[key] = series[key]?.map((far, i) => (y[i] + far) / scale);
  series.y = y.map((value) => value / scale);
}

// One button for each colour of a figure: the series of a colour belong together in all its panels.
function addLegend(figure, holder) {
  const groups = new Map();
  for (const series of figure.panels.flatMap((panel) => panel.series)) {
    if (!groups.has(series.colour)) groups.set(series.colour, { names: new Set(), styles: new Set() });
    groups.get(series.colour).names.add(series.name);
    groups.get(series.colour).styles.add(series.style);
  }
  figure.legend = [...groups].map(([colour, { names, styles }]) => ({ colour, styles, name: [...names].join(" · ") }));
  for (const { colour, styles, name } of figure.legend) {
    const button = make("button", { type: "button", "aria-pressed": "true" }, swatch(colour, styles), name);
    button.addEventListener("click", () => {
      const shown = figure.hidden.has(colour);
      if (shown) figure.hidden.delete(colour);
      else figure.hidden.add(colour);
      button.setAttribute("aria-pressed", shown);
      for (const plot of figure.plots) plot.draw();
    });
    holder.append(make("li", {}, button));
  }
}

// The names of a panel that stands alone, which has no buttons.
function addKey(panel, holder) {
  const names = panel.series.map(({ colour, style, name }) => make("li", {}, swatch(colour, new Set([style])), name));
  holder.querySelector(".note").before(make("ul", { class: "names" }, ...names));
}

// All that the series of a colour are drawn as: dash and mark tell them apart where the colour does not.
function swatch(colour, styles) {
  const shapes = {
    line: () => draw("path", { class: "curve", d: "M0 6h36", "stroke-dasharray": DASHES[variant(colour)] || "none" }),
    points: () => draw("path", { class: "mark", d: MARKS[variant(colour)](5), transform: "translate(18 6)" }),
  };
  const drawn = Object.entries(shapes).filter(([style]) => styles.has(style)).map(([, shape]) => shape());
  return draw("svg", { class: `s${hue(colour)}`, width: 36, height: 12, "aria-hidden": "true" }, ...drawn);
}

function fillTable(figure, holder) {
  for (const { title, x_label, series } of figure.panels) {
    const rows = new Map();
    series.forEach((one, column) => one.x.forEach((x, i) => {
      const interval = typeof one.low?.[i] === "number" ? ` (${format(one.low[i])} to ${format(one.high[i])})` : "";
      if (!rows.has(x)) rows.set(x, series.map(() => ""));
      rows.get(x)[column] = format(one.y[i]) + interval;
    }));
    const head = make("tr", {}, ...[x_label, ...series.map((one) => one.name)].map((name) => make("th", { scope: "col" }, name)));
    const order = [...rows].sort(([a], [b]) => (typeof a === "number" ? a - b : 0));
    const body = order.map(([x, cells]) => make("tr", {}, make("th", { scope: "row" }, format(x)), ...cells.map((cell) => make("td", {}, cell))));
    const table = make("table", {}, make("caption", {}, title), make("thead", {}, head), make("tbody", {}, ...body));
    holder.append(make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${title}, as a table` }, table));
  }
}

// Downloads: numbers as CSV, and the plots as they are shown, in the colours of the light theme.

function toCsv(figure) {
  const quote = (value) => (/[",\n\r]/.test(value ?? "") ? `"${String(value).replaceAll('"', '""')}"` : (value ?? ""));
  const rows = [["panel", "series", "x", "y", "low", "high"]];
  for (const { title, series } of figure.panels)
    for (const { name, x, y, low, high } of series) x.forEach((at, i) => rows.push([title, name, at, y[i], low?.[i], high?.[i]]));
  return rows.map((row) => `${row.map(quote).join(",")}\n`).join("");
}

const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-linejoin", "font-size", "font-family", "font-weight"];

function toSvg(figure) {
  const theme = page.dataset.theme;
  page.dataset.theme = "light";
  const inlined = (element) => {
    const copy = element.cloneNode(true);
    const copies = copy.querySelectorAll("*");
    element.querySelectorAll("*").forEach((one, i) => {
      const style = getComputedStyle(one);
      if (one.matches("path, rect, text, circle")) for (const look of LOOKS) copies[i].setAttribute(look, style.getPropertyValue(look));
    });
    copy.querySelector(".over")?.remove();
    for (const name of ["tabindex", "role", "class"]) copy.removeAttribute(name);
    return copy;
  };
  const font = { "font-family": "system-ui, sans-serif", fill: "#1d2125" };
  const picture = draw("svg", { xmlns: SVG });
  const sizes = figure.plots.map((plot) => plot.svg.viewBox.baseVal);
  const room = sizes.reduce((sum, { width }) => sum + width + 16, 0);
  let right = 8, down = 18;
  const shown = figure.legend.filter(({ colour }) => !figure.hidden.has(colour));
  for (const { colour, name } of shown) {
    const button = figure.buttons.children[figure.legend.findIndex((one) => one.colour === colour)];
    const key = inlined(button.querySelector("svg"));
    if (right > 8 && right + 52 + 7.5 * name.length > room) [right, down] = [8, down + 22];
    for (const [attribute, value] of Object.entries({ x: right, y: down })) key.setAttribute(attribute, value);
    picture.append(key, draw("text", { x: right + 42, y: down + 10, "font-size": 13, ...font }, name));
    right += 62 + 7.5 * name.length;
  }
  let x = 0, height = 0;
  figure.plots.forEach((plot, i) => {
    const { width, height: tall } = sizes[i];
    picture.append(draw("text", { x: x + 8, y: down + 40, "font-size": 14, "font-weight": 600, ...font }, plot.panel.title));
    const part = inlined(plot.svg);
    for (const [key, value] of Object.entries({ x, y: down + 48, width, height: tall })) part.setAttribute(key, value);
    picture.append(part);
    x += width + 16;
    height = Math.max(height, tall + down + 56);
  });
  page.dataset.theme = theme;
  for (const [key, value] of Object.entries({ width: x, height, viewBox: `0 0 ${x} ${height}` })) picture.setAttribute(key, value);
  picture.prepend(draw("rect", { width: x, height, fill: "#ffffff" }));
  return new XMLSerializer().serializeToString(picture);
}

async function toPng(figure) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(toSvg(figure))}`;
  await image.decode();
  const canvas = make("canvas", { width: 2 * image.width, height: 2 * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

function addDownloads(figure, holder) {
  const kinds = { csv: ["text/csv", toCsv], svg: ["image/svg+xml", toSvg], png: ["image/png", toPng] };
  const buttons = Object.entries(kinds).map(([kind, [type, content]]) => {
    const button = make("button", { type: "button", "data-kind": kind, "aria-label": `Download ${figure.label} as ${kind.toUpperCase()}` }, kind.toUpperCase());
    button.addEventListener("click", async () => {
      const link = make("a", { download: `${figure.name}.${kind}` });
      link.href = URL.createObjectURL(new Blob([await content(figure)], { type }));
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    });
    return button;
  });
  holder.querySelector("span").after(...buttons);
}

// Claims: by verdict and by figure. A link to a claim opens it.

function addFilters(section) {
  const bar = section.querySelector(".filters"), select = bar.querySelector("select");
  const buttons = [...bar.querySelectorAll("button")];
  let outcome = "";
  const filter = () => {
    for (const button of buttons) button.setAttribute("aria-pressed", button.dataset.outcome === outcome);
    for (const group of section.querySelectorAll(".claims")) {
      const lines = [...group.querySelectorAll("li")];
      for (const line of lines) line.hidden = outcome !== "" && line.dataset.outcome !== outcome;
      group.hidden = (select.value !== "" && group.dataset.figure !== select.value) || lines.every((line) => line.hidden);
    }
  };
  for (const button of buttons) button.addEventListener("click", () => { outcome = button.dataset.outcome; filter(); });
  select.addEventListener("change", filter);
  bar.hidden = false;
  const open = () => {
    const target = location.hash ? section.querySelector(`#${CSS.escape(location.hash.slice(1))}`) : null;
    if (target?.closest("[hidden]")) {
      outcome = select.value = "";
      filter();
      target.scrollIntoView();
    }
    if (target?.matches("li")) target.querySelector("details").open = true;
  };
  addEventListener("hashchange", open);
  open();
}

// Theme: that of the system until the reader chooses one.

const system = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
try { chosen = localStorage.getItem("heatbath-theme"); } catch { /* a page from a file may have no storage */ }

function setTheme() {
  page.dataset.theme = chosen ?? (system.matches ? "dark" : "light");
  const button = document.getElementById("page-theme");
  if (button) button.textContent = page.dataset.theme === "dark" ? "Light theme" : "Dark theme";
}

setTheme();
system.addEventListener("change", setTheme);
// On paper two plots share a line; drawn for it, their words keep their size.
const PAPER_WIDTH = 340;
const plots = [], folded = [];
addEventListener("beforeprint", () => {
  folded.push(...document.querySelectorAll(".claims details:not([open])"));
  for (const claim of folded) claim.open = true;
  page.dataset.theme = "light";
  for (const plot of plots) plot.draw(PAPER_WIDTH);
});
addEventListener("afterprint", () => {
  for (const claim of folded.splice(0)) claim.open = false;
  setTheme();
  for (const plot of plots) plot.draw();
});
addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("page-theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    chosen = page.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("heatbath-theme", chosen); } catch { /* then it lasts as long as the page */ }
    setTheme();
  });
  setTheme();
  const claims = document.getElementById("page-claims");
  if (claims) addFilters(claims);
  for (const figure of JSON.parse(document.getElementById("page-data").textContent)) {
    figure.panels.flatMap((panel) => panel.series).forEach(unpack);
    const section = document.getElementById(figure.name);
    figure.hidden = new Set();
    figure.buttons = section.querySelector(".legend");
    if (!figure.panels.length) continue;
    addLegend(figure, figure.buttons);
    const holders = section.querySelectorAll(".panel");
    figure.plots = figure.panels.map((panel, i) => new Plot(figure, panel, holders[i], i));
    for (const key of document.querySelectorAll(`.key-panel[data-figure="${figure.name}"]`)) {
      const panel = figure.panels[key.dataset.panel];
      plots.push(new Plot({ name: `key-${figure.name}`, hidden: new Set() }, panel, key.querySelector(".panel"), key.dataset.panel));
      addKey(panel, key);
    }
    plots.push(...figure.plots);
    addDownloads(figure, section.querySelector(".downloads"));
    const table = section.querySelector(".numbers");
    table.addEventListener("toggle", () => fillTable(figure, table), { once: true });
  }
});
