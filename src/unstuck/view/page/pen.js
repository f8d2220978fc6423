// What charts share: the colours of the style sheet, scales, ticks, ramps of colours.

const FONT = "11.5px ui-sans-serif, system-ui, -apple-system, 'Segoe UI', sans-serif";
const BOLD = `600 ${FONT}`;

/** The colours of the theme, read once until it changes. */
function look() {
  if (look.known) return look.known;
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["ground", "card", "ink", "muted", "line", "grid", "accent", "band", "error", "warning", "advice", "good", "neutral", "empty"];
  look.known = Object.fromEntries(names.map((name) => [name, read(name)]));
  look.known.edge = read("band-edge");
  look.known.series = Array.from({ length: 8 }, (_, index) => read(`series-${index}`));
  look.known.dark = read("dark") === "1";
  return look.known;
}

/** From numbers to pixels. On a logarithmic scale what is not positive lies at its start. */
class Scale {
  constructor(low, high, start, end, log = false, shift = 0) {
    this.log = log;
    this.shift = shift;
    this.start = start;
    this.end = end;
    this.low = low;
    this.high = high > low ? high : low + (Math.abs(low) || 1);
    [this.from, this.to] = [this.bent(this.low), this.bent(this.high)];
  }

  bent(value) {
    return this.log ? Math.log10(Math.max(value + this.shift, Number.MIN_VALUE)) : value;
  }

  at(value) {
    return this.start + ((this.bent(value) - this.from) / (this.to - this.from)) * (this.end - this.start);
  }

  back(pixel) {
    const bent = this.from + ((pixel - this.start) / (this.end - this.start)) * (this.to - this.from);
    return this.log ? 10 ** bent - this.shift : bent;
  }

  ticks(room) {
    const count = Math.max(2, Math.floor(room));
    if (this.log && this.to - this.from > 0.6) return this.decades(count);
    const [low, high] = [this.low, this.high];
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].find((size) => size * power >= rough * 0.999) * power;
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high * (1 + 1e-12) + 1e-300; n++) found.push(Number((n * step).toPrecision(12)));
    return found;
  }

  decades(count) {
    const [first, last] = [Math.ceil(this.from - 1e-9), Math.floor(this.to + 1e-9)];
    const every = Math.ceil((last - first + 1) / count);
    const found = [];
    const between = (last - first + 2) * 3 <= count + 1 ? [1, 2, 5] : (last - first + 1) * 2 <= count ? [1, 3] : [1];
    for (let power = first - 1; power <= last; power += power < first ? 1 : every) {
      for (const part of every > 1 || power % 1 ? [1] : between) {
        const value = part * 10 ** power;
        if (value + this.shift >= 10 ** this.from * 0.999 && value <= this.high * 1.001) found.push(value);
      }
    }
    return found;
  }
}

/** Ticks in as few digits as they need. */
function spelled(ticks, unit = "") {
  const shown = unit === "%" ? ticks.map((tick) => 100 * tick) : ticks;
  const step = shown.length > 1 ? Math.min(...shown.slice(1).map((tick, index) => tick - shown[index])) : 1;
  for (let digits = 1; digits < 8; digits++) {
    if (shown.every((tick) => Math.abs(Number(tick.toPrecision(digits)) - tick) < 1e-3 * step)) return shown.map((tick) => words(tick, digits));
  }
  return shown.map((tick) => words(tick, 8));
}

/** The text, shortened in its middle until it fits: a layer's name begins with its block and ends with its part. */
function fitting(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  const shortened = (kept) => `${text.slice(0, Math.ceil(kept * 0.56))}…${text.slice(text.length - Math.floor(kept * 0.44))}`;
  let [low, high] = [2, text.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(shortened(middle)).width <= width) low = middle;
    else high = middle - 1;
  }
  return shortened(low);
}

/** Colours for a share from 0 to 1, as 256 packed pixels. */
function ramp(stops) {
  const parse = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const parts = stops.map(parse);
  return Uint32Array.from({ length: 256 }, (_, index) => {
    const place = (index / 255) * (parts.length - 1);
    const left = Math.min(Math.floor(place), parts.length - 2);
    const [red, green, blue] = parts[left].map((one, k) => Math.round(one + (place - left) * (parts[left + 1][k] - one)));
    return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  });
}

const asColour = (packed) => `rgb(${packed & 255},${(packed >> 8) & 255},${(packed >> 16) & 255})`;

/** Safe for colour-blind eyes: blue to orange around a neutral middle, or one hue after the other by lightness. */
function ramps() {
  const dark = look().dark;
  return {
    turning: ramp(dark
      ? ["#8fd6ff", "#2f8fd0", "#243d52", "#2a2e36", "#4d3a2b", "#e08030", "#ffd08a"]
      : ["#08306b", "#2f7fbd", "#cfe3f1", "#f3f1ec", "#f8dcc0", "#d9701e", "#6e2503"]),
    rising: ramp(dark
      ? ["#161c2c", "#24436b", "#3b6f8f", "#6f9a87", "#b9bd6a", "#ffe86b"]
      : ["#fbf5d7", "#d9d68f", "#8fb78d", "#4a8c94", "#2b5680", "#1a2350"]),
    share: ramp(dark
      ? ["#1b1f27", "#3a2a4a", "#7a3a78", "#c8558a", "#ff9d7a", "#ffe3a8"]
      : ["#faf8f5", "#ecd3dd", "#d490b4", "#a34c90", "#642a6d", "#2f1540"]),
  };
}
