// Layers by steps: one quantity as colours, a row for each tensor in the order in which layers run.

/** The rows that are shown, in the order that the reader chose. */
function chosenRows(layers, of, heat) {
  const all = of === "tensors"
    ? (layers.tensors ?? []).map((tensor, index) => ({ index, name: tensor.name, dimensions: tensor.dimensions ?? 0 }))
    : (layers.activations ?? []).map((name, index) => ({ index, name, dimensions: 2 }));
  const large = all.filter((row) => row.dimensions >= 2);
  let rows = view.small || !large.length ? all : large;
  const wanted = view.search.trim().toLowerCase();
  if (wanted) rows = rows.filter((row) => row.name.toLowerCase().includes(wanted));
  if (view.sort === "name") rows = [...rows].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  if ((view.sort === "high" || view.sort === "low") && heat) {
    const last = new Map(rows.map((row) => [row, lastOf(heat, row.index) ?? -1]));
    rows = [...rows].sort((a, b) => (view.sort === "high" ? last.get(b) - last.get(a) : last.get(a) - last.get(b)));
  }
  return rows;
}

function cellsOf(heat) {
  heat.unpacked ??= unpacked(heat.matrix);
  return heat.unpacked;
}

const at = (heat, row, column) => valueOf(heat.matrix, cellsOf(heat)[row * heat.matrix.columns + column]);

function lastOf(heat, row) {
  for (let column = heat.matrix.columns - 1; column >= 0; column--) {
    const value = at(heat, row, column);
    if (value !== null) return value;
  }
  return null;
}

/** One row as a line of a chart. */
function rowLine(heat, row, label) {
  return { label, steps: heat.steps, values: heat.steps.map((_, column) => at(heat, row, column)) };
}

class Heat {
  constructor(host, heat, layers, open) {
    this.open = open;
    this.base = document.createElement("canvas");
    this.canvas = el("canvas", { tabindex: "0", role: "img" });
    this.title = el("h3");
    this.healthy = el("p.healthy");
    this.key = el("canvas.key", { "aria-hidden": "true" });
    this.reading = el("p.reading");
    this.empty = el("p.quiet", { hidden: true }, "No layer of this name.");
    const tools = el("div.tools", {},
      button("copy the numbers as CSV", "table", () => copyText(this.csv(), `${this.heat.name}.csv`)),
      button("copy as a picture", "image", () => copyPicture(framed(this.base, this.width, this.height, this.title.textContent, []), this.heat.name)));
    this.figure = el("figure.card.heat", { "data-heat": heat.name }, el("header", {}, this.title, tools), this.healthy, this.canvas, this.empty, el("footer", {}, this.key, this.reading));
    host.append(this.figure);
    this.listen();
    this.update(heat, layers);
    this.visible = false;
    charts.add(this);
    sight.observe(this.figure);
  }

  update(heat, layers) {
    [this.heat, this.layers] = [heat, layers];
    this.title.textContent = heat.title;
    this.healthy.replaceChildren(el("b", {}, "Healthy: "), `${heat.healthy} ${heat.colours ?? ""}`.trim());
    this.stale = true;
    wake();
  }

  get isShare() {
    return !this.heat.matrix.log;
  }

  /** The ends of the colours: three decades around the centre, or what the rows on the screen hold but for the most
   * extreme hundredth, at least the healthy band. */
  ends() {
    return this.known ??= this.findEnds();
  }

  findEnds() {
    const { heat } = this;
    if (this.isShare) return [0, 1];
    if (heat.centre) return [heat.centre / 1e3, heat.centre * 1e3];
    const counts = new Uint32Array(MISSING + 1);
    const cells = cellsOf(heat);
    let total = 0;
    for (const row of this.rows) {
      for (let column = 0; column < heat.matrix.columns; column++) {
        const value = cells[row.index * heat.matrix.columns + column];
        if (value === MISSING || value === 0) continue;
        counts[value]++;
        total++;
      }
    }
    const at = (share) => {
      let sum = 0;
      return valueOf(heat.matrix, counts.findIndex((count) => (sum += count) > share * total));
    };
    const [low, high] = total ? [at(0.01), at(0.99)] : [heat.low, heat.high];
    return [10 ** Math.floor(Math.log10(Math.min(low, heat.low))), 10 ** Math.ceil(Math.log10(Math.max(high, heat.high)))];
  }

  share(value) {
    const [low, high] = this.ends();
    const part = this.isShare ? value : Math.log(value / low) / Math.log(high / low);
    return Math.min(Math.max(part, 0), 1);
  }

  colours() {
    const all = ramps();
    return this.isShare ? all.share : this.heat.centre ? all.turning : all.rising;
  }

