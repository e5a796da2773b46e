//! `cargo xtask lint`: what a reader would otherwise have to say in a review.

mod rooms;
mod tidy;

use crate::shell;
use anyhow::{Result, bail};
use std::process::Command;

/// Runs every check; the cheapest first. Returns what was left out.
pub fn run() -> Result<Vec<&'static str>> {
    shell::run(&mut shell::cargo(["fmt", "--all", "--check"]))?;
    house()?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"];
    shell::run(&mut shell::cargo(clippy))?;
    fuzz_targets()?;
    licences()
}

/// The fuzz targets are a workspace of their own, which wants a nightly compiler to be linked: checked, they need none. With
/// the lock as it is, which nobody else looks at.
fn fuzz_targets() -> Result<()> {
    let check = ["check", "--manifest-path=fuzz/Cargo.toml", "--no-default-features", "--locked", "--target-dir"];
    shell::run(shell::cargo(check).arg(shell::target("fuzz")?).env("RUSTFLAGS", "--deny warnings"))
}

/// The rules of the house that no tool knows: who may use whom, and how long a file may be.
fn house() -> Result<()> {
    let metadata = shell::output(&mut shell::cargo(["metadata", "--format-version=1", "--no-deps", "--locked"]))?;
    let mut complaints = rooms::complaints(&serde_json::from_str(&metadata)?);
    let files = shell::output(&mut shell::command("git", ["ls-files", "*.rs", "*.toml"]))?;
    for path in files.lines() {
        // A file listed and gone is one that is being removed.
        if let Ok(text) = std::fs::read_to_string(shell::root().join(path)) {
            complaints.extend(tidy::complaints(path, &text));
        }
    }
    if !complaints.is_empty() {
        bail!("the house is not tidy:\n  {}", complaints.join("\n  "));
    }
    println!("the rooms use only whom they may; files and functions are short; unsafe code is under host/");
    Ok(())
}

/// Licences, sources and bans by cargo-deny, which is installed when missing; known weaknesses where their database
/// can be reached.
fn licences() -> Result<Vec<&'static str>> {
    if !shell::has_program("cargo-deny") && shell::output(&mut shell::cargo(["deny", "--version"])).is_err() {
        shell::run(&mut shell::cargo(["install", "--locked", "cargo-deny"]))?;
    }
    shell::run(&mut shell::cargo(["deny", "--log-level=error", "check", "bans", "licenses", "sources"]))?;
    let database = Command::new("git")
        .args(["ls-remote", "--exit-code", ADVISORIES, "HEAD"])
        .env("GIT_TERMINAL_PROMPT", "0")
        .output();
    if database.is_ok_and(|answer| answer.status.success()) {
        shell::run(&mut shell::cargo(["deny", "--log-level=error", "check", "advisories"]))?;
        return Ok(Vec::new());
    }
    println!("NOT DONE: {WEAKNESSES}: {ADVISORIES} cannot be reached from here");
    Ok(vec![WEAKNESSES])
}

/// What is looked for in the database.
const WEAKNESSES: &str = "known weaknesses of the dependencies";

/// The database that `cargo deny check advisories` reads.
const ADVISORIES: &str = "https://github.com/rustsec/advisory-db";

#[cfg(test)]
mod tests {
    #[test]
    fn the_house_is_tidy() {
        super::house().unwrap();
    }
}
