// A loss over two inputs: colour bands, iso-lines, arrows of descent, and what was found.

const PLANE_MARGIN = { left: 56, right: 72, top: 8, bottom: 44 };

class Plane {
  constructor(canvas) {
    this.canvas = canvas;
    this.base = document.createElement("canvas");
  }

  /** Everything that does not follow the pointer. */
  drawBase(scene, width) {
    const { left, right, top, bottom } = PLANE_MARGIN;
    const wide = width - left - right;
    const tall = Math.round(Math.min(wide < 400 ? wide : wide * 0.8, Math.max(300, window.innerHeight - 400)));
    this.width = width;
    this.height = tall + top + bottom;
    this.box = { x: left, y: top, width: wide, height: tall };
    this.axes = scene.field.axes;
    this.look = theme();
    const pen = sized(this.base, this.width, this.height);
    pen.fillStyle = hatching(pen, this.look);
    pen.fillRect(this.box.x, this.box.y, this.box.width, this.box.height);
    this.bands(pen, scene);
    within(pen, this.box, () => {
      if (scene.layers.lines) this.isoLines(pen, scene);
      if (scene.layers.arrows && !scene.difference) this.arrows(pen, scene);
      if (scene.whole && !scene.difference) this.found(pen, scene);
    });
    this.surroundings(pen, scene.scale);
    sized(this.canvas, this.width, this.height);
    this.canvas.style.height = `${this.height}px`;
  }

  /** What follows the pointer, on top of the base. */
  drawTop(scene) {
    const pen = this.canvas.getContext("2d");
    pen.clearRect(0, 0, this.width, this.height);
    pen.drawImage(this.base, 0, 0, this.width, this.height);
    within(pen, this.box, () => {
      for (const [name, path] of Object.entries(scene.paths)) this.path(pen, path, PATHS[name]);
      if (scene.hover) this.cross(pen, this.pixel(scene.hover));
    });
    if (!scene.difference) handle(pen, ...this.pixel(scene.start));
  }

  pixel(point) {
    const [across, up] = this.axes;
    const { x, y, width, height } = this.box;
    return [
      x + ((point[0] - across.low) / (across.high - across.low)) * width,
      y + height - ((point[1] - up.low) / (up.high - up.low)) * height,
    ];
  }

  /** The point of the plane under a pixel; null outside. */
  point([left, top], clamp = false) {
    const { x, y, width, height } = this.box;
    let parts = [(left - x) / width, 1 - (top - y) / height];
    if (clamp) parts = parts.map((part) => Math.min(Math.max(part, 0), 1));
    if (parts.some((part) => part < 0 || part > 1)) return null;
    return this.axes.map((axis, d) => axis.low + parts[d] * (axis.high - axis.low));
  }

  bands(pen, { field, scale }) {
    const density = window.devicePixelRatio || 1;
    const [wide, tall] = [this.box.width, this.box.height].map((side) => Math.round(side * density));
    const image = new ImageData(wide, tall);
    const pixels = new Uint32Array(image.data.buffer);
    const colours = scale.colours.map((colour) => {
      const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
      return (255 << 24) | (blue << 16) | (green << 8) | red;
    });
    const [across, up] = this.axes;
    for (let row = 0; row < tall; row++) {
      const y = up.low + (1 - (row + 0.5) / tall) * (up.high - up.low);
      const heights = this.rowHeights(field, y);
      for (let column = 0; column < wide; column++) {
        const place = ((column + 0.5) / wide) * (across.count - 1);
        const left = Math.min(Math.floor(place), across.count - 2);
        const part = place - left;
        let value = heights[left] * (1 - part) + heights[left + 1] * part;
        if (!Number.isFinite(value)) value = heights[part < 0.5 ? left : left + 1];
        if (Number.isFinite(value)) pixels[row * wide + column] = colours[band(scale.levels, value)];
      }
    }
    const picture = document.createElement("canvas");
    picture.width = wide;
    picture.height = tall;
    picture.getContext("2d").putImageData(image, 0, 0);
    pen.drawImage(picture, this.box.x, this.box.y, this.box.width, this.box.height);
  }

  /** The field along one row of pixels, at the points of the first axis. */
  rowHeights(field, y) {
    const [across] = this.axes;
    const step = (across.high - across.low) / (across.count - 1);
    return Float64Array.from({ length: across.count }, (_, i) => field.value([across.low + i * step, y]));
  }

