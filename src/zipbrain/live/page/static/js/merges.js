// The merge map: which token of the last decided window ended in which.
import { FONT, colours, fit } from "./paint.js";
import { timeOfDay } from "./words.js";

export class MergeMap {
  constructor(dialog, canvas, words) {
    Object.assign(this, { dialog, canvas, words, map: null, over: -1, epoch: null });
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => { this.over = -1; this.paint(); });
  }

  open(map, epoch) {
    this.map = map;
    this.epoch = epoch;
    const { source } = map;
    const kept = source.filter((target, token) => target === token).length;
    const gone = source.filter((target) => target < 0).length;
    const joined = source.length - kept - gone;
    const look = map.looked_twice ? " This window looked twice: its answer is the uncompressed network's." : "";
    const span = `${timeOfDay(this.epoch, map.start_s)} to ${timeOfDay(this.epoch, map.stop_s)}`;
    this.words.textContent = `Window ${span}: ${source.length} tokens, ${kept} kept, ${joined} joined another${gone ? `, ${gone} dropped` : ""}.${look}`;
    this.canvas.setAttribute("aria-label", this.words.textContent);
    if (!this.dialog.open) this.dialog.showModal();
    this.paint();
  }

  layout() {
    const { context, ratio, width, height } = fit(this.canvas);
    const left = 44 * ratio, foot = 18 * ratio;
    const { patches, electrodes } = this.map;
    return { context, ratio, left, foot, wide: (width - left) / patches, tall: (height - foot) / electrodes.length, width, height };
  }

  point({ offsetX, offsetY }) {
    if (!this.map) return;
    const { ratio, left, wide, tall } = this.layout();
    const column = Math.floor((offsetX * ratio - left) / wide), row = Math.floor((offsetY * ratio) / tall);
    const isInside = column >= 0 && column < this.map.patches && row >= 0 && row < this.map.electrodes.length;
    this.over = isInside ? row * this.map.patches + column : -1;
    this.paint();
  }

  paint() {
    if (!this.map) return;
    const theme = colours();
    const { context, ratio, left, wide, tall, width, height } = this.layout();
    const { source, patches, electrodes, start_s: start, stop_s: stop } = this.map;
    const group = this.over >= 0 ? source[this.over] : -2;
    context.clearRect(0, 0, width, height);
    const centre = (token) => [left + ((token % patches) + 0.5) * wide, (Math.floor(token / patches) + 0.5) * tall];
    source.forEach((target, token) => {
      const [x, y] = centre(token);
      const [w, h] = [wide - 2 * ratio, tall - 2 * ratio];
      const isIn = group === -2 || target === group;
      context.globalAlpha = isIn ? 1 : 0.3;
      context.fillStyle = target === token ? theme.accent : target < 0 ? theme.sheet : theme.tint;
      context.fillRect(x - w / 2, y - h / 2, w, h);
      context.lineWidth = ratio;
      context.strokeStyle = target < 0 ? theme.hatch : theme.accent;
      context.strokeRect(x - w / 2, y - h / 2, w, h);
    });
    source.forEach((target, token) => {
      if (target < 0 || target >= source.length || target === token) return;
      context.globalAlpha = group === -2 ? 0.55 : target === group ? 1 : 0.08;
      context.strokeStyle = theme.ink;
      context.lineWidth = (target === group ? 2 : 1) * ratio;
      const [x, y] = centre(token), [toX, toY] = centre(target);
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(toX, toY);
      context.stroke();
    });
    context.globalAlpha = 1;
    context.fillStyle = theme.quiet;
    context.font = `${Math.min(11.5 * ratio, tall * 0.8)}px ${FONT}`;
    context.textBaseline = "middle";
    electrodes.forEach((name, row) => context.fillText(name, 0, (row + 0.5) * tall));
    context.font = `${11 * ratio}px ${FONT}`;
    context.textBaseline = "alphabetic";
    context.fillText("0 s", left, height - 4 * ratio);
    context.textAlign = "right";
    context.fillText(`${Math.round(10 * (stop - start)) / 10} s`, width, height - 4 * ratio);
    context.textAlign = "left";
  }
}
