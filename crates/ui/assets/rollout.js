// How far a workload is with what its spec says, as `kubectl rollout status` decides it.

import { follow } from './api.js';
import { failed, h, message, withProgress } from './dom.js';
import { keyOf, listPath } from './kinds.js';

const number = (value) => value ?? 0;

const RULES = {
  'deployments.apps': deployment, 'statefulsets.apps': statefulSet, 'daemonsets.apps': daemonSet,
  'replicasets.apps': replicas, replicationcontrollers: replicas, 'jobs.batch': job,
};

// {done, all, text, isComplete, isFailed}, or undefined for kinds that roll nothing out.
export function progressOf(kind, object) {
  const rule = RULES[keyOf(kind)];
  const { spec, status } = object ?? {};
  if (!rule || !spec || !status) return undefined;
  const isObserved = number(status.observedGeneration) >= number(object.metadata.generation) || keyOf(kind) === 'jobs.batch';
  const found = rule(spec, status);
  if (!found) return undefined;
  return isObserved ? { ...found, isComplete: found.done >= found.all && !found.text } : { ...found, text: 'the change is not observed yet', isComplete: false };
}

function deployment(spec, status) {
  const [all, updated, available] = [number(spec.replicas), number(status.updatedReplicas), number(status.availableReplicas)];
  const old = number(status.replicas) - updated;
  const done = Math.min(updated, Math.max(0, available - Math.max(0, old)), all);
  const progressing = (status.conditions ?? []).find((one) => one.type === 'Progressing');
  if (progressing?.reason === 'ProgressDeadlineExceeded') return { done, all, text: 'it exceeded its progress deadline', isFailed: true };
  const text = (spec.paused && updated < all && 'it is paused') || (updated < all && `${updated} of ${all} pods are new`) || (old > 0 && `${old} old pods are still there`)
    || (available < updated && `${available} of ${updated} new pods are available`) || '';
  return { done, all, text };
}

function statefulSet(spec, status) {
  const all = number(spec.replicas);
  const [ready, updated] = [number(status.readyReplicas), number(status.updatedReplicas)];
  const wanted = all - Math.min(all, number(spec.updateStrategy?.rollingUpdate?.partition));
  const isRolling = status.updateRevision !== status.currentRevision && spec.updateStrategy?.type !== 'OnDelete';
  const text = (ready < all && `${ready} of ${all} pods are ready`) || (isRolling && updated < wanted && `${updated} of ${wanted} pods are new`)
    || (number(status.replicas) > all && `${number(status.replicas) - all} pods are still to go`) || '';
  return { done: isRolling ? Math.min(ready, updated + all - wanted) : Math.min(ready, all), all, text };
}

function daemonSet(spec, status) {
  const [all, updated, available] = [status.desiredNumberScheduled, status.updatedNumberScheduled, status.numberAvailable].map(number);
  const isRolling = spec.updateStrategy?.type !== 'OnDelete';
  const text = (isRolling && updated < all && `${updated} of ${all} pods are new`) || (available < all && `${available} of ${all} pods are available`) || '';
  return { done: isRolling ? Math.min(updated, available) : available, all, text };
}

function replicas(spec, status) {
  const [all, ready, now] = [number(spec.replicas), number(status.readyReplicas), number(status.replicas)];
  const text = (now !== all && `there are ${now} pods, ${all} are wanted`) || (ready < all && `${ready} of ${all} pods are ready`) || '';
  return { done: Math.min(ready, all), all, text };
}

function job(spec, status) {
  const all = spec.completions ?? spec.parallelism ?? 1;
  const condition = (type) => status.conditions?.find((one) => one.type === type && one.status === 'True');
  if (condition('Failed')) return { done: number(status.succeeded), all, text: `it failed: ${condition('Failed').message ?? ''}`, isFailed: true };
  return condition('Complete') ? { done: all, all, text: '' } : { done: number(status.succeeded), all, text: `${number(status.active)} pods are running` };
}

// A bar with the progress, or nothing when it is complete.
export function bar(kind, object) {
  const found = progressOf(kind, object);
  if (!found || found.isComplete) return undefined;
  const label = `${found.done} of ${found.all}: ${found.text}`;
  return h('div', { class: 'rollout' }, h('span', { class: found.isFailed ? 'bad' : 'warn' }, label), h('progress', { 'aria-label': 'Progress of the rollout', max: found.all || 1, value: found.done }));
}

// Shows the progress of a change that was just sent, whatever page is open meanwhile. `generation` is that of the changed spec.
export function watchRollout({ kind, namespace, name }, generation) {
  const selector = { fieldSelector: `metadata.name=${name}` };
  withProgress(`Rolling out ${name}:`, async (report, hidden) => {
    const over = new AbortController();
    hidden.addEventListener('abort', () => over.abort(), { once: true });
    let end;
    await follow(listPath(kind, namespace), selector, over.signal, ({ rows, complete }) => {
      const object = [...rows.values()][0];
      if (complete && !object) { end = [`${name} was deleted`]; return over.abort(); }
      const found = object?.metadata.generation >= generation && progressOf(kind, object);
      if (!found) return undefined;
      report(found.done, found.all, found.text);
      if (found.isComplete) end = [`Rolled out ${name}`];
      if (found.isFailed) end = [`${name}: ${found.text}`, 'error'];
      return end && over.abort();
    }, { objects: true });
    if (end) message(...end);
  }, { stop: 'Hide' }).catch(failed);
}
