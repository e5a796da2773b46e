//! What rsync complains of, understood. Pure.

use crate::error::{CHANGED, FULL, Failure};
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
    let lines: Vec<String> = complaints.iter().map(|line| String::from_utf8_lossy(line).trim().to_owned()).collect();
    let is_noise = |line: &str| {
        line.is_empty() || line.starts_with("rsync error:") || line.starts_with("rsync: connection unexpectedly closed")
    };
    let explains = |line: &&String| !is_noise(line) && !line.starts_with("rsync warning:");
    let full = lines.iter().find(|line| line.contains("No space left on device"));
    match (full, lines.iter().find(explains), code) {
        (Some(_), _, _) => FULL.to_owned(),
        (None, Some(line), _) => line.clone(),
        (None, None, None) => "rsync was killed".to_owned(),
        (None, None, Some(127)) => "rsync is not installed there".to_owned(),
        (None, None, Some(code)) => lines.first().cloned().unwrap_or_else(|| format!("rsync ended with code {code}")),
    }
}

/// The files that lines name, and why they were not carried. `roots` are the source's path and the target's.
pub(super) fn failures(complaints: &[Vec<u8>], roots: &[PathBuf]) -> Vec<Failure> {
    complaints.iter().filter_map(|line| failure(line, roots)).collect()
}

fn failure(line: &[u8], roots: &[PathBuf]) -> Option<Failure> {
    let text = line.strip_prefix(b"rsync: ").unwrap_or(line);
    let is_warning = line.starts_with(b"rsync error:") || line.starts_with(b"rsync warning:");
    if is_warning {
        return None;
    }
    // "ERROR: PATH failed verification -- update discarded."
    let unverified = b" failed verification";
    if let Some(rest) = text.strip_prefix(b"ERROR: ")
        && let Some(end) = rest.windows(unverified.len()).rposition(|at| at == unverified)
    {
        return Some(Failure { path: relative(&unescaped(&rest[..end]), roots), cause: CHANGED.to_owned() });
    }
    // "... failed to open "PATH": Permission denied (13)", "file has vanished: "PATH"".
    let quotes = text.iter().position(|byte| *byte == b'"').zip(text.iter().rposition(|byte| *byte == b'"'));
    // "... delete_file: unlink(PATH) failed: Operation not permitted (1)".
    let failed = b") failed: ";
    let call =
        || text.iter().position(|byte| *byte == b'(').zip(text.windows(failed.len()).rposition(|at| at == failed));
    let (open, close) = quotes.or_else(call).filter(|(open, close)| open < close)?;
    let quoted = &text[open + 1..close];
    // "rename "FROM" -> "TO"" names two.
    let arrow = b"\" -> \"";
    let last = quoted.windows(arrow.len()).rposition(|part| part == arrow).map_or(0, |at| at + arrow.len());
    let path = unescaped(&quoted[last..]);
    let after = String::from_utf8_lossy(&text[close + 1..]).into_owned();
    let after = after.trim_start_matches(" (in ").trim_start_matches([':', ' ']);
    let cause = match after.rsplit_once(" (") {
        _ if text.starts_with(b"file has vanished") => "it vanished while it was copied".to_owned(),
        Some((cause, _)) if cause.contains("No space left on device") => FULL.to_owned(),
        Some((cause, _)) => {
            let side = if text.starts_with(b"[sender]") { "source" } else { "target" };
            format!("{side}: {}", cause.rsplit(": ").next().unwrap_or(cause))
        }
        None => String::from_utf8_lossy(text).into_owned(),
    };
    Some(Failure { path: relative(&path, roots), cause })
}

/// Under the root; of rsync's name for a file that is not whole, `.NAME.abcdef`, the name.
fn relative(path: &[u8], roots: &[PathBuf]) -> Vec<u8> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let stripped =
        roots.iter().filter(|root| !root.as_os_str().is_empty()).find_map(|root| path.strip_prefix(root).ok());
    let bytes = stripped.unwrap_or(path).as_os_str().as_bytes();
    let bytes = bytes.strip_prefix(b"./").unwrap_or(bytes);
    let (directory, name) = crate::tree::split(bytes);
    let is_unfinished = stripped.is_some() && name.starts_with(b".") && name.len() > 8 && name[name.len() - 7] == b'.';
    if is_unfinished { crate::tree::join(directory, &name[1..name.len() - 7]) } else { bytes.to_vec() }
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
        let cases = [
            (
                "rsync: [sender] send_files failed to open \"/src/d/x\": Permission denied (13)",
                Some(("d/x", "source: Permission denied")),
            ),
            (
                "rsync: [receiver] mkstemp \"/dst/d/.x.AbCdEf\" failed: No space left on device (28)",
                Some(("d/x", FULL)),
            ),
            ("rsync: [receiver] write failed on \"/dst/big\": No space left on device (28)", Some(("big", FULL))),
            (
                "rsync: [receiver] rename \"/dst/d/.f.Gd35cH\" -> \"d/f\": Operation not permitted (1)",
                Some(("d/f", "target: Operation not permitted")),
            ),
            (
                "rsync: [generator] delete_file: unlink(d/x (2)) failed: Operation not permitted (1)",
                Some(("d/x (2)", "target: Operation not permitted")),
            ),
            ("file has vanished: \"/src/a\\#012b\"", Some(("a\nb", "it vanished while it was copied"))),
            ("rsync error: some files/attrs were not transferred (code 23) at main.c(1338)", None),
            ("ssh: connect to host x port 22: Connection refused", None),
        ];
        for (line, told) in cases {
            let found = failures(&[line.as_bytes().to_vec()], &roots);
            let found =
                found.first().map(|failure| (String::from_utf8(failure.path.clone()).unwrap(), failure.cause.clone()));
            assert_eq!(found, told.map(|(path, cause)| (path.to_owned(), cause.to_owned())), "{line}");
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
