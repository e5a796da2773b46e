//! Other projects' test programs that apply to any NBD server, built from Debian's source packages under `target/`:
//! nbd's `nbd-tester-client` with its recorded transactions, and libnbd's `aio-parallel` family.
//!
//! No package ships them and they are not ours to keep here, so they are fetched by apt, compiled by a plain `cc`
//! line each, and kept until `cargo clean`.

use crate::shell;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// The Debian release whose source packages are built: newer ones only when we choose to.
const RELEASE: &str = "trixie";

/// One program: what it is made of, and the libraries it wants.
struct Program {
    name: &'static str,
    package: &'static str,
    sources: &'static [&'static str],
    flags: &'static [&'static str],
    libraries: &'static [&'static str],
}

/// The flags stand in for the projects' configure scripts, whose other findings these programs do not use.
const PROGRAMS: &[Program] = &[
    Program {
        name: "nbd-tester-client",
        package: "nbd",
        sources: &["tests/run/nbd-tester-client.c", "cliserv.c", "crypto-gnutls.c", "buffer.c"],
        flags: &[
            "-DHAVE_GNUTLS=1",
            "-DHAVE_FDATASYNC=1",
            "-DHAVE_MKSTEMP=1",
            "-DSIZEOF_UNSIGNED_SHORT_INT=2",
            "-DSIZEOF_UNSIGNED_INT=4",
            "-DSIZEOF_UNSIGNED_LONG_INT=8",
            "-DSIZEOF_UNSIGNED_LONG_LONG_INT=8",
        ],
        libraries: &["glib-2.0", "gnutls"],
    },
    libnbd("aio-parallel", &["tests/aio-parallel.c"]),
    libnbd("aio-parallel-load", &["tests/aio-parallel-load.c"]),
    libnbd("synch-parallel", &["tests/synch-parallel.c"]),
];

/// Recorded transactions that `nbd-tester-client` replays.
const RECORDINGS: &[&str] = &["tests/run/integrity-test.tr", "tests/run/integrityhuge-test.tr"];

const fn libnbd(name: &'static str, sources: &'static [&'static str]) -> Program {
    Program { name, package: "libnbd", sources, flags: &["-Icommon/include", "-pthread"], libraries: &["libnbd"] }
}

/// Builds what is not there yet, where `app/kura/tests/acceptance/suites.rs` looks for it.
pub fn ensure() -> Result<()> {
    let folder = shell::target("suites")?;
    let is_here = |name: &str| folder.join(name).exists();
    let recordings = RECORDINGS.iter().map(|path| file_name(path));
    if PROGRAMS.iter().map(|program| program.name).chain(recordings).all(is_here) {
        return Ok(());
    }
    let [nbd, libnbd] = fetch(&shell::target("suites/sources")?, ["nbd", "libnbd"])?;
    for program in PROGRAMS {
        build(program, if program.package == "nbd" { &nbd } else { &libnbd }, &folder)?;
    }
    for path in RECORDINGS {
        std::fs::copy(nbd.join(path), folder.join(file_name(path))).with_context(|| format!("copying nbd's {path}"))?;
    }
    Ok(())
}

/// Fetches and unpacks source packages, with an apt configuration of our own: the machine's is not touched.
fn fetch<const N: usize>(folder: &Path, packages: [&str; N]) -> Result<[PathBuf; N]> {
    if packages.iter().any(|package| unpacked(folder, package).is_err()) {
        let (list, configuration) = (folder.join("sources.list"), folder.join("apt.conf"));
        std::fs::write(&list, source_line(Path::new("/etc/apt"))?)?;
        std::fs::create_dir_all(folder.join("apt/lists/partial"))?;
        let options = format!(
            "Dir::Etc::SourceList \"{}\";\nDir::Etc::SourceParts \"/dev/null\";\n\
             Dir::State::Lists \"{folder}/apt/lists\";\nDir::Cache \"{folder}/apt\";\nAPT::Sandbox::User \"root\";\n\
             Acquire::Retries \"5\";\n",
            list.display(),
            folder = folder.display()
        );
        std::fs::write(&configuration, options)?;
        let apt = |args: &[&str]| {
            let mut command = shell::command("apt-get", ["--quiet=2"]);
            shell::run(command.args(args).env("APT_CONFIG", &configuration).current_dir(folder))
        };
        apt(&["update"])?;
        apt(&[&["source"], packages.as_slice()].concat())?;
    }
    let mut folders = packages.map(|_| PathBuf::new());
    for (at, package) in folders.iter_mut().zip(packages) {
        *at = unpacked(folder, package)?;
    }
    Ok(folders)
}

/// The folder a source package was unpacked to.
fn unpacked(folder: &Path, package: &str) -> Result<PathBuf> {
    let prefix = format!("{package}-");
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&prefix) && entry.file_type()?.is_dir() {
            return Ok(entry.path());
        }
    }
    bail!("there is no folder {package}-VERSION in {}", folder.display())
}

