// The map of the cluster: servers, nodes with their pods, and usage beside requests and capacity.

import { follow, get, pause } from './api.js';
import { failed, h, replace, svg } from './dom.js';
import { bytes, cores, quantity } from './format.js';
import { find, objectLink } from './kinds.js';

const METRICS_INTERVAL = 10000;
const HISTORY = 60;

export async function show({ main, namespace, signal }) {
  const view = { nodes: [], pods: [], usage: new Map(), courses: new Map(), history: [], scheduled: false };
  const summary = h('div', { class: 'card' });
  const cards = h('div', { class: 'cards' });
  replace(main, h('h1', {}, 'Cluster'), summary, cards);
  const draw = () => {
    if (view.scheduled) return;
    view.scheduled = true;
    setTimeout(() => { view.scheduled = false; if (!signal.aborted) drawAll(view, summary, cards); }, 150);
  };
  const path = namespace ? `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods` : '/api/v1/pods';
  await Promise.all([
    follow('/api/v1/nodes', {}, signal, ({ rows, columns }) => { view.nodes = [...rows.values()].map((row) => toNode(row, columns)); draw(); readNodes(view, signal, draw); }),
    follow(path, {}, signal, ({ rows, columns }) => { view.pods = [...rows.values()].map((row) => toPod(row, columns)); draw(); }),
    readMetrics(view, signal, draw),
    showHealth(summary, signal),
  ].map((task) => task.catch(failed)));
}

const cell = (row, columns, name) => row.cells[columns.findIndex((column) => column.name === name)];

const toNode = (row, columns) => ({
  name: row.object.metadata.name,
  status: cell(row, columns, 'Status'),
  roles: cell(row, columns, 'Roles'),
  version: cell(row, columns, 'Version'),
});

const toPod = (row, columns) => ({
  name: row.object.metadata.name,
  namespace: row.object.metadata.namespace,
  status: String(cell(row, columns, 'Status')),
  ready: String(cell(row, columns, 'Ready')),
  node: cell(row, columns, 'Node'),
});

// Capacity comes from the objects, which tables leave out: read again only when the set of nodes changes.
async function readNodes(view, signal, draw) {
  const names = view.nodes.map((node) => node.name).join();
  if (view.capacityOf === names) return;
  view.capacityOf = names;
  const list = await get('/api/v1/nodes', { signal }).catch(() => undefined);
  view.allocatable = new Map((list?.items ?? []).map((node) => [node.metadata.name, node.status.allocatable ?? {}]));
  draw();
}

async function readMetrics(view, signal, draw) {
  while (!signal.aborted) {
    if (!document.hidden) {
      const list = await get('/apis/metrics.k8s.io/v1beta1/nodes', { signal }).catch(() => ({ items: [] }));
      view.usage = new Map((list.items ?? []).map((one) => [one.metadata.name, one.usage]));
      const total = (list.items ?? []).reduce((sum, one) => sum + quantity(one.usage.cpu), 0);
      if (list.items?.length) view.history = [...view.history, total].slice(-HISTORY);
      for (const one of list.items ?? []) {
        const name = one.metadata.name;
        view.courses.set(name, [...(view.courses.get(name) ?? []), quantity(one.usage.cpu)].slice(-HISTORY));
      }
      draw();
    }
    await pause(METRICS_INTERVAL, signal);
  }
}

async function showHealth(summary, signal) {
  const version = await get('/version', { signal });
  summary.dataset.version = version.gitVersion;
}

function drawAll(view, summary, cards) {
  const byNode = Map.groupBy(view.pods, (pod) => pod.node || '');
  const ready = view.nodes.filter((node) => String(node.status).startsWith('Ready')).length;
  const running = view.pods.filter((pod) => tone(pod) === '').length;
  replace(summary,
    h('p', {}, `Kubernetes ${summary.dataset.version ?? ''}: ${ready} of ${view.nodes.length} nodes ready, ${running} of ${view.pods.length} pods running and ready.`),
    view.history.length > 1 && [h('p', { class: 'dim' }, `CPU in use: ${cores(view.history.at(-1))} cores`), spark(view.history)]);
  replace(cards, view.nodes.map((node) => nodeCard(node, view, byNode.get(node.name) ?? [])), waiting(byNode));
}

function nodeCard(node, view, pods) {
  const allocatable = view.allocatable?.get(node.name) ?? {};
  const usage = view.usage.get(node.name);
  return h('section', { class: 'card' },
    h('div', { class: 'row' }, h('a', { href: objectLink(find('nodes'), '', node.name) }, node.name),
      h('span', { class: `badge ${String(node.status).startsWith('Ready') ? 'good' : 'bad'}` }, node.status),
      h('span', { class: 'dim' }, node.roles === '<none>' ? '' : node.roles)),
    usage && [
      meter('CPU', quantity(usage.cpu), quantity(allocatable.cpu), cores),
      meter('Memory', quantity(usage.memory), quantity(allocatable.memory), bytes),
    ],
    (view.courses.get(node.name)?.length ?? 0) > 1 && spark(view.courses.get(node.name), `CPU of ${node.name}`),
    h('div', { class: 'dim' }, `${pods.length} pods`),
    podDots(pods));
}

function waiting(byNode) {
  const pods = (byNode.get('') ?? []).concat(byNode.get('<none>') ?? []);
  return pods.length > 0 && h('section', { class: 'card' }, h('b', { class: 'warn' }, `${pods.length} pods without a node`), podDots(pods));
}

const MAX_DOTS = 600;

function podDots(pods) {
  const order = { fail: 0, wait: 1, '': 2, done: 3 };
  const sorted = pods.map((pod) => [tone(pod), pod]).sort(([a], [b]) => order[a] - order[b]).slice(0, MAX_DOTS);
  const kind = find('pods');
  return h('div', { class: 'pods' }, sorted.map(([shade, pod]) => {
    const label = `${pod.namespace}/${pod.name}: ${pod.status}`;
    return h('a', { class: shade, href: objectLink(kind, pod.namespace, pod.name), title: label, 'aria-label': label });
  }), pods.length > MAX_DOTS && h('span', { class: 'dim' }, `and ${pods.length - MAX_DOTS} more`));
}

function tone(pod) {
  if (/^(Completed|Succeeded)/.test(pod.status)) return 'done';
  if (/(Error|BackOff|Failed|OOM|Evicted|Unknown|Err)/.test(pod.status)) return 'fail';
  const [up, all] = pod.ready.split('/');
  return pod.status === 'Running' && up === all ? '' : 'wait';
}

function meter(label, used, available, format) {
  const share = available ? Math.min(1, used / available) : 0;
  return h('div', {}, h('span', {}, `${label} ${format(used)} of ${format(available)}`),
    h('div', { class: 'bar', role: 'meter', 'aria-label': label, 'aria-valuenow': Math.round(share * 100), 'aria-valuemin': 0, 'aria-valuemax': 100 },
      svg('svg', { viewBox: '0 0 100 1', preserveAspectRatio: 'none' }, svg('rect', { class: 'fill-used', width: share * 100, height: 1 }))));
}

// The course of a value: its newest one is at the right.
export function spark(values, label = 'Usage of the last minutes') {
  const top = Math.max(...values) * 1.1 || 1;
  const points = values.map((value, index) => `${(index / Math.max(1, values.length - 1)) * 100},${30 - (value / top) * 30}`);
  return svg('svg', { class: 'spark', viewBox: '0 0 100 30', preserveAspectRatio: 'none', role: 'img', 'aria-label': label }, svg('path', { d: `M${points.join(' L')}` }));
}
