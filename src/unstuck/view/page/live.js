// The live view: the list of runs, one run followed while it goes on, several runs compared.

const served = { runs: [], docs: new Map(), versions: new Map(), source: null };

async function get(path) {
  const answer = await fetch(path, { cache: "no-store", credentials: "omit" });
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}

function live() {
  document.body.classList.add("live");
  document.getElementById("bar").prepend(button("runs", "menu", () => document.body.classList.toggle("listing")));
  document.getElementById("runs").hidden = false;
  connect();
}

/** The server says what has changed; what is shown is fetched again. */
function connect() {
  served.source?.close();
  const watched = [view.run, ...view.others].filter(Boolean).map((name) => `run=${encodeURIComponent(name)}`).join("&");
  const source = new EventSource(`events${watched ? `?${watched}` : ""}`);
  served.source = source;
  source.onopen = () => status("live");
  source.onmessage = (event) => changed(JSON.parse(event.data)).catch(() => status("lost"));
  source.onerror = () => status("lost");
}

function status(word) {
  const holder = document.getElementById("status");
  const run = shown.doc?.run;
  const texts = { lost: "not connected", live: run?.running ? "following" : "" };
  holder.className = word === "lost" ? "lost" : run?.running ? "running" : "";
  holder.textContent = texts[word] ?? "";
}

async function changed(news) {
  if (news.runs !== undefined && news.runs !== served.listVersion) {
    served.listVersion = news.runs;
    served.runs = await get("runs.json");
    if (!served.runs.some((run) => run.name === view.run) && served.runs.length) return choose(served.runs[0].name, false);
    listRuns();
    if (!served.runs.length) waiting();
  }
  const wanted = [view.run, ...view.others];
  for (const [name, version] of Object.entries(news.versions ?? {})) {
    if (!wanted.includes(name) || served.versions.get(name) === version) continue;
    const doc = await get(`run.json?run=${encodeURIComponent(name)}`);
    served.versions.set(name, version);
    const before = served.docs.get(name);
    served.docs.set(name, doc);
    if (name === view.run) {
      announce(before, doc);
      show(doc);
    }
    if (view.others.length) compare();
  }
  status("live");
}

function waiting() {
  document.getElementById("place-answer").replaceChildren(el("section.answer", {}, el("h1", {}, "No run yet"), el("p", {}, "This page shows the first one as soon as it begins:"), code("unstuck run train.py", "a command that records a run")));
}

/** Findings that were not there before. */
function announce(before, doc) {
  if (!before) return;
  const known = new Set((before.answer.findings ?? []).map((finding) => finding.key));
  const fresh = (doc.answer.findings ?? []).filter((finding) => !known.has(finding.key));
  if (fresh.length) say(`Found: ${fresh.map((finding) => `${finding.code} ${finding.name}`).join(", ")}`);
  else if (before.run.running && !doc.run.running) say(`The run ${doc.run.status}.`);
}

/** Follow this run; what was looked at belongs to the one before. */
function choose(name, keep = true) {
  const others = view.others.filter((other) => other !== name);
  look_at({ run: name, others, zoom: null, cursor: null, pinned: null, layer: keep ? "" : view.layer, finding: keep ? "" : view.finding });
  document.body.classList.remove("listing");
  shown.parts.clear();
  for (const id of ["timeline", "layers"]) document.getElementById(`place-${id}`).replaceChildren();
  shown.charts.clear();
  shown.heats.clear();
  const doc = served.docs.get(name);
  if (doc) show(doc);
  else document.getElementById("place-answer").replaceChildren(el("section.answer", {}, el("h1", {}, "Reading the record …")));
  if (!others.length) document.getElementById("place-compare").replaceChildren();
  listRuns();
  connect();
}

function toggleOther(name) {
  const others = view.others.includes(name) ? view.others.filter((other) => other !== name) : [...view.others, name].slice(0, 7);
  look_at({ others });
  listRuns();
  if (!others.length) document.getElementById("place-compare").replaceChildren();
  else compare();
  connect();
}

/** Runs of one job, a rank each, are one entry with a button for each rank. */
function listRuns() {
  const holder = document.getElementById("runs");
  const jobs = new Map();
  for (const run of served.runs) {
    const key = run.job || run.name;
    jobs.set(key, [...(jobs.get(key) ?? []), run]);
  }
  const entries = [...jobs.values()].map((ranks) => runEntry(ranks));
  holder.replaceChildren(el("h2", {}, "Runs"), entries.length ? el("ol", {}, entries) : el("p.quiet", {}, "None yet."));
}

