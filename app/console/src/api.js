// The REST API of the server that this page came from.

const TOKEN = 'kura.token';
// A server that has not answered a question by then is taken for gone. What changes something may take as long as it takes.
const PATIENCE_MS = 10_000;

/** Why the server did not do what it was asked: the message says what and where, `remedy` what to do. */
export class Refusal extends Error {
  constructor(status, problem) {
    super(problem.error ?? `the server answers with status ${status}`);
    this.status = status;
    this.remedy = problem.remedy;
  }

  /** True where the server wants a token, or another one. */
  get wantsToken() {
    return this.status === 401;
  }
}

/** The token to show to the server from now on: kept as long as the browser's tab. */
export function showToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

/** True where a token has been given. */
export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

/** What the server has at this path: an object where it answers with JSON, else text. */
export const get = path => ask('GET', path, undefined, AbortSignal.timeout(PATIENCE_MS));

/** Has the server change something; answers with what it says of that. */
export const change = (method, path, body) => ask(method, path, body);

/** A path of the API, of names that may have any letters: ``path`volumes/${name}` ``. */
export const path = (words, ...names) =>
  '/api/v1/' + words.map((word, at) => word + (at < names.length ? encodeURIComponent(names[at]) : '')).join('');

async function ask(method, at, body, signal) {
  const headers = {};
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers['content-type'] = 'application/json';
  const answer = await fetch(at, { method, headers, body: JSON.stringify(body), cache: 'no-store', signal }).catch(() => {
    throw new Refusal(0, { error: 'the server does not answer', remedy: 'see whether `kura serve` runs, and what it logs' });
  });
  const text = await answer.text();
  const isJson = answer.headers.get('content-type')?.startsWith('application/json');
  const said = isJson && text ? JSON.parse(text) : text;
  if (!answer.ok) throw new Refusal(answer.status, isJson ? said : {});
  return said;
}
