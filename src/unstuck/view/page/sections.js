// Everything on the page that is read rather than drawn: the answer, findings, data, experiments, what was checked.

const SIGNS = { error: "✕", warning: "!", advice: "i", good: "✓", quiet: "·" };

function chip(tone) {
  return el(`span.chip.${tone.kind}`, {}, el("span.sign", { "aria-hidden": "true" }, SIGNS[tone.kind] ?? "·"), tone.word);
}

function section(id, title, note, ...children) {
  if (!children.flat(9).some(Boolean)) return null;
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title, note ? el("small", {}, note) : null), ...children);
}

const list = (sentences) => (sentences?.length ? el("ul.sentences", {}, sentences.map((sentence) => el("li", {}, sentence))) : null);

function code(text, label) {
  return el("div.command", {}, el("code", { tabindex: "0", "aria-label": label }, text), button("copy the command", "copy", () => copyText(text, "command.txt")));
}

function excerpt(finding) {
  if (!finding.excerpt?.length) return null;
  const lines = finding.excerpt.map((line) => [...line.map(([text, style]) => el(`span${style ? `.${style}` : ""}`, {}, text)), "\n"]);
  return el("pre", { tabindex: "0", "aria-label": `the lines at ${finding.place}` }, lines);
}

function difference(lines) {
  if (!lines?.length) return null;
  const kinds = { "+": "added", "-": "removed", "@": "hunk" };
  const rows = lines.map((line) => {
    const kind = /^(---|\+\+\+) /.test(line) ? "file" : kinds[line[0]];
    return el(`span.row${kind ? `.${kind}` : ""}`, {}, `${line}\n`);
  });
  return el("pre.difference", { tabindex: "0", "aria-label": "the change as a unified diff" }, rows);
}

function proofPart(proof) {
  if (!proof) return null;
  const holder = el("div.proof", {}, el("p", {}, chip(proof.tone), ` ${proof.sentence}`));
  if (proof.charts?.length) {
    const charts = el("div.plain-charts");
    holder.append(charts);
    for (const chart of proof.charts) new PlainChart(charts, chart);
  }
  return holder;
}

function findingBody(finding) {
  const left = el("div", {},
    excerpt(finding),
    finding.evidence?.length ? el("dl.evidence", {}, finding.evidence.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))) : null);
  const right = el("div", {},
    el("h4", {}, "Why it matters"), el("p", {}, finding.cause),
    el("h4", {}, "Change"), finding.fix.map((part) => el(part.code ? "pre" : "p", part.code ? { tabindex: "0" } : {}, part.text)),
    difference(finding.difference),
    finding.verify ? [el("p.quiet", {}, "Then this shows ", finding.expect, ":"), code(finding.verify, "a command that checks the change")] : null,
    el("p.quiet", {}, [
      finding.seen ? `Seen ${finding.seen}` : "",
      isNumber(finding.step) ? `, within the first ${plain(finding.step, "step")} on record` : "",
      finding.seen ? ". " : "",
      finding.docs ? ["More: ", el("code", {}, finding.docs)] : "",
    ]),
    finding.rows?.length ? el("p.rows", {}, "Layers: ", finding.rows.slice(0, 8).map((row) => el("button.link", { type: "button", onclick: () => openLayer(row) }, row))) : null);
  const both = left.childElementCount ? el("div.columns", {}, left, right) : right;
  return both;
}

function findingCard(finding, open) {
  const about = el("summary", {}, chip(finding.tone), el("span.name", {}, el("b", {}, `${finding.code} ${finding.name}`), el("span", {}, finding.message)),
    finding.follows ? el("span.quiet", {}, `follows from ${finding.follows}: fix that first`) : null);
  const card = el("details.card.finding", { id: `finding-${finding.code}`, "data-key": finding.key, open }, about);
  const fill = () => card.childElementCount === 1 && card.append(el("div.body", {}, findingBody(finding), proofPart(finding.proof)));
  if (open) fill();
  card.addEventListener("toggle", () => card.open && fill());
  return card;
}

