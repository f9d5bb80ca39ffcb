// A shell in a container.

import { socket } from './api.js';
import { failed, h, replace } from './dom.js';
import { Terminal } from './terminal.js';

const STDIN = 0;
const ERROR = 3;
const RESIZE = 4;

export function show({ body, subject, signal }) {
  const containers = subject.object.spec.containers.map((one) => one.name);
  const container = h('select', { 'aria-label': 'Container' }, containers.map((name) => h('option', { value: name }, name)));
  const command = h('input', { value: 'sh', 'aria-label': 'Command' });
  const screen = h('div', {});
  const state = h('span', { class: 'dim', role: 'status' });
  let current;
  const open = () => {
    current?.close();
    current = connect(subject, container.value, command.value.split(/\s+/), screen, state);
  };
  signal.addEventListener('abort', () => current?.close(), { once: true });
  replace(body, h('p', { class: 'row' }, container, command, h('button', { type: 'button', class: 'primary', onclick: open }, 'Open'), state), screen);
}

function connect(subject, container, command, screen, state) {
  const query = new URLSearchParams({ container, stdin: 'true', stdout: 'true', tty: 'true' });
  command.filter(Boolean).forEach((word) => query.append('command', word));
  const connection = socket(`${subject.path}/exec?${query}`, 'v5.channel.k8s.io');
  const encoder = new TextEncoder();
  const decoder = new TextDecoder();
  const write = (channel, bytes) => {
    if (connection.readyState !== WebSocket.OPEN) return;
    const frame = new Uint8Array(bytes.length + 1);
    frame[0] = channel;
    frame.set(bytes, 1);
    connection.send(frame);
  };
  const terminal = new Terminal((text) => write(STDIN, encoder.encode(text)));
  replace(screen, terminal.element);
  const resize = () => write(RESIZE, encoder.encode(JSON.stringify(terminal.size())));
  connection.onopen = () => { replace(state, 'connected'); resize(); terminal.element.focus(); };
  connection.onmessage = ({ data }) => {
    const bytes = new Uint8Array(data);
    if (bytes[0] === ERROR) {
      const status = JSON.parse(new TextDecoder().decode(bytes.slice(1)));
      if (status.status !== 'Success') failed(new Error(status.message));
    } else if (bytes.length > 1) terminal.write(decoder.decode(bytes.slice(1), { stream: true }));
  };
  connection.onclose = () => replace(state, 'closed');
  window.addEventListener('resize', resize);
  return { close: () => { window.removeEventListener('resize', resize); connection.close(); } };
}
