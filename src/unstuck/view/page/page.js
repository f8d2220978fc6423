// Puts the page together from the data of a run, and again whenever these change.

const shown = { doc: null, charts: new Map(), heats: new Map(), parts: new Map() };

/** Replace a part of the page, if what it shows is no longer the same. */
function place(id, data, build) {
  const key = JSON.stringify(data ?? null);
  if (shown.parts.get(id) === key) return;
  shown.parts.set(id, key);
  const holder = document.getElementById(`place-${id}`);
  const opened = new Set([...holder.querySelectorAll("details[open]")].map((one) => one.id).filter(Boolean));
  const built = build();
  holder.replaceChildren(...(built ? [built] : []));
  for (const name of opened) {
    const details = document.getElementById(name);
    if (details) details.open = true;
  }
}

function show(doc) {
  shown.doc = doc;
  const named = fileName(doc.run.script) || doc.run.name || "run";
  document.title = `${doc.run.running ? "● " : ""}${named} · ${doc.answer.headline}`.slice(0, 120);
  const ends = (doc.timeline ?? []).flatMap((chart) => chart.lines.filter((line) => line.style !== "limit" && line.steps.length).map((line) => [line.steps[0], line.steps[line.steps.length - 1]]));
  extent.first = Math.min(0, ...ends.map(([first]) => first));
  extent.last = Math.max(1, ...ends.map(([, last]) => last));
  place("answer", [doc.run.script, doc.answer], () => answerSection(doc));
  document.getElementById("facts").textContent = factsOf(doc.run);
  place("findings", doc.answer.findings, () => findingsSection(doc));
  timelineSection(doc);
  layersSection(doc);
  place("data", doc.data, () => dataSection(doc));
  place("experiments", doc.answer.experiments, () => experimentsSection(doc));
  place("checked", doc.answer, () => checkedSection(doc));
  navigation();
  if (view.layer) showLayer();
  wake();
}

/** Findings at the step by which the record first showed them. */
function pins() {
  return (shown.doc?.answer.findings ?? []).filter((finding) => isNumber(finding.step)).map((finding) => ({
    step: Math.min(finding.step, extent.last),
    kind: finding.tone.kind,
    text: finding.code,
    words: `${finding.code} ${finding.name}: ${finding.message}`,
    open: () => openFinding(finding.code),
  }));
}

function openFinding(code) {
  look_at({ finding: code });
  const finding = shown.doc.answer.findings.find((one) => one.code === code);
  const target = finding?.principal ? document.getElementById("answer") : document.getElementById(`finding-${code}`);
  if (!target) return;
  if ("open" in target) target.open = true;
  target.scrollIntoView({ behavior: "smooth", block: "start" });
}

function timelineSection(doc) {
  const holder = document.getElementById("place-timeline");
  const specs = doc.timeline ?? [];
  if (!specs.length) return holder.replaceChildren();
  if (!holder.firstChild) {
    holder.append(el("section", { id: "timeline", "aria-labelledby": "timeline-title" },
      el("h2", { id: "timeline-title" }, "Timeline", el("small", {}, "drag to zoom, double-click to see all, click to keep the cursor")),
      el("div.charts.timeline")));
    shown.charts.clear();
  }
  const grid = holder.querySelector(".charts");
  for (const spec of specs) {
    const known = shown.charts.get(spec.name);
    if (known) known.update(spec);
    else {
      const first = spec.name === "loss";
      const chart = new Chart(grid, spec, first ? { height: 330, pins } : {});
      if (first) chart.figure.classList.add("wide");
      shown.charts.set(spec.name, chart);
    }
  }
  specs.forEach((spec, index) => {
    const { figure } = shown.charts.get(spec.name);
    if (grid.children[index] !== figure) grid.insertBefore(figure, grid.children[index] ?? null);
  });
  for (const [name, chart] of shown.charts) {
    if (!specs.some((spec) => spec.name === name)) {
      chart.figure.remove();
      shown.charts.delete(name);
    }
  }
}

function layersSection(doc) {
  const holder = document.getElementById("place-layers");
  const heats = doc.layers?.heatmaps ?? [];
  if (!heats.length) {
    shown.heats.clear();
    return holder.replaceChildren();
  }
  if (!holder.firstChild) {
    shown.heats.clear();
    holder.append(el("section", { id: "layers", "aria-labelledby": "layers-title" },
      el("h2", { id: "layers-title" }, "Layers", el("small", {}, "top to bottom in the order of execution; click a row for its layer")),
      layerTools(doc), el("div.charts.heats")));
  }
  const note = holder.querySelector(".left-out");
  note.textContent = doc.layers.left_out ? `${plain(doc.layers.left_out, "smaller tensor")} not shown.` : "";
  const grid = holder.querySelector(".heats");
  for (const heat of heats) {
    const known = shown.heats.get(heat.name);
    if (known) known.update(heat, doc.layers);
    else {
      const drawn = new Heat(grid, heat, doc.layers, openLayer);
      drawn.flagged = () => new Set((shown.doc.answer.findings ?? []).flatMap((finding) => finding.rows ?? []));
      shown.heats.set(heat.name, drawn);
    }
  }
  heats.forEach((heat, index) => {
    const { figure } = shown.heats.get(heat.name);
    if (grid.children[index] !== figure) grid.insertBefore(figure, grid.children[index] ?? null);
  });
}

