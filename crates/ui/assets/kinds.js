// The kinds that the API server serves, and the paths of their objects.

import { get } from './api.js';

const DISCOVERY = 'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList';

let known = [];

// Reads the kinds: the first (preferred) version of each group that serves a resource.
export async function discover() {
  const [core, groups] = await Promise.all([get('/api', { accept: DISCOVERY }), get('/apis', { accept: DISCOVERY })]);
  const seen = new Map();
  for (const group of [...(core.items ?? []), ...(groups.items ?? [])]) {
    const name = group.metadata?.name ?? '';
    for (const version of group.versions ?? []) {
      for (const resource of version.resources ?? []) {
        const key = `${resource.resource}.${name}`;
        if (seen.has(key)) continue;
        seen.set(key, {
          group: name,
          version: version.version,
          kind: resource.responseKind?.kind ?? resource.singularResource,
          plural: resource.resource,
          singular: resource.singularResource,
          short: resource.shortNames ?? [],
          namespaced: resource.scope === 'Namespaced',
          verbs: resource.verbs ?? [],
          subresources: (resource.subresources ?? []).map((one) => one.subresource),
        });
      }
    }
  }
  known = [...seen.values()];
  return known;
}

export const kinds = () => known.filter((kind) => kind.verbs.includes('list'));

// The name of a kind in addresses of this page: `pods`, `deployments.apps`.
export const keyOf = (kind) => (kind.group ? `${kind.plural}.${kind.group}` : kind.plural);

// Finds a kind by what a person types: plural, singular, short name or kind, with or without its group.
export function find(words) {
  const wanted = words.toLowerCase();
  const names = (kind) => [keyOf(kind), kind.plural, kind.singular, kind.kind.toLowerCase(), ...kind.short];
  return known.find((kind) => keyOf(kind) === wanted) ?? known.find((kind) => names(kind).includes(wanted));
}

// Finds the kind of a reference: an ownerReference or an event's object.
export function ofReference({ apiVersion = 'v1', kind }) {
  const group = apiVersion.includes('/') ? apiVersion.split('/')[0] : '';
  return known.find((one) => one.kind === kind && one.group === group);
}

export function listPath(kind, namespace) {
  const root = kind.group ? `/apis/${kind.group}/${kind.version}` : `/api/${kind.version}`;
  const within = kind.namespaced && namespace ? `/namespaces/${encodeURIComponent(namespace)}` : '';
  return `${root}${within}/${kind.plural}`;
}

export const objectPath = (kind, namespace, name) => `${listPath(kind, namespace)}/${encodeURIComponent(name)}`;

export const listLink = (kind) => `#/list/${keyOf(kind)}`;

export function objectLink(kind, namespace, name, tab = '') {
  const parts = [keyOf(kind), namespace || '-', name].map(encodeURIComponent);
  return `#/object/${parts.join('/')}${tab ? `/${tab}` : ''}`;
}
