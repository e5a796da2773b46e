//! What is logged, to standard error.

use crate::config::{Log, LogFormat};
use std::io::{IsTerminal, stderr};
use tracing_subscriber::EnvFilter;

/// What a library complains of that is a client's affair: it calls every refusal an error.
const QUIET: &str = "s3s=off";

/// Starts logging as `log` says; for the whole process, once.
pub fn start(log: &Log) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(format!("{QUIET},{}", log.level.directives()))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_ansi(stderr().is_terminal());
    match log.format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}
