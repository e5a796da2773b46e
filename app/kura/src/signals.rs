//! Signals that ask a process to end.

use std::fmt;
use std::io::Result;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Two signals within this time ask for the same: who ends a group of processes may tell each of them twice in one moment.
pub const TWICE: Duration = Duration::from_millis(500);

/// What asks for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Ending {
    /// What a shell says of a process that the signal ended.
    pub fn status(self) -> i32 {
        let signal = match self {
            Self::Interrupt => SignalKind::interrupt(),
            Self::Terminate => SignalKind::terminate(),
        };
        128 + signal.as_raw_value()
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        })
    }
}

/// Both, which no longer end the process once this is made.
pub struct Endings {
    interrupt: Signal,
    terminate: Signal,
}

impl Endings {
    /// From now on they are caught.
    pub fn catch() -> Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Resolves when the next one comes.
    pub async fn next(&mut self) -> Ending {
        tokio::select! {
            _ = self.interrupt.recv() => Ending::Interrupt,
            _ = self.terminate.recv() => Ending::Terminate,
        }
    }
}
