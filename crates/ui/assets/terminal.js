// A small terminal: the part of VT100 that shells, editors and pagers need, without colours.

import { h, replace } from './dom.js';

const SCROLLBACK = 2000;
const KEYS = {
  Enter: '\r', Backspace: '\u007f', Tab: '\t', Escape: '\u001b', ArrowUp: '\u001b[A', ArrowDown: '\u001b[B', ArrowRight: '\u001b[C',
  ArrowLeft: '\u001b[D', Home: '\u001b[H', End: '\u001b[F', Delete: '\u001b[3~', PageUp: '\u001b[5~', PageDown: '\u001b[6~',
};

export class Terminal {
  constructor(send) {
    this.columns = 100;
    this.lines = 30;
    this.history = [];
    this.screen = this.blank();
    this.row = 0;
    this.column = 0;
    this.saved = [0, 0];
    this.top = 0;
    this.bottom = this.lines - 1;
    this.pending = '';
    this.scheduled = false;
    this.element = h('div', {
      class: 'terminal', tabindex: 0, role: 'textbox', 'aria-multiline': 'true', 'aria-label': 'Terminal',
      onkeydown: (event) => this.key(event, send),
      onpaste: (event) => { event.preventDefault(); send(event.clipboardData.getData('text')); },
    });
  }

  size() {
    const probe = h('span', {}, 'M'.repeat(10));
    this.element.append(probe);
    const { width, height } = probe.getBoundingClientRect();
    probe.remove();
    this.columns = Math.max(20, Math.floor((this.element.clientWidth - 20) / (width / 10 || 8)));
    this.lines = Math.max(5, Math.floor((this.element.clientHeight - 16) / (height || 16)));
    this.screen = Array.from({ length: this.lines }, (_, index) => this.screen[index] ?? []);
    [this.top, this.bottom] = [0, this.lines - 1];
    this.row = Math.min(this.row, this.lines - 1);
    return { Width: this.columns, Height: this.lines };
  }

  blank() {
    return Array.from({ length: this.lines }, () => []);
  }

  key(event, send) {
    // Shift+Tab leaves the terminal, so that the keyboard alone is enough to get out.
    if (event.key === 'Tab' && event.shiftKey) return;
    let text = KEYS[event.key];
    if (event.ctrlKey && !event.altKey && /^[a-z[\\\]]$/i.test(event.key)) text = String.fromCharCode(event.key.toUpperCase().charCodeAt(0) & 31);
    else if (!text && event.key.length === 1 && !event.ctrlKey && !event.metaKey) text = event.key;
    if (text === undefined || (event.ctrlKey && event.shiftKey)) return;
    event.preventDefault();
    send(text);
  }

