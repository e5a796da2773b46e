// The console: pages over what the server has. Data goes one way: the API, the store, a page, markup. What a page has changed is
// asked for again.

import { Component, render } from '../vendor/preact.mjs';
import { hasToken, showToken } from './api.js';
import { Dialog } from './dialog.js';
import { html } from './html.js';
import { Badge, Refused } from './parts.js';
import { Store } from './store.js';
import * as copies from './pages/copies.js';
import * as disks from './pages/disks.js';
import * as jobs from './pages/jobs.js';
import * as objects from './pages/objects.js';
import * as overview from './pages/overview.js';
import * as tier from './pages/tier.js';
import * as volumes from './pages/volumes.js';

/**
 * The pages by the first word of the address's fragment. Each has a `title`, says with `needs(rest, resources)` what it shows beside
 * what every page has, and with `Page` how; `rest` are the fragment's further words, `resources` what is known so far.
 */
const PAGES = { overview, volumes, disks, tier, copies, objects, jobs };

/** The page and its further words that the address names; the beginning where it names none. */
function place() {
  try {
    const [name, ...rest] = location.hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);
    if (Object.hasOwn(PAGES, name)) return { name, rest };
  } catch { /* An address that somebody wrote by hand. */ }
  return { name: 'overview', rest: [] };
}

class Console extends Component {
  state = { place: place(), question: null };
  store = new Store(() => { this.look(); this.forceUpdate(); });

  componentDidMount() {
    window.addEventListener('hashchange', () => this.setState({ place: place() }, () => this.look()));
    this.look();
  }

  look() {
    const { name, rest } = this.state.place;
    document.title = `${PAGES[name].title} – kura`;
    this.store.need(PAGES[name].needs(rest, this.store.resources));
  }

  /** Opens a dialog, and looks again once what it asked for is done. */
  ask = question => {
    const act = async values => {
      const answer = await question.act(values);
      this.store.refresh();
      return answer;
    };
    this.setState({ question: { ...question, act } });
  };

  render(_, { place: { name, rest }, question }) {
    const { resources, refusal, history } = this.store;
    const { status } = resources;
    const close = () => this.setState(now => ({ question: now.question === question ? null : now.question }));
    return html`
      <${Side} current=${name} status=${status}/>
      <main>
        ${refusal?.wantsToken ? html`<${Token} store=${this.store}/>` : html`
          ${refusal && html`<${Refused} by=${refusal}/>`}
          ${refusal && status && html`<p class="soft">What is below is what it said last.</p>`}
          ${status && html`<${Whole} key=${name}><${PAGES[name].Page} ...${resources} history=${history} rest=${rest} ask=${this.ask}/><//>`}`}
      </main>
      ${question && html`<${Dialog} key=${question} question=${question} close=${close}/>`}`;
  }
}

/** A page; where it cannot be drawn, why: the fault is kura's, and the rest of the console is of use all the same. */
class Whole extends Component {
  state = { fault: null };

  componentDidCatch(fault) {
    console.error(fault);
    this.setState({ fault });
  }

  render({ children }, { fault }) {
    return fault ? html`<p class="refusal" role="alert">This page cannot be drawn: ${fault.message}. That is a fault of the console.</p>` : children;
  }
}

const Side = ({ current, status }) => html`
  <nav aria-label="Pages">
    <h1><img src="/console/icon.svg" alt=""/> kura</h1>
    <ul>${Object.entries(PAGES).map(([name, { title }]) => html`
      <li><a href="#/${name}" aria-current=${name === current ? 'page' : undefined}>${title}</a></li>`)}</ul>
    ${status && html`<p class="foot"><a href="#/overview"><${Badge} mood=${status.health === 'healthy' ? 'good' : 'bad'}>${status.health}<//></a>
      <span class="soft">${status.version}</span></p>`}
  </nav>`;

/** Where the server wants to know who looks. */
class Token extends Component {
  state = { fault: null };

  submit(event) {
    event.preventDefault();
    try {
      showToken(event.target.elements.token.value.trim());
      this.setState({ fault: null });
      this.props.store.refresh();
    } catch ({ message }) {
      this.setState({ fault: message });
    }
  }

  render(_, { fault }) {
    const said = fault ?? (hasToken() && 'The token given last is not the one.');
    return html`
      <form class="card token" onSubmit=${event => this.submit(event)}>
        <h2>Who looks?</h2>
        <p>This server wants its <code>admin.token</code>. It stays in this tab of the browser.</p>
        ${said && html`<p class="refusal" role="alert">${said}</p>`}
        <label>Token<input name="token" type="password" autocomplete="off" required/></label>
        <footer><button class="main">Look</button></footer>
      </form>`;
  }
}

render(html`<${Console}/>`, document.body);
