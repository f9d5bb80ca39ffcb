// The logs of a pod, or of all pods of a workload, in one place: those that start later too.

import { backoff, follow, get, lines } from './api.js';
import { failed, h, replace } from './dom.js';
import { plain } from './format.js';
import { find, keyOf, listPath } from './kinds.js';
import { selectorOf } from './workload.js';

const MAX_LINES = 5000;
const MAX_SHOWN = 1000;
const TAIL = 200;
const MAX_SOURCES = 40;
const DRAW_DELAY = 120;
// Characters of a line that are kept.
const MAX_LINE = 4096;

export async function show({ body, subject, signal }) {
  const view = { entries: [], filter: '', follow: true, times: false, container: '', sources: new Map(), skipped: 0, scheduled: false };
  view.box = h('div', { class: 'log', role: 'log', tabindex: 0, 'aria-label': 'Log', onscroll: () => scrolled(view) });
  view.note = h('span', { class: 'dim', role: 'status' });
  const search = h('input', { type: 'search', placeholder: 'Search', 'aria-label': 'Search the log', oninput: () => { view.filter = search.value.toLowerCase(); draw(view); } });
  view.following = h('input', { type: 'checkbox', checked: true, onchange: () => { view.follow = view.following.checked; draw(view); } });
  const times = h('input', { type: 'checkbox', onchange: () => { view.times = times.checked; draw(view); } });
  const previous = h('input', { type: 'checkbox', onchange: () => start() });
  view.choice = h('select', { 'aria-label': 'Container', onchange: () => { view.container = view.choice.value; draw(view); } }, h('option', { value: '' }, 'all containers'));
  replace(body, h('p', { class: 'row' }, search, view.choice, h('label', {}, view.following, ' follow'), h('label', {}, previous, ' previous containers'), h('label', {}, times, ' times'), view.note), view.box);
  let reading = new AbortController();
  signal.addEventListener('abort', () => reading.abort(), { once: true });
  const start = () => {
    reading.abort();
    reading = new AbortController();
    Object.assign(view, { entries: [], sources: new Map(), skipped: 0 });
    draw(view);
    return watch(view, subject, previous.checked, reading.signal).catch(failed);
  };
  await start();
}

// Who scrolls up wants to read; at the end, new lines are followed again.
function scrolled({ box, following }) {
  const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 30;
  if (following.checked !== atEnd) { following.checked = atEnd; following.dispatchEvent(new Event('change')); }
}

function watch(view, subject, previous, signal) {
  const { kind, namespace, name, object } = subject;
  if (keyOf(kind) === 'cronjobs.batch') return watchJobs(view, subject, previous, signal);
  const selector = keyOf(kind) === 'pods' ? { fieldSelector: `metadata.name=${name}` } : { labelSelector: selectorOf(kind, object) };
  return watchPods(view, namespace, selector, previous, signal);
}

// The pods of a CronJob are those of its Jobs, also of Jobs that come later.
async function watchJobs(view, { namespace, object }, previous, signal) {
  const jobs = find('jobs.batch');
  const known = new Set();
  await follow(listPath(jobs, namespace), {}, signal, ({ rows }) => {
    for (const [uid, job] of rows) {
      if (known.has(uid) || !job.metadata.ownerReferences?.some((owner) => owner.uid === object.metadata.uid)) continue;
      known.add(uid);
      watchPods(view, namespace, { labelSelector: selectorOf(jobs, job) }, previous, signal).catch(failed);
    }
  }, { objects: true });
}

