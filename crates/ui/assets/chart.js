// Small charts: the course of a value, and amounts beside each other.

import { h, svg } from './dom.js';

// The course of a value: its newest one is at the right.
export function spark(values, label = 'Usage of the last minutes') {
  const top = Math.max(...values) * 1.1 || 1;
  const course = values.length === 1 ? [values[0], values[0]] : values;
  const points = course.map((value, index) => `${(index / (course.length - 1)) * 100},${30 - (value / top) * 30}`);
  return svg('svg', { class: 'spark', viewBox: '0 0 100 30', preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
    svg('path', { class: 'area', d: `M0,30 L${points.join(' L')} L100,30 Z` }),
    svg('path', { d: `M${points.join(' L')}` }));
}

// How much of something is used, requested and allowed, out of what there is. Amounts that are not known are left out.
export function meter(label, { used, requested, limited, available }, format) {
  const share = (value) => (available ? Math.min(1, value / available) * 100 : 0);
  const parts = [
    used !== undefined && `${format(used)} used`,
    requested !== undefined && `${format(requested)} requested`,
    limited !== undefined && `${format(limited)} limits`,
    `of ${format(available)}`,
  ].filter(Boolean).join(', ');
  return h('div', { class: 'meter' }, h('div', {}, h('b', {}, label), ' ', h('span', { class: 'dim' }, parts)),
    h('div', { class: 'bar', role: 'meter', 'aria-label': label, 'aria-valuetext': parts, 'aria-valuenow': Math.round(share(used ?? requested ?? 0)), 'aria-valuemin': 0, 'aria-valuemax': 100 },
      svg('svg', { viewBox: '0 0 100 1', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
        requested !== undefined && svg('rect', { class: 'fill-requested', width: share(requested), height: 1 }),
        used !== undefined && svg('rect', { class: 'fill-used', y: 0.25, width: share(used), height: 0.5 }),
        limited !== undefined && svg('rect', { class: 'fill-limit', x: Math.min(99, share(limited)), width: 1, height: 1 }))));
}
