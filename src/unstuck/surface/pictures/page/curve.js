// A loss over one input: the loss above, its gradient below it, and descent step by step at the bottom.

const CURVE_MARGIN = { left: 66, right: 14, top: 8, bottom: 44, between: 12 };
const STRIPS = [["loss", 0.5], ["gradient", 0.25], ["steps", 0.25]];

class Curve {
  constructor(canvas) {
    this.canvas = canvas;
    this.base = document.createElement("canvas");
  }

  drawBase(scene, width) {
    this.width = width;
    this.height = Math.min(Math.max(420, width * 0.8), Math.max(420, window.innerHeight - 400));
    this.axis = scene.field.axes[0];
    this.look = theme();
    this.split(scene);
    const pen = sized(this.base, this.width, this.height);
    for (const name of ["loss", "gradient"]) {
      const box = this.boxes[name];
      within(pen, box, () => {
        if (scene.layers.regions && scene.whole) this.spans(pen, box, scene);
        this.line(pen, name, name === "loss" ? scene.field.values : scene.field.gradient[0]);
      });
    }
    if (scene.layers.regions && scene.whole && !scene.difference) {
      this.names(pen, scene);
      this.points(pen, scene);
    }
    this.frames(pen, scene);
    sized(this.canvas, this.width, this.height);
    this.canvas.style.height = `${this.height}px`;
  }

  drawTop(scene) {
    const pen = this.canvas.getContext("2d");
    pen.clearRect(0, 0, this.width, this.height);
    pen.drawImage(this.base, 0, 0, this.width, this.height);
    if (scene.hover) this.cursor(pen, scene.hover[0]);
    if (scene.difference) return;
    const shown = this.busy(Object.values(scene.paths));
    for (const [name, path] of Object.entries(scene.paths)) this.path(pen, path, PATHS[name], scene.field, shown);
    const top = this.boxes.loss.y + this.boxes.loss.height;
    const height = this.y("loss", scene.field.value(scene.start));
    handle(pen, this.x(scene.start[0]), Number.isFinite(height) ? height : top);
  }

  /** Boxes one below the other; a difference has no descent. */
  split(scene) {
    const strips = scene.difference ? STRIPS.slice(0, 2) : STRIPS;
    const { left, right, top, bottom, between } = CURVE_MARGIN;
    const room = this.height - top - bottom - between * (strips.length - 1);
    const whole = strips.reduce((sum, [, part]) => sum + part, 0);
    this.boxes = {};
    let y = top;
    for (const [name, part] of strips) {
      const height = (room * part) / whole;
      this.boxes[name] = { x: left, y, width: this.width - left - right, height };
      y += height + between;
    }
    this.scales = { loss: scene.scale, gradient: scene.slopes };
  }

  x(value) {
    const { x, width } = this.boxes.loss;
    return x + ((value - this.axis.low) / (this.axis.high - this.axis.low)) * width;
  }

  y(name, value) {
    const { y, height } = this.boxes[name];
    const scale = this.scales[name];
    const [low, high] = [bend(scale, scale.low), bend(scale, scale.high)];
    const part = high > low ? (bend(scale, value) - low) / (high - low) : 0.5;
    return y + height * (0.93 - 0.86 * part);
  }

  pixel(point) {
    return [this.x(point[0]), this.boxes.loss.y];
  }

  point([left], clamp = false) {
    const { x, width } = this.boxes.loss;
    let part = (left - x) / width;
    if (clamp) part = Math.min(Math.max(part, 0), 1);
    return part < 0 || part > 1 ? null : [this.axis.low + part * (this.axis.high - this.axis.low)];
  }

  line(pen, name, values) {
    const step = (this.axis.high - this.axis.low) / (this.axis.count - 1);
    pen.strokeStyle = this.look[name];
    pen.lineWidth = 2.2;
    pen.lineJoin = "round";
    pen.beginPath();
    let broken = true;
    values.forEach((value, index) => {
      const at = [this.x(this.axis.low + index * step), this.y(name, value)];
      if (Number.isFinite(value)) broken ? pen.moveTo(...at) : pen.lineTo(...at);
      broken = !Number.isFinite(value);
    });
    pen.stroke();
  }

  spans(pen, box, { surface, difference }) {
    const half = (this.axis.high - this.axis.low) / (this.axis.count - 1) / 2;
    const span = (region, fill) => {
      const [left, right] = [this.x(region.low[0] - half), this.x(region.high[0] + half)];
      pen.fillStyle = fill;
      pen.fillRect(left, box.y, right - left, box.height);
    };
    for (const region of surface.nonFinite) span(region, hatching(pen, this.look));
    if (difference) return;
    for (const region of surface.dead) span(region, this.look.dead);
    if (surface.desired) span(surface.desired, this.look.desired);
    pen.strokeStyle = this.look.muted;
    pen.setLineDash([2, 4]);
    for (const { low, high } of surface.kinks) {
      const x = this.x((low[0] + high[0]) / 2);
      trace(pen, [[x, box.y], [x, box.y + box.height]]);
      pen.stroke();
    }
    pen.setLineDash([]);
  }

