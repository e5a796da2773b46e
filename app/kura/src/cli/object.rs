//! The command line of buckets, access keys and objects.

use clap::{Args, Subcommand, ValueHint};
use hyper::header::{HeaderName, HeaderValue};
use kura_admin::Grant;
use std::path::PathBuf;
use std::str::FromStr;

/// Commands on buckets.
#[derive(Debug, Subcommand)]
pub enum BucketCommand {
    /// Create a bucket
    Create {
        /// Its name: 3 to 63 lower-case letters, digits, dots and hyphens
        name: String,
    },
    /// List the buckets
    List,
    /// Delete a bucket; refused while it holds anything
    Delete {
        /// Its name
        name: String,
        /// Delete all that it holds first, every version of it
        #[arg(long)]
        force: bool,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
    },
}

/// Commands on access keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Create an access key and print its secret (shown only once, also with --quiet)
    #[command(after_help = "For example: kura key create backup --bucket photos=read --bucket logs=read-write")]
    Create {
        /// A name to recognize it by
        #[arg(default_value = "")]
        name: String,
        /// What it may do in a bucket: read, write or read-write; without any, everything in every bucket
        #[arg(long = "bucket", value_name = "BUCKET=GRANT")]
        buckets: Vec<GrantArg>,
    },
    /// List the access keys
    List,
    /// Revoke an access key: requests signed with it are refused
    Revoke {
        /// The access key id, as listed
        id: String,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
    },
}

/// What a key may do in a bucket: `BUCKET=GRANT`.
#[derive(Clone, Debug)]
pub struct GrantArg {
    /// The bucket.
    pub bucket: String,
    /// What it may do there.
    pub grant: Grant,
}

impl FromStr for GrantArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (bucket, grant) = text.split_once('=').ok_or("say BUCKET=read, BUCKET=write or BUCKET=read-write")?;
        let grant = match grant {
            "read" => Grant::Read,
            "write" => Grant::Write,
            "read-write" => Grant::ReadWrite,
            _ => return Err(format!("{grant:?} is not read, write or read-write")),
        };
        Ok(Self { bucket: bucket.to_owned(), grant })
    }
}

/// Commands on objects.
#[derive(Debug, Subcommand)]
pub enum ObjectCommand {
    /// Store an object, whole or not at all
    Put(PutArgs),
    /// Read an object
    Get {
        /// BUCKET/KEY
        object: ObjectName,
        /// Write to this file, whole or not at all [default: standard output, as with -]
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
        /// Which version of it [default: the newest]
        #[arg(long = "version-id", alias = "version", value_name = "VERSION")]
        version: Option<String>,
    },
    /// List a bucket's objects, in the byte order of their keys
    List {
        /// BUCKET, or BUCKET/PREFIX for keys that begin with it
        #[arg(value_name = "BUCKET[/PREFIX]")]
        at: String,
        /// Group keys that share what comes before this text, as / does for folders
        #[arg(long, value_name = "TEXT")]
        delimiter: Option<String>,
        /// List all versions and delete markers, the newest of each key first
        #[arg(long)]
        versions: bool,
    },
    /// Show an object's metadata
    Stat {
        /// BUCKET/KEY
        object: ObjectName,
        /// Which version of it [default: the newest]
        #[arg(long = "version-id", alias = "version", value_name = "VERSION")]
        version: Option<String>,
    },
    /// Delete an object, as its bucket's versioning says
    Delete {
        /// BUCKET/KEY
        object: ObjectName,
        /// Delete this version of it, for good
        #[arg(long = "version-id", alias = "version", value_name = "VERSION")]
        version: Option<String>,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
    },
    /// Store and delete objects together: all of it happens, or nothing, even in a crash
    #[command(after_help = BATCH_HELP)]
    Batch {
        /// A file that says what to do; - reads standard input
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
}

const BATCH_HELP: &str = r#"The file has a JSON object a line:
  {"put": "demo/a.txt", "text": "hello"}        content as it stands here,
  {"put": "demo/b.jpg", "file": "b.jpg"}        or a file's, seen from the batch file's folder;
                                                also "content_type", "metadata": {..}, "new": true
  {"delete": "demo/c"}                          it is no error if there is none
  {"require": "demo/d", "is": "absent"}         nothing happens unless it holds before the batch:
                                                "absent", "present", or {"etag": "5d41.."}
Empty lines are skipped. A batch names a key once; its names and headers take 4 MiB at most."#;

/// What is stored, and as what.
#[derive(Debug, Args)]
pub struct PutArgs {
    /// BUCKET/KEY
    pub object: ObjectName,
    /// A file with its content; - reads standard input
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Its Content-Type
    #[arg(long, value_name = "TYPE", value_parser = header_value)]
    pub content_type: Option<String>,
    /// User metadata, as S3 clients see it; may be repeated
    #[arg(long = "metadata", value_name = "NAME=VALUE", value_parser = pair)]
    pub metadata: Vec<(String, String)>,
    /// Refuse to overwrite
    #[arg(long)]
    pub new: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("say NAME=VALUE")?;
    if name.is_empty() || HeaderName::from_bytes(name.as_bytes()).is_err() {
        return Err(format!("{name:?} is no name that a header can have: give letters, digits and hyphens"));
    }
    // As S3's clients see it: headers' names are all the same in upper and lower case.
    Ok((name.to_ascii_lowercase(), header_value(value)?))
}

/// What is stored with an object goes there, and to S3's clients, as a header.
fn header_value(text: &str) -> Result<String, String> {
    let sent = HeaderValue::from_str(text);
    sent.map(|_| text.to_owned()).map_err(|_| "a header has no control characters, such as a line's end".to_owned())
}

/// An object's name: `BUCKET/KEY`, also with `s3://` in front.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectName {
    /// Its bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
}

impl FromStr for ObjectName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("s3://").unwrap_or(text).split_once('/') {
            Some((bucket, key)) if !bucket.is_empty() && !key.is_empty() => {
                Ok(Self { bucket: bucket.to_owned(), key: key.to_owned() })
            }
            _ => Err(format!("{text:?} is not BUCKET/KEY")),
        }
    }
}

impl std::fmt::Display for ObjectName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.bucket, self.key)
    }
}
