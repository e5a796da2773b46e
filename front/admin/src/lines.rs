//! An answer that comes line by line.

use http_body_util::BodyExt;
use hyper::body::Incoming;

/// The lines of an answer's body.
pub(crate) struct Lines {
    body: Incoming,
    text: Vec<u8>,
    /// Where in `text` the next line begins.
    begin: usize,
}

impl Lines {
    pub(crate) fn new(body: Incoming) -> Self {
        Self { body, text: Vec::new(), begin: 0 }
    }

    /// The next line, without its end; none at the end of the answer. What follows the last line's end is not one.
    pub(crate) async fn next(&mut self) -> Result<Option<&[u8]>, hyper::Error> {
        let mut seen = self.begin;
        loop {
            if let Some(len) = self.text[seen..].iter().position(|&byte| byte == b'\n') {
                let line = self.begin..seen + len;
                self.begin = line.end + 1;
                return Ok(Some(&self.text[line]));
            }
            self.text.drain(..self.begin);
            (self.begin, seen) = (0, self.text.len());
            match self.body.frame().await {
                Some(frame) => self.text.extend_from_slice(frame?.data_ref().map_or(&[][..], |bytes| bytes)),
                None => return Ok(None),
            }
        }
    }
}
