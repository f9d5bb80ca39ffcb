// The logs of a pod, or of all pods of a workload, in one place.

import { get, lines } from './api.js';
import { failed, h, replace } from './dom.js';
import { plain } from './format.js';
import { keyOf } from './kinds.js';
import { dependents } from './page-object.js';

const MAX_LINES = 5000;
const TAIL = 200;
const MAX_SOURCES = 40;

export async function show({ body, subject, signal }) {
  const view = { entries: [], filter: '', follow: true, scheduled: false, sources: 0 };
  const box = h('div', { class: 'log', role: 'log', tabindex: 0, 'aria-label': 'Log' });
  const search = h('input', { type: 'search', placeholder: 'Search', 'aria-label': 'Search the log', oninput: () => { view.filter = search.value.toLowerCase(); draw(view, box); } });
  const following = h('input', { type: 'checkbox', checked: true, onchange: () => { view.follow = following.checked; draw(view, box); } });
  const previous = h('input', { type: 'checkbox', onchange: () => restart() });
  const note = h('span', { class: 'dim', role: 'status' });
  replace(body, h('p', { class: 'row' }, search, h('label', {}, following, ' follow'), h('label', {}, previous, ' previous containers'), note), box);
  let reading = new AbortController();
  signal.addEventListener('abort', () => reading.abort(), { once: true });
  const restart = async () => {
    reading.abort();
    reading = new AbortController();
    view.entries = [];
    draw(view, box);
    const sources = await find(subject, signal);
    view.sources = sources.length;
    replace(note, sources.length > MAX_SOURCES ? `the first ${MAX_SOURCES} of ${sources.length} containers` : `${sources.length} containers`);
    await Promise.all(sources.slice(0, MAX_SOURCES).map((source) => read(source, previous.checked, reading.signal, view, box)));
  };
  await restart().catch(failed);
}

// The containers whose logs belong to an object.
async function find(subject, signal) {
  const root = `/api/v1/namespaces/${encodeURIComponent(subject.namespace)}/pods`;
  const names = keyOf(subject.kind) === 'pods' ? [subject.name]
    : (await dependents(subject, signal)).filter((one) => one.kind.plural === 'pods').map((one) => one.name);
  const pods = await Promise.all(names.map((name) => get(`${root}/${encodeURIComponent(name)}`, { signal }).catch(() => undefined)));
  return pods.filter(Boolean).flatMap((pod) => [...(pod.spec.initContainers ?? []), ...pod.spec.containers].map((container) => ({
    path: `${root}/${encodeURIComponent(pod.metadata.name)}/log`, pod: pod.metadata.name, container: container.name,
  })));
}

async function read({ path, pod, container }, previous, signal, view, box) {
  const label = view.sources > 1 ? `${pod} ${container}` : '';
  const query = new URLSearchParams({ container, timestamps: 'true', tailLines: TAIL });
  if (previous) query.set('previous', 'true');
  else query.set('follow', 'true');
  try {
    for await (const line of lines(`${path}?${query}`, { accept: '*/*', signal })) {
      const space = line.indexOf(' ');
      add(view, box, { time: line.slice(0, space), label, text: plain(line.slice(space + 1)) });
    }
  } catch (error) {
    if (error.name !== 'AbortError') add(view, box, { time: '', label, text: error.message });
  }
}

function add(view, box, entry) {
  view.entries.push(entry);
  if (view.entries.length > MAX_LINES + 500) view.entries.splice(0, view.entries.length - MAX_LINES);
  if (view.scheduled) return;
  view.scheduled = true;
  requestAnimationFrame(() => { view.scheduled = false; draw(view, box); });
}

function draw(view, box) {
  view.entries.sort((a, b) => (a.time < b.time ? -1 : a.time > b.time ? 1 : 0));
  const shown = view.entries.filter((entry) => !view.filter || entry.text.toLowerCase().includes(view.filter)).slice(-1000);
  replace(box, shown.map((entry) => h('div', { title: entry.time }, entry.label && h('span', { class: 'source' }, `${entry.label}  `), marked(entry.text, view.filter))));
  if (view.follow) box.scrollTop = box.scrollHeight;
}

function marked(text, filter) {
  const at = filter ? text.toLowerCase().indexOf(filter) : -1;
  return at < 0 ? text : [text.slice(0, at), h('mark', {}, text.slice(at, at + filter.length)), text.slice(at + filter.length)];
}
