// Problems first: the diagnosis of every object that is not as it should be.

import { get, pause } from './api.js';
import { h, replace } from './dom.js';
import { objectLink, ofReference } from './kinds.js';

const INTERVAL = 15000;

export async function show({ main, namespace, signal }) {
  const body = h('div', { 'aria-live': 'polite', 'aria-busy': 'true' }, h('p', { class: 'empty' }, 'Looking at the cluster'), h('progress', {}));
  replace(main, h('h1', {}, 'Problems'), body);
  while (!signal.aborted) {
    if (!document.hidden) draw(body, await get(`/ui/problems?${new URLSearchParams({ namespace })}`, { signal }));
    await pause(INTERVAL, signal);
  }
}

function draw(body, { problems, examined, unreadable, incomplete, truncated }) {
  body.setAttribute('aria-busy', 'false');
  replace(body,
    problems.length === 0 && h('p', { class: 'card good' }, `No problem found in ${examined} objects.`),
    problems.map(problem),
    truncated && h('p', { class: 'dim' }, 'There are more problems than are shown here.'),
    incomplete.length > 0 && h('p', { class: 'dim' }, `Only the first 5000 were examined of: ${incomplete.join(', ')}. Choose a namespace to see less at a time.`),
    unreadable.length > 0 && h('p', { class: 'dim' }, `Not examined, because you may not list them: ${unreadable.join(', ')}.`));
}

function problem({ object, findings }) {
  const kind = ofReference(object);
  const title = `${object.kind.toLowerCase()}/${object.name}`;
  return h('section', { class: 'card problem' },
    h('h3', {}, kind ? h('a', { href: objectLink(kind, object.namespace, object.name) }, title) : title, ' ', h('span', { class: 'dim' }, object.namespace)),
    findings.map((finding) => h('div', {},
      h('b', {}, finding.cause),
      finding.evidence.length > 0 && h('ul', {}, finding.evidence.map((line) => h('li', {}, line))),
      h('p', { class: 'fix' }, finding.fix))));
}
