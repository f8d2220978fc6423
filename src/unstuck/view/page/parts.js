// Small things that every part of the page needs: elements, numbers in words, copying.

/** An element. Text is always text: whatever a script, a class or a layer is called, it stays inert. */
function el(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key in node && typeof value === "boolean") node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

function icon(name) {
  const paths = {
    image: "M2.5 3.5h11v9h-11zM3 11l3-3 2.5 2.5L11 8l2.5 2.5M10.2 6a.8.8 0 1 0 0-.01",
    table: "M2.5 3.5h11v9h-11zM2.5 6.5h11M2.5 9.5h11M6.5 3.5v9",
    axis: "M3 2.5v11h10.5M5.5 10.5c3 0 5-2 6.5-7",
    copy: "M5.5 5.5h8v8h-8zM3 10.5h-.5v-8h8V3",
    close: "M4 4l8 8M12 4l-8 8",
    left: "M10 3L5 8l5 5",
    right: "M6 3l5 5-5 5",
    menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
    theme: "M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5v11",
    help: "M6 6.2a2 2 0 1 1 2.8 1.8c-.6.3-.8.6-.8 1.4M8 11.6v.1",
  };
  const drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  drawing.setAttribute("viewBox", "0 0 16 16");
  drawing.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", paths[name]);
  drawing.append(path);
  return drawing;
}

function button(label, picture, onclick, more = {}) {
  return el("button.icon", { type: "button", title: label, "aria-label": label, onclick, ...more }, icon(picture));
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** 0.000123 as 1.23e-4, 12345 as 12,345: what a person reads off at a glance. */
function words(value, digits = 3) {
  if (!isNumber(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(Math.max(0, digits - 1)).replace(/\.?0+e/, "e").replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

function withUnit(value, unit) {
  if (!isNumber(value)) return "–";
  if (unit === "%") return `${words(100 * value)} %`;
  return unit ? `${words(value)} ${unit}` : words(value);
}

const plain = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;

function duration(seconds) {
  if (!isNumber(seconds)) return "";
  if (seconds < 90) return `${words(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A time as people write it, where they are. */
function dated(text) {
  const time = new Date(text);
  return text && !Number.isNaN(time.getTime()) ? time.toLocaleString("en", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" }) : "";
}

const fileName = (path) => (path ?? "").split(/[\\/]/).pop();

function say(sentence) {
  const toast = document.getElementById("toast");
  toast.textContent = sentence;
  toast.classList.add("shown");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => toast.classList.remove("shown"), 2600);
}

async function copyText(text, name) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    save(new Blob([text], { type: "text/plain" }), name);
  }
}

async function copyPicture(canvas, name) {
  const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
  try {
    await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
    say("Copied as a picture.");
  } catch {
    save(blob, `${name}.png`);
  }
}

/** Where the browser refuses the clipboard, the file is saved. */
function save(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name.replace(/[^\w.-]+/g, "-") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  say(`Saved as ${link.download}.`);
}

/** A cell of CSV; a spreadsheet takes no text of a record for a formula. */
function cell(value) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const csv = (rows) => rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";

/** Numbers of a matrix as the record's page holds them: two bytes each. */
function unpacked(matrix) {
  const bytes = Uint8Array.from(atob(matrix.cells), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Uint16Array.from({ length: bytes.length / 2 }, (_, index) => view.getUint16(2 * index, true));
}

const MISSING = 65535;

function valueOf(matrix, cellNumber) {
  if (cellNumber === MISSING || cellNumber === undefined) return null;
  const part = cellNumber / (MISSING - 1);
  if (!matrix.log) return matrix.low + part * (matrix.high - matrix.low);
  return matrix.low * (matrix.high / matrix.low) ** part;
}
