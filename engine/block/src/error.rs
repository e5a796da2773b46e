//! Errors typed by remedy: the kind says what the caller can do, the text says what, where and why.

/// What to do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A passing state: the same call may succeed later.
    Retry,
    /// No space is left: free some or add a device.
    Full,
    /// This owner has been replaced: stop, another one serves.
    Fenced,
    /// The stored bytes are not what was written and no good copy is left: restore from elsewhere.
    Corrupt,
    /// The device does not do its work: replace it.
    Device,
    /// The request makes no sense here: mend the request.
    Invalid,
    /// The thing named does not exist.
    Missing,
    /// The thing named exists already, or as something else than it was to be: look at it again.
    Exists,
    /// The thing is in use: stop the other user first.
    Busy,
    /// The thing may be read, not written.
    ReadOnly,
}

/// An expected failure: its remedy, and one line that says what, where and what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    kind: Kind,
    text: String,
}

/// The result of every fallible call in the engine.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! constructors {
    ($($name:ident => $kind:ident),* $(,)?) => {
        $(
            #[doc = concat!("An error of kind [`Kind::", stringify!($kind), "`].")]
            pub fn $name(text: impl Into<String>) -> Self {
                Self::new(Kind::$kind, text)
            }
        )*
    };
}

impl Error {
    /// An error of the given kind. `text` is one line: what, where, what to do.
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    constructors! {
        retry => Retry, full => Full, fenced => Fenced, corrupt => Corrupt, device => Device, invalid => Invalid,
        missing => Missing, exists => Exists, busy => Busy, read_only => ReadOnly,
    }

    /// What to do about it.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The same error with the place it met added in front.
    pub fn at(self, place: impl std::fmt::Display) -> Self {
        Self { kind: self.kind, text: format!("{place}: {}", self.text) }
    }
}
