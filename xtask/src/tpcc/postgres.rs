//! A Postgres of our own: its data in one folder, its log of changes in another, nothing of it the machine's.

use super::Scale;
use crate::janitor::{Janitor, quoted};
use crate::shell;
use anyhow::{Context, Result, anyhow, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Whom Debian's package makes to run it: it refuses to be root's.
const USER: &str = "postgres";
/// Where Debian keeps the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// Each transaction and its weight in the mix.
pub const MIX: [(&str, u32); 5] =
    [("new_order", 10), ("payment", 10), ("order_status", 1), ("delivery", 1), ("stock_level", 1)];

/// A cluster, in Postgres's sense of the word: one server's databases.
pub struct Postgres {
    programs: PathBuf,
    major: u32,
    pub version: String,
    data: PathBuf,
    home: PathBuf,
}

impl Postgres {
    /// A new one with its data in `data`, and everything else in `home`. It is stopped at the end.
    pub fn new(data: &Path, home: &Path, janitor: &mut Janitor) -> Result<Self> {
        let (major, programs) = newest()?;
        let postgres =
            Self { programs, major, version: String::new(), data: data.to_path_buf(), home: home.join("postgres") };
        for folder in [&postgres.data, &postgres.home] {
            std::fs::create_dir(folder)?;
            shell::output(Command::new("chown").arg(USER).arg(folder))?;
        }
        let wal = format!("--waldir={}", postgres.home.join("wal").display());
        let options =
            ["--auth=trust", "--no-sync", "--no-instructions", "--encoding=UTF8", "--locale=C", &wal, "--pgdata"];
        shell::output(postgres.as_user("initdb").args(options).arg(&postgres.data))?;
        let pg_ctl = quoted(&postgres.programs.join("pg_ctl"));
        let data = quoted(&postgres.data);
        // It may be stopped already.
        janitor.at_end(&format!("cd /; runuser -u {USER} -- {pg_ctl} stop -s -m immediate -D {data} 2>/dev/null"))?;
        let version =
            shell::output(Command::new(postgres.programs.join("postgres")).arg("--version"))?.trim().to_string();
        Ok(Self { version, ..postgres })
    }

    /// Starts it with these settings, besides those that any trace wants.
    pub fn start(&self, settings: &[String]) -> Result<()> {
        let socket = format!("unix_socket_directories={}", self.home.display());
        let always = [
            "listen_addresses=",
            &socket,
            "autovacuum=off",
            "wal_level=minimal",
            "max_wal_senders=0",
            // The log of changes is not traced: keep it small.
            "full_page_writes=off",
            "max_wal_size=100GB",
        ];
        let settings = always.into_iter().chain(settings.iter().map(String::as_str));
        let options: Vec<String> = settings.map(|setting| format!("-c '{setting}'")).collect();
        let log = self.home.join("log");
        let mut command = self.as_user("pg_ctl");
        command
            .args(["start", "-s", "-w", "-t", "120", "-o", &options.join(" "), "-D"])
            .arg(&self.data)
            .arg("-l")
            .arg(&log);
        // Its server keeps what it inherits open: not our terminal.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.stdin(Stdio::null()).status().context("pg_ctl")?;
        let last = || std::fs::read_to_string(&log).unwrap_or_default().lines().last().unwrap_or_default().to_string();
        ensure!(status.success(), "PostgreSQL did not start: {}", last());
        Ok(())
    }

    /// The setting that takes it past the kernel's page cache, from the version on that has it; before it, being
    /// [`forgetful`] has to do.
    pub fn direct(&self) -> Option<String> {
        (self.major >= 16).then(|| "debug_io_direct=data".to_string())
    }

    /// Writes out everything and stops.
    pub fn stop(&self) -> Result<()> {
        let mut command = self.as_user("pg_ctl");
        shell::output(command.args(["stop", "-s", "-w", "-t", "600", "-m", "fast", "-D"]).arg(&self.data)).map(drop)
    }

    /// Runs SQL, with variables, and returns its values.
    pub fn sql(&self, text: &str, variables: &[(&str, u64)]) -> Result<String> {
        let file = self.home.join("sql");
        std::fs::write(&file, text)?;
        let mut command = self.client("psql");
        for (name, value) in variables {
            command.arg(format!("--set={name}={value}"));
        }
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1", "--file"]);
        Ok(shell::output(command.arg(file).arg("postgres"))?.trim().to_string())
    }

    /// Pages it asked the operating system for so far.
    pub fn pages_read(&self) -> Result<u64> {
        let pages = self.sql("select sum(blks_read)::bigint from pg_stat_database", &[])?;
        pages.parse().with_context(|| format!("pg_stat_database says {pages:?}"))
    }

    /// Runs the mix for so long, at a rate or as fast as it can, and returns how many transactions it came to.
    pub fn work(&self, scale: &Scale, time: Duration, rate: Option<u32>) -> Result<u64> {
        let mut command = self.client("pgbench");
        command.args(["--no-vacuum", "--jobs=2", "--max-tries=100"]).arg(format!("--client={}", scale.clients));
        command.arg(format!("--time={}", time.as_secs().max(1)));
        command.args(rate.map(|rate| format!("--rate={rate}")));
        for (name, weight) in MIX {
            let script = self.home.join(format!("{name}.sql"));
            std::fs::write(&script, format!("select {name}({});\n", scale.warehouses))?;
            command.arg(format!("--file={}@{weight}", script.display()));
        }
        let said = shell::output(command.arg("postgres"))?;
        let number = |label: &str| {
            let rest = said.lines().find_map(|line| line.strip_prefix(label));
            rest.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
                .with_context(|| format!("pgbench does not say {label:?}"))
        };
        let failed = number("number of failed transactions:")?;
        ensure!(failed == 0, "{failed} transactions failed");
        number("number of transactions actually processed:")
    }

    fn client(&self, program: &str) -> Command {
        let mut command = shell::command(&self.programs.join(program).display().to_string(), ["--username", USER]);
        command.arg("--host").arg(&self.home);
        command
    }

    fn as_user(&self, program: &str) -> Command {
        let mut command = Command::new("runuser");
        // A folder that its user may be in.
        command.args(["-u", USER, "--"]).arg(self.programs.join(program)).current_dir("/");
        command
    }
}

/// The newest version there is and where its programs are.
fn newest() -> Result<(u32, PathBuf)> {
    let versions = std::fs::read_dir(VERSIONS).with_context(|| format!("{VERSIONS}: Debian's package postgresql"))?;
    let versions = versions.filter_map(|entry| {
        let entry = entry.ok()?;
        let programs = entry.path().join("bin");
        programs.join("initdb").exists().then_some((entry.file_name().to_str()?.parse().ok()?, programs))
    });
    versions.max().with_context(|| format!("no server in {VERSIONS}: install Debian's package postgresql"))
}

/// Work that is done over and over beside the transactions, until it is stopped.
pub struct Beside<'scope> {
    stop: mpsc::Sender<()>,
    thread: ScopedJoinHandle<'scope, Result<u32>>,
}

