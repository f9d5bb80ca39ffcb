// CPU and memory of a pod's containers, of the pods of a workload, or of a node, as charts that grow while the page is open.

import { backoff, get } from './api.js';
import { spark } from './chart.js';
import { card, h, replace } from './dom.js';
import { bytes, cores, quantity } from './format.js';
import { keyOf } from './kinds.js';
import { selectorOf } from './workload.js';

const SAMPLES = 80;
const INTERVAL = 15000;
const METRICS = '/apis/metrics.k8s.io/v1beta1';

export async function show(target, { kind, name, namespace, object }, signal) {
  const within = `${METRICS}/namespaces/${encodeURIComponent(namespace)}/pods`;
  const selector = selectorOf(kind, object);
  const path = {
    pods: `${within}/${encodeURIComponent(name)}`,
    nodes: `${METRICS}/nodes/${encodeURIComponent(name)}`,
  }[keyOf(kind)] ?? (selector && `${within}?${new URLSearchParams({ labelSelector: selector })}`);
  if (!path) return;
  const history = new Map();
  while (!signal.aborted) {
    // Without metrics there is nothing to show; they come a moment after a pod starts.
    const metrics = document.hidden ? undefined : await get(path, { signal }).catch(() => undefined);
    for (const one of metrics ? samples(metrics, name) : []) {
      const values = history.get(one.name) ?? { cpu: [], memory: [] };
      values.cpu = [...values.cpu, one.cpu].slice(-SAMPLES);
      values.memory = [...values.memory, one.memory].slice(-SAMPLES);
      history.set(one.name, values);
    }
    if (history.size > 0) replace(target, card('Usage', [...history].map(([source, values]) => chart(source, values))));
    await backoff(INTERVAL, signal);
  }
}

const amounts = (usage) => ({ cpu: quantity(usage.cpu), memory: quantity(usage.memory) });

// What one reading says: per container of a pod, the sum of a workload's pods, or a node.
function samples(metrics, name) {
  if (metrics.containers) return metrics.containers.map((one) => ({ name: one.name, ...amounts(one.usage) }));
  if (!metrics.items) return [{ name, ...amounts(metrics.usage) }];
  if (metrics.items.length === 0) return [];
  const sum = { name: 'all pods', cpu: 0, memory: 0 };
  for (const container of metrics.items.flatMap((pod) => pod.containers)) {
    const { cpu, memory } = amounts(container.usage);
    sum.cpu += cpu;
    sum.memory += memory;
  }
  return [sum];
}

function chart(name, { cpu, memory }) {
  const one = (label, values, format) => h('div', {},
    h('span', { class: 'dim' }, `${label} ${format(values.at(-1))}, at most ${format(Math.max(...values))}`), spark(values, `${label} of ${name}`));
  return h('div', {}, h('b', {}, name), h('div', { class: 'charts' }, one('CPU', cpu, cores), one('Memory', memory, bytes)));
}
