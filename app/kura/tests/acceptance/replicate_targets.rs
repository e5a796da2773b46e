//! Targets of copies: who may have one, whose token opens it, and on which machine it is.

use crate::harness::{Home, eventually, fails, ok, tool};
use crate::replicate::{Serving, assert_same, grow, marker, rot, run, serve, serve_by};
use crate::replicate_faults::{TOKEN, begin};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn a_copy_inside_another_is_refused_by_any_way() {
    let home = Home::new();
    fs::create_dir_all(home.path("source/d")).expect("directories");
    fs::write(home.path("source/d/file"), "contents").expect("a file");
    let (_serving, address) = serve(&home, "copies", &[]);
    let served = |path: &str| format!("{address}/{path}");
    run(&home, &["source", &served("a"), TOKEN[0], TOKEN[1]]);
    for (target, way) in
        [(served("a/b"), "kura"), ("copies/a/b".to_owned(), "kura"), ("copies/a/b".to_owned(), "rsync")]
    {
        let args = ["replicate", "run", "source", &target, "--with", way, TOKEN[0], TOKEN[1]];
        let complaint = fails(&mut home.kura(&args));
        assert!(
            complaint.contains("copies/a, a copy itself") && complaint.trim_end().lines().count() == 1,
            "{complaint}"
        );
        assert!(!home.path("copies/a/b/d").exists(), "{target}");
    }
}

#[test]
fn a_target_has_one_run_at_a_time_whatever_it_is_named() {
    let home = Home::new();
    grow(&home.path("source"));
    home.ok(&["replicate", "add", "tree", "source", "target"]);
    let mut slow = begin(&home, &["tree", "--bandwidth", "1M"]);
    eventually(Duration::from_secs(30), "the job's run is under way", || home.path("target/d").exists());
    // Also where it comes from elsewhere: another data directory, as it might be another machine.
    for args in [&["source", "target"][..], &["tree"], &["source", "target", "--data", "another"]] {
        let complaint = fails(&mut home.kura(&[&["replicate", "run"], args].concat()));
        assert!(complaint.contains("another run") && complaint.trim_end().lines().count() == 1, "{complaint}");
    }
    slow.kill().and_then(|()| slow.wait()).expect("the killed run");
    assert_eq!(run(&home, &["source", "target"])["is_complete"], true);
}

#[test]
fn each_directory_that_is_served_has_a_token_of_its_own() {
    let home = Home::new();
    fs::create_dir(home.path("source")).expect("a directory");
    let (_first, _) = serve(&home, "copies.1/", &[]);
    let (_second, address) = serve(&home, "copies.2", &[]);
    let token = |name: &str| fs::read_to_string(home.path(name)).expect("a token");
    assert_ne!(token("copies.1.token"), token("copies.2.token"));
    let run = ["replicate", "run", "source", &format!("{address}/a"), "--target-token-file"];
    let refused = fails(&mut home.kura(&[&run[..], &["copies.1.token"]].concat()));
    assert!(refused.contains("token is wrong") && refused.lines().count() == 1, "{refused}");
    home.ok(&[&run[..], &["copies.2.token"]].concat());
    // A directory whose name is elsewhere.
    fs::create_dir(home.path("here")).expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kura"));
    command.args(["replicate", "serve", ".", "--listen", "127.0.0.1:0"]).current_dir(home.path("here"));
    let _third = Serving(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("kura"));
    eventually(Duration::from_secs(30), "a token beside it", || home.path("here.token").exists());
}

#[test]
fn what_the_copys_owner_may_not_read_keeps_no_run_from_it() {
    let home = Home::new();
    let (source, target) = (home.path("source"), home.path("copies/a"));
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
    fs::create_dir_all(source.join("drop/inner")).expect("directories");
    fs::write(source.join("drop/inner/file"), "contents").expect("a file");
    mode(&source.join("drop/inner"), 0o300);
    mode(&source.join("drop"), 0o300);
    // Permissions count for whoever has no privileges.
    let mut server = Command::new("setpriv");
    server.args(["--bounding-set=-all", "--inh-caps=-all", env!("CARGO_BIN_EXE_kura")]);
    let (_serving, address) = serve_by(server, &home, "copies", &[]);
    let args = ["source", &format!("{address}/a"), TOKEN[0], TOKEN[1]];
    let complete = |more: &[&str]| {
        assert_eq!(run(&home, &[&args[..], more].concat())["is_complete"], true);
        assert_same(&source, &target);
    };
    complete(&[]);
    complete(&["--recheck"]);
    fs::write(target.join("drop/inner/stranger"), "").expect("a file");
    complete(&["--recheck"]);
    fs::write(source.join("drop/inner/new"), "").expect("a file");
    complete(&[]);
    // Nor does what is somebody else's, and stays as it is.
    fs::create_dir(target.join("alien")).expect("a directory");
    mode(&target.join("alien"), 0o700);
    ok(tool("chown").arg("1").arg(target.join("alien")));
    fs::write(source.join("newer"), "").expect("a file");
    for more in [&["--recheck"][..], &[]] {
        let complaint = fails(&mut home.kura(&[&["replicate", "run"], &args[..], more].concat()));
        assert!(
            complaint.contains("alien: target: Permission denied") && complaint.contains("1 not copied"),
            "{complaint}"
        );
        assert!(target.join("newer").exists());
    }
    fs::remove_dir(target.join("alien")).expect("a directory");
    complete(&[]);
    // What only lists is closed when all in it has what it is to have.
    let listed = home.path("listed");
    fs::create_dir_all(listed.join("outer/inner")).expect("directories");
    fs::write(listed.join("outer/inner/file"), "contents").expect("a file");
    mode(&listed.join("outer/inner"), 0o600);
    mode(&listed.join("outer"), 0o644);
    assert_eq!(run(&home, &["listed", &format!("{address}/b"), TOKEN[0], TOKEN[1]])["is_complete"], true);
    assert_same(&listed, &home.path("copies/b"));
}

/// Kura on another machine, in this start of it.
fn started(home: &Home, start: &str) -> Command {
    fs::write(home.path("boot_id"), start).expect("a start");
    let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(home.path("boot_id")).arg(env!("CARGO_BIN_EXE_kura"));
    command
}

#[test]
fn after_a_restart_of_another_machine_nothing_there_is_trusted() {
    let home = Home::new();
    let target = home.path("copies/a");
    grow(&home.path("source"));
    let copy = |start| {
        let (_serving, address) = serve_by(started(&home, start), &home, "copies", &[]);
        assert_eq!(
            run(&home, &["source", &format!("{address}/a"), "--target-token-file", "copies.token"])["failed"],
            0
        );
        let marker = marker(&target);
        assert_eq!((&marker["state"], &marker["boot"]), (&"complete".into(), &start.into()));
    };
    copy("one start");
    // A run that was cut off by a power cut there: this machine has not been started anew.
    let marker = fs::read_to_string(target.join(".kura-replica")).expect("the marker");
    fs::write(target.join(".kura-replica"), marker.replace("complete", "unfinished")).expect("the marker");
    rot(&target.join("large"));
    rot(&target.join("d/f30"));
    copy("another start");
    assert_same(&home.path("source"), &target);
}
