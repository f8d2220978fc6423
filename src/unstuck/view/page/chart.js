// A chart over the steps of a run: lines, areas, a healthy band, and what happened when.

const MARGIN = { left: 54, right: 14, top: 10, bottom: 26 };
const charts = new Set();

/** The steps that all charts show. */
const extent = { first: 0, last: 1 };

function shownSteps() {
  return view.zoom ?? [extent.first, extent.last];
}

class Chart {
  constructor(host, spec, { height = 190, pins = null, own = null } = {}) {
    this.height = this.least = height;
    this.pins = pins;
    this.own = own;
    this.base = document.createElement("canvas");
    this.canvas = el("canvas", { tabindex: "0", role: "img" });
    this.legend = el("ul.legend");
    this.title = el("h3");
    this.canvas.style.height = `${height}px`;
    this.healthy = el("p.healthy");
    this.tools = el("div.tools", {},
      button("logarithmic or linear (l)", "axis", () => this.bend()),
      button("copy the numbers as CSV", "table", () => copyText(this.csv(), `${this.spec.name}.csv`)),
      button("copy as a picture", "image", () => copyPicture(this.picture(), this.spec.name)));
    this.figure = el("figure.card.chart", { "data-chart": spec.name }, el("header", {}, this.title, this.tools), this.healthy, this.canvas, this.legend);
    host.append(this.figure);
    this.listen();
    this.update(spec);
    charts.add(this);
    this.visible = false;
    sight.observe(this.figure);
  }

  update(spec) {
    this.spec = spec;
    this.title.textContent = spec.title + (spec.unit ? `, ${spec.unit}` : "");
    this.healthy.textContent = "";
    if (spec.healthy) this.healthy.append(el("b", {}, "Healthy: "), spec.healthy);
    this.legend.replaceChildren();
    this.items = spec.lines.map((line, index) => {
      const value = el("b");
      const swatch = el(`i.${line.style ?? "line"}`);
      swatch.style.setProperty("--colour", `var(--series-${this.colourNumber(index)})`);
      if (line.style === "limit") swatch.style.setProperty("--colour", "var(--muted)");
      if (line.style !== "trend" || !spec.lines[index - 1]) this.legend.append(el("li", {}, swatch, el("span", {}, line.label), value));
      return value;
    });
    if (spec.band) this.legend.append(el("li", {}, el("i.band"), el("span", {}, spec.band.label ?? "healthy")));
    this.canvas.setAttribute("aria-label", this.inWords());
    this.stale = true;
    wake();
  }

  /** A trend has the colour of its noise. */
  colourNumber(index) {
    let number = -1;
    for (let at = 0; at <= index; at++) {
      const style = this.spec.lines[at].style;
      if (style !== "trend" && style !== "limit") number++;
    }
    return Math.max(0, number) % 8;
  }

  colour(index) {
    return this.spec.lines[index].style === "limit" ? look().muted : look().series[this.colourNumber(index)];
  }

  get isLog() {
    return view.log[this.spec.name] ?? this.spec.log ?? false;
  }

  bend() {
    look_at({ log: { ...view.log, [this.spec.name]: !this.isLog } });
  }

  inWords() {
    const parts = this.spec.lines.map((line) => {
      const known = line.values.filter(isNumber);
      if (!known.length) return `${line.label}: no number`;
      return `${line.label}: from ${words(known[0])} to ${words(known[known.length - 1])}`;
    });
    return `${this.spec.title}. ${parts.join("; ")}. Arrow keys move the cursor.`;
  }

  steps() {
    if (!this.own) return shownSteps();
    return this.own;
  }

  /** Tops of areas: each lies on the ones before it. */
  tops() {
    const areas = this.spec.lines.filter((line) => line.style === "area");
    const sums = areas[0] ? new Array(areas[0].steps.length).fill(0) : [];
    return areas.map((line) => line.values.map((value, index) => (sums[index] += value ?? 0)));
  }