  isoLines(pen, { field, scale, difference }) {
    const [across, up] = this.axes;
    scale.levels.forEach((level, index) => {
      pen.strokeStyle = scale.inks[index + 1];
      pen.globalAlpha = 0.4;
      pen.lineWidth = 0.9;
      pen.setLineDash(difference && level < 0 ? [5, 4] : []);
      for (const line of levelLines(field.values, across.count, up.count, level)) {
        trace(pen, line.map(([i, j]) => this.gridPixel(i, j)));
        pen.stroke();
      }
    });
    pen.globalAlpha = 1;
    pen.setLineDash([]);
  }

  gridPixel(i, j) {
    const [across, up] = this.axes;
    const { x, y, width, height } = this.box;
    return [x + (i / (across.count - 1)) * width, y + height - (j / (up.count - 1)) * height];
  }

  arrows(pen, { field, scale, arrowRange }) {
    const { x, y, width, height } = this.box;
    const columns = Math.max(9, Math.min(21, Math.floor(width / 30)));
    const gap = width / columns;
    const rows = Math.max(1, Math.round(height / gap));
    for (let i = 0; i < columns; i++) {
      for (let j = 0; j < rows; j++) {
        const at = [x + (i + 0.5) * gap, y + ((j + 0.5) * height) / rows];
        this.arrow(pen, at, this.point(at), gap * 0.85, field, scale, arrowRange);
      }
    }
    pen.globalAlpha = 1;
  }

  /** Against the gradient; the length grows with its logarithm, a dot is no gradient at all. */
  arrow(pen, [left, top], point, longest, field, scale, [least, most]) {
    const value = field.value(point);
    const slope = field.slope(point);
    const steepness = Math.hypot(...slope);
    if (!Number.isFinite(value) || !Number.isFinite(steepness)) return;
    pen.fillStyle = pen.strokeStyle = scale.inks[band(scale.levels, value)];
    pen.globalAlpha = 0.8;
    const [wide, tall] = [this.box.width, this.box.height].map((side, d) => side / (this.axes[d].high - this.axes[d].low));
    const angle = Math.atan2(slope[1] * tall, -slope[0] * wide);
    const place = steepness > 0 ? Math.log(steepness / least) / (Math.log(most / least) || 1) : 0;
    const length = longest * (0.25 + 0.75 * Math.min(Math.max(place, 0), 1));
    pen.save();
    pen.translate(left, top);
    pen.rotate(angle);
    pen.beginPath();
    if (steepness === 0) pen.arc(0, 0, 1.2, 0, 7);
    else {
      const head = Math.min(6, length * 0.45);
      polygon(pen, [
        [-length / 2, -0.7], [length / 2 - head, -0.7], [length / 2 - head, -head * 0.5],
        [length / 2, 0], [length / 2 - head, head * 0.5], [length / 2 - head, 0.7], [-length / 2, 0.7],
      ]);
    }
    pen.fill();
    pen.restore();
  }

  found(pen, { surface, layers }) {
    const size = surface.value.length;
    if (layers.regions) {
      for (const region of surface.nonFinite) this.hatchedOver(pen, region, size);
      for (const region of surface.dead) this.outline(pen, region, size, { width: 2, dash: [2, 4] });
      if (surface.desired) this.outline(pen, surface.desired, size, { width: 2 });
    }
    if (layers.flows) for (const flow of surface.flows) this.flow(pen, flow);
    if (!layers.regions) return;
    for (const spot of surface.stationary) symbol(pen, spot.kind, ...this.pixel(spot.at));
    surface.marks.forEach((mark, index) => {
      symbol(pen, "mark", ...this.pixel(mark));
      markName(pen, surface.markNames[index], this.pixel(mark), this.box);
    });
    for (const region of surface.nonFinite) this.name(pen, region, size, region.label);
    for (const region of surface.dead) this.name(pen, region, size, `zero gradient, ${percent(region.share)}`);
    if (surface.desired) this.name(pen, surface.desired, size, "desired");
  }

