// Who can do what, and which binding and role say so.

import { get, post } from './api.js';
import { card, failed, h, replace, table } from './dom.js';
import { plain } from './format.js';
import { find, objectLink } from './kinds.js';

const RBAC = '/apis/rbac.authorization.k8s.io/v1';

export async function show({ main, namespace, signal }) {
  const where = namespace ? `in namespace ${namespace}` : 'in all namespaces';
  const results = { who: h('div', { 'aria-live': 'polite' }), can: h('div', { 'aria-live': 'polite' }), mine: h('div', {}) };
  const input = (label, value, more) => h('input', { value, 'aria-label': label, required: true, size: 14, ...more });
  const who = { verb: input('Verb', 'get'), resource: input('Resource', 'secrets', { list: 'find-kinds' }) };
  const can = { subject: input('User or namespace:account', '', { placeholder: 'user or namespace:account', size: 26 }), verb: input('Verb of the user', 'get'), resource: input('Resource of the user', 'pods', { list: 'find-kinds' }) };
  const question = (answer, ...parts) => h('form', { class: 'row', onsubmit: (event) => { event.preventDefault(); answer().catch(failed); } }, parts);
  const answerWho = async () => replace(results.who, granted(await readRules(namespace, signal), who.verb.value, who.resource.value, namespace));
  const answerCan = async () => replace(results.can, await decide(can, namespace, signal));
  replace(main, h('h1', {}, 'Access'),
    card('Who can', question(answerWho, 'Who can ', who.verb, who.resource, where, h('button', { class: 'primary' }, 'Explain')), results.who),
    card('Can somebody', question(answerCan, 'Can ', can.subject, can.verb, can.resource, where, h('button', { class: 'primary' }, 'Decide')), results.can),
    results.mine);
  await Promise.all([answerWho(), own(results.mine, namespace, signal)].map((task) => task.catch(failed)));
}

// Asks the server, whose decision counts, and finds the rules that say so.
async function decide({ subject, verb, resource }, namespace, signal) {
  const [base, subresource] = resource.value.trim().split('/');
  const kind = find(base);
  if (!kind) return h('p', { class: 'warn' }, `the server doesn't have a resource type "${base}"`);
  const identity = identityOf(subject.value.trim());
  const attributes = { namespace: kind.namespaced ? namespace : '', verb: verb.value, group: kind.group, resource: kind.plural, subresource };
  const { status } = await post('/apis/authorization.k8s.io/v1/subjectaccessreviews', {
    apiVersion: 'authorization.k8s.io/v1', kind: 'SubjectAccessReview', spec: { ...identity, resourceAttributes: attributes },
  }, { signal });
  const rules = await readRules(namespace, signal).catch(() => undefined);
  const concerns = (one) => (one.kind === 'Group' ? identity.groups.includes(one.name)
    : one.kind === 'ServiceAccount' ? identity.user === `system:serviceaccount:${one.namespace}:${one.name}` : one.name === identity.user);
  return [
    h('p', { class: status.allowed ? 'good' : 'bad' }, status.allowed ? 'Yes. ' : 'No. ', plain(status.reason ?? '')),
    h('p', { class: 'dim' }, `Asked for ${identity.user} with the groups ${identity.groups.join(', ')}. Certificates and identity providers may give a user further groups.`),
    rules && status.allowed && granted(rules, verb.value, resource.value, namespace, concerns),
    !status.allowed && h('p', {}, `No role that is bound to ${identity.user} allows it. A RoleBinding gives it in one namespace, a ClusterRoleBinding everywhere.`),
  ];
}

// `shop:web` is the service account web of the namespace shop; the groups are those that every user of its kind has.
function identityOf(text) {
  const account = /^(?:system:serviceaccount:)?([^:]+):([^:]+)$/.exec(text);
  // Other names that start with `system:` are users, such as those of components.
  if (account && account[1] !== 'system') {
    return { user: `system:serviceaccount:${account[1]}:${account[2]}`, groups: ['system:serviceaccounts', `system:serviceaccounts:${account[1]}`, 'system:authenticated'] };
  }
  return { user: text, groups: text.startsWith('system:node:') ? ['system:nodes', 'system:authenticated'] : ['system:authenticated'] };
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

function granted(rules, verb, words, namespace, concerns = () => true) {
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
    for (const subject of (binding.subjects ?? []).filter(concerns)) rows.push({ subject, binding, role, rule, where });
  }
  if (rows.length === 0) return h('p', {}, 'No role says so. Members of system:masters may do everything.');
  return table(['Who', 'Where', 'Because of the binding', 'To the role', 'Only objects named'], rows.map(({ subject, binding, role, rule, where }) => [
    `${subject.kind} ${subject.namespace ? `${subject.namespace}/` : ''}${subject.name}`,
    where ?? (namespace || 'everywhere'),
    reference(binding, where ? 'rolebindings' : 'clusterrolebindings'),
    reference(role, role.metadata.namespace ? 'roles' : 'clusterroles'),
    ['dim', (rule.resourceNames ?? []).join(', ')],
  ]), 'Who can do it');
}

function reference({ metadata }, plural) {
  const kind = find(plural);
  return kind ? h('a', { href: objectLink(kind, metadata.namespace ?? '', metadata.name) }, metadata.name) : metadata.name;
}

async function own(target, namespace, signal) {
  const { status } = await post('/apis/authorization.k8s.io/v1/selfsubjectrulesreviews', {
    apiVersion: 'authorization.k8s.io/v1', kind: 'SelfSubjectRulesReview', spec: { namespace: namespace || 'default' },
  }, { signal });
  replace(target, card(`What you may do in ${namespace || 'default'}`, table(['Resources', 'Groups', 'Verbs', 'Only objects named'], status.resourceRules.map((rule) => [
    (rule.resources ?? []).join(', '), ['dim', (rule.apiGroups ?? []).map((group) => group || 'core').join(', ')], rule.verbs.join(', '), ['dim', (rule.resourceNames ?? []).join(', ')],
  ]), 'What you may do')));
}
