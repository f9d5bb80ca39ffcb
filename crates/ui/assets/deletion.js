// The deletion of an object as it happens: what is left of it and of what goes with it, and what it waits for.

import { backoff, get } from './api.js';
import { failed, message, withProgress } from './dom.js';
import { keyOf, listPath } from './kinds.js';

const METADATA = 'application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io';
const INTERVAL = 1000;

// Shows the progress until everything is gone, whatever page is open meanwhile.
export function watchDeletion(subject, gone) {
  const { kind, name } = subject;
  const title = `Deleting ${kind.kind} ${name}:`;
  withProgress(title, async (report, hidden) => {
    const read = keyOf(kind) === 'namespaces' ? namespaceLeft : () => left(subject, gone);
    while (!hidden.aborted) {
      const { done, all, detail, isOver } = await read(subject).catch(unanswered);
      if (isOver) return message(`Deleted ${kind.kind} ${name}${gone.length > 0 ? ` and ${gone.length} objects with it` : ''}`);
      report(done, all, detail);
      await backoff(INTERVAL, hidden);
    }
    return undefined;
  }, { stop: 'Hide' }).catch(failed);
}

// A server that is away is asked again.
function unanswered(error) {
  if (error.status && error.status < 500 && error.status !== 429) throw error;
  return { detail: '' };
}

// Those of the object and what goes with it that still exist.
async function left({ kind, namespace, name, object }, gone) {
  const own = { kind, namespace, name, uid: object.metadata.uid };
  const all = [own, ...gone];
  const places = new Map(all.map((one) => [listPath(one.kind, one.namespace), one.kind]));
  const lists = await Promise.all([...places.keys()].map(async (path) => (await get(path, { accept: METADATA })).items ?? []));
  const present = new Map(lists.flat().map((item) => [item.metadata.uid, item.metadata]));
  const remaining = all.filter((one) => present.has(one.uid));
  const held = remaining.find((one) => present.get(one.uid).finalizers?.length > 0);
  const detail = held ? `(${held.kind.kind} ${held.name} waits for ${present.get(held.uid).finalizers.join(', ')})` : remaining[0] ? `(${remaining[0].kind.kind} ${remaining[0].name} is still there)` : '';
  return { done: all.length - remaining.length, all: all.length, detail, isOver: remaining.length === 0 };
}

// A namespace says itself what is left in it.
async function namespaceLeft({ path, object }) {
  const now = await get(path).catch((error) => { if (error.status !== 404) throw error; });
  if (now?.metadata.uid !== object.metadata.uid) return { isOver: true };
  const remaining = (now.status?.conditions ?? []).filter((one) => one.status === 'True').map((one) => one.message);
  return { detail: remaining.join('; ') || 'its objects are deleted' };
}
