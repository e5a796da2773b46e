//! The command line of long work at the server.

use clap::Subcommand;

/// Commands on jobs.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// List the server's long-running work, also what has ended
    #[command(after_help = "The last hundred that have ended are listed, until the server stops.")]
    List,
    /// Show a job's progress until it ends
    Follow {
        /// The job's number, as listed
        job: u64,
    },
    /// Stop a check, a move or a drain where it stands; what it has done stays
    Cancel {
        /// The job's number, as listed
        job: u64,
    },
}
