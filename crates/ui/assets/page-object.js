// One object: its state, relations and events, its YAML to read and change, and what belongs to its kind.

import { follow, get, pause, send, text } from './api.js';
import { actions } from './actions.js';
import { failed, h, message, replace } from './dom.js';
import { render } from './diff.js';
import { age, bytes, cores, plain, quantity } from './format.js';
import { find, keyOf, listPath, objectLink, objectPath, ofReference } from './kinds.js';
import * as journey from './page-journey.js';
import * as logs from './page-logs.js';
import { spark } from './page-cluster.js';
import * as shell from './page-shell.js';

export const WORKLOADS = ['deployments.apps', 'statefulsets.apps', 'daemonsets.apps', 'replicasets.apps', 'jobs.batch', 'replicationcontrollers'];

export async function show({ main, parts, signal }) {
  const [key, space, name, tab = 'state'] = parts;
  const kind = find(key);
  if (!kind) return replace(main, h('p', { class: 'empty' }, `The server has no kind ${key}.`));
  const namespace = space === '-' ? '' : space;
  const subject = { kind, namespace, name, path: objectPath(kind, namespace, name) };
  const body = h('div', {});
  const bar = h('p', { class: 'row' });
  replace(main, h('h1', {}, `${kind.kind} ${name} `, h('span', { class: 'dim' }, namespace)), bar, tabs(subject, tab), body);
  try {
    subject.object = await get(subject.path, { signal });
  } catch (error) {
    if (tab !== 'journey') return replace(body, h('p', { class: 'card bad' }, error.message));
  }
  if (subject.object) replace(bar, actions(subject));
  const pages = { state, yaml, journey: journey.show, logs: logs.show, shell: shell.show };
  return (pages[tab] ?? state)({ body, subject, signal });
}

function tabs({ kind, namespace, name }, current) {
  const runs = keyOf(kind) === 'pods' || WORKLOADS.includes(keyOf(kind));
  const all = [['state', 'State'], ['yaml', 'YAML'], ['journey', 'Journey'], runs && ['logs', 'Logs'], keyOf(kind) === 'pods' && ['shell', 'Shell']];
  return h('div', { class: 'tabs' }, all.filter(Boolean).map(([tab, title]) => h('a', {
    href: objectLink(kind, namespace, name, tab), 'aria-current': tab === current ? 'page' : undefined,
  }, title)));
}

async function state({ body, subject, signal }) {
  const parts = { facts: h('div', {}), findings: h('div', {}), relations: h('div', {}), usage: h('div', {}), events: h('div', {}) };
  replace(body, parts.findings, parts.facts, parts.usage, parts.relations, parts.events);
  const draw = () => replace(parts.facts, conditions(subject.object), facts(subject.object));
  draw();
  const selector = { fieldSelector: `metadata.name=${subject.name}` };
  await Promise.all([
    explain(parts.findings, subject, signal),
    relations(parts.relations, subject, signal),
    usage(parts.usage, subject, signal),
    events(parts.events, subject, signal),
    // The table tells that something changed; the object is then read whole.
    follow(listPath(subject.kind, subject.namespace), selector, signal, async ({ rows, complete }) => {
      if (complete && rows.size === 0) return replace(parts.facts, h('p', { class: 'card warn' }, 'This object was deleted.'));
      const version = [...rows.values()][0]?.object.metadata.resourceVersion;
      if (!version || version === subject.object.metadata.resourceVersion) return undefined;
      subject.object = await get(subject.path, { signal }).catch(() => subject.object);
      return draw();
    }),
  ].map((task) => task.catch(failed)));
}

async function explain(target, { object }, signal) {
  const query = new URLSearchParams({ kind: object.kind, namespace: object.metadata.namespace ?? '', name: object.metadata.name });
  const { problems } = await get(`/ui/problems?${query}`, { signal }).catch(() => ({ problems: [] }));
  replace(target, problems.flatMap((one) => one.findings).map((finding) => h('section', { class: 'card problem' },
    h('b', {}, finding.cause),
    h('ul', {}, finding.evidence.map((line) => h('li', {}, line))),
    h('p', { class: 'fix' }, finding.fix))));
}

function conditions(object) {
  const all = object.status?.conditions ?? [];
  return all.length > 0 && h('section', { class: 'card' }, h('h2', {}, 'Conditions'),
    h('table', { class: 'plain' }, h('tbody', {}, all.map((one) => h('tr', {},
      h('th', { scope: 'row' }, one.type),
      h('td', {}, one.status),
      h('td', {}, one.reason ?? ''),
      h('td', { class: 'dim' }, one.message ?? ''),
      h('td', { class: 'dim' }, age(one.lastTransitionTime ?? one.lastUpdateTime)))))));
}

