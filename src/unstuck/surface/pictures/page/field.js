// The mathematics of the page: a field on a grid, its level lines, and descent over it. Nothing here draws.

/** Values and slopes on an even grid of one or two axes, read between the points by linear interpolation. */
class Field {
  constructor(axes, values, gradient) {
    this.axes = axes;
    this.values = values;
    this.gradient = gradient;
  }

  value(point) {
    return this.read(this.values, point);
  }

  slope(point) {
    return this.gradient.map((part) => this.read(part, point));
  }

  contains(point) {
    return this.axes.every((axis, d) => point[d] >= axis.low && point[d] <= axis.high);
  }

  /** Beside a point that is not finite the nearest point counts alone, so that holes do not grow. */
  read(numbers, point) {
    let corners = [[0, 1]];
    let nearest = 0;
    for (const [d, axis] of this.axes.entries()) {
      const place = ((point[d] - axis.low) / (axis.high - axis.low)) * (axis.count - 1);
      const left = Math.min(Math.max(Math.floor(place), 0), axis.count - 2);
      const part = Math.min(Math.max(place - left, 0), 1);
      nearest = nearest * axis.count + left + (part >= 0.5 ? 1 : 0);
      corners = corners.flatMap(([index, weight]) => [
        [index * axis.count + left, weight * (1 - part)],
        [index * axis.count + left + 1, weight * part],
      ]);
    }
    let sum = 0;
    for (const [index, weight] of corners) if (weight > 0) sum += weight * numbers[index];
    return Number.isFinite(sum) ? sum : numbers[nearest];
  }
}

/** JSON has no NaN: it is sent as null. */
function numbersOf(list) {
  return Float64Array.from(list, (number) => (number === null ? NaN : number));
}

function fieldOf(surface, component) {
  if (!component) return new Field(surface.axes, numbersOf(surface.value), surface.gradient.map(numbersOf));
  const values = numbersOf(surface.components[component]);
  return new Field(surface.axes, values, surface.axes.map((_, d) => differences(surface.axes, values, d)));
}

function minus(field, other) {
  const apart = (a, b) => a.map((value, index) => value - b[index]);
  const gradient = field.gradient.map((part, d) => apart(part, other.gradient[d]));
  return new Field(field.axes, apart(field.values, other.values), gradient);
}

/** The slope along axis d by central differences, one-sided at the border. */
function differences(axes, values, d) {
  const axis = axes[d];
  const stride = d === axes.length - 1 ? 1 : axes[1].count;
  const step = (axis.high - axis.low) / (axis.count - 1);
  return values.map((_, index) => {
    const place = Math.floor(index / stride) % axis.count;
    const back = place > 0 ? 1 : 0;
    const ahead = place < axis.count - 1 ? 1 : 0;
    return (values[index + ahead * stride] - values[index - back * stride]) / ((ahead + back) * step);
  });
}

function maskOf(region, size) {
  const mask = new Uint8Array(size);
  let at = 0;
  region.runs.forEach((length, turn) => {
    if (turn % 2) mask.fill(1, at, at + length);
    at += length;
  });
  return mask;
}

/** Lines along which a grid of columns × rows numbers equals `level`, in grid units, joined as far as they go. */
function levelLines(numbers, columns, rows, level) {
  const pieces = [];
  for (let i = 0; i < columns - 1; i++) {
    for (let j = 0; j < rows - 1; j++) {
      const corner = i * rows + j;
      const heights = [corner, corner + rows, corner + rows + 1, corner + 1].map((at) => numbers[at] - level);
      const below = heights.filter((height) => height < 0).length;
      if (below > 0 && below < 4 && heights.every(Number.isFinite)) pieces.push(...crossing(i, j, heights));
    }
  }
  return joined(pieces);
}