  heights(first, last) {
    let [low, high] = [Infinity, -Infinity];
    const log = this.isLog;
    const take = (value) => {
      if (!isNumber(value) || (log && value <= 0)) return;
      if (value < low) low = value;
      if (value > high) high = value;
    };
    const tops = this.tops();
    let area = 0;
    for (const line of this.spec.lines) {
      const values = line.style === "area" ? tops[area++] : line.values;
      for (let index = 0; index < values.length; index++) {
        const step = line.steps[index];
        if ((step >= first && step <= last) || line.style === "limit") take(values[index]);
      }
    }
    if (low > high) return null;
    if (isNumber(this.spec.most)) high = Math.min(high, this.spec.most);
    if (this.spec.from_zero && !log) low = Math.min(0, low);
    const { band } = this.spec;
    if (!log && band && isNumber(band.low) && isNumber(band.high) && this.spec.unit !== "%") {
      [low, high] = [Math.min(low, band.low), Math.max(high, band.high)];
    }
    if (log && band) {
      // A line that lies beyond the band is shown with the edge that it has crossed.
      if (isNumber(band.high) && low > band.high && low < 1e3 * band.high) low = band.high / 1.5;
      if (band.low > 0 && high < band.low && high > 1e-3 * band.low) high = 1.5 * band.low;
    }
    if (log) {
      const pad = Math.max(1.12, (high / low) ** 0.05);
      return [low / pad, high * pad];
    }
    const pad = 0.05 * (high - low || Math.abs(high) || 1);
    return [low === 0 ? 0 : low - pad, high + pad];
  }

  get logX() {
    return view.logX;
  }

  /** Steps begin at 0, which a logarithm has no place for. */
  get shift() {
    return 1;
  }

  get cursor() {
    return view.cursor;
  }

  layout() {
    this.width = this.canvas.clientWidth || this.figure.clientWidth - 24;
    if (this.width < 40) return false;
    this.height = this.least + (window.innerWidth >= 1900 ? 50 : 0);
    const [first, last] = this.steps();
    const top = MARGIN.top + (this.pins ? this.pinRows * 18 : 0);
    this.box = { x: MARGIN.left, y: top, width: this.width - MARGIN.left - MARGIN.right, height: this.height - top - MARGIN.bottom };
    this.x = new Scale(first, last, this.box.x, this.box.x + this.box.width, this.logX, this.shift);
    const heights = this.heights(first, last) ?? [this.isLog ? 0.1 : 0, 1];
    this.y = new Scale(heights[0], heights[1], this.box.y + this.box.height, this.box.y, this.isLog);
    return true;
  }

  draw() {
    this.placePins();
    if (!this.layout()) return;
    const pen = sized(this.base, this.width, this.height);
    this.drawBand(pen);
    this.drawUprights(pen);
    this.drawGrid(pen);
    within(pen, { ...this.box, x: this.box.x - 1, width: this.box.width + 2, y: this.box.y - 2, height: this.box.height + 4 }, () => {
      this.drawAreas(pen);
      this.spec.lines.forEach((line, index) => line.style !== "area" && this.drawLine(pen, line, this.colour(index)));
    });
    this.drawMarks(pen);
    sized(this.canvas, this.width, this.height);
    this.canvas.style.height = `${this.height}px`;
    this.stale = false;
  }

  drawBand(pen) {
    const { band } = this.spec;
    if (!band) return;
    const clip = (value, end) => (isNumber(value) && !(this.isLog && value <= 0) ? Math.min(Math.max(this.y.at(value), this.box.y), this.box.y + this.box.height) : end);
    const [bottom, top] = [clip(band.low, this.box.y + this.box.height), clip(band.high, this.box.y)];
    pen.fillStyle = look().band;
    pen.fillRect(this.box.x, top, this.box.width, bottom - top);
    pen.fillStyle = look().edge;
    for (const [value, y] of [[band.low, bottom], [band.high, top]]) if (isNumber(value)) pen.fillRect(this.box.x, Math.round(y), this.box.width, 1);
  }

  drawUprights() {}

  drawGrid(pen) {
    const { grid, muted } = look();
    pen.font = FONT;
    pen.lineWidth = 1;
    pen.strokeStyle = grid;
    pen.fillStyle = muted;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const ups = this.y.ticks(this.box.height / 34);
    spelled(ups, this.spec.unit).forEach((text, index) => {
      const y = Math.round(this.y.at(ups[index])) + 0.5;
      trace(pen, [[this.box.x, y], [this.box.x + this.box.width, y]]);
      pen.stroke();
      pen.fillText(text, this.box.x - 7, y);
    });
    pen.textAlign = "center";
    pen.textBaseline = "top";
    const overs = this.x.ticks(this.box.width / 62).filter((tick) => this.own || Number.isInteger(tick));
    let free = -Infinity;
    for (const tick of overs) {
      const [x, text] = [this.x.at(tick), words(tick, 5)];
      const half = pen.measureText(text).width / 2;
      if (x - half < free || x < this.box.x - 1) continue;
      const place = Math.min(x, this.width - half - 1);
      pen.fillText(text, place, this.box.y + this.box.height + 8);
      free = x + half + 8;
    }
  }

