// Requests to the API server as the signed-in user.

const KEY = 'knarr-session';

export class ApiError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export const session = {
  get token() { return sessionStorage.getItem(KEY); },
  set token(value) { value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY); },
};

// No response came: the server is away, or the network is.
export class ConnectionError extends Error {
  constructor() {
    super('The API server did not respond.');
    this.name = 'ConnectionError';
  }
}

let onSignedOut = () => {};
let onReachable = () => {};

const PROBE_INTERVAL = 1000;
let isReachable = true;
// Says `back` when the server responds again.
const connection = new EventTarget();

// All requests learn from one probe that the server is back, instead of each from its own retries.
async function probe() {
  while (!isReachable) {
    await pause(PROBE_INTERVAL);
    await fetch('/version', { credentials: 'omit', cache: 'no-store' }).then(() => reached(true), () => {});
  }
}

function reached(now) {
  if (now === isReachable) return;
  isReachable = now;
  onReachable(now);
  if (now) connection.dispatchEvent(new Event('back'));
  else probe();
}

// Waits before a retry or the next reading, but no longer than until a server that was away is back.
export async function backoff(milliseconds, signal) {
  const over = new AbortController();
  connection.addEventListener('back', () => over.abort(), { once: true, signal: over.signal });
  signal?.addEventListener('abort', () => over.abort(), { once: true, signal: over.signal });
  await pause(milliseconds, over.signal);
  over.abort();
}

export function connectionHandlers(signedOut, reachable) {
  onSignedOut = signedOut;
  onReachable = reachable;
}

