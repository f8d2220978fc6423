// What the reader looks at: the step under the cursor, the stretch of steps, the layer. The address holds it, so a link
// to a finding, a layer or a step can be sent.

const view = {
  cursor: null,
  zoom: null,
  logX: false,
  log: {},
  layer: "",
  finding: "",
  run: "",
  others: [],
  sort: "order",
  search: "",
  small: false,
};
const listeners = new Set();
let pending = false;

/** Change what is looked at. Everything is drawn again in the next frame, once. */
function look_at(changes) {
  Object.assign(view, changes);
  if (Object.keys(changes).some((key) => key !== "cursor")) write();
  wake();
}

function wake() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    for (const listener of listeners) listener();
  });
}

function write() {
  const words = new URLSearchParams();
  if (view.run) words.set("run", view.run);
  if (view.others.length) words.set("with", view.others.join("|"));
  if (view.zoom) words.set("steps", view.zoom.map((step) => Math.round(step)).join("-"));
  if (view.logX) words.set("x", "log");
  for (const [name, log] of Object.entries(view.log)) words.append(log ? "log" : "linear", name);
  if (view.layer) words.set("layer", view.layer);
  if (view.finding) words.set("finding", view.finding);
  if (view.sort !== "order") words.set("sort", view.sort);
  if (view.search) words.set("search", view.search);
  if (view.small) words.set("small", "1");
  if (view.pinned !== undefined && view.pinned !== null) words.set("step", String(Math.round(view.pinned)));
  const text = words.toString();
  if (location.hash.slice(1) !== text) history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
}

function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const zoom = (words.get("steps") ?? "").split("-").map(Number);
  const step = words.has("step") ? Number(words.get("step")) : null;
  Object.assign(view, {
    run: words.get("run") ?? "",
    others: (words.get("with") ?? "").split("|").filter(Boolean).slice(0, 7),
    zoom: zoom.length === 2 && zoom.every(Number.isFinite) && zoom[1] > zoom[0] ? zoom : null,
    logX: words.get("x") === "log",
    log: Object.fromEntries([...words.getAll("log").map((name) => [name, true]), ...words.getAll("linear").map((name) => [name, false])]),
    layer: words.get("layer") ?? "",
    finding: words.get("finding") ?? "",
    sort: words.get("sort") ?? "order",
    search: words.get("search") ?? "",
    small: words.has("small"),
    pinned: Number.isFinite(step) ? step : null,
    cursor: Number.isFinite(step) ? step : null,
  });
}
