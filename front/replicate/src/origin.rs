//! What is copied, as it is written on the command line.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// What is copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Origin {
    /// A directory of this machine, with all under it.
    Tree(PathBuf),
    /// `volume:NAME`: a volume of a kura.
    Volume(String),
    /// `bucket:NAME`: a bucket of a kura, or one as a snapshot has it, `NAME@SNAPSHOT`.
    Bucket(String),
}

impl Origin {
    /// The directory, where it is one.
    pub fn tree(&self) -> Result<&Path> {
        match self {
            Self::Tree(path) => Ok(path),
            Self::Volume(_) | Self::Bucket(_) => Err(Error::Usage(format!("{self} is no directory"))),
        }
    }
}

impl From<String> for Origin {
    fn from(text: String) -> Self {
        match text.split_once(':') {
            Some(("volume", name)) => Self::Volume(name.to_owned()),
            Some(("bucket", name)) => Self::Bucket(name.to_owned()),
            _ => Self::Tree(text.into()),
        }
    }
}

impl From<Origin> for String {
    fn from(origin: Origin) -> Self {
        origin.to_string()
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tree(path) => path.display().fmt(f),
            Self::Volume(name) => write!(f, "volume:{name}"),
            Self::Bucket(name) => write!(f, "bucket:{name}"),
        }
    }
}
