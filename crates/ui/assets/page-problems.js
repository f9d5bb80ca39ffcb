// Problems first: the diagnosis of every object that is not as it should be.

import { backoff, get } from './api.js';
import { h, replace } from './dom.js';
import { plain } from './format.js';
import { objectLink, ofReference } from './kinds.js';

const INTERVAL = 15000;

export async function show({ main, namespace, signal }) {
  const body = h('div', { 'aria-live': 'polite', 'aria-busy': 'true' }, h('p', { class: 'empty' }, 'Examining the cluster'), h('progress', { 'aria-label': 'Examining the cluster' }));
  const title = h('h1', {}, 'Problems');
  replace(main, title, body);
  let shown = '';
  while (!signal.aborted) {
    const found = document.hidden ? undefined : await get(`/ui/problems?${new URLSearchParams({ namespace })}`, { signal }).catch((error) => failing(body, error, signal));
    // A screen reader says what changed, so nothing is drawn again that has not.
    if (found && JSON.stringify(found) !== shown) {
      shown = JSON.stringify(found);
      replace(title, found.problems.length > 0 ? `Problems (${found.problems.length}${found.truncated ? '+' : ''})` : 'Problems');
      draw(body, found);
    }
    await backoff(INTERVAL, signal);
  }
}

// A server that is away is asked again; what was found stays on the page.
function failing(body, error, signal) {
  if (signal.aborted || error.status === undefined) return undefined;
  body.setAttribute('aria-busy', 'false');
  replace(body, h('p', { class: 'card bad' }, error.message));
  return undefined;
}

function draw(body, { problems, examined, unreadable, incomplete, truncated }) {
  body.setAttribute('aria-busy', 'false');
  replace(body,
    problems.length === 0 && h('p', { class: 'card good' }, `No problem found in ${examined} objects.`),
    problems.map(({ object, findings }) => problemCard(object, findings)),
    truncated && h('p', { class: 'dim' }, 'There are more problems than are shown here.'),
    incomplete.length > 0 && h('p', { class: 'dim' }, `Only the first 50000 were examined of: ${incomplete.join(', ')}. Choose a namespace to examine all of its objects.`),
    unreadable.length > 0 && h('p', { class: 'dim' }, `Not examined, because you may not list them: ${unreadable.join(', ')}.`));
}

// What is wrong, the evidence, and what to do; with the object's name unless its own page shows it.
export function problemCard(object, findings) {
  return h('section', { class: 'card problem' }, object && title(object),
    findings.map((finding) => h('div', {},
      h('b', {}, plain(finding.cause)),
      finding.evidence.length > 0 && h('ul', {}, finding.evidence.map((line) => h('li', {}, plain(line)))),
      h('p', { class: 'fix' }, plain(finding.fix)))));
}

function title(object) {
  const kind = ofReference(object);
  const text = `${object.kind.toLowerCase()}/${object.name}`;
  const link = (tab) => objectLink(kind, object.namespace, object.name, tab);
  return h('h2', {}, kind ? h('a', { href: link() }, text) : text, ' ', h('span', { class: 'dim' }, object.namespace),
    kind && h('a', { class: 'aside', href: link('journey'), 'aria-label': `Journey of ${text}` }, 'journey'));
}
