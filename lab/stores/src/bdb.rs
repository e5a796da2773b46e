//! Berkeley DB 5.3: a small program of C that is built when it is needed, by the header and the library installed here.
//!
//! The library's interface is tables of function pointers in structures of its header, so the header is what knows them.
//! A program of its own also begins every phase with nothing of the database in memory.

use crate::image::{Device, output};
use crate::work::{Backend, Content, Phase, Work};
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const SOURCE: &str = include_str!("bdb.c");
/// The file system it lies on: Debian's usual one.
const KIND: &str = "ext4";

/// The program, built.
pub struct Program {
    folder: TempDir,
}

impl Program {
    pub fn build() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("bdb.c"), SOURCE)?;
        let mut cc = Command::new("cc");
        cc.current_dir(folder.path()).args(["-O2", "-pthread", "-D_GNU_SOURCE", "-o", "bdb", "bdb.c", "-ldb-5.3"]);
        output(&mut cc).context("building the program for Berkeley DB: apt-get install gcc libc6-dev libdb5.3-dev")?;
        Ok(Self { folder })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("bdb")
    }
}

pub struct Bdb<'a> {
    work: Work,
    content: &'a Content,
    device: &'a Device,
    program: &'a Program,
}

impl<'a> Bdb<'a> {
    pub fn new(device: &'a Device, program: &'a Program, work: Work, content: &'a Content) -> Result<Self> {
        device.make(KIND)?;
        Ok(Self { work, content, device, program })
    }

    fn phase(&self, name: &str, version: u64) -> Result<Phase> {
        let mounted = self.device.mount(KIND)?;
        let Work { size_bytes, count, clients } = self.work;
        let numbers = [size_bytes, count, clients, self.work.step(), version as usize].map(|number| number.to_string());
        let args = [mounted.path.as_os_str(), OsStr::new(name)].into_iter();
        let args = args.chain(numbers.iter().map(OsStr::new));
        let printed = run(&self.program.path(), args, self.content.base())?;
        let mut times = printed.lines().map(|line| Ok(Duration::from_nanos(line.parse()?)));
        let elapsed = times.next().context("the program for Berkeley DB has told nothing")??;
        let latencies = times.collect::<Result<Vec<_>>>()?;
        if latencies.len() != count {
            bail!("the program for Berkeley DB has told of {} requests, not of {count}", latencies.len());
        }
        Ok(Phase::of(&self.work, elapsed, latencies))
    }
}

/// What a program prints that is given `input`.
fn run<'a>(program: &Path, args: impl Iterator<Item = &'a OsStr>, input: &[u8]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| program.display().to_string())?;
    // A program that has ended early says why.
    let given = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input));
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        // What the library itself says comes first.
        bail!("{}", complaint.lines().next().unwrap_or("the program for Berkeley DB was killed"));
    }
    given?;
    Ok(String::from_utf8(output.stdout)?)
}

impl Backend for Bdb<'_> {
    fn create(&mut self, version: u64) -> Result<Phase> {
        self.phase("create", version)
    }

    fn read(&mut self, version: u64) -> Result<Phase> {
        self.phase("read", version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_complains_of_is_told() {
        let of_shell = |script: &'static str| {
            run(Path::new("/bin/sh"), [OsStr::new("-c"), OsStr::new(script)].into_iter(), b"input")
        };
        assert_eq!(of_shell("cat").unwrap(), "input");
        assert_eq!(of_shell("echo why >&2; echo how >&2; exit 3").unwrap_err().to_string(), "why");
        assert!(of_shell("kill -9 $$").unwrap_err().to_string().contains("killed"));
    }
}
