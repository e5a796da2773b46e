//! Postgres at work on a volume that is replicated every ten seconds: whatever point is opened at the other end, and whatever a
//! fail-over in the middle of something finds there, recovers as from a power cut.

use crate::crash::Random;
use crate::harness::{Home, eventually, ok, tool};
use crate::mounts::{BlockDevice, Mode, Mount};
use crate::replicate_volume::points;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Whose Debian's server is: it refuses to be root's.
const USER: &str = "postgres";

/// Where the newest version's programs are.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("Debian's package postgresql").flatten();
    let newest = versions.map(|version| version.path()).filter(|path| path.join("bin/initdb").exists()).max();
    newest.expect("a server in /usr/lib/postgresql").join("bin")
}

/// A cluster, in Postgres's sense of the word, in a file system on an export. It loses its power when dropped.
struct Database<'a> {
    home: &'a Home,
    mount: Mount,
    _device: BlockDevice,
}

impl<'a> Database<'a> {
    /// A new one that runs, filled for pgbench.
    fn make(home: &'a Home, export: &str) -> Self {
        admit(home);
        let device = BlockDevice::attach(home, &home.uri(export), Mode::ReadWrite);
        ok(tool("mkfs.ext4").arg("-q").arg(&device.path));
        let new = Self { home, mount: Mount::new(home, &device, Mode::ReadWrite), _device: device };
        fs::create_dir(new.data()).expect("a folder");
        ok(tool("chown").arg(USER).arg(new.data()));
        let options = ["--auth=trust", "--data-checksums", "--no-instructions", "--locale=C", "--pgdata"];
        ok(as_user("initdb").args(options).arg(new.data()));
        new.start();
        ok(new.client("pgbench").args(["--initialize", "--quiet", "--scale=2", "postgres"]));
        new
    }

    /// One that was at work when the export came to be what it is, started.
    fn recover(home: &'a Home, export: &str) -> Self {
        let device = BlockDevice::attach(home, &home.uri(export), Mode::ReadWrite);
        admit(home);
        let found = Self { home, mount: Mount::new(home, &device, Mode::ReadWrite), _device: device };
        // On another machine it would name no process, or somebody else's.
        fs::remove_file(found.data().join("postmaster.pid")).expect("it was at work");
        found.start();
        let log = fs::read_to_string(found.log()).expect("its log");
        assert!(log.contains("was not properly shut down; automatic recovery in progress"), "{log}");
        found
    }

    fn data(&self) -> PathBuf {
        self.mount.folder.join("data")
    }

    /// Outside of what is replicated: what it says of this start.
    fn log(&self) -> PathBuf {
        self.home.path("postgres/log")
    }

