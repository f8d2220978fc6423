// How the sizes of values were distributed, step by step, as ridges: the oldest at the back, the newest in front.

class Ridge {
  constructor(host, title, healthy, ridges, colour) {
    Object.assign(this, { ridges, colour });
    this.canvas = el("canvas", { role: "img", "aria-label": `${title}: distribution of sizes at ${ridges.steps.length} steps` });
    this.base = document.createElement("canvas");
    this.reading = el("p.reading");
    const tools = el("div.tools", {},
      button("copy the numbers as CSV", "table", () => copyText(this.csv(), `${title}.csv`)),
      button("copy as a picture", "image", () => copyPicture(framed(this.base, this.width, this.height, title, []), title)));
    this.figure = el("figure.card.ridge", {}, el("header", {}, el("h3", {}, title), tools), el("p.healthy", {}, el("b", {}, "Healthy: "), healthy), this.canvas, this.reading);
    host.append(this.figure);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => {
      this.hovered = undefined;
      wake();
    });
    this.stale = true;
    this.visible = false;
    charts.add(this);
    sight.observe(this.figure);
  }

  draw() {
    this.width = this.canvas.clientWidth || this.figure.clientWidth - 24;
    this.stale = false;
    const { ridges } = this;
    const count = ridges.steps.length;
    this.gap = count > 10 ? 17 : 22;
    this.tall = 54;
    this.height = this.tall + (count - 1) * this.gap + 30;
    this.box = { x: 58, y: 4, width: this.width - 58 - 62, height: this.height - 30 };
    const bins = ridges.counts[0].length;
    this.x = new Scale(ridges.lowest - 1, ridges.lowest + bins - 1, this.box.x, this.box.x + this.box.width);
    const pen = sized(this.base, this.width, this.height);
    const most = Math.max(1, ...ridges.counts.flat());
    this.axis(pen);
    ridges.counts.forEach((counts, number) => this.ridge(pen, counts, number, most));
    sized(this.canvas, this.width, this.height);
    this.canvas.style.height = `${this.height}px`;
  }

  axis(pen) {
    pen.font = FONT;
    pen.textBaseline = "top";
    pen.strokeStyle = look().grid;
    const first = Math.ceil((this.x.low * Math.LN2) / Math.LN10);
    const last = Math.floor((this.x.high * Math.LN2) / Math.LN10);
    const every = Math.max(1, Math.ceil((last - first + 1) / Math.max(1, this.box.width / 52)));
    pen.textAlign = "center";
    for (let power = first; power <= last; power += every) {
      const x = this.x.at((power * Math.LN10) / Math.LN2);
      trace(pen, [[x, this.box.y], [x, this.box.y + this.box.height]]);
      pen.stroke();
      pen.fillStyle = look().muted;
      if (x > this.box.x + 16) pen.fillText(words(10 ** power, 1), x, this.box.y + this.box.height + 7);
    }
    pen.textAlign = "right";
    pen.fillText("step", this.box.x - 8, this.box.y + this.box.height + 7);
    pen.fillText("are 0", this.width - 2, this.box.y + this.box.height + 7);
  }

  foot(number) {
    return this.box.y + this.tall + number * this.gap;
  }

  ridge(pen, counts, number, most) {
    const foot = this.foot(number);
    const places = counts.map((count, index) => [this.x.at(this.ridges.lowest + index - 0.5), foot - (count / most) * (this.tall - 4)]);
    const newest = this.ridges.steps.length - 1;
    const path = new Path2D();
    path.moveTo(this.box.x, foot);
    let [beforeX, beforeY] = [places[0][0], foot];
    path.lineTo(Math.max(this.box.x, beforeX - 6), foot);
    for (const [x, y] of places) {
      const middle = (beforeX + x) / 2;
      path.bezierCurveTo(middle, beforeY, middle, y, x, y);
      [beforeX, beforeY] = [x, y];
    }
    path.lineTo(this.box.x + this.box.width, beforeY > foot - 1 ? foot : beforeY);
    path.lineTo(this.box.x + this.box.width, foot);
    pen.fillStyle = look().card;
    pen.globalAlpha = 0.86;
    pen.fill(path);
    pen.fillStyle = look().series[this.colour];
    pen.globalAlpha = 0.12 + 0.38 * (newest ? number / newest : 1);
    pen.fill(path);
    pen.globalAlpha = 1;
    pen.strokeStyle = look().series[this.colour];
    pen.lineWidth = 1.3;
    pen.stroke(path);
    pen.font = this.hovered === number ? BOLD : FONT;
    pen.fillStyle = look().muted;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    pen.fillText(this.ridges.steps[number].toLocaleString("en"), this.box.x - 8, foot - 5);
    pen.fillStyle = this.ridges.zero[number] > 0.5 ? look().warning : look().muted;
    pen.fillText(`${Math.round(100 * this.ridges.zero[number])} %`, this.width - 2, foot - 5);
  }

  point(event) {
    const frame = this.canvas.getBoundingClientRect();
    const number = Math.round((event.clientY - frame.top - this.box.y - this.tall + this.gap / 2) / this.gap);
    this.hovered = Math.min(Math.max(number, 0), this.ridges.steps.length - 1);
    this.bin = Math.ceil(this.x.back(event.clientX - frame.left) - this.ridges.lowest);
    wake();
  }

  drawTop() {
    if (this.stale) this.draw();
    if (!this.box) return;
    const pen = this.canvas.getContext("2d");
    pen.clearRect(0, 0, this.width, this.height);
    pen.drawImage(this.base, 0, 0, this.width, this.height);
    const counts = this.hovered === undefined ? null : this.ridges.counts[this.hovered];
    if (!counts || counts[this.bin] === undefined) {
      this.reading.textContent = "From left to right: sizes of the values, by powers of ten.";
      return;
    }
    const power = this.ridges.lowest + this.bin;
    const x = this.x.at(power - 0.5);
    pen.strokeStyle = look().ink;
    pen.lineWidth = 1;
    trace(pen, [[x, this.foot(this.hovered) - this.tall + 4], [x, this.foot(this.hovered)]]);
    pen.stroke();
    const share = withUnit(counts[this.bin] / 1000, "%");
    this.reading.textContent = `At step ${this.ridges.steps[this.hovered].toLocaleString("en")} ${share} lie between ${words(2 ** (power - 1), 2)} and ${words(2 ** power, 2)}.`;
  }

  csv() {
    const { ridges } = this;
    const bins = ridges.counts[0].map((_, index) => 2 ** (ridges.lowest + index));
    return csv([["step", "exactly 0", ...bins.map((bin) => `below ${bin}`)], ...ridges.steps.map((step, number) => [step, ridges.zero[number], ...ridges.counts[number].map((count) => count / 1000)])]);
  }
}