  names(pen, { surface }) {
    for (const region of surface.dead) this.name(pen, region, `zero gradient, ${percent(region.share)}`, 0);
    if (surface.desired) this.name(pen, surface.desired, "desired", 1);
    for (const region of surface.nonFinite) this.name(pen, region, region.label, 2);
  }

  /** Each kind of name on a line of its own, so that neighbours do not collide. */
  name(pen, region, text, line) {
    if (region.share < 0.04 || !text) return;
    pen.font = "600 12px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const { x, y, width } = this.boxes.loss;
    const half = pen.measureText(text).width / 2 + 6;
    const middle = this.x((region.low[0] + region.high[0]) / 2);
    const at = [Math.min(Math.max(middle, x + half), x + width - half), y + 13 + 18 * line];
    pen.lineJoin = "round";
    pen.lineWidth = 4;
    pen.strokeStyle = this.look.ground;
    pen.fillStyle = this.look.ink;
    if (line === 2) pen.strokeText(text, ...at);
    pen.fillText(text, ...at);
  }

  points(pen, { surface, field }) {
    for (const spot of surface.stationary) symbol(pen, spot.kind, this.x(spot.at[0]), this.y("loss", spot.value));
    surface.marks.forEach((mark, index) => {
      const heights = { loss: field.value(mark), gradient: field.slope(mark)[0] };
      for (const [name, height] of Object.entries(heights)) {
        if (Number.isFinite(height)) symbol(pen, "mark", this.x(mark[0]), this.y(name, height));
      }
      if (Number.isFinite(heights.loss)) {
        markName(pen, surface.markNames[index], [this.x(mark[0]), this.y("loss", heights.loss)], this.boxes.loss);
      }
    });
  }

  frames(pen, scene) {
    const across = ticks(this.axis.low, this.axis.high, this.boxes.loss.width / 75);
    const names = Object.keys(this.boxes);
    for (const name of names) {
      const last = name === names[names.length - 1];
      frame(pen, this.boxes[name], this.look, {
        across: last ? this.axis.name : "",
        up: name === "loss" ? (scene.difference ? "difference" : scene.component || "loss") : name,
        acrossTicks: last ? across.map((tick) => [this.x(tick), words(tick, 3)]) : [],
        upTicks: name === "steps" ? [] : this.heights(name).map((tick) => [this.y(name, tick), words(tick, 2)]),
      });
    }
  }

  heights(name) {
    const scale = this.scales[name];
    if (!(scale.high > scale.low)) return scale.low === null ? [] : [scale.low];
    const room = this.boxes[name].height / 42;
    if (!scale.softness) return ticks(scale.low, scale.high, room);
    const [low, high] = [bend(scale, scale.low), bend(scale, scale.high)];
    const count = Math.max(1, Math.floor(room));
    return Array.from({ length: count + 1 }, (_, k) => unbend(scale, low + (k / count) * (high - low)));
  }

  /** How many steps to show: all in which something still moves. */
  busy(paths) {
    const least = 0.005 * (this.axis.high - this.axis.low);
    const last = paths.map(({ points }) => points.findLastIndex(([x]) => Math.abs(x - points[points.length - 1][0]) > least));
    return 1.2 * Math.max(8, ...last);
  }

  /** On the loss every step is a dot; below, the steps run downwards. */
  path(pen, { points }, style, field, shown) {
    const { steps: strip } = this.boxes;
    const rim = style.rim === DARK ? this.look.ink : this.look.ground;
    const colour = style.colour === LIGHT ? this.look.ink : style.colour;
    within(pen, strip, () => {
      const line = points.map((point, step) => [this.x(point[0]), strip.y + (strip.height * step) / shown]);
      trace(pen, line);
      pen.strokeStyle = colour;
      pen.lineWidth = style.dash.length ? 2 : 5;
      pen.setLineDash(style.dash);
      pen.stroke();
      pen.setLineDash([]);
    });
    within(pen, this.boxes.loss, () => {
      const hollow = style.dash.length > 0;
      for (const point of points.slice(1)) {
        const height = this.y("loss", field.value(point));
        pen.beginPath();
        pen.arc(this.x(point[0]), height + (hollow ? -6 : 6), 2.6, 0, 7);
        pen.fillStyle = hollow ? this.look.ground : colour;
        pen.fill();
        pen.lineWidth = 1;
        pen.strokeStyle = hollow ? rim : colour;
        pen.stroke();
      }
    });
  }

  cursor(pen, value) {
    pen.strokeStyle = this.look.muted;
    pen.lineWidth = 1;
    const x = this.x(value);
    for (const box of Object.values(this.boxes)) {
      trace(pen, [[x, box.y], [x, box.y + box.height]]);
      pen.stroke();
    }
  }
}