function facts(object) {
  const { metadata, spec = {}, status = {} } = object;
  const rows = [
    ['Created', `${metadata.creationTimestamp} (${age(metadata.creationTimestamp)} ago)`],
    metadata.deletionTimestamp && ['Being deleted', metadata.deletionTimestamp],
    metadata.finalizers && ['Finalizers', metadata.finalizers.join(', ')],
    metadata.labels && ['Labels', pairs(metadata.labels)],
    status.phase && ['Phase', status.phase],
    spec.nodeName && ['Node', h('a', { href: objectLink(find('nodes'), '', spec.nodeName) }, spec.nodeName)],
    status.podIP && ['Address', (status.podIPs ?? []).map((one) => one.ip).join(', ')],
    spec.clusterIP && ['Cluster IP', (spec.clusterIPs ?? [spec.clusterIP]).join(', ')],
    spec.replicas !== undefined && ['Replicas', `${status.readyReplicas ?? 0} ready of ${spec.replicas}`],
    spec.selector && ['Selector', pairs(spec.selector.matchLabels ?? spec.selector)],
    spec.storageClassName && ['Storage class', spec.storageClassName],
    status.capacity?.storage && ['Capacity', status.capacity.storage],
  ].filter(Boolean);
  return h('section', { class: 'card' }, h('table', { class: 'plain' }, h('tbody', {}, rows.map(([label, value]) => h('tr', {}, h('th', { scope: 'row' }, label), h('td', {}, value))))),
    containers(object), forwards(object));
}

const pairs = (labels) => Object.entries(labels).map(([key, value]) => `${key}=${typeof value === 'object' ? JSON.stringify(value) : value}`).join(', ');

function containers({ status = {} }) {
  const all = [...(status.initContainerStatuses ?? []), ...(status.containerStatuses ?? []), ...(status.ephemeralContainerStatuses ?? [])];
  return all.length > 0 && [h('h2', {}, 'Containers'), h('table', { class: 'plain' }, h('tbody', {}, all.map((one) => {
    const [now, detail] = Object.entries(one.state ?? { waiting: {} })[0];
    return h('tr', {}, h('th', { scope: 'row' }, one.name),
      h('td', { class: one.ready ? 'good' : 'warn' }, `${now} ${detail.reason ?? ''}`),
      h('td', {}, `${one.restartCount} restarts`), h('td', { class: 'mono' }, one.image), h('td', { class: 'dim' }, plain(detail.message ?? '')));
  })))];
}

// Browsers cannot forward ports; the command that does is ready to copy.
function forwards({ kind, metadata, spec = {} }) {
  const ports = kind === 'Service' ? spec.ports : kind === 'Pod' ? spec.containers.flatMap((one) => one.ports ?? []) : [];
  return ports?.length > 0 && [h('h2', {}, 'Port-forward'), ports.map((port) => {
    const number = port.port ?? port.containerPort;
    const command = `kubectl port-forward -n ${metadata.namespace} ${kind.toLowerCase()}/${metadata.name} ${number < 1024 ? number + 8000 : number}:${number}`;
    return h('p', { class: 'row' }, h('code', { class: 'mono' }, command), h('button', { type: 'button', onclick: () => navigator.clipboard.writeText(command).then(() => message('Copied')).catch(failed) }, 'Copy'));
  })];
}

// What owns this object, and what it owns.
async function relations(target, subject, signal) {
  const { object } = subject;
  const owners = (object.metadata.ownerReferences ?? []).map((owner) => [ofReference(owner), owner.name]);
  const owned = await dependents(subject, signal);
  const link = ([kind, name]) => h('li', {}, kind ? h('a', { href: objectLink(kind, kind.namespaced ? subject.namespace : '', name) }, `${kind.kind} ${name}`) : name);
  replace(target, (owners.length > 0 || owned.length > 0) && h('section', { class: 'card' }, h('h2', {}, 'Relations'),
    owners.length > 0 && ['Owned by', h('ul', {}, owners.map(link))],
    owned.length > 0 && [`Owns ${owned.length}`, h('ul', {}, owned.slice(0, 100).map((one) => link([one.kind, one.name])))]));
}

const CHILDREN = ['replicasets.apps', 'pods', 'jobs.batch', 'controllerrevisions.apps', 'endpointslices.discovery.k8s.io', 'persistentvolumeclaims', 'resourceclaims.resource.k8s.io'];
const METADATA = 'application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io';

// All objects that would be deleted with this one, nearest first.
export async function dependents({ object, namespace }, signal) {
  if (!namespace) return [];
  const lists = await Promise.all(CHILDREN.map(find).filter(Boolean).map(async (kind) => {
    const list = await get(listPath(kind, namespace), { accept: METADATA, signal }).catch(() => ({ items: [] }));
    return (list.items ?? []).map((item) => ({ kind, name: item.metadata.name, uid: item.metadata.uid, owners: (item.metadata.ownerReferences ?? []).map((owner) => owner.uid) }));
  }));
  const all = lists.flat();
  const found = [];
  const parents = new Set([object.metadata.uid]);
  for (let grew = true; grew;) {
    const next = all.filter((one) => !parents.has(one.uid) && one.owners.some((uid) => parents.has(uid)));
    next.forEach((one) => parents.add(one.uid));
    found.push(...next);
    grew = next.length > 0;
  }
  return found;
}

