// How late decisions are and how good the signal is, in a line each, and a table of every count of the session.
import { countAlarms } from "./bands.js";
import { STALE } from "./link.js";
import { age, count, milliseconds, percent } from "./words.js";

const MOST_MISSING = 0.01; // share of the samples; more than that is a warning

export class Numbers {
  constructor(decision, signal, table) {
    Object.assign(this, { decision, signal, table });
    this.shown = new Map();
  }

  // facts: state, bands, counts (of viewers), isWhole (no alarm or mark of the session is missing), isCurrent, samplesAge
  update(facts) {
    this.say(this.decision, decisionWords(facts));
    this.say(this.signal, signalWords(facts));
    this.show(rowsOf(facts));
  }

  // A line whose parts between asterisks are the values.
  say(node, [words, isBad]) {
    if (this.isShown(node, words)) return;
    node.classList.toggle("bad", isBad);
    node.replaceChildren(...words.split("*").map((part, place) => {
      const piece = document.createElement(place % 2 ? "strong" : "span");
      piece.textContent = part;
      return piece;
    }));
  }

  show(rows) {
    if (this.isShown(this.table, JSON.stringify(rows))) return;
    this.table.replaceChildren(...rows.map(([term, value, isBad]) => {
      const box = document.createElement("div");
      if (isBad) box.className = "bad";
      const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
      [dt.textContent, dd.textContent] = [term, value];
      box.append(dt, dd);
      return box;
    }));
  }

  isShown(node, text) {
    const before = this.shown.get(node);
    this.shown.set(node, text);
    return before === text;
  }
}

function decisionWords({ state, isCurrent }) {
  const { delay_s: delay = {}, counters = {} } = state;
  if (!isCurrent) return ["Decision: *not current*", true];
  if (typeof delay.shown !== "number") return ["No decision yet", false];
  const skipped = counters.skipped ?? 0;
  return [`Decision *${age(delay.shown)}* after its window ended${skipped ? `, *${count(skipped)} skipped*` : ""}`, skipped > 0];
}

function signalWords({ state, isCurrent }) {
  const found = Object.values(state.electrodes ?? {});
  if (!isCurrent) return ["Signal: *not current*", true];
  if (!found.length) return ["Signal: not known yet", false];
  const bad = found.filter((one) => one !== "good").length;
  const { dropped = 0, samples = 0 } = state.counters ?? {};
  const missing = dropped / Math.max(dropped + samples, 1);
  const share = missing < 0.001 ? "<0.1 %" : `${(100 * missing).toFixed(1)} %`;
  const electrodes = bad ? `*${bad}* electrode${bad > 1 ? "s" : ""} bad` : "all electrodes good";
  return [`Signal ${dropped ? `*${share}* missing` : "complete"}, ${electrodes}`, missing > MOST_MISSING];
}

function rowsOf({ state, bands, counts, isWhole, isCurrent, samplesAge }) {
  const { delay_s: delay = {}, counters = {} } = state;
  const { audited = 0, undecided = 0, decided = 0, gaps = 0, dropped = 0, skipped = 0 } = counters;
  const times = [delay.compute_p50, delay.compute_p95, delay.compute_max].map((seconds) => Math.round(1000 * (seconds ?? 0))).join(" · ");
  const { alarms, refuted } = countAlarms(bands);
  const hours = (decided * (state.session?.hop_s ?? 0)) / 3600;
  const perDay = hours < 1 ? "– (below 1 h)" : `${((24 * refuted) / hours).toFixed(1)}, from ${hours.toFixed(1)} h`;
  return [
    ["Signal on screen", isCurrent ? `${(samplesAge + 0.2).toFixed(1)} s late` : "not current", !isCurrent || samplesAge > STALE],
    ["Decision after its window", milliseconds(delay.shown), false],
    ["of it, the filter", milliseconds(delay.filter), false],
    ["Model: median · 95 % · longest", `${times} ms`, false],
    ["Gaps · samples dropped", `${count(gaps)} · ${count(dropped)}`, gaps > 0],
    ["Windows skipped", count(skipped), skipped > 0],
    ["Windows without a decision", `${count(undecided)} (${percent(undecided / Math.max(undecided + decided, 1))})`, false],
    ["Second looks", count(counters.looked_twice ?? 0), false],
    ["Same decision uncompressed", audited ? `${count(counters.agreeing)} of ${count(audited)}` : "not audited", false],
    ["Alarms · marked false", `${isWhole ? "" : "at least "}${count(alarms)} · ${count(refuted)}`, false],
    ["Marked false in 24 h", isWhole ? perDay : "– (only the journal's newest part was read)", false],
    ["Viewers · slow", `${count(counts.viewers ?? 0)} · ${count(counts.slow ?? 0)}`, false],
  ];
}
