// Kinds that run pods, and which pods are theirs. A CronJob's are those of its Jobs.

import { keyOf } from './kinds.js';

const WORKLOADS = ['deployments.apps', 'statefulsets.apps', 'daemonsets.apps', 'replicasets.apps', 'jobs.batch', 'replicationcontrollers'];

export const runsPods = (kind) => ['pods', 'cronjobs.batch', ...WORKLOADS].includes(keyOf(kind));

// The label selector of a workload's pods, as a query has it.
export function selectorOf(kind, object) {
  if (!WORKLOADS.includes(keyOf(kind)) || !object?.spec?.selector) return undefined;
  const { matchLabels, matchExpressions = [] } = keyOf(kind) === 'replicationcontrollers' ? { matchLabels: object.spec.selector } : object.spec.selector;
  const equal = Object.entries(matchLabels ?? {}).map(([key, value]) => `${key}=${value}`);
  const written = {
    In: ({ key, values }) => `${key} in (${values.join()})`, NotIn: ({ key, values }) => `${key} notin (${values.join()})`,
    Exists: ({ key }) => key, DoesNotExist: ({ key }) => `!${key}`,
  };
  return [...equal, ...matchExpressions.map((one) => written[one.operator](one))].join();
}
