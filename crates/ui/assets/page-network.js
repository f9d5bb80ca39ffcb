// The network at a glance: Services and whether something responds behind them, what leads in from outside, and policies.

import { follow, soon } from './api.js';
import { card, failed, h, replace, table } from './dom.js';
import { Grid } from './grid.js';
import { find, listPath, objectLink } from './kinds.js';
import { family } from './page-list.js';

const KINDS = ['services', 'endpointslices.discovery.k8s.io', 'ingresses.networking.k8s.io', 'networkpolicies.networking.k8s.io'];

export async function show({ main, namespace, signal }) {
  const lists = Object.fromEntries(KINDS.map((key) => [key, new Map()]));
  const grid = new Grid('Services');
  grid.setColumns(['Namespace', 'Service', 'Type', 'Address', 'Ports', 'Ready endpoints', 'Reached from'].map((name) => ({ name, wide: name === 'Service' })));
  const summary = h('p', { role: 'status' });
  const others = h('div', {});
  replace(main, h('h1', {}, 'Network'), family('network'), summary, grid.element, others);
  const draw = soon(() => drawAll(lists, grid, summary, others), signal);
  await Promise.all(KINDS.map((key) => follow(listPath(find(key), namespace), {}, signal, ({ rows }) => { lists[key] = rows; draw(); }, { objects: true }).catch(failed)));
}

function drawAll(lists, grid, summary, others) {
  const [services, slices, ingresses, policies] = KINDS.map((key) => [...lists[key].values()]);
  const ready = countEndpoints(slices);
  const hosts = hostsByService(ingresses);
  const rows = services.map((service) => toRow(service, ready, hosts));
  grid.update(rows);
  const unserved = rows.filter((row) => row.isUnserved).length;
  replace(summary, `${services.length} Services, `, h('span', { class: unserved ? 'bad' : 'good' }, unserved ? `${unserved} without a ready endpoint` : 'each with a ready endpoint'),
    `, ${ingresses.length} Ingresses, ${policies.length} network policies.`);
  replace(others, ingresses.length > 0 && card('Ingresses', table(['Host', 'Path', 'Service', 'TLS', 'Ingress'], ingresses.flatMap(routes), 'Ingresses')),
    policies.length > 0 && card('Network policies', table(['Policy', 'Namespace', 'Applies to', 'Lets in', 'Lets out'], policies.map(policyRow), 'Network policies')));
}

const nameOf = ({ metadata }) => `${metadata.namespace}/${metadata.name}`;

// How many endpoints each Service has, and how many of them are ready.
function countEndpoints(slices) {
  const counts = new Map();
  for (const slice of slices) {
    const service = `${slice.metadata.namespace}/${slice.metadata.labels?.['kubernetes.io/service-name']}`;
    const count = counts.get(service) ?? { ready: 0, all: 0 };
    for (const endpoint of slice.endpoints ?? []) {
      count.all += 1;
      if (endpoint.conditions?.ready !== false) count.ready += 1;
    }
    counts.set(service, count);
  }
  return counts;
}

function hostsByService(ingresses) {
  const hosts = new Map();
  for (const { metadata, spec } of ingresses) {
    for (const rule of spec.rules ?? []) {
      for (const path of rule.http?.paths ?? []) {
        const service = `${metadata.namespace}/${path.backend?.service?.name}`;
        hosts.set(service, [...(hosts.get(service) ?? []), rule.host || '*']);
      }
    }
  }
  return hosts;
}

function toRow(service, ready, hosts) {
  const { metadata, spec, status } = service;
  const { ready: up = 0, all = 0 } = ready.get(nameOf(service)) ?? {};
  const external = [...(status?.loadBalancer?.ingress ?? []).map((one) => one.ip ?? one.hostname), ...(hosts.get(nameOf(service)) ?? []), ...(spec.type === 'NodePort' ? ['node ports'] : [])];
  const ports = (spec.ports ?? []).map((port) => `${port.port}${port.nodePort ? `:${port.nodePort}` : ''}/${port.protocol}`);
  const isExternal = spec.type === 'ExternalName';
  // Without a selector, somebody else says what is behind it: the cluster's DNS, for one, is not a pod here.
  const isUnserved = !isExternal && up === 0 && Object.keys(spec.selector ?? {}).length > 0;
  return {
    isUnserved,
    cells: [metadata.namespace, metadata.name, spec.type, isExternal ? spec.externalName : (spec.clusterIPs ?? [spec.clusterIP]).join(' '), ports.join(' '),
      isUnserved ? 'NotReady 0' : all === 0 ? '' : `${up}/${all}`, [...new Set(external)].join(' ')],
    link: objectLink(find('services'), metadata.namespace, metadata.name),
  };
}

function routes({ metadata, spec }) {
  const link = h('a', { href: objectLink(find('ingresses.networking.k8s.io'), metadata.namespace, metadata.name) }, `${metadata.namespace}/${metadata.name}`);
  const tls = new Set((spec.tls ?? []).flatMap((one) => one.hosts ?? []));
  const target = (backend) => (backend?.service ? `${backend.service.name}:${backend.service.port?.name ?? backend.service.port?.number}` : backend?.resource?.name ?? '');
  const rows = (spec.rules ?? []).flatMap((rule) => (rule.http?.paths ?? []).map((path) => [rule.host || '*', path.path ?? '/', target(path.backend), tls.has(rule.host) ? 'yes' : 'no', link.cloneNode(true)]));
  return spec.defaultBackend ? [...rows, ['*', '(else)', target(spec.defaultBackend), '', link.cloneNode(true)]] : rows;
}

function policyRow({ metadata, spec }) {
  const labels = (selector) => Object.entries(selector?.matchLabels ?? {}).map(([key, value]) => `${key}=${value}`).join(', ') || (selector?.matchExpressions ? 'an expression' : 'all pods');
  const types = spec.policyTypes ?? ['Ingress'];
  const side = (type, rules, peers) => {
    if (!types.includes(type)) return ['dim', 'everything'];
    if (!rules?.length) return ['warn', 'nothing'];
    return rules.map((rule) => `${(rule[peers] ?? []).map((peer) => peer.ipBlock?.cidr ?? [peer.namespaceSelector && `namespaces ${labels(peer.namespaceSelector)}`, peer.podSelector && labels(peer.podSelector)].filter(Boolean).join(' in ')).join(' or ') || 'anyone'}${rule.ports ? ` at ${rule.ports.map((port) => port.port ?? 'any port').join()}` : ''}`).join('; ');
  };
  return [h('a', { href: objectLink(find('networkpolicies.networking.k8s.io'), metadata.namespace, metadata.name) }, metadata.name), metadata.namespace, labels(spec.podSelector), side('Ingress', spec.ingress, 'from'), side('Egress', spec.egress, 'to')];
}
