//! Batch files: read, held against what they may say, and sent with the content that they name.

use super::{Source, pieces};
use crate::cli::ObjectName;
use crate::show::Out;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use kura_admin::{BatchStep, Client, Condition, ObjectHead};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, stdin};
use std::path::{Path, PathBuf};

/// A line of a batch file: one of `put`, `delete` and `require`, with what belongs to it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Line {
    put: Option<String>,
    delete: Option<String>,
    require: Option<String>,
    text: Option<String>,
    file: Option<PathBuf>,
    content_type: Option<String>,
    metadata: BTreeMap<String, String>,
    new: bool,
    is: Option<Condition>,
}

/// Where a put's content is.
#[derive(Clone, Debug, PartialEq)]
enum Content {
    None,
    Text(String),
    File(PathBuf),
}

/// Carries out a batch file; `-` is standard input.
pub async fn batch(client: &Client, out: Out, file: &Path) -> Result<()> {
    let (text, name, folder) = if file == Path::new("-") {
        let mut text = String::new();
        stdin().read_to_string(&mut text).context("standard input")?;
        (text, "standard input".to_owned(), PathBuf::new())
    } else {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).with_context(|| name.clone())?;
        (text, name, file.parent().unwrap_or(Path::new("")).to_owned())
    };
    let mut body = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let at = || format!("{name}:{number}");
        let line: Line = serde_json::from_str(line).with_context(at)?;
        let (mut step, content) = line.step().with_context(at)?;
        let content = open(&mut step, content, &folder).with_context(at)?;
        let mut head = serde_json::to_vec(&step)?;
        head.push(b'\n');
        body.push(stream::iter([Ok(Bytes::from(head))]).boxed());
        body.extend(content);
    }
    ensure!(!body.is_empty(), "{name}: has nothing to do");
    body.push(stream::iter([Ok(Bytes::from_static(b"\"commit\"\n"))]).boxed());
    let done = client.batch(stream::iter(body).flatten().boxed()).await?;
    out.show(&done, |done| format!("{} stored and {} deleted, together", done.stored, done.deleted))
}

impl Line {
    fn step(self) -> Result<(BatchStep, Content)> {
        let named = [&self.put, &self.delete, &self.require].into_iter().flatten().count();
        ensure!(named == 1, "a line has exactly one of put, delete and require");
        let is_put = self.put.is_some();
        let has_put = self.text.is_some() || self.file.is_some() || self.content_type.is_some() || self.new;
        ensure!(is_put || (!has_put && self.metadata.is_empty()), "only a put has content");
        ensure!(self.require.is_some() == self.is.is_some(), "a require, and nothing else, has \"is\"");
        let name = |text: &str| text.parse::<ObjectName>().map_err(anyhow::Error::msg);
        if let Some(object) = &self.delete {
            let ObjectName { bucket, key } = name(object)?;
            return Ok((BatchStep::Delete { bucket, key }, Content::None));
        }
        if let (Some(object), Some(is)) = (&self.require, self.is) {
            let ObjectName { bucket, key } = name(object)?;
            return Ok((BatchStep::Require { bucket, key, is }, Content::None));
        }
        let ObjectName { bucket, key } = name(&self.put.unwrap_or_default())?;
        let content = match (self.text, self.file) {
            (Some(text), None) => Content::Text(text),
            (None, Some(file)) => Content::File(file),
            _ => bail!("a put has either text or a file"),
        };
        let head = ObjectHead { content_type: self.content_type, metadata: self.metadata, new: self.new };
        // The size is known when the content is open.
        Ok((BatchStep::Put { bucket, key, size_bytes: 0, head }, content))
    }
}

/// Opens a put's content, and enters its size. A file is opened when its turn comes: there may be thousands.
fn open(step: &mut BatchStep, content: Content, folder: &Path) -> Result<Option<Source>> {
    let BatchStep::Put { size_bytes, .. } = step else { return Ok(None) };
    match content {
        Content::None => Ok(None),
        Content::Text(text) => {
            *size_bytes = text.len() as u64;
            Ok(Some(stream::iter([Ok(Bytes::from(text))]).boxed()))
        }
        Content::File(file) => {
            let path = folder.join(file);
            let at = || path.display().to_string();
            let metadata = std::fs::metadata(&path).with_context(at)?;
            ensure!(metadata.is_file(), "{}: is not a file", at());
            if metadata.len() == 0 {
                // Files of the kernel say that they are empty, whatever they hold.
                let bytes = std::fs::read(&path).with_context(at)?;
                *size_bytes = bytes.len() as u64;
                return Ok(Some(stream::iter([Ok(Bytes::from(bytes))]).boxed()));
            }
            let len = metadata.len();
            *size_bytes = len;
            let later = async move {
                let name = path.display().to_string();
                match File::open(&path) {
                    Ok(file) => pieces(file, name, Some(len)),
                    Err(error) => stream::iter([Err(kura_block::Error::device(format!("{name}: {error}")))]).boxed(),
                }
            };
            Ok(Some(stream::once(later).flatten().boxed()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of the kernel have no size, and what they hold is not to be taken for steps.
    #[tokio::test]
    async fn a_file_that_says_it_is_empty_is_as_long_as_what_it_holds() {
        let (mut put, content) = step(r#"{"put": "demo/a", "file": "/proc/version"}"#).unwrap();
        let sent = open(&mut put, content, Path::new("")).unwrap().expect("content").collect::<Vec<_>>().await;
        let sent = sent.into_iter().map(|piece| piece.unwrap().len() as u64).sum::<u64>();
        assert!(matches!(put, BatchStep::Put { size_bytes, .. } if size_bytes == sent && sent > 0), "{sent}");
    }

    fn step(line: &str) -> Result<(BatchStep, Content)> {
        serde_json::from_str::<Line>(line)?.step()
    }

    #[test]
    fn lines_say_one_thing() {
        let (put, content) = step(r#"{"put": "demo/a/b", "text": "x", "metadata": {"k": "v"}, "new": true}"#).unwrap();
        assert!(
            matches!(put, BatchStep::Put { key, head, .. } if key == "a/b" && head.new && head.metadata.len() == 1)
        );
        assert_eq!(content, Content::Text("x".into()));
        assert!(matches!(step(r#"{"delete": "demo/a"}"#).unwrap().0, BatchStep::Delete { .. }));
        let (require, _) = step(r#"{"require": "demo/a", "is": {"etag": "5d"}}"#).unwrap();
        assert!(matches!(require, BatchStep::Require { is: Condition::Etag(etag), .. } if etag == "5d"));
        for (line, said) in [
            ("{}", "one of put, delete and require"),
            (r#"{"put": "demo/a", "delete": "demo/b", "text": ""}"#, "one of put"),
            (r#"{"put": "demo/a"}"#, "either text or a file"),
            (r#"{"put": "demo/a", "text": "", "file": "b"}"#, "either text or a file"),
            (r#"{"put": "demo", "text": ""}"#, "is not BUCKET/KEY"),
            (r#"{"delete": "demo/a", "text": ""}"#, "only a put has content"),
            (r#"{"require": "demo/a"}"#, "a require, and nothing else, has \"is\""),
            (r#"{"require": "demo/a", "is": "gone"}"#, "unknown variant"),
            (r#"{"putt": "demo/a"}"#, "unknown field"),
            ("demo/a", "expected"),
        ] {
            let error = format!("{:#}", step(line).unwrap_err());
            assert!(error.contains(said), "{line}: {error}");
        }
    }
}
