// Signs in, and shows the page that the address names.

import { connectionHandlers, follow, get, send, session } from './api.js';
import { ask, failed, h, replace, table } from './dom.js';
import { discover, find, keyOf, kinds, listLink, objectLink } from './kinds.js';
import * as access from './page-access.js';
import * as cluster from './page-cluster.js';
import * as list from './page-list.js';
import * as network from './page-network.js';
import * as object from './page-object.js';
import * as problems from './page-problems.js';
import * as storage from './page-storage.js';

const PAGES = [
  ['problems', 'Problems'],
  ['cluster', 'Cluster'],
  ['list/pods', 'Pods'],
  ['list/deployments.apps', 'Workloads'],
  ['network', 'Network'],
  ['storage', 'Storage'],
  ['kinds', 'All kinds'],
  ['access', 'Access'],
];

const main = document.getElementById('main');
const namespaces = document.getElementById('namespace');
let leaving = new AbortController();

// The namespace that lists are limited to; empty for all.
export const chosenNamespace = () => namespaces.value;

async function start() {
  connectionHandlers(signedOut, reachable);
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
  await rediscover();
  startFinder();
  followNamespaces();
  window.addEventListener('hashchange', show);
  namespaces.addEventListener('change', show);
  document.getElementById('sign-out').addEventListener('click', signOut);
  document.addEventListener('keydown', shortcuts);
  document.querySelector('.skip').addEventListener('click', skipToContent);
  show();
}

// Addresses after # are pages: following the link would leave this one.
function skipToContent(event) {
  event.preventDefault();
  main.focus();
}

// A page that failed because the server was away is shown again when it is back; others go on by themselves.
let isBroken = false;

function reachable(now) {
  document.getElementById('offline').hidden = now;
  if (now && isBroken) show();
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

const decoded = (part) => { try { return decodeURIComponent(part); } catch { return part; } };

// Shows the page of the current address; what the last page still does is aborted.
async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  isBroken = false;
  const [page, ...parts] = location.hash.replace(/^#\//, '').split('/').map(decoded);
  // A list may name the namespace that it is limited to.
  if (page === 'list' && parts[1] && [...namespaces.options].some((option) => option.value === parts[1])) namespaces.value = parts[1];
  drawNavigation(page, parts);
  const context = { main, parts, signal, namespace: chosenNamespace() };
  const pages = { problems, cluster, list, object, access, network, storage, kinds: { show: allKinds } };
  document.title = `${parts.filter((part) => part !== '-').join(' ') || page || 'Knarr'} · Knarr`;
  replace(main);
  main.focus({ preventScroll: true });
  try {
    // Kinds of custom resources come and go.
    if (page === 'kinds' || (['list', 'object'].includes(page) && !find(parts[0]))) await rediscover();
    if (!signal.aborted) await (Object.hasOwn(pages, page) ? pages[page] : problems).show(context);
  } catch (error) {
    if (signal.aborted) return;
    isBroken = error.name === 'ConnectionError';
    if (!isBroken) failed(error);
  }
}

async function rediscover() {
  await discover();
  replace(document.getElementById('find-kinds'), kinds().map((kind) => h('option', { value: keyOf(kind) })));
}

function drawNavigation(page, parts) {
  const current = page === 'list' ? `list/${parts[0]}` : page || 'problems';
  document.body.dataset.page = page || 'problems';
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
    const name = h('input', { value: 'default', 'aria-label': 'Namespace' });
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

function startFinder() {
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

const SHORTCUTS = [
  ['/', 'go to a kind or an object, such as deploy/web'],
  ['?', 'show these keys'],
  ['1 to 8', 'go to a page'],
  ['arrows, Page Up, Page Down, Home, End', 'move in tables and among the pods of a node'],
  ['Enter', 'open the row'],
  ['Shift+Tab', 'leave the shell'],
  ['Escape', 'close a dialog'],
];

function shortcuts(event) {
  if (event.target.closest('input, textarea, select, .terminal, dialog') || event.ctrlKey || event.metaKey || event.altKey) return;
  const page = PAGES[Number(event.key) - 1];
  if (event.key === '/') {
    event.preventDefault();
    document.getElementById('find-text').focus();
  } else if (event.key === '?') ask('Keys', table(undefined, SHORTCUTS, 'Keys'));
  else if (page) location.hash = `#/${page[0]}`;
}

start().catch(failed);
