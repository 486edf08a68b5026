// The last hour at a glance: amplitude, alarms, marks and gaps; dragging it scrolls back.
import { isFalseMark } from "./bands.js";
import { FONT, colours, fit, hatch } from "./paint.js";
import { age, roundTimes, shortTime, timeOfDay } from "./words.js";

const TIMES = 16; // pixels above and below, for the times of marks and of the clock
const TICK = 600; // seconds between two times of the clock

export class Strip {
  constructor(box, onMove) {
    this.box = box;
    this.canvas = box.querySelector("canvas");
    Object.assign(this, { seconds: [], bands: [], right: 0, kept: 3600, view: [0, 10], epoch: null });
    let isDown = false;
    const move = ({ clientX }) => {
      const { left, width } = box.getBoundingClientRect();
      onMove(this.right - this.kept * (1 - (clientX - left) / width));
    };
    box.addEventListener("pointerdown", (event) => {
      isDown = true;
      box.setPointerCapture(event.pointerId);
      move(event);
    });
    box.addEventListener("pointermove", (event) => isDown && move(event));
    for (const end of ["pointerup", "pointercancel"]) box.addEventListener(end, () => { isDown = false; });
  }

  say() {
    const [start, stop] = this.view.map(Math.round);
    this.box.setAttribute("aria-valuemin", Math.round(Math.max(this.right - this.kept, 0)));
    this.box.setAttribute("aria-valuemax", Math.round(this.right));
    this.box.setAttribute("aria-valuenow", Math.min(stop, Math.round(this.right)));
    const ago = this.right - stop;
    this.box.setAttribute("aria-valuetext", ago < 2 ? "live" : `${timeOfDay(this.epoch, start)}, ${age(ago)} ago`);
  }

  paint() {
    const theme = colours();
    const { context, ratio, width, height } = fit(this.canvas);
    const x = (seconds) => (1 - (this.right - seconds) / this.kept) * width;
    const sheet = { context, ratio, width, theme, x, top: TIMES * ratio, floor: height - TIMES * ratio };
    context.clearRect(0, 0, width, height);
    context.fillStyle = theme.faint;
    context.fillRect(0, sheet.top, width, sheet.floor - sheet.top);
    this.paintAmplitude(sheet);
    this.paintBands(sheet);
    this.paintView(sheet);
    context.font = `${11 * ratio}px ${FONT}`;
    context.textBaseline = "middle";
    this.paintMarkTimes(sheet);
    this.paintClock(sheet, height);
  }

  paintAmplitude({ context, width, theme, x, top, floor }) {
    const known = this.seconds.filter(([, value]) => value !== null).map(([, value]) => value).sort((a, b) => a - b);
    const most = 1.4 * (known[Math.floor(0.98 * known.length)] ?? 1) || 1;
    context.fillStyle = theme.weak;
    const wide = Math.max(width / this.kept, 1);
    for (const [second, value] of this.seconds) {
      const at = x(second);
      if (at < -wide || value === null) continue;
      const tall = Math.min(value / most, 1) * (floor - top);
      context.fillRect(at, floor - tall, wide + 0.5, tall);
    }
  }

  paintBands({ context, ratio, theme, x, top, floor }) {
    for (const { start, stop, kind } of this.bands) {
      const from = x(start), long = Math.max(x(stop) - from, 2 * ratio);
      if (from + long < 0) continue;
      if (kind === "none") hatch(context, from, floor - 9 * ratio, long, 9 * ratio, theme.quiet);
      else {
        context.fillStyle = kind === "alarm" ? theme.red : theme.accent;
        context.fillRect(from, top, long, (kind === "alarm" ? 6 : 3) * ratio);
        context.globalAlpha = 0.25;
        context.fillRect(from, top, long, floor - top);
        context.globalAlpha = 1;
      }
    }
  }

  paintView({ context, ratio, width, theme, x, top, floor }) {
    const from = x(this.view[0]), long = Math.max(x(this.view[1]) - from, 5 * ratio);
    context.strokeStyle = theme.ink;
    context.lineWidth = 2 * ratio;
    context.strokeRect(Math.min(from, width - long) + ratio, top + ratio, long - 2 * ratio, floor - top - 2 * ratio);
  }

  // When alarms and marks began: alarms first, then the newest; a time that would lie over another one is left out.
  paintMarkTimes({ context, ratio, width, theme, x, top }) {
    const taken = [];
    const isFree = (from, stop) => from >= 0 && stop <= width && taken.every(([a, b]) => stop + 6 * ratio < a || from > b + 6 * ratio);
    context.textAlign = "left";
    const marks = this.bands.filter(({ kind }) => kind !== "none");
    const isAlarm = (band) => band.kind === "alarm";
    for (const band of marks.sort((a, b) => isAlarm(b) - isAlarm(a) || b.start - a.start)) {
      const sign = isAlarm(band) ? "▲" : isFalseMark(band) ? "✕" : "●";
      const words = `${sign} ${shortTime(this.epoch, band.start)}`;
      const long = context.measureText(words).width, at = x(band.start);
      const from = [at, at - long].find((one) => isFree(one, one + long)); // to the right of where it began, or to the left
      if (at < 0 || from === undefined) continue;
      context.fillStyle = isAlarm(band) ? theme.red : theme.accent;
      context.fillText(words, from, top / 2);
      taken.push([from, from + long]);
    }
  }

  paintClock({ context, ratio, width, theme, x, floor }, height) {
    context.fillStyle = theme.quiet;
    context.textAlign = "center";
    for (const at of roundTimes(this.epoch, this.right - this.kept, this.right, TICK)) {
      const words = shortTime(this.epoch, at), half = context.measureText(words).width / 2;
      context.fillRect(x(at), floor, ratio, 3 * ratio);
      if (x(at) >= half && x(at) + half <= width) context.fillText(words, x(at), (floor + height) / 2 + ratio);
    }
  }
}