  drawAreas(pen) {
    const areas = this.spec.lines.map((line, index) => [line, index]).filter(([line]) => line.style === "area");
    const tops = this.tops();
    areas.forEach(([line, index], number) => {
      pen.beginPath();
      const under = number ? tops[number - 1] : null;
      line.steps.forEach((step, k) => pen.lineTo(this.x.at(step), this.y.at(tops[number][k])));
      for (let k = line.steps.length - 1; k >= 0; k--) pen.lineTo(this.x.at(line.steps[k]), this.y.at(under ? under[k] : this.y.low));
      pen.closePath();
      pen.fillStyle = this.colour(index);
      pen.globalAlpha = 0.72;
      pen.fill();
      pen.globalAlpha = 1;
    });
  }

  drawLine(pen, line, colour) {
    const style = line.style ?? "line";
    pen.strokeStyle = colour;
    pen.lineJoin = "round";
    pen.lineWidth = { trend: 2.2, faint: 1, limit: 1.3, line: 1.7, steps: 1.7, points: 1.2 }[style];
    pen.globalAlpha = style === "faint" ? 0.38 : 1;
    pen.setLineDash(style === "limit" ? [5, 4] : []);
    pen.beginPath();
    let before = null;
    let broken = true;
    line.values.forEach((value, index) => {
      if (!isNumber(value) || (this.isLog && value <= 0)) {
        broken = true;
        return;
      }
      const [x, y] = [this.x.at(line.steps[index]), this.y.at(value)];
      if (broken) pen.moveTo(x, y);
      else {
        if (style === "steps") pen.lineTo(x, before);
        pen.lineTo(x, y);
      }
      before = y;
      broken = false;
    });
    pen.stroke();
    pen.setLineDash([]);
    pen.globalAlpha = 1;
    if (style === "points" || line.values.filter(isNumber).length === 1) this.drawDots(pen, line, colour);
    const end = line.values.length - 1;
    if (end > 0 && line.values[end] === null && style !== "points") this.drawCross(pen, line, colour);
  }

  drawDots(pen, line, colour) {
    pen.lineWidth = 1.5;
    line.values.forEach((value, index) => {
      if (!isNumber(value)) return;
      pen.beginPath();
      pen.arc(this.x.at(line.steps[index]), this.y.at(value), 3.2, 0, 7);
      pen.fillStyle = look().card;
      pen.fill();
      pen.strokeStyle = colour;
      pen.stroke();
    });
  }

  /** Where a line stops being a number. */
  drawCross(pen, line, colour) {
    const last = line.values.findLastIndex(isNumber);
    if (last < 0) return;
    const [x, y] = [this.x.at(line.steps[last]), this.y.at(line.values[last])];
    pen.strokeStyle = look().error;
    pen.lineWidth = 2;
    for (const turn of [1, -1]) {
      trace(pen, [[x - 5, y - 5 * turn], [x + 5, y + 5 * turn]]);
      pen.stroke();
    }
    pen.font = BOLD;
    pen.fillStyle = look().error;
    const right = x < this.box.x + this.box.width - 80;
    pen.textAlign = right ? "left" : "right";
    pen.textBaseline = "middle";
    pen.fillText("not finite", x + (right ? 9 : -9), y);
  }

  drawMarks(pen) {
    const { muted, warning } = look();
    for (const mark of this.spec.marks ?? []) {
      const x = this.x.at(mark.step);
      if (x < this.box.x || x > this.box.x + this.box.width) continue;
      pen.fillStyle = warning;
      trace(pen, [[x - 4, this.box.y + this.box.height + 7], [x + 4, this.box.y + this.box.height + 7], [x, this.box.y + this.box.height]]);
      pen.fill();
    }
    for (const pin of this.pinPlaces ?? []) {
      const x = this.x.at(pin.step);
      pen.strokeStyle = look()[pin.kind] ?? muted;
      pen.setLineDash([2, 3]);
      pen.lineWidth = 1.2;
      trace(pen, [[x, pin.row * 18 + 18], [x, this.box.y + this.box.height]]);
      pen.stroke();
      pen.setLineDash([]);
      pen.fillStyle = look()[pin.kind] ?? muted;
      pen.beginPath();
      pen.roundRect(pin.left, pin.row * 18 + 1, pin.wide, 16, 4);
      pen.fill();
      pen.font = BOLD;
      pen.fillStyle = look().card;
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      pen.fillText(pin.text, pin.left + 6, pin.row * 18 + 9.5);
    }
  }

