//! Buckets, access keys and objects on the command line. Content streams: it is never in memory as a whole.

mod batch;

use crate::bar::Bar;
use crate::cli::{BucketCommand, Common, GrantArg, KeyCommand, ObjectCommand, ObjectName, PutArgs};
use crate::misuse::Misuse;
use crate::new_file::{NewFile, unless_ended};
use crate::show::{Out, table};
use crate::size::Size;
use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use futures::stream::{BoxStream, StreamExt, TryStreamExt, try_unfold};
use kura_admin::{AccessKey, Bucket, Client, Grant, NewKey, Object, ObjectBytes, ObjectHead, ObjectQuery, Versioning};
use kura_block::Amount;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Take, Write, stdin, stdout};
use std::path::Path;

/// Bytes read of a file at a time.
const PIECE_BYTES: usize = 256 << 10;

/// Deletions asked for at once: what is durable together costs one flush.
const DELETIONS: usize = 32;

/// Bytes on their way to the server.
type Source = BoxStream<'static, kura_block::Result<Bytes>>;

/// Carries out a command on buckets.
pub async fn bucket(client: &Client, out: Out, command: BucketCommand) -> Result<()> {
    match command {
        BucketCommand::Create { name } => {
            out.show(&client.create_bucket(&name).await?, |bucket| format!("created bucket {}", bucket.name))
        }
        BucketCommand::List => out.show(client.buckets().await?.as_slice(), buckets),
        BucketCommand::Delete { name, force, dry_run } => {
            let mut emptied = 0;
            let deleted = delete(client, out, &name, (force, dry_run), &mut emptied).await;
            let lost = || format!("bucket {name} stays, but {emptied} of its versions are deleted");
            if emptied > 0 && !dry_run {
                deleted.with_context(lost)?;
            } else {
                deleted?;
            }
            let done = if dry_run { "would delete" } else { "deleted" };
            let held = if emptied > 0 { format!(", versions in it: {emptied}") } else { String::new() };
            let said = serde_json::json!({ "name": name, "versions": emptied, "dry_run": dry_run });
            out.show(&said, |_| format!("{done} bucket {name}{held}"))
        }
    }
}

/// Deletes a bucket, with `force` after all versions that it holds, which are counted.
async fn delete(
    client: &Client,
    out: Out,
    bucket: &str,
    (force, dry_run): (bool, bool),
    emptied: &mut u64,
) -> Result<()> {
    if force {
        empty(client, out, bucket, dry_run, emptied).await?;
    }
    if !dry_run {
        client.delete_bucket(bucket).await?;
    } else if *emptied == 0 {
        client.trial().delete_bucket(bucket).await?;
    }
    Ok(())
}

/// Deletes all versions that a bucket holds, delete markers too, from the first key to the last, and counts them. What clients
/// put behind it meanwhile stays. An error leaves what was deleted by then deleted.
pub(super) async fn empty(client: &Client, out: Out, bucket: &str, dry_run: bool, emptied: &mut u64) -> Result<()> {
    let bar = Bar::count(out, format!("emptying bucket {bucket}"));
    let mut query = ObjectQuery { versions: true, ..ObjectQuery::default() };
    loop {
        let page = client.objects(bucket, &query).await?;
        if let (true, 0, Some(first)) = (dry_run, *emptied, page.objects.first()) {
            // What would keep this one keeps them all: a snapshot's bucket is only read.
            client.trial().delete_object(bucket, &first.key, Some(&first.version)).await?;
        }
        if dry_run {
            *emptied += page.objects.len() as u64;
        }
        let delete =
            async |object: &Object| match client.delete_object(bucket, &object.key, Some(&object.version)).await {
                // Whoever else deletes here was first.
                Err(error) if error.is_missing() => Ok(()),
                deleted => deleted,
            };
        let mut deletions =
            futures::stream::iter(page.objects.iter().filter(|_| !dry_run)).map(delete).buffer_unordered(DELETIONS);
        while let Some(deleted) = deletions.next().await {
            deleted?;
            *emptied += 1;
            bar.advance(1);
        }
        query.after = page.next;
        if query.after.is_none() {
            return Ok(());
        }
    }
}

