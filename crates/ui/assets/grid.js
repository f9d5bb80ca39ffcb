// A table of many rows, of which only the visible ones are elements.

import { h, replace } from './dom.js';
import { plain, tone } from './format.js';

const HEIGHT = 30;
const MARGIN = 10;
const WIDE = 220;
const NARROW = 90;

// Creating one is slow, and a sort of 10,000 rows compares 130,000 times.
const collator = new Intl.Collator(undefined, { numeric: true });

// `columns`: [{name, wide?}], rows: [{key, cells, link, sort?}]. Call `update` with new rows at any time.
export class Grid {
  constructor(label) {
    this.rows = [];
    this.shown = [];
    this.columns = [];
    this.sortBy = 0;
    this.descending = false;
    this.filter = '';
    this.focus = 0;
    this.head = h('div', { class: 'grid-head', role: 'row' });
    this.body = h('div', { class: 'grid-body', role: 'rowgroup' });
    this.element = h('div', { class: 'grid', role: 'grid', 'aria-label': label, onscroll: () => this.draw(), onkeydown: (event) => this.key(event) }, this.head, this.body);
    this.element.style.maxHeight = '72vh';
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
  }

  setColumns(columns) {
    if (JSON.stringify(columns) === JSON.stringify(this.columns)) return;
    this.columns = columns;
    this.template = columns.map((column) => (column.wide ? `minmax(${WIDE}px, 3fr)` : `minmax(${NARROW}px, 1fr)`)).join(' ');
    // Rows are grids of their own: with one minimum for all, their columns meet whatever is in them.
    const width = `${columns.reduce((sum, column) => sum + (column.wide ? WIDE : NARROW), 0)}px`;
    this.head.style.minWidth = width;
    this.body.style.minWidth = width;
    this.drawHead();
  }

  drawHead() {
    this.head.style.gridTemplateColumns = this.template;
    replace(this.head, this.columns.map((column, index) => {
      const sorted = index === this.sortBy ? (this.descending ? 'descending' : 'ascending') : 'none';
      return h('span', { role: 'columnheader', 'aria-sort': sorted },
        h('button', { type: 'button', title: column.description, 'aria-label': column.name, onclick: () => this.sort(index) }, column.name, sorted === 'none' ? '' : this.descending ? ' ▾' : ' ▴'));
    }));
  }

  sort(index) {
    this.descending = index === this.sortBy && !this.descending;
    this.sortBy = index;
    this.drawHead();
    this.arrange();
  }

  search(text) {
    this.filter = text.toLowerCase();
    this.arrange();
  }

  update(rows) {
    this.rows = rows;
    this.arrange();
  }

  arrange() {
    const current = this.shown[this.focus]?.link;
    const before = this.focus;
    const sign = this.descending ? -1 : 1;
    const value = (row) => row.sort?.[this.sortBy] ?? row.cells[this.sortBy];
    this.shown = this.rows.filter((row) => !this.filter || row.cells.some((cell) => String(cell).toLowerCase().includes(this.filter)));
    this.shown.sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      const order = typeof a === 'number' && typeof b === 'number' ? a - b : collator.compare(String(a), String(b));
      return sign * order || (one.link < other.link ? -1 : 1);
    });
    this.element.setAttribute('aria-rowcount', this.shown.length + 1);
    this.body.style.height = `${this.shown.length * HEIGHT}px`;
    this.keepFocus(current, before);
    this.draw();
  }

  // Whoever is at a row stays at its object, and in view, when others come and go above it.
  keepFocus(link, before) {
    const at = link === undefined ? -1 : this.shown.findIndex((row) => row.link === link);
    this.focus = at >= 0 ? at : Math.min(before, Math.max(0, this.shown.length - 1));
    if (at >= 0 && this.body.contains(document.activeElement)) this.element.scrollTop += (at - before) * HEIGHT;
  }

  draw() {
    const top = Math.max(0, this.element.scrollTop - this.head.offsetHeight);
    const first = Math.max(0, Math.floor(top / HEIGHT) - MARGIN);
    const last = Math.min(this.shown.length, Math.ceil((top + this.element.clientHeight) / HEIGHT) + MARGIN);
    const focused = this.body.contains(document.activeElement);
    replace(this.body, this.shown.slice(first, last).map((row, offset) => this.row(row, first + offset)));
    if (focused) this.body.querySelector(`[aria-rowindex="${this.focus + 2}"]`)?.focus({ preventScroll: true });
  }

  row(row, index) {
    const element = h('div', {
      class: 'grid-row', role: 'row', tabindex: index === this.focus ? 0 : -1, 'aria-rowindex': index + 2,
      onclick: () => { location.hash = row.link; },
      onfocus: () => { this.focus = index; },
    }, row.cells.map((cell) => {
      const text = plain(String(cell ?? ''));
      return h('span', { role: 'gridcell', class: tone(text), title: text }, text);
    }));
    element.style.top = `${index * HEIGHT}px`;
    element.style.gridTemplateColumns = this.template;
    return element;
  }

  key(event) {
    const page = Math.floor(this.element.clientHeight / HEIGHT) - 1;
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (event.target.closest('.grid-head')) return;
    if (event.key === 'Enter' && this.shown[this.focus]) { location.hash = this.shown[this.focus].link; return; }
    if (step === undefined) return;
    event.preventDefault();
    this.focus = Math.max(0, Math.min(this.shown.length - 1, this.focus + step));
    const at = this.focus * HEIGHT;
    const room = this.element.clientHeight - this.head.offsetHeight - HEIGHT;
    if (at < this.element.scrollTop) this.element.scrollTop = at;
    else if (at > this.element.scrollTop + room) this.element.scrollTop = at - room;
    this.draw();
    this.body.querySelector(`[aria-rowindex="${this.focus + 2}"]`)?.focus({ preventScroll: true });
  }
}
