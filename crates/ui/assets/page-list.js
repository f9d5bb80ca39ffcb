// All objects of a kind, with the columns that the API server gives for it.

import { follow, soon } from './api.js';
import { h, replace, tabs } from './dom.js';
import { plain } from './format.js';
import { Grid } from './grid.js';
import { find, keyOf, listLink, listPath, objectLink } from './kinds.js';

// Kinds that people look at together, some with a page that shows them at a glance.
const FAMILIES = [
  ['', ['deployments.apps', 'statefulsets.apps', 'daemonsets.apps', 'replicasets.apps', 'jobs.batch', 'cronjobs.batch', 'horizontalpodautoscalers.autoscaling']],
  ['network', ['services', 'endpointslices.discovery.k8s.io', 'ingresses.networking.k8s.io', 'networkpolicies.networking.k8s.io']],
  ['storage', ['persistentvolumeclaims', 'persistentvolumes', 'storageclasses.storage.k8s.io', 'volumeattachments.storage.k8s.io', 'volumesnapshots.snapshot.storage.k8s.io', 'csidrivers.storage.k8s.io']],
];

export async function show({ main, parts, namespace, signal }) {
  const kind = find(parts[0] ?? 'pods');
  if (!kind) return replace(main, h('h1', {}, parts[0]), h('p', { class: 'empty' }, `The server has no kind ${parts[0]}.`));
  const grid = new Grid(kind.kind);
  const count = h('span', { class: 'dim', role: 'status' });
  const search = h('input', { type: 'search', placeholder: 'Filter', 'aria-label': 'Filter rows', oninput: () => { grid.search(search.value); counted(); } });
  // Screen readers say it when it changes.
  const counted = () => {
    const text = `${grid.shown.length} of ${grid.rows.length}`;
    if (count.textContent !== text) replace(count, text);
  };
  replace(main, h('h1', {}, kind.kind), family(keyOf(kind)), h('p', { class: 'row' }, search, count), grid.element);
  const within = kind.namespaced && !namespace;
  // Rows that did not change since they were drawn last: most of them.
  let known = new WeakMap();
  let knownFor = '';
  const rowOf = (row, shown) => {
    if (!known.has(row)) known.set(row, toRow(kind, row, shown, within));
    return known.get(row);
  };
  let state;
  const draw = () => {
    const shown = state.columns.map((column, index) => ({ column, index })).filter(({ column }) => column.priority === 0);
    const columns = shown.map(({ column }) => ({ name: column.name, description: column.description, wide: column.name === 'Name' }));
    grid.setColumns(within ? [{ name: 'Namespace' }, ...columns] : columns);
    const names = JSON.stringify(columns);
    if (names !== knownFor) { known = new WeakMap(); knownFor = names; }
    grid.update(Array.from(state.rows.values(), (row) => rowOf(row, shown)));
    counted();
  };
  const drawSoon = soon(draw, signal, 100);
  try {
    await follow(listPath(kind, namespace), {}, signal, (next) => {
      const isFirst = !state;
      state = next;
      if (isFirst) draw(); else drawSoon();
    });
  } catch (error) {
    replace(main, h('h1', {}, kind.kind), h('p', { class: 'card bad' }, error.message));
  }
}

function toRow(kind, row, shown, within) {
  const { name, namespace, creationTimestamp } = row.object.metadata;
  const cells = shown.map(({ index }) => plain(String(row.cells[index] ?? '')));
  const sort = shown.map(({ column, index }) => (column.name === 'Age' ? -Date.parse(creationTimestamp) : row.cells[index]));
  return {
    cells: within ? [namespace, ...cells] : cells,
    sort: within ? [namespace, ...sort] : sort,
    link: objectLink(kind, namespace, name),
  };
}

// Tabs of the kinds that belong together; `current` is the key of a kind or the name of a page.
export function family(current) {
  const [page, members] = FAMILIES.find(([name, keys]) => name === current || keys.includes(current)) ?? [];
  const glance = page ? [[`#/${page}`, 'At a glance', page === current]] : [];
  return members && tabs('Kinds', [...glance, ...members.map(find).filter(Boolean).map((one) => [listLink(one), one.kind, keyOf(one) === current])]);
}