  /** The outline of a region; a border of empty cells around the grid closes it along the edge. */
  rings(region, size) {
    const [across, up] = this.axes;
    const [columns, rows] = [across.count + 2, up.count + 2];
    const framed = new Float64Array(columns * rows);
    maskOf(region, size).forEach((inside, index) => {
      framed[(Math.floor(index / up.count) + 1) * rows + (index % up.count) + 1] = inside;
    });
    const clamp = (place, count) => Math.min(Math.max(place - 1, 0), count - 1);
    return levelLines(framed, columns, rows, 0.5).map((line) =>
      line.map(([i, j]) => this.gridPixel(clamp(i, across.count), clamp(j, up.count))));
  }

  outline(pen, region, size, style) {
    for (const ring of this.rings(region, size)) rimmed(pen, ring, { colour: LIGHT, rim: DARK, ...style });
  }

  /** Also where only the gradient is not finite, and as a symbol where that is too small to be seen. */
  hatchedOver(pen, region, size) {
    if (region.share < 0.002) {
      symbol(pen, "hole", ...this.pixel(region.low.map((low, d) => (low + region.high[d]) / 2)));
      return;
    }
    pen.fillStyle = hatching(pen, this.look);
    pen.beginPath();
    for (const ring of this.rings(region, size)) polygon(pen, ring);
    pen.fill("evenodd");
  }

  /** Words at the cell nearest to the middle; none for a region that goes around its middle, as a border does. */
  name(pen, region, size, text) {
    if (region.share < 0.02 || !text) return;
    const [across, up] = this.axes;
    const cells = [];
    maskOf(region, size).forEach((inside, index) => inside && cells.push([Math.floor(index / up.count), index % up.count]));
    if (!cells.length) return;
    const middle = [0, 1].map((d) => cells.reduce((sum, cell) => sum + cell[d], 0) / cells.length);
    const far = (cell) => Math.hypot((cell[0] - middle[0]) / across.count, (cell[1] - middle[1]) / up.count);
    const nearest = cells.reduce((best, cell) => (far(cell) < far(best) ? cell : best));
    if (far(nearest) < 0.15) label(pen, text, ...this.gridPixel(...nearest), this.box);
  }

  flow(pen, flow) {
    const pixels = flow.points.map((point) => this.pixel(point));
    rimmed(pen, pixels, { colour: LIGHT, rim: DARK, width: 1.3 });
    pen.beginPath();
    pen.arc(...pixels[0], 2.6, 0, 7);
    pen.fillStyle = LIGHT;
    pen.fill();
  }

  path(pen, { points }, style) {
    const pixels = points.map((point) => this.pixel(point));
    rimmed(pen, pixels, { ...style, width: 2.6 });
    pen.beginPath();
    pen.arc(...pixels[pixels.length - 1], 4.5, 0, 7);
    pen.fillStyle = style.colour;
    pen.fill();
    pen.lineWidth = 1.5;
    pen.strokeStyle = style.rim;
    pen.stroke();
  }

  cross(pen, [left, top]) {
    const { x, y, width, height } = this.box;
    for (const [colour, wide] of [[DARK, 2.4], [LIGHT, 1]]) {
      pen.globalAlpha = 0.6;
      pen.strokeStyle = colour;
      pen.lineWidth = wide;
      for (const line of [[[x, top], [x + width, top]], [[left, y], [left, y + height]]]) {
        trace(pen, line);
        pen.stroke();
      }
    }
    pen.globalAlpha = 1;
  }

  surroundings(pen, scale) {
    const [across, up] = this.axes;
    const { x, y, width, height } = this.box;
    frame(pen, this.box, this.look, {
      across: across.name,
      up: up.name,
      acrossTicks: ticks(across.low, across.high, width / 75).map((tick) => [this.pixel([tick, up.low])[0], words(tick, 3)]),
      upTicks: ticks(up.low, up.high, height / 45).map((tick) => [this.pixel([across.low, tick])[1], words(tick, 3)]),
    });
    const tall = height / scale.colours.length;
    const often = Math.ceil(20 / tall);
    scale.colours.forEach((colour, index) => {
      const top = y + height - (index + 1) * tall;
      pen.fillStyle = colour;
      pen.fillRect(x + width + 10, top, 12, tall + 0.5);
      pen.fillStyle = this.look.muted;
      pen.font = "11px system-ui, sans-serif";
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      const level = scale.levels[index];
      if (level !== undefined && index % often === 0) pen.fillText(words(level, 3), x + width + 26, top);
    });
  }
}
