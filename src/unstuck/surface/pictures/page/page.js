// What the reader does: choose, hover, drag. One state; every panel is drawn from it.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { component: "", layers: {}, start: startPoint(), hover: null, rates: {}, steps: 300 };
const panels = data.panels.map(makePanel);

/** The first operating point, or else the start of the longest flow line. */
function startPoint() {
  const [{ axes, marks, flows }] = data.surfaces;
  if (marks.length) return [...marks[0]];
  const reach = ({ points }) =>
    Math.hypot(...axes.map((axis, d) => (points[points.length - 1][d] - points[0][d]) / (axis.high - axis.low)));
  const longest = flows.reduce((best, flow) => (best && reach(best) >= reach(flow) ? best : flow), null);
  return longest ? [...longest.points[0]] : axes.map((axis) => axis.low + 0.3 * (axis.high - axis.low));
}

function makePanel(panel) {
  const surface = data.surfaces[panel.surface];
  const keys = surface.axes.length > 1 ? "Arrow keys" : "Left and right";
  const canvas = element("canvas", {
    tabindex: "0",
    role: "application",
    "aria-label": `${panel.title}. ${keys} move the start of descent, with Shift in finer steps.`,
  });
  const reading = element("p", { class: "reading" });
  const outcome = element("p", { class: "outcome", "aria-live": "polite" });
  const figure = element("figure", {}, element("figcaption", {}, panel.title), canvas, reading, outcome);
  const picture = surface.axes.length > 1 ? new Plane(canvas) : new Curve(canvas);
  return { ...panel, surface, canvas, reading, outcome, figure, picture, difference: panel.minus !== null };
}

/** What a panel shows now; null where it has not got the chosen component. */
function sceneOf(panel) {
  const { component } = state;
  if (!(component in panel.scales)) return null;
  const key = `${panel.title} ${component}`;
  if (panel.key !== key) {
    panel.key = key;
    panel.field = fieldOf(panel.surface, component);
    if (panel.difference) panel.field = minus(panel.field, fieldOf(data.surfaces[panel.minus], component));
  }
  const { field, surface, difference } = panel;
  const slopes = component ? slopeScale(field) : panel.slopes;
  const start = state.start.slice(0, field.axes.length);
  const hover = state.hover?.length === start.length ? state.hover : null;
  return {
    field, surface, difference, component, whole: !component, scale: panel.scales[component], slopes,
    layers: state.layers, start, hover, arrowRange: data.arrows, paths: difference ? {} : paths(field, start),
  };
}

function slopeScale(field) {
  const finite = field.gradient[0].filter(Number.isFinite);
  return { low: Math.min(...finite), high: Math.max(...finite), softness: 0, levels: [] };
}

function paths(field, start) {
  const ways = Object.keys(PATHS).map((name) => [name, descend(field, start, name, state.rates[name], state.steps)]);
  return Object.fromEntries(ways);
}

function drawAll() {
  for (const panel of panels) {
    const scene = sceneOf(panel);
    panel.figure.hidden = !scene;
    if (!scene) continue;
    const width = Math.floor(panel.canvas.clientWidth);
    if (width > 0) panel.picture.drawBase(scene, width);
  }
  refresh();
}

let waiting = false;
/** Draw what follows the pointer, at most once a frame. */
function refreshSoon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    refresh();
  });
}

function refresh() {
  for (const panel of panels) {
    const scene = sceneOf(panel);
    if (!scene || !panel.picture.box && !panel.picture.boxes) continue;
    panel.picture.drawTop(scene);
    panel.reading.textContent = readingOf(scene);
    const ends = Object.entries(scene.paths).map(([name, path]) => outcomeOf(name, path, scene.field));
    panel.outcome.replaceChildren(...ends);
  }
  document.querySelectorAll("#start input").forEach((input, d) => {
    if (input !== document.activeElement) input.value = Number(state.start[d].toPrecision(4));
  });
}

function readingOf({ field, hover, start, difference, component }) {
  const point = hover ?? start;
  const where = field.axes.map((axis, d) => `${axis.name} ${words(point[d])}`).join("   ");
  const what = difference ? "difference" : component || "loss";
  const slope = field.slope(point);
  const gradient = slope.length > 1 ? `(${slope.map((part) => words(part)).join(", ")})` : words(slope[0]);
  return `${hover ? "" : "start: "}${where}   ${what} ${words(field.value(point))}   gradient ${gradient}`;
}

function outcomeOf(name, { points, ended }, field) {
  const last = points[points.length - 1];
  const where = last.map((part) => words(part, 3)).join(", ");
  const value = field.contains(last) ? `: ${state.component || "loss"} ${words(field.value(last))}` : "";
  const text = ` ${ended} after ${points.length - 1} steps at ${points[0].length > 1 ? `(${where})` : where}${value}`;
  return element("span", {}, element("b", {}, PATHS[name].name), text);
}

function moveStart(point) {
  state.start = state.start.map((part, d) => point[d] ?? part);
  refreshSoon();
}

