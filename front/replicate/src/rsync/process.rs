//! One rsync: started, given its list, listened to.

use super::complaint::{Ending, Line, ending, first, line, whole};
use super::slashed;
use crate::error::Failure;
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, BufWriter, Read, Result, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What ssh is told, so that it asks nobody, says nothing of its own but errors, and notices a host that is gone.
const SSH: &str =
    "ssh -oBatchMode=yes -oLogLevel=ERROR -oConnectTimeout=10 -oServerAliveInterval=5 -oServerAliveCountMax=3";

/// The most that a process is given as arguments, in bytes, and the part of its stack that the system lets them have.
const MOST_ARGS: u64 = 1 << 20;
const ARGS_OF_STACK: u64 = 8;

/// An rsync to be started.
pub(super) struct Process {
    host: Option<String>,
    args: Vec<OsString>,
}

/// What it came to.
pub(super) struct Done {
    /// Its exit code; none where a signal ended it.
    code: Option<i32>,
    /// What it complained of.
    complaints: Complaints,
}

/// What a process complained of.
#[derive(Default)]
struct Complaints {
    /// Line by line.
    lines: Vec<Vec<u8>>,
    /// There was more.
    is_cut: bool,
}

impl Process {
    /// On this machine, or on another one by ssh.
    pub fn on(host: Option<&str>) -> Self {
        // Without a delay of what is small: to a daemon, each start and each end of an rsync waits 40 ms twice otherwise, for
        // acknowledgements that come late.
        let args = vec!["--timeout=60".into(), "--sockopts=TCP_NODELAY".into()];
        Self { host: host.map(str::to_owned), args }
    }

    pub fn args<A: AsRef<OsStr>>(&mut self, args: impl IntoIterator<Item = A>) -> &mut Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    fn command(&self) -> Command {
        let Some(host) = &self.host else {
            let mut command = Command::new("rsync");
            // As a variable: said as an option, a daemon would be looked for behind ssh, too.
            command.args(&self.args).env("RSYNC_RSH", SSH);
            return command;
        };
        let mut words = SSH.split(' ');
        let mut command = Command::new(words.next().unwrap_or("ssh"));
        // The other side's shell takes the words apart again.
        let quoted = self.args.iter().map(|arg| quoted(arg));
        command.args(words).arg("--").arg(host).arg(format!("RSYNC_RSH='{SSH}'")).arg("rsync").args(quoted);
        command
    }

    /// Carries these paths of a directory to a target. `told` is called for each line of its list of changes: whether it is a file,
    /// its size, and how much of it was sent.
    pub fn carry(
        mut self,
        source: &Path,
        paths: &[Vec<u8>],
        target: OsString,
        mut told: impl FnMut(bool, u64, u64),
    ) -> Result<Done> {
        self.args(["--out-format=%i|%l|%b"]);
        let mut listed = paths;
        if self.host.is_none() && fit(source, paths) {
            // A list is read byte by byte, which takes as long as a quarter of what small files take.
            let root = slashed(source);
            let whole = |path: &Vec<u8>| OsString::from_vec([root.as_bytes(), &dotted(path)].concat());
            self.args(["--relative", "--dirs"]).args(paths.iter().map(whole));
            listed = &[];
        } else {
            self.args(["--from0", "--files-from=-"]).args([slashed(source)]);
        }
        self.args([target]);
        self.run(listed, |line| {
            let mut fields = line.split(|byte| *byte == b'|');
            let kind = fields.next().unwrap_or_default();
            let mut number = || std::str::from_utf8(fields.next()?).ok()?.trim().parse().ok();
            let (size, sent) = (number().unwrap_or(0), number().unwrap_or(0));
            told(kind.get(1) != Some(&b'd'), size, sent);
        })
    }

