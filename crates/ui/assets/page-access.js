// Who can do what, and which binding and role say so.

import { get, send } from './api.js';
import { failed, h, replace } from './dom.js';
import { find, objectLink } from './kinds.js';

const RBAC = '/apis/rbac.authorization.k8s.io/v1';

export async function show({ main, namespace, signal }) {
  const verb = h('input', { value: 'get', 'aria-label': 'Verb', size: 10 });
  const resource = h('input', { value: 'secrets', 'aria-label': 'Resource', list: 'find-kinds' });
  const result = h('div', { 'aria-live': 'polite' });
  const mine = h('div', {});
  const question = h('form', { class: 'row', onsubmit: (event) => { event.preventDefault(); answer().catch(failed); } },
    'Who can ', verb, resource, namespace ? `in namespace ${namespace}` : 'in all namespaces', h('button', { class: 'primary' }, 'Explain'));
  const answer = async () => replace(result, granted(await readRules(namespace, signal), verb.value, resource.value, namespace));
  replace(main, h('h1', {}, 'Access'), h('section', { class: 'card' }, question, result), mine);
  await Promise.all([answer(), own(mine, namespace, signal)].map((task) => task.catch(failed)));
}

async function readRules(namespace, signal) {
  const list = async (path) => (await get(path, { signal })).items ?? [];
  const within = namespace ? `${RBAC}/namespaces/${encodeURIComponent(namespace)}` : RBAC;
  const [clusterRoles, clusterBindings, roles, bindings] = await Promise.all([
    list(`${RBAC}/clusterroles`), list(`${RBAC}/clusterrolebindings`), list(`${within}/roles`), list(`${within}/rolebindings`),
  ]);
  return { clusterRoles, clusterBindings, roles, bindings };
}

// Whether a rule allows a verb on a resource of a group, `pods/log` style subresources included.
export function allows(rule, verb, group, resource) {
  const has = (list, value) => list?.includes('*') || list?.includes(value);
  const [, sub] = resource.split('/');
  return has(rule.verbs, verb) && has(rule.apiGroups, group) && (has(rule.resources, resource) || (sub && rule.resources?.includes(`*/${sub}`)));
}

function granted(rules, verb, words, namespace) {
  const [base, sub] = words.trim().split('/');
  const kind = find(base);
  if (!kind) return h('p', { class: 'warn' }, `the server doesn't have a resource type "${base}"`);
  const resource = sub ? `${kind.plural}/${sub}` : kind.plural;
  const rows = [];
  for (const binding of [...rules.clusterBindings, ...(kind.namespaced ? rules.bindings : [])]) {
    const where = binding.metadata.namespace;
    const roles = binding.roleRef.kind === 'ClusterRole' ? rules.clusterRoles : rules.roles.filter((role) => role.metadata.namespace === where);
    const role = roles.find((one) => one.metadata.name === binding.roleRef.name);
    const rule = role?.rules?.find((one) => allows(one, verb, kind.group, resource));
    if (!rule) continue;
    for (const subject of binding.subjects ?? []) rows.push({ subject, binding, role, rule, where });
  }
  if (rows.length === 0) return h('p', {}, 'Nobody but members of system:masters.');
  return h('table', { class: 'plain' },
    h('thead', {}, h('tr', {}, ['Who', 'Where', 'Because of', 'Role', 'Only'].map((title) => h('th', { scope: 'col' }, title)))),
    h('tbody', {}, rows.map(({ subject, binding, role, rule, where }) => h('tr', {},
      h('td', {}, `${subject.kind} ${subject.namespace ? `${subject.namespace}/` : ''}${subject.name}`),
      h('td', {}, where ?? (namespace || 'everywhere')),
      h('td', {}, reference(binding, where ? 'rolebindings' : 'clusterrolebindings')),
      h('td', {}, reference(role, role.metadata.namespace ? 'roles' : 'clusterroles')),
      h('td', { class: 'dim' }, (rule.resourceNames ?? []).join(', '))))));
}

function reference({ metadata }, plural) {
  const kind = find(plural);
  return kind ? h('a', { href: objectLink(kind, metadata.namespace ?? '', metadata.name) }, metadata.name) : metadata.name;
}

async function own(target, namespace, signal) {
  const review = await send('/apis/authorization.k8s.io/v1/selfsubjectrulesreviews', {
    method: 'POST', signal,
    body: { apiVersion: 'authorization.k8s.io/v1', kind: 'SelfSubjectRulesReview', spec: { namespace: namespace || 'default' } },
  });
  const { status } = await review.json();
  replace(target, h('section', { class: 'card' }, h('h2', {}, `What you may do in ${namespace || 'default'}`),
    h('table', { class: 'plain' }, h('tbody', {}, status.resourceRules.map((rule) => h('tr', {},
      h('td', {}, (rule.resources ?? []).join(', ')), h('td', { class: 'dim' }, (rule.apiGroups ?? []).map((group) => group || 'core').join(', ')), h('td', {}, rule.verbs.join(', '))))))));
}