function runEntry(ranks) {
  const run = ranks.find((one) => one.name === view.run) ?? ranks[0];
  const current = run.name === view.run;
  const spark = el("canvas.spark", { "aria-hidden": "true" });
  drawSpark(spark, run.spark ?? []);
  const about = el("button.run", { type: "button", "aria-current": current ? "true" : null, onclick: () => choose(run.name) },
    el("span.top", {}, el(`span.dot.${run.tone || "quiet"}${run.running ? ".running" : ""}`, { "aria-hidden": "true" }, SIGNS[run.tone] ?? "·"), el("b", { title: run.script }, fileName(run.script) || run.name), el("time", { title: run.when }, shortTime(run.when))),
    el("span.headline", {}, run.headline || "not read yet"),
    el("span.bottom", {}, spark, el("span", {}, [run.running ? "running" : "", run.trend, run.steps ? plain(run.steps, "step") : ""].filter(Boolean).join(" · "))));
  const several = ranks.length > 1 ? el("div.ranks", {}, ranks.map((rank) => el("button.pill", { type: "button", "aria-pressed": String(rank.name === view.run), onclick: () => choose(rank.name) }, `rank ${rank.rank}`))) : null;
  const box = current ? null : el("label.with", { title: "compare with the run that is shown" }, el("input", { type: "checkbox", checked: view.others.includes(run.name), onchange: () => toggleOther(run.name) }), "compare");
  return el("li", {}, about, several, box);
}

/** The time of a run of today, else its day. */
function shortTime(when) {
  const [day, time] = (when ?? "").split(" ");
  if (!time) return "";
  const now = new Date();
  const today = `${now.getFullYear()}-${String(now.getMonth() + 1).padStart(2, "0")}-${String(now.getDate()).padStart(2, "0")}`;
  return day === today ? time : new Date(`${day}T00:00`).toLocaleDateString("en", { day: "numeric", month: "short" });
}

function drawSpark(canvas, values) {
  const known = values.filter(isNumber);
  const pen = sized(canvas, 84, 22);
  if (known.length < 2) return;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  pen.strokeStyle = look().series[0];
  pen.lineWidth = 1.4;
  pen.lineJoin = "round";
  pen.beginPath();
  values.forEach((value, index) => isNumber(value) && pen.lineTo(1 + (index * 82) / (values.length - 1), 20 - (18 * (value - low)) / (high - low || 1)));
  pen.stroke();
}

/** Which line of a chart stands for its run: the trend if there is one. */
function mainLine(chart) {
  return chart.lines.find((line) => line.style === "trend") ?? chart.lines.find((line) => !["limit", "points"].includes(line.style ?? "line"));
}

function compare() {
  const names = [view.run, ...view.others].filter((name) => served.docs.has(name));
  const holder = document.getElementById("place-compare");
  if (names.length < 2) return;
  const docs = names.map((name) => served.docs.get(name));
  const labels = docs.map((doc, index) => shortName(names[index], doc));
  const grid = el("div.charts.timeline");
  holder.replaceChildren(el("section", { id: "compare", "aria-labelledby": "compare-title" }, el("h2", { id: "compare-title" }, "Compared", el("small", {}, `${names.length} runs`)), differences(docs, labels), grid));
  for (const name of ["loss", "right", "returns", "rates", "gradients", "memory"]) {
    const found = docs.map((doc) => doc.timeline?.find((chart) => chart.name === name));
    if (found.filter(Boolean).length < 2) continue;
    const first = found.find(Boolean);
    const lines = found.flatMap((chart, index) => {
      const line = chart && mainLine(chart);
      return line ? [{ ...line, label: labels[index], style: line.style === "steps" ? "steps" : "line" }] : [];
    });
    const last = Math.max(extent.last, ...lines.map((line) => line.steps[line.steps.length - 1] ?? 0));
    extent.last = last;
    new Chart(grid, { name: `compared-${name}`, title: first.title, unit: first.unit, lines, healthy: "", log: first.log, from_zero: first.from_zero });
  }
}

function shortName(name, doc) {
  const time = name.match(/^\d{8}-(\d\d)(\d\d)(\d\d)-/);
  return `${fileName(doc.run.script) || name}${time ? ` ${time[1]}:${time[2]}:${time[3]}` : ""}`;
}

/** A row for each thing, those that differ first and in bold. */
function differences(docs, labels) {
  const row = (what, read) => [what, ...docs.map((doc) => read(doc) || "–")];
  const rows = [
    row("script", (doc) => doc.run.script),
    row("arguments", (doc) => (doc.run.arguments ?? []).join(" ")),
    row("text of the script", (doc) => doc.run.source),
    row("verdict", (doc) => doc.answer.headline),
    row("outcome", (doc) => (doc.answer.sentences ?? [])[0]),
    row("findings", (doc) => (doc.answer.findings ?? []).map((finding) => `${finding.code} ${finding.name}`).join(", ")),
    row("steps", (doc) => plain(doc.run.steps ?? 0, "step")),
    row("time", (doc) => duration(doc.run.seconds)),
    row("ended", (doc) => doc.run.status),
    row("versions", (doc) => doc.run.versions),
  ].filter((cells) => cells.slice(1).some((text) => text !== "–"));
  const differs = (cells) => new Set(cells.slice(1)).size > 1;
  const sorted = [...rows.filter(differs), ...rows.filter((cells) => !differs(cells))];
  return el("div.scroll", {}, el("table.differences", {},
    el("thead", {}, el("tr", {}, el("th"), labels.map((label, index) => {
      const swatch = el("i");
      swatch.style.setProperty("--colour", `var(--series-${index % 8})`);
      return el("th", { scope: "col" }, swatch, label);
    }))),
    el("tbody", {}, sorted.map((cells) => el(`tr${differs(cells) ? ".differs" : ""}`, {}, el("th", { scope: "row" }, cells[0]), cells.slice(1).map((text) => el("td", {}, text)))))));
}