/** How a level line crosses one cell whose corners, taken around, have these heights above it. */
function crossing(i, j, heights) {
  const ring = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]];
  const points = [];
  for (let k = 0; k < 4; k++) {
    const next = (k + 1) % 4;
    if (heights[k] < 0 === heights[next] < 0) continue;
    const part = heights[k] / (heights[k] - heights[next]);
    points.push(ring[k].map((start, d) => start + part * (ring[next][d] - start)));
  }
  return points.length === 4 ? [points.slice(0, 2), points.slice(2)] : [points];
}

/** Pieces that touch become one line, or dashes would begin anew in every cell. */
function joined(pieces) {
  const key = (point) => `${point[0].toFixed(4)} ${point[1].toFixed(4)}`;
  const touching = new Map();
  for (const piece of pieces) {
    for (const end of piece) touching.set(key(end), [...(touching.get(key(end)) ?? []), piece]);
  }
  const used = new Set();
  const extend = (line) => {
    for (;;) {
      const end = line[line.length - 1];
      const piece = touching.get(key(end)).find((candidate) => !used.has(candidate));
      if (!piece) return line;
      used.add(piece);
      line.push(key(piece[0]) === key(end) ? piece[1] : piece[0]);
    }
  };
  const lines = [];
  for (const piece of pieces) {
    if (used.has(piece)) continue;
    used.add(piece);
    lines.push(extend(extend([...piece]).reverse()));
  }
  return lines;
}

/** One step of an optimizer: what to add to the point. */
const OPTIMIZERS = {
  sgd: (rate) => (slope) => slope.map((part) => -rate * part),
  adam: (rate) => {
    let first = [0, 0];
    let second = [0, 0];
    let step = 0;
    return (slope) => {
      step += 1;
      first = slope.map((part, d) => 0.9 * first[d] + 0.1 * part);
      second = slope.map((part, d) => 0.999 * second[d] + 0.001 * part * part);
      return slope.map((_, d) => {
        const size = Math.sqrt(second[d] / (1 - 0.999 ** step)) + 1e-8;
        return (-rate * first[d]) / (1 - 0.9 ** step) / size;
      });
    };
  },
};

/** The way an optimizer takes over a field, and how it ended in words. */
function descend(field, start, optimizer, rate, steps) {
  const move = OPTIMIZERS[optimizer](rate);
  const points = [start];
  for (let step = 0; step < steps; step++) {
    const point = points[points.length - 1];
    const slope = field.slope(point);
    if (!slope.every(Number.isFinite)) return { points, ended: "stopped, the gradient is not finite" };
    const change = move(slope);
    if (change.every((part) => part === 0)) {
      return { points, ended: settled(points) ? "settled" : "stopped, the gradient is zero" };
    }
    const next = point.map((part, d) => part + change[d]);
    points.push(next);
    if (!field.contains(next)) return { points, ended: "left the plane" };
  }
  return { points, ended: settled(points) ? "settled" : "still moving" };
}

/** Has the last tenth of the steps gone nearly nowhere, compared with the whole way? */
function settled(points) {
  const recent = points.slice(-Math.max(3, Math.ceil(points.length / 10)));
  const extent = (some, d) => Math.max(...some.map((point) => point[d])) - Math.min(...some.map((point) => point[d]));
  return points.length > 5 && points[0].every((_, d) => extent(recent, d) <= 0.02 * extent(points, d));
}

/** Heights at which equal distances look equal, as the colour bands were chosen. */
function bend(scale, value) {
  return scale.softness ? Math.asinh((value - scale.centre) / scale.softness) : value;
}

function unbend(scale, height) {
  return scale.centre + scale.softness * Math.sinh(height);
}

/** Which colour band a value falls into. */
function band(levels, value) {
  let low = 0;
  let high = levels.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (levels[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Round numbers between two limits, about `count` of them. */
function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
  return found;
}

function words(value, digits = 4) {
  if (value === null || Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(Math.max(0, digits - 2)) : String(Number(value.toPrecision(digits)));
  return text.replace(/-/g, "−").replace("e+", "e");
}

function percent(share) {
  return share > 0 && share < 0.01 ? "<1 %" : `${Math.round(share * 100)} %`;
}