fn buckets(buckets: &[Bucket]) -> String {
    if buckets.is_empty() {
        return "no buckets: make one with `kura bucket create NAME`".to_owned();
    }
    let row = |bucket: &Bucket| {
        let versioning = match bucket.versioning {
            Versioning::Never => "never",
            Versioning::Enabled => "enabled",
            Versioning::Suspended => "suspended",
        };
        vec![bucket.name.clone(), bucket.created_at.to_string(), versioning.to_owned()]
    };
    table(&["NAME", "CREATED", "VERSIONING"], buckets.iter().map(row))
}

/// Carries out a command on access keys.
pub async fn key(client: &Client, common: &Common, command: KeyCommand) -> Result<()> {
    let out = common.out();
    match command {
        KeyCommand::Create { name, buckets } => {
            let grants = buckets.into_iter().map(|GrantArg { bucket, grant }| (bucket, grant));
            let new = NewKey { name, buckets: distinct("--bucket", grants)? };
            // Nobody is told the secret again.
            common.loud().show(&client.create_key(&new).await?, |key| {
                let secret = key.secret.as_deref().unwrap_or_default();
                format!("key {} with the secret {secret} (shown only once)", key.id)
            })
        }
        KeyCommand::List => out.show(client.keys().await?.as_slice(), keys),
        KeyCommand::Revoke { id, dry_run } => {
            if dry_run {
                client.trial().revoke_key(&id).await?;
            } else {
                client.revoke_key(&id).await?;
            }
            let done = if dry_run { "would revoke" } else { "revoked" };
            out.show(&serde_json::json!({ "id": id, "dry_run": dry_run }), |_| format!("{done} key {id}"))
        }
    }
}

/// What an option says by name; a name that it has twice would be one of the two.
fn distinct<T>(option: &str, said: impl IntoIterator<Item = (String, T)>) -> Result<BTreeMap<String, T>> {
    let mut named = BTreeMap::new();
    for (name, value) in said {
        if named.contains_key(&name) {
            return Err(Misuse(format!("{option} says {name} twice: say it once")).into());
        }
        named.insert(name, value);
    }
    Ok(named)
}

fn keys(keys: &[AccessKey]) -> String {
    if keys.is_empty() {
        return "no access keys: make one with `kura key create NAME`".to_owned();
    }
    let row = |key: &AccessKey| {
        let grants = key.buckets.iter().map(|(bucket, grant)| {
            let grant = match grant {
                Grant::Read => "read",
                Grant::Write => "write",
                Grant::ReadWrite => "read-write",
            };
            format!("{bucket}={grant}")
        });
        let grants =
            if key.buckets.is_empty() { "everything".to_owned() } else { grants.collect::<Vec<_>>().join(" ") };
        vec![key.id.clone(), key.name.clone(), grants, key.created_at.to_string()]
    };
    table(&["ID", "NAME", "MAY", "CREATED"], keys.iter().map(row))
}

/// Carries out a command on objects.
pub async fn object(client: &Client, out: Out, command: ObjectCommand) -> Result<()> {
    match command {
        ObjectCommand::Put(args) => put(client, out, args).await,
        ObjectCommand::Get { object, file, version } => {
            get(client, out, &object, file.as_deref(), version.as_deref()).await
        }
        ObjectCommand::List { at, delimiter, versions } => list(client, out, &at, delimiter, versions).await,
        ObjectCommand::Stat { object: ObjectName { bucket, key }, version } => {
            out.show(&client.object(&bucket, &key, version.as_deref()).await?, stat)
        }
        ObjectCommand::Delete { object, version, dry_run } => {
            let ObjectName { bucket, key } = &object;
            if dry_run {
                client.trial().delete_object(bucket, key, version.as_deref()).await?;
            } else {
                client.delete_object(bucket, key, version.as_deref()).await?;
            }
            let said = serde_json::json!({ "bucket": bucket, "key": key, "version": version, "dry_run": dry_run });
            let done = if dry_run { "would delete" } else { "deleted" };
            out.show(&said, |_| format!("{done} {object}"))
        }
        ObjectCommand::Batch { file } => batch::batch(client, out, &file).await,
    }
}

