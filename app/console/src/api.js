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

/** The token to show to the server from now on: kept as long as the browser's tab. Refuses what no header can have. */
export function showToken(token) {
  if (!/^[!-~]+$/.test(token)) throw new Error("a token has letters, digits and signs, no spaces and no line's end");
  sessionStorage.setItem(TOKEN, token);
}

/** True where a token has been given. */
export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

/** What the server has at this path: an object where it answers with JSON, else text. `signal` ends the asking. */
export const get = (at, signal) => ask('GET', at, undefined, AbortSignal.any([signal, AbortSignal.timeout(PATIENCE_MS)]));

/** Has the server change something; answers with what it says of that. */
export const change = (method, at, body) => ask(method, at, body);

/** Asks the server whether it would refuse that change. */
export const trial = (method, at, body) => ask(method, `${at}?dry_run=true`, body);

/** A path of the API, of names that may have any letters: ``path`volumes/${name}` ``. */
export const path = (words, ...names) =>
  '/api/v1/' + words.map((word, at) => word + (at < names.length ? encodeURIComponent(names[at]) : '')).join('');

async function ask(method, at, body, signal) {
  const headers = {};
  if (hasToken()) headers.authorization = `Bearer ${sessionStorage.getItem(TOKEN)}`;
  if (body !== undefined) headers['content-type'] = 'application/json';
  try {
    const answer = await fetch(at, { method, headers, body: JSON.stringify(body), cache: 'no-store', signal });
    const text = await answer.text();
    const said = answer.headers.get('content-type')?.startsWith('application/json') && text ? JSON.parse(text) : text;
    if (!answer.ok) throw new Refusal(answer.status, typeof said === 'object' ? said : {});
    return said;
  } catch (error) {
    throw error instanceof Refusal ? error : new Refusal(0, method === 'GET' ? SILENCE : CUT_OFF);
  }
}

const SILENCE = { error: 'the server does not answer', remedy: 'see whether `kura serve` runs, and what it logs' };
const CUT_OFF = { error: 'the connection broke off before the answer came', remedy: 'it may have been done all the same: look before you ask again' };

/** What there is to say of a change whose answer is waited for no longer. */
export const UNANSWERED = new Refusal(0, { ...CUT_OFF, error: 'the server has not answered yet' });
