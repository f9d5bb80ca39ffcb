// Signs in, and shows the page that the address names.

import { connectionHandlers, follow, get, send, session } from './api.js';
import { failed, h, replace } from './dom.js';
import { discover, find, keyOf, kinds, listLink, objectLink } from './kinds.js';
import * as access from './page-access.js';
import * as cluster from './page-cluster.js';
import * as list from './page-list.js';
import * as object from './page-object.js';
import * as problems from './page-problems.js';

const PAGES = [
  ['problems', 'Problems'],
  ['cluster', 'Cluster'],
  ['list/pods', 'Pods'],
  ['list/deployments.apps', 'Workloads'],
  ['list/services', 'Network'],
  ['list/persistentvolumeclaims', 'Storage'],
  ['kinds', 'All kinds'],
  ['access', 'Access'],
];

const main = document.getElementById('main');
const namespaces = document.getElementById('namespace');
let leaving = new AbortController();

// The namespace that lists are limited to; empty for all.
export const chosenNamespace = () => namespaces.value;

async function start() {
  connectionHandlers(signedOut, (reachable) => { document.getElementById('offline').hidden = reachable; });
  const code = new URLSearchParams(location.hash.slice(1)).get('login');
  if (code) {
    // The code leaves the address and the history before anything else happens.
    history.replaceState(null, '', '/ui/#/problems');
    await signIn(code);
  }
  if (!session.token) return signedOut();
  const who = await get('/apis/authentication.k8s.io/v1/selfsubjectreviews', {
    method: 'POST', body: { apiVersion: 'authentication.k8s.io/v1', kind: 'SelfSubjectReview' },
  });
  const name = who.status.userInfo.username;
  replace(document.getElementById('user'), name).title = `${name}\n${(who.status.userInfo.groups ?? []).join('\n')}`;
  await discover();
  fillFinder();
  followNamespaces();
  window.addEventListener('hashchange', show);
  namespaces.addEventListener('change', show);
  document.getElementById('sign-out').addEventListener('click', signOut);
  document.addEventListener('keydown', shortcuts);
  show();
}

async function signIn(code) {
  try {
    const response = await send('/ui/session', { method: 'POST', body: { code } });
    session.token = (await response.json()).token;
  } catch (error) {
    failed(error);
  }
}

async function signOut() {
  await send('/ui/session', { method: 'DELETE' }).catch(failed);
  signedOut();
}

function signedOut() {
  session.token = '';
  leaving.abort();
  document.querySelector('header').hidden = true;
  replace(main, h('h1', {}, 'Knarr'), h('div', { class: 'card' },
    h('p', {}, 'Sign in with a link. On a computer with a kubeconfig for this cluster, run:'),
    h('pre', {}, 'knarr ui'),
    h('p', { class: 'dim' }, 'The link works once, for two minutes. This page then acts with your rights and no others.')));
}

// Shows the page of the current address; what the last page still does is aborted.
function show() {
  leaving.abort();
  leaving = new AbortController();
  const [page, ...parts] = location.hash.replace(/^#\//, '').split('/').map(decodeURIComponent);
  drawNavigation(page, parts);
  const context = { main, parts, signal: leaving.signal, namespace: chosenNamespace() };
  const pages = { problems, cluster, list, object, access, kinds: { show: allKinds } };
  document.title = `${parts.filter((part) => part !== '-').join(' ') || page || 'Knarr'} · Knarr`;
  replace(main);
  Promise.resolve((pages[page] ?? problems).show(context)).catch(failed);
  main.focus({ preventScroll: true });
}

function drawNavigation(page, parts) {
  const current = page === 'list' ? `list/${parts[0]}` : page || 'problems';
  replace(document.getElementById('nav'), PAGES.map(([path, title]) => h('a', {
    href: `#/${path}`, 'aria-current': path === current ? 'page' : undefined,
  }, title)));
}

function allKinds({ main: target }) {
  const groups = Map.groupBy(kinds(), (kind) => kind.group || 'core');
  replace(target, h('h1', {}, 'All kinds'), h('div', { class: 'cards' }, [...groups].sort().map(([group, members]) => h('section', { class: 'card' },
    h('h2', {}, group),
    members.map((kind) => h('div', {}, h('a', { href: listLink(kind) }, kind.kind), ' ', h('span', { class: 'dim' }, kind.short.join(' '))))))));
}

function followNamespaces() {
  const all = h('option', { value: '' }, 'all namespaces');
  replace(namespaces, all);
  follow('/api/v1/namespaces', {}, new AbortController().signal, ({ rows }) => {
    const chosen = namespaces.value;
    const names = [...rows.values()].map((row) => row.object.metadata.name).sort();
    replace(namespaces, all, names.map((name) => h('option', { value: name }, name)));
    namespaces.value = names.includes(chosen) ? chosen : '';
  }).catch(() => {
    // Who may not list namespaces types one.
    const name = h('input', { id: 'namespace', value: 'default', 'aria-label': 'Namespace', onchange: show });
    replace(namespaces, h('option', { value: 'default' }, 'default'));
    namespaces.value = 'default';
    name.addEventListener('change', () => {
      replace(namespaces, h('option', { value: name.value }, name.value));
      namespaces.value = name.value;
      show();
    });
    namespaces.after(name);
    namespaces.hidden = true;
  });
}

function fillFinder() {
  replace(document.getElementById('find-kinds'), kinds().map((kind) => h('option', { value: keyOf(kind) })));
  document.getElementById('find').addEventListener('submit', (event) => {
    event.preventDefault();
    const field = document.getElementById('find-text');
    const [words, name] = field.value.trim().split(/[/\s]+/);
    const kind = find(words ?? '');
    if (!kind) return failed(new Error(`the server doesn't have a resource type "${words}"`));
    location.hash = name ? objectLink(kind, kind.namespaced ? chosenNamespace() || 'default' : '', name) : listLink(kind);
    field.value = '';
  });
}

function shortcuts(event) {
  if (event.target.closest('input, textarea, select, .terminal')) return;
  if (event.key === '/') {
    event.preventDefault();
    document.getElementById('find-text').focus();
  }
}

start().catch(failed);
