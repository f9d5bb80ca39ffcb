// Storage at a glance: claims with what they use of their size, volumes that nobody uses, and classes.

import { backoff, follow, get, soon } from './api.js';
import { card, failed, h, replace, table } from './dom.js';
import { bytes, quantity } from './format.js';
import { Grid } from './grid.js';
import { find, listPath, objectLink } from './kinds.js';
import { family } from './page-list.js';

const KINDS = ['persistentvolumeclaims', 'persistentvolumes', 'storageclasses.storage.k8s.io'];
const INTERVAL = 30000;
// Nodes that are asked how full their volumes are.
const MAX_NODES = 50;

export async function show({ main, namespace, signal }) {
  const view = { lists: Object.fromEntries(KINDS.map((key) => [key, new Map()])), used: new Map() };
  const grid = new Grid('Claims');
  grid.setColumns(['Namespace', 'Claim', 'Status', 'Size', 'In use', 'Class', 'Access', 'Volume', 'Used by'].map((name) => ({ name, wide: name === 'Claim' })));
  const summary = h('p', { role: 'status' });
  const others = h('div', {});
  replace(main, h('h1', {}, 'Storage'), family('storage'), summary, grid.element, others);
  const draw = soon(() => drawAll(view, grid, summary, others), signal);
  await Promise.all([
    ...KINDS.map((key) => follow(listPath(find(key), namespace), {}, signal, ({ rows }) => { view.lists[key] = rows; draw(); }, { objects: true }).catch(failed)),
    readUsage(view, signal, draw),
  ]);
}

// Nodes know how full volumes are, and which pods have them. Users who may not ask nodes see the rest.
async function readUsage(view, signal, draw) {
  while (!signal.aborted) {
    if (!document.hidden) {
      const nodes = (await get('/api/v1/nodes', { signal }).catch(() => ({ items: [] }))).items ?? [];
      const read = async ({ metadata }) => get(`/api/v1/nodes/${encodeURIComponent(metadata.name)}/proxy/stats/summary`, { signal }).catch(() => ({ pods: [] }));
      const summaries = await Promise.all(nodes.slice(0, MAX_NODES).map(read));
      view.used = new Map();
      for (const { podRef, volume = [] } of summaries.flatMap((one) => one.pods ?? [])) {
        for (const one of volume.filter((each) => each.pvcRef)) {
          const key = `${one.pvcRef.namespace}/${one.pvcRef.name}`;
          const before = view.used.get(key);
          view.used.set(key, { bytes: one.usedBytes, capacity: one.capacityBytes, pods: [...(before?.pods ?? []), podRef.name] });
        }
      }
      draw();
    }
    await backoff(INTERVAL, signal);
  }
}

function drawAll({ lists, used }, grid, summary, others) {
  const [claims, volumes, classes] = KINDS.map((key) => [...lists[key].values()]);
  grid.update(claims.map((claim) => toRow(claim, used)));
  const unbound = claims.filter((claim) => claim.status?.phase !== 'Bound').length;
  const size = claims.reduce((sum, claim) => sum + quantity(claim.status?.capacity?.storage), 0);
  replace(summary, `${claims.length} claims with ${bytes(size)}, `, h('span', { class: unbound ? 'warn' : 'good' }, unbound ? `${unbound} not bound` : 'all bound'), `, ${volumes.length} volumes, ${classes.length} classes.`);
  const left = volumes.filter((volume) => volume.status?.phase !== 'Bound');
  replace(others,
    left.length > 0 && card('Volumes without a claim', table(['Volume', 'Status', 'Size', 'Class', 'When released', 'Last claim'], left.map(volumeRow), 'Volumes without a claim')),
    classes.length > 0 && card('Classes', table(['Class', 'Driver', 'When its claim is deleted', 'Volume is created', 'Can grow'], classes.map(classRow), 'Storage classes')));
}

function toRow(claim, used) {
  const { metadata, spec, status = {} } = claim;
  const usage = used.get(`${metadata.namespace}/${metadata.name}`);
  const share = usage?.bytes !== undefined && usage.capacity ? `${bytes(usage.bytes)} (${Math.round((usage.bytes / usage.capacity) * 100)}%)` : '';
  return {
    cells: [metadata.namespace, metadata.name, status.phase ?? 'Pending', status.capacity?.storage ?? spec.resources?.requests?.storage ?? '', share, spec.storageClassName ?? '', (spec.accessModes ?? []).join(' '), spec.volumeName ?? '', usage?.pods.join(' ') ?? ''],
    sort: [metadata.namespace, metadata.name, status.phase, quantity(status.capacity?.storage ?? spec.resources?.requests?.storage), usage?.bytes ?? -1],
    link: objectLink(find('persistentvolumeclaims'), metadata.namespace, metadata.name),
  };
}

function volumeRow({ metadata, spec, status }) {
  const last = spec.claimRef ? `${spec.claimRef.namespace}/${spec.claimRef.name}` : '';
  return [h('a', { href: objectLink(find('persistentvolumes'), '', metadata.name) }, metadata.name), [status?.phase === 'Failed' ? 'bad' : 'warn', status?.phase ?? ''], spec.capacity?.storage ?? '', spec.storageClassName ?? '', reclaim(spec.persistentVolumeReclaimPolicy), last];
}

const reclaim = (policy) => ({ Delete: 'the data is deleted', Retain: 'the data is kept', Recycle: 'the data is erased' }[policy] ?? policy ?? '');

function classRow({ metadata, provisioner, reclaimPolicy, volumeBindingMode, allowVolumeExpansion }) {
  const isDefault = metadata.annotations?.['storageclass.kubernetes.io/is-default-class'] === 'true';
  return [h('span', {}, h('a', { href: objectLink(find('storageclasses.storage.k8s.io'), '', metadata.name) }, metadata.name), isDefault && ' (default)'), provisioner, reclaim(reclaimPolicy ?? 'Delete'), volumeBindingMode === 'WaitForFirstConsumer' ? 'when a pod uses the claim' : 'at once', allowVolumeExpansion ? 'yes' : 'no'];
}