function layerTools(doc) {
  const search = el("input", { type: "search", placeholder: "Search layers  /", "aria-label": "search layers", value: view.search, oninput: (event) => look_at({ search: event.target.value }) });
  const sorts = { order: "in order of execution", name: "by name", high: "highest first", low: "lowest first" };
  const sort = el("select", { "aria-label": "order of layers", onchange: (event) => look_at({ sort: event.target.value }) }, Object.entries(sorts).map(([value, text]) => el("option", { value, selected: view.sort === value }, text)));
  const has = (doc.layers.tensors ?? []).some((tensor) => (tensor.dimensions ?? 0) < 2);
  const small = has ? el("label", {}, el("input", { type: "checkbox", checked: view.small, onchange: (event) => look_at({ small: event.target.checked }) }), "biases and norms too") : null;
  return el("form.controls", { onsubmit: (event) => event.preventDefault() }, search, sort, small, el("span.quiet.left-out"));
}

function navigation() {
  const names = { answer: "Answer", findings: "Findings", timeline: "Timeline", layers: "Layers", data: "Data", experiments: "Experiments", checked: "Checked" };
  const links = Object.entries(names).filter(([id]) => document.getElementById(id)).map(([id, name]) => el("button.link", { type: "button", onclick: () => document.getElementById(id).scrollIntoView({ behavior: "smooth", block: "start" }) }, name));
  document.getElementById("sections").replaceChildren(...links);
}

/** What the bar at the top says of the stretch that is shown. */
listeners.add(() => {
  const zoom = document.getElementById("zoom");
  zoom.hidden = !view.zoom;
  if (view.zoom) zoom.querySelector("span").textContent = `steps ${view.zoom[0].toLocaleString("en")} to ${view.zoom[1].toLocaleString("en")}`;
  document.getElementById("log-steps").setAttribute("aria-pressed", String(view.logX));
});

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  try {
    localStorage.setItem("unstuck-theme", theme);
  } catch { /* a page from a file may have no storage */ }
  drawAll();
}

function turnTheme() {
  setTheme(look().dark ? "light" : "dark");
}

const KEYS = [
  ["/", "search layers"], ["j  k", "next and previous finding"], ["← →", "move the cursor of the chart in focus"], ["+  -", "zoom the chart in focus"],
  ["0", "show all steps"], ["x", "steps on a logarithmic or linear axis"], ["l", "the chart in focus, logarithmic or linear"], ["[  ]", "previous and next layer, while one is open"],
  ["t", "light or dark"], ["?", "this list"], ["Esc", "close, and release the cursor"],
];

function showHelp() {
  const dialog = document.getElementById("help");
  dialog.replaceChildren(el("header", {}, el("h2", {}, "Keys"), button("close (Esc)", "close", () => dialog.close())), el("dl.keys", {}, KEYS.map(([key, text]) => el("div", {}, el("dt", {}, key.split("  ").map((one) => el("kbd", {}, one))), el("dd", {}, text)))));
  dialog.showModal();
}

function nextFinding(by) {
  const findings = shown.doc?.answer.findings ?? [];
  if (!findings.length) return;
  const at = findings.findIndex((finding) => finding.code === view.finding);
  openFinding(findings[(at + by + findings.length) % findings.length].code);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) return;
  const layer = document.getElementById("layer");
  const actions = {
    "/": () => document.querySelector("input[type=search]")?.focus(),
    j: () => nextFinding(1),
    k: () => nextFinding(-1),
    0: () => look_at({ zoom: null }),
    x: () => look_at({ logX: !view.logX }),
    t: turnTheme,
    "?": showHelp,
    Escape: () => !layer.open && look_at({ cursor: null, pinned: null }),
    "[": () => layer.open && layer.turn(-1),
    "]": () => layer.open && layer.turn(1),
  };
  if (!(event.key in actions)) return;
  if (event.key !== "Escape") event.preventDefault();
  actions[event.key]();
});

function begin() {
  let theme = "";
  try {
    theme = localStorage.getItem("unstuck-theme") ?? "";
  } catch { /* a page from a file may have no storage */ }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  readAddress();
  document.getElementById("bar-tools").append(
    el("button.pill", { type: "button", id: "log-steps", title: "steps on a logarithmic axis (x)", onclick: () => look_at({ logX: !view.logX }) }, "log steps"),
    button("light or dark (t)", "theme", turnTheme),
    button("keys (?)", "help", showHelp));
  document.getElementById("zoom").addEventListener("click", () => look_at({ zoom: null }));
  document.getElementById("layer").addEventListener("close", () => look_at({ layer: "" }));
  for (const dialog of document.querySelectorAll("dialog")) dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  growth.observe(document.body);
  window.addEventListener("beforeprint", () => {
    look.known = null;
    for (const chart of charts) {
      chart.stale = true;
      chart.drawTop();
    }
  });
  window.addEventListener("hashchange", () => {
    readAddress();
    for (const chart of charts) chart.stale = true;
    if (shown.doc && view.layer) showLayer();
    wake();
  });
  const data = document.getElementById("page-data");
  if (data.textContent.trim()) {
    show(JSON.parse(data.textContent));
    if (view.finding) openFinding(view.finding);
  } else live();
}
