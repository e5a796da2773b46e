// Buckets and what is in them, and the access keys of S3's clients.

import { change, path, trial } from '../api.js';
import { bytes, instant } from '../format.js';
import { html } from '../html.js';
import { Heading, Table, Verbs, address, given } from '../parts.js';

export const title = 'Objects';

const PAGE = 200;

/** A list's path, which is its name among the resources too. */
const list = (bucket, prefix = '', after = '') => `${path`buckets/${bucket}/objects`}?${
  new URLSearchParams({ prefix, delimiter: '/', limit: PAGE, ...(after ? { after } : {}) })}`;

export const needs = ([bucket, prefix, after]) => (bucket ? [list(bucket, prefix, after)] : ['buckets', 'keys']);

export const Page = props => (props.rest[0] ? html`<${Keys} ...${props}/>` : html`<${Buckets} ...${props}/>`);

const at = (...words) => address('objects', ...words);

const Buckets = ({ status, buckets, keys, ask }) => html`
  <${Heading} title=${title} verbs=${[['New bucket …', () => ask(create())]]}>
    ${status.s3 ? html`S3's clients reach them at <code>${status.s3}</code>.` : 'S3 is not served.'}<//>
  ${given(buckets, rows => html`<${Table} columns=${bucketColumns(ask)} rows=${rows} id=${({ name }) => name} empty="There is none yet: make one."/>`)}
  <${Heading} title="Access keys" verbs=${[['New key …', () => ask(createKey(buckets))]]}>A key's secret is shown when it is made, and never again.<//>
  ${given(keys, rows => html`<${Table} columns=${keyColumns(ask)} rows=${rows} id=${({ id }) => id} empty="There is none: nobody can sign a request."/>`)}`;

const VERSIONS = { never: 'one each', enabled: 'every put adds one', suspended: 'those there are stay' };

const bucketColumns = ask => [
  { name: 'Bucket', of: ({ name }) => html`<a href=${at(name)}>${name}</a>` },
  { name: 'Versions', of: ({ versioning }) => VERSIONS[versioning] },
  { name: 'Made', of: ({ created_at }) => instant(created_at) },
  { name: '', of: ({ name }) => html`<${Verbs} of=${[['Delete', () => ask(remove(name))]]}/>` },
];

const keyColumns = ask => [
  { name: 'Key', of: ({ id }) => html`<code>${id}</code>` },
  { name: 'Of', of: ({ name }) => name },
  { name: 'May', of: ({ buckets }) => Object.entries(buckets).map(([name, grant]) => `${grant} ${name}`).join(', ') || 'everything' },
  { name: 'Made', of: ({ created_at }) => instant(created_at) },
  { name: '', of: ({ id }) => html`<${Verbs} of=${[['Revoke', () => ask(revoke(id))]]}/>` },
];

function Keys({ rest: [bucket, prefix = '', after = ''], ...resources }) {
  return html`
    <${Heading} title=${title}><a href="#/objects">Buckets</a> / <${Way} bucket=${bucket} prefix=${prefix}/><//>
    ${given(resources[list(bucket, prefix, after)], ({ objects, prefixes, next }) => html`
      <${Table} columns=${OBJECTS} id=${({ key }) => key} empty="No key begins so."
        rows=${[...prefixes.map(key => ({ key, href: at(bucket, key) })), ...objects].map(row => ({ ...row, text: row.key.slice(prefix.length) }))}/>
      ${next && html`<p><a href=${at(bucket, prefix, next)}>Further keys</a></p>`}`)}`;
}

/** The folders that a prefix is made of, each a link. */
function Way({ bucket, prefix }) {
  const parts = prefix.split('/').slice(0, -1);
  return html`<a href=${at(bucket)}>${bucket}</a>${parts.map((part, to) => html` / <a href=${at(bucket, `${parts.slice(0, to + 1).join('/')}/`)}>${part}</a>`)}`;
}

const OBJECTS = [
  { name: 'Key', of: ({ href, text }) => (href ? html`<a href=${href}>${text}</a>` : text) },
  { name: 'Size', of: ({ size_bytes }) => size_bytes !== undefined && bytes(size_bytes), number: true },
  { name: 'Put', of: ({ modified_at }) => modified_at && instant(modified_at) },
  { name: 'ETag', of: ({ etag }) => etag && html`<code>${etag}</code>` },
];

const create = () => ({
  title: 'New bucket', verb: 'Make it',
  fields: [{ name: 'name', label: 'Name', hint: '3 to 63 lower-case letters, digits, dots and hyphens' }],
  act: values => change('POST', path`buckets`, values),
});

const remove = name => ({
  title: `Delete bucket ${name}`, verb: 'Delete it', isGrave: true,
  text: 'It has to be empty. "kura bucket delete NAME --force" empties it before.',
  trial: () => trial('DELETE', path`buckets/${name}`), act: () => change('DELETE', path`buckets/${name}`),
});

const GRANTS = [['read-write', 'read and write'], ['read', 'read'], ['write', 'write']];

/** What a key may do is one choice: one that is to read a bucket is not to do everything by mistake. */
const createKey = buckets => ({
  title: 'New access key', verb: 'Make it',
  fields: [
    { name: 'name', label: 'A name for people', isOptional: true },
    { name: 'may', label: 'What it may do', type: 'select', options: [
      ...(Array.isArray(buckets) ? buckets : []).flatMap(({ name }) => GRANTS.map(([grant, text]) => [`${grant} ${name}`, `${text} ${name}`])),
      ['', 'everything, in every bucket'],
    ] },
  ],
  act: ({ name, may }) => {
    const [grant, bucket] = may.split(' ');
    return change('POST', path`keys`, { name, buckets: may ? { [bucket]: grant } : {} });
  },
  told: key => `AWS_ACCESS_KEY_ID=${key.id}\nAWS_SECRET_ACCESS_KEY=${key.secret}`,
});

const revoke = id => ({
  title: `Revoke ${id}`, verb: 'Revoke it', isGrave: true, text: 'Nothing that it signs is done any more.',
  trial: () => trial('DELETE', path`keys/${id}`), act: () => change('DELETE', path`keys/${id}`),
});
