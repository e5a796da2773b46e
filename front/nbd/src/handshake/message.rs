//! Reading an option's data and building its replies.

use crate::export::BlockSizes;
use crate::protocol::{OPTION_REPLY_MAGIC, OptionReplyHeader, STRING_BYTES, info};
use zerocopy::IntoBytes;

/// Takes fields from the front of an option's data; `None` when they are not there.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(front)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    /// A string with its length before it.
    pub fn string(&mut self) -> Option<&'a str> {
        let len = self.u32()? as usize;
        text(self.take(len)?)
    }

    pub fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Bytes as a string of the protocol: UTF-8, not too long, without zeroes.
pub fn text(bytes: &[u8]) -> Option<&str> {
    (bytes.len() <= STRING_BYTES && !bytes.contains(&0)).then_some(())?;
    std::str::from_utf8(bytes).ok()
}

/// The data of `INFO` and `GO`.
pub struct InfoQuery<'a> {
    pub export: &'a str,
    pub wanted: Vec<u16>,
}

impl<'a> InfoQuery<'a> {
    pub fn decode(data: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(data);
        let export = fields.string()?;
        let count = fields.u16()?;
        let wanted = (0..count).map(|_| fields.u16()).collect::<Option<_>>()?;
        fields.end()?;
        Some(Self { export, wanted })
    }
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
pub struct ContextQuery<'a> {
    pub export: &'a str,
    pub queries: Vec<&'a str>,
}

impl<'a> ContextQuery<'a> {
    pub fn decode(data: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(data);
        let export = fields.string()?;
        let count = fields.u32()?;
        // The iterator ends at the first query that is not there: a count that lies costs nothing.
        let queries = (0..count).map(|_| fields.string()).collect::<Option<_>>()?;
        fields.end()?;
        Some(Self { export, queries })
    }
}

impl ContextQuery<'_> {
    /// Whether a context is among what is asked for. Only what is to be listed may be asked for by its beginning, up to a
    /// colon: `NAMESPACE:` stands for all of a namespace.
    pub fn wants(&self, context: &str, set: bool) -> bool {
        let listed = |query: &&str| !set && query.ends_with(':') && context.starts_with(*query);
        (self.queries.is_empty() && !set) || self.queries.iter().any(|query| *query == context || listed(query))
    }
}

/// Adds a reply to `option` to `out`.
pub fn put_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let len = data.iter().map(|part| part.len()).sum::<usize>() as u32;
    let header = OptionReplyHeader {
        magic: OPTION_REPLY_MAGIC.into(),
        option: option.into(),
        kind: kind.into(),
        len: len.into(),
    };
    out.extend_from_slice(header.as_bytes());
    for part in data {
        out.extend_from_slice(part);
    }
}

/// The data of the fact `EXPORT`.
pub fn export_info(size_bytes: u64, flags: u16) -> Vec<u8> {
    [&info::EXPORT.to_be_bytes()[..], &size_bytes.to_be_bytes(), &flags.to_be_bytes()].concat()
}

/// The data of the facts `NAME` and `DESCRIPTION`.
pub fn text_info(kind: u16, text: &str) -> Vec<u8> {
    [&kind.to_be_bytes()[..], text.as_bytes()].concat()
}

/// The data of the fact `BLOCK_SIZE`.
pub fn block_size_info(sizes: BlockSizes) -> Vec<u8> {
    let BlockSizes { minimum, preferred, maximum_payload } = sizes;
    let mut data = info::BLOCK_SIZE.to_be_bytes().to_vec();
    for size in [minimum, preferred, maximum_payload] {
        data.extend(size.to_be_bytes());
    }
    data
}