  write(text) {
    const all = this.pending + text;
    this.pending = '';
    for (let index = 0; index < all.length;) {
      if (all[index] !== '\u001b') { this.put(all[index]); index += 1; continue; }
      const rest = all.slice(index);
      // eslint-disable-next-line no-control-regex
      const match = /^\u001b(?:\[([0-9;?>!]*)[ -/]*([@-~])|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[()][A-Z0-9]|([78DMEc=>]))/.exec(rest);
      if (!match) {
        // An incomplete sequence waits for the rest; one that is too long is no sequence.
        if (rest.length < 64) { this.pending = rest; break; }
        index += 1;
        continue;
      }
      if (match[2]) this.control(match[1], match[2]);
      else if (match[3]) this.escape(match[3]);
      index += match[0].length;
    }
    if (!this.scheduled) {
      this.scheduled = true;
      requestAnimationFrame(() => { this.scheduled = false; this.draw(); });
    }
  }

  put(character) {
    if (character === '\r') this.column = 0;
    else if (character === '\n') this.down();
    else if (character === '\b') this.column = Math.max(0, this.column - 1);
    else if (character === '\t') this.column = Math.min(this.columns - 1, (Math.floor(this.column / 8) + 1) * 8);
    else if (character >= ' ' && character !== '\u007f') {
      if (this.column >= this.columns) { this.column = 0; this.down(); }
      const line = this.screen[this.row];
      while (line.length < this.column) line.push(' ');
      line[this.column] = character;
      this.column += 1;
    }
  }

  down() {
    if (this.row !== this.bottom) { this.row = Math.min(this.lines - 1, this.row + 1); return; }
    const [gone] = this.screen.splice(this.top, 1);
    this.screen.splice(this.bottom, 0, []);
    if (this.top === 0) {
      this.history.push(gone.join(''));
      if (this.history.length > SCROLLBACK) this.history.shift();
    }
  }

  up() {
    if (this.row !== this.top) { this.row = Math.max(0, this.row - 1); return; }
    this.screen.splice(this.bottom, 1);
    this.screen.splice(this.top, 0, []);
  }

  escape(letter) {
    if (letter === '7') this.saved = [this.row, this.column];
    else if (letter === '8') [this.row, this.column] = this.saved;
    else if (letter === 'D') this.down();
    else if (letter === 'M') this.up();
    else if (letter === 'E') { this.column = 0; this.down(); }
    else if (letter === 'c') { this.screen = this.blank(); this.row = 0; this.column = 0; }
  }

  control(parameters, letter) {
    const numbers = parameters.replace(/[?>!]/g, '').split(';').map((text) => Math.min(Number(text) || 0, 9999));
    const count = numbers[0] || 1;
    const clampRow = (row) => Math.max(0, Math.min(this.lines - 1, row));
    const clampColumn = (column) => Math.max(0, Math.min(this.columns - 1, column));
    const line = this.screen[this.row];
    switch (letter) {
      case 'A': this.row = clampRow(this.row - count); break;
      case 'B': this.row = clampRow(this.row + count); break;
      case 'C': this.column = clampColumn(this.column + count); break;
      case 'D': this.column = clampColumn(this.column - count); break;
      case 'G': this.column = clampColumn(count - 1); break;
      case 'd': this.row = clampRow(count - 1); break;
      case 'H': case 'f': this.row = clampRow(count - 1); this.column = clampColumn((numbers[1] || 1) - 1); break;
      case 'J': this.erase(numbers[0]); break;
      case 'K': this.eraseLine(line, numbers[0]); break;
      case 'P': line.splice(this.column, count); break;
      case '@': line.splice(this.column, 0, ...Array(Math.min(count, this.columns)).fill(' ')); line.length = Math.min(line.length, this.columns); break;
      case 'X': for (let at = this.column; at < Math.min(line.length, this.column + count); at += 1) line[at] = ' '; break;
      case 'L': for (let n = 0; n < Math.min(count, this.lines); n += 1) { this.screen.splice(this.bottom, 1); this.screen.splice(this.row, 0, []); } break;
      case 'M': for (let n = 0; n < Math.min(count, this.lines); n += 1) { this.screen.splice(this.row, 1); this.screen.splice(this.bottom, 0, []); } break;
      case 'r': this.top = clampRow((numbers[0] || 1) - 1); this.bottom = clampRow((numbers[1] || this.lines) - 1); this.row = this.top; this.column = 0; break;
      case 's': this.saved = [this.row, this.column]; break;
      case 'u': [this.row, this.column] = this.saved; break;
      case 'h': case 'l': if (parameters === '?1049' || parameters === '?47') { this.screen = this.blank(); this.row = 0; this.column = 0; } break;
      default:
    }
  }

  erase(mode) {
    if (mode === 2 || mode === 3) { this.screen = this.blank(); return; }
    this.eraseLine(this.screen[this.row], mode);
    const [from, to] = mode === 1 ? [0, this.row] : [this.row + 1, this.lines];
    for (let row = from; row < to; row += 1) this.screen[row] = [];
  }

  eraseLine(line, mode) {
    if (mode === 2) line.length = 0;
    else if (mode === 1) for (let at = 0; at <= Math.min(this.column, line.length - 1); at += 1) line[at] = ' ';
    else line.length = Math.min(line.length, this.column);
  }

  draw() {
    const rows = this.screen.map((line, index) => {
      const text = line.join('');
      if (index !== this.row) return `${text}\n`;
      const padded = text.padEnd(this.column + 1);
      return [padded.slice(0, this.column), h('span', { class: 'cursor' }, padded[this.column]), `${padded.slice(this.column + 1)}\n`];
    });
    replace(this.element, this.history.map((line) => `${line}\n`).join(''), rows);
    this.element.scrollTop = this.element.scrollHeight;
  }
}
