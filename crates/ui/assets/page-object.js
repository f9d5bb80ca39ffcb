// One object: its state, relations and events, its YAML and a form to change it, and what belongs to its kind.

import { backoff, follow, get, post } from './api.js';
import { actions } from './actions.js';
import * as change from './change.js';
import { card, failed, h, message, replace, table, tabs } from './dom.js';
import { age, plain } from './format.js';
import { find, keyOf, listPath, objectLink, objectPath } from './kinds.js';
import * as form from './page-form.js';
import * as journey from './page-journey.js';
import * as logs from './page-logs.js';
import * as shell from './page-shell.js';
import { problemCard } from './page-problems.js';
import * as relations from './relations.js';
import * as rollout from './rollout.js';
import { fields, items } from './shape.js';
import * as usage from './usage.js';
import { runsPods } from './workload.js';

const TABS = [['state', 'State'], ['form', 'Form'], ['yaml', 'YAML'], ['journey', 'Journey'], ['logs', 'Logs'], ['shell', 'Shell']];

export async function show({ main, parts, signal }) {
  const [key, space, name, tab = 'state'] = parts;
  const kind = find(key);
  if (!kind) return replace(main, h('h1', {}, key), h('p', { class: 'empty' }, `The server has no kind ${key}.`));
  const namespace = space === '-' ? '' : space;
  const subject = { kind, namespace, name, path: objectPath(kind, namespace, name) };
  const body = h('div', {});
  const bar = h('div', { class: 'row actions' });
  replace(main, h('h1', {}, `${kind.kind} ${name} `, h('span', { class: 'dim' }, namespace)), bar, tabBar(subject, tab), body);
  try {
    subject.object = await get(subject.path, { signal });
  } catch (error) {
    // Nothing says whether the object exists: the page is shown again when the server is back.
    if (error.status === undefined) throw error;
    if (tab !== 'journey') return replace(body, h('p', { class: 'card bad' }, error.message));
  }
  if (subject.object) replace(bar, actions(subject));
  const pages = { state, form: form.show, yaml: change.yaml, journey: journey.show, logs: logs.show, shell: shell.show };
  return (tabsOf(kind).some(([one]) => one === tab) ? pages[tab] : state)({ body, subject, signal });
}

function tabsOf(kind) {
  const fits = { logs: runsPods(kind), shell: keyOf(kind) === 'pods', form: kind.verbs.includes('update'), yaml: true, state: true, journey: true };
  return TABS.filter(([tab]) => fits[tab]);
}

const tabBar = ({ kind, namespace, name }, current) => tabs('Views of the object', tabsOf(kind).map(([tab, title]) => [objectLink(kind, namespace, name, tab), title, tab === current]));

// Separators of a field selector in a value.
const escaped = (text) => text.replace(/[\\,=]/g, '\\$&');

// Between two diagnoses of an object that keeps changing, at least. Each reads its namespace: a large one is read less often.
const REVIEW_INTERVAL = 3000;

async function state({ body, subject, signal }) {
  const parts = { rollout: h('div', { role: 'status' }), facts: h('div', {}), findings: h('div', {}), relations: h('div', {}), usage: h('div', {}), events: h('div', {}) };
  replace(body, parts.rollout, parts.findings, parts.facts, parts.usage, parts.relations, parts.events);
  const draw = () => {
    replace(parts.facts, facts(subject.object), conditions(subject.object));
    replace(parts.rollout, rollout.bar(subject.kind, subject.object));
  };
  draw();
  const selector = { fieldSelector: `metadata.name=${escaped(subject.name)}` };
  let isChanged = true;
  const review = async () => {
    let took = 0;
    for (; !signal.aborted; await backoff(Math.max(REVIEW_INTERVAL, took * 10), signal)) {
      if (!isChanged) continue;
      isChanged = false;
      const begin = performance.now();
      await Promise.all([explain(parts.findings, subject, signal), relations.show(parts.relations, subject, signal)].map((task) => task.catch(failed)));
      took = performance.now() - begin;
    }
  };
  await Promise.all([
    review(),
    usage.show(parts.usage, subject, signal),
    events(parts.events, subject, signal),
    // The table says that something changed; the object is then read whole.
    follow(listPath(subject.kind, subject.namespace), selector, signal, async ({ rows, complete }) => {
      if (complete && rows.size === 0) {
        replace(parts.findings);
        replace(parts.rollout);
        return replace(parts.facts, h('p', { class: 'card warn' }, 'This object was deleted.'));
      }
      const version = [...rows.values()][0]?.object.metadata.resourceVersion;
      if (!version || version === subject.object.metadata.resourceVersion) return undefined;
      subject.object = await get(subject.path, { signal }).catch(() => subject.object);
      isChanged = true;
      return draw();
    }),
  ].map((task) => task.catch(failed)));
}

async function explain(target, { object }, signal) {
  const query = new URLSearchParams({ kind: object.kind, namespace: object.metadata.namespace ?? '', name: object.metadata.name });
  // Who may not have a diagnosis sees the rest; a server that is busy is asked again when the object changes.
  const found = await get(`/ui/problems?${query}`, { signal }).catch(() => undefined);
  if (found) replace(target, found.problems.flatMap((one) => one.findings).map((finding) => problemCard(undefined, [finding])));
}