// Reads the containers of all pods that a selector finds, also of those that come later.
async function watchPods(view, namespace, selector, previous, signal) {
  const root = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods`;
  const known = new Map();
  await follow(root, selector, signal, async ({ rows }) => {
    for (const [uid, controller] of known) {
      if (!rows.has(uid)) { controller.abort(); known.delete(uid); }
    }
    for (const [uid, row] of rows) {
      if (known.has(uid)) continue;
      const gone = new AbortController();
      known.set(uid, gone);
      signal.addEventListener('abort', () => gone.abort(), { once: true });
      readPod(view, `${root}/${encodeURIComponent(row.object.metadata.name)}`, previous, gone.signal).catch(failed);
    }
  });
}

async function readPod(view, path, previous, signal) {
  const pod = await get(path, { signal });
  const containers = [...(pod.spec.initContainers ?? []), ...pod.spec.containers, ...(pod.spec.ephemeralContainers ?? [])];
  await Promise.all(containers.map(({ name }) => {
    if (view.sources.size >= MAX_SOURCES) { view.skipped += 1; return undefined; }
    const source = { path, container: name, label: `${pod.metadata.name} ${name}`, last: '' };
    view.sources.set(source.label, source);
    signal.addEventListener('abort', () => { view.sources.delete(source.label); schedule(view); }, { once: true });
    offer(view, name);
    return previous ? readOnce(view, source, { previous: 'true' }, signal) : readOn(view, source, signal);
  }));
}

function offer({ choice }, name) {
  if (![...choice.options].some((option) => option.value === name)) choice.append(h('option', { value: name }, name));
}

// Follows a container over its restarts: its log ends with it, and goes on where the last line was.
async function readOn(view, source, signal) {
  let wait = 500;
  while (!signal.aborted) {
    const before = source.last;
    await readOnce(view, source, { follow: 'true', ...(before ? { sinceTime: secondOf(before) } : {}) }, signal);
    if (await isOver(source, signal)) return;
    wait = source.last === before ? Math.min(wait * 2, 10000) : 500;
    await backoff(wait, signal);
  }
}

// A pod that has finished writes no more.
async function isOver({ path, waiting }, signal) {
  const pod = await get(path, { signal }).catch(() => undefined);
  return !waiting && /^(Succeeded|Failed)$/.test(pod?.status?.phase);
}

// The second of a time, whatever the node's time zone is.
const secondOf = (time) => `${new Date(Date.parse(time)).toISOString().slice(0, 19)}Z`;

async function readOnce(view, source, options, signal) {
  const query = new URLSearchParams({ container: source.container, timestamps: 'true', ...(options.sinceTime ? {} : { tailLines: TAIL }), ...options });
  const seen = source.last;
  try {
    for await (const line of lines(`${source.path}/log?${query}`, { accept: '*/*', signal, limit: MAX_LINE })) {
      const space = line.indexOf(' ');
      const time = line.slice(0, space);
      // Lines of the second in which the last one was are sent again.
      if (time <= seen) continue;
      source.last = time;
      source.waiting = '';
      add(view, { time, label: source.label, container: source.container, text: plain(line.slice(space + 1)) });
    }
  } catch (error) {
    if (error.name === 'AbortError') return;
    source.waiting = error.message;
    schedule(view);
  }
}

function add(view, entry) {
  view.entries.push(entry);
  view.unsorted = true;
  if (view.entries.length > MAX_LINES + 500) view.entries.splice(0, view.entries.length - MAX_LINES);
  schedule(view);
}

function schedule(view) {
  if (view.scheduled) return;
  view.scheduled = true;
  setTimeout(() => { view.scheduled = false; if (view.box.isConnected) draw(view); }, DRAW_DELAY);
}

function draw(view) {
  if (view.unsorted) view.entries.sort((a, b) => (a.time < b.time ? -1 : a.time > b.time ? 1 : 0));
  view.unsorted = false;
  const fits = (entry) => (!view.container || entry.container === view.container) && (!view.filter || entry.text.toLowerCase().includes(view.filter));
  const found = view.entries.filter(fits);
  const labelled = view.sources.size > 1;
  replace(view.box, found.slice(-MAX_SHOWN).map((entry) => h('div', { title: entry.time },
    view.times && h('span', { class: 'time' }, `${entry.time.slice(0, 23)}  `), labelled && h('span', { class: 'source' }, `${entry.label}  `), marked(entry.text, view.filter))));
  const waiting = [...view.sources.values()].filter((source) => source.waiting);
  replace(view.note, [
    `${view.sources.size} containers`, view.filter && `${found.length} lines match`, found.length > MAX_SHOWN && `the last ${MAX_SHOWN} are shown`,
    view.skipped > 0 && `${view.skipped} more are not read`, view.entries.length === 0 && waiting[0] && plain(waiting[0].waiting),
  ].filter(Boolean).join(', '));
  if (view.follow) view.box.scrollTop = view.box.scrollHeight;
}

// The text with each occurrence of the search text marked.
function marked(text, filter) {
  if (!filter) return text;
  const parts = [];
  const lower = text.toLowerCase();
  let from = 0;
  for (let at = lower.indexOf(filter); at >= 0; at = lower.indexOf(filter, from)) {
    parts.push(text.slice(from, at), h('mark', {}, text.slice(at, at + filter.length)));
    from = at + filter.length;
  }
  return [...parts, text.slice(from)];
}
