// Markup in a template: html`<b>${text}</b>`. What stands in it is text, never markup.

import htm from '../vendor/htm.mjs';
import { h } from '../vendor/preact.mjs';

export const html = htm.bind(h);
