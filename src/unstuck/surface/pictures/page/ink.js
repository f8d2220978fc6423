// How things look on a canvas: every line and symbol has a dark and a light part, so it reads on any ground.

const LIGHT = "#ffffff";
const DARK = "#14141c";
const PATHS = {
  sgd: { name: "SGD", colour: "#ff4f5e", rim: LIGHT, dash: [] },
  adam: { name: "Adam", colour: LIGHT, rim: DARK, dash: [7, 5] },
};

/** The colours of the style sheet, light or dark as the reader prefers. */
function theme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "muted", "line", "ground", "hatch", "hatched", "loss", "gradient", "dead", "desired"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** A line with a rim. */
function rimmed(pen, points, { colour, rim, width, dash = [] }) {
  pen.lineJoin = pen.lineCap = "round";
  trace(pen, points);
  pen.setLineDash([]);
  pen.strokeStyle = rim;
  pen.globalAlpha = 0.75;
  pen.lineWidth = width + 2;
  pen.stroke();
  pen.globalAlpha = 1;
  pen.setLineDash(dash);
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.stroke();
  pen.setLineDash([]);
}

/** Words around a point, moved as little as keeps them inside the box. */
function label(pen, text, left, top, box) {
  pen.font = "600 12px system-ui, sans-serif";
  pen.textAlign = "center";
  const half = pen.measureText(text).width / 2 + 6;
  const x = Math.min(Math.max(left, box.x + half), box.x + box.width - half);
  const y = Math.min(Math.max(top, box.y + 12), box.y + box.height - 12);
  pen.textBaseline = "middle";
  pen.lineJoin = "round";
  pen.lineWidth = 3.5;
  pen.strokeStyle = DARK;
  pen.globalAlpha = 0.8;
  pen.strokeText(text, x, y);
  pen.globalAlpha = 1;
  pen.fillStyle = LIGHT;
  pen.fillText(text, x, y);
}

function hatching(pen, { hatch, hatched }) {
  const tile = document.createElement("canvas");
  const brush = sized(tile, 8, 8);
  brush.fillStyle = hatched;
  brush.fillRect(0, 0, 8, 8);
  brush.strokeStyle = hatch;
  brush.lineWidth = 1.2;
  for (const shift of [-8, 0, 8]) {
    trace(brush, [[shift - 1, 9], [shift + 9, -1]]);
    brush.stroke();
  }
  const pattern = pen.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / (window.devicePixelRatio || 1)));
  return pattern;
}

const SHAPES = {
  minimum: (pen) => pen.arc(0, 0, 5, 0, 7),
  maximum: (pen) => polygon(pen, [[0, -6.5], [6, 4.5], [-6, 4.5]]),
  saddle: (pen) => polygon(pen, [[0, -2], [3, -5], [5, -3], [2, 0], [5, 3], [3, 5], [0, 2], [-3, 5], [-5, 3], [-2, 0], [-5, -3], [-3, -5]]),
  degenerate: (pen) => polygon(pen, [[0, -6], [6, 0], [0, 6], [-6, 0]]),
  hole: (pen) => pen.rect(-4, -4, 8, 8),
  mark: (pen) => polygon(pen, Array.from({ length: 10 }, (_, k) => {
    const radius = k % 2 ? 3.8 : 8.5;
    return [radius * Math.sin((k * Math.PI) / 5), -radius * Math.cos((k * Math.PI) / 5)];
  })),
};

function polygon(pen, corners) {
  corners.forEach(([x, y], index) => (index ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.closePath();
}

/** A stationary point, an operating point, or a hole in the surface. */
function symbol(pen, kind, x, y) {
  pen.save();
  pen.translate(x, y);
  pen.lineJoin = "round";
  pen.beginPath();
  SHAPES[kind](pen);
  pen.lineWidth = 3.5;
  pen.strokeStyle = kind === "mark" ? LIGHT : DARK;
  pen.stroke();
  pen.fillStyle = { mark: "#ff4f5e", degenerate: "#8d8d99", hole: "#dcdce2" }[kind] ?? LIGHT;
  pen.fill();
  pen.restore();
}

/** The name of an operating point, if it has one, above its symbol or below it at the upper edge. */
function markName(pen, name, [x, y], box) {
  if (name) label(pen, name, x, y - box.y < 30 ? y + 18 : y - 18, box);
}

/** The ring the reader drags. */
function handle(pen, x, y) {
  for (const [radius, width, colour] of [[9, 5.5, DARK], [9, 3, LIGHT], [9, 1.6, "#ff4f5e"]]) {
    pen.beginPath();
    pen.arc(x, y, radius, 0, 7);
    pen.lineWidth = width;
    pen.strokeStyle = colour;
    pen.stroke();
  }
}

/** Frame, ticks and names around a box. */
function frame(pen, box, look, { across, up, acrossTicks, upTicks }) {
  pen.font = "12px system-ui, sans-serif";
  pen.fillStyle = look.muted;
  pen.strokeStyle = look.line;
  pen.lineWidth = 1;
  pen.strokeRect(box.x - 0.5, box.y - 0.5, box.width + 1, box.height + 1);
  pen.textAlign = "center";
  pen.textBaseline = "top";
  for (const [x, text] of acrossTicks) pen.fillText(text, x, box.y + box.height + 6);
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const [y, text] of upTicks) pen.fillText(text, box.x - 7, y);
  pen.fillStyle = look.ink;
  pen.font = "600 12.5px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.textBaseline = "bottom";
  if (across) pen.fillText(across, box.x + box.width / 2, box.y + box.height + 38);
  if (!up) return;
  pen.save();
  pen.translate(4, box.y + box.height / 2);
  pen.rotate(-Math.PI / 2);
  pen.textBaseline = "top";
  pen.fillText(up, 0, 0);
  pen.restore();
}