/** The facts about a run that change with each step. */
function factsOf(run) {
  const steps = run.steps ? plain(run.steps, run.step_name ?? "step") : "";
  return [run.running ? "is running" : run.status, steps, duration(run.seconds), run.versions, dated(run.started)].filter(Boolean).join(" · ");
}

function answerSection(doc) {
  const { run, answer } = doc;
  const principal = answer.findings?.find((finding) => finding.principal);
  const command = [run.script, ...(run.arguments ?? [])].filter(Boolean).join(" ");
  return el("section.answer", { id: "answer", "data-tone": answer.tone },
    el("p.crumb", {}, command ? el("code", {}, command) : run.name, el("span", { id: "facts" }, factsOf(run))),
    el("h1", {}, answer.headline),
    run.crash ? el("p.crash", {}, "It crashed with ", el("code", {}, run.crash)) : null,
    (answer.sentences ?? []).map((sentence) => el("p.outcome", {}, sentence)),
    principal ? el("div.principal", {},
      el("h2", {}, chip(principal.tone), el("span", {}, `${principal.code} ${principal.name}`)),
      el("p.message", {}, principal.message),
      proofPart(principal.proof),
      principal.proof && answer.left_over ? el("p.quiet", {}, answer.left_over) : null,
      findingBody(principal)) : null,
    answer.together ? [el("h4", {}, "All fixes together"), proofPart(answer.together)] : null,
    answer.next_command ? el("div.next", {}, el("h4", {}, "Next"), code(answer.next_command, "the next command")) : null);
}

function findingsSection(doc) {
  const others = (doc.answer.findings ?? []).filter((finding) => !finding.principal);
  return section("findings", "Also found", "", others.map((finding) => findingCard(finding, view.finding === finding.code)));
}

function pictures(parts, big = false) {
  return el(`div.pictures${big ? ".big" : ""}`, {}, parts.map((part) => el("figure", {},
    el("img", { src: part.source, alt: part.words, width: part.width, height: part.height, title: part.words }),
    part.caption ? el("figcaption", {}, part.caption) : null)));
}

function wave(one) {
  const canvas = el("canvas", { role: "img", "aria-label": one.words, width: "600", height: "96" });
  const pen = canvas.getContext("2d");
  const known = one.values.filter(isNumber);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  pen.strokeStyle = look().series[0];
  pen.lineWidth = 2;
  pen.beginPath();
  one.values.forEach((value, index) => isNumber(value) && pen.lineTo((index * 596) / Math.max(1, one.values.length - 1) + 2, 90 - (84 * (value - low)) / (high - low || 1)));
  pen.stroke();
  return el("figure.wave", {}, canvas, el("figcaption", {}, one.words));
}

function table(columns, rows, isText = false) {
  return el("div.scroll", { tabindex: "0", role: "region", "aria-label": "a table" }, el(`table${isText ? ".text" : ""}`, {},
    el("thead", {}, el("tr", {}, columns.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((value, index) => (index ? el("td", {}, value) : el("th", { scope: "row" }, value))))))));
}

