//! Fixes the commit that the results name. A source tarball has none: "unknown", with a mark of what is in it.
#![allow(clippy::print_stdout)] // Cargo listens.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What results depend on, of the binary only what makes a replay and its node; that something else is edited does not make
/// them doubtful.
const SOURCES: &[&str] = &[
    "engine",
    "front",
    "host",
    "lab",
    "app/kura/src/cli/lab.rs",
    "app/kura/src/config",
    "app/kura/src/serve/disks.rs",
    "app/kura/src/lab",
    "app/kura/src/serve/node.rs",
    "Cargo.toml",
    "Cargo.lock",
];

fn main() {
    // Of this run, not of the build of this script: a copied target directory may have one of another checkout.
    let room = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    let root = room.join("../..");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    // Grows with each commit, whatever the branch.
    let log = git(&root, &["rev-parse", "--git-path", "logs/HEAD"]).map(|path| root.join(path));
    if let Some(log) = log.filter(|log| log.exists()) {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    println!("cargo::rustc-env=KURA_COMMIT={}", commit(&root).unwrap_or_else(|| unknown(&root)));
}

/// What a tree without git is called: other sources have other marks.
fn unknown(root: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    for source in SOURCES {
        hash(&root.join(source), &mut hasher);
    }
    format!("unknown-{:08x}", hasher.finish() as u32)
}

/// Takes in a file, or all files of a folder in the order of their names.
fn hash(path: &Path, hasher: &mut DefaultHasher) {
    let mut below: Vec<_> = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    below.sort();
    for path in below {
        hash(&path, hasher);
    }
    path.file_name().hash(hasher);
    std::fs::read(path).unwrap_or_default().hash(hasher);
}

/// The commit's name, with a mark of what differs from it: two trees that differ otherwise have other marks.
fn commit(root: &Path) -> Option<String> {
    // A tarball may lie in somebody else's checkout.
    let checkout = PathBuf::from(git(root, &["rev-parse", "--show-toplevel"])?);
    if checkout.canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    let head = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let status = git(root, &[&["status", "--porcelain", "--"], SOURCES].concat())?;
    if status.is_empty() {
        return Some(head);
    }
    let mut hasher = DefaultHasher::new();
    status.hash(&mut hasher);
    git(root, &[&["diff", "--binary", "HEAD", "--"], SOURCES].concat())?.hash(&mut hasher);
    // No diff shows what is in files that git does not know yet.
    let new = git(root, &[&["ls-files", "--others", "--exclude-standard", "-z", "--"], SOURCES].concat())?;
    for path in new.split('\0').filter(|path| !path.is_empty()) {
        std::fs::read(root.join(path)).unwrap_or_default().hash(&mut hasher);
    }
    Some(format!("{head}-dirty-{:08x}", hasher.finish() as u32))
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}
