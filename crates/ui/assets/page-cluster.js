// The map of the cluster: servers and their health, nodes with their pods, namespaces; usage beside requests and limits.

import { backoff, follow, get, soon, text } from './api.js';
import { meter, spark } from './chart.js';
import { card, failed, h, replace, table } from './dom.js';
import { age, bytes, cores, plain, quantity } from './format.js';
import { find, listLink, objectLink } from './kinds.js';

const INTERVAL = 10000;
const HISTORY = 60;
const MAX_NODES = 300;
const MAX_DOTS = 3000;

export async function show({ main, namespace, signal }) {
  const view = { namespace, nodes: new Map(), pods: { rows: new Map(), columns: [] }, usage: new Map(), sums: new Map(), courses: new Map(), leases: [] };
  const parts = { summary: h('div', {}), servers: h('div', {}), nodes: h('div', { class: 'cards' }), namespaces: h('div', {}) };
  replace(main, h('h1', {}, 'Cluster'), parts.summary, parts.servers, h('h2', {}, 'Nodes'), parts.nodes, parts.namespaces);
  const draw = soon(() => drawAll(view, parts), signal);
  const path = namespace ? `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods` : '/api/v1/pods';
  await Promise.all([
    follow('/api/v1/nodes', {}, signal, ({ rows }) => { view.nodes = rows; draw(); }, { objects: true }),
    follow(path, {}, signal, (state) => { view.pods = state; draw(); }),
    repeat(signal, () => readMetrics(view, signal).then(draw)),
    repeat(signal, () => readServer(view, signal).then(draw)),
  ].map((task) => task.catch(failed)));
}

// What has no watch is read again while the page is visible.
async function repeat(signal, read) {
  while (!signal.aborted) {
    if (!document.hidden) await read().catch(failed);
    await backoff(INTERVAL, signal);
  }
}

async function readMetrics(view, signal) {
  const [list, sums] = await Promise.all([
    get('/apis/metrics.k8s.io/v1beta1/nodes', { signal }).catch(() => ({ items: [] })),
    get(`/ui/requests?${new URLSearchParams({ namespace: view.namespace })}`, { signal }).catch(() => ({ nodes: {} })),
  ]);
  view.sums = new Map(Object.entries(sums.nodes));
  const items = list.items ?? [];
  view.usage = new Map(items.map((one) => [one.metadata.name, { cpu: quantity(one.usage.cpu), memory: quantity(one.usage.memory) }]));
  if (items.length === 0) return;
  const total = (resource) => [...view.usage.values()].reduce((sum, one) => sum + one[resource], 0);
  for (const [name, cpu, memory] of [['', total('cpu'), total('memory')], ...[...view.usage].map(([name, used]) => [name, used.cpu, used.memory])]) {
    const course = view.courses.get(name) ?? { cpu: [], memory: [] };
    view.courses.set(name, { cpu: [...course.cpu, cpu].slice(-HISTORY), memory: [...course.memory, memory].slice(-HISTORY) });
  }
}

// The servers, who leads what, and the checks of the server that serves this page.
async function readServer(view, signal) {
  view.version ??= (await get('/version', { signal })).gitVersion;
  const [leases, checks] = await Promise.all([
    get('/apis/coordination.k8s.io/v1/namespaces/kube-system/leases', { signal }).catch(() => ({ items: [] })),
    text('/readyz?verbose', { accept: '*/*', signal }).catch((error) => (error.name === 'AbortError' || error.status === 403 ? '' : error.message)),
  ]);
  view.leases = leases.items ?? [];
  view.checks = checks.split('\n').filter((line) => /^\[[+-]\]/.test(line)).map((line) => ({ good: line[1] === '+', name: plain(line.slice(3)) }));
}

const cell = (row, columns, name) => row.cells[columns.findIndex((column) => column.name === name)];

// Most rows are those of the last drawing.
const knownPods = new WeakMap();

function toPod(row, columns) {
  if (!knownPods.has(row)) {
    knownPods.set(row, {
      name: row.object.metadata.name,
      namespace: row.object.metadata.namespace,
      status: String(cell(row, columns, 'Status')),
      ready: String(cell(row, columns, 'Ready')),
      node: cell(row, columns, 'Node'),
    });
  }
  return knownPods.get(row);
}