function inputPart(input, model) {
  return el("article.card", {},
    el("h3", {}, "Input ", el("code", {}, input.name), ` of ${model}`),
    el("dl.evidence", {}, input.facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    input.note ? el("p.quiet", {}, input.note) : null,
    input.pictures?.length ? pictures(input.pictures, true) : null,
    input.waves?.length ? el("div.waves", {}, input.waves.map(wave)) : null,
    input.rows?.length ? table(input.columns, input.rows, input.is_text) : null);
}

function targetPart(target) {
  const most = Math.max(1, ...(target.bars ?? []).map((bar) => bar.count));
  return el("article.card", {},
    el("h3", {}, "Targets given to ", el("code", {}, target.loss)),
    el("p", {}, target.sentence),
    target.note ? el("p.quiet", {}, target.note) : null,
    target.bars?.length ? el("div.bars", {}, target.bars.map((bar) => {
      const length = el("i");
      length.style.width = `${(100 * bar.count) / most}%`;
      return el("div", {}, el("span", {}, bar.name), el("span", {}, length, el("b", {}, bar.count.toLocaleString("en"))));
    })) : null);
}

function filterPart(filters) {
  return el("article.card", {}, el("h3", {}, filters.title), el("p", {}, filters.sentence),
    el("div.columns", {}, el("div", {}, el("h4", {}, filters.before_title), pictures(filters.before)), el("div", {}, el("h4", {}, filters.after_title), pictures(filters.after))));
}

function dynamicsPart(dynamics) {
  const tall = `${Math.max(48, Math.min(dynamics.rows * 11, 360))}px`;
  const strip = el("img.strip", { src: dynamics.picture, alt: `predictions by step: ${dynamics.sentence}` });
  const aims = dynamics.targets ? el("img.aims", { src: dynamics.targets, alt: "targets" }) : null;
  for (const image of [strip, aims]) if (image) image.style.height = tall;
  const { steps } = dynamics;
  const middle = steps.length > 2 ? `step ${steps[steps.length >> 1].toLocaleString("en")}` : "";
  return el("article.card", {}, el("h3", {}, "Predictions on a fixed batch"), el("p", {}, dynamics.sentence), el("p.quiet", {}, dynamics.note),
    el("div.dynamics", {},
      el("div", {}, strip, el("div.ends", {}, el("span", {}, `step ${steps[0].toLocaleString("en")}`), el("span", {}, middle), el("span", {}, `step ${steps[steps.length - 1].toLocaleString("en")}`))),
      aims ? el("div", {}, aims, el("div.ends", {}, el("span", {}, "target"))) : null),
    el("ul.legend", {}, dynamics.chips.map((part) => {
      const swatch = el("i.square");
      swatch.style.setProperty("--colour", part.colour);
      return el("li", {}, swatch, el("span", {}, part.word));
    }), dynamics.more ? el("li", {}, `and ${dynamics.more} more`) : null));
}

function dataSection(doc) {
  return section("data", "Data", "as the model received it", (doc.data ?? []).map((part) => el("div.data", {},
    list(part.sentences),
    (part.inputs ?? []).map((input) => inputPart(input, part.model)),
    part.target ? targetPart(part.target) : null,
    part.filters ? filterPart(part.filters) : null,
    part.dynamics ? dynamicsPart(part.dynamics) : null,
    part.trouble ? el("p.quiet", {}, `Predictions: ${part.trouble}.`) : null)));
}

function experimentsSection(doc) {
  const parts = (doc.answer.experiments ?? []).map((one) => {
    const card = el("article.card.experiment", {}, el("h3", {}, one.name, " ", chip(one.tone)), el("p", {}, one.sentence));
    if (one.charts?.length) {
      const charts = el("div.plain-charts");
      card.append(charts);
      for (const chart of one.charts) new PlainChart(charts, chart);
    }
    if (one.rows?.length) card.append(table(one.columns, one.rows));
    card.append(el("p.quiet", {}, `How: ${one.method}. ${(one.caveats ?? []).join(" ")}`));
    if (one.measures?.length) card.append(el("details", {}, el("summary", {}, "All measures"), el("dl.evidence", {}, one.measures.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))))));
    return card;
  });
  return section("experiments", "Experiments", "", parts.length ? el("div.experiments", {}, parts) : null);
}

function checkedSection(doc) {
  const { answer } = doc;
  const parts = [
    ["Ruled out", list(answer.ruled_out)],
    ["Not done", list(answer.skipped)],
    ["Went wrong", list(answer.problems)],
    ["Missing from the record", list(answer.gaps)],
    [`Checked: ${plain(answer.checked?.length ?? 0, "rule")}`, answer.checked?.length ? el("p.codes", {}, answer.checked.map((rule) => el("code", { title: `unstuck explain ${rule}` }, rule))) : null],
    ["Not checked, and why", list(answer.not_checked)],
    ["How it was measured", list(answer.method)],
  ].filter(([, content]) => content);
  return section("checked", "What was checked", "and what was not", parts.length ? el("div.checked", {}, parts.map(([title, content]) => {
    const long = title.startsWith("Not checked") || title.startsWith("Checked");
    return long ? el("details.card", {}, el("summary", {}, title), content) : el("div.card", {}, el("h3", {}, title), content);
  })) : null);
}
