// Asks for what a change takes, has the server make it, and says why it would not.

import { Component } from '../vendor/preact.mjs';
import { UNANSWERED } from './api.js';
import { html } from './html.js';
import { Refused } from './parts.js';

/**
 * A dialog of `question`:
 * `title`, `text` (what will happen), `fields`, `verb` (what the button says), `isGrave` (something is lost), and `act`, which
 * is given the fields' values by name and answers when it is done. While it is at work the dialog stays, for what comes of it is to be
 * seen; who waits no longer reads that it may be done all the same, and may close it then. `told` makes text of its answer where somebody has to read it, such as a secret. `trial`, where there is one, asks the server
 * whether it would refuse, so that whoever asks knows before.
 * A field is `{ name, label, type, value, options, hint, isOptional }`; `type` is one of HTML's inputs, `select` or `lines`.
 */
export class Dialog extends Component {
  state = { refusal: null, isBusy: false, answer: null };

  componentDidMount() {
    this.dialog.showModal();
    this.props.question.trial?.().catch(refusal => this.setState({ refusal }));
  }

  async submit(event) {
    event.preventDefault();
    const { fields = [], act, told } = this.props.question;
    const inputs = event.target.elements;
    const value = ({ name, type }) => (type === 'checkbox' ? inputs[name].checked : inputs[name].value);
    this.setState({ isBusy: true, refusal: null });
    try {
      const answer = await act(Object.fromEntries(fields.map(field => [field.name, value(field)])));
      if (!told) return this.props.close();
      this.setState({ isBusy: false, answer: told(answer) });
    } catch (refusal) {
      this.setState({ isBusy: false, refusal });
    }
  }

  /** Closes the dialog, or ends the waiting for what is at work. */
  leave() {
    if (!this.state.isBusy) return this.props.close();
    this.setState({ isBusy: false, refusal: UNANSWERED });
  }

  /** Escape is a way to leave, too. */
  cancel(event) {
    event.preventDefault();
    this.leave();
  }

  render({ question, close }, { refusal, isBusy, answer }) {
    const { title, text, fields = [], verb, isGrave } = question;
    return html`
      <dialog onCancel=${event => this.cancel(event)} onClose=${close} aria-label=${title} ref=${dialog => { this.dialog = dialog; }}>
        <form onSubmit=${event => this.submit(event)}>
          <h2>${title}</h2>
          ${text && html`<p>${text}</p>`}
          ${!answer && fields.map(field => html`<${Field} ...${field}/>`)}
          ${refusal && html`<${Refused} by=${refusal}/>`}
          ${answer && html`<pre>${answer}</pre>`}
          <footer>
            <button type="button" onClick=${() => this.leave()}>${answer ? 'Close' : 'Cancel'}</button>
            ${!answer && html`<button class=${isGrave ? 'grave' : 'main'} disabled=${isBusy}>${isBusy ? 'At work …' : verb}</button>`}
          </footer>
        </form>
      </dialog>`;
  }
}

function Field({ name, label, type = 'text', value, options, hint, isOptional }) {
  const more = hint && html`<small class="soft">${hint}</small>`;
  if (type === 'checkbox') return html`<label class="check"><input type="checkbox" name=${name} defaultChecked=${value}/> ${label}${more}</label>`;
  return html`<label>${label}<${Input} ...${{ name, type, value, options, isOptional }}/>${more}</label>`;
}

function Input({ name, type, value, options, isOptional }) {
  if (type === 'lines') return html`<textarea name=${name} rows="3" spellcheck=${false} required></textarea>`;
  if (type === 'select') {
    return html`<select name=${name}>${options.map(([key, text]) => html`<option value=${key} selected=${key === value}>${text}</option>`)}</select>`;
  }
  return html`<input name=${name} type=${type} defaultValue=${value} autocomplete="off" spellcheck=${false} required=${!isOptional}/>`;
}