// Sends a request; throws an ApiError with the server's own words when it fails.
export async function send(path, { method = 'GET', body, type = 'application/json', accept = 'application/json', signal } = {}) {
  const headers = { Accept: accept };
  if (session.token) headers.Authorization = `Bearer ${session.token}`;
  if (body !== undefined) headers['Content-Type'] = type;
  let response;
  try {
    response = await fetch(path, {
      method, headers, signal, credentials: 'omit', redirect: 'error',
      body: body === undefined || typeof body === 'string' ? body : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    reached(false);
    throw new ConnectionError();
  }
  reached(true);
  if (response.ok) return response;
  const text = await response.text();
  if (response.status === 401) onSignedOut();
  throw new ApiError(response.status, messageOf(text) || `${response.status} ${response.statusText}`);
}

function messageOf(text) {
  try {
    return JSON.parse(text).message;
  } catch {
    return text.slice(0, 500);
  }
}

export const post = async (path, body, options) => (await send(path, { ...options, method: 'POST', body })).json();
export const get = async (path, options) => (await send(path, options)).json();
export const text = async (path, options) => (await send(path, options)).text();
export const remove = (path, body) => send(path, { method: 'DELETE', body });
export const patch = (path, body, type = 'application/merge-patch+json') => send(path, { method: 'PATCH', body, type });

// Lines of a response as they arrive; what is longer than `limit` is cut, as a container may write a line that never ends.
export async function* lines(path, { limit = Infinity, ...options }) {
  const response = await send(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const cut = (line) => (line.length > limit ? line.slice(0, limit) : line);
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read().catch((error) => { throw error.name === 'AbortError' ? error : new ConnectionError(); });
    if (done) break;
    const parts = (rest + value).split('\n');
    rest = cut(parts.pop());
    yield* parts.map(cut);
  }
  if (rest) yield rest;
}

const TABLE = 'application/json;as=Table;v=v1;g=meta.k8s.io,application/json';
const PAGE = 1000;
// Between two watches, for a server or proxy may end each one at once.
const WATCH_INTERVAL = 500;

// Reads lines that never end, each given to `onLine`, and connects again when they do, until the signal aborts.
export async function keepReading(path, options, onLine) {
  const { signal } = options;
  for (let wait = 500; !signal.aborted; wait = Math.min(wait * 2, 15000)) {
    try {
      for await (const line of lines(path, options)) {
        wait = 500;
        if (line) onLine(line);
      }
    } catch (error) {
      if (signal.aborted || error.status === 401) return;
      if (error.status && error.status < 500 && error.status !== 429) throw error;
    }
    await backoff(wait, signal);
  }
}

// Keeps a table of a kind up to date: `onChange({columns, rows, complete})`, where rows is a Map by UID; with `objects`, of
// whole objects. It lists in pages, watches, and lists again when the watch is too old, until the signal aborts.
export async function follow(path, selector, signal, onChange, { objects = false } = {}) {
  const state = { columns: [], rows: new Map(), complete: false, objects };
  let wait = 500;
  while (!signal.aborted) {
    try {
      const version = await listAll(path, selector, signal, state, onChange);
      wait = 500;
      await watchFrom(path, selector, version, signal, state, onChange);
    } catch (error) {
      if (signal.aborted || error.status === 401) return;
      if (error.status === 403 || error.status === 404 || error.status === 405) throw error;
      await backoff(wait, signal);
      wait = Math.min(wait * 2, 15000);
    }
  }
}

const form = ({ objects }) => (objects ? {} : { includeObject: 'Metadata' });
const metadata = (row) => (row.object ?? row).metadata;

// Rows without what no page shows: most of the metadata of a pod is bookkeeping, and there may be ten thousand of them.
function slim(row) {
  if (!row.object) {
    delete row.metadata.managedFields;
    return row;
  }
  const { uid, resourceVersion, name, namespace, creationTimestamp } = row.object.metadata;
  return { cells: row.cells, object: { metadata: { uid, resourceVersion, name, namespace, creationTimestamp } } };
}

async function listAll(path, selector, signal, state, onChange) {
  const rows = new Map();
  let next = '';
  let version = '';
  do {
    const query = new URLSearchParams({ limit: PAGE, ...form(state), ...selector });
    if (next) query.set('continue', next);
    const table = await get(`${path}?${query}`, { accept: state.objects ? 'application/json' : TABLE, signal });
    if (table.columnDefinitions) state.columns = table.columnDefinitions;
    for (const row of table.rows ?? table.items ?? []) rows.set(metadata(row).uid, slim(row));
    next = table.metadata.continue ?? '';
    version = table.metadata.resourceVersion;
    // The first page is shown at once; later ones replace what the last list had.
    if (!state.complete) { state.rows = rows; onChange(state); }
  } while (next);
  state.rows = rows;
  state.complete = true;
  onChange(state);
  return version;
}

async function watchFrom(path, selector, version, signal, state, onChange) {
  for (;; await pause(WATCH_INTERVAL, signal)) {
    const query = new URLSearchParams({
      watch: 'true', allowWatchBookmarks: 'true', ...form(state), resourceVersion: version, ...selector,
    });
    for await (const line of lines(`${path}?${query}`, { accept: state.objects ? 'application/json' : TABLE, signal })) {
      const { type, object } = JSON.parse(line);
      if (type === 'ERROR') throw new ApiError(object.code, object.message);
      if (type === 'BOOKMARK') {
        version = object.metadata?.resourceVersion ?? object.rows?.[0]?.object?.metadata?.resourceVersion ?? version;
        continue;
      }
      for (const row of object.rows ?? [object]) {
        const { uid, resourceVersion } = metadata(row);
        version = resourceVersion;
        if (type === 'DELETED') state.rows.delete(uid);
        else state.rows.set(uid, slim(row));
      }
      onChange(state);
    }
  }
}

// Calls `draw` soon after it was asked to, once for all that changed meanwhile. What takes long to draw is drawn less often, so
// that a cluster that changes all the time leaves time for the user.
export function soon(draw, signal, delay = 150) {
  let scheduled = false;
  let took = 0;
  return () => {
    if (scheduled) return;
    scheduled = true;
    setTimeout(() => {
      scheduled = false;
      if (signal.aborted) return;
      const begin = performance.now();
      draw();
      took = performance.now() - begin;
    }, Math.max(delay, took * 5));
  };
}

export function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener('abort', () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

// A WebSocket with the session's token, which browsers can only send as a subprotocol.
export function socket(path, protocol) {
  const token = btoa(session.token).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
  const url = new URL(path, location.href);
  url.protocol = url.protocol.replace('http', 'ws');
  const opened = new WebSocket(url, [protocol, `base64url.bearer.authorization.k8s.io.${token}`]);
  opened.binaryType = 'arraybuffer';
  return opened;
}
