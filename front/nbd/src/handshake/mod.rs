//! The first phase: the client chooses an export and what it wants of the protocol.

mod message;

use crate::export::{Export, Exports};
use crate::hangup::Hangup;
use crate::limits::Limits;
use crate::protocol::{
    GREETING_MAGIC, Greeting, OPTION_MAGIC, OptionHeader, STRING_BYTES, handshake_flag, info, option, reply,
};
use crate::session::Session;
use crate::tls::{Stream, Tls, TlsKeys};
use kura_block::{Error, Kind};
use message::{ContextQuery, InfoQuery, block_size_info, export_info, put_reply, text, text_info};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use zerocopy::{FromBytes, IntoBytes};

/// The metadata context that every export has.
pub(crate) const ALLOCATION: &str = "base:allocation";
/// Contexts one client selects at most: each is looked up for each of its questions.
const CONTEXTS: usize = 16;

/// Queries for contexts that one option carries at most: each is compared with each context that there is.
const QUERIES: usize = 256;

/// Zeroes that end the reply to `EXPORT_NAME` unless the client can do without.
const EXPORT_NAME_PADDING: [u8; 124] = [0; 124];

/// Negotiates with a client that just connected. `None` when the client left politely without choosing an export.
///
/// Nothing is read beyond the last option, so the session begins with the first byte of the first request.
pub async fn handshake<S, E>(stream: S, exports: &E, tls: &Tls, limits: &Limits) -> Result<Option<Session<S>>, Hangup>
where
    S: AsyncRead + AsyncWrite + Unpin,
    E: Exports,
{
    let negotiation = Negotiation {
        stream: Stream::Plain(stream),
        exports,
        tls,
        limits,
        answer: Vec::new(),
        pad_export_name: true,
        structured: false,
        contexts_of: None,
    };
    let limit = limits.handshake_timeout;
    tokio::time::timeout(limit, negotiation.run())
        .await
        .unwrap_or(Err(Hangup::Slow { what: "choose an export", limit }))
}

/// What follows an option.
enum Next {
    /// Another option.
    Option,
    /// TLS, and then another option.
    Upgrade,
    /// Transmission.
    Transmission(Export),
    /// The end.
    Leave,
}

struct Negotiation<'a, S, E> {
    stream: Stream<S>,
    exports: &'a E,
    tls: &'a Tls,
    limits: &'a Limits,
    /// Replies to the current option, sent together.
    answer: Vec<u8>,
    pad_export_name: bool,
    structured: bool,
    /// The export whose status the client wants to query, and the contexts it selected.
    contexts_of: Option<(String, Vec<String>)>,
}

