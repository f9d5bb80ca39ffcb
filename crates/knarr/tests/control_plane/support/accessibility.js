// Checks of the page that is open, evaluated in it: each gives a list of what is wrong.
({
  // Text against what is behind it: WCAG AA, 4.5 to 1, or 3 to 1 for large text.
  contrast() {
    const wrong = new Set();
    for (const element of document.querySelectorAll('body *')) {
      if (!this.isVisible(element) || element.closest(':disabled')) continue;
      const style = getComputedStyle(element);
      const texts = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
      const isField = element.matches('input:not([type=checkbox]), select, textarea');
      if (texts.length > 0 || isField) this.compare(wrong, element, style.color, style);
      if (isField && element.placeholder) this.compare(wrong, element, getComputedStyle(element, '::placeholder').color, style);
    }
    // Marks without text: 3 to 1.
    for (const mark of document.querySelectorAll('.pods a')) {
      const style = getComputedStyle(mark);
      const color = style.borderTopWidth === '0px' ? style.backgroundColor : style.borderTopColor;
      const ratio = this.ratio(this.color(color), this.behind(mark.parentElement));
      if (ratio < 3) wrong.add(`a mark .${mark.className}: ${ratio.toFixed(2)}`);
    }
    return [...wrong];
  },

  compare(wrong, element, color, style) {
    const isLarge = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
    const back = this.behind(element);
    const ratio = this.ratio(this.over(this.color(color), back), back);
    if (ratio < (isLarge ? 3 : 4.5)) wrong.add(`<${element.localName} class="${element.className}"> ${(element.textContent || element.placeholder).trim().slice(0, 30)}: ${ratio.toFixed(2)} (${color} on ${back.map(Math.round)})`);
  },

  // Red, green and blue up to 255, and the opacity.
  color(text) {
    const numbers = (text.match(/[\d.]+(?:e-?\d+)?%?/g) ?? []).map((one) => (one.endsWith('%') ? parseFloat(one) / 100 : Number(one)));
    const [red, green, blue, alpha = 1] = text.startsWith('color(') ? [...numbers.slice(0, 3).map((one) => one * 255), ...numbers.slice(3)] : numbers;
    return [red, green, blue, alpha];
  },

  over([red, green, blue, alpha], back) {
    return [red, green, blue].map((one, index) => one * alpha + back[index] * (1 - alpha));
  },

  // The color that an element is painted on: the backgrounds of all elements around it, one over the other.
  behind(element) {
    const layers = [];
    for (let one = element; one; one = one.parentElement) {
      const color = this.color(getComputedStyle(one).backgroundColor);
      if (color[3] > 0) layers.push(color);
      if (color[3] === 1) break;
    }
    const canvas = matchMedia('(prefers-color-scheme: dark)').matches ? [18, 18, 18] : [255, 255, 255];
    return layers.reverse().reduce((back, layer) => this.over(layer, back), canvas);
  },

  ratio(one, other) {
    const light = (color) => {
      const [red, green, blue] = color.slice(0, 3).map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const [a, b] = [light(one), light(other)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  },

  isVisible(element) {
    const { width, height, right, bottom } = element.getBoundingClientRect();
    return width > 0 && height > 0 && right > 0 && bottom + scrollY > 0 && element.checkVisibility({ visibilityProperty: true });
  },

  // Headings, landmarks, tables, live regions and names that belong together.
  structure() {
    const wrong = [];
    const expect = (isRight, text) => { if (!isRight) wrong.push(text); };
    const all = (selector) => [...document.querySelectorAll(selector)].filter((one) => this.isVisible(one) || one.id);
    expect(document.documentElement.lang === 'en', 'the language is missing');
    expect(document.title.trim() !== '', 'the title is missing');
    for (const [selector, what] of [['body > header', 'banner'], ['main', 'main'], ['nav[aria-label=Pages]', 'navigation'], ['[role=search]', 'search']]) {
      expect(document.querySelectorAll(selector).length === 1, `there is not one landmark ${what}`);
    }
    expect([...document.querySelectorAll('nav')].every((one) => one.getAttribute('aria-label')), 'a navigation has no name');
    const levels = all('h1, h2, h3, h4').filter((one) => !one.closest('dialog')).map((one) => Number(one.localName[1]));
    expect(levels.filter((level) => level === 1).length === 1 && levels[0] === 1, `headings do not start with one h1: ${levels}`);
    levels.forEach((level, index) => expect(index === 0 || level <= levels[index - 1] + 1, `headings skip a level: ${levels}`));
    for (const table of all('table')) {
      const name = table.getAttribute('aria-label');
      expect(name, 'a table has no name');
      expect([...table.rows].every((row) => row.querySelector('th[scope]')), `a row of the table ${name} has no header`);
      expect([...table.querySelectorAll('thead th')].every((one) => one.scope === 'col'), `a column of the table ${name} has no header`);
    }
    for (const grid of all('[role=grid]')) {
      const headers = grid.querySelectorAll('[role=columnheader]').length;
      expect(grid.getAttribute('aria-label'), 'a grid has no name');
      expect([...grid.querySelectorAll('.grid-row')].every((row) => row.querySelectorAll('[role=gridcell]').length === headers), 'cells of a grid have no header');
    }
    const region = document.getElementById('messages');
    expect(region.getAttribute('aria-live') === 'polite' && region.getAttribute('role') === 'status', 'messages are not announced');
    expect([...region.querySelectorAll('.error')].every((one) => one.getAttribute('role') === 'alert'), 'an error is not announced');
    expect(document.getElementById('offline').getAttribute('role') === 'alert', 'the loss of the connection is not announced');
    expect(all('progress, [role=meter], [role=img]').every((one) => one.getAttribute('aria-label')), 'a progress bar, meter or picture has no name');
    const ids = [...document.querySelectorAll('[id]')].map((one) => one.id);
    expect(new Set(ids).size === ids.length, `an id is not unique: ${ids.filter((id, index) => ids.indexOf(id) !== index)}`);
    expect(document.querySelectorAll('[tabindex]:not([tabindex="0"]):not([tabindex="-1"])').length === 0, 'a positive tabindex changes the order');
    return wrong;
  },

  // What the keyboard must reach, in the order of the document.
  stops() {
    const selector = 'a[href], button, input, select, textarea, summary, [tabindex]';
    const root = document.querySelector('dialog[open]') ?? document.body;
    return [...root.querySelectorAll(selector)].filter((one) => !one.disabled && one.tabIndex >= 0 && (one.matches('.skip') || this.isVisible(one)) && !this.isFolded(one));
  },

  isFolded(element) {
    const details = element.parentElement.closest('details:not([open])');
    return details && !(element.localName === 'summary' && element.parentElement === details);
  },

  named(element) {
    return `${element.localName}${element.id ? `#${element.id}` : ''} ${(element.getAttribute('aria-label') ?? element.textContent ?? '').trim().slice(0, 40)}`;
  },

  // Called after each press of the Tab key: what is wrong with where the focus is, and which stop it is.
  focused() {
    const element = document.activeElement;
    const wrong = [];
    if (!element || element === document.body) return { at: -1, wrong };
    const style = getComputedStyle(element);
    const at = this.stops().indexOf(element);
    const { top, bottom, left, right } = element.getBoundingClientRect();
    const hasOutline = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
    if (!element.matches(':focus-visible') || !hasOutline) wrong.push(`the focus at ${this.named(element)} is not visible`);
    else if (this.ratio(this.color(style.outlineColor), this.behind(element.parentElement)) < 3) wrong.push(`the outline of ${this.named(element)} has too little contrast`);
    if (bottom < 0 || top > innerHeight || right < 0 || left > innerWidth) wrong.push(`${this.named(element)} is out of view`);
    if (at < 0) wrong.push(`${this.named(element)} is no stop`);
    return { at, wrong, name: this.named(element) };
  },
})
