// Numbers, times and facts as words.
export const percent = (p) => (p === null || p === undefined ? "–" : p >= 0.995 && p < 1 ? ">99 %" : `${Math.round(100 * p)} %`);

export function age(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export function milliseconds(seconds) {
  if (typeof seconds !== "number") return "–";
  return seconds < 0.995 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`;
}

export const count = (n) => (typeof n === "number" ? n.toLocaleString("en") : "–");

const two = (n) => String(n).padStart(2, "0");

export function elapsed(seconds) {
  const whole = Math.max(Math.floor(seconds), 0);
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

// Time of day of a moment of the stream, if it is known when that was.
export function timeOfDay(epoch, seconds) {
  if (epoch === null || typeof seconds !== "number") return typeof seconds === "number" ? elapsed(seconds) : "";
  const date = new Date(1000 * (epoch + seconds));
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

// Moments of the stream between two others that are at round times of day, or at round times of a stream without one.
export function roundTimes(epoch, low, high, step) {
  const shift = epoch === null ? 0 : epoch - 60 * new Date(1000 * epoch).getTimezoneOffset();
  const found = [];
  for (let at = Math.ceil((low + shift) / step) * step - shift; at <= high; at += step) if (at >= 0) found.push(at);
  return found;
}

// Hours and minutes of such a moment.
export const shortTime = (epoch, seconds) => timeOfDay(epoch, seconds + 0.01).slice(0, -3);

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

const KINDS = {
  raised: "alarm", ended: "alarm over, not acknowledged", latched: "alarm over, not acknowledged", cleared: "over", acknowledged: "acknowledged",
  kept: "not acknowledged before the restart", lapsed: "not acknowledged before the restart, and no latching rule has this name now",
  changed: "changed", paused: "alarms paused", resumed: "alarms resumed", refused: "refused",
};

// A line of the journal for a person, and how it is drawn.
export function journalWords(line) {
  const by = line.by ? `, by ${line.by}` : "";
  const long = typeof line.seconds === "number" ? `, ${age(line.seconds)}` : "";
  switch (line.line) {
    case "event": {
      const what = KINDS[line.kind] ?? line.kind;
      if (line.kind === "raised") return [`${line.category === "technical" ? "Technical alarm" : "Alarm"}: ${line.alarm}${line.words ? ` (${line.words})` : ""}`, "raised"];
      const words = line.words && ["changed", "paused", "refused"].includes(line.kind) ? `: ${line.words}` : "";
      return [`${line.alarm ? `${capital(line.alarm)}: ${what}` : capital(what)}${words}${by}`, line.kind === "lapsed" ? "raised" : ""];
    }
    case "mark": return [`Marked as ${line.label}, ${age((line.stop_s ?? line.time_s) - line.time_s)}${by}`, ""];
    case "gap": return [`Gap${long}`, ""];
    case "clock": return [["duplicated", "jumbled", "late"].includes(line.finding) ? `Samples ${line.finding}: ${line.samples}` : `Clock: ${line.finding ?? "a jump"}${long}`, ""];
    case "source": return [`Source ${line.state ?? ""}`, ""];
    case "skipped": return ["Window skipped: the model is late", ""];
    case "session": return ["Session began", ""];
    case "closed": return ["Session ended", ""];
    case "lost": return [`Lines that could not be written: ${line.lines}`, "raised"];
    case "torn": return ["An earlier session was cut off", ""];
    default: return [line.line, ""];
  }
}
