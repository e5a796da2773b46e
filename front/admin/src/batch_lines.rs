//! A batch as it comes: lines, and behind some of them content.

use crate::{BatchStep, Content, Problem, ProblemKind};
use bytes::Bytes;
use futures::StreamExt;

/// A line takes at most this: names, and a user's words on an object.
const LINE_BYTES: usize = 64 << 10;

/// The body of a batch.
pub(crate) struct BatchLines {
    pub(crate) body: Content,
    /// What has come and was not taken.
    held: Bytes,
    /// Lines taken so far.
    lines: u64,
}

impl BatchLines {
    pub(crate) fn new(body: Content) -> Self {
        Self { body, held: Bytes::new(), lines: 0 }
    }

    /// The next step. That there is none is an error: the last one is a commit.
    pub(crate) async fn step(&mut self) -> Result<BatchStep, Problem> {
        let mut line = Vec::new();
        loop {
            let end = self.held.iter().position(|&byte| byte == b'\n');
            line.extend_from_slice(&self.held.split_to(end.unwrap_or(self.held.len())));
            if line.len() > LINE_BYTES {
                return Err(self.wrong(&format!("is longer than {LINE_BYTES} bytes")));
            }
            if end.is_some() {
                drop(self.held.split_to(1));
                break;
            }
            if !self.more().await? {
                if line.is_empty() {
                    return Err(self.wrong("is missing: the last one is \"commit\""));
                }
                break;
            }
        }
        let step = serde_json::from_slice(&line).map_err(|error| self.wrong(&format!("is not a step: {error}")))?;
        self.lines += 1;
        Ok(step)
    }

    /// Up to `limit` of the next bytes of content, one at least.
    pub(crate) async fn content(&mut self, limit: u64) -> Result<Bytes, Problem> {
        while self.held.is_empty() {
            if !self.more().await? {
                return Err(self.wrong("is missing: the body ends within an object's content"));
            }
        }
        let len = self.held.len().min(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(self.held.split_to(len))
    }

    /// Waits for more; false at the end.
    async fn more(&mut self) -> Result<bool, Problem> {
        match self.body.next().await {
            None => Ok(false),
            Some(Ok(bytes)) => {
                self.held = bytes;
                Ok(true)
            }
            Some(Err(error)) => Err(error.into()),
        }
    }

    fn wrong(&self, what: &str) -> Problem {
        Problem::new(ProblemKind::Invalid, format!("line {} of the batch {what}", self.lines + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;
    use futures::stream;

    fn lines(text: &'static str, piece: usize) -> BatchLines {
        let pieces = text.as_bytes().chunks(piece).map(|piece| Ok(Bytes::from_static(piece)));
        BatchLines::new(stream::iter(pieces.collect::<Vec<_>>()).boxed())
    }

    #[test]
    fn content_stands_behind_its_line_however_it_is_cut() {
        let text = "{\"put\":{\"bucket\":\"b\",\"key\":\"k\",\"size_bytes\":3}}\na\nc{\"delete\":{\"bucket\":\"b\",\"key\":\"l\"}}\n\"commit\"\n";
        for piece in 1..text.len() {
            let mut lines = lines(text, piece);
            let Ok(BatchStep::Put { mut size_bytes, .. }) = block_on(lines.step()) else { panic!("no put") };
            let mut content = Vec::new();
            while size_bytes > 0 {
                let bytes = block_on(lines.content(size_bytes)).unwrap();
                size_bytes -= bytes.len() as u64;
                content.extend_from_slice(&bytes);
            }
            assert_eq!(content, b"a\nc");
            assert!(matches!(block_on(lines.step()), Ok(BatchStep::Delete { .. })));
            assert_eq!(block_on(lines.step()), Ok(BatchStep::Commit));
            assert!(block_on(lines.step()).is_err());
        }
    }

    #[test]
    fn what_is_no_batch_is_told_with_its_line() {
        for (text, said) in [
            ("", "line 1 of the batch is missing"),
            ("{\"put\":1}\n", "line 1 of the batch is not a step"),
            ("\"comm", "line 1 of the batch is not a step"),
        ] {
            let error = block_on(lines(text, 7).step()).unwrap_err().error;
            assert!(error.starts_with(said), "{error}");
        }
    }
}
