//! The command line: only what there is.

mod bench;
mod job;
mod lab;
mod object;
mod pool;
mod replicate;
mod snapshot;
mod tier;
mod trace;
mod volume;

pub use bench::{BenchCommand, BenchLoad};
pub use job::JobCommand;
pub use lab::{LabCommand, LabReplay, LabRun, ModelArg, Prefill, loads, ns};
pub use object::{BucketCommand, GrantArg, KeyCommand, ObjectCommand, ObjectName, PutArgs};
pub use pool::{Class, DiskArg, DiskCommand, PoolCommand, PoolCreate, PoolExport, PoolImport};
pub use replicate::{Data as ReplicateData, How as ReplicateHow, ReplicateCommand, Run as ReplicateRun};
pub use snapshot::{ScheduleCommand, SnapshotCommand};
pub use tier::TierCommand;
pub use trace::{TraceCommand, TraceFormat};
pub use volume::{Layout, MoveTo, Resize, VolumeCommand};

use crate::config::{Flags, Level, Listen};
use clap::builder::{Resettable, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Args, CommandFactory, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use kura_admin::{ServerUri, Token};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

/// Volumes over NBD and objects over S3, on the disks you have.
///
/// `kura serve` starts a server with nothing to configure; most other commands talk to a running one.
#[derive(Debug, Parser)]
#[command(name = "kura", version, max_term_width = 100)]
pub struct Cli {
    /// Which server is asked, and how answers are shown.
    #[command(flatten)]
    pub common: Common,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Common options")]
pub struct Common {
    /// The server to ask: a socket's path, http://HOST:PORT or https://HOST:PORT; unless named, admin.sock in `$KURA_DATA` or
    /// kura-data
    #[arg(long, global = true, env = "KURA_SERVER", default_value_t = default_server(), value_name = "URI")]
    pub server: ServerUri,
    /// The server's admin.token, for http and https. Better as `KURA_TOKEN`: arguments are visible to other users
    #[arg(long, global = true, env = "KURA_TOKEN", hide_env_values = true, value_name = "TOKEN", value_parser = Secret)]
    pub token: Option<Token>,
    /// The authority to trust with https, a PEM file
    #[arg(long, global = true, env = "KURA_CA", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ca: Option<PathBuf>,
    /// Print JSON: stable names, bytes as integers, times RFC 3339
    #[arg(long, global = true)]
    pub json: bool,
    /// Print nothing but errors, and content that was asked for
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

/// Reads a token. What is wrong with one is told without it, unlike with other values.
#[derive(Clone)]
struct Secret;

impl TypedValueParser for Secret {
    type Value = Token;

    fn parse_ref(&self, command: &clap::Command, arg: Option<&Arg>, value: &OsStr) -> Result<Token, clap::Error> {
        value.to_string_lossy().parse().map_err(|why| {
            let option = arg.map(ToString::to_string).unwrap_or_default();
            clap::Error::raw(ErrorKind::ValueValidation, format!("{option}: {why}\n")).with_cmd(command)
        })
    }
}

/// A time between two runs, from a second to ten years.
fn interval(text: &str) -> Result<Duration, String> {
    let time =
        humantime::parse_duration(text).map_err(|error| format!("{error}: give a time such as 30s, 5m, 1h or 1d"))?;
    let years = Duration::from_hours(10 * 365 * 24);
    if (Duration::from_secs(1)..=years).contains(&time) && time.subsec_nanos() == 0 {
        return Ok(time);
    }
    Err("give whole seconds, from 1s to ten years".to_owned())
}

/// The socket of a server on the data directory that the environment names, or on the default one.
fn default_server() -> ServerUri {
    let data = std::env::var_os("KURA_DATA").filter(|data| !data.is_empty()).unwrap_or_else(|| "kura-data".into());
    ServerUri::Unix(PathBuf::from(data).join("admin.sock"))
}

/// Options that say which server is asked.
const SERVER_OPTIONS: [&str; 3] = ["server", "token", "ca"];
/// Commands that ask no server, whatever their options: `replicate` may ask one.
const WITHOUT_SERVER: [&[&str]; 7] = [
    &["serve"],
    &["completions"],
    &["config"],
    &["lab"],
    &["pool", "create"],
    &["pool", "import"],
    &["pool", "export"],
];

/// The whole command line. Commands that ask no server do not show the options that name one.
pub fn command() -> clap::Command {
    let mut command = without_empty(Cli::command());
    // From here on every command has the options of all.
    command.build();
    WITHOUT_SERVER.iter().fold(command, |command, path| without_server(command, path))
}

/// Variables of the environment that are there and empty count as unset.
fn without_empty(command: clap::Command) -> clap::Command {
    let unset = |arg: Arg| match arg.get_env().and_then(std::env::var_os) {
        Some(value) if value.is_empty() => arg.env(Resettable::Reset),
        _ => arg,
    };
    command.mut_args(unset).mut_subcommands(without_empty)
}

fn without_server(command: clap::Command, path: &[&str]) -> clap::Command {
    let Some((name, rest)) = path.split_first() else {
        let hidden = command.mut_args(|arg| {
            let names_server = SERVER_OPTIONS.contains(&arg.get_id().as_str());
            arg.hide(names_server)
        });
        return hidden.mut_subcommands(|below| without_server(below, &[]));
    };
    command.mut_subcommand(name, |below| without_server(below, rest))
}

/// The command that a line's words name, as far as they do, displayed with all of its names.
pub fn meant(words: impl Iterator<Item = OsString>) -> clap::Command {
    let mut command = command().display_name("kura");
    for word in words {
        if let Some(below) = command.find_subcommand(&word).cloned() {
            let name = format!("{} {}", command.get_display_name().unwrap_or_default(), below.get_name());
            command = below.bin_name(&name).display_name(name);
        }
    }
    command
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a server
    Serve(Serve),
    /// Show the server at a glance
    Status,
    /// Verify all tables and every copy of every written block, and repair bad copies from good ones
    #[command(after_help = "The exit status is 1 when something is wrong that is not repaired.")]
    Check {
        /// Check tables only, and read no data
        #[arg(long)]
        tables: bool,
        /// Repair nothing, and report what would be repaired
        #[arg(long, visible_alias = "repair-plan")]
        dry_run: bool,
        /// Return at once; `kura job list` shows progress, and `kura job follow` what was found
        #[arg(long)]
        no_wait: bool,
    },
    /// Measure how fast volumes and objects of a running server are
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Create, import, export, show, grow or scrub the pool
    #[command(subcommand)]
    Pool(PoolCommand),
    /// List, identify, add, replace, remove or fail the pool's disks
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Create, list, resize, move or delete volumes, each an NBD export of its name
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Create, list, delete or compare snapshots of volumes, and roll back to them
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// List, measure, drain or resume controllers, which own volumes, and move volumes between them
    #[command(subcommand)]
    Controller(ControllerCommand),
    /// List, follow or cancel the server's long-running work: checks, and what moves data
    #[command(subcommand)]
    Job(JobCommand),
    /// Create, list or delete buckets, which S3 clients see
    #[command(subcommand)]
    Bucket(BucketCommand),
    /// Create, list or revoke S3 access keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Store, read, list or delete objects, one by one or in batches
    #[command(subcommand)]
    Object(ObjectCommand),
    /// Show what lies in the fast tier and why, and hold volumes in a tier
    #[command(subcommand)]
    Tier(TierCommand),
    /// Record the requests of a volume, and export them as a trace
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Keep copies of file trees, volumes and buckets elsewhere
    #[command(subcommand)]
    Replicate(ReplicateCommand),
    /// Run the papers' experiments on simulated disks, replay traces, and make reports
    #[command(subcommand)]
    Lab(LabCommand),
    /// Check a configuration file, or print an example
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print completions for a shell
    #[command(after_help = "For bash: kura completions bash > /usr/share/bash-completion/completions/kura")]
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// What a server is started with; everything else is in the configuration file.
#[derive(Debug, Args)]
pub struct Serve {
    /// Configuration file (TOML); `kura config example` prints a commented one
    #[arg(long, env = "KURA_CONFIG", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// The data directory [default: kura-data]
    #[arg(long, env = "KURA_DATA", value_name = "DIR", value_hint = ValueHint::DirPath)]
    data: Option<PathBuf>,
    /// Where NBD listens, or off; port 0 takes a free one [default: 127.0.0.1:10809]
    #[arg(long, env = "KURA_NBD", value_name = "ADDR")]
    nbd: Option<Listen>,
    /// Where S3 listens, or off; port 0 takes a free one [default: 127.0.0.1:9000]
    #[arg(long, env = "KURA_S3", value_name = "ADDR")]
    s3: Option<Listen>,
    /// Where the REST API listens, or off; port 0 takes a free one [default: 127.0.0.1:7400]
    #[arg(long, env = "KURA_ADMIN", value_name = "ADDR")]
    admin: Option<Listen>,
    /// Log level: off, error, warn, info, debug or trace, also per module as in `info,kura_nbd=debug` [default: info]
    #[arg(long, env = "KURA_LOG", value_name = "LEVEL")]
    log: Option<Level>,
    /// Start even if missing disks hold the only copy of something, or newer writes; what only they have is lost
    #[arg(long, env = "KURA_DEGRADED", value_parser = clap::builder::FalseyValueParser::new())]
    pub degraded: bool,
}

impl Serve {
    /// What comes before the configuration file.
    pub fn flags(self) -> Flags {
        Flags { data: self.data, nbd: self.nbd, s3: self.s3, admin: self.admin, log: self.log }
    }
}

/// Commands on controllers.
#[derive(Debug, Subcommand)]
pub enum ControllerCommand {
    /// List the controllers
    List,
    /// Show what it costs the controllers to share the pool, and how long snapshots stopped writes
    Stats,
    /// Move all volumes of a controller to the others while clients use them; it takes none until it is resumed
    Drain {
        /// The controller's number, as listed
        controller: u16,
        /// Return at once; `kura job list` shows progress
        #[arg(long)]
        no_wait: bool,
    },
    /// Move a volume to another controller, as `kura volume move-to` does
    Move(MoveTo),
    /// Let a drained controller take volumes again
    Resume {
        /// The controller's number, as listed
        controller: u16,
    },
}

/// Commands on the configuration file.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a file: each error with its line, its key and what to do
    Check {
        /// The file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Print a configuration with every key, its default and its meaning
    Example,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::ErrorKind;

    /// What becomes of a line: it is taken, or refused for a reason.
    const FITS: Option<ErrorKind> = None;
    const NO_COMMAND: Option<ErrorKind> = Some(ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand);
    const MISSING: Option<ErrorKind> = Some(ErrorKind::MissingRequiredArgument);
    const CONFLICT: Option<ErrorKind> = Some(ErrorKind::ArgumentConflict);
    const UNKNOWN: Option<ErrorKind> = Some(ErrorKind::UnknownArgument);
    /// A word that is none of those that may stand there.
    const NO_SUCH: Option<ErrorKind> = Some(ErrorKind::InvalidValue);
    const MALFORMED: Option<ErrorKind> = Some(ErrorKind::ValueValidation);

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_command_that_is_meant_is_named() {
        for (line, named) in [
            ("volume create a --size 10X", "kura volume create"),
            ("--json disk ls", "kura disk"),
            ("snapshot schedule add v --every soon", "kura snapshot schedule add"),
            ("--help", "kura"),
            ("volume move-to a 1", "kura volume move-to"),
        ] {
            let meant = meant(line.split_whitespace().map(OsString::from));
            assert_eq!(meant.get_display_name(), Some(named), "{line}");
        }
    }

    #[test]
    fn only_commands_that_ask_a_server_offer_to_name_one() {
        let shown = |path: &[&str]| {
            let mut command = command();
            let below = path.iter().fold(&mut command, |command, name| command.find_subcommand_mut(name).expect("it"));
            let help = below.render_long_help().to_string();
            assert!(help.contains("--json"), "{path:?}: {help}");
            help.contains("--server") || help.contains("--token ") || help.contains("--ca ")
        };
        assert!(shown(&["status"]) && shown(&["pool", "status"]) && shown(&["object", "put"]));
        let without = [&["serve"][..], &["lab", "replay"], &["config", "check"], &["pool", "create"], &["completions"]];
        assert!(!without.into_iter().any(shown));
        // They are taken all the same: scripts give them to every command.
        for line in ["kura lab list --server x", "kura --server x status", "kura pool create --slow a --token b"] {
            let parsed = command().try_get_matches_from(line.split_whitespace());
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
    }

    #[test]
    fn lines_about_volumes_and_controllers_are_taken_or_refused() {
        check(&[
            ("status", FITS),
            ("status --json", FITS),
            ("--json status", FITS),
            ("status --json --quiet", FITS),
            ("", NO_COMMAND),
            ("volume", NO_COMMAND),
            ("volume create a", MISSING),
            ("volume create a --size 10G", FITS),
            ("volume create a --size 10X", MALFORMED),
            ("volume create a --size 10G --thin --thick", CONFLICT),
            ("volume create a --size 10G --layout none --thick --read-only", FITS),
            ("volume create a --size 10G --layout raid9", NO_SUCH),
            ("volume resize a 20G --shrink --dry-run", FITS),
            ("volume resize a 20G --shrink --force", FITS),
            ("volume resize a 20G --force", MISSING),
            ("volume resize a", MISSING),
            ("volume move-to a 1", FITS),
            ("volume move-to a", MISSING),
            ("volume move-to a --controller 1", UNKNOWN),
            ("controller move a 1", FITS),
            ("controller move a", MISSING),
            ("job list", FITS),
            ("job follow 3 --json", FITS),
            ("job cancel 3", FITS),
            ("job cancel", MISSING),
            ("job follow three", MALFORMED),
            ("controller list --json", FITS),
            ("controller stats", FITS),
            ("controller stats 1", UNKNOWN),
            ("controller drain 1", FITS),
            ("controller drain", MISSING),
            ("controller resume 1", FITS),
            ("volume delete a --force --dry-run", FITS),
        ]);
    }

    #[test]
    fn lines_about_pools_and_disks_are_taken_or_refused() {
        check(&[
            ("pool create --slow a --dry-run", FITS),
            ("pool create --fast a --fast b --slow c=10G --slow d --force --controllers 4", FITS),
            ("pool create --fast a", MISSING),
            ("pool create --slow a=b", MALFORMED),
            ("pool import a b --data d --incomplete", FITS),
            ("pool import", MISSING),
            ("pool create --slow a --extent 64M --journal 16M", FITS),
            ("pool create --slow a --extent 128M", MALFORMED),
            ("pool create --slow a --extent 3M", MALFORMED),
            ("pool create --slow a --journal 1M", MALFORMED),
            ("disk add /dev/sda --class slow --force --dry-run", FITS),
            ("disk add /dev/sda", MISSING),
            ("disk identify 3", FITS),
            ("disk identify", MISSING),
            ("pool grow a b=10G --class fast --force --dry-run", FITS),
            ("pool grow", MISSING),
            ("pool scrub --dry-run", FITS),
            ("pool export --data d", FITS),
            ("pool export --cancel -o f", CONFLICT),
            ("pool import a --export f", FITS),
            ("disk fail 3 --force --dry-run", FITS),
            ("disk remove 3 --dry-run", FITS),
            ("disk remove 3 --dry-run --no-wait", CONFLICT),
            ("disk replace 3 /dev/sdb --force", FITS),
            ("disk replace 3 /dev/sdb --dry-run", FITS),
            ("disk replace 3 /dev/sdb --dry-run --no-wait", CONFLICT),
            ("disk replace 3", MISSING),
            ("disk fail three", MALFORMED),
            ("disk fail 3 --wait", FITS),
            ("disk fail 3 --no-wait", FITS),
            ("disk fail 3 --wait --no-wait", CONFLICT),
            ("pool scrub --dry-run --no-wait", FITS),
            ("check --no-wait", FITS),
            ("controller drain 0 --no-wait", FITS),
            ("volume move-to v 0 --no-wait", FITS),
            ("disk fail 3 --wait --dry-run", CONFLICT),
            ("disk fail 70000", MALFORMED),
        ]);
    }

    #[test]
    fn lines_about_the_server_and_recordings_are_taken_or_refused() {
        check(&[
            ("bench volume", FITS),
            ("bench volume v --time 1s --clients 4 --block 64K --json", FITS),
            ("bench object --size 1M", FITS),
            ("bench", NO_COMMAND),
            ("bench volume --clients 0", MALFORMED),
            ("check --tables", FITS),
            ("check --dry-run", FITS),
            ("check --repair-plan", FITS),
            ("serve --nbd 127.0.0.1:0 --s3 127.0.0.1:0 --admin off --log debug --data d", FITS),
            ("serve --nbd nowhere", MALFORMED),
            ("serve --log loud", MALFORMED),
            ("trace record a --memory 1G", FITS),
            ("trace record", MISSING),
            ("trace list", FITS),
            ("trace stop a", FITS),
            ("trace export a", FITS),
            ("trace export a --format msr -o a.csv", FITS),
            ("trace export a --format pdf", NO_SUCH),
            ("trace delete a --dry-run", FITS),
        ]);
    }

    #[test]
    fn lines_about_the_lab_and_files_are_taken_or_refused() {
        check(&[
            ("lab list", FITS),
            ("lab loads", FITS),
            ("lab run", MISSING),
            ("lab run a b --quick --seed 3 --trace c --trace d -o e --jobs 2 --again --json", FITS),
            ("lab run a --quick --full", CONFLICT),
            ("lab run a --jobs 0", MALFORMED),
            ("lab report --out d", FITS),
            ("lab report --output d", FITS),
            ("lab replay", MISSING),
            ("lab replay a --from 90s --for 1h30m --accelerate 2 --fit scale --size 10G -o b --json", FITS),
            ("lab replay a --closed-loop 32 --layout none --prefill all --verify --seed 3", FITS),
            ("lab replay a --closed-loop 32 --accelerate 2", CONFLICT),
            ("lab replay a --closed-loop 0", MALFORMED),
            ("lab replay a --model slow=sata-ssd --model fast=nvme", FITS),
            ("lab replay a --model slow=floppy", MALFORMED),
            ("lab replay a --model sata-ssd", MALFORMED),
            ("lab replay a --fit squeeze", MALFORMED),
            ("lab replay a --from soon", MALFORMED),
            ("config check kura.toml", FITS),
            ("config check", MISSING),
            ("config example", FITS),
            ("completions bash", FITS),
            ("completions dos", NO_SUCH),
            ("status --server ftp://there", MALFORMED),
        ]);
    }

    #[test]
    fn objects_are_named_with_their_buckets() {
        let cases = [
            ("bucket create photos", FITS),
            ("bucket delete", MISSING),
            ("bucket delete photos --dry-run", FITS),
            ("bucket delete photos --force --dry-run", FITS),
            ("key create", FITS),
            ("key create backup --bucket a=read --bucket b=read-write", FITS),
            ("key create backup --bucket a=all", MALFORMED),
            ("key revoke", MISSING),
            ("key revoke id --dry-run", FITS),
            ("object put demo/a file --new --content-type text/plain --metadata color=red", FITS),
            ("object put demo/a", MISSING),
            ("object put demo file", MALFORMED),
            ("object put demo/a file --metadata color", MALFORMED),
            ("object get s3://demo/a/b", FITS),
            ("object get demo/a file --version-id null", FITS),
            ("object get demo/a file --version null", FITS),
            ("object list demo/a/ --delimiter /", FITS),
            ("object stat demo/a --json", FITS),
            ("object delete demo/a --version-id 0000000000000001019aabcdef00 --dry-run", FITS),
            ("object batch changes", FITS),
            ("object batch", MISSING),
        ];
        check(&cases);
    }

    #[test]
    fn snapshot_lines_parse_or_are_refused() {
        check(&[
            ("snapshot create v@a w@a --read-only --json", FITS),
            ("snapshot create", MISSING),
            ("snapshot list", FITS),
            ("snapshot list v", FITS),
            ("snapshot delete v@a v@b --force --dry-run", FITS),
            ("snapshot rollback v@a --force --dry-run", FITS),
            ("snapshot rollback", MISSING),
            ("snapshot clone v@a w", FITS),
            ("snapshot clone v@a", MISSING),
            ("snapshot diff v@a v --json", FITS),
            ("snapshot diff v@a", MISSING),
            ("snapshot schedule add v --every 1h --keep 24 --prefix hourly", FITS),
            ("snapshot schedule add v --every soon --keep 24", MALFORMED),
            ("snapshot schedule add v --every 0s --keep 24", MALFORMED),
            ("snapshot schedule add v --every 1500ms --keep 24", MALFORMED),
            ("snapshot schedule add v --every 1h --keep 0", MALFORMED),
            ("replicate add a b c --every 0s", MALFORMED),
            ("replicate add a b c --every 5m --rpo 0s", MALFORMED),
            ("snapshot schedule add v --keep 24", MISSING),
            ("snapshot schedule list", FITS),
            ("snapshot schedule remove v --dry-run", FITS),
        ]);
    }

    /// Each line is taken, or refused for that reason.
    fn check(cases: &[(&str, Option<ErrorKind>)]) {
        for (line, refused) in cases {
            let parsed = Cli::try_parse_from(std::iter::once("kura").chain(line.split_whitespace()));
            let kind = parsed.as_ref().err().map(clap::Error::kind);
            assert_eq!(kind, *refused, "{line}: {parsed:?}");
        }
    }
}
