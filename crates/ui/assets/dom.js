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

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

// A message that disappears by itself, unless it is an error.
export function message(text, kind = '') {
  const box = h('div', { class: kind }, text, ' ');
  const close = h('button', { type: 'button', 'aria-label': 'Dismiss', onclick: () => box.remove() }, '×');
  box.append(close);
  document.getElementById('messages').append(box);
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
      h('h2', {}, title), body,
      h('p', { class: 'row' },
        h('button', { type: 'button', class: danger ? 'danger' : 'primary', onclick: () => finish(result()) }, label),
        h('button', { type: 'button', onclick: () => finish(undefined) }, 'Cancel')));
    document.body.append(dialog);
    dialog.showModal();
  });
}
