//! nbd's and libnbd's own test programs that apply to any server, built by `cargo xtask test` from their sources.

use crate::harness::{Home, Server, fails, ok, tool};
use crate::tls;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;

/// The folder the programs were built in.
fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("suites");
    assert!(folder.is_dir(), "there is no {}: `cargo xtask setup` builds the programs", folder.display());
    folder
}

fn program(name: &str) -> Command {
    tool(folder().join(name).to_str().expect("a path in UTF-8"))
}

/// `nbd-tester-client` on a volume of its own, new and of zeroes, as its integrity test wants it.
fn nbd_tester(name: &str, args: &[&str]) {
    let home = Home::new();
    // One of its recordings has requests above the usual limit.
    let _server = serve(&home, "[nbd]\nrequest_bytes = \"64M\"\n");
    home.ok(&["volume", "create", name, "--size", "50M"]);
    let mut tester = program("nbd-tester-client");
    // It counts every request on its standard output.
    ok(tester.args(args).args(["-N", name, "-u"]).arg(home.socket()).env("NBD_TEST_SILENT", "1"));
}

#[test]
fn nbd_tester_reads_and_writes() {
    nbd_tester("reads", &[]);
    nbd_tester("writes", &["-w"]);
    nbd_tester("flushes", &["-w", "-f"]);
}

#[test]
fn nbd_tester_meets_its_limits() {
    nbd_tester("oversize", &["-o"]);
    nbd_tester("handshake", &["-h"]);
}

#[test]
fn nbd_tester_finds_the_integrity_of_recorded_transactions() {
    let recording = |name: &str| folder().join(name).display().to_string();
    nbd_tester("integrity", &["-i", "-t", &recording("integrity-test.tr")]);
    nbd_tester("huge", &["-i", "-t", &recording("integrityhuge-test.tr")]);
}

/// Over TLS, with a certificate: what it shows of a server it shows through the records of that, too.
#[test]
fn nbd_tester_is_served_over_tls() {
    let home = Home::new();
    let server = tls::serve(&home);
    let (port, pki) = (server.port("nbds").to_string(), home.path("pki"));
    for name in ["v", "zeroes", "more-zeroes"] {
        home.ok(&["volume", "create", name, "--size", "50M"]);
    }
    let file = |name: &str| pki.join(name).display().to_string();
    let tester = |args: &[&str]| {
        let mut tester = program("nbd-tester-client");
        // A key is what makes it ask for TLS.
        tester.args(["-A", &file("ca-cert.pem"), "-C", &file("client-cert.pem"), "-K", &file("client-key.pem")]);
        tester.args(["-H", "localhost"]).args(args).args(["127.0.0.1", &port]).env("NBD_TEST_SILENT", "1");
        tester
    };
    let [some, huge] =
        ["integrity-test.tr", "integrityhuge-test.tr"].map(|name| folder().join(name).display().to_string());
    // What was never written in a recording reads as zeroes there.
    let recorded = |volume, recording| ["-N", volume, "-i", "-t", recording];
    let played = [recorded("zeroes", &some), recorded("more-zeroes", &huge)];
    for args in [&["-N", "v"][..], &["-N", "v", "-w", "-f"], &played[0], &played[1]] {
        ok(&mut tester(args));
    }
    let plain = fails(program("nbd-tester-client").args(["-N", "v", "127.0.0.1", &port]));
    assert!(plain.contains("Could not run test"), "{plain}");
    // It refuses a server that is another one than it was told to expect.
    fails(&mut tester(&["-N", "v", "-H", "elsewhere"]));
}

/// A server whose only volume has this size: libnbd's programs ask for the export without a name.
fn serve_one(home: &Home, size_bytes: u64) -> Server {
    serve(home, &format!("demo = \"{size_bytes}\"\n"))
}

fn serve(home: &Home, config: &str) -> Server {
    std::fs::write(home.path("kura.toml"), config).expect("the configuration");
    home.serve_with(&["--config", "kura.toml"])
}

/// One of the programs that keep a copy of the export in memory and compare; they want this pattern in it.
fn with_pattern(name: &str, size_bytes: u64) {
    let home = Home::new();
    let _server = serve_one(&home, size_bytes);
    let image = home.path("pattern");
    let pattern: Vec<u8> = (0..size_bytes).step_by(8).flat_map(u64::to_be_bytes).collect();
    std::fs::write(&image, pattern).expect("the pattern");
    ok(tool("nbdcopy").arg(&image).arg(home.uri("demo")));
    ok(program(name).arg(home.socket()));
    home.ok(&["check"]);
}

#[test]
fn libnbd_aio_parallel() {
    with_pattern("aio-parallel", 64 * MIB);
}

#[test]
fn libnbd_synch_parallel() {
    with_pattern("synch-parallel", 8 * MIB);
}

#[test]
fn libnbd_aio_parallel_load() {
    let home = Home::new();
    let _server = serve_one(&home, 64 * MIB);
    ok(program("aio-parallel-load").arg(home.socket()));
}
