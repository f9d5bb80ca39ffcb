// Turns values of the API into text for people.

const UNITS = { n: 1e-9, u: 1e-6, m: 1e-3, '': 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18 };
const BINARY = ['Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei'];

export function quantity(text) {
  const match = /^([+-]?[0-9.]+(?:e[+-]?\d+)?)([A-Za-z]*)$/.exec(text ?? '');
  if (!match) return 0;
  const power = BINARY.indexOf(match[2]);
  return Number(match[1]) * (power >= 0 ? 1024 ** (power + 1) : UNITS[match[2]] ?? 1);
}

export function bytes(count) {
  let unit = -1;
  while (count >= 1024 && unit < BINARY.length - 1) { count /= 1024; unit += 1; }
  return unit < 0 ? `${Math.round(count)} B` : `${count.toFixed(count < 10 ? 1 : 0)} ${BINARY[unit]}B`;
}

export const cores = (count) => (count < 1 ? `${Math.round(count * 1000)}m` : count.toFixed(1));

export function age(time, now = Date.now()) {
  const seconds = Math.max(0, Math.round((now - Date.parse(time)) / 1000));
  if (Number.isNaN(seconds)) return '';
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86400)}d`;
}

export function duration(micros) {
  if (micros < 1000) return `${micros} µs`;
  if (micros < 1e6) return `${(micros / 1000).toFixed(micros < 1e4 ? 1 : 0)} ms`;
  return `${(micros / 1e6).toFixed(micros < 1e7 ? 2 : 1)} s`;
}

// How a cell of a table should look.
export function tone(value) {
  const text = String(value);
  if (/^(Running|Ready|Bound|Active|True|Complete|Succeeded|Available|Completed|Established)/.test(text)) return 'good';
  if (/(Error|BackOff|Failed|NotReady|OOMKilled|Evicted|Unknown|Lost|Invalid|ErrImage)/.test(text)) return 'bad';
  if (/^(Pending|ContainerCreating|Terminating|Init:|PodInitializing|Released)/.test(text)) return 'warn';
  const ready = /^(\d+)\/(\d+)$/.exec(text);
  if (ready) return ready[1] === ready[2] ? '' : 'warn';
  return '';
}

// eslint-disable-next-line no-control-regex
const STEERING = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

// Removes escape sequences of terminals, control characters, and those that change the direction of text.
export function plain(value) {
  const text = String(value);
  // Most texts have none.
  if (text.search(STEERING) < 0) return text;
  // eslint-disable-next-line no-control-regex
  return text.replace(/\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\^_])/g, '').replace(STEERING, '');
}
