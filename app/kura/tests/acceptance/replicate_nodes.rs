//! `kura replicate` with rsync on several nodes: over ssh, to daemons of their own, and when one of them dies.

use crate::harness::{Home, eventually, fails, ok, on_a_port, tool};
use crate::link::Link;
use crate::replicate::{Serving, assert_same, daemon, grow, grow_large, run};
use serde_json::Value;
use std::fs;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn each_node_has_a_daemon_of_its_own() {
    let home = Home::new();
    let source = home.path("source");
    grow(&source);
    let (_serving, uri) = daemon(&home);
    let port: u16 = uri.split([':', '/']).find_map(|part| part.parse().ok()).expect("its port");
    // Another machine on which the target is mounted, too.
    let log = home.path("other.log");
    let mut other = Command::new("rsync");
    other.args(["--daemon", "--no-detach", "--address=127.0.0.2"]).arg(format!("--port={port}"));
    other.arg(format!("--config={}", home.path("rsyncd.conf").display())).arg(format!("--log-file={}", log.display()));
    let _other = Serving(other.stdin(Stdio::null()).spawn().expect("rsync"));
    eventually(Duration::from_mins(2), "the other daemon listens", || TcpStream::connect(("127.0.0.2", port)).is_ok());
    let nodes = ["--nodes", "local,local=127.0.0.2", "--workers", "1", "--split", "by-count"];
    let target = format!("{uri}/a");
    assert_eq!(run(&home, &[&["source", &target], &nodes[..]].concat())["is_complete"], true);
    let log = fs::read_to_string(log).expect("the other daemon's log");
    assert!(log.contains("allowed access on module m"), "{log}");
    assert_same(&source, &home.path("module/a"));
}

