// The connection to a session: comes back by itself, and knows how old what arrived last is.
const FIRST_WAIT = 0.3, LONGEST_WAIT = 2; // seconds between two attempts
export const STALE = 1.5; // seconds without a message until the page says so

export const now = () => performance.now() / 1000;

export class Link {
  constructor(path, { hello, message }) {
    this.path = path;
    this.heard = { hello, message };
    this.last = -Infinity; // when the newest message came
    this.base = Infinity; // the smallest difference seen between our clock and the sender's
    this.lag = 0; // seconds that messages are late beyond the fastest one
    this.wait = FIRST_WAIT;
    this.begun = now();
    this.open();
    addEventListener("online", () => this.socket.close());
  }

  open() {
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${this.path}`);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    let deadline = setTimeout(() => socket.close(), 4000);
    socket.onmessage = ({ data }) => {
      clearTimeout(deadline);
      deadline = setTimeout(() => socket.close(), 4000); // a connection that hangs is no connection
      this.wait = FIRST_WAIT;
      this.last = now();
      if (typeof data === "string") {
        this.base = Infinity;
        this.heard.hello(JSON.parse(data));
      } else {
        const { header, rows } = unpack(data);
        const difference = this.last - header.sent;
        this.base = Math.min(this.base + 1e-5, difference);
        this.lag = difference - this.base;
        this.heard.message(header, rows);
      }
    };
    socket.onclose = () => {
      clearTimeout(deadline);
      setTimeout(() => this.open(), 1000 * this.wait);
      this.wait = Math.min(2 * this.wait, LONGEST_WAIT);
    };
  }

  get silence() {
    return now() - Math.max(this.last, this.begun);
  }

  get isFresh() {
    return this.last > 0 && now() - this.last < STALE;
  }
}

export function unpack(data) {
  const [length, rows] = new Uint32Array(data, 0, 2);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 8, length)));
  return { header, rows: new Float32Array(data, 8 + length), count: rows };
}

// The switch that covers a page whose script hangs.
export function keepBeating() {
  const cover = document.getElementById("frozen");
  let is = false;
  const beat = () => { is = !is; cover.className = `frozen ${is ? "beat-a" : "beat-b"}`; };
  setInterval(beat, 500);
  document.addEventListener("visibilitychange", beat);
  beat();
}
