// What the alarm says: one thing at a time, the gravest first.
import { STALE } from "./link.js";
import { age, capital, elapsed, percent, timeOfDay } from "./words.js";

export const ICONS = { none: "✓", physiological: "▲", technical: "◆", latched: "△", acknowledged: "△", paused: "‖", stopped: "■", lost: "✕" };
export const LATE = 3; // seconds without samples

const byState = (alarms, category, state) => alarms.filter((one) => one.category === category && one.state === state);

// {kind, title, detail} of a session; `facts`: session, alive, failure, closed, alarms, pausedUntil, time, samplesAge, source, epoch, raised, newest
export function judge(facts) {
  if (facts.failure) return { kind: "stopped", title: "Can't be read", detail: facts.failure };
  if (!facts.session) return { kind: "stopped", title: "No session", detail: "Nothing has run in this folder yet." };
  if (!facts.alive) {
    const title = facts.closed ? "Session ended" : "Session stopped";
    return { kind: "stopped", title, detail: `Nothing is watched. The newest signal is ${age(facts.samplesAge)} old. ${capital(lastAlarm(facts))}` };
  }
  const alarms = facts.alarms ?? [];
  const clock = (seconds) => timeOfDay(facts.epoch, seconds);
  const ago = (seconds) => age(Math.max(facts.time - seconds, 0));
  const at = (one) => `since ${clock(one.since_s)} (${ago(one.since_s)})`;
  const ended = (one) => `ended ${clock(one.since_s)}, ${ago(one.since_s)} ago`;
  const began = (one) => facts.raised?.alarm === one.name && `began ${clock(facts.raised.time_s)}`;
  const join = (...parts) => parts.flat().filter(Boolean).join(" · ");
  const technical = byState(alarms, "technical", "on");
  const others = (shown) => technical.filter((one) => one !== shown).map((one) => capital(one.words || one.name));
  const paused = typeof facts.pausedUntil === "number" && facts.pausedUntil > facts.time;
  const pause = paused && `alarms paused for ${elapsed(facts.pausedUntil - facts.time).slice(2)} more`;
  const last = lastAlarm(facts);
  const on = byState(alarms, "physiological", "on");
  if (on.length && !paused) return { kind: "physiological", title: `Alarm: ${on.map((one) => one.name).join(", ")}`, detail: join(at(on[0]), others()) };
  const isSilent = facts.samplesAge > LATE || ["silent", "lost", "failed"].includes(facts.source);
  if (isSilent) return { kind: "technical", title: "No signal", detail: join(`for ${age(facts.samplesAge)}`, others(), pause, last) };
  if (technical.length) {
    const [first] = technical;
    return { kind: "technical", title: `Technical: ${first.name}`, detail: join(first.words, at(first), others(first), pause, last) };
  }
  const latched = byState(alarms, "physiological", "latched");
  if (paused) {
    const hidden = [...on, ...latched, ...byState(alarms, "physiological", "acknowledged")].map((one) => one.name).join(", ");
    return { kind: "paused", title: "Alarms paused", detail: join(`${elapsed(facts.pausedUntil - facts.time).slice(2)} left`, hidden && `present: ${hidden}`, last) };
  }
  if (latched.length) return { kind: "latched", title: `Past alarm: ${latched.map((one) => one.name).join(", ")}`, detail: join("not acknowledged", began(latched[0]), ended(latched[0])) };
  const known = byState(alarms, "physiological", "acknowledged");
  if (known.length) return { kind: "acknowledged", title: `${capital(known[0].name)}, acknowledged`, detail: join("still present", began(known[0]), `acknowledged ${ago(known[0].since_s)} ago`) };
  const [fault] = byState(alarms, "technical", "latched");
  if (fault) return { kind: "latched", title: `Past fault: ${fault.name}`, detail: join("not acknowledged", fault.words, ended(fault), last) };
  const seen = byState(alarms, "technical", "acknowledged").map((one) => `${one.words || one.name} (acknowledged)`);
  const undecided = !facts.newest ? "no decision yet" : facts.newest[1] === null && `no decision: ${facts.newest[3] || "undecided"}`;
  return { kind: "none", title: "No alarm", detail: join(seen, undecided, last || "no alarm in this session") };
}

// Kind and words beside the name: whether the session runs, and how old the newest signal is; `pace` times real time.
export function judgePulse(isAlive, samplesAge, pace) {
  if (!isAlive) return ["lost", "Not running"];
  if (samplesAge > STALE) return ["late", `No signal for ${age(samplesAge)}`];
  const speed = pace > 1 ? ` at ${Math.round(pace)} × speed` : "";
  return ["live", `Running${speed}, signal ${Math.max(samplesAge + 0.2, 0.2).toFixed(1)} s late`];
}

// When the last alarm began, "" for none.
function lastAlarm({ raised, epoch, time }) {
  return raised ? `last alarm ${timeOfDay(epoch, raised.time_s)} (${raised.alarm}, ${age(Math.max(time - raised.time_s, 0))} ago)` : "";
}

// Places of the classes that the first physiological alarm watches; the second of two classes where that is not known.
export function watchedClasses(state) {
  const classes = state?.session?.classes ?? [];
  const watching = (state?.alarms?.alarms ?? []).find((one) => one.category === "physiological");
  const places = (watching?.classes ?? []).map((name) => classes.indexOf(name)).filter((place) => place >= 0);
  return places.length ? places : [Math.min(1, Math.max(classes.length - 1, 0))];
}

// Thresholds of the first physiological alarm that has some, with their words.
export function thresholdsOf(state) {
  const [first] = (state?.alarms?.alarms ?? []).filter((one) => one.category === "physiological" && typeof one.threshold_on === "number");
  if (!first) return [];
  const on = { value: first.threshold_on, words: `alarm from ${percent(first.threshold_on)}`, isOn: true };
  const off = { value: first.threshold_off, words: `off below ${percent(first.threshold_off)}`, isOn: false };
  return typeof off.value === "number" ? [on, off] : [on];
}

// Sum of a point's probabilities of some classes, null for no decision.
export function shareOf(point, places) {
  if (!point || !point[1]) return null;
  return places.reduce((sum, place) => sum + (point[1][place] ?? 0), 0);
}
