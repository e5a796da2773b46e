//! The command line of long work at the server.

use clap::Subcommand;

/// Commands on jobs.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// List what the server does that takes long, or did
    #[command(after_help = "The last hundred that have ended are listed, until the server stops.")]
    List,
    /// Show how far a job is until it ends
    Follow {
        /// The job's number, as listed
        job: u64,
    },
    /// Let a check, a move or a drain end where it stands; what it has done stays
    Cancel {
        /// The job's number, as listed
        job: u64,
    },
}