function drawAll(view, parts) {
  const { rows, columns } = view.pods;
  const pods = Array.from(rows.values(), (row) => toPod(row, columns));
  const nodes = [...view.nodes.values()];
  const byNode = Map.groupBy(pods, (pod) => (pod.node === '<none>' ? '' : pod.node ?? ''));
  const ready = nodes.filter(isReady).length;
  const running = pods.filter((pod) => tone(pod) === '').length;
  replace(parts.summary, card('', h('p', {}, `Kubernetes ${view.version ?? ''}: ${ready} of ${nodes.length} nodes ready, ${running} of ${pods.length} pods running and ready.`), health(view.checks), courses(view.courses.get(''), 'the cluster')));
  replace(parts.servers, servers(view.leases));
  // Many nodes have fewer dots each, and of very many only some are drawn, so that the page stays quick.
  const shown = nodes.sort((a, b) => isReady(a) - isReady(b) || (a.metadata.name < b.metadata.name ? -1 : 1)).slice(0, MAX_NODES);
  const dots = Math.max(10, Math.floor(MAX_DOTS / Math.max(1, shown.length)));
  replace(parts.nodes, waiting(byNode.get(''), dots), shown.map((node) => nodeCard(node, view, byNode.get(node.metadata.name) ?? [], dots)),
    nodes.length > shown.length && h('p', { class: 'dim' }, `and ${nodes.length - shown.length} more nodes, in the `, h('a', { href: listLink(find('nodes')) }, 'list of nodes')));
  replace(parts.namespaces, namespacesTable(pods));
}

function health(checks) {
  if (!checks?.length) return undefined;
  const failing = checks.filter((check) => !check.good);
  return failing.length === 0 ? h('p', { class: 'good' }, `All ${checks.length} health checks of the server pass.`)
    : h('div', { class: 'bad' }, 'Health checks that fail:', h('ul', {}, failing.map((check) => h('li', {}, check.name))));
}

function courses(course, name) {
  if (!course || course.cpu.length < 2) return undefined;
  const one = (label, values, format) => h('div', {}, h('span', { class: 'dim' }, `${label} in use: ${format(values.at(-1))}`), spark(values, `${label} of ${name}, last minutes`));
  return h('div', { class: 'charts' }, one('CPU', course.cpu, cores), one('Memory', course.memory, bytes));
}

// Each API server renews a Lease of its own; those by which components elect a leader name its holder.
function servers(leases) {
  const identity = (lease) => lease.metadata.labels?.['apiserver.kubernetes.io/identity'];
  const all = leases.filter(identity).map((lease) => ({ host: lease.metadata.labels['kubernetes.io/hostname'] ?? lease.metadata.name, seen: lease.spec.renewTime, leads: [] }));
  for (const lease of leases.filter((one) => !identity(one) && one.spec?.holderIdentity)) {
    all.find((server) => lease.spec.holderIdentity.split('_')[0] === server.host)?.leads.push(lease.metadata.name);
  }
  return all.length > 0 && card('Servers', table(['Server', 'Seen', 'Leads'], all.map((server) => [
    server.host, [Date.now() - Date.parse(server.seen) > 60000 ? 'bad' : 'good', `${age(server.seen)} ago`], server.leads.join(', ') || (all.length === 1 ? 'all components run here' : ''),
  ]), 'Servers'));
}

const isReady = (node) => Boolean(node.status.conditions?.some((one) => one.type === 'Ready' && one.status === 'True'));

