//! Where requests come from: a trace that was given, or a generated load.

use anyhow::{Context, Result};
use kura_load::Spec;
use kura_trace::{Request, TraceError};
use serde::Serialize;
use std::io::Read;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3Default;

/// Requests that can be read again and again. As JSON it tells which they are, wherever the trace lies.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A trace.
    Trace {
        /// Where it is.
        #[serde(skip)]
        path: PathBuf,
        /// Its file's name.
        name: String,
        /// A hash of its bytes.
        xxh3: String,
    },
    /// A generated load, with every parameter spelt out.
    Load(String),
}

/// Requests of a [`Source`].
pub type Requests = Box<dyn Iterator<Item = Result<Request, TraceError>>>;

impl Source {
    /// A trace's path, or `load:` and a generated load.
    pub fn of(path: &Path) -> Result<Self> {
        if let Some(text) = path.to_str().filter(|text| text.starts_with(kura_load::PREFIX)) {
            return Self::load(text);
        }
        // What cannot be read is told now, not after what takes long.
        kura_trace::open(path)?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let xxh3 = hash(path).with_context(|| format!("reading {}", path.display()))?;
        Ok(Self::Trace { path: path.to_owned(), name, xxh3 })
    }

    /// A generated load.
    pub fn load(text: &str) -> Result<Self> {
        Ok(Self::Load(text.parse::<Spec>()?.to_string()))
    }

    /// Its requests, from the first.
    pub fn requests(&self) -> Result<Requests> {
        Ok(match self {
            Self::Trace { path, .. } => Box::new(kura_trace::open(path)?),
            Self::Load(text) => Box::new(text.parse::<Spec>()?.requests().map(Ok)),
        })
    }

    /// What it is called in titles.
    pub fn title(&self) -> String {
        match self {
            Self::Trace { name, .. } => name.clone(),
            Self::Load(text) => {
                let name = text.trim_start_matches(kura_load::PREFIX).split(',').next().unwrap_or_default();
                format!("{name}, a generated load")
            }
        }
    }
}

/// A hash of a file's bytes; none of what is no file, as a recording of several files named by what they share.
fn hash(path: &Path) -> std::io::Result<String> {
    if !path.is_file() {
        return Ok(String::new());
    }
    let (mut file, mut hasher, mut buffer) = (std::fs::File::open(path)?, Xxh3Default::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(format!("{:016x}", hasher.digest())),
            read => hasher.update(&buffer[..read]),
        }
    }
}