async fn put(client: &Client, out: Out, args: PutArgs) -> Result<()> {
    let PutArgs { object: ObjectName { bucket, key }, file, content_type, metadata, new } = args;
    let head = ObjectHead { content_type, metadata: distinct("--metadata", metadata)?, new };
    let (source, size_bytes) = source(&file)?;
    let bar = Bar::bytes(out, format!("storing {bucket}/{key}"), size_bytes);
    let seen = source.inspect_ok(move |piece| bar.advance(piece.len() as u64)).boxed();
    let stored = client.write_object(&bucket, &key, &head, size_bytes, seen).await?;
    out.show(&stored, |stored| format!("stored {bucket}/{key}: {}", Size(stored.size_bytes)))
}

/// A file's bytes, or standard input's; and how many they are, where that is known.
fn source(file: &Path) -> Result<(Source, Option<u64>)> {
    if file == Path::new("-") {
        return Ok((pieces(stdin(), "standard input".to_owned(), None), None));
    }
    let at = || file.display().to_string();
    let opened = std::fs::File::open(file).with_context(at)?;
    let metadata = opened.metadata().with_context(at)?;
    ensure!(!metadata.is_dir(), "{}: is a folder: name a file", at());
    // A pipe or a device has no size to tell, and files of the kernel say that they are empty.
    let size_bytes = Some(metadata.len()).filter(|size| metadata.is_file() && *size > 0);
    Ok((pieces(opened, at(), size_bytes), size_bytes))
}

/// What `reader` gives, piece by piece: as much as is said, if that is, and an error where it has less. Errors name it as `name`.
fn pieces(reader: impl Read + Send + 'static, name: String, size_bytes: Option<u64>) -> Source {
    let next = move |(mut reader, name): (Take<_>, String)| async move {
        let mut piece = BytesMut::zeroed(PIECE_BYTES);
        loop {
            match reader.read(&mut piece) {
                Ok(0) if size_bytes.is_some() && reader.limit() > 0 => {
                    let left = Amount(reader.limit());
                    let text = format!("{name}: became shorter while it was read: {left} are missing");
                    return Err(kura_block::Error::retry(text));
                }
                Ok(0) => return Ok(None),
                Ok(len) => {
                    piece.truncate(len);
                    return Ok(Some((piece.freeze(), (reader, name))));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(kura_block::Error::device(format!("{name}: {error}"))),
            }
        }
    };
    try_unfold((reader.take(size_bytes.unwrap_or(u64::MAX)), name), next).boxed()
}

async fn get(client: &Client, out: Out, object: &ObjectName, file: Option<&Path>, version: Option<&str>) -> Result<()> {
    let ObjectName { bucket, key } = object;
    let Some(file) = file.filter(|file| *file != Path::new("-")) else {
        if matches!(out, Out::Json) {
            let text = "--json reports what was read, and the content is not JSON: name a file for the content";
            return Err(Misuse(text.to_owned()).into());
        }
        let bytes = client.read_object(bucket, key, version, None).await?;
        // What is read may be shown on the same terminal.
        return match copy(bytes, &mut stdout(), &Bar::bytes(Out::Quiet, "", None)).await {
            // A reader that went away wants no more.
            Err(error) if is_broken_pipe(&error) => Ok(()),
            done => done.map(drop),
        };
    };
    let reading = async {
        let bytes = client.read_object(bucket, key, version, None).await?;
        let mut new = NewFile::create(file)?;
        let bar = Bar::bytes(out, format!("reading {object}"), bytes.size_bytes());
        let size_bytes = copy(bytes, &mut new, &bar).await.with_context(|| file.display().to_string())?;
        new.keep()?;
        Ok(size_bytes)
    };
    let size_bytes = unless_ended(reading).await?;
    let read = Got { bucket, key, file, size_bytes };
    out.show(&read, |_| format!("{object} is in {}: {}", file.display(), Size(size_bytes)))
}

/// What was read.
#[derive(Serialize)]
struct Got<'a> {
    bucket: &'a str,
    key: &'a str,
    file: &'a Path,
    size_bytes: u64,
}

