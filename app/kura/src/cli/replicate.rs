//! Replication's part of the command line.

use super::interval;
use crate::size::Size;
use clap::{ArgAction, ArgGroup, Args, Subcommand, ValueEnum, ValueHint};
use kura_replicate::{Node, Options};
use std::path::PathBuf;
use std::time::Duration;

const TARGETS: &str = "A source is a directory; volume:NAME, which goes to a volume of another kura, named by its REST \
                       door: https://HOST:PORT/VOLUME; or bucket:NAME, which goes to s3://BUCKET, or where else S3 is \
                       spoken to https://HOST/BUCKET, with the access key in AWS_ACCESS_KEY_ID and \
                       AWS_SECRET_ACCESS_KEY or --target-credentials. For a directory, a target is a directory, kura://HOST:PORT/PATH, kuras:// in TLS or ssh://HOST/PATH (kura on the other end), or what \
                       rsync reaches: HOST:PATH, rsync://HOST/MODULE/PATH. What is only at the target is deleted there; \
                       a target that is not empty and no copy of kura's is refused.";

/// Commands on copies of file trees, which need no server, of volumes, which need one at each end, and of buckets.
#[derive(Debug, Subcommand)]
pub enum ReplicateCommand {
    /// Add a job, which keeps a copy of SOURCE at TARGET
    #[command(after_help = TARGETS)]
    Add {
        /// Its name
        name: String,
        /// What is copied: a directory, or volume:NAME or bucket:NAME of the server
        #[arg(value_hint = ValueHint::DirPath)]
        source: String,
        /// Where the copy is kept
        target: String,
        /// How often to run it, such as 5m: a server on this data directory does, or `kura replicate run --follow`
        #[arg(long, value_name = "TIME", value_parser = interval)]
        every: Option<Duration>,
        /// How old the copy may become before `status` says late, such as 15m
        #[arg(long, value_name = "TIME", value_parser = interval)]
        rpo: Option<Duration>,
        #[command(flatten)]
        how: How,
        #[command(flatten)]
        data: Data,
    },
    /// Run a job once, or copy SOURCE to TARGET once
    #[command(after_help = TARGETS)]
    Run(Box<Run>),
    /// Show the jobs: how old each copy is, and how its last run went
    #[command(visible_alias = "list")]
    Status {
        /// Only this one
        name: Option<String>,
        #[command(flatten)]
        data: Data,
    },
    /// Compare a copy with its source; contents are compared by checksums
    Verify {
        /// A job's name, or a source and a target
        #[arg(value_name = "JOB | SOURCE TARGET", num_args = 1..=2, required = true)]
        what: Vec<String>,
        #[command(flatten)]
        how: How,
        #[command(flatten)]
        data: Data,
    },
    /// Release a job's copy so you can work with it; no run changes it any more
    Failover {
        /// The job's name; or, where the copy is, volume:NAME of the server
        name: String,
        /// Do it even if the copy of a tree is incomplete
        #[arg(long)]
        anyway: bool,
        #[command(flatten)]
        data: Data,
    },
    /// Copy changes made in a failed-over copy back to the source, then follow the source again
    #[command(
        after_help = "Nobody may change the source or the copy meanwhile. Where the copy of a tree is on another machine, \
                            `kura replicate run COPY SOURCE --adopt` there carries the changes first."
    )]
    Failback {
        /// The job's name
        name: String,
        /// Finish even if the source keeps its own version of some files of a tree; the next run copies those
        #[arg(long)]
        anyway: bool,
        /// Only say what would be changed
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        data: Data,
    },
    /// Accept copies from other kura hosts under a local directory
    #[command(group = ArgGroup::new("way").required(true).args(["listen", "stdio"]))]
    Serve {
        /// The directory under which copies are kept; with --stdio the copy's own
        #[arg(value_hint = ValueHint::DirPath)]
        root: PathBuf,
        /// Listen, such as on 127.0.0.1:7402; port 0 takes a free one
        #[arg(long, value_name = "ADDR")]
        listen: Option<String>,
        /// A file with the token that clients must show; made if missing [default: ROOT.token]
        #[arg(long, value_name = "FILE", requires = "listen", value_hint = ValueHint::FilePath)]
        token_file: Option<PathBuf>,
        /// Speak TLS, with this certificate (a PEM file): then other machines may connect, as kuras://
        #[arg(long, value_name = "FILE", requires = "key", requires = "listen", value_hint = ValueHint::FilePath)]
        cert: Option<PathBuf>,
        /// The certificate's key, a PEM file
        #[arg(long, value_name = "FILE", requires = "cert", value_hint = ValueHint::FilePath)]
        key: Option<PathBuf>,
        /// Serve one stream, from standard input to standard output: what ssh:// targets start
        #[arg(long)]
        stdio: bool,
    },
    /// Forget a job; its copy stays
    Remove {
        /// Its name
        name: String,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        data: Data,
    },
}

/// Where jobs are kept.
#[derive(Debug, Args)]
pub struct Data {
    /// The data directory, under which jobs are kept
    #[arg(long = "data", env = "KURA_DATA", default_value = "kura-data", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub path: PathBuf,
}