  draw() {
    this.rows = chosenRows(this.layers, this.heat.of ?? "tensors", this.heat);
    this.known = null;
    this.empty.hidden = this.rows.length > 0;
    this.canvas.hidden = this.rows.length === 0;
    this.width = this.canvas.clientWidth || this.figure.clientWidth - 24;
    this.stale = false;
    if (!this.rows.length || this.width < 60) return;
    const count = this.rows.length;
    this.rowHeight = count <= 8 ? 24 : count <= 14 ? 20 : count <= 30 ? 16 : count <= 60 ? 11 : count <= 110 ? 7 : Math.max(2, Math.floor(800 / count));
    const gutter = this.width < 480 ? 104 : Math.min(210, Math.max(130, this.width * 0.26));
    this.box = { x: gutter, y: 2, width: this.width - gutter - 2, height: count * this.rowHeight };
    this.height = this.box.height + 26;
    const [first, last] = shownSteps();
    this.x = new Scale(first, last, this.box.x, this.box.x + this.box.width, view.logX, 1);
    const pen = sized(this.base, this.width, this.height);
    this.paint(pen);
    this.names(pen);
    this.below(pen);
    sized(this.canvas, this.width, this.height);
    this.canvas.style.height = `${this.height}px`;
    this.canvas.setAttribute("aria-label", `${this.heat.title}, ${count} rows by ${this.heat.steps.length} measured steps. Arrow keys move, Enter opens a layer.`);
    this.drawKey();
  }

  paint(pen) {
    const density = window.devicePixelRatio || 1;
    const wide = Math.max(1, Math.round(this.box.width * density));
    const { matrix, steps } = this.heat;
    const cells = cellsOf(this.heat);
    const image = new ImageData(wide, this.rows.length);
    const pixels = new Uint32Array(image.data.buffer);
    const colours = this.colours();
    const empty = ramp([look().empty, look().empty])[0];
    const lookup = new Uint32Array(MISSING + 1);
    for (let value = 0; value < MISSING; value++) lookup[value] = colours[Math.round(255 * this.share(valueOf(matrix, value)))];
    lookup[MISSING] = empty;
    const columns = Int32Array.from({ length: wide }, (_, pixel) => {
      const step = this.x.back(this.box.x + (pixel + 0.5) / density);
      return step < steps[0] - 0.5 ? -1 : covering(steps, step);
    });
    this.rows.forEach((row, number) => {
      for (let pixel = 0; pixel < wide; pixel++) {
        const column = columns[pixel];
        pixels[number * wide + pixel] = column < 0 ? empty : lookup[cells[row.index * matrix.columns + column]];
      }
    });
    const picture = document.createElement("canvas");
    [picture.width, picture.height] = [wide, this.rows.length];
    picture.getContext("2d").putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(picture, this.box.x, this.box.y, this.box.width, this.box.height);
    if (this.rowHeight < 7) return;
    pen.fillStyle = look().card;
    for (let number = 1; number < this.rows.length; number++) pen.fillRect(this.box.x, this.box.y + number * this.rowHeight - 0.5, this.box.width, 1);
  }

  names(pen) {
    pen.font = FONT;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const every = Math.ceil(13 / this.rowHeight);
    const flagged = this.flagged?.() ?? new Set();
    const weights = this.rows.every((row) => row.name.endsWith(".weight"));
    this.rows.forEach((row, number) => {
      const marked = flagged.has(row.name);
      if (number % every && !marked) return;
      pen.fillStyle = marked ? look().error : look().muted;
      pen.font = marked ? BOLD : FONT;
      pen.fillText(fitting(pen, weights ? row.name.slice(0, -7) : row.name, this.box.x - 12), this.box.x - 7, this.box.y + (number + 0.5) * this.rowHeight);
    });
  }

  below(pen) {
    pen.font = FONT;
    pen.fillStyle = look().muted;
    pen.textAlign = "center";
    pen.textBaseline = "top";
    let free = -Infinity;
    for (const tick of this.x.ticks(this.box.width / 62).filter(Number.isInteger)) {
      const [x, text] = [this.x.at(tick), words(tick, 5)];
      const half = pen.measureText(text).width / 2;
      if (x - half < free || x < this.box.x - 1) continue;
      pen.fillText(text, Math.min(x, this.width - half), this.box.y + this.box.height + 7);
      free = x + half + 8;
    }
  }