/** With a mouse the start jumps to where it is pressed; a finger must touch the ring, or the page could not scroll. */
function listen({ canvas, picture, surface, difference }) {
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const nearRing = (event) => {
    const [x, y] = picture.pixel(state.start);
    const [left, top] = at(event);
    return surface.axes.length > 1 ? Math.hypot(left - x, top - y) < 32 : Math.abs(left - x) < 32;
  };
  let dragging = false;
  canvas.addEventListener("pointerdown", (event) => {
    const touched = event.pointerType === "touch";
    dragging = !difference && (touched ? nearRing(event) : picture.point(at(event)) !== null);
    if (!dragging) return;
    canvas.setPointerCapture?.(event.pointerId);
    if (!touched) moveStart(picture.point(at(event), true));
  });
  canvas.addEventListener("touchstart", (event) => nearRing(event.touches[0]) && event.preventDefault(), { passive: false });
  canvas.addEventListener("pointermove", (event) => {
    if (dragging) moveStart(picture.point(at(event), true));
    state.hover = dragging ? null : picture.point(at(event));
    refreshSoon();
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (dragging = false));
  canvas.addEventListener("pointerleave", () => {
    state.hover = null;
    refreshSoon();
  });
  canvas.addEventListener("keydown", (event) => byKey(event, surface.axes));
}

const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1] };

function byKey(event, axes) {
  const direction = KEYS[event.key]?.slice(0, axes.length);
  if (!direction?.some(Boolean)) return;
  event.preventDefault();
  const part = event.shiftKey ? 0.005 : 0.03;
  moveStart(axes.map((axis, d) => clamped(state.start[d] + direction[d] * part * (axis.high - axis.low), axis)));
}

function clamped(value, axis) {
  return Math.min(Math.max(value, axis.low), axis.high);
}

/** Steps that cross the plane in about a hundred, for SGD where the slope is ordinary. */
function firstRates() {
  const field = fieldOf(data.surfaces[0], "");
  const span = Math.min(...field.axes.map((axis) => axis.high - axis.low));
  const steepness = [...field.values.keys()].map((index) => Math.hypot(...field.gradient.map((part) => part[index])));
  const sloping = steepness.filter((slope) => Number.isFinite(slope) && slope > 0).sort((one, other) => one - other);
  const ordinary = sloping[Math.floor(sloping.length / 2)] ?? 1;
  return { sgd: span / 100 / ordinary, adam: span / 100 };
}

function setUpDescent() {
  const form = document.getElementById("descent");
  const rates = firstRates();
  const read = () => {
    state.rates = { sgd: 10 ** form.sgd.value, adam: 10 ** form.adam.value };
    state.steps = Math.round(10 ** form.steps.value);
    for (const name of Object.keys(PATHS)) form[name].nextSibling.textContent = words(state.rates[name], 2);
    form.steps.nextSibling.textContent = state.steps;
  };
  for (const name of Object.keys(PATHS)) {
    const middle = Math.log10(rates[name]);
    Object.assign(form[name], { min: middle - 2.5, max: middle + 2.5, value: middle });
  }
  form.addEventListener("input", () => {
    read();
    refreshSoon();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  read();
  const fields = data.surfaces[0].axes.map((axis, d) => {
    const input = element("input", { type: "number", step: "any" });
    input.addEventListener("input", () => {
      const value = input.valueAsNumber;
      if (Number.isFinite(value)) moveStart(state.start.map((part, e) => (e === d ? clamped(value, axis) : part)));
    });
    return element("label", {}, `${axis.name} `, input);
  });
  document.getElementById("start").append(...fields);
}

function setUpLayers() {
  const form = document.getElementById("layers");
  const names = [...new Set(data.surfaces.flatMap((surface) => Object.keys(surface.components)))];
  const choice = form.querySelector("select");
  choice.append(element("option", { value: "" }, "the whole loss"), ...names.map((name) => element("option", { value: name }, name)));
  document.getElementById("component-choice").hidden = names.length === 0;
  form.querySelector("fieldset").hidden = data.surfaces.every((surface) => surface.axes.length === 1);
  const read = () => {
    state.component = choice.value;
    document.getElementById("component-note").hidden = !choice.value;
    for (const box of form.querySelectorAll("input")) state.layers[box.name] = box.checked;
  };
  form.addEventListener("change", () => {
    read();
    drawAll();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  read();
}

function setUp() {
  document.getElementById("facts").textContent = facts(data.surfaces);
  document.getElementById("panels").append(...panels.map((panel) => panel.figure));
  document.querySelector("main").dataset.panels = Math.min(panels.length, 3);
  document.getElementById("findings").append(...sideNotes(data.surfaces));
  const tabled = data.surfaces.filter((surface) => surface.table.length);
  document.getElementById("tables").append(...tabled.map((surface) => flowTable(surface, tabled.length > 1)));
  setUpLayers();
  setUpDescent();
  panels.forEach(listen);
  const relegend = () => document.getElementById("legend").replaceChildren(...legend(data.surfaces));
  relegend();
  drawAll();
  window.addEventListener("resize", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    relegend();
    drawAll();
  });
}

setUp();