    fn start(&self) {
        let _ = fs::remove_file(self.log());
        let folder = self.home.path("postgres");
        // What it writes shall not fill the volume.
        let size = "-c max_wal_size=128MB -c min_wal_size=64MB";
        let options = format!("-c listen_addresses= -c unix_socket_directories={} {size}", folder.display());
        let mut command = as_user("pg_ctl");
        command.args(["start", "-s", "-w", "-t", "120", "-o", &options, "-D"]).arg(self.data());
        // The server keeps what it inherits open: not what the test waits for.
        command.arg("-l").arg(self.log()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = command.status().expect("pg_ctl").success();
        assert!(started, "PostgreSQL does not start: {}", fs::read_to_string(self.log()).unwrap_or_default());
    }

    fn client(&self, program: &str) -> Command {
        let mut command = tool(&programs().join(program).display().to_string());
        command.args(["--username", USER, "--host"]).arg(self.home.path("postgres"));
        command
    }

    fn sql(&self, text: &str) -> String {
        let options = ["--no-psqlrc", "--tuples-only", "--no-align", "--command", text, "postgres"];
        ok(self.client("psql").args(options)).trim().to_owned()
    }

    /// Clients that do TPC-B's transactions until they are killed.
    fn at_work(&self) -> Child {
        let options = ["--no-vacuum", "--client=4", "--time=600", "postgres"];
        let mut pgbench = Command::new(programs().join("pgbench"));
        pgbench.args(["--username", USER, "--host"]).arg(self.home.path("postgres")).args(options);
        pgbench.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("pgbench")
    }

    /// Transactions that were committed.
    fn committed(&self) -> u64 {
        self.sql("select count(*) from pgbench_history").parse().expect("a number")
    }

    /// Every transaction is there as a whole or not at all, every page has its checksum, and every index what its table has.
    fn check(&self) {
        let sums = "select (select sum(abalance) from pgbench_accounts), (select sum(bbalance) from pgbench_branches),
                    (select sum(tbalance) from pgbench_tellers), (select coalesce(sum(delta), 0) from pgbench_history)";
        let sums = self.sql(sums);
        let sums: Vec<&str> = sums.split('|').collect();
        assert!(sums.len() == 4 && sums.iter().all(|sum| *sum == sums[0]), "transactions are torn: {sums:?}");
        ok(self.client("pg_amcheck").args(["--install-missing", "--heapallindexed", "--parent-check", "postgres"]));
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        // As far as the data are concerned it is a power cut; the file system is unmounted next.
        let stopped = as_user("pg_ctl").args(["stop", "-s", "-m", "immediate", "-D"]).arg(self.data()).status();
        if !stopped.is_ok_and(|status| status.success()) {
            // Its own folder may not be readable any more.
            let _ = tool("pkill").args(["-KILL", "-f", &self.data().display().to_string()]).status();
        }
    }
}

/// Lets its user come through to the data, and gives it a place for its socket and its log.
fn admit(home: &Home) {
    let folder = home.path("postgres");
    fs::create_dir_all(&folder).expect("a folder");
    fs::set_permissions(home.path(""), fs::Permissions::from_mode(0o755)).expect("permissions");
    ok(tool("chown").arg(USER).arg(folder));
}

fn as_user(program: &str) -> Command {
    let mut command = tool("runuser");
    // A folder that its user may be in.
    command.args(["-u", USER, "--"]).arg(programs().join(program)).current_dir("/");
    command
}

#[test]
fn a_database_at_work_recovers_at_the_other_end_from_any_point() {
    let (here, there) = (Home::new(), Home::new());
    let mut random = Random(std::process::id().into());
    println!("seed {}", random.0);
    let mut source = here.serve();
    let target = there.serve();
    here.ok(&["volume", "create", "db", "--size", "512M"]);
    let database = Database::make(&here, "db");
    let mut clients = database.at_work();
    let url = format!("http://127.0.0.1:{}/copy", target.port("http"));
    here.ok(&["replicate", "add", "dr", "volume:db", &url, "--every", "10s"]);

    let mut least = 0;
    let there_are = || there.kura(&["snapshot", "list", "copy"]).output().is_ok_and(|done| done.status.success());
    eventually(Duration::from_mins(2), "the first copy", || there_are() && !points(&there, "copy").is_empty());
    for round in 0..3 {
        let point = points(&there, "copy").pop().expect("a point");
        let copy = format!("opened{round}");
        there.ok(&["snapshot", "clone", &point, &copy]);
        let before = database.committed();
        let mut newest = points(&there, "copy").pop();
        let opened = Database::recover(&there, &copy);
        opened.check();
        let found = opened.committed();
        assert!(found >= least && found <= before, "{found} committed, of {before} and after {least}");
        drop(opened);
        // What was committed by then is in the second point from there: the first may have been begun.
        least = before;
        for _ in 0..2 {
            eventually(Duration::from_mins(2), "the next point", || points(&there, "copy").pop() != newest);
            newest = points(&there, "copy").pop();
        }
    }

    // The source's site is lost in the middle of whatever goes on.
    std::thread::sleep(Duration::from_millis(random.below(11_000)));
    source.kill();
    let _ = (clients.kill(), clients.wait());
    drop(database);
    there.ok(&["replicate", "failover", "volume:copy"]);
    let recovered = Database::recover(&there, "copy");
    recovered.check();
    let found = recovered.committed();
    assert!(found >= least, "{found} committed after {least}");
    // Work goes on where it is now.
    ok(recovered.client("pgbench").args(["--no-vacuum", "--client=4", "--transactions=100", "postgres"]));
    recovered.check();
    assert_eq!(recovered.committed(), found + 400);
    drop(recovered);
    there.ok(&["check"]);
}