/// The line for source packages that goes with the machine's own line for Debian's packages.
fn source_line(apt: &Path) -> Result<String> {
    let mut files = vec![apt.join("sources.list")];
    if let Ok(parts) = std::fs::read_dir(apt.join("sources.list.d")) {
        files.extend(parts.filter_map(|entry| Some(entry.ok()?.path())));
    }
    files.sort();
    let archive = files.iter().find_map(|file| archive(file, &std::fs::read_to_string(file).ok()?));
    let Some((uri, key)) = archive else {
        bail!("no Debian archive in {}: nbd's and libnbd's test programs come from its source packages", apt.display());
    };
    let options = key.map(|key| format!("[signed-by={key}] ")).unwrap_or_default();
    Ok(format!("deb-src {options}{uri} {RELEASE} main\n"))
}

/// The address of Debian's main archive and its key, as an apt sources file in either of its two forms names it.
fn archive(file: &Path, text: &str) -> Option<(String, Option<String>)> {
    let is_main = |uri: &str| uri.trim_end_matches('/').ends_with("/debian");
    match file.extension()?.to_str()? {
        "list" => text.lines().find_map(|line| {
            let words: Vec<&str> = line.strip_prefix("deb ")?.split_whitespace().collect();
            let uri = words.iter().find(|word| is_main(word))?;
            let key = words.iter().find_map(|word| word.trim_matches(['[', ']']).strip_prefix("signed-by="));
            Some(((*uri).to_string(), key.map(str::to_string)))
        }),
        "sources" => text.split("\n\n").find_map(|stanza| {
            let field = |name: &str| stanza.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let uri = field("URIs:")?.split_whitespace().find(|uri| is_main(uri))?;
            Some((uri.to_string(), field("Signed-By:").map(str::to_string)))
        }),
        _ => None,
    }
}

fn build(program: &Program, package: &Path, folder: &Path) -> Result<()> {
    // Each program includes the header its configure script would have written.
    std::fs::write(package.join("config.h"), "")?;
    let libraries = shell::output(shell::command("pkg-config", ["--cflags", "--libs"]).args(program.libraries))?;
    let mut compiler = shell::command("cc", ["-O2", "-w", "-D_GNU_SOURCE", "-I.", "-o"]);
    compiler.arg(folder.join(program.name)).args(program.flags).args(program.sources);
    shell::run(compiler.args(libraries.split_whitespace()).current_dir(package))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_apt_sources_name_the_archive() {
        let list = "# deb http://old/debian\ndeb [arch=amd64 signed-by=/k.gpg] http://a.example/debian stable main\n";
        let sources = "Types: deb\nURIs: http://b.example/debian-security\nSuites: s\n\n\
                       Types: deb\nURIs: http://b.example/debian/\nSuites: stable\nSigned-By: /d.gpg\n";
        let found = |name: &str, text| archive(Path::new(name), text);
        assert_eq!(found("x.list", list), Some(("http://a.example/debian".into(), Some("/k.gpg".into()))));
        assert_eq!(found("x.sources", sources), Some(("http://b.example/debian/".into(), Some("/d.gpg".into()))));
        assert_eq!(found("x.sources", "Types: deb\nURIs: http://c.example/other\n"), None);
    }
}