function conditions(object) {
  const all = items(object.status?.conditions);
  return all.length > 0 && card('Conditions', table(undefined, all.map((one) => [
    one.type, one.status, one.reason ?? '', ['dim', plain(one.message ?? '')], ['dim', age(one.lastTransitionTime ?? one.lastUpdateTime)],
  ]), 'Conditions'));
}

function facts(object) {
  const { metadata } = object;
  const [spec, status] = [fields(object.spec), fields(object.status)];
  const rows = [
    ['Created', `${metadata.creationTimestamp} (${age(metadata.creationTimestamp)} ago)`],
    metadata.deletionTimestamp && ['Being deleted', metadata.deletionTimestamp],
    metadata.finalizers && ['Finalizers', metadata.finalizers.join(', ')],
    metadata.labels && ['Labels', pairs(metadata.labels)],
    status.phase && ['Phase', status.phase],
    spec.nodeName && ['Node', h('a', { href: objectLink(find('nodes'), '', spec.nodeName) }, spec.nodeName)],
    status.podIP && ['Address', items(status.podIPs).map((one) => one.ip).join(', ') || status.podIP],
    spec.clusterIP && ['Cluster IP', [spec.clusterIPs ?? spec.clusterIP].flat().join(', ')],
    spec.replicas !== undefined && ['Replicas', `${status.readyReplicas ?? 0} ready of ${spec.replicas}`],
    spec.selector && ['Selector', pairs(fields(spec.selector.matchLabels ?? spec.selector))],
    spec.storageClassName && ['Storage class', spec.storageClassName],
    status.capacity?.storage && ['Capacity', status.capacity.storage],
  ].filter(Boolean);
  return card('', table(undefined, rows, 'Facts'), containers(object), forwards(object));
}

const pairs = (labels) => plain(Object.entries(labels).map(([key, value]) => `${key}=${typeof value === 'object' ? JSON.stringify(value) : value}`).join(', '));

function containers({ status }) {
  const { initContainerStatuses, containerStatuses, ephemeralContainerStatuses } = fields(status);
  const all = [initContainerStatuses, containerStatuses, ephemeralContainerStatuses].flatMap(items);
  return all.length > 0 && [h('h2', {}, 'Containers'), table(undefined, all.map((one) => {
    const [now, detail] = Object.entries(fields(one.state)).map(([key, value]) => [key, fields(value)])[0] ?? ['waiting', {}];
    return [one.name, [one.ready ? 'good' : 'warn', `${now} ${detail.reason ?? ''}`], `${one.restartCount} restarts`, ['mono', one.image], ['dim', plain(detail.message ?? '')]];
  }), 'Containers')];
}

// Ports that speak HTTP open in the browser; the command for others is ready to copy.
function forwards({ apiVersion, kind, metadata, spec }) {
  const ports = apiVersion !== 'v1' ? [] : kind === 'Service' ? spec.ports : kind === 'Pod' ? spec.containers.flatMap((one) => one.ports ?? []) : [];
  return ports?.length > 0 && [h('h2', {}, 'Port-forward'), ports.map((port) => {
    const number = port.port ?? port.containerPort;
    const command = `kubectl port-forward -n ${metadata.namespace} ${kind.toLowerCase()}/${metadata.name} ${number < 1024 ? number + 8000 : number}:${number}`;
    const tls = /https/.test(port.name ?? '') || number === 443 || number === 8443;
    const isStream = (port.protocol ?? 'TCP') === 'TCP';
    return h('p', { class: 'row' }, h('b', {}, `${number} ${port.name ?? ''}`),
      isStream && h('button', { type: 'button', onclick: () => openPort(kind, metadata, number, tls).catch(failed) }, 'Open in the browser'),
      isStream && h('code', { class: 'mono' }, command), isStream && h('button', { type: 'button', onclick: () => navigator.clipboard.writeText(command).then(() => message('Copied')).catch(failed) }, 'Copy'));
  })];
}

// The new page gets a link of its own, and no way back to this one.
async function openPort(kind, { namespace, name }, port, tls) {
  const { path } = await post('/ui/forward', { namespace, resource: kind === 'Service' ? 'services' : 'pods', name, port: String(port), tls });
  const link = h('a', { href: path, target: '_blank', rel: 'noopener noreferrer' }, 'Open the port');
  message(link, '', { keep: true });
  link.focus();
  window.open(path, '_blank', 'noopener,noreferrer');
}

const MAX_EVENTS = 200;

async function events(target, { object, namespace }, signal) {
  const path = namespace ? `/api/v1/namespaces/${encodeURIComponent(namespace)}/events` : '/api/v1/events';
  await follow(path, { fieldSelector: `involvedObject.uid=${object.metadata.uid}` }, signal, ({ rows, columns }) => {
    const at = (row, name) => plain(String(row.cells[columns.findIndex((column) => column.name === name)] ?? ''));
    const sorted = [...rows.values()].sort((a, b) => b.object.metadata.resourceVersion - a.object.metadata.resourceVersion).slice(0, MAX_EVENTS);
    replace(target, sorted.length > 0 && card('Events', table(['Last seen', 'Reason', 'Message'], sorted.map((row) => [
      ['dim', at(row, 'Last Seen')], [at(row, 'Type') === 'Warning' ? 'warn' : '', at(row, 'Reason')], at(row, 'Message'),
    ]), 'Events')));
  });
}