  /** Flags of findings above the chart, in as many rows as keep them apart. */
  placePins() {
    this.pinPlaces = [];
    this.pinRows = 0;
    if (!this.pins) return;
    this.pinRows = this.pins().length ? 1 : 0;
    if (!this.layout()) return;
    const pen = this.base.getContext("2d");
    pen.font = BOLD;
    const ends = [];
    for (const pin of this.pins()) {
      const [x, wide] = [this.x.at(pin.step), pen.measureText(pin.text).width + 12];
      if (x < this.box.x - 1 || x > this.box.x + this.box.width + 1) continue;
      const left = Math.min(Math.max(x - 6, 0), this.width - wide - 1);
      let row = ends.findIndex((end) => end < left - 4);
      if (row < 0) row = ends.length;
      ends[row] = left + wide;
      this.pinPlaces.push({ ...pin, left, wide, row });
    }
    this.pinRows = Math.min(4, Math.max(1, ends.length)) * (this.pinPlaces.length ? 1 : 0);
  }

  drawTop() {
    if (this.stale) this.draw();
    if (!this.box) return;
    const pen = this.canvas.getContext("2d");
    pen.clearRect(0, 0, this.width, this.height);
    pen.drawImage(this.base, 0, 0, this.width, this.height);
    this.drawSelection(pen);
    const inside = this.cursor !== null && this.cursor >= this.x.low && this.cursor <= this.x.high;
    this.fillLegend(inside ? this.cursor : null);
    if (!inside) return;
    const x = Math.round(this.x.at(this.cursor)) + 0.5;
    pen.strokeStyle = look().muted;
    pen.lineWidth = 1;
    trace(pen, [[x, this.box.y], [x, this.box.y + this.box.height]]);
    pen.stroke();
    const text = this.own ? words(this.cursor) : words(Math.round(this.cursor), 9);
    pen.font = BOLD;
    const wide = pen.measureText(text).width + 12;
    const left = Math.min(Math.max(x - wide / 2, 0), this.width - wide);
    pen.fillStyle = look().ink;
    pen.beginPath();
    pen.roundRect(left, this.box.y + this.box.height + 4, wide, 18, 4);
    pen.fill();
    pen.fillStyle = look().card;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(text, left + wide / 2, this.box.y + this.box.height + 13.5);
    this.drawReadings(pen);
  }

  drawReadings(pen) {
    const tops = this.tops();
    let area = 0;
    this.spec.lines.forEach((line, index) => {
      const top = line.style === "area" ? tops[area++] : null;
      if (line.style === "limit" || line.style === "faint") return;
      const k = nearest(line.steps, this.cursor);
      const value = top ? top[k] : line.values[k];
      if (!isNumber(value) || (this.isLog && value <= 0)) return;
      pen.beginPath();
      pen.arc(this.x.at(line.steps[k]), this.y.at(value), 3.4, 0, 7);
      pen.fillStyle = this.colour(index);
      pen.fill();
      pen.strokeStyle = look().card;
      pen.lineWidth = 1.4;
      pen.stroke();
    });
  }

  drawSelection(pen) {
    if (!this.dragging || Math.abs(this.dragging[1] - this.dragging[0]) < 4) return;
    const [left, right] = [...this.dragging].sort((a, b) => a - b);
    pen.fillStyle = look().accent;
    pen.globalAlpha = 0.16;
    pen.fillRect(left, this.box.y, right - left, this.box.height);
    pen.globalAlpha = 1;
  }

  fillLegend(step) {
    this.spec.lines.forEach((line, index) => {
      const known = line.steps.length ? line.values[step === null ? lastIndex(line.values) : nearest(line.steps, step)] : null;
      const text = withUnit(known, this.spec.unit);
      if (this.items[index].textContent !== text) this.items[index].textContent = text;
    });
  }

