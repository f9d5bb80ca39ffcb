// What belongs to an object: what owns it, what it owns, and what it refers to.

import { get } from './api.js';
import { card, h, replace } from './dom.js';
import { find, kinds, listPath, objectLink, ofReference } from './kinds.js';
import { fields, items } from './shape.js';

const CHILDREN = ['replicasets.apps', 'pods', 'jobs.batch', 'controllerrevisions.apps', 'endpointslices.discovery.k8s.io', 'persistentvolumeclaims', 'resourceclaims.resource.k8s.io'];
const METADATA = 'application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io';

// Kinds whose objects are usually owned by others, and custom resources.
const usual = () => {
  const isCustom = (kind) => kind.group.includes('.') && !kind.group.endsWith('.k8s.io');
  return [...new Set([...CHILDREN.map(find).filter(Boolean), ...kinds().filter(isCustom)])];
};

// Every kind whose objects are deleted with their owner. Nothing owns an Event.
const deletable = () => kinds().filter((kind) => kind.verbs.includes('delete') && kind.plural !== 'events');

// All objects that would be deleted with this one, nearest first. What is in a namespace can own objects of that namespace only.
export async function dependents({ object, namespace }, signal, { everyKind = false } = {}) {
  const candidates = (everyKind ? deletable() : usual()).filter((kind) => kind.namespaced || !namespace);
  const lists = await Promise.all(candidates.map(async (kind) => {
    const list = await get(listPath(kind, namespace), { accept: METADATA, signal }).catch(() => ({ items: [] }));
    return (list.items ?? []).map((item) => ({
      kind, name: item.metadata.name, namespace: item.metadata.namespace, uid: item.metadata.uid, owners: (item.metadata.ownerReferences ?? []).map((owner) => owner.uid),
    })).filter((item) => item.owners.length > 0);
  }));
  const all = lists.flat();
  const found = [];
  const parents = new Set([object.metadata.uid]);
  for (let grew = true; grew;) {
    const next = all.filter((one) => !parents.has(one.uid) && one.owners.some((uid) => parents.has(uid)));
    next.forEach((one) => parents.add(one.uid));
    found.push(...next);
    grew = next.length > 0;
  }
  return found;
}

// What a spec names: volumes, configuration, accounts, classes, and the other side of a binding.
export function references(object) {
  const { kind, metadata, roleRef } = object;
  const spec = fields(object.spec);
  const pod = fields(kind === 'Pod' ? spec : spec.template?.spec ?? spec.jobTemplate?.spec?.template?.spec);
  const containers = [...items(pod.initContainers), ...items(pod.containers)];
  const volumes = items(pod.volumes);
  const sources = [...volumes, ...volumes.flatMap((volume) => items(volume.projected?.sources))];
  const environment = containers.flatMap((one) => [...items(one.envFrom), ...items(one.env).map((variable) => fields(variable.valueFrom))]);
  const found = [
    ...sources.map((one) => one.configMap?.name && ['configmaps', one.configMap.name]),
    ...sources.map((one) => (one.secret?.secretName ?? one.secret?.name) && ['secrets', one.secret.secretName ?? one.secret.name]),
    ...sources.map((one) => one.persistentVolumeClaim && ['persistentvolumeclaims', one.persistentVolumeClaim.claimName]),
    ...environment.map((one) => (one.configMapRef ?? one.configMapKeyRef) && ['configmaps', (one.configMapRef ?? one.configMapKeyRef).name]),
    ...environment.map((one) => (one.secretRef ?? one.secretKeyRef) && ['secrets', (one.secretRef ?? one.secretKeyRef).name]),
    ...items(pod.imagePullSecrets).map((one) => ['secrets', one.name]),
    pod.serviceAccountName && ['serviceaccounts', pod.serviceAccountName],
    pod.priorityClassName && ['priorityclasses.scheduling.k8s.io', pod.priorityClassName],
    pod.runtimeClassName && ['runtimeclasses.node.k8s.io', pod.runtimeClassName],
    spec.nodeName && ['nodes', spec.nodeName],
    kind === 'PersistentVolumeClaim' && spec.volumeName && ['persistentvolumes', spec.volumeName],
    spec.storageClassName && ['storageclasses.storage.k8s.io', spec.storageClassName],
    kind === 'PersistentVolume' && spec.claimRef && ['persistentvolumeclaims', spec.claimRef.name, spec.claimRef.namespace],
    kind === 'Ingress' && spec.ingressClassName && ['ingressclasses.networking.k8s.io', spec.ingressClassName],
    ...(kind === 'Ingress' ? items(spec.rules).flatMap((rule) => items(rule.http?.paths)).map((path) => path.backend?.service && ['services', path.backend.service.name]) : []),
    ...(kind === 'Ingress' ? items(spec.tls).map((one) => one.secretName && ['secrets', one.secretName]) : []),
    roleRef && [roleRef.kind === 'ClusterRole' ? 'clusterroles.rbac.authorization.k8s.io' : 'roles.rbac.authorization.k8s.io', roleRef.name],
  ].filter(Boolean);
  const unique = new Map(found.map(([key, name, namespace]) => [`${key}/${name}`, [find(key), name, namespace ?? metadata.namespace]]));
  return [...unique.values()].filter(([known]) => known);
}

// Pods that a Service, NetworkPolicy or budget selects.
async function selected({ object, namespace }, signal) {
  const labels = object.kind === 'Service' ? object.spec?.selector
    : object.kind === 'NetworkPolicy' ? object.spec?.podSelector?.matchLabels
      : object.kind === 'PodDisruptionBudget' ? object.spec?.selector?.matchLabels : undefined;
  if (!labels || Object.keys(labels).length === 0) return [];
  const query = new URLSearchParams({ labelSelector: Object.entries(labels).map(([key, value]) => `${key}=${value}`).join(), limit: 100 });
  const kind = find('pods');
  const list = await get(`${listPath(kind, namespace)}?${query}`, { accept: METADATA, signal }).catch(() => ({ items: [] }));
  return (list.items ?? []).map((item) => [kind, item.metadata.name, namespace]);
}

const MAX_SHOWN = 100;

export async function show(target, subject, signal) {
  const { object, namespace } = subject;
  const link = ([kind, name, within]) => h('li', {}, kind ? h('a', { href: objectLink(kind, kind.namespaced ? within ?? namespace : '', name) }, `${kind.kind} ${name}`) : name);
  const group = (title, all) => all.length > 0 && h('div', {}, h('h3', {}, title), h('ul', { class: 'links' }, all.slice(0, MAX_SHOWN).map(link), all.length > MAX_SHOWN && h('li', { class: 'dim' }, `and ${all.length - MAX_SHOWN} more`)));
  const owners = (object.metadata.ownerReferences ?? []).map((owner) => [ofReference(owner), owner.name]);
  const [owned, pods] = await Promise.all([dependents(subject, signal), selected(subject, signal)]);
  const groups = [
    group('Owned by', owners), group(`Owns ${owned.length}`, owned.map((one) => [one.kind, one.name, one.namespace])),
    group('Uses', references(object)), group('Selects', pods),
  ].filter(Boolean);
  replace(target, groups.length > 0 && card('Relations', h('div', { class: 'groups' }, groups)));
}
