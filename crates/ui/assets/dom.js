// Builds elements. Text only ever becomes text nodes, so nothing that the cluster contains can become markup.

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
    else element.setAttribute(name, value === true ? '' : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
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

// A message that disappears by itself, unless it is an error.
export function message(text, kind = '') {
  const box = h('div', { class: kind, role: kind === 'error' ? 'alert' : undefined }, text, ' ');
  const close = h('button', { type: 'button', 'aria-label': 'Dismiss', onclick: () => box.remove() }, '×');
  box.append(close);
  const list = document.getElementById('messages');
  list.append(box);
  // A server that keeps failing must not fill the screen.
  while (list.children.length > 5) list.firstChild.remove();
  if (kind !== 'error') setTimeout(() => box.remove(), 6000);
}

export function failed(error) {
  if (error?.name !== 'AbortError') message(error?.message ?? String(error), 'error');
}

// A modal question; resolves with what `body` and the chosen button give, or undefined when it was cancelled.
export function ask(title, body, label, { danger = false, result = () => true } = {}) {
  return new Promise((resolve) => {
    const finish = (value) => { dialog.close(); dialog.remove(); resolve(value); };
    const dialog = h('dialog', { 'aria-label': title, oncancel: () => finish(undefined) },
      h('form', { onsubmit: (event) => { event.preventDefault(); finish(result()); } },
        h('h2', {}, title), body,
        h('p', { class: 'row' },
          label && h('button', { class: danger ? 'danger' : 'primary' }, label),
          h('button', { type: 'button', onclick: () => finish(undefined) }, label ? 'Cancel' : 'Close'))));
    document.body.append(dialog);
    dialog.showModal();
  });
}

// Long work: a line with its progress, until `work` ends. `work` gets a function that sets done, all and a text.
export async function withProgress(title, work) {
  const bar = h('progress', { 'aria-label': title });
  const text = h('span', { class: 'dim' });
  const stopping = new AbortController();
  const note = h('div', {}, title, ' ', text, bar, h('button', { type: 'button', onclick: () => stopping.abort() }, 'Stop'));
  document.getElementById('messages').append(note);
  try {
    return await work((done, all, detail = '') => { bar.max = all || 1; bar.value = done; replace(text, `${done} of ${all} ${detail}`); }, stopping.signal);
  } finally {
    note.remove();
  }
}
