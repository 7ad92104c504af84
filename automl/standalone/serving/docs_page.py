"""The page at /docs: the API, with examples to edit and send. Uses no other sites."""

import base64
import hashlib

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
section { border: 1px solid #8886; border-radius: 6px; margin: 1rem 0; padding: .8rem 1rem; }
h2 { margin: 0; font-size: 1.1rem; } h2 code { margin-right: .6rem; }
textarea { width: 100%; box-sizing: border-box; font: 14px/1.4 ui-monospace, monospace; }
pre { overflow: auto; max-height: 24rem; font: 14px/1.4 ui-monospace, monospace; white-space: pre-wrap; }
button, input { font: inherit; padding: .2rem .8rem; margin: .4rem .4rem .4rem 0; }
"""
_SCRIPT = """
'use strict';
let token = '';
const byId = name => document.getElementById(name);

function made(name, text, parent) {
  const one = document.createElement(name);
  if (text) one.textContent = text;
  parent.append(one);
  return one;
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

async function ask(path, method, body) {
  const headers = {};
  if (token) headers.authorization = 'Bearer ' + token;
  if (body !== undefined) headers['content-type'] = 'application/json';
  const reply = await fetch(path.replace(/^\\//, ''), {method, headers, body});
  return {status: reply.status, text: await reply.text()};
}

function shown(path, method, operation) {
  const section = made('section', '', byId('requests'));
  const title = made('h2', '', section);
  made('code', method.toUpperCase() + ' ' + path, title);
  title.append(operation.summary);
  const content = operation.requestBody && operation.requestBody.content['application/json'];
  let area;
  if (content) {
    area = made('textarea', '', section);
    area.rows = 10;
    area.setAttribute('aria-label', 'Body of ' + path);
    area.value = content.example === undefined ? '' : JSON.stringify(content.example, null, 2);
  }
  const button = made('button', 'Send', section);
  const answer = made('pre', '', section);
  answer.setAttribute('role', 'status');
  button.onclick = async () => {
    try {
      const reply = await ask(path, method.toUpperCase(), area && area.value);
      answer.textContent = reply.status + '\\n' + pretty(reply.text);
    } catch (error) { answer.textContent = String(error); }
  };
}

function schema(name, content) {
  const details = made('details', '', byId('schemas'));
  made('summary', name, details);
  made('pre', JSON.stringify(content, null, 2), details);
}

async function load() {
  const found = JSON.parse((await ask('/openapi.json', 'GET')).text);
  document.title = found.info.title;
  byId('title').textContent = found.info.title;
  byId('version').textContent = found.info.version;
  byId('about').textContent = found.info.description;
  byId('authorize').hidden = !found.security;
  byId('requests').replaceChildren();
  byId('schemas').replaceChildren();
  for (const [path, methods] of Object.entries(found.paths))
    for (const [method, operation] of Object.entries(methods)) shown(path, method, operation);
  for (const [name, content] of Object.entries(found.components.schemas)) schema(name, content);
}

byId('authorize').onsubmit = async event => {
  event.preventDefault();
  token = byId('token').value.trim();
  const reply = token ? await ask('/metrics', 'GET') : {status: 200};
  byId('refused').textContent = reply.status === 401 ? 'This token is not valid.' : '';
  await load();
};
load();
"""
_BODY = """
<h1 id="title">A trained model</h1>
<p><code id="version"></code></p>
<p id="about"></p>
<form id="authorize" hidden>
<label>Token <input id="token" type="password" autocomplete="off"></label><button>Authorize</button>
<span id="refused" role="status"></span>
</form>
<main id="requests"></main>
<h2>Schemas</h2>
<div id="schemas"></div>
<p><a href="openapi.json">openapi.json</a></p>
"""
PAGE = (
    '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>A trained model</title>'
    '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
    f"<style>{_STYLE}</style></head>\n<body>{_BODY}<script>{_SCRIPT}</script></body>\n</html>\n"
)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HEADERS = {
    "content-security-policy": f"default-src 'none'; connect-src 'self'; img-src data:; "
    f"script-src {_digest(_SCRIPT)}; style-src {_digest(_STYLE)}; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
}
"""Headers that allow only the page's own script."""