/// What is run.
#[derive(Debug, Args)]
pub struct Run {
    /// A job's name, or a source and a target
    #[arg(value_name = "JOB | SOURCE TARGET", num_args = 1..=2, required_unless_present_any = ["due", "follow"])]
    pub what: Vec<String>,
    /// Run every job that is due, then exit
    #[arg(long, conflicts_with_all = ["what", "follow"])]
    pub due: bool,
    /// Run every job whenever it is due, until stopped
    #[arg(long, conflicts_with = "what")]
    pub follow: bool,
    /// End, with all that was started, when standard input does: a server's runs
    #[arg(long, hide = true)]
    pub until_eof: bool,
    /// Show what each worker would copy, and copy nothing
    #[arg(long = "dry-run")]
    pub plans: bool,
    /// Compare with what the target has, not with what the last run left there
    #[arg(long)]
    pub recheck: bool,
    /// Take a target that is not empty, or is the copy of another source; what only it has is lost
    #[arg(long)]
    pub adopt: bool,
    /// Empty the copy if the source is empty
    #[arg(long)]
    pub allow_empty: bool,
    #[command(flatten)]
    pub how: How,
    #[command(flatten)]
    pub data: Data,
}

/// How runs are done.
#[derive(Debug, Args)]
pub struct How {
    /// What does the copying [default: rsync where only rsync reaches the target, else kura]
    #[arg(long, value_enum)]
    with: Option<With>,
    /// How work is divided among workers [default: balanced]
    #[arg(long, value_enum)]
    split: Option<Split>,
    /// With --split size-aware: files of this size or more are large [default: 10000000]
    #[arg(long, value_name = "SIZE")]
    threshold: Option<Size>,
    /// With --split size-aware: a list of large files is closed at this size [default: 10000000000]
    #[arg(long, value_name = "SIZE")]
    cap: Option<Size>,
    /// Workers on each node [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=10))]
    workers: Option<u8>,
    /// Machines that have the source mounted and work with rsync: HOST[=TARGETHOST], or local[=TARGETHOST]
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    nodes: Vec<Node>,
    /// The most that all workers together may send per second, such as 50M; 0 is no limit
    #[arg(long, value_name = "SIZE")]
    bandwidth: Option<Size>,
    /// Snapshots that a volume's copy keeps, one a run [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    keep: Option<u32>,
    /// A file with the token of the target's kura; --token is never sent there
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    target_token_file: Option<PathBuf>,
    /// A file with the access key for a bucket, like ~/.aws/credentials [default: the environment's]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    target_credentials: Option<PathBuf>,
    /// The region of a bucket at the target [default: the environment's, else us-east-1]
    #[arg(long, value_name = "REGION")]
    target_region: Option<String>,
    /// The authority to trust with an https target, a PEM file [default: --ca; of a bucket the system's]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    target_ca: Option<PathBuf>,
    /// Send to another machine without encryption: anyone in between can read and change it
    #[arg(long, action = ArgAction::SetTrue)]
    allow_plain: bool,
    /// Give up on a connection idle for this long [default: 1m]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// Do not wait until the copy is durable
    #[arg(long, action = ArgAction::SetTrue)]
    no_sync: bool,
    /// Update large files in place: quicker, but a run that is cut off leaves them half old, half new
    #[arg(long, action = ArgAction::SetTrue)]
    in_place: bool,
}

impl How {
    /// These options, where they are said, over those of a job.
    pub fn over(&self, options: Options) -> Options {
        Options {
            with: self.with.map(Into::into).or(options.with),
            split: self.split.map_or(options.split, Into::into),
            threshold_bytes: self.threshold.map_or(options.threshold_bytes, |size| size.0),
            cap_bytes: self.cap.map_or(options.cap_bytes, |size| size.0),
            workers: self.workers.map_or(options.workers, usize::from),
            nodes: if self.nodes.is_empty() { options.nodes } else { self.nodes.clone() },
            bandwidth: self.bandwidth.map_or(options.bandwidth, |size| Some(size.0).filter(|bytes| *bytes > 0)),
            keep: self.keep.unwrap_or(options.keep),
            target_token_file: self.target_token_file.clone().or(options.target_token_file),
            target_credentials: self.target_credentials.clone().or(options.target_credentials),
            target_region: self.target_region.clone().or(options.target_region),
            target_ca: self.target_ca.clone().or(options.target_ca),
            allow_plain: options.allow_plain || self.allow_plain,
            timeout: self.timeout.unwrap_or(options.timeout),
            durable: options.durable && !self.no_sync,
            in_place: options.in_place || self.in_place,
            ..options
        }
    }
}

/// What does the copying.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum With {
    /// kura at both ends
    Kura,
    /// rsync processes
    Rsync,
}

impl From<With> for kura_replicate::With {
    fn from(with: With) -> Self {
        match with {
            With::Kura => Self::Kura,
            With::Rsync => Self::Rsync,
        }
    }
}

/// How work is divided among workers.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Split {
    /// The same number of files for each worker
    ByCount,
    /// Large files in turn, then small ones by count
    SizeAware,
    /// Longest first, as earlier runs showed; idle workers take from others
    Balanced,
}

impl From<Split> for kura_replicate::Split {
    fn from(split: Split) -> Self {
        match split {
            Split::ByCount => Self::ByCount,
            Split::SizeAware => Self::SizeAware,
            Split::Balanced => Self::Balanced,
        }
    }
}