impl<S, E> Negotiation<'_, S, E>
where
    S: AsyncRead + AsyncWrite + Unpin,
    E: Exports,
{
    async fn run(mut self) -> Result<Option<Session<S>>, Hangup> {
        self.greet().await?;
        loop {
            let Some((number, data)) = self.read_option().await? else { return Ok(None) };
            let next = match data {
                Some(data) => self.apply(number, &data).await?,
                None if number == option::EXPORT_NAME => return Err(Hangup::Violation("an export's name is too long")),
                None => self.refuse(number, reply::ERR_TOO_BIG, "the option's data is too long"),
            };
            self.stream.write_all(&self.answer).await?;
            self.stream.flush().await?;
            self.answer.clear();
            match (next, self.keys()) {
                (Next::Upgrade, Some(keys)) => {
                    let keys = keys.clone();
                    self.stream = self.stream.upgrade(&keys).await?;
                    // What was negotiated in the clear may be somebody else's words.
                    (self.structured, self.contexts_of) = (false, None);
                }
                (Next::Option | Next::Upgrade, _) => {}
                (Next::Transmission(export), _) => {
                    let selected = self.contexts_of.filter(|(of, _)| self.structured && *of == export.name);
                    let contexts = selected.map(|(_, contexts)| contexts).unwrap_or_default();
                    return Ok(Some(Session::new(self.stream, export, self.structured, contexts)));
                }
                (Next::Leave, _) => {
                    // The client may be gone already: it does not have to wait for the end.
                    let _ = self.stream.shutdown().await;
                    return Ok(None);
                }
            }
        }
    }

    fn keys(&self) -> Option<&TlsKeys> {
        match self.tls {
            Tls::Off => None,
            Tls::Offered(keys) | Tls::Required(keys) => Some(keys),
        }
    }

    async fn greet(&mut self) -> Result<(), Hangup> {
        let ours = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        let greeting = Greeting { magic: GREETING_MAGIC.into(), option_magic: OPTION_MAGIC.into(), flags: ours.into() };
        self.stream.write_all(greeting.as_bytes()).await?;
        self.stream.flush().await?;
        let theirs = self.stream.read_u32().await?;
        if theirs & !u32::from(ours) != 0 {
            return Err(Hangup::Violation("unknown handshake flags"));
        }
        self.pad_export_name = theirs & u32::from(handshake_flag::NO_ZEROES) == 0;
        Ok(())
    }

    /// The next option and its data (`None` when that is too long and was thrown away); nothing when the client left.
    async fn read_option(&mut self) -> Result<Option<(u32, Option<Vec<u8>>)>, Hangup> {
        let mut bytes = [0; size_of::<OptionHeader>()];
        let got = self.stream.read(&mut bytes).await?;
        if got == 0 {
            return Ok(None);
        }
        self.stream.read_exact(&mut bytes[got..]).await?;
        let Ok(header) = OptionHeader::ref_from_bytes(&bytes) else { return Ok(None) };
        if header.magic != OPTION_MAGIC {
            return Err(Hangup::Violation("an option without its magic number"));
        }
        let (number, len) = (header.option.get(), header.len.get());
        if len > self.limits.option_bytes {
            let mut excess = (&mut self.stream).take(u64::from(len));
            if tokio::io::copy(&mut excess, &mut tokio::io::sink()).await? < u64::from(len) {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            return Ok(Some((number, None)));
        }
        let mut data = vec![0; len as usize];
        self.stream.read_exact(&mut data).await?;
        Ok(Some((number, Some(data))))
    }

    async fn apply(&mut self, number: u32, data: &[u8]) -> Result<Next, Hangup> {
        if number == option::ABORT {
            put_reply(&mut self.answer, number, reply::ACK, &[]);
            return Ok(Next::Leave);
        }
        if matches!(self.tls, Tls::Required(_)) && !self.stream.is_tls() && number != option::STARTTLS {
            if number == option::EXPORT_NAME {
                return Err(Hangup::Violation("an export was asked for in the clear, and the server requires TLS"));
            }
            return Ok(self.refuse(number, reply::ERR_TLS_REQD, "this server requires TLS first"));
        }
        Ok(match number {
            option::EXPORT_NAME => return self.export_name(data).await,
            option::LIST => self.list(data).await,
            option::STARTTLS => self.start_tls(data),
            option::INFO | option::GO => self.info(number, data).await,
            option::STRUCTURED_REPLY => self.structured_reply(data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(number, data).await,
            _ => self.refuse(number, reply::ERR_UNSUP, "this server does not know this option"),
        })
    }

    fn refuse(&mut self, number: u32, kind: u32, why: &str) -> Next {
        let cut = why.floor_char_boundary(STRING_BYTES);
        put_reply(&mut self.answer, number, kind, &[&why.as_bytes()[..cut]]);
        Next::Option
    }

    fn refuse_error(&mut self, number: u32, error: &Error) -> Next {
        let kind = match error.kind() {
            Kind::Retry | Kind::Fenced => reply::ERR_SHUTDOWN,
            _ => reply::ERR_UNKNOWN,
        };
        self.refuse(number, kind, &error.to_string())
    }

    fn acknowledge(&mut self, number: u32) -> Next {
        put_reply(&mut self.answer, number, reply::ACK, &[]);
        Next::Option
    }

    async fn find(&self, name: &str) -> kura_block::Result<Export> {
        if name.is_empty() { self.exports.default_export().await } else { self.exports.find(name).await }
    }

    /// The oldest way to choose: it knows no refusal but the end.
    async fn export_name(&mut self, data: &[u8]) -> Result<Next, Hangup> {
        let name = text(data).ok_or(Hangup::Violation("an export's name is not a string"))?;
        let Ok(export) = self.find(name).await else {
            return Err(Hangup::Violation("an export was asked for that is not there"));
        };
        self.answer.extend(export.geometry.size_bytes.to_be_bytes());
        self.answer.extend(export.flags(self.structured).to_be_bytes());
        if self.pad_export_name {
            self.answer.extend(EXPORT_NAME_PADDING);
        }
        Ok(Next::Transmission(export))
    }

    async fn list(&mut self, data: &[u8]) -> Next {
        if !data.is_empty() {
            return self.refuse(option::LIST, reply::ERR_INVALID, "LIST takes no data");
        }
        match self.exports.list().await {
            Ok(all) => {
                for export in all {
                    let len = (export.name.len() as u32).to_be_bytes();
                    let parts = [&len, export.name.as_bytes(), export.description.as_bytes()];
                    put_reply(&mut self.answer, option::LIST, reply::SERVER, &parts);
                }
                self.acknowledge(option::LIST)
            }
            Err(error) => self.refuse_error(option::LIST, &error),
        }
    }

    fn start_tls(&mut self, data: &[u8]) -> Next {
        let number = option::STARTTLS;
        if self.keys().is_none() {
            self.refuse(number, reply::ERR_UNSUP, "this server is not configured for TLS")
        } else if self.stream.is_tls() {
            self.refuse(number, reply::ERR_INVALID, "TLS is on already")
        } else if !data.is_empty() {
            self.refuse(number, reply::ERR_INVALID, "STARTTLS takes no data")
        } else {
            self.acknowledge(number);
            Next::Upgrade
        }
    }

    async fn info(&mut self, number: u32, data: &[u8]) -> Next {
        let Some(query) = InfoQuery::decode(data) else {
            return self.refuse(number, reply::ERR_INVALID, "the option's data is malformed");
        };
        let export = match self.find(query.export).await {
            Ok(export) => export,
            Err(error) => return self.refuse_error(number, &error),
        };
        let sizes = export.block_sizes(self.limits.payload_bytes);
        let mut facts = vec![export_info(export.geometry.size_bytes, export.flags(self.structured))];
        if query.wanted.contains(&info::NAME) {
            facts.push(text_info(info::NAME, &export.name));
        }
        if query.wanted.contains(&info::DESCRIPTION) {
            facts.push(text_info(info::DESCRIPTION, &export.description));
        }
        // A client that did not ask must still hear of a minimum that is not the protocol's default.
        if query.wanted.contains(&info::BLOCK_SIZE) || sizes.minimum > 1 {
            facts.push(block_size_info(sizes));
        }
        for fact in facts {
            put_reply(&mut self.answer, number, reply::INFO, &[&fact]);
        }
        self.acknowledge(number);
        if number == option::GO { Next::Transmission(export) } else { Next::Option }
    }

    fn structured_reply(&mut self, data: &[u8]) -> Next {
        if !data.is_empty() {
            return self.refuse(option::STRUCTURED_REPLY, reply::ERR_INVALID, "STRUCTURED_REPLY takes no data");
        }
        self.structured = true;
        self.acknowledge(option::STRUCTURED_REPLY)
    }

    async fn meta_context(&mut self, number: u32, data: &[u8]) -> Next {
        let set = number == option::SET_META_CONTEXT;
        if set {
            self.contexts_of = None;
        }
        if !self.structured {
            return self.refuse(number, reply::ERR_INVALID, "metadata contexts need structured replies first");
        }
        let Some(query) = ContextQuery::decode(data) else {
            return self.refuse(number, reply::ERR_INVALID, "the option's data is malformed");
        };
        if query.queries.len() > QUERIES {
            return self.refuse(number, reply::ERR_TOO_BIG, "ask for at most 256 metadata contexts at once");
        }
        let export = match self.find(query.export).await {
            Ok(export) => export,
            Err(error) => return self.refuse_error(number, &error),
        };
        let mut offered = vec![ALLOCATION.to_owned()];
        match self.exports.contexts(&export.name).await {
            Ok(more) => offered.extend(more),
            Err(error) => return self.refuse_error(number, &error),
        }
        offered.retain(|context| query.wants(context, set));
        if set && offered.len() > CONTEXTS {
            return self.refuse(number, reply::ERR_TOO_BIG, "select at most 16 metadata contexts at once");
        }
        for (place, context) in offered.iter().enumerate() {
            let id = if set { place as u32 + 1 } else { 0 };
            put_reply(&mut self.answer, number, reply::META_CONTEXT, &[&id.to_be_bytes(), context.as_bytes()]);
        }
        if set && !offered.is_empty() {
            self.contexts_of = Some((export.name, offered));
        }
        self.acknowledge(number)
    }
}
