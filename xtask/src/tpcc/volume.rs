//! A file system on a volume of kura, whose requests are recorded.
//!
//! ```text
//!  ext4 ── loop device ── nbdfuse ── kura serve ── a file
//!     past the page cache from the loop device on: what ext4 asks for, the volume is asked for
//! ```

use super::folder;
use crate::janitor::{Janitor, quoted};
use crate::shell;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const VOLUME: &str = "tpcc";
/// What a request takes in a recording, and what a recording may take: at least and at most.
const REQUEST_BYTES: u64 = 32;
const RECORDING_BYTES: RangeInclusive<u64> = (64 << 20)..=(4 << 30);

/// A mounted volume.
pub struct Volume {
    binary: PathBuf,
    data: PathBuf,
    device: String,
    /// Where the file system is.
    pub mount: PathBuf,
}

/// What a recorded trace holds.
pub struct Recorded {
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Flushes and discards, for which the form has no word.
    pub left_out: u64,
}

impl Volume {
    /// Serves a volume of `size_bytes` from a sparse file, and mounts it in `home`; all of it is undone at the end.
    pub fn new(binary: &Path, size_bytes: u64, home: &Path, janitor: &mut Janitor) -> Result<Self> {
        let data = folder(janitor, &shell::target("tpcc")?)?;
        let mut volume = Self { binary: binary.to_path_buf(), data, device: String::new(), mount: home.join("mount") };
        volume.serve(size_bytes, janitor)?;
        volume.kura(&["volume", "create", VOLUME, "--size", &size_bytes.to_string(), "--layout", "none", "--thin"])?;
        volume.device = volume.attach(home, janitor)?;
        // Without a journal, which would write what the database did not; without lazy work behind our back.
        let options = ["-q", "-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=0"];
        shell::output(shell::command("mkfs.ext4", options).arg(&volume.device))?;
        std::fs::create_dir(&volume.mount)?;
        shell::output(shell::command("mount", ["-t", "ext4", "-o", "noatime", &volume.device]).arg(&volume.mount))?;
        janitor.at_end(&format!("umount {}", quoted(&volume.mount)))?;
        Ok(volume)
    }

    fn serve(&self, size_bytes: u64, janitor: &mut Janitor) -> Result<()> {
        let (disk, config) = (self.data.join("disk.raw"), self.data.join("kura.toml"));
        // Room for the labels, the journals and the tables beside the data.
        std::fs::File::create(&disk)?.set_len(size_bytes + size_bytes / 8 + (2 << 30))?;
        let disks = format!("disks = [{{ path = {:?}, class = \"slow\" }}]", disk.display());
        std::fs::write(&config, format!("[pool]\njournal = \"512M\"\n{disks}\n"))?;
        let mut command = Command::new(&self.binary);
        command.arg("serve").arg("--data").arg(&self.data).arg("--config").arg(&config);
        let log = self.data.join("kura.log");
        command.args(["--nbd", "127.0.0.1:0", "--s3", "off", "--admin", "off"]).stderr(std::fs::File::create(&log)?);
        janitor.serve(&mut command)?;
        eventually("kura serve answers", &log, || self.kura(&["status"]).is_ok())
    }

    /// Makes a block device of the volume.
    fn attach(&self, home: &Path, janitor: &mut Janitor) -> Result<String> {
        let fuse = home.join("fuse");
        std::fs::create_dir(&fuse)?;
        let uri = format!("nbd+unix:///{VOLUME}?socket={}", self.data.join("nbd.sock").display());
        let log = home.join("nbdfuse.log");
        janitor.serve(Command::new("nbdfuse").arg(&fuse).arg(uri).stderr(std::fs::File::create(&log)?))?;
        janitor.at_end(&format!("fusermount3 -u {}", quoted(&fuse)))?;
        let file = fuse.join("nbd");
        eventually("nbdfuse shows the volume", &log, || file.exists())?;
        let losetup = ["--direct-io=on", "--find", "--show"];
        let device = shell::output(shell::command("losetup", losetup).arg(file))?.trim().to_string();
        janitor.at_end(&format!("losetup --detach {device}"))?;
        Ok(device)
    }

    /// Begins to record the volume's requests, of which none is the kernel's idea: from now on it reads nothing ahead,
    /// only a page of the database (16 sectors) at a time. There is room for so many requests.
    pub fn record(&self, requests: u64) -> Result<()> {
        shell::output(&mut shell::command("blockdev", ["--setra", "16", &self.device]))?;
        self.kura(&["trace", "record", VOLUME, "--memory", &memory_bytes(requests).to_string()]).map(drop)
    }

