// A layer's own page: its ratios over the steps, its distributions, its findings.

function openLayer(name) {
  look_at({ layer: name });
  showLayer();
}

function closeLayer() {
  const dialog = document.getElementById("layer");
  if (dialog.open) dialog.close();
}

/** The rows of parameters and activations that a name stands for: the row itself, and the others of its layer. */
function partsOf(layers, name) {
  const tensors = (layers.tensors ?? []).map((tensor, index) => ({ ...tensor, index }));
  const functions = (layers.activations ?? []).map((activation, index) => ({ name: activation, index }));
  const tensor = tensors.find((one) => one.name === name);
  const layer = tensor?.layer ?? name.replace(/^\w+ after /, "").replace(/ \(\d+\)$/, "");
  const own = tensors.filter((one) => one.layer === layer);
  const outputs = functions.filter((one) => one.name === name || one.name === layer || one.name.replace(/ \(\d+\)$/, "").endsWith(` after ${layer}`));
  return { layer, tensors: own, outputs: outputs.slice(0, 4) };
}

function showLayer() {
  const dialog = document.getElementById("layer");
  const doc = shown.doc;
  const layers = doc?.layers ?? {};
  const parts = doc ? partsOf(layers, view.layer) : { tensors: [], outputs: [] };
  if (!view.layer || !(parts.tensors.length + parts.outputs.length)) return closeLayer();
  const order = [...new Set([...(layers.tensors ?? []).map((tensor) => tensor.layer)])];
  const place = order.indexOf(parts.layer);
  const turn = (by) => order[place + by] !== undefined && openLayer(order[place + by]);
  const kinds = [...new Set(parts.tensors.map((tensor) => tensor.kind).filter(Boolean))];
  const body = el("div.body", { tabindex: "-1", autofocus: true });
  dialog.replaceChildren(
    el("header", {},
      el("div", {}, el("h2", {}, parts.layer), el("p.quiet", {}, [kinds.join(", "), plain(parts.tensors.reduce((sum, tensor) => sum + (tensor.size ?? 0), 0), "parameter"), place >= 0 ? `layer ${place + 1} of ${order.length} in the order of execution` : ""].filter(Boolean).join(" · "))),
      el("div.tools", {},
        button("previous layer ([)", "left", () => turn(-1), { disabled: place <= 0 }),
        button("next layer (])", "right", () => turn(1), { disabled: place < 0 || place >= order.length - 1 }),
        button("close (Esc)", "close", closeLayer))),
    body);
  dialog.turn = turn;
  const names = new Set([view.layer, parts.layer, ...parts.tensors.map((tensor) => tensor.name), ...parts.outputs.map((one) => one.name)]);
  for (const finding of doc.answer.findings ?? []) {
    if ((finding.rows ?? []).some((row) => names.has(row))) body.append(el("p", {}, chip(finding.tone), ` ${finding.code} ${finding.name}: ${finding.message}`));
  }
  const charts = el("div.charts");
  body.append(charts);
  for (const heat of layers.heatmaps ?? []) {
    const rows = (heat.of ?? "tensors") === "tensors" ? parts.tensors : parts.outputs;
    const lines = rows.slice(0, 8).map((row) => rowLine(heat, row.index, row.name.startsWith(`${parts.layer}.`) ? row.name.slice(parts.layer.length + 1) : row.name));
    if (!lines.some((line) => line.values.some(isNumber))) continue;
    const share = !heat.matrix.log;
    new Chart(charts, { name: `layer-${heat.name}`, title: heat.title, lines, healthy: heat.healthy, band: { low: share ? null : heat.low, high: heat.high }, log: !share, unit: share ? "%" : "", from_zero: share });
  }
  const ridges = el("div.charts.ridges");
  body.append(ridges);
  const kindsOfRidges = [
    ["weights", "Weights", "They keep their spread; a collapse to a spike or to 0 is a layer that dies.", parts.tensors, 0],
    ["gradients", "Gradients", "A steady bell; sliding left they vanish, and a fat right tail asks for clipping or a lower rate.", parts.tensors, 1],
    ["outputs", "Activations", "The same place all along; no drift, and not ever more zeros.", parts.outputs, 2],
  ];
  for (const [key, title, healthy, rows, colour] of kindsOfRidges) {
    for (const row of rows) {
      const found = layers[key]?.[row.index];
      if (found?.counts?.length && found.counts[0].length) new Ridge(ridges, `${title} of ${row.name}`, healthy, found, colour);
    }
  }
  if (!dialog.open) dialog.showModal();
  body.scrollTop = 0;
}
