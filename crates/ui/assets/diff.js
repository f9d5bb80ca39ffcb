// Compares two texts line by line.

import { h } from './dom.js';

// Above this many differing lines the middle is shown as replaced as a whole: the comparison takes the product of both.
const MAX_LINES = 2000;

// Operations [sign, line] that turn one list of lines into another.
export function compare(before, after) {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start += 1;
  let end = 0;
  while (end < before.length - start && end < after.length - start
    && before[before.length - 1 - end] === after[after.length - 1 - end]) end += 1;
  const a = before.slice(start, before.length - end);
  const b = after.slice(start, after.length - end);
  const middle = a.length > MAX_LINES || b.length > MAX_LINES
    ? [...a.map((line) => ['-', line]), ...b.map((line) => ['+', line])]
    : longestCommon(a, b);
  const same = (lines) => lines.map((line) => [' ', line]);
  return [...same(before.slice(0, start)), ...middle, ...same(before.slice(before.length - end))];
}

function longestCommon(a, b) {
  const width = b.length + 1;
  const lengths = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      lengths[i * width + j] = a[i] === b[j]
        ? lengths[(i + 1) * width + j + 1] + 1
        : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  const operations = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { operations.push([' ', a[i]]); i += 1; j += 1; }
    else if (i < a.length && (j === b.length || lengths[(i + 1) * width + j] >= lengths[i * width + j + 1])) { operations.push(['-', a[i]]); i += 1; }
    else { operations.push(['+', b[j]]); j += 1; }
  }
  return operations;
}

// The differences with three lines around each.
export function render(before, after) {
  const operations = compare(before.split('\n'), after.split('\n'));
  const near = operations.map((_, index) => operations.slice(Math.max(0, index - 3), index + 4).some(([sign]) => sign !== ' '));
  const box = h('div', { class: 'diff', role: 'region', 'aria-label': 'Differences', tabindex: 0 });
  let skipped = false;
  operations.forEach(([sign, line], index) => {
    if (!near[index]) { skipped = true; return; }
    if (skipped) { box.append(h('div', { class: 'skip-lines' }, '⋯')); skipped = false; }
    box.append(h('div', { class: { '+': 'add', '-': 'remove' }[sign] }, `${sign} ${line}`));
  });
  if (!box.firstChild) box.append(h('div', { class: 'skip-lines' }, 'No differences'));
  return box;
}
