//! Running other programs: what ran is on the screen, and a failure says which program and how it ended.

use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Where tools built from source and results lie: a folder of the target directory.
pub fn target(folder: &str) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let folder = target.join(folder);
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder)
}

/// The PATH, and where Debian keeps an administrator's programs, which is on root's PATH only after a login as root.
pub fn path() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    std::env::join_paths(folders).unwrap_or(path)
}

/// A command in the root of the checkout, with these arguments.
pub fn command<S: AsRef<std::ffi::OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root()).env("PATH", path());
    command
}

/// `cargo` as the one that runs us, without what that one says of our own package: `ring`'s build script looks at it, and
/// would be run again, with all that builds on it, whenever cargo is called now from here and now by hand.
pub fn cargo<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut cargo = command(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()), args);
    let of_ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_ours)) {
        cargo.env_remove(name);
    }
    cargo
}

/// `cargo test`, always of the whole workspace: a package by itself asks for less of the libraries, and they would be built
/// once more.
pub fn tests<'a>(what: impl IntoIterator<Item = &'a str>) -> Command {
    cargo(["test", "--workspace"].into_iter().chain(what))
}

/// Shows the command, runs it on this terminal, and fails when it fails.
pub fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", line(command));
    let status = command.stdin(Stdio::null()).status().with_context(|| could_not_run(command))?;
    if !status.success() {
        bail!("{} failed: {status}", line(command));
    }
    Ok(())
}

/// Runs the command quietly and returns what it printed; a failure carries what it complained of.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| could_not_run(command))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed: {}\n{}", line(command), output.status, complaint.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// True when a command finds the program.
pub fn has_program(name: &str) -> bool {
    std::env::split_paths(&path()).any(|folder| folder.join(name).is_file())
}

/// True when we may install packages and mount file systems.
pub fn is_root() -> bool {
    output(Command::new("id").arg("-u")).is_ok_and(|uid| uid.trim() == "0")
}

/// `75 s` or `4 min 07 s`.
pub fn elapsed(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 120 { format!("{seconds} s") } else { format!("{} min {:02} s", seconds / 60, seconds % 60) }
}

fn line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut words = vec![program.file_name().unwrap_or_default().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}

fn could_not_run(command: &Command) -> String {
    format!("{}: cannot be run; `cargo xtask test` as root installs what the tests use", line(command))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_command_finds_an_administrators_programs() {
        let told = super::output(&mut super::command("sh", ["-c", "echo $PATH"])).unwrap();
        assert!(told.trim().ends_with("/usr/sbin:/sbin"), "{told}");
    }
}
