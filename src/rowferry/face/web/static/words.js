// Numbers, times and addresses as people read them.

const two = (n) => String(n).padStart(2, "0");

/** 420 ms, 4.2 s, 3 m 12 s, 5 h 02 m, 12 d 3 h. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${two(whole % 60)} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} m`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

function scaled(value, step, units) {
  let unit = 0;
  while (Math.abs(value) >= step && unit < units.length - 1) {
    value /= step;
    unit += 1;
  }
  const digits = value === 0 || value >= 100 ? 0 : value >= 10 || unit === 0 ? 1 : 2;
  return `${Number(value.toFixed(digits))}${units[unit] && ` ${units[unit]}`}`;
}

/** 950, 12.4 k, 3.1 M: a count or a rate. */
export function count(value) {
  return value === null || value === undefined
    ? "–"
    : scaled(value, 1000, ["", "k", "M", "G", "T"]);
}

/** 512 B, 12.4 KiB, 3.1 MiB. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
}

/** 2026-01-31 23:59:59, in the time zone of the browser. */
export function time(ms) {
  if (!ms) return "–";
  const t = new Date(ms);
  const day = `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())}`;
  return `${day} ${clock(ms)}`;
}

/** 23:59:59. */
export function clock(ms) {
  const t = new Date(ms);
  return `${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
}

/** 12 s ago. */
export function ago(ms, now = Date.now()) {
  if (!ms) return "–";
  const passed = Math.max(0, now - ms);
  if (passed < 1500) return "just now";
  const whole = Math.round(passed / 1000) * 1000;
  const text = duration(whole).replace(/\.0 s$/, " s");
  return `${whole >= 60000 ? text.split(" ").slice(0, 2).join(" ") : text} ago`;
}

/** An address without login and options, for lists. */
export function place(uri) {
  return uri.replace(/\/\/[^@/]*@/, "//").split("?", 1)[0];
}

/** Nested settings as rows `[dotted key, text]`. */
export function flattened(value, path = "") {
  if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    return Object.entries(value).flatMap(([k, v]) => flattened(v, path ? `${path}.${k}` : k));
  }
  if (Array.isArray(value) && value.some((v) => v !== null && typeof v === "object")) {
    return value.flatMap((v, i) => flattened(v, `${path}[${i}]`));
  }
  return [[path, Array.isArray(value) ? value.join(", ") : String(value)]];
}

export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
