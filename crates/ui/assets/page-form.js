// A form for the fields that an object has, made from the object itself: it fits every kind, custom resources too.

import { get } from './api.js';
import { changer } from './change.js';
import { h, replace } from './dom.js';

// Maps whose keys the user chooses.
const MAPS = /^(metadata\.(labels|annotations)|data|stringData|spec\.nodeSelector|spec\.selector|spec\.template\.metadata\.(labels|annotations)|spec\.template\.spec\.nodeSelector)$/;

const HIDDEN = ['apiVersion', 'kind', 'metadata', 'status'];

export async function show({ body, subject, signal }) {
  const view = { object: await get(subject.path, { signal }), filter: '' };
  const fields = h('form', { class: 'fields', onsubmit: (event) => event.preventDefault() });
  const change = await changer(subject, signal, () => ({ body: view.object, type: 'application/json' }), async () => {
    view.object = await get(subject.path, { signal });
    draw();
  });
  view.touched = change.touched;
  view.secret = view.object.kind === 'Secret';
  const search = h('input', { type: 'search', placeholder: 'Find a field', 'aria-label': 'Find a field', oninput: () => { view.filter = search.value.toLowerCase(); draw(); } });
  const draw = () => replace(fields, groups(view, draw));
  draw();
  replace(body, change.element, h('p', { class: 'row' }, search, h('span', { class: 'dim' }, 'Fields that are not here yet can be added in the YAML.')), fields);
}

function groups(view, draw) {
  const { object } = view;
  const labels = ['labels', 'annotations'].map((name) => group(view, draw, `metadata.${name}`, object.metadata[name] ?? {}, (value) => { object.metadata[name] = value; }));
  const rest = Object.keys(object).filter((key) => !HIDDEN.includes(key)).map((key) => group(view, draw, key, object[key], (value) => { object[key] = value; }));
  return [...labels, ...rest];
}

const matches = (view, path) => !view.filter || path.toLowerCase().includes(view.filter);

// Whether a value has a field that is shown.
function hasMatch(view, path, value) {
  if (matches(view, path)) return true;
  return typeof value === 'object' && value !== null && Object.entries(value).some(([key, inner]) => hasMatch(view, `${path}.${key}`, inner));
}

function group(view, draw, path, value, set, remove) {
  if (!hasMatch(view, path, value)) return undefined;
  if (typeof value !== 'object' || value === null) return leaf(view, path, value, set, remove && (() => { remove(); view.touched(); draw(); }));
  const isList = Array.isArray(value);
  const entries = isList ? value.map((item, index) => [index, item]) : Object.entries(value);
  const children = entries.map(([key, inner]) => group(view, draw, `${path}.${key}`, inner,
    (changed) => { value[key] = changed; set(value); },
    isList || MAPS.test(path) ? () => { if (isList) value.splice(key, 1); else delete value[key]; set(value); } : undefined));
  const title = path.split('.').slice(path.startsWith('metadata.') ? 1 : -1).join('.');
  const named = isNaN(Number(title)) ? title : value.name ?? value.type ?? value.key ?? value.ip ?? `${Number(title) + 1}.`;
  return h('details', { open: true }, h('summary', {}, named), children,
    (MAPS.test(path) || /\.env$/.test(path)) && adder(path, value, set, view, draw, isList),
    remove && h('button', { type: 'button', class: 'small', 'aria-label': `Remove ${path}`, onclick: () => { remove(); view.touched(); draw(); } }, 'Remove'));
}

// Adds an entry to a map, or a variable to an environment.
function adder(path, value, set, view, draw, isList) {
  const key = h('input', { placeholder: 'name', 'aria-label': `Name of a new entry of ${path}` });
  const content = h('input', { placeholder: 'value', 'aria-label': `Value of a new entry of ${path}` });
  const add = () => {
    if (!key.value) return;
    if (isList) value.push({ name: key.value, value: content.value });
    else value[key.value] = view.secret && path === 'data' ? encode(content.value) : content.value;
    set(value);
    view.touched();
    draw();
  };
  return h('p', { class: 'row' }, key, content, h('button', { type: 'button', class: 'small', onclick: add }, 'Add'));
}

function leaf(view, path, value, set, remove) {
  const name = path.split('.').slice(path.startsWith('metadata.') ? 2 : -1).join('.');
  const change = (next) => { set(next); view.touched(); };
  const isSecret = view.secret && path.startsWith('data.');
  return h('div', { class: 'field' }, h('label', {}, h('span', { title: path }, name), isSecret ? secret(value, change) : input(path, value, change)),
    remove && h('button', { type: 'button', class: 'small', 'aria-label': `Remove ${path}`, onclick: remove }, '×'));
}

function input(path, value, change) {
  if (typeof value === 'boolean') return h('input', { type: 'checkbox', checked: value, onchange: (event) => change(event.target.checked) });
  if (typeof value === 'number') return h('input', { type: 'number', step: Number.isInteger(value) ? 1 : 'any', value, oninput: (event) => { if (event.target.value !== '') change(Number(event.target.value)); } });
  const text = value ?? '';
  if (text.includes('\n') || text.length > 120) return h('textarea', { rows: Math.min(12, text.split('\n').length + 1), value: text, oninput: (event) => change(event.target.value) });
  return h('input', { value: text, oninput: (event) => change(event.target.value) });
}

// Values of Secrets stay hidden until they are asked for. What is no text stays as it is encoded.
function secret(value, change) {
  const plain = decode(value);
  const field = h('input', { type: 'password', autocomplete: 'off', value: plain ?? value, oninput: () => change(plain === undefined ? field.value : encode(field.value)) });
  const show = h('button', { type: 'button', class: 'small', onclick: () => { field.type = field.type === 'password' ? 'text' : 'password'; replace(show, field.type === 'password' ? 'Show' : 'Hide'); } }, 'Show');
  return [field, show];
}

function decode(value) {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(Uint8Array.from(atob(value), (one) => one.charCodeAt(0)));
  } catch {
    return undefined;
  }
}

const encode = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));