const SAMPLES = 80;

// CPU and memory of a pod's containers, or of a node, as charts that grow while the page is open.
async function usage(target, { kind, name, namespace }, signal) {
  const paths = {
    pods: `/apis/metrics.k8s.io/v1beta1/namespaces/${encodeURIComponent(namespace)}/pods/${encodeURIComponent(name)}`,
    nodes: `/apis/metrics.k8s.io/v1beta1/nodes/${encodeURIComponent(name)}`,
  };
  const path = paths[keyOf(kind)];
  if (!path) return;
  const history = new Map();
  while (!signal.aborted) {
    // Without metrics there is nothing to show; they come a moment after a pod starts.
    const metrics = document.hidden ? undefined : await get(path, { signal }).catch(() => undefined);
    if (metrics) {
      for (const one of metrics.containers ?? [{ name, usage: metrics.usage }]) {
        const values = history.get(one.name) ?? { cpu: [], memory: [] };
        values.cpu = [...values.cpu, quantity(one.usage.cpu)].slice(-SAMPLES);
        values.memory = [...values.memory, quantity(one.usage.memory)].slice(-SAMPLES);
        history.set(one.name, values);
      }
      replace(target, h('section', { class: 'card' }, h('h2', {}, 'Usage'), [...history].map(([source, values]) => chart(source, values))));
    }
    await pause(15000, signal);
  }
}

function chart(name, { cpu, memory }) {
  const one = (label, values, format) => h('div', { class: 'chart-cell' },
    h('span', { class: 'dim' }, `${label} ${format(values.at(-1))}, at most ${format(Math.max(...values))}`), spark(values, `${label} of ${name}`));
  return h('div', {}, h('b', {}, name), h('div', { class: 'charts' }, one('CPU', cpu, cores), one('Memory', memory, bytes)));
}

async function events(target, { object, namespace }, signal) {
  const path = namespace ? `/api/v1/namespaces/${encodeURIComponent(namespace)}/events` : '/api/v1/events';
  await follow(path, { fieldSelector: `involvedObject.uid=${object.metadata.uid}` }, signal, ({ rows, columns }) => {
    const at = (row, name) => row.cells[columns.findIndex((column) => column.name === name)];
    const sorted = [...rows.values()].sort((a, b) => b.object.metadata.resourceVersion - a.object.metadata.resourceVersion).slice(0, 200);
    replace(target, sorted.length > 0 && h('section', { class: 'card' }, h('h2', {}, 'Events'), h('table', { class: 'plain' }, h('tbody', {}, sorted.map((row) => h('tr', {},
      h('td', { class: 'dim' }, at(row, 'Last Seen')), h('td', { class: at(row, 'Type') === 'Warning' ? 'warn' : '' }, at(row, 'Reason')), h('td', {}, plain(String(at(row, 'Message'))))))))));
  });
}

const YAML = 'application/yaml';

// The object as text, and a change with its effect shown before it is made.
async function yaml({ body, subject, signal }) {
  let original = await text(subject.path, { accept: YAML, signal });
  const area = h('textarea', { class: 'edit', spellcheck: 'false', 'aria-label': 'YAML of the object', value: withoutManagedFields(original) });
  const preview = h('div', {});
  const apply = h('button', { type: 'button', class: 'primary', disabled: true, onclick: () => save().catch(failed) }, 'Save');
  const check = h('button', { type: 'button', onclick: () => review().catch(failed) }, 'Review the change');
  area.addEventListener('input', () => { apply.disabled = true; });
  const put = (dry) => send(`${subject.path}?fieldValidation=Strict${dry ? '&dryRun=All' : ''}`, { method: 'PUT', body: area.value, type: YAML, accept: YAML });
  const review = async () => {
    const result = await (await put(true)).text();
    replace(preview, h('h2', {}, 'What will change'), render(withoutManagedFields(original), withoutManagedFields(result)));
    apply.disabled = false;
  };
  const save = async () => {
    original = await (await put(false)).text();
    area.value = withoutManagedFields(original);
    apply.disabled = true;
    replace(preview);
    message('Saved');
  };
  replace(body, h('p', { class: 'row' }, check, apply), preview, area);
}

// Managed fields are bookkeeping: a block of metadata that nobody edits. Leaving it out of an update keeps it.
function withoutManagedFields(yamlText) {
  const kept = [];
  let inside = false;
  for (const line of yamlText.split('\n')) {
    if (/^  managedFields:/.test(line)) { inside = true; continue; }
    if (inside && /^ {2}[- ]/.test(line)) continue;
    inside = false;
    kept.push(line);
  }
  return kept.join('\n');
}
