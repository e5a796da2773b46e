//! What rsync complains of, understood. Pure.

use crate::error::{CHANGED, FULL, Failure};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How an rsync ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// All was carried.
    Well,
    /// Some files were not; it named them.
    Partial,
    /// It stopped: the rest of its list was not carried, and another process would fare no better.
    Broken,
    /// Its node, or the way to the target, is gone: others may carry its list.
    Lost,
}

/// By rsync's exit code; none after a signal.
pub(super) fn ending(code: Option<i32>) -> Ending {
    match code {
        Some(0) => Ending::Well,
        // Partial transfer; files vanished.
        Some(23 | 24) => Ending::Partial,
        // Handshake, socket, data stream, signal, child lost, timeouts; ssh; not found by a remote shell.
        None | Some(2 | 5 | 10 | 12 | 19 | 20 | 21 | 30 | 35 | 127 | 255) => Ending::Lost,
        Some(_) => Ending::Broken,
    }
}

/// The first thing that explains anything.
pub(super) fn first(code: Option<i32>, complaints: &[Vec<u8>]) -> String {
    let text = |line: &Vec<u8>| String::from_utf8_lossy(line).trim().to_owned();
    let explains = |line: &&Vec<u8>| !is_noise(line) && !line.trim_ascii().is_empty();
    let is_full = complaints.iter().any(|line| text(line).contains("No space left on device"));
    match (complaints.iter().find(explains), code) {
        _ if is_full => FULL.to_owned(),
        (Some(line), _) => text(line),
        (None, None) => "rsync was killed".to_owned(),
        (None, Some(127)) => "rsync is not installed there".to_owned(),
        (None, Some(code)) => complaints.first().map_or_else(|| format!("rsync ended with code {code}"), text),
    }
}

/// What a line says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Nothing of what was not carried.
    Noise,
    /// This was not carried, and why.
    Names(Failure),
    /// There is no telling: it may be that anything was not carried.
    Unknown,
}