impl<'scope> Beside<'scope> {
    fn every<'env>(
        time: Duration,
        scope: &'scope Scope<'scope, 'env>,
        work: impl Fn() -> Result<()> + Send + 'scope,
    ) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = scope.spawn(move || {
            let (start, mut times) = (Instant::now(), 0);
            let until = |times| (time * times).saturating_sub(start.elapsed());
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(until(times + 1)) {
                work()?;
                times += 1;
            }
            Ok(times)
        });
        Self { stop, thread }
    }

    /// Ends it; tells how often the work was done.
    pub fn stop(self) -> Result<u32> {
        drop(self.stop);
        self.thread.join().map_err(|_| anyhow!("work beside the transactions panicked"))?
    }
}

/// Makes the kernel forget the pages of the database's files, ten times a second.
///
/// The database has a cache of its own, and what misses it shall reach the volume: what the kernel still keeps is
/// what was read or written within a tenth of a second.
pub fn forgetful<'scope>(postgres: &'scope Postgres, scope: &'scope Scope<'scope, '_>) -> Beside<'scope> {
    let base = postgres.data.join("base");
    Beside::every(Duration::from_millis(100), scope, move || {
        // A file that is just being removed needs no forgetting.
        let _ = forget(&base);
        Ok(())
    })
}

/// Has the database write out all that is dirty, as fast as it can, at intervals.
pub fn checkpoints<'scope>(
    postgres: &'scope Postgres,
    interval: Duration,
    scope: &'scope Scope<'scope, '_>,
) -> Beside<'scope> {
    Beside::every(interval, scope, move || postgres.sql("checkpoint", &[]).map(drop))
}

fn forget(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            forget(&path)?;
        } else if let Ok(file) = std::fs::File::open(&path) {
            // All of the file. What is dirty is on its way then, and forgotten the next time.
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}
