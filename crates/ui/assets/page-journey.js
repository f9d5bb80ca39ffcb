// The journey of an object through all components, as it happens.

import { keepReading } from './api.js';
import { h, replace, svg } from './dom.js';
import { duration, plain } from './format.js';

export async function show({ body, subject, signal }) {
  const object = [subject.kind.plural, subject.namespace, subject.name].filter(Boolean).join('/');
  const note = h('p', { class: 'dim', role: 'status' }, 'Waiting for the first step');
  const chart = h('div', {});
  replace(body, note, chart);
  const query = new URLSearchParams({ object, follow: 'true' });
  // Each line is the whole timeline, sent when it has changed.
  await keepReading(`/journey?${query}`, { accept: 'application/x-ndjson', signal }, (line) => {
    const { chapters } = JSON.parse(line);
    replace(chart, chapters.map(section));
    const steps = chapters.reduce((sum, chapter) => sum + chapter.moments.length, 0);
    replace(note, `${steps} steps; further ones appear here as they happen.`);
  }).catch((error) => { if (error.name !== 'AbortError') replace(body, h('p', { class: 'card bad' }, error.message)); });
}

const part = (name) => (['api', 'controllers', 'scheduler', 'kubelet', 'network', 'dns'].includes(name) ? name : 'other');

function section(chapter) {
  const total = Math.max(1, chapter.took);
  return h('section', { class: 'card' },
    h('h2', {}, `${chapter.title[0].toUpperCase()}${chapter.title.slice(1)}${chapter.outcome ? `: ${chapter.outcome}` : ''}`),
    phases(chapter.phases ?? []),
    h('div', { class: 'timeline' }, chapter.moments.map((moment) => [
      h('span', { class: 'when' }, `+${duration(moment.after)}`),
      h('span', { title: moment.object }, moment.object.split('/').slice(-1)[0], ' ', h('span', { class: 'dim' }, moment.part)),
      h('div', {}, svg('svg', { class: 'chart', viewBox: '0 0 1000 10', preserveAspectRatio: 'none', role: 'img', 'aria-label': `${duration(moment.took)} at ${duration(moment.after)}` },
        svg('rect', { class: `fill-${part(moment.part)}`, x: (moment.after / total) * 1000, width: Math.max(3, (moment.took / total) * 1000), height: 10 })),
      h('div', {}, plain(moment.what), moment.took > 0 && h('span', { class: 'dim' }, ` ${duration(moment.took)}`), moment.detail && h('span', { class: 'dim' }, ` ${plain(moment.detail)}`), moment.repeated && h('span', { class: 'dim' }, ` ×${moment.repeated + 1}`))),
    ])));
}

function phases(all) {
  if (all.length === 0) return undefined;
  const total = all.reduce((sum, phase) => sum + phase.took, 0) || 1;
  let at = 0;
  const bars = all.map((phase) => {
    const bar = svg('rect', { class: `fill-${part(phase.part)}`, x: (at / total) * 1000, width: (phase.took / total) * 1000, height: 10 }, svg('title', {}, `${phase.name}: ${duration(phase.took)}`));
    at += phase.took;
    return bar;
  });
  return [svg('svg', { class: 'phases', viewBox: '0 0 1000 10', preserveAspectRatio: 'none', role: 'img', 'aria-label': 'Phases' }, bars),
    h('p', { class: 'row' }, all.map((phase) => h('span', {}, `${phase.name} `, h('b', {}, duration(phase.took)))))];
}
