// What can be done with an object: each action says what it will do, asks when it destroys, and reports what it did.

import { get, patch, remove, send } from './api.js';
import { ask, failed, h, message } from './dom.js';
import { keyOf, objectLink } from './kinds.js';
import { dependents } from './page-object.js';

const SCALABLE = ['deployments.apps', 'statefulsets.apps', 'replicasets.apps', 'replicationcontrollers'];
const RESTARTABLE = ['deployments.apps', 'statefulsets.apps', 'daemonsets.apps'];

export function actions(subject) {
  const key = keyOf(subject.kind);
  const all = [
    SCALABLE.includes(key) && ['Scale', scale],
    RESTARTABLE.includes(key) && ['Restart', restart],
    key === 'deployments.apps' && ['Roll back', rollBack],
    key === 'nodes' && [subject.object.spec.unschedulable ? 'Uncordon' : 'Cordon', cordon],
    key === 'nodes' && ['Drain', drain],
    subject.kind.verbs.includes('delete') && ['Delete', destroy, 'danger'],
  ];
  return all.filter(Boolean).map(([label, run, kind]) => h('button', {
    type: 'button', class: kind, onclick: () => run(subject).catch(failed),
  }, label));
}

async function scale({ object, path }) {
  const field = h('input', { type: 'number', min: 0, value: object.spec.replicas ?? 1, 'aria-label': 'Replicas' });
  const replicas = await ask(`Scale ${object.metadata.name}`, h('p', {}, 'Replicas ', field), 'Scale', { result: () => Number(field.value) });
  if (replicas === undefined) return;
  await patch(`${path}/scale`, { spec: { replicas } });
  message(`Scaled to ${replicas}`);
}

async function restart({ object, path }) {
  if (!await ask(`Restart ${object.metadata.name}`, h('p', {}, 'Its pods are replaced step by step, as its update strategy says.'), 'Restart')) return;
  const annotations = { 'kubectl.kubernetes.io/restartedAt': new Date().toISOString() };
  await patch(path, { spec: { template: { metadata: { annotations } } } }, 'application/strategic-merge-patch+json');
  message('Restarting');
}

const REVISION = 'deployment.kubernetes.io/revision';

async function rollBack({ object, path, namespace }) {
  const { items } = await get(`/apis/apps/v1/namespaces/${encodeURIComponent(namespace)}/replicasets`);
  const own = (items ?? []).filter((set) => set.metadata.ownerReferences?.some((owner) => owner.uid === object.metadata.uid))
    .sort((a, b) => b.metadata.annotations?.[REVISION] - a.metadata.annotations?.[REVISION])
    .filter((set) => set.metadata.annotations?.[REVISION] !== object.metadata.annotations?.[REVISION]);
  if (own.length === 0) return message('There is no earlier revision.');
  const choice = h('select', { 'aria-label': 'Revision' }, own.map((set, index) => h('option', { value: index }, `revision ${set.metadata.annotations[REVISION]}: ${set.spec.template.spec.containers.map((one) => one.image).join(', ')}`)));
  const index = await ask(`Roll back ${object.metadata.name}`, h('p', {}, choice), 'Roll back', { result: () => Number(choice.value) });
  if (index === undefined) return;
  const { template } = own[index].spec;
  delete template.metadata.labels['pod-template-hash'];
  await patch(path, [{ op: 'replace', path: '/spec/template', value: template }], 'application/json-patch+json');
  message('Rolled back');
}

async function cordon({ object, path }) {
  const unschedulable = !object.spec.unschedulable;
  await patch(path, { spec: { unschedulable } });
  message(unschedulable ? 'No new pods are scheduled here' : 'Pods can be scheduled here again');
  window.dispatchEvent(new HashChangeEvent('hashchange'));
}

// Evicts all pods but those of DaemonSets and static ones, as `kubectl drain --ignore-daemonsets` does.
async function drain({ object, path, name }) {
  const { items } = await get(`/api/v1/pods?${new URLSearchParams({ fieldSelector: `spec.nodeName=${name}` })}`);
  const controller = (pod) => pod.metadata.ownerReferences?.find((owner) => owner.controller);
  const stays = (pod) => controller(pod)?.kind === 'DaemonSet' || pod.metadata.annotations?.['kubernetes.io/config.mirror'] || /^(Succeeded|Failed)$/.test(pod.status.phase);
  const going = (items ?? []).filter((pod) => !stays(pod));
  const lost = going.filter((pod) => !controller(pod));
  const progress = h('progress', { max: going.length, value: 0 });
  const sure = await ask(`Drain ${object.metadata.name}`, h('div', {},
    h('p', {}, `${going.length} pods are evicted; disruption budgets are respected.`),
    lost.length > 0 && h('p', { class: 'bad' }, `Nothing creates these again: ${lost.map((pod) => pod.metadata.name).join(', ')}`)), 'Drain', { danger: true });
  if (!sure) return;
  await patch(path, { spec: { unschedulable: true } });
  const note = h('div', {}, `Draining ${name} `, progress);
  document.getElementById('messages').append(note);
  try {
    for (const pod of going) {
      await evict(pod);
      progress.value += 1;
    }
    message(`Drained ${name}`);
  } finally {
    note.remove();
  }
}

async function evict({ metadata: { namespace, name } }) {
  const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods/${encodeURIComponent(name)}/eviction`;
  const body = { apiVersion: 'policy/v1', kind: 'Eviction', metadata: { name, namespace } };
  for (;;) {
    try {
      await send(path, { method: 'POST', body });
      return;
    } catch (error) {
      if (error.status === 404) return;
      // A disruption budget allows no eviction now.
      if (error.status !== 429) throw error;
      await new Promise((resolve) => { setTimeout(resolve, 5000); });
    }
  }
}

async function destroy(subject) {
  const { object, path, kind, namespace, name } = subject;
  const gone = await dependents(subject);
  const list = gone.slice(0, 30).map((one) => h('li', {}, `${one.kind.kind} ${one.name}`));
  const sure = await ask(`Delete ${kind.kind} ${name}`, h('div', {},
    gone.length > 0 ? h('div', {}, `With it go ${gone.length} objects:`, h('ul', {}, list, gone.length > 30 && h('li', {}, '…'))) : h('p', {}, 'Nothing else goes with it.'),
    kind.kind === 'Namespace' && h('p', { class: 'bad' }, 'Everything in the namespace is deleted.')), 'Delete', { danger: true });
  if (!sure) return;
  await remove(path, { apiVersion: 'v1', kind: 'DeleteOptions', preconditions: { uid: object.metadata.uid }, propagationPolicy: 'Background' });
  message(`Deleted ${name}`);
  location.hash = objectLink(kind, namespace, name, 'journey');
}
