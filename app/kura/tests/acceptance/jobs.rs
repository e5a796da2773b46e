//! Long work at the server: how far it is, for people and for programs, and how it is cancelled.

use crate::harness::{Home, eventually, fails, ok, tool};
use crate::serving::{json, slow_to_check};
use serde_json::{Value, json as value};
use std::process::Stdio;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn jobs(home: &Home) -> Vec<Value> {
    json(home, &["job", "list"]).as_array().expect("a list").clone()
}

fn number(job: &Value, field: &str) -> u64 {
    job[field].as_u64().unwrap_or_else(|| panic!("no {field} in {job}"))
}

#[test]
fn a_check_tells_how_far_it_is_and_is_cancelled() {
    let home = Home::new();
    let _server = slow_to_check(&home);
    let check = home.kura(&["check", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a check");
    let is_under_way = |job: &Value| job["state"] == "running" && number(job, "done") >= 24 * MIB;
    eventually(Duration::from_mins(1), "some of it is checked", || jobs(&home).last().is_some_and(is_under_way));
    let job = jobs(&home).pop().expect("a job");
    assert_eq!((&job["kind"], &job["unit"]), (&value!("check"), &value!("bytes")));
    assert!(number(&job, "total") >= 64 * MIB && number(&job, "done") < number(&job, "total"), "{job}");
    assert!(fails(&mut home.kura(&["check"])).contains("job follow 1"), "a second one at the same time");
    let cancelled = json(&home, &["job", "cancel", "1"]);
    assert_eq!(cancelled["state"], "cancelled");

    // Who began it is told what was found until then, and that it is not all.
    let output = check.wait_with_output().expect("the check");
    assert_eq!(output.status.code(), Some(1));
    let found: Value = serde_json::from_slice(&output.stdout).expect("what it found");
    assert!((1..64 * MIB / 4096).contains(&number(&found, "blocks")), "{found}");
    let told: Vec<Value> = String::from_utf8_lossy(&output.stderr)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let (end, words) = told.split_last().expect("words");
    assert!(end["error"].as_str().is_some_and(|error| error.contains("was cancelled after")), "{end}");
    let done: Vec<u64> = words.iter().map(|job| number(job, "done")).collect();
    assert!(done.len() >= 2 && done.is_sorted() && done.first() < done.last(), "{done:?}");
    assert!(fails(&mut home.kura(&["job", "cancel", "1"])).contains("it has ended"));
    assert!(fails(&mut home.kura(&["job", "cancel", "7"])).contains("no such job"));
}

/// On a terminal there is a bar with the time left, and Ctrl-C lets go of the job, which goes on.
#[test]
fn a_terminal_has_a_bar_that_may_be_left() {
    let home = Home::new();
    let _server = slow_to_check(&home);
    let line = format!("timeout --signal=INT 6 {} check", env!("CARGO_BIN_EXE_kura"));
    let mut terminal = tool("script");
    terminal.args(["--quiet", "--return", "--command", &line, "/dev/null"]).current_dir(home.path(""));
    let seen = terminal.env("TERM", "xterm").env("COLUMNS", "120").output().expect("script, of util-linux");
    let seen = String::from_utf8_lossy(&seen.stdout);
    assert!(seen.contains(" MiB, ") && seen.contains("s left"), "{seen:?}");
    assert!(seen.contains("continues on the server") && seen.contains("kura job cancel 1"), "{seen:?}");
    let listed = home.ok(&["job", "list"]);
    assert!(listed.contains("check") && listed.contains("running") && listed.contains("M of "), "{listed}");
    home.ok(&["job", "cancel", "1", "--quiet"]);
    assert!(home.ok(&["job", "list"]).contains("cancelled"));
}

#[test]
fn what_moves_off_a_disk_is_a_job_also_after_a_restart() {
    let home = Home::new();
    std::fs::write(home.path("kura.toml"), "pool.rebuild_rate = '4M'\n").expect("a configuration");
    let mut server = home.serve_with(&["--config", "kura.toml"]);
    home.ok(&["volume", "create", "v", "--size", "128M", "--layout", "mirror"]);
    ok(tool("qemu-io").args(["-f", "raw", "-c", "write -P 7 0 128M", "-c", "flush", &home.uri("v")]));
    home.ok(&["disk", "fail", "3"]);
    let is_rebuild = |job: &Value| job["kind"] == "rebuild-disk" && job["of"] == "3" && job["state"] == "running";
    let rebuild = |home: &Home| jobs(home).into_iter().find(is_rebuild).expect("the rebuild");
    eventually(Duration::from_mins(1), "how much there is", || number(&rebuild(&home), "total") >= 32 * MIB);
    eventually(Duration::from_mins(1), "it goes on", || number(&rebuild(&home), "done") >= 4 * MIB);
    server.kill();

    server = home.serve_with(&["--config", "kura.toml"]);
    let job = rebuild(&home);
    let refused = fails(&mut home.kura(&["job", "cancel", &job["id"].to_string()]));
    assert!(refused.contains("cannot be cancelled"), "{refused}");
    assert!(server.stop().success(), "a stop does not wait for it");

    let _server = home.serve();
    let said = home.ok(&["disk", "fail", "3", "--wait"]);
    assert!(said.contains("what it held is on the others"), "{said}");
    assert_eq!(json(&home, &["disk", "list"])[3]["unwanted_bytes"], 0);
    home.ok(&["disk", "remove", "3"]);
    let removal = jobs(&home).into_iter().find(|job| job["kind"] == "remove-disk").expect("the removal");
    assert_eq!((&removal["state"], &removal["result"]["id"]), (&value!("done"), &value!(3)));
}

#[test]
fn moves_and_drains_are_jobs() {
    let home = Home::new();
    std::fs::write(home.path("kura.toml"), "pool.controllers = 2\n").expect("a configuration");
    let _server = home.serve_with(&["--config", "kura.toml"]);
    let owner = number(&json(&home, &["volume", "show", "demo"]), "controller");
    // Blocks here and there lie in the mirrored area, once they have left the write buffer.
    let writes = (0..64).flat_map(|at| ["-c".to_owned(), format!("write -P 7 {at}M 4k")]);
    ok(tool("qemu-io").args(["-f", "raw"]).args(writes).args(["-c", "flush", &home.uri("demo")]));
    home.ok(&["check"]);
    home.ok(&["volume", "move-to", "demo", &(1 - owner).to_string()]);
    home.ok(&["controller", "drain", &(1 - owner).to_string()]);
    let listed = jobs(&home);
    let [_, moved, drained] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((&moved["kind"], &moved["of"]), (&value!("move-volume"), &value!("demo")));
    assert!(number(moved, "total") >= 64 * 4096 && moved["done"] == moved["total"], "{moved}");
    assert_eq!(moved["result"]["from"], owner);
    assert_eq!((&drained["kind"], &drained["unit"]), (&value!("drain-controller"), &value!("volumes")));
    assert!(number(drained, "total") >= 1 && drained["done"] == drained["total"], "{drained}");
}

/// Every command that begins a job may leave it, and says which one it is.
#[test]
fn a_job_that_nobody_waits_for_is_named() {
    let home = Home::new();
    std::fs::write(home.path("kura.toml"), "pool.controllers = 2\n").expect("a configuration");
    let _server = home.serve_with(&["--config", "kura.toml"]);
    let to = (1 - number(&json(&home, &["volume", "show", "demo"]), "controller")).to_string();
    for (line, kind) in [
        (&["check"][..], "check"),
        (&["pool", "scrub", "--dry-run"], "check"),
        (&["volume", "move-to", "demo", &to], "move-volume"),
        (&["controller", "drain", "0"], "drain-controller"),
    ] {
        let told = json(&home, &[line, &["--no-wait"]].concat());
        assert_eq!((&told["kind"], told["result"].is_null()), (&value!(kind), true), "{line:?}: {told}");
        home.ok(&["job", "follow", &number(&told, "id").to_string()]);
    }
    for (line, kind) in [
        (&["disk", "replace", "3", "new", "--size", "4G"][..], "remove-disk"),
        (&["disk", "remove", "7"], "remove-disk"),
        (&["disk", "fail", "4"], "rebuild-disk"),
    ] {
        let told = json(&home, &[line, &["--no-wait"]].concat());
        let id = number(&told, "job");
        let job = jobs(&home).into_iter().find(|job| job["id"] == id).expect("the job");
        assert_eq!((&job["kind"], &job["of"]), (&value!(kind), &value!(told["id"].to_string())), "{line:?}: {told}");
        if line[1] == "replace" {
            let disks = json(&home, &["disk", "list"]);
            let new = disks.as_array().and_then(|disks| disks.iter().find(|disk| disk["id"] == told["new_disk"]));
            let new = new.expect("the new disk");
            assert!(new["path"].as_str().is_some_and(|path| path.ends_with("/new")), "{told}: {new}");
        }
        home.ok(&["job", "follow", &id.to_string()]);
    }
    assert!(home.ok(&["check", "--no-wait"]).contains("`kura job follow 8` shows progress"));
}
