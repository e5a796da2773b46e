//! The sides that snapshots are compared on.

use super::super::fio::Target;
use super::super::image::Mounted;
use super::super::kura::Kura;
use super::super::process::Process;
use super::super::side::{Side, uri};
use crate::shell;
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A side whose snapshots can be made.
pub struct Subject {
    pub side: Side,
    folder: PathBuf,
    /// Snapshots made.
    made: usize,
    kind: Kind,
}

enum Kind {
    Kura(Kura),
    /// A qcow2 file over that of before, by `qemu-nbd`.
    Overlay,
    /// Snapshots within one qcow2 file.
    Internal,
    /// Copies of a file that share its blocks, on a file system of its own.
    Reflink(Mounted),
}

/// qcow2's best case for overlays.
const QCOW2: &str = "extended_l2=on,cluster_size=128k";

impl Subject {
    /// A side of so many bytes in a folder of its own; kura is this build, its disk perhaps slowed down to a model.
    pub fn make(
        name: &'static str,
        size_bytes: u64,
        (binary, model): (&Path, Option<&str>),
        folder: &Path,
    ) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        // What it has now, what an old snapshot and the newest one have of it, and what is on its way from or to them.
        let (size, room) = (size_bytes.to_string(), 6 * size_bytes + (2 << 30));
        let kind = match name {
            "kura" | "kura-copy" => {
                let saving = if name == "kura" { "redirect" } else { "copy" };
                let pool = format!("journal = '512M'\nsaving = '{saving}'");
                let model = model.map_or(String::new(), |model| format!(", model = '{model}'"));
                let disk = ("disk0.raw".to_owned(), &*format!("class = 'slow'{model}"), room);
                let kura = Kura::of(binary, &folder.join("data"), &[disk], &pool, "")?;
                let side = Side { name, ..kura.layout("none", size_bytes)? };
                return Ok(Self { side, folder: folder.to_owned(), made: 0, kind: Kind::Kura(kura) });
            }
            "qcow2-overlay" | "qcow2-internal" => {
                let mut create = Command::new("qemu-img");
                create.args(["create", "-q", "-f", "qcow2", "-o", QCOW2]).arg(folder.join("layer0.qcow2")).arg(&size);
                shell::output(&mut create)?;
                if name == "qcow2-overlay" { Kind::Overlay } else { Kind::Internal }
            }
            _ => {
                let (image, at) = (folder.join("image"), folder.join("mnt"));
                std::fs::create_dir(&at)?;
                let mounted = Mounted::new(&image, name.trim_end_matches("-reflink"), at, (room >> 20) as usize)?;
                let mut fallocate = Command::new("fallocate");
                shell::output(fallocate.args(["--length", &size]).arg(mounted.at.join("file")))?;
                Kind::Reflink(mounted)
            }
        };
        let side = Side { name, target: uri("", &folder.join("nbd.sock")), server: None };
        let mut subject = Self { side, folder: folder.to_owned(), made: 0, kind };
        subject.serve()?;
        Ok(subject)
    }

    /// Starts `qemu-nbd` on what there is now.
    fn serve(&mut self) -> Result<()> {
        let (format, file) = match &self.kind {
            Kind::Kura(_) => return Ok(()),
            Kind::Overlay => ("qcow2", self.layer(self.made)),
            Kind::Internal => ("qcow2", self.layer(0)),
            Kind::Reflink(mounted) => ("raw", mounted.at.join("file")),
        };
        let socket = self.folder.join("nbd.sock");
        let mut command = Command::new("qemu-nbd");
        command.args(["--cache=none", "--aio=io_uring", "--persistent", "--shared=16", "--socket"]).arg(&socket);
        self.side.server = Some(Process::start(command.arg("--format").arg(format).arg(file), &socket)?.into());
        Ok(())
    }

    fn layer(&self, number: usize) -> PathBuf {
        self.folder.join(format!("layer{number}.qcow2"))
    }

    /// Makes a snapshot. Only kura does so while it serves: `qemu-nbd` is stopped and started around it.
    fn snapshot(&mut self) -> Result<()> {
        let number = self.made + 1;
        if !matches!(self.kind, Kind::Kura(_)) {
            self.side.server = None;
        }
        match &self.kind {
            Kind::Kura(kura) => drop(kura.ask(&["snapshot", "create", &format!("none@{number}")])?),
            Kind::Overlay => {
                let mut create = Command::new("qemu-img");
                create.args(["create", "-q", "-f", "qcow2", "-o", QCOW2, "-F", "qcow2", "-b"]);
                shell::output(create.arg(self.layer(self.made)).arg(self.layer(number)))?;
            }
            Kind::Internal => {
                let mut create = Command::new("qemu-img");
                shell::output(create.args(["snapshot", "-q", "-c", &number.to_string()]).arg(self.layer(0)))?;
            }
            Kind::Reflink(Mounted { at, .. }) => {
                let mut copy = Command::new("cp");
                copy.arg("--reflink=always").arg(at.join("file")).arg(at.join(number.to_string()));
                shell::output(&mut copy)?;
            }
        }
        self.made = number;
        self.serve()
    }

    /// Gives up the newest snapshot. Of overlays what was written since goes with it: the base is as good as new.
    fn drop_newest(&mut self) -> Result<()> {
        if !matches!(self.kind, Kind::Kura(_)) {
            self.side.server = None;
        }
        match &self.kind {
            Kind::Kura(kura) => drop(kura.ask(&["snapshot", "delete", &format!("none@{}", self.made)])?),
            Kind::Overlay => std::fs::remove_file(self.layer(self.made))?,
            Kind::Internal => {
                let mut delete = Command::new("qemu-img");
                shell::output(delete.args(["snapshot", "-q", "-d", &self.made.to_string()]).arg(self.layer(0)))?;
            }
            Kind::Reflink(mounted) => std::fs::remove_file(mounted.at.join(self.made.to_string()))?,
        }
        self.made -= 1;
        self.serve()
    }

    /// Sees to it that there are `count` snapshots, the newest of which is of this moment.
    pub fn renew(&mut self, count: usize, size_bytes: u64) -> Result<()> {
        if self.made == count {
            self.drop_newest()?;
        }
        while self.made + 1 < count {
            self.snapshot()?;
            self.write_some(size_bytes)?;
        }
        self.side.settle()?;
        self.snapshot()
    }

    /// Something of a snapshot's own.
    fn write_some(&self, size_bytes: u64) -> Result<()> {
        let Target::Uri(uri) = &self.side.target else { return Ok(()) };
        let at = (self.made as u64 * 7919) % (size_bytes >> 16);
        let mut write = Command::new("qemu-io");
        shell::output(write.args(["-f", "raw", "-c", &format!("write -q {}k 64k", at * 64), uri])).map(drop)
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // Before the file system under it is unmounted.
        self.side.server = None;
    }
}