    /// Ends the recording and writes it as a gzip of MSR's form to `file`.
    pub fn export(&self, file: &Path) -> Result<Recorded> {
        self.kura(&["trace", "stop", VOLUME])?;
        let plain = self.data.join("trace.csv");
        let path = plain.display().to_string();
        let said = self.kura(&["trace", "export", VOLUME, "--format", "msr", "-o", &path, "--json"])?;
        self.kura(&["trace", "delete", VOLUME])?;
        let said: Value = serde_json::from_str(&said).context("what kura trace export --json says")?;
        ensure!(
            said["overwritten"] == 0,
            "the recording had no room for {} requests: fewer --minutes",
            said["overwritten"]
        );
        let recorded = count(&plain, said["left_out"].as_u64().unwrap_or_default())?;
        shell::output(Command::new("gzip").args(["--no-name", "--force"]).arg(&plain))?;
        // The target may be on another file system; half of a trace is none.
        let packed = plain.with_extension("csv.gz");
        put(file, |mut half| Ok(std::io::copy(&mut std::fs::File::open(packed)?, &mut half).map(drop)?))?;
        Ok(recorded)
    }

    fn kura(&self, args: &[&str]) -> Result<String> {
        shell::output(Command::new(&self.binary).args(args).arg("--server").arg(self.data.join("admin.sock")))
    }
}

/// Memory of a recording of so many requests, which the server touches as it fills.
pub fn memory_bytes(requests: u64) -> u64 {
    (requests * REQUEST_BYTES).clamp(*RECORDING_BYTES.start(), *RECORDING_BYTES.end())
}

/// Writes a file beside its place and puts it there when it is whole; who is cut off leaves nothing there.
pub fn put(path: &Path, write: impl FnOnce(&std::fs::File) -> Result<()>) -> Result<()> {
    let half = half(path);
    let written = std::fs::File::create(&half).map_err(Into::into).and_then(|file| write(&file));
    let put = written.and_then(|()| Ok(std::fs::rename(&half, path)?));
    if put.is_err() {
        let _ = std::fs::remove_file(&half);
    }
    put.with_context(|| path.display().to_string())
}

/// What a file is called until it is whole.
pub fn half(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".half");
    name.into()
}

/// Counts the requests of a trace in MSR's form.
fn count(trace: &Path, left_out: u64) -> Result<Recorded> {
    let mut recorded = Recorded { reads: 0, writes: 0, read_bytes: 0, written_bytes: 0, left_out };
    for line in BufReader::new(std::fs::File::open(trace)?).lines() {
        let line = line?;
        let fields: Vec<&str> = line.split(',').collect();
        let [_, _, _, op, _, bytes, _] = fields[..] else {
            bail!("{}: no line of a trace: {line}", trace.display());
        };
        let bytes: u64 = bytes.parse().with_context(|| line.clone())?;
        let (count, sum) = match op {
            "Read" => (&mut recorded.reads, &mut recorded.read_bytes),
            _ => (&mut recorded.writes, &mut recorded.written_bytes),
        };
        (*count, *sum) = (*count + 1, *sum + bytes);
    }
    Ok(recorded)
}

/// How long a server may take to start, on a machine that is busy with other things, too.
const PATIENCE: Duration = Duration::from_mins(2);

/// Waits for a server, whose complaints are in `log`.
fn eventually(what: &str, log: &Path, mut condition: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !condition() {
        let complaint = || std::fs::read_to_string(log).unwrap_or_default().trim().to_string();
        ensure!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}: {}", complaint());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::put;
    use anyhow::bail;
    use std::io::Write;

    #[test]
    fn a_file_is_put_in_its_place_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.csv.gz");
        let files = || std::fs::read_dir(folder.path()).unwrap().count();
        let said = put(&path, |mut half| {
            half.write_all(b"ha")?;
            bail!("no room")
        });
        assert!(format!("{:#}", said.unwrap_err()).ends_with("trace.csv.gz: no room"));
        assert_eq!(files(), 0);
        put(&path, |mut half| Ok(half.write_all(b"whole")?)).unwrap();
        assert_eq!((std::fs::read(&path).unwrap().as_slice(), files()), (&b"whole"[..], 1));
    }
}