  /** The colours with their numbers, and a bracket around what is healthy. */
  drawKey() {
    const [width, height] = [230, 34];
    const pen = sized(this.key, width, height);
    const colours = this.colours();
    const bar = { x: 8, width: width - 16 };
    for (let pixel = 0; pixel < bar.width; pixel++) {
      pen.fillStyle = asColour(colours[Math.round((255 * pixel) / bar.width)]);
      pen.fillRect(bar.x + pixel, 7, 1.5, 9);
    }
    const place = (value) => bar.x + this.share(value) * bar.width;
    pen.strokeStyle = look().ink;
    pen.lineWidth = 1.4;
    const [low, high] = [this.isShare ? bar.x : place(this.heat.low), place(this.heat.high)];
    trace(pen, [[low, 8], [low, 4], [high, 4], [high, 8]]);
    pen.stroke();
    pen.font = FONT;
    pen.fillStyle = look().muted;
    pen.textBaseline = "top";
    const ends = this.ends();
    const middle = this.isShare ? 0.5 : Math.sqrt(ends[0] * ends[1]);
    const texts = this.isShare ? ["0 %", "50 %", "100 %"] : [ends[0], middle, ends[1]].map((value) => words(value, 1));
    ["left", "center", "right"].forEach((align, index) => {
      pen.textAlign = align;
      pen.fillText(texts[index], bar.x + (bar.width * index) / 2, 19);
    });
    this.key.style.width = `${width}px`;
    this.key.style.height = `${height}px`;
  }

  drawTop() {
    if (this.stale || this.drawnFor !== this.signature()) {
      this.drawnFor = this.signature();
      this.draw();
    }
    if (!this.box || !this.rows.length) return;
    const pen = this.canvas.getContext("2d");
    pen.clearRect(0, 0, this.width, this.height);
    pen.drawImage(this.base, 0, 0, this.width, this.height);
    const row = this.hovered === undefined ? null : this.rows[this.hovered];
    if (row) {
      pen.strokeStyle = look().ink;
      pen.lineWidth = 1.4;
      pen.strokeRect(this.box.x - 0.5, this.box.y + this.hovered * this.rowHeight - 0.5, this.box.width + 1, this.rowHeight + 1);
    }
    const inside = view.cursor !== null && view.cursor >= this.x.low && view.cursor <= this.x.high;
    if (inside) {
      const x = Math.round(this.x.at(view.cursor)) + 0.5;
      for (const [colour, wide] of [[look().card, 3], [look().ink, 1]]) {
        pen.strokeStyle = colour;
        pen.lineWidth = wide;
        trace(pen, [[x, this.box.y], [x, this.box.y + this.box.height]]);
        pen.stroke();
      }
    }
    this.read(row, inside);
  }

  read(row, inside) {
    const column = inside ? covering(this.heat.steps, view.cursor) : this.heat.steps.length - 1;
    if (!row) {
      const values = this.rows.map((one) => at(this.heat, one.index, column)).filter((value) => value !== null);
      const spell = (value) => (this.isShare ? withUnit(value, "%") : words(value));
      this.reading.textContent = values.length
        ? `Step ${this.heat.steps[column].toLocaleString("en")}: ${spell(Math.min(...values))} to ${spell(Math.max(...values))}`
        : "";
      return;
    }
    const value = at(this.heat, row.index, column);
    const text = this.isShare ? withUnit(value, "%") : words(value);
    this.reading.replaceChildren(el("b", {}, row.name), ` ${value === null ? "not measured" : text} at step ${this.heat.steps[column].toLocaleString("en")}`);
  }

  signature() {
    return [view.search, view.sort, view.small].join("\n");
  }

  rowAt(y) {
    const number = Math.floor((y - this.box.y) / this.rowHeight);
    return number >= 0 && number < this.rows.length ? number : undefined;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => {
      if (!this.box) return;
      const frame = canvas.getBoundingClientRect();
      this.hovered = this.rowAt(event.clientY - frame.top);
      const step = this.x.back(Math.max(event.clientX - frame.left, this.box.x));
      canvas.style.cursor = this.hovered === undefined ? "" : "pointer";
      look_at({ cursor: this.heat.steps[covering(this.heat.steps, Math.min(step, this.x.high))] });
    });
    canvas.addEventListener("pointerleave", () => {
      this.hovered = undefined;
      look_at({ cursor: view.pinned ?? null });
    });
    canvas.addEventListener("click", () => this.rows?.[this.hovered] && this.open(this.rows[this.hovered].name));
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowUp: -1, ArrowDown: 1 };
      const { steps } = this.heat;
      if (event.key in moves) this.hovered = Math.min(Math.max((this.hovered ?? -1) + moves[event.key], 0), this.rows.length - 1);
      else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        const column = view.cursor === null ? steps.length - 1 : covering(steps, view.cursor);
        look_at({ cursor: steps[Math.min(Math.max(column + (event.key === "ArrowLeft" ? -1 : 1), 0), steps.length - 1)] });
      } else if (event.key === "Enter" && this.rows[this.hovered]) this.open(this.rows[this.hovered].name);
      else return;
      event.preventDefault();
      wake();
    });
  }

  csv() {
    return csv([["layer", ...this.heat.steps], ...this.rows.map((row) => [row.name, ...this.heat.steps.map((_, column) => at(this.heat, row.index, column))])]);
  }
}

/** The index of the measured step that a step belongs to: the last one before it. */
function covering(steps, step) {
  let [low, high] = [0, steps.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (steps[middle] <= step) low = middle;
    else high = middle - 1;
  }
  return low;
}