async fn copy(mut bytes: ObjectBytes, to: &mut impl Write, bar: &Bar) -> Result<u64> {
    let mut size_bytes = 0;
    while let Some(piece) = bytes.next().await? {
        to.write_all(&piece)?;
        size_bytes += piece.len() as u64;
        bar.advance(piece.len() as u64);
    }
    to.flush()?;
    Ok(size_bytes)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// A list, page by page: of any length, in little memory.
async fn list(client: &Client, out: Out, at: &str, delimiter: Option<String>, versions: bool) -> Result<()> {
    let at = at.strip_prefix("s3://").unwrap_or(at);
    let (bucket, prefix) = at.split_once('/').unwrap_or((at, ""));
    let mut query = ObjectQuery { prefix: prefix.to_owned(), delimiter, versions, ..ObjectQuery::default() };
    let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
    loop {
        let page = client.objects(bucket, &query).await?;
        match out {
            Out::Json => {
                objects.extend(page.objects);
                prefixes.extend(page.prefixes);
            }
            // Whoever reads the first lines only wants no further pages.
            Out::Text if !print_page(&page.objects, &page.prefixes, versions)? => break,
            Out::Text | Out::Quiet => {}
        }
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    if matches!(out, Out::Json) {
        out.show(&serde_json::json!({ "objects": objects, "prefixes": prefixes }), |_| String::new())?;
    }
    Ok(())
}

/// A line an object: size, time, version where all are listed, key. Objects and prefixes of a page are merged in the order of
/// their bytes. False where the reader went away.
fn print_page(objects: &[Object], prefixes: &[String], versions: bool) -> Result<bool> {
    let line = |size: &str, time: &str, version: &str, key: &str| {
        let version = if versions { format!("{version:16}  ") } else { String::new() };
        (key.to_owned(), format!("{size:>14}  {time:24}  {version}{}", on_a_line(key)))
    };
    let of_object = |object: &Object| {
        let size = if object.delete_marker { "deleted".to_owned() } else { object.size_bytes.to_string() };
        line(&size, &object.modified_at.to_string(), &object.version, &object.key)
    };
    let of_prefix = |prefix: &String| line("-", "-", "-", prefix);
    let mut lines: Vec<_> = objects.iter().map(of_object).chain(prefixes.iter().map(of_prefix)).collect();
    // Versions of a key stay as they came, from new to old.
    lines.sort_by(|(one, _), (other, _)| one.cmp(other));
    let text: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
    if text.is_empty() { Ok(true) } else { crate::show::print_on(&text.join("\n")) }
}

/// A key as it can be shown: one that has a line's end, or what a terminal obeys, is escaped.
fn on_a_line(key: &str) -> Cow<'_, str> {
    if !key.chars().any(char::is_control) {
        return Cow::Borrowed(key);
    }
    let letter = |letter: char| {
        let is_plain = !letter.is_control() && letter != '\\';
        if is_plain { letter.to_string() } else { letter.escape_default().to_string() }
    };
    Cow::Owned(key.chars().map(letter).collect())
}

fn stat(object: &Object) -> String {
    let mut lines = vec![
        format!("object    {}/{}", object.bucket, on_a_line(&object.key)),
        format!("size      {} bytes", object.size_bytes),
        format!("modified  {}", object.modified_at),
        format!("version   {}", object.version),
        format!("etag      {}", object.etag),
    ];
    lines.extend(object.attributes.iter().map(|(name, value)| format!("{name}: {value}")));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_sent_as_long_as_it_was_said_to_be() {
        let all = async |bytes: &'static [u8], size_bytes| -> kura_block::Result<Vec<u8>> {
            let sent: Vec<Bytes> = pieces(bytes, "a".to_owned(), size_bytes).try_collect().await?;
            Ok(sent.concat())
        };
        assert_eq!(all(b"abcd", None).await.unwrap(), b"abcd");
        assert_eq!(all(b"abcd", Some(4)).await.unwrap(), b"abcd");
        assert_eq!(all(b"abcd", Some(3)).await.unwrap(), b"abc", "it has grown since");
        let shorter = all(b"abcd", Some(5)).await.unwrap_err().to_string();
        assert!(shorter.starts_with("a: became shorter"), "{shorter}");
    }
}