function nodeCard(node, view, pods, dots) {
  const { name } = node.metadata;
  const { allocatable = {} } = node.status;
  const used = view.usage.get(name);
  const sums = view.sums.get(name);
  const amounts = (resource) => ({
    used: used?.[resource],
    requested: sums && quantity(sums.requests[resource] ?? '0'),
    limited: sums?.limits[resource] ? quantity(sums.limits[resource]) : undefined,
    available: quantity(allocatable[resource]),
  });
  const roles = Object.keys(node.metadata.labels ?? {}).filter((label) => label.startsWith('node-role.kubernetes.io/')).map((label) => label.split('/')[1]);
  const pressures = (node.status.conditions ?? []).filter((one) => one.type !== 'Ready' && one.status === 'True').map((one) => one.type);
  return h('section', { class: 'card', 'aria-label': `Node ${name}` },
    h('div', { class: 'row' }, h('a', { href: objectLink(find('nodes'), '', name) }, name),
      h('span', { class: `badge ${isReady(node) ? 'good' : 'bad'}` }, isReady(node) ? 'Ready' : 'NotReady'),
      node.spec.unschedulable && h('span', { class: 'badge warn' }, 'cordoned'),
      pressures.map((one) => h('span', { class: 'badge bad' }, one)),
      h('span', { class: 'dim' }, roles.join(' '))),
    meter('CPU', amounts('cpu'), cores), meter('Memory', amounts('memory'), bytes),
    courses(view.courses.get(name), name),
    h('div', { class: 'dim' }, counts(pods)), podDots(pods, `Pods of ${name}`, dots));
}

function waiting(pods, dots) {
  return pods?.length > 0 && h('section', { class: 'card' }, h('b', { class: 'warn' }, `${pods.length} pods without a node`), podDots(pods, 'Pods without a node', dots));
}

function counts(pods) {
  const by = Map.groupBy(pods, tone);
  const part = (shade, word) => by.has(shade) && `${by.get(shade).length} ${word}`;
  return [`${pods.length} pods`, part('fail', 'failing'), part('wait', 'waiting'), part('done', 'finished')].filter(Boolean).join(', ');
}

const ORDER = { fail: 0, wait: 1, '': 2, done: 3 };

// One stop for the Tab key; arrow keys walk through the pods.
function podDots(pods, label, max) {
  const sorted = pods.map((pod) => [tone(pod), pod]).sort(([a], [b]) => ORDER[a] - ORDER[b]).slice(0, max);
  const kind = find('pods');
  return sorted.length > 0 && [h('div', { class: 'pods', role: 'group', 'aria-label': label, onkeydown: walk }, sorted.map(([shade, pod], index) => {
    const text = `${pod.namespace}/${pod.name}: ${plain(pod.status)}`;
    return h('a', { class: shade, href: objectLink(kind, pod.namespace, pod.name), title: text, 'aria-label': text, tabindex: index === 0 ? 0 : -1 });
  })), pods.length > max && h('div', { class: 'dim' }, `and ${pods.length - max} more`)];
}

function walk(event) {
  const next = { ArrowRight: 'nextElementSibling', ArrowDown: 'nextElementSibling', ArrowLeft: 'previousElementSibling', ArrowUp: 'previousElementSibling' }[event.key];
  if (!next) return;
  event.preventDefault();
  event.target[next]?.focus();
}

function namespacesTable(pods) {
  const by = [...Map.groupBy(pods, (pod) => pod.namespace)].sort(([a], [b]) => (a < b ? -1 : 1));
  const number = (all, shade) => all.filter((pod) => tone(pod) === shade).length;
  return by.length > 0 && card('Pods by namespace', table(['Namespace', 'Pods', 'Running and ready', 'Waiting', 'Failing', 'Finished'], by.map(([name, all]) => {
    const [up, wait, fail, done] = ['', 'wait', 'fail', 'done'].map((shade) => number(all, shade));
    return [h('a', { href: `${listLink(find('pods'))}/${encodeURIComponent(name)}` }, name), all.length, up, [wait ? 'warn' : 'dim', wait], [fail ? 'bad' : 'dim', fail], ['dim', done]];
  }), 'Pods by namespace'));
}

function tone(pod) {
  if (/^(Completed|Succeeded)/.test(pod.status)) return 'done';
  if (/(Error|BackOff|Failed|OOM|Evicted|Unknown|Err)/.test(pod.status)) return 'fail';
  const [up, all] = pod.ready.split('/');
  return pod.status === 'Running' && up === all ? '' : 'wait';
}
