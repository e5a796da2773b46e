//! What is wrong with a trace, and where.

use std::fmt;
use std::io;
use std::path::Path;

/// What is wrong with a trace: one line that says where, what and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}{complaint}")]
pub struct TraceError {
    place: Place,
    complaint: Complaint,
}

/// Where in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// No file is known: the caller says where.
    Nowhere,
    /// A file as a whole.
    File(String),
    /// A line of a file, counted from 1.
    Line(String, u64),
    /// A byte of a file, decompressed, counted from 0.
    Byte(String, u64),
    /// A request of a stream, counted from 1.
    Request(u64),
    /// The same, of a trace that has a name.
    RequestOf(String, u64),
}

impl TraceError {
    /// There is no thread to read a trace by.
    pub fn no_reader(error: &io::Error) -> TraceError {
        Complaint::new(format!("no thread to read it by: {error}"), "let there be more threads").nowhere()
    }

    /// The same with the trace's name, where none is told yet.
    #[must_use]
    pub fn of_trace(self, name: &str) -> TraceError {
        let place = match self.place {
            Place::Nowhere => Place::File(name.to_owned()),
            Place::Request(number) => Place::RequestOf(name.to_owned(), number),
            placed => placed,
        };
        TraceError { place, ..self }
    }
}

/// What is wrong and what to do about it, by those who do not know where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    what: String,
    remedy: String,
}

impl Complaint {
    pub(crate) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Complaint {
        Complaint { what: what.into(), remedy: remedy.into() }
    }

    pub(crate) fn of_file(self, path: &Path) -> TraceError {
        TraceError { place: Place::File(path.display().to_string()), complaint: self }
    }

    pub(crate) fn at_line(self, path: &Path, line: u64) -> TraceError {
        TraceError { place: Place::Line(path.display().to_string(), line), complaint: self }
    }

    pub(crate) fn at_byte(self, path: &Path, byte: u64) -> TraceError {
        TraceError { place: Place::Byte(path.display().to_string(), byte), complaint: self }
    }

    pub(crate) fn at_request(self, number: u64) -> TraceError {
        TraceError { place: Place::Request(number), complaint: self }
    }

    pub(crate) fn nowhere(self) -> TraceError {
        TraceError { place: Place::Nowhere, complaint: self }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Nowhere => Ok(()),
            Place::File(path) => write!(f, "{path}: "),
            Place::Line(path, line) => write!(f, "{path}:{line}: "),
            Place::Byte(path, byte) => write!(f, "{path}: byte {byte}: "),
            Place::Request(number) => write!(f, "request {number}: "),
            Place::RequestOf(name, number) => write!(f, "{name}: request {number}: "),
        }
    }
}

/// A trace that could not be written.
impl From<io::Error> for TraceError {
    fn from(error: io::Error) -> TraceError {
        Complaint::new(
            format!("the trace could not be written: {error}"),
            "see that the place has room and may be written",
        )
        .nowhere()
    }
}

/// At most 60 characters of what stands in a trace, fit for one line of a message.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    const MOST: usize = 60;
    let head = &bytes[..bytes.len().min(MOST)];
    let dots = if bytes.len() > MOST { "..." } else { "" };
    format!("{}{dots}", head.escape_ascii())
}
