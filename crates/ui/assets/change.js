// A change of an object: what the server would make of it is shown first, then it is saved.

import { send, text } from './api.js';
import { failed, h, message, replace } from './dom.js';
import { render } from './diff.js';

const YAML = 'application/yaml';

// The buttons and the preview of a change. `edited` gives {body, type}; `onSaved` gets the object's new YAML.
export async function changer(subject, signal, edited, onSaved) {
  let original = withoutManagedFields(await text(subject.path, { accept: YAML, signal }));
  const preview = h('div', { 'aria-live': 'polite' });
  const apply = h('button', { type: 'button', class: 'primary', disabled: true, onclick: () => save().catch(failed) }, 'Save');
  const check = h('button', { type: 'button', onclick: () => review().catch(failed) }, 'Review the change');
  const put = (dry) => {
    const { body, type } = edited();
    return send(`${subject.path}?fieldValidation=Strict${dry ? '&dryRun=All' : ''}`, { method: 'PUT', body, type, accept: YAML });
  };
  const review = async () => {
    apply.disabled = true;
    const result = await (await put(true)).text();
    replace(preview, h('h2', {}, 'What will change'), render(original, withoutManagedFields(result)));
    apply.disabled = false;
  };
  const save = async () => {
    original = withoutManagedFields(await (await put(false)).text());
    apply.disabled = true;
    replace(preview);
    message('Saved');
    await onSaved(original);
  };
  return {
    original,
    element: h('div', {}, h('p', { class: 'row' }, check, apply), preview),
    // What was reviewed is no longer what would be saved.
    touched: () => { apply.disabled = true; },
  };
}

// The object as text.
export async function yaml({ body, subject, signal }) {
  const area = h('textarea', { class: 'edit', spellcheck: 'false', 'aria-label': 'YAML of the object' });
  const change = await changer(subject, signal, () => ({ body: area.value, type: YAML }), (saved) => { area.value = saved; });
  area.value = change.original;
  area.addEventListener('input', change.touched);
  replace(body, change.element, area);
}

// Managed fields are bookkeeping: a block of metadata that nobody edits. Leaving it out of an update keeps it. Other fields may
// have the same name, such as a key of a ConfigMap.
export function withoutManagedFields(yamlText) {
  const kept = [];
  let inside = false;
  let top = '';
  for (const line of yamlText.split('\n')) {
    if (/^[^\s-]/.test(line)) top = line;
    if (top === 'metadata:' && /^  managedFields:/.test(line)) { inside = true; continue; }
    if (inside && /^ {2}[- ]/.test(line)) continue;
    inside = false;
    kept.push(line);
  }
  return kept.join('\n');
}