  place(event) {
    const frame = this.canvas.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => {
      if (!this.box) return;
      const [x, y] = this.place(event);
      if (this.dragging) this.dragging[1] = Math.min(Math.max(x, this.box.x), this.box.x + this.box.width);
      const over = this.pinAt(x, y);
      canvas.style.cursor = over ? "pointer" : "";
      canvas.title = over ? over.words : "";
      if (this.own) return this.read(x);
      const step = Math.min(Math.max(this.x.back(x), this.x.low), this.x.high);
      look_at({ cursor: this.snapped(step) });
    });
    canvas.addEventListener("pointerleave", () => {
      if (this.own) this.read(null);
      else if (!this.dragging) look_at({ cursor: view.pinned ?? null });
    });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.box || event.pointerType === "touch") return;
      const [x, y] = this.place(event);
      const pin = this.pinAt(x, y);
      if (pin) return pin.open();
      this.dragging = [x, x];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => {
      const [from, to] = (this.dragging ?? [0, 0]).sort((a, b) => a - b);
      this.dragging = null;
      if (to - from > 6 && !this.own) look_at({ zoom: wholeSteps(this.x.back(from), this.x.back(to)) });
    });
    canvas.addEventListener("click", (event) => {
      const pin = this.box && this.pinAt(...this.place(event));
      if (pin && event.pointerType === "touch") pin.open();
      else if (event.detail === 1 && !pin && view.cursor !== null && !this.own) look_at({ pinned: view.pinned === view.cursor ? null : view.cursor });
    });
    canvas.addEventListener("dblclick", () => look_at({ zoom: null, pinned: null }));
    canvas.addEventListener("keydown", (event) => this.pressed(event));
  }

  pinAt(x, y) {
    return (this.pinPlaces ?? []).find((pin) => x >= pin.left && x <= pin.left + pin.wide && y >= pin.row * 18 && y <= pin.row * 18 + 18);
  }

  /** The recorded step next to this one. */
  snapped(step) {
    let best = null;
    for (const line of this.spec.lines) {
      if (line.style === "limit" || !line.steps.length) continue;
      const near = line.steps[nearest(line.steps, step)];
      if (best === null || Math.abs(near - step) < Math.abs(best - step)) best = near;
    }
    return best ?? step;
  }

  pressed(event) {
    const known = this.spec.lines.find((line) => line.style !== "limit" && line.steps.length)?.steps;
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
    if (event.key in moves && known) {
      const at = view.cursor === null ? (moves[event.key] > 0 ? -1 : known.length) : nearest(known, view.cursor);
      const next = known[Math.min(Math.max(at + moves[event.key], 0), known.length - 1)];
      look_at({ cursor: next });
    } else if (event.key === "+" || event.key === "-") {
      const [first, last] = shownSteps();
      const middle = view.cursor ?? (first + last) / 2;
      const factor = event.key === "+" ? 0.5 : 2;
      const zoom = wholeSteps(Math.max(extent.first, middle - (middle - first) * factor), Math.min(extent.last, middle + (last - middle) * factor));
      look_at({ zoom: zoom && zoom[0] <= extent.first && zoom[1] >= extent.last ? null : zoom });
    } else if (event.key === "l") this.bend();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  csv() {
    const steps = [...new Set(this.spec.lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
    const found = this.spec.lines.map((line) => new Map(line.steps.map((step, index) => [step, line.values[index]])));
    return csv([["step", ...this.spec.lines.map((line) => line.label)], ...steps.map((step) => [step, ...found.map((line) => line.get(step))])]);
  }

  picture() {
    return framed(this.base, this.width, this.height, this.title.textContent, this.spec.lines.map((line, index) => [line.label, this.colour(index)]));
  }
}

/** A chart of a proof or an experiment: its x axis is its own. */
class PlainChart extends Chart {
  constructor(host, chart, height = 200) {
    const xs = chart.lines.flatMap((line) => line.xs);
    const lines = chart.lines.map((line) => ({ label: line.label, steps: line.xs, values: line.values }));
    const spec = { name: chart.title, title: chart.title, lines, log: chart.log, most: chart.most, plain: chart };
    super(host, spec, { height, own: [Math.min(...xs), Math.max(...xs)] });
  }

  get logX() {
    return this.spec.plain.log_x ?? false;
  }

  get shift() {
    return 0;
  }

  get cursor() {
    return this.ownCursor ?? null;
  }

  read(x) {
    this.ownCursor = x === null ? null : this.snapped(Math.min(Math.max(this.x.back(x), this.x.low), this.x.high));
    wake();
  }

  steps() {
    const marks = (this.spec.plain.marks ?? []).flatMap((mark) => [mark.low, mark.high]).filter((x) => isNumber(x) && (x > 0 || !this.logX));
    return [Math.min(this.own[0], ...marks), Math.max(this.own[1], ...marks)];
  }

  drawUprights(pen) {
    for (const mark of this.spec.plain.marks ?? []) {
      const left = this.x.at(mark.low);
      if (isNumber(mark.high)) {
        pen.fillStyle = look().band;
        pen.fillRect(left, this.box.y, this.x.at(mark.high) - left, this.box.height);
      } else {
        pen.strokeStyle = mark.label === "your rate" ? look().error : look().good;
        pen.setLineDash([5, 3]);
        trace(pen, [[left, this.box.y], [left, this.box.y + this.box.height]]);
        pen.stroke();
        pen.setLineDash([]);
      }
    }
  }

  /** Their names, each in a row of its own and on a ground of its own. */
  drawMarks(pen) {
    pen.font = BOLD;
    pen.textBaseline = "top";
    pen.lineJoin = "round";
    pen.lineWidth = 4;
    pen.strokeStyle = look().card;
    pen.fillStyle = look().muted;
    (this.spec.plain.marks ?? []).forEach((mark, row) => {
      const left = this.x.at(mark.low);
      const right = left > this.box.x + this.box.width / 2;
      pen.textAlign = right ? "right" : "left";
      const place = [left + (right ? -5 : 5), this.box.y + 2 + 15 * row];
      pen.strokeText(mark.label, ...place);
      pen.fillText(mark.label, ...place);
    });
  }

  /** Where a sweep ends says nothing: its numbers are those under the pointer. */
  fillLegend(x) {
    if (x !== null || !this.logX) super.fillLegend(x);
    else for (const item of this.items) item.textContent = "";
  }
}

/** A drawing with its title and legend, for a message or a slide. */
function framed(drawing, width, height, title, legend) {
  const canvas = document.createElement("canvas");
  const pen = sized(canvas, width + 24, height + 62);
  pen.fillStyle = look().card;
  pen.fillRect(0, 0, width + 24, height + 62);
  pen.fillStyle = look().ink;
  pen.font = "600 14px system-ui, sans-serif";
  pen.fillText(title, 12, 24);
  pen.drawImage(drawing, 12, 34, width, height);
  pen.font = FONT;
  let x = 14;
  for (const [label, colour] of legend) {
    pen.fillStyle = colour;
    pen.fillRect(x, height + 46, 10, 3);
    pen.fillStyle = look().muted;
    pen.fillText(label, x + 15, height + 51);
    x += pen.measureText(label).width + 32;
  }
  return canvas;
}

function wholeSteps(first, last) {
  const steps = [Math.floor(first), Math.ceil(last)];
  return steps[1] - steps[0] >= 2 ? steps : null;
}

/** The index of the step next to this one, in a rising list. */
function nearest(steps, step) {
  let [low, high] = [0, steps.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low > 0 && step - steps[low - 1] < steps[low] - step ? low - 1 : low;
}

function lastIndex(values) {
  const index = values.findLastIndex(isNumber);
  return index < 0 ? values.length - 1 : index;
}

/** Charts that are not on the screen are drawn when they come into sight. */
const sight = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    for (const chart of charts) if (chart.figure === entry.target) chart.visible = entry.isIntersecting;
  }
  wake();
}, { rootMargin: "300px" });

const growth = new ResizeObserver(() => drawAll());

function drawAll() {
  look.known = null;
  for (const chart of charts) chart.stale = true;
  wake();
}

let shownBefore = "";
listeners.add(() => {
  const shown = JSON.stringify([view.zoom, view.logX, view.log, extent]);
  if (shown !== shownBefore) for (const chart of charts) chart.stale = true;
  shownBefore = shown;
  for (const chart of charts) {
    if (!chart.figure.isConnected) {
      charts.delete(chart);
      sight.unobserve(chart.figure);
    } else if (chart.visible) chart.drawTop();
  }
});
