// Builds elements. Text only ever becomes text nodes, so nothing that the cluster contains can become markup; characters that
// steer terminals or turn the direction of text around are left out. What is in fields stays as it is.

import { plain } from './format.js';

const SVG = 'http://www.w3.org/2000/svg';

export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'value') element.value = value;
    else if (name === 'checked' || name === 'disabled' || name === 'hidden') element[name] = value;
    else if (name === 'href') element.setAttribute('href', safeLink(value));
    else element.setAttribute(name, value === true ? '' : plain(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(plain(child)));
  }
}

// Links lead to pages of this application only.
function safeLink(link) {
  return link.startsWith('#') || link.startsWith('/ui/') ? link : '#/problems';
}

// Replaces what is in an element. Who walks through links and buttons by keyboard stays at the one that has taken the place.
export function replace(element, ...children) {
  const at = element.contains(document.activeElement) && document.activeElement.closest('a[href], button');
  element.replaceChildren();
  append(element, children);
  if (at && at !== element) focusLike(element, at);
  return element;
}

const identity = (one) => one.getAttribute('href') ?? one.getAttribute('aria-label') ?? one.textContent;

function focusLike(element, last) {
  const [tag, known] = [last.localName, identity(last)];
  [...element.querySelectorAll(tag)].find((one) => identity(one) === known)?.focus({ preventScroll: true });
}

// A part of a page with a heading.
export const card = (title, ...children) => h('section', { class: 'card' }, title && h('h2', {}, title), children);

// A small table; rows are lists of cells. A cell may be a text, an element, or [class, text].
export function table(headings, rows, label) {
  const cell = (value, index) => {
    const [shade, content] = Array.isArray(value) ? value : ['', value];
    return h(index === 0 ? 'th' : 'td', { class: shade, scope: index === 0 ? 'row' : undefined }, content);
  };
  return h('div', { class: 'scroll' }, h('table', { class: 'plain', 'aria-label': label },
    headings && h('thead', {}, h('tr', {}, headings.map((title) => h('th', { scope: 'col' }, title)))),
    h('tbody', {}, rows.map((row) => h('tr', {}, row.map(cell))))));
}

// Tabs as links, of which one is current: [[link, title, isCurrent]].
export const tabs = (label, all) => h('nav', { class: 'tabs', 'aria-label': label }, all.map(([href, title, isCurrent]) => h('a', {
  href, 'aria-current': isCurrent ? 'page' : undefined,
}, title)));

// A message that disappears by itself, unless it is an error or to be kept. The same one is not shown twice.
export function message(text, kind = '', { keep = kind === 'error' } = {}) {
  const known = [...document.querySelectorAll('#messages > div')].find((one) => typeof text === 'string' && one.textContent.startsWith(`${text} ×`));
  if (known) return;
  const box = h('div', { class: kind, role: kind === 'error' ? 'alert' : undefined }, text, ' ');
  const close = h('button', { type: 'button', 'aria-label': 'Dismiss', onclick: () => box.remove() }, '×');
  box.append(close);
  const list = document.getElementById('messages');
  list.append(box);
  // A server that keeps failing must not fill the screen.
  while (list.querySelectorAll(':scope > :not(.progress)').length > 5) list.querySelector(':scope > :not(.progress)').remove();
  if (!keep) setTimeout(() => box.remove(), 6000);
}

export function failed(error) {
  if (error?.name !== 'AbortError') message(error?.message ?? String(error), 'error');
}

// A modal question; resolves with what `body` and the chosen button give, or undefined when it was cancelled. What destroys
// is not done by the Enter key alone: the focus is on the way out, unless there is something to type.
export function ask(title, body, label, { danger = false, result = () => true } = {}) {
  return new Promise((resolve) => {
    const opener = document.activeElement;
    const finish = (value) => { dialog.close(); dialog.remove(); giveBack(opener); resolve(value); };
    const cancel = h('button', { type: 'button', onclick: () => finish(undefined) }, label ? 'Cancel' : 'Close');
    const dialog = h('dialog', { 'aria-labelledby': 'dialog-title', 'aria-modal': 'true', oncancel: (event) => { event.preventDefault(); finish(undefined); } },
      h('form', { onsubmit: (event) => { event.preventDefault(); finish(result()); } },
        h('h2', { id: 'dialog-title' }, title), body,
        h('p', { class: 'row' }, label && h('button', { class: danger ? 'danger' : 'primary' }, label), cancel)));
    document.body.append(dialog);
    dialog.showModal();
    if (danger || !label) (dialog.querySelector('input, select') ?? cancel).focus();
  });
}

// Where the keyboard was before a dialog; the button may have been drawn again meanwhile.
function giveBack(opener) {
  const at = opener.isConnected ? opener : [...document.querySelectorAll(opener.localName)].find((one) => identity(one) === identity(opener));
  (at ?? document.getElementById('main')).focus({ preventScroll: true });
}

// Long work: a line with its progress, until `work` ends. `work` gets a function that sets done, all and a text; without `all`
// nobody knows how much there is. `stop` names the button: some work can be stopped, some only be hidden.
export async function withProgress(title, work, { stop = 'Stop' } = {}) {
  const bar = h('progress', { 'aria-label': title });
  const text = h('span', { class: 'dim' });
  const stopping = new AbortController();
  const note = h('div', { class: 'progress' }, title, ' ', text, bar, h('button', { type: 'button', 'aria-label': `${stop}: ${title}`, onclick: () => { stopping.abort(); note.hidden = true; } }, stop));
  document.getElementById('messages').append(note);
  const report = (done, all, detail = '') => {
    if (all === undefined) bar.removeAttribute('value');
    else { bar.max = all || 1; bar.value = done; }
    const line = [all === undefined ? '' : `${done} of ${all}`, detail].filter(Boolean).join(' ');
    // Screen readers say what changed.
    if (text.textContent !== line) replace(text, line);
  };
  try {
    return await work(report, stopping.signal);
  } finally {
    note.remove();
  }
}