/// An ssh server that lets this test in, and a folder whose `ssh` finds it.
fn sshd(home: &Home) -> (Serving, u16, String) {
    for key in ["host", "user"] {
        ok(tool("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(home.path(key)));
    }
    // Where sshd, as root, goes without privileges.
    fs::create_dir_all("/run/sshd").expect("a directory");
    let (child, port) = on_a_port(b"SSH-", |port| {
        let mut command = Command::new("/usr/sbin/sshd");
        command.args(["-D", "-e", "-f", "/dev/null", "-p", &port.to_string()]);
        for option in ["ListenAddress=127.0.0.1", "StrictModes=no", "UsePAM=no", "PidFile=none", "MaxStartups=100"] {
            command.arg(format!("-o{option}"));
        }
        command.arg(format!("-oHostKey={}", home.path("host").display()));
        command.arg(format!("-oAuthorizedKeysFile={}", home.path("user.pub").display()));
        command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("sshd")
    });
    let serving = Serving(child);
    let bin = home.path("bin");
    fs::create_dir(&bin).expect("a directory");
    let configuration = format!(
        "Host there\n HostName 127.0.0.1\n Port {port}\nHost *\n IdentityFile {}\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n",
        home.path("user").display()
    );
    fs::write(home.path("ssh.conf"), configuration).expect("a configuration");
    let ssh = format!("#!/bin/sh\nexec /usr/bin/ssh -F {} \"$@\"\n", home.path("ssh.conf").display());
    fs::write(bin.join("ssh"), ssh).expect("a script");
    ok(tool("chmod").arg("755").arg(bin.join("ssh")));
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    (serving, port, path)
}

#[test]
fn kura_and_rsync_go_over_ssh_and_a_dead_node_leaves_its_work_to_others() {
    let home = Home::new();
    let source = home.path("source");
    grow(&source);
    let (_sshd, port, path) = sshd(&home);
    let kura = |args: &[&str]| {
        let mut command = home.kura(&[&["replicate", "run", "--json"], args].concat());
        command.env("PATH", &path).env("KURA_REMOTE", env!("CARGO_BIN_EXE_kura"));
        command
    };
    let source_path = source.display().to_string();
    let target = |name: &str| home.path(name).display().to_string();
    ok(&mut kura(&[&source_path, &format!("ssh://127.0.0.1:{port}{}", target("by kura"))]));
    assert_same(&source, &home.path("by kura"));
    ok(&mut kura(&[&source_path, &format!("there:{}", target("by-rsync"))]));
    assert_same(&source, &home.path("by-rsync"));
    // Two nodes, each an ssh away, one of which is down.
    let nodes = ["--nodes", "there,local,127.0.0.2", "--workers", "1", "--split", "by-count"];
    let complaint =
        fails(&mut kura(&[&[&*source_path, &target("by-nodes"), "--dry-run", "--workers", "11"][..]].concat()));
    assert!(complaint.contains("10"), "{complaint}");
    let done = ok(&mut kura(&[&[&*source_path, &target("by-nodes")], &nodes[..]].concat()));
    let summary: Value = serde_json::from_str(&done).expect("a summary");
    assert_eq!(
        (&summary["is_complete"], summary["workers"].as_array().map(Vec::len)),
        (&true.into(), Some(3)),
        "{summary}"
    );
    assert_same(&source, &home.path("by-nodes"));
}

#[test]
fn an_end_by_ssh_that_takes_nothing_is_given_up() {
    let home = Home::new();
    let source = home.path("source");
    fs::create_dir_all(source.join("d")).expect("a directory");
    grow_large(&source);
    let (_sshd, port, path) = sshd(&home);
    let target = home.path("target").display().to_string();
    let args = ["source", &format!("ssh://127.0.0.1:{port}{target}"), "--workers", "1", "--timeout", "10s"];
    let mut kura = home.kura(&[&["replicate", "run"], &args[..]].concat());
    kura.env("PATH", &path).env("KURA_REMOTE", env!("CARGO_BIN_EXE_kura"));
    let running = kura.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("kura");
    eventually(Duration::from_mins(2), "bytes have come", || {
        let sizes = tool("du").args(["-sk", &target]).output().expect("du").stdout;
        let size = String::from_utf8_lossy(&sizes).split_whitespace().next().and_then(|size| size.parse::<u64>().ok());
        size.is_some_and(|size| size > 1000)
    });
    let served = format!("^{} replicate serve --stdio {target}$", env!("CARGO_BIN_EXE_kura"));
    let found = ok(tool("pgrep").args(["-f", &served]));
    let signal = |name: &str| ok(tool("kill").arg(name).args(found.split_whitespace()));
    signal("-STOP");
    let output = running.wait_with_output().expect("the run");
    signal("-KILL");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && complaint.contains("nothing moved for 10 s"), "{complaint}");
}

#[test]
fn a_copy_by_ssh_is_free_again_soon_after_its_link_was_cut() {
    let home = Home::new();
    let source = home.path("source");
    grow(&source);
    grow_large(&source);
    let (_sshd, port, path) = sshd(&home);
    let link = Link::new();
    link.to.store(port, Ordering::SeqCst);
    let target = home.path("target").display().to_string();
    let run = |port: u16, more: &[&str]| {
        let mut kura =
            home.kura(&[&["replicate", "run", "source", &format!("ssh://127.0.0.1:{port}{target}")], more].concat());
        kura.env("PATH", &path).env("KURA_REMOTE", env!("CARGO_BIN_EXE_kura"));
        kura
    };
    let mut cut = run(link.port, &["--bandwidth", "1M"]);
    let cut = cut.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("kura");
    eventually(Duration::from_mins(2), "the copy has begun", || home.path("target/d").exists());
    link.is_dead.store(true, Ordering::SeqCst);
    // Nobody there is told that it has ended.
    assert!(!cut.wait_with_output().expect("the run").status.success());
    assert!(fails(&mut run(port, &[])).contains("another run carries to it"));
    eventually(Duration::from_secs(90), "the copy is free", || run(port, &[]).output().expect("kura").status.success());
    assert_same(&source, &home.path("target"));
}

/// Kills a process and all that it has started, as a machine that loses its power does.
fn kill_tree(pid: u32) {
    let found = tool("pgrep").args(["-P", &pid.to_string()]).output().expect("pgrep");
    // It may have ended by itself.
    let _ = tool("kill").args(["-KILL", &pid.to_string()]).status();
    String::from_utf8_lossy(&found.stdout).lines().filter_map(|child| child.parse().ok()).for_each(kill_tree);
}

#[test]
fn a_node_that_is_killed_in_the_middle_leaves_its_work_to_others() {
    let home = Home::new();
    let source = home.path("source");
    grow(&source);
    // Every node has several lists of it.
    grow_large(&source);
    let (node, _, path) = sshd(&home);
    let (from, to) = (source.display().to_string(), home.path("target").display().to_string());
    let slow = ["--nodes", "there,local", "--workers", "1", "--bandwidth", "20M", "--json"];
    let mut kura = Command::new(env!("CARGO_BIN_EXE_kura"));
    kura.args([&["replicate", "run", &from, &to], &slow[..]].concat()).env("PATH", path).current_dir(home.path("."));
    let running = kura.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kura");
    // rsync has one file at a time that is not whole.
    eventually(Duration::from_mins(2), "both nodes are in the middle of a file", || {
        let begun = tool("find").args([&to, "-name", ".more*.*"]).output().expect("find");
        String::from_utf8_lossy(&begun.stdout).lines().count() == 2
    });
    kill_tree(node.0.id());
    let output = running.wait_with_output().expect("the run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("a summary");
    assert_eq!(summary["is_complete"], true, "{summary}");
    assert_same(&source, &home.path("target"));
}
