// The last hour at a glance: amplitude, alarms, marks and gaps; dragging it scrolls back.
import { colours, fit, hatch } from "./paint.js";
import { age, timeOfDay } from "./words.js";

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
    context.fillStyle = theme.faint;
    context.fillRect(0, 0, width, height);
    const known = this.seconds.filter(([, value]) => value !== null).map(([, value]) => value).sort((a, b) => a - b);
    const most = 1.4 * (known[Math.floor(0.98 * known.length)] ?? 1) || 1;
    context.fillStyle = theme.weak;
    const wide = Math.max(width / this.kept, 1);
    for (const [second, value] of this.seconds) {
      const at = x(second);
      if (at < -wide) continue;
      const tall = value === null ? 0 : Math.min(value / most, 1) * (height - 12 * ratio);
      if (value !== null) context.fillRect(at, height - tall, wide + 0.5, tall);
    }
    for (const { start, stop, kind } of this.bands) {
      const from = x(start), long = Math.max(x(stop) - from, 2 * ratio);
      if (from + long < 0) continue;
      if (kind === "none") hatch(context, from, height - 9 * ratio, long, 9 * ratio, theme.quiet);
      else {
        context.fillStyle = kind === "alarm" ? theme.red : theme.accent;
        context.fillRect(from, 0, long, (kind === "alarm" ? 8 : 4) * ratio);
        context.globalAlpha = 0.25;
        context.fillRect(from, 0, long, height);
        context.globalAlpha = 1;
      }
    }
    const from = x(this.view[0]), long = Math.max(x(this.view[1]) - from, 5 * ratio);
    context.strokeStyle = theme.ink;
    context.lineWidth = 2 * ratio;
    context.strokeRect(Math.min(from, width - long) + ratio, ratio, long - 2 * ratio, height - 2 * ratio);
    this.paintTimes(context, x, ratio, height, theme);
  }

  paintTimes(context, x, ratio, height, theme) {
    context.fillStyle = theme.quiet;
    context.font = `${10.5 * ratio}px system-ui, sans-serif`;
    context.textBaseline = "top";
    context.textAlign = "left";
    for (let ago = 3000; ago > 0; ago -= 600) {
      const at = this.right - ago;
      if (ago >= this.kept || at < 0) continue;
      context.fillRect(x(at), 0, ratio, height);
      context.fillText(`−${ago / 60} min`, x(at) + 4 * ratio, 3 * ratio);
    }
  }
}
