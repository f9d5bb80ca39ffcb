// What can be done with an object: each action says what it will do, asks when it destroys, and reports what it did.

import { backoff, get, patch, remove, send } from './api.js';
import { watchDeletion } from './deletion.js';
import { ask, failed, h, message, withProgress } from './dom.js';
import { find, keyOf, kinds, listPath, objectLink } from './kinds.js';
import { dependents } from './relations.js';
import { rollBack } from './revisions.js';
import { watchRollout } from './rollout.js';

const SCALABLE = ['deployments.apps', 'statefulsets.apps', 'replicasets.apps', 'replicationcontrollers'];
const RESTARTABLE = ['deployments.apps', 'statefulsets.apps', 'daemonsets.apps'];

export function actions(subject) {
  const key = keyOf(subject.kind);
  const all = [
    SCALABLE.includes(key) && ['Scale', scale],
    RESTARTABLE.includes(key) && ['Restart', restart],
    RESTARTABLE.includes(key) && ['Roll back', rollBack],
    key === 'nodes' && [subject.object.spec.unschedulable ? 'Uncordon' : 'Cordon', cordon],
    key === 'nodes' && ['Drain', drain],
    subject.kind.verbs.includes('delete') && ['Delete', destroy, 'danger'],
  ];
  return all.filter(Boolean).map(([label, run, kind]) => h('button', {
    type: 'button', class: kind, onclick: () => run(subject).catch(failed),
  }, label));
}

async function scale(subject) {
  const { object, path } = subject;
  const field = h('input', { type: 'number', min: 0, value: object.spec.replicas ?? 1, 'aria-label': 'Replicas' });
  const replicas = await ask(`Scale ${object.metadata.name}`, h('p', {}, 'Replicas ', field), 'Scale', { result: () => Number(field.value) });
  if (replicas === undefined) return;
  const scaled = await (await patch(`${path}/scale`, { spec: { replicas } })).json();
  message(`Scaled to ${replicas}`);
  // The generation of a Scale is not that of the workload, which is one more if anything changed.
  watchRollout(subject, object.metadata.generation + (scaled.spec.replicas === object.spec.replicas ? 0 : 1));
}

async function restart(subject) {
  const { object, path } = subject;
  if (!await ask(`Restart ${object.metadata.name}`, h('p', {}, 'Its pods are replaced step by step, as its update strategy says.'), 'Restart')) return;
  const annotations = { 'kubectl.kubernetes.io/restartedAt': new Date().toISOString() };
  const changed = await (await patch(path, { spec: { template: { metadata: { annotations } } } }, 'application/strategic-merge-patch+json')).json();
  message('Restarting');
  watchRollout(subject, changed.metadata.generation);
}

async function cordon({ object, path }) {
  const unschedulable = !object.spec.unschedulable;
  await patch(path, { spec: { unschedulable } });
  message(unschedulable ? 'No new pods are scheduled here' : 'Pods can be scheduled here again');
  refresh();
}

// Evicts all pods but those of DaemonSets and static ones, as `kubectl drain --ignore-daemonsets` does, and waits until they
// are gone. Each pod is tried by itself: a disruption budget delays only those it is for.
async function drain({ object, path, name }) {
  const { items } = await get(`/api/v1/pods?${new URLSearchParams({ fieldSelector: `spec.nodeName=${name}` })}`);
  const controller = (pod) => pod.metadata.ownerReferences?.find((owner) => owner.controller);
  const stays = (pod) => controller(pod)?.kind === 'DaemonSet' || pod.metadata.annotations?.['kubernetes.io/config.mirror'] || /^(Succeeded|Failed)$/.test(pod.status.phase);
  const going = (items ?? []).filter((pod) => !stays(pod));
  const lost = going.filter((pod) => !controller(pod));
  const emptied = going.filter((pod) => (pod.spec.volumes ?? []).some((volume) => volume.emptyDir && !volume.emptyDir.medium));
  const names = (pods) => pods.map((pod) => `${pod.metadata.namespace}/${pod.metadata.name}`).join(', ');
  const sure = await ask(`Drain ${object.metadata.name}`, h('div', {},
    h('p', {}, `${going.length} pods are evicted; disruption budgets are respected. No new pods are scheduled to the node until you uncordon it.`),
    lost.length > 0 && h('p', { class: 'bad' }, `Nothing creates these again: ${names(lost)}`),
    emptied.length > 0 && h('p', { class: 'warn' }, `Data in emptyDir volumes is lost of: ${names(emptied)}`)), 'Drain', { danger: true });
  if (!sure) return;
  await patch(path, { spec: { unschedulable: true } });
  await withProgress(`Draining ${name}`, async (progress, signal) => {
    let done = 0;
    const waiting = new Set();
    const report = () => progress(done, going.length, waiting.size > 0 ? `(a disruption budget delays ${[...waiting].slice(0, 3).join(', ')})` : '');
    report();
    await Promise.all(going.map(async (pod) => {
      await evict(pod, signal, (isWaiting) => { waiting[isWaiting ? 'add' : 'delete'](pod.metadata.name); report(); });
      done += 1;
      report();
    }));
    message(signal.aborted ? `Stopped draining ${name}; it stays cordoned` : `Drained ${name}`);
  });
  refresh();
}