/// Where a line has the path, which comes after an opening quote.
#[derive(Clone, Copy)]
enum At {
    /// It is the only one: what it was to be done to.
    Only,
    /// Before this, after which comes something else that may look like one.
    Before(&'static str),
    /// After this, before which comes another name of it.
    After(&'static str),
}

/// What a line says before a path. What is not here may say anything: that what is in a directory is skipped, or that a directory
/// cannot be entered, says more than that its own path was not carried.
const FORMS: [(&str, At); 35] = [
    ("send_files failed to open ", At::Only),
    ("read errors mapping ", At::Only),
    ("link_stat ", At::Only),
    ("readlink_stat(", At::Only),
    ("opendir ", At::Only),
    ("readdir(", At::Only),
    (VANISHED[0], At::Only),
    (VANISHED[1], At::Only),
    ("skipped diminished file: ", At::Only),
    ("mkstemp ", At::Only),
    ("open ", At::Only),
    ("fstat ", At::Only),
    ("stat ", At::Only),
    ("unlink ", At::Only),
    ("read ", At::Only),
    ("write ", At::Only),
    ("write failed on ", At::Only),
    ("close failed on ", At::Only),
    ("ftruncate ", At::Only),
    ("ftruncate failed on ", At::Only),
    ("recv_generator: mkdir ", At::Only),
    ("recv_generator: failed to stat ", At::Only),
    ("mknod ", At::Only),
    ("chown ", At::Only),
    ("chgrp ", At::Only),
    ("failed to set times on ", At::Only),
    ("failed to set permissions on ", At::Only),
    ("failed to modify permissions on ", At::Only),
    ("rsync_xal_set: lsetxattr(", At::Before(",\"")),
    ("rsync_xal_set: fsetxattr(", At::Before(",\"")),
    ("rsync_xal_set: lremovexattr(", At::Before(",\"")),
    ("symlink ", At::Before(" -> \"")),
    ("link ", At::Before(" => ")),
    ("rename ", At::After(" -> \"")),
    ("copy ", At::After(" -> \"")),
];
const VANISHED: [&str; 2] = ["file has vanished: ", "directory has vanished: "];
/// The same, where a path has no quotes: what comes before it, and what after it.
const BARE: [(&str, &str); 8] = [
    ("ERROR: ", " failed verification -- update discarded."),
    ("delete_file: unlink(", ") failed: "),
    ("delete_file: rmdir(", ") failed: "),
    ("could not make way for new regular file: ", ""),
    ("could not make way for new symlink: ", ""),
    ("could not make way for new special file: ", ""),
    ("set_acl: sys_acl_set_file(", ", ACL_TYPE_"),
    ("get_acl: sys_acl_get_file(", ", ACL_TYPE_"),
];

/// What says nothing of files: how rsync ended, a file that it takes up again by itself, and what ssh has to say.
fn is_noise(line: &[u8]) -> bool {
    const BEGINNINGS: [&str; 7] = [
        "rsync error:",
        "rsync warning:",
        "rsync: connection unexpectedly closed",
        // What is in that has a line of its own, if it matters.
        "WARNING: parent dir is absent in the file list: ",
        "Warning: Permanently added ",
        // Of keys that a later machine could find out.
        "** ",
        // Of its settings, as a shell there begins.
        "bash: warning: ",
    ];
    let is_again = line.starts_with(b"WARNING: ") && line.ends_with(b" (will try again).");
    is_again || BEGINNINGS.iter().any(|beginning| line.starts_with(beginning.as_bytes()))
}

/// What a line says. `roots` are the source's path and the target's.
pub(super) fn line(line: &[u8], roots: &[PathBuf]) -> Line {
    if is_noise(line) {
        return Line::Noise;
    }
    let text = line.strip_prefix(b"rsync: ").unwrap_or(line);
    let is_source = text.starts_with(b"[sender] ");
    // "[sender] ", "[receiver] ", "[generator] ".
    let close = text.iter().position(|byte| *byte == b']').filter(|_| text.starts_with(b"["));
    let text = close.map_or(text, |close| text[close + 1..].trim_ascii_start());
    match path(text) {
        Some(path) => Line::Names(Failure { path: relative(&unescaped(path), roots), cause: cause(text, is_source) }),
        None => Line::Unknown,
    }
}

/// The path that a line is about; none where that is not certain.
fn path(text: &[u8]) -> Option<&[u8]> {
    for (before, after) in BARE {
        let rest = text.strip_prefix(before.as_bytes());
        if let Some(path) = rest.and_then(|rest| rest.get(..last(rest, after)?)) {
            return Some(path);
        }
    }
    let of = |(before, at): &(&str, At)| Some((text.strip_prefix(before.as_bytes())?.strip_prefix(b"\"")?, *at));
    let (rest, at) = FORMS.iter().find_map(of)?;
    let part = match at {
        At::Only => rest,
        At::Before(parting) => rest.get(..once(rest, parting)?)?,
        At::After(parting) => rest.get(once(rest, parting)? + parting.len()..)?,
    };
    let path = part.get(..last(part, "\"")?)?;
    // Of a path in two pairs of quotes nobody can say what the inner ones are.
    (!path.starts_with(b"\"")).then_some(path)
}

/// Where the last one of these is.
fn last(text: &[u8], part: &str) -> Option<usize> {
    if part.is_empty() { Some(text.len()) } else { text.windows(part.len()).rposition(|at| at == part.as_bytes()) }
}

/// Where one is, of which there is only one: a name may have another.
fn once(text: &[u8], part: &str) -> Option<usize> {
    let first = text.windows(part.len()).position(|at| at == part.as_bytes());
    first.filter(|first| last(text, part) == Some(*first))
}

/// Why, which a line ends with: "...: Permission denied (13)".
fn cause(text: &[u8], is_source: bool) -> String {
    let whole = String::from_utf8_lossy(text).into_owned();
    let is_number = |end: &str| end.strip_suffix(')').is_some_and(|number| number.parse::<u32>().is_ok());
    let cause =
        whole.rsplit_once(" (").filter(|(_, end)| is_number(end)).and_then(|(start, _)| start.rsplit_once(": "));
    match cause {
        _ if VANISHED.iter().any(|vanished| whole.starts_with(vanished)) => {
            "it vanished while it was copied".to_owned()
        }
        Some((_, "No space left on device")) => FULL.to_owned(),
        Some((_, cause)) => format!("{}: {cause}", if is_source { "source" } else { "target" }),
        None if whole.ends_with(BARE[0].1) => CHANGED.to_owned(),
        None => whole,
    }
}

/// Under the root.
fn relative(path: &[u8], roots: &[PathBuf]) -> Vec<u8> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let stripped =
        roots.iter().filter(|root| !root.as_os_str().is_empty()).find_map(|root| path.strip_prefix(root).ok());
    let bytes = stripped.unwrap_or(path).as_os_str().as_bytes();
    bytes.strip_prefix(b"./").unwrap_or(bytes).to_vec()
}

/// Of rsync's name for a file that is not whole, `.NAME.abcdef`, the name: where that is what was given, and this was not. A file
/// of the source may be called so itself.
pub(super) fn whole(path: Vec<u8>, given: &BTreeSet<Vec<u8>>) -> Vec<u8> {
    let (directory, name) = crate::tree::split(&path);
    let unfinished = name.strip_prefix(b".").and_then(|rest| rest.split_last_chunk::<7>());
    let named = unfinished.filter(|(_, end)| end[0] == b'.').map(|(name, _)| crate::tree::join(directory, name));
    named.filter(|named| !given.contains(&path) && given.contains(named)).unwrap_or(path)
}

/// rsync writes bytes that are no text as `\#ooo`, in octal.
pub(super) fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = rest.strip_prefix(b"\\#").and_then(|digits| digits.first_chunk::<3>());
        let octal = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(octal) => {
                out.push(octal);
                rest = &rest[5..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_name_the_file_and_the_cause() {
        let roots = [PathBuf::from("/src"), PathBuf::from("/dst")];
        let given = ["d/x", "env", ".env.sample"].map(|path| path.as_bytes().to_vec()).into();
        let cases = [
            (
                "[sender] send_files failed to open \"/src/d/x\": Permission denied (13)",
                "d/x",
                "source: Permission denied",
            ),
            ("[receiver] mkstemp \"/dst/d/.x.AbCdEf\" failed: No space left on device (28)", "d/x", FULL),
            ("[receiver] write failed on \"/dst/big\": No space left on device (28)", "big", FULL),
            (
                "[receiver] rename \"/dst/d/.f.Gd35cH\" -> \"d/f\": Operation not permitted (1)",
                "d/f",
                "target: Operation not permitted",
            ),
            ("[generator] symlink \"/dst/cur\" -> \"ok\" failed: No space left on device (28)", "cur", FULL),
            ("[generator] link \"/dst/d/b\" => a failed: Too many links (31)", "d/b", "target: Too many links"),
            ("[generator] set_acl: sys_acl_set_file(d/x, ACL_TYPE_ACCESS): Y (95)", "d/x", "target: Y"),
            ("[receiver] rsync_xal_set: lsetxattr(\"/dst/d/.x.AbCdEf\",\"user.a\") failed: Y (95)", "d/x", "target: Y"),
            (
                "[generator] delete_file: unlink(d/x (2)) failed: Operation not permitted (1)",
                "d/x (2)",
                "target: Operation not permitted",
            ),
            // Names of the source's own that look like those of rsync's.
            ("[sender] send_files failed to open \"/src/.env.sample\": X (13)", ".env.sample", "source: X"),
            ("[generator] chown \"/dst/.env.sample\" failed: X (1)", ".env.sample", "target: X"),
            ("[receiver] mkstemp \"/dst/..env.sample.AbCdEf\" failed: X (1)", ".env.sample", "target: X"),
            ("[receiver] mkstemp \"/dst/.other.AbCdEf\" failed: X (1)", ".other.AbCdEf", "target: X"),
        ];
        let told = |text: &str| match line(text.as_bytes(), &roots) {
            Line::Names(failure) => Some((String::from_utf8(whole(failure.path, &given)).unwrap(), failure.cause)),
            _ => None,
        };
        for (text, path, cause) in cases {
            assert_eq!(told(&format!("rsync: {text}")), Some((path.to_owned(), cause.to_owned())), "{text}");
        }
        // As older ones say it, and what has none of it.
        let old = told("rsync: send_files failed to open \"/src/d/x\": Permission denied (13)");
        assert_eq!(old.map(|(path, _)| path), Some("d/x".to_owned()));
        let vanished = told("file has vanished: \"/src/a\\#012b\"");
        assert_eq!(vanished, Some(("a\nb".to_owned(), "it vanished while it was copied".to_owned())));
        let other = told("ERROR: d/x failed verification -- update discarded.");
        assert_eq!(other, Some(("d/x".to_owned(), CHANGED.to_owned())));
    }

    #[test]
    fn what_nobody_knows_is_told_from_what_says_nothing() {
        let noise = [
            "rsync error: some files/attrs were not transferred (code 23) at main.c(1338)",
            "WARNING: d/x failed verification -- update discarded (will try again).",
            "** WARNING: connection is not using a post-quantum key exchange algorithm.",
        ];
        for text in noise {
            assert_eq!(line(text.as_bytes(), &[]), Line::Noise, "{text}");
        }
        let unknown = [
            "*** Skipping any contents from this failed directory ***",
            "could not make way for new directory: d",
            "rsync: [sender] change_dir \"/src\" failed: No such file or directory (2)",
            "ssh: connect to host x port 22: Connection refused",
            // Which of the arrows is part of a name is not to be seen.
            "rsync: [generator] symlink \"/dst/a\" -> \"b\" -> \"c\" failed: X (1)",
            "rsync: [generator] rename \"/dst/.x.AbCdEf\" -> \"\"/dst/x\"\" failed: X (1)",
        ];
        for text in unknown {
            assert_eq!(line(text.as_bytes(), &[]), Line::Unknown, "{text}");
        }
    }

    #[test]
    fn a_lost_way_is_told_from_a_bad_file() {
        let cases = [
            (Some(0), Ending::Well),
            (Some(23), Ending::Partial),
            (Some(24), Ending::Partial),
            (Some(11), Ending::Broken),
            (Some(255), Ending::Lost),
            (Some(12), Ending::Lost),
            (None, Ending::Lost),
        ];
        for (code, told) in cases {
            assert_eq!(ending(code), told, "{code:?}");
        }
        let refused = [b"ssh: connect to host x port 22: Connection refused".to_vec(), b"rsync error: x".to_vec()];
        assert_eq!(first(Some(255), &refused), "ssh: connect to host x port 22: Connection refused");
    }
}
