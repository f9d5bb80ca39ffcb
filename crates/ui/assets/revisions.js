// Earlier revisions of a workload, and the way back to one of them.

import { get, patch } from './api.js';
import { ask, h, message } from './dom.js';
import { keyOf } from './kinds.js';
import { watchRollout } from './rollout.js';

const REVISION = 'deployment.kubernetes.io/revision';

export async function rollBack(subject) {
  const { kind, namespace, path } = subject;
  // As it is now: what the page shows may be a moment older.
  const object = await get(path);
  if (object.spec.paused) throw new Error(`${object.metadata.name} is paused: resume it before it is rolled back.`);
  const earlier = keyOf(kind) === 'deployments.apps' ? await ofReplicaSets(object, namespace) : await ofControllerRevisions(object, namespace);
  if (earlier.length === 0) return message('There is no earlier revision.');
  const choice = h('select', { 'aria-label': 'Revision' }, earlier.map((one, index) => h('option', { value: index }, `revision ${one.number}: ${one.images.join(', ')}${one.cause ? ` (${one.cause})` : ''}`)));
  const index = await ask(`Roll back ${object.metadata.name}`, h('p', {}, choice), 'Roll back', { result: () => Number(choice.value) });
  if (index === undefined) return undefined;
  const { body, type, number } = earlier[index];
  const changed = await (await patch(path, body, type)).json();
  message(`Rolled back to revision ${number}`);
  return watchRollout(subject, changed.metadata.generation);
}

const owned = (items, object) => (items ?? []).filter((one) => one.metadata.ownerReferences?.some((owner) => owner.uid === object.metadata.uid));

const imagesOf = (template) => (template?.spec?.containers ?? []).map((one) => one.image ?? '');

const causeOf = ({ metadata }) => metadata.annotations?.['kubernetes.io/change-cause'];

const newestFirst = (a, b) => b.number - a.number;

// A Deployment has a ReplicaSet for each revision.
async function ofReplicaSets(object, namespace) {
  const { items } = await get(`/apis/apps/v1/namespaces/${encodeURIComponent(namespace)}/replicasets`);
  const current = JSON.stringify(object.spec.template);
  const all = owned(items, object).map((set) => {
    const { template } = set.spec;
    delete template.metadata.labels['pod-template-hash'];
    return {
      number: Number(set.metadata.annotations?.[REVISION] ?? 0), images: imagesOf(template), cause: causeOf(set),
      body: [{ op: 'replace', path: '/spec/template', value: template }], type: 'application/json-patch+json',
    };
  });
  return all.filter((one) => JSON.stringify(one.body[0].value) !== current).sort(newestFirst);
}

// StatefulSets and DaemonSets keep theirs as patches of themselves; the newest one is what they are now.
async function ofControllerRevisions(object, namespace) {
  const { items } = await get(`/apis/apps/v1/namespaces/${encodeURIComponent(namespace)}/controllerrevisions`);
  return owned(items, object).map((one) => ({
    number: one.revision, images: imagesOf(one.data?.spec?.template), cause: causeOf(one), body: one.data, type: 'application/strategic-merge-patch+json',
  })).sort(newestFirst).slice(1);
}
