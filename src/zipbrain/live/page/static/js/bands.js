// Stretches of the session with an alarm, a mark or no decision.
export function findBands(happenings, right) {
  const bands = [];
  const open = {};
  for (const line of happenings) {
    if (line.line === "event" && line.category === "physiological") {
      if (line.kind === "raised") open[line.alarm] = line.time_s;
      else if (["ended", "cleared", "latched"].includes(line.kind) && line.alarm in open) {
        bands.push({ start: open[line.alarm], stop: line.time_s, kind: "alarm" });
        delete open[line.alarm];
      }
    }
    if (line.line === "mark") bands.push({ start: line.time_s, stop: line.stop_s ?? line.time_s, kind: "mark", label: line.label });
    if (line.line === "gap" && typeof line.time_s === "number") bands.push({ start: line.time_s, stop: line.time_s + (line.seconds ?? 0), kind: "none" });
  }
  for (const start of Object.values(open)) bands.push({ start, stop: right, kind: "alarm" });
  return bands;
}

export const isFalseMark = (band) => band.kind === "mark" && band.label === "false alarm";

// How many alarms there were, and how many of them a reviewer marked as false.
export function countAlarms(bands) {
  const alarms = bands.filter((band) => band.kind === "alarm");
  const marks = bands.filter(isFalseMark);
  const refuted = alarms.filter((one) => marks.some((mark) => mark.start <= one.stop && one.start <= mark.stop));
  return { alarms: alarms.length, refuted: refuted.length };
}