async function evict({ metadata: { namespace, name, uid } }, signal, delayed) {
  const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods/${encodeURIComponent(name)}`;
  const body = { apiVersion: 'policy/v1', kind: 'Eviction', metadata: { name, namespace } };
  let isEvicted = false;
  while (!signal.aborted) {
    try {
      if (isEvicted && (await get(path)).metadata.uid !== uid) return;
      if (!isEvicted) await send(`${path}/eviction`, { method: 'POST', body });
      isEvicted = true;
      delayed(false);
    } catch (error) {
      if (error.status === 404) return;
      // A disruption budget allows no eviction now; a server that is away is asked again.
      if (error.status !== 429 && error.name !== 'ConnectionError') throw error;
      delayed(error.status === 429);
    }
    await backoff(isEvicted ? 1000 : 5000, signal);
  }
}

const refresh = () => window.dispatchEvent(new HashChangeEvent('hashchange'));

async function destroy(subject) {
  const { object, path, kind, namespace, name } = subject;
  const [gone, notes] = await Promise.all([dependents(subject, undefined, { everyKind: true }), consequences(subject)]);
  const list = gone.slice(0, 30).map((one) => h('li', {}, `${one.kind.kind} ${one.name}`));
  const confirm = keyOf(kind) === 'namespaces' && h('input', { 'aria-label': `Type ${name} to confirm`, required: true, pattern: name.replaceAll('.', '\\.') });
  const sure = await ask(`Delete ${kind.kind} ${name}`, h('div', {},
    gone.length > 0 ? h('div', {}, `With it go ${gone.length} objects:`, h('ul', {}, list, gone.length > 30 && h('li', {}, '…'))) : notes.length === 0 && h('p', {}, 'Nothing else that you may see goes with it.'),
    notes.map((note) => h('p', { class: 'bad' }, note)),
    confirm && h('p', {}, `Type ${name} to confirm: `, confirm)), 'Delete', { danger: true });
  if (!sure) return;
  await remove(path, { apiVersion: 'v1', kind: 'DeleteOptions', preconditions: { uid: object.metadata.uid }, propagationPolicy: 'Background' });
  watchDeletion(subject, gone);
  location.hash = objectLink(kind, namespace, name, 'journey');
}

const METADATA = 'application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io';

const count = async (one, namespace) => {
  const list = await get(`${listPath(one, namespace)}?limit=1`, { accept: METADATA });
  return (list.items?.length ?? 0) + (list.metadata.remainingItemCount ?? 0);
};

// What is lost with an object although it does not own it.
async function consequences({ object, kind, namespace, name }) {
  const key = keyOf(kind);
  if (key === 'namespaces') {
    const counts = await Promise.all(kinds().filter((one) => one.namespaced && one.verbs.includes('delete')).map(async (one) => [one.kind, await count(one, name).catch(() => 0)]));
    const found = counts.filter(([one, number]) => number > 0 && one !== 'Event').map(([one, number]) => `${number} ${one}`);
    return [`Everything in the namespace is deleted: ${found.join(', ') || 'it is empty'}.`];
  }
  if (key === 'persistentvolumeclaims' && object.spec.volumeName) {
    const volume = await get(`/api/v1/persistentvolumes/${encodeURIComponent(object.spec.volumeName)}`).catch(() => undefined);
    return volume?.spec.persistentVolumeReclaimPolicy === 'Retain' ? [] : ['Its volume and all data on it are deleted.'];
  }
  if (key === 'customresourcedefinitions.apiextensions.k8s.io') {
    const known = find(`${object.spec.names.plural}.${object.spec.group}`);
    return [`All objects of the kind are deleted: ${known ? await count(known, '').catch(() => 'an unknown number') : 'an unknown number'}.`];
  }
  if (key === 'nodes') return ['Its pods are deleted, although they may still run there. Drain it first, and stop Knarr on it.'];
  if (key === 'pods' && !object.metadata.ownerReferences?.some((owner) => owner.controller)) return ['Nothing creates this pod again.'];
  if (key === 'statefulsets.apps' && object.spec.volumeClaimTemplates?.length) return object.spec.persistentVolumeClaimRetentionPolicy?.whenDeleted === 'Delete' ? ['Its claims and their data are deleted.'] : [];
  return [];
}
