//! What is logged, to standard error.

use crate::config::{Log, LogFormat};
use std::io::{IsTerminal, Result, Write, stderr};
use tracing_subscriber::EnvFilter;

/// What a library complains of that is a client's affair: it calls every refusal an error.
const QUIET: &str = "s3s=off";

/// Starts logging as `log` says; for the whole process, once.
pub fn start(log: &Log) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(format!("{QUIET},{}", log.level.directives()))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(stderr().is_terminal());
    // It would tell of lines that are lost where they were lost, and panic.
    let lines = lines.log_internal_errors(false).with_writer(|| Lossy(stderr()));
    match log.format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}

/// An output that loses what cannot be written: a log that is full, or whose reader has gone, is no reason to serve no more.
struct Lossy<W>(W);

impl<W: Write> Write for Lossy<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let _ = self.0.write_all(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Full;

    impl Write for Full {
        fn write(&mut self, _bytes: &[u8]) -> Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> Result<()> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn a_log_that_cannot_be_written_is_lost() {
        let mut log = Lossy(Full);
        assert_eq!(log.write(b"a line\n").unwrap(), 7);
        log.write_all(b"another\n").and_then(|()| log.flush()).unwrap();
    }
}
