// The words beside the pictures. Names come from the user's code, so they only ever become text, never markup.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function facts(surfaces) {
  const [first] = surfaces;
  const grid = first.axes.map((axis) => axis.count).join(" × ");
  const axes = first.axes.map((axis) => `${axis.name} from ${words(axis.low)} to ${words(axis.high)}`).join(", ");
  const parts = [first.place, axes, `${grid} points, ${first.method}`];
  if (first.eigenvalues.length) parts.push(`largest curvatures ${first.eigenvalues.map((value) => words(value)).join(", ")}`);
  return parts.filter(Boolean).join(" · ");
}

const SIGNS = { error: "✕", warning: "!", advice: "i" };

function findingNote(finding) {
  const head = element(
    "h3", {},
    element("span", { class: `sign ${finding.severity}`, title: finding.severity }, SIGNS[finding.severity] ?? "i"),
    element("span", {}, finding.name.replaceAll("-", " ")),
    element("code", {}, finding.code),
  );
  const note = element("article", {}, head, element("p", {}, finding.message));
  if (finding.cause) note.append(element("p", { class: "cause" }, finding.cause));
  if (finding.fix) note.append(element("p", { class: "fix" }, finding.fix));
  const numbers = element("dl");
  for (const { name, value, unit } of finding.evidence) {
    const text = typeof value === "number" || value === null ? words(value) : [value].flat().join(", ");
    numbers.append(element("div", {}, element("dt", {}, name), element("dd", {}, unit ? `${text} ${unit}` : text)));
  }
  if (finding.evidence.length) note.append(numbers);
  return note;
}

function arrivalNote({ starts, ended }) {
  const shares = Object.entries(ended).filter(([, share]) => share > 0).sort((one, other) => other[1] - one[1]);
  const bars = shares.map(([where, share]) => {
    const bar = element("span", { class: "bar" });
    bar.style.inlineSize = `${share * 100}%`;
    return element("li", {}, element("span", {}, where), element("span", {}, percent(share)), bar);
  });
  return element("article", {}, element("h3", {}, `Where descent ends, from ${starts} starts`), element("ul", { class: "bars" }, ...bars));
}

/** Findings, arrivals and notes; under the name of their variant when there are several. */
function sideNotes(surfaces) {
  return surfaces.map((surface) => {
    const title = surfaces.length > 1 ? surface.name : "Findings";
    const notes = surface.findings.map(findingNote);
    if (surface.nothing) notes.push(element("p", { class: "quiet" }, surface.nothing));
    if (surface.arrivals) notes.push(arrivalNote(surface.arrivals));
    notes.push(...surface.notes.map((note) => element("p", { class: "quiet" }, note)));
    return element("section", {}, element("h2", {}, title), ...notes);
  });
}

const COLUMNS = ["component", "gradient for", "input", "at", "loss", "gradient", ""];

function flowTable(surface, named) {
  const rows = surface.table.map((row) => {
    const at = row.at.map((part) => words(part)).join(", ");
    const cells = [row.component, row.parameter, row.label, at, words(row.loss), words(row.gradient), row.flag && `▲ ${row.flag}`];
    return element("tr", row.flag ? { class: "flagged" } : {}, ...cells.map((cell) => element("td", {}, cell)));
  });
  const head = element("tr", {}, ...COLUMNS.map((name) => element("th", { scope: "col" }, name || "flag")));
  const caption = named ? `Gradient flow · ${surface.name}` : "Gradient flow";
  const table = element("table", {}, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...rows));
  return element("div", { class: "scrolling", tabindex: "0", role: "region", "aria-label": caption }, table);
}

/** What is there to be seen, each with its own symbol. */
function legend(surfaces) {
  const any = (name) => surfaces.some((surface) => surface[name].length);
  const kinds = new Set(surfaces.flatMap((surface) => surface.stationary.map((spot) => spot.kind)));
  const entries = Object.entries(PATHS).map(([, path]) => [path.name, pathSample(path)]);
  for (const kind of Object.keys(SHAPES)) if (kinds.has(kind)) entries.push([kind, (pen) => symbol(pen, kind, 16, 10)]);
  if (any("marks")) entries.push(["operating point", (pen) => symbol(pen, "mark", 16, 10)]);
  if (any("flows") && surfaces[0].axes.length > 1) entries.push(["gradient flow", (pen) => rimmed(pen, [[3, 10], [29, 10]], { colour: LIGHT, rim: DARK, width: 1.3 })]);
  if (any("nonFinite")) entries.push(["not finite", hatchSample]);
  return entries.map(([name, draw]) => {
    const canvas = element("canvas", { "aria-hidden": "true" });
    draw(sized(canvas, 32, 20));
    return element("li", {}, canvas, name);
  });
}

function pathSample(path) {
  return (pen) => {
    pen.fillStyle = "#33638d";
    pen.fillRect(0, 3, 32, 14);
    rimmed(pen, [[4, 10], [28, 10]], { ...path, width: 2.6 });
  };
}

function hatchSample(pen) {
  pen.fillStyle = hatching(pen, theme());
  pen.fillRect(2, 3, 28, 14);
}