    /// Runs it with a list of paths. `told` is called for each line that it prints.
    pub fn run(&self, paths: &[Vec<u8>], mut told: impl FnMut(&[u8])) -> Result<Done> {
        let mut command = self.command();
        command.stdin(if paths.is_empty() { Stdio::null() } else { Stdio::piped() });
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).env("LC_ALL", "C").spawn()?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let complaints = std::thread::scope(|scope| {
            if let Some(stdin) = stdin {
                // rsync that ends early says why on its own; that nobody takes the rest of the list adds nothing.
                scope.spawn(move || write_list(stdin, paths));
            }
            let complaints = scope.spawn(move || stderr.map(complaints).unwrap_or_default());
            for line in stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).split(b'\n')).map_while(Result::ok)
            {
                told(&line);
            }
            complaints.join().unwrap_or_default()
        });
        Ok(Done { code: child.wait()?.code(), complaints })
    }
}

fn write_list(stdin: std::process::ChildStdin, paths: &[Vec<u8>]) {
    let mut out = BufWriter::new(stdin);
    let written = paths.iter().try_for_each(|path| {
        out.write_all(&dotted(path))?;
        out.write_all(&[0])
    });
    let _ = written.and_then(|()| out.flush());
}

/// A path below the root: as such `./` marks it in an argument, and nothing it begins with makes it a comment in a list.
fn dotted(path: &[u8]) -> Vec<u8> {
    [b"./", path].concat()
}

/// Whether so many paths of a directory can be arguments.
fn fit(source: &Path, paths: &[Vec<u8>]) -> bool {
    let more = source.as_os_str().len() + b"/./\0".len() + size_of::<usize>();
    let bytes: usize = paths.iter().map(|path| path.len() + more).sum();
    let most = getrlimit(Resource::Stack).current.map_or(MOST_ARGS, |stack| MOST_ARGS.min(stack / ARGS_OF_STACK));
    bytes as u64 <= most
}

/// The most that is kept of what a process complains of, in bytes.
const MOST_COMPLAINTS: u64 = 16 << 20;

fn complaints(mut stderr: impl Read) -> Complaints {
    let kept = BufReader::new((&mut stderr).take(MOST_COMPLAINTS));
    let lines = kept.split(b'\n').map_while(Result::ok).filter(|line| !line.is_empty()).collect();
    // It must not wait for a reader of the rest.
    let rest = std::io::copy(&mut stderr, &mut std::io::sink());
    Complaints { lines, is_cut: rest.unwrap_or(0) > 0 }
}

fn quoted(arg: &OsStr) -> OsString {
    let mut word = vec![b'\''];
    for &byte in arg.as_bytes() {
        if byte == b'\'' { word.extend(b"'\\''") } else { word.push(byte) }
    }
    word.push(b'\'');
    OsString::from_vec(word)
}

impl Done {
    pub fn ending(&self) -> Ending {
        ending(self.code)
    }

    /// One line of why it did not end well.
    pub fn why(&self) -> String {
        first(self.code, &self.complaints.lines)
    }

    /// What was not carried of what it was given: all of it where it did not say, or may have said so in a way that is not known.
    pub fn failures(&self, roots: &[PathBuf], given: impl IntoIterator<Item = Vec<u8>>) -> Vec<Failure> {
        if self.ending() == Ending::Well && self.complaints.lines.is_empty() {
            return Vec::new();
        }
        let mut given: BTreeSet<Vec<u8>> = given.into_iter().collect();
        let (mut failures, mut has_unknown) = (Vec::new(), false);
        for complaint in &self.complaints.lines {
            match line(complaint, roots) {
                Line::Names(failure) => failures.push(Failure { path: whole(failure.path, &given), ..failure }),
                Line::Unknown => has_unknown = true,
                Line::Noise => {}
            }
        }
        let is_vague = match self.ending() {
            Ending::Broken => true,
            Ending::Partial => failures.is_empty() || has_unknown || self.complaints.is_cut,
            Ending::Well | Ending::Lost => false,
        };
        if is_vague {
            for failure in &failures {
                given.remove(&failure.path);
            }
            let why = self.why();
            failures.extend(given.into_iter().map(|path| Failure::new(path, &why)));
        }
        failures
    }
}
