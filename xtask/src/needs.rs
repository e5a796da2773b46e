//! The programs the tests and benches use, and the Debian packages that bring them. A missing one is installed or is
//! a failure; it is never a test left out.

use crate::shell;
use anyhow::{Result, bail};
use std::path::Path;

/// A Debian package, and by what we know that it is there: a program, a file, or what Python can import.
struct Need {
    package: &'static str,
    probe: &'static str,
}

const fn need(package: &'static str, probe: &'static str) -> Need {
    Need { package, probe }
}

/// Clients and file systems the acceptance tests drive the server with, and peers the benches compare it with.
const NEEDS: &[Need] = &[
    need("acl", "setfacl"),
    need("attr", "setfattr"),
    need("awscli", "/usr/bin/aws"),
    need("bsdutils", "script"),
    need("btrfs-progs", "mkfs.btrfs"),
    need("chromium", "chromium"),
    need("chromium-driver", "chromedriver"),
    need("curl", "curl"),
    need("e2fsprogs", "mkfs.ext4"),
    need("fio", "fio"),
    need("fpart", "fpsync"),
    need("fuse3", "fusermount3"),
    need("iproute2", "ip"),
    need("libnbd-bin", "nbdcopy"),
    need("mount", "losetup"),
    need("nbd-client", "nbd-client"),
    need("nbdkit", "nbdkit"),
    need("openssh-server", "/usr/sbin/sshd"),
    need("procps", "kill"),
    need("python3-boto3", "/usr/lib/python3/dist-packages/boto3/__init__.py"),
    need("python3-libnbd", "nbdsh"),
    need("python3-selenium", "/usr/lib/python3/dist-packages/selenium/__init__.py"),
    need("qemu-utils", "qemu-img"),
    need("rclone", "rclone"),
    need("rsync", "rsync"),
    need("s3cmd", "s3cmd"),
    need("util-linux", "setpriv"),
    need("zstd", "zstd"),
    // To build the test programs of libnbd and nbd (suites.rs).
    need("build-essential", "cc"),
    need("dpkg-dev", "dpkg-source"),
    // To build what Berkeley DB is measured by (lab/stores).
    need("libdb5.3-dev", "/usr/include/db.h"),
    need("libglib2.0-dev", "/usr/include/glib-2.0/glib.h"),
    need("libgnutls28-dev", "/usr/include/gnutls/gnutls.h"),
    need("libnbd-dev", "/usr/include/libnbd.h"),
    need("pkg-config", "pkg-config"),
];

/// Clients that tests of the rooms drive.
const CLIENTS: &[Need] = &[
    need("fio", "fio"),
    need("libnbd-bin", "nbdcopy"),
    need("nbd-client", "nbd-client"),
    need("python3-libnbd", "nbdsh"),
    need("qemu-utils", "qemu-img"),
    need("rsync", "rsync"),
];

/// A database on a volume.
const DATABASE: &[Need] = &[
    need("e2fsprogs", "mkfs.ext4"),
    need("fuse3", "fusermount3"),
    need("libnbd-bin", "nbdfuse"),
    need("mount", "losetup"),
    // Comes with every version of the server, unlike the programs, which lie in a folder for each version.
    need("postgresql", "pg_ctlcluster"),
];

/// What `bench snapshot` takes, as root.
const FILE_SYSTEMS: &[Need] = &[
    need("btrfs-progs", "mkfs.btrfs"),
    need("e2fsprogs", "mkfs.ext3"),
    need("mount", "losetup"),
    need("xfsprogs", "mkfs.xfs"),
];

/// What a report's figures are drawn with, but for what Python itself brings in.
const PYTHON: &[Need] = &[need("python3", "python3"), need("python3-venv", "import ensurepip")];

/// What takes a picture of a report.
const BROWSER: &[Need] = &[need("chromium", "chromium")];

/// It waits for whoever else installs on a new machine, and asks again where the network fails.
const APT: [&str; 4] = ["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=5"];

/// Brings in the file systems that snapshots are measured on.
pub fn ensure_file_systems() -> Result<()> {
    bring(FILE_SYSTEMS)
}

/// Brings in the clients that tests of the rooms drive.
pub fn ensure_clients() -> Result<()> {
    bring(CLIENTS)
}

/// Brings in what the tests and benches use.
pub fn ensure() -> Result<()> {
    bring(NEEDS)
}

/// Brings in what `tpcc-trace` uses, and the tests of a database's volume.
pub fn ensure_database() -> Result<()> {
    bring(DATABASE)
}

/// Brings in what a report's figures are drawn with.
pub fn ensure_python() -> Result<()> {
    bring(PYTHON)
}

/// Brings in what takes a picture of a report.
pub fn ensure_browser() -> Result<()> {
    bring(BROWSER)
}

/// Brings in what is missing, or says what to install.
fn bring(needs: &[Need]) -> Result<()> {
    let missing: Vec<&str> = needs.iter().filter(|need| !is_here(need.probe)).map(|need| need.package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !shell::is_root() || !shell::has_program("apt-get") {
        bail!("programs are used that are not here; install them: apt-get install {}", missing.join(" "));
    }
    let install = || {
        let mut command = shell::command("apt-get", APT);
        command.args(["install", "--yes", "--no-install-recommends"]).args(&missing);
        shell::run(command.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    // The lists of a new machine are empty or old: fetch them once the install asks for it.
    install().or_else(|_| {
        shell::run(shell::command("apt-get", APT).arg("update"))?;
        install()
    })
}

fn is_here(probe: &str) -> bool {
    match probe {
        path if path.starts_with('/') => Path::new(path).exists(),
        import if import.starts_with("import ") => {
            shell::output(&mut shell::command("python3", ["-c", import])).is_ok()
        }
        program => shell::has_program(program),
    }
}
