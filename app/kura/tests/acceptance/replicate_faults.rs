//! Copies of trees whose links break, whose workers die, and whose files do not hold still.

use crate::crash::Random;
use crate::harness::{Home, eventually, fails, ok, tool};
use crate::link::Link;
use crate::replicate::{WAYS, assert_same, daemon, grow, grow_large, noise, run, serve};
use crate::serving::get;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

pub const TOKEN: [&str; 2] = ["--target-token-file", "copies.token"];

#[test]
fn a_link_may_be_cut_anywhere() {
    let home = Home::new();
    let (source, target) = (home.path("source"), home.path("copies/a"));
    grow(&source);
    let (_serving, address) = serve(&home, "copies", &[]);
    // Slow enough that a cut finds it at work: 20 MB a second, 5 ms one way.
    let link = Link::with(20 << 20, Duration::from_millis(5));
    link.to.store(address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port"), Ordering::SeqCst);
    let uri = format!("kura://127.0.0.1:{}/a", link.port);
    let args = ["source", &*uri, TOKEN[0], TOKEN[1]];
    let mut random = Random(42);
    let mut cut = 0;
    for round in 0..8 {
        fs::write(source.join("large"), noise(6_000_000, round + 1)).expect("a large file");
        fs::write(source.join(format!("d/round{round}")), noise(70_000, round + 1)).expect("a file");
        if round == 3 {
            fs::remove_dir_all(source.join("goes")).expect("a directory");
        }
        link.left_bytes.store(random.below(8 << 20), Ordering::SeqCst);
        let output = home.kura(&[&["replicate", "run"], &args[..]].concat()).output().expect("kura");
        link.left_bytes.store(u64::MAX, Ordering::SeqCst);
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(complaint.contains("the target kura://") && complaint.lines().count() == 1, "{complaint}");
            cut += 1;
        }
    }
    assert!(cut > 3, "only {cut} of 8 runs were cut off");
    assert_eq!(run(&home, &args)["is_complete"], true);
    assert_same(&source, &target);
    let verified = home.ok(&[&["replicate", "verify"], &args[..]].concat());
    assert!(verified.contains("nothing differs"), "{verified}");
}

/// A PATH on which rsync is this script.
fn rsync_as(home: &Home, script: &str) -> String {
    fs::create_dir_all(home.path("bin")).expect("a directory");
    fs::write(home.path("bin/rsync"), format!("#!/bin/sh\n{script}\n")).expect("a script");
    ok(tool("chmod").arg("755").arg(home.path("bin/rsync")));
    format!("{}:{}", home.path("bin").display(), std::env::var("PATH").unwrap_or_default())
}

/// What comes into the root after the scan is no part of what rsync is told to carry: the next run would not know of it.
#[test]
fn what_appears_under_a_run_by_rsync_waits_for_the_next() {
    let home = Home::new();
    let (source, stranger) = (home.path("source"), home.path("source/stranger"));
    grow(&source);
    let path = rsync_as(&home, &format!("touch '{}'\nexec /usr/bin/rsync \"$@\"", stranger.display()));
    let args = ["source", "target", "--with", "rsync"];
    run(&home, &args);
    fs::write(source.join("other"), "x").expect("a file");
    ok(home.kura(&[&["replicate", "run"], &args[..]].concat()).env("PATH", path));
    assert!(home.path("target/other").exists() && !home.path("target/stranger").exists());
    fs::remove_file(&stranger).expect("what came under the run");
    run(&home, &args);
    assert_same(&source, &home.path("target"));
}

/// What the scan has seen, and is not there while rsync looks: what is mounted, or moved there and back.
#[test]
fn what_is_away_for_a_moment_under_a_run_by_rsync_is_told_and_stays_in_the_copy() {
    let home = Home::new();
    let (source, copy) = (home.path("source"), home.path("module/a"));
    grow(&source);
    let (_serving, uri) = daemon(&home);
    let target = format!("{uri}/a");
    let args = ["replicate", "run", "source", &target];
    home.ok(&args);
    let away = home.path("away").display().to_string();
    for (option, name, leads) in [("--delete", "d", false), ("-HAXS", "goes/with/all", true)] {
        let path = source.join(name).display().to_string();
        let link = if leads { format!("ln -s '{away}' '{path}'") } else { String::new() };
        let meddled = format!(
            "mv '{path}' '{away}'\n{link}\n/usr/bin/rsync \"$@\"\ncode=$?\nrm -f '{path}'; mv '{away}' '{path}'"
        );
        let script =
            format!("case \" $* \" in *' {option} '*) ;; *) exec /usr/bin/rsync \"$@\";; esac\n{meddled}\nexit $code");
        fs::write(copy.join("stranger"), "x").expect("a file that only the copy has");
        let mut meddled = home.kura(&[&args[..], &["--recheck"]].concat());
        let complaint = fails(meddled.env("PATH", rsync_as(&home, &script)));
        assert!(complaint.contains(name), "{option}: {complaint}");
        assert!(copy.join("d/f30").exists() && copy.join("goes/with/all/inner").exists(), "{option}");
        assert!(!copy.join(name).is_symlink(), "{option}");
        // What is not the source's goes where all was carried.
        assert_eq!(copy.join("stranger").exists(), leads, "{option}");
        home.ok(&args);
        assert_same(&source, &copy);
    }
}

/// A run under way; its complaint is awaited.
pub fn begin(home: &Home, args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kura"));
    command.args(["replicate", "run"]).args(args).current_dir(home.path("."));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("kura")
}

#[test]
fn a_worker_that_is_killed_leaves_its_work_to_others() {
    let home = Home::new();
    let source = home.path("source");
    grow(&source);
    grow_large(&source);
    let slow = ["source", "target", "--with", "rsync", "--workers", "2", "--bandwidth", "20M"];
    let running = begin(&home, &slow);
    eventually(Duration::from_mins(2), "one of two workers is killed", || {
        let found = tool("pgrep").args(["-x", "rsync", "-P", &running.id().to_string()]).output().expect("pgrep");
        let workers: Vec<_> = String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect();
        workers.len() == 2 && tool("kill").args(["-KILL", &workers[1]]).status().expect("kill").success()
    });
    let output = running.wait_with_output().expect("the run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_same(&source, &home.path("target"));
}

#[test]
fn an_end_that_stands_still_is_given_up_and_found_again() {
    let home = Home::new();
    let source = home.path("source");
    fs::create_dir_all(source.join("d")).expect("a directory");
    for index in 0..40 {
        fs::write(source.join(format!("d/f{index}")), noise(3_000, index + 1)).expect("a file");
    }
    let (serving, address) = serve(&home, "copies", &[]);
    let args = ["source", &format!("{address}/a"), TOKEN[0], TOKEN[1]];
    let slow = ["--workers", "1", "--bandwidth", "30K", "--timeout", "10s"];
    let running = begin(&home, &[&args, &slow[..]].concat());
    // All its connections are up when files arrive.
    let arrived = || fs::read_dir(home.path("copies/a/d")).is_ok_and(|mut files| files.next().is_some());
    eventually(Duration::from_mins(1), "the copy has begun", arrived);
    let signal = |name: &str| ok(tool("kill").args([name, &serving.0.id().to_string()]));
    signal("-STOP");
    let output = running.wait_with_output().expect("the run");
    signal("-CONT");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && complaint.contains("nothing moved for 10 s"), "{complaint}");
    assert_eq!(run(&home, &args)["is_complete"], true);
    assert_same(&source, &home.path("copies/a"));
}

#[test]
fn a_run_of_the_schedule_that_leaves_nothing_is_told_as_one_that_failed() {
    let home = Home::new();
    let server = home.serve();
    fs::create_dir(home.path("source")).expect("a directory");
    // No run can take it.
    let lock = home.data().join("replicate/tree/lock");
    fs::create_dir_all(&lock).expect("a directory");
    home.ok(&["replicate", "add", "tree", "source", "target", "--every", "1s"]);
    let is_told = |value: &str| {
        let metrics = get(server.port("http"), "/metrics");
        metrics.lines().any(|line| line.starts_with("kura_replicate_complete{job=\"tree\"") && line.ends_with(value))
    };
    eventually(Duration::from_mins(1), "the run has failed", || is_told("} 0"));
    fs::remove_dir(&lock).expect("a directory");
    eventually(Duration::from_mins(1), "the next one has not", || is_told("} 1"));
}

#[test]
fn a_job_whose_file_cannot_be_read_is_told_and_keeps_no_other_one_from_its_runs() {
    let home = Home::new();
    let server = home.serve();
    fs::create_dir(home.path("source")).expect("a directory");
    for name in ["bad", "good"] {
        home.ok(&["replicate", "add", name, "source", name, "--every", "1s"]);
    }
    eventually(Duration::from_mins(1), "both run", || home.path("bad").exists() && home.path("good").exists());
    let file = home.data().join("replicate/bad/job.toml");
    let text = fs::read_to_string(&file).expect("the job").replace("1s", "1 fortnight");
    fs::write(&file, text).expect("the job");
    let has_metric = |name: &str, value: &str| {
        let metrics = get(server.port("http"), "/metrics");
        metrics.lines().any(|line| line.starts_with(&format!("{name}{{job=\"bad\"")) && line.ends_with(value))
    };
    eventually(Duration::from_mins(1), "it is told", || has_metric("kura_replicate_complete", "} 0"));
    let (status, due) =
        (home.kura(&["replicate", "status"]).output(), home.kura(&["replicate", "run", "--due"]).output());
    for told in [status.expect("kura"), due.expect("kura")] {
        let complaint = String::from_utf8_lossy(&told.stderr);
        assert!(!told.status.success() && complaint.contains("bad/job.toml"), "{complaint}");
    }
    assert!(home.ok(&["replicate", "status", "good"]).contains("complete"));
    home.ok(&["replicate", "remove", "bad", "--dry-run"]);
    home.ok(&["replicate", "remove", "bad"]);
    assert!(!home.ok(&["replicate", "status"]).contains("bad"));
}

#[test]
fn a_job_is_removed_with_its_run_or_not_at_all() {
    let home = Home::new();
    grow(&home.path("source"));
    let _server = home.serve();
    let add = ["replicate", "add", "tree", "source", "target", "--bandwidth", "200K"];
    home.ok(&add);
    let mut by_hand = begin(&home, &["tree"]);
    eventually(Duration::from_mins(1), "it is under way", || home.path("target/d").exists());
    let complaint = fails(&mut home.kura(&["replicate", "remove", "tree"]));
    assert!(complaint.contains("another run of it is under way"), "{complaint}");
    assert!(home.ok(&["replicate", "status"]).contains("tree"));
    by_hand.kill().and_then(|()| by_hand.wait()).expect("the killed run");
    home.ok(&["replicate", "remove", "tree"]);
    // A server's ends with the job.
    fs::remove_dir_all(home.path("target")).expect("the copy");
    home.ok(&[&add[..], &["--every", "1s"]].concat());
    eventually(Duration::from_mins(1), "it is under way", || home.path("target/d").exists());
    home.ok(&["replicate", "remove", "tree"]);
    let files = || tool("find").args([home.path("target").as_os_str()]).output().expect("find").stdout;
    let before = files();
    std::thread::sleep(Duration::from_secs(1));
    assert!(before == files() && !home.data().join("replicate/tree").exists(), "the run goes on");
}

#[test]
fn a_job_that_no_run_can_take_is_tried_and_told_once_in_a_while() {
    let home = Home::new();
    fs::create_dir(home.path("source")).expect("a directory");
    fs::create_dir_all(home.data().join("replicate/tree/lock")).expect("a directory");
    home.ok(&["replicate", "add", "tree", "source", "target", "--every", "1m"]);
    let mut follow = tool("timeout");
    follow.args(["3", env!("CARGO_BIN_EXE_kura"), "replicate", "run", "--follow"]).current_dir(home.path(""));
    let said = String::from_utf8_lossy(&follow.output().expect("timeout").stderr).into_owned();
    assert!(said.lines().count() == 1 && said.contains(" tree: "), "{said}");
}

#[test]
fn what_a_run_has_left_that_was_cut_off_goes_with_what_it_was_of() {
    let home = Home::new();
    let (source, target) = (home.path("source"), home.path("target"));
    fs::create_dir_all(source.join("log/old")).expect("directories");
    for name in ["log/rotates", "log/vanishes", "log/old/with-its-directory"] {
        fs::write(source.join(name), noise(4_000_000, 3)).expect("a large file");
    }
    let mut cut = begin(&home, &["source", "target", "--bandwidth", "400K"]);
    let left = || ok(tool("find").arg(&target).args(["-name", ".~kura~*"]));
    eventually(Duration::from_mins(2), "three files are under way", || target.exists() && left().lines().count() >= 3);
    cut.kill().and_then(|()| cut.wait()).expect("the killed run");
    assert!(left().lines().count() >= 3, "{}", left());
    fs::write(source.join("log/rotates"), "small").expect("a small file");
    fs::remove_file(source.join("log/vanishes")).expect("a file");
    fs::remove_dir_all(source.join("log/old")).expect("a directory");
    assert_eq!(run(&home, &["source", "target"])["is_complete"], true);
    assert_same(&source, &target);
}

/// What happens to files between the scan and their turn.
fn disturb(source: &Path, secret: &Path) {
    fs::remove_file(source.join("vanishes")).expect("a file");
    File::options().write(true).open(source.join("shrinks")).and_then(|file| file.set_len(10)).expect("a file");
    fs::write(source.join("grows"), noise(300_000, 9)).expect("a file");
    fs::remove_dir_all(source.join("directory")).expect("a directory");
    fs::write(source.join("directory"), "a file").expect("a file");
    fs::remove_file(source.join("pipe")).expect("a file");
    ok(tool("mkfifo").arg(source.join("pipe")));
    fs::remove_file(source.join("link")).expect("a file");
    symlink(secret, source.join("link")).expect("a link");
    // A directory on the way becomes a link to where the same names are.
    fs::rename(source.join("way"), source.join("away")).expect("a directory");
    symlink(secret.with_file_name("elsewhere"), source.join("way")).expect("a link");
}

#[test]
fn files_that_change_under_the_scan_are_told_and_nothing_leads_elsewhere() {
    let home = Home::new();
    let (source, target, secret) = (home.path("source"), home.path("target"), home.path("secret"));
    for directory in ["source/directory", "source/way/in", "elsewhere/in"] {
        fs::create_dir_all(home.path(directory)).expect("a directory");
    }
    fs::write(&secret, noise(1000, 5)).expect("a secret");
    fs::write(home.path("elsewhere/in/file"), noise(1000, 5)).expect("a secret");
    let changing = ["vanishes", "shrinks", "grows", "directory/inner", "pipe", "link", "way/in/file"];
    for name in changing {
        fs::write(source.join(name), noise(1000, 1)).expect("a file");
    }
    fs::write(source.join("first"), noise(8_000_000, 2)).expect("a large file, the first to go");
    fs::write(source.join("still"), noise(1000, 2)).expect("a file");
    let running = begin(&home, &["source", "target", "--workers", "1", "--bandwidth", "1M"]);
    eventually(Duration::from_mins(2), "the first file is under way", || {
        target.exists() && !ok(tool("find").arg(&target).args(["-name", ".~kura~*"])).is_empty()
    });
    // It looks at the other files only when this is done.
    let signal = |name: &str| ok(tool("kill").args([name, &running.id().to_string()]));
    signal("-STOP");
    disturb(&source, &secret);
    signal("-CONT");
    let output = running.wait_with_output().expect("the run");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && complaint.contains("10 not copied, listed in "), "{complaint}");
    let list = complaint.split("listed in ").nth(1).expect("a list").trim();
    let list = fs::read_to_string(home.path(list)).expect("the list");
    for name in changing {
        assert!(list.contains(&format!("\"{name}\"")) && !target.join(name).exists(), "{name}: {list}");
    }
    // Nor can it be told what became of the directories themselves.
    assert!(["directory", "way", "way/in"].iter().all(|name| list.contains(&format!("\"{name}\""))), "{list}");
    assert!(target.join("first").exists() && target.join("still").exists());
    assert_eq!(run(&home, &["source", "target"])["is_complete"], true);
    assert_same(&source, &target);
}

#[test]
fn whoever_is_not_root_changes_what_they_may_and_is_told_the_rest() {
    let home = Home::new();
    let (source, target) = (home.path("source"), home.path("target"));
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
    for directory in ["modules/a/b", "modules/gone/inner", "closed"] {
        fs::create_dir_all(source.join(directory)).expect("directories");
    }
    for name in ["modules/a/file", "modules/a/b/file", "modules/gone/inner/file", "closed/file", "unread"] {
        fs::write(source.join(name), noise(2000, 1)).expect("a file");
    }
    let shut = || {
        for name in ["modules/a/b", "modules/a", "modules"] {
            mode(&source.join(name), 0o555);
        }
    };
    mode(&source.join("modules/gone/inner"), 0o555);
    mode(&source.join("modules/gone"), 0o555);
    mode(&source.join("closed"), 0);
    mode(&source.join("unread"), 0);
    shut();
    // The owner, and no privileges: permissions count.
    let bare = |args: &[&str]| {
        let mut command = tool("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all", env!("CARGO_BIN_EXE_kura"), "replicate", "run"]);
        command.args(args).current_dir(home.path("."));
        command
    };
    let complaint = fails(&mut bare(&["source", "target"]));
    assert!(complaint.contains("closed: source: Permission denied"), "{complaint}");
    assert!(complaint.contains("2 not copied"), "{complaint}");
    mode(&source.join("closed"), 0o755);
    mode(&source.join("unread"), 0o644);
    // Directories that nobody may write to change all the same, here and there.
    mode(&source.join("modules/a"), 0o755);
    fs::write(source.join("modules/a/new"), "x").expect("a file");
    fs::remove_file(source.join("modules/a/file")).expect("a file");
    fs::create_dir(source.join("modules/a/c")).expect("a directory");
    fs::remove_dir_all(source.join("modules/gone")).expect("a directory");
    shut();
    ok(&mut bare(&["source", "target"]));
    assert_same(&source, &target);
}

#[test]
fn a_name_that_leads_out_of_what_is_served_opens_nothing() {
    let home = Home::new();
    fs::create_dir_all(home.path("source/d")).expect("directories");
    fs::create_dir_all(home.path("outside")).expect("a directory");
    symlink(home.path("outside"), home.path("source/out")).expect("a link");
    symlink(home.path("outside"), home.path("source/d/out")).expect("a link");
    let (_serving, address) = serve(&home, "copies", &[]);
    run(&home, &["source", &format!("{address}/a"), TOKEN[0], TOKEN[1]]);
    for path in ["a/out", "a/out/copy", "a/d/out/copy"] {
        let uri = format!("{address}/{path}");
        let complaint = fails(&mut home.kura(&["replicate", "run", "source", &uri, TOKEN[0], TOKEN[1]]));
        assert!(complaint.contains("a link leads there") && complaint.lines().count() == 1, "{complaint}");
    }
    assert_eq!(fs::read_dir(home.path("outside")).expect("a directory").count(), 0);
    // Nor is it a link that says whose copy it is.
    fs::remove_file(home.path("copies/a/.kura-replica")).expect("the marker");
    symlink(home.path("copies.token"), home.path("copies/a/.kura-replica")).expect("a link");
    let complaint = fails(&mut home.kura(&["replicate", "run", "source", &format!("{address}/a"), TOKEN[0], TOKEN[1]]));
    assert!(complaint.contains("symbolic links") && complaint.lines().count() == 1, "{complaint}");
}

#[test]
fn a_file_that_changes_while_it_is_copied_is_told_and_carried_by_the_next_run() {
    for way in ["kura", "rsync"] {
        let home = Home::new();
        let source = home.path("source");
        fs::create_dir(&source).expect("a directory");
        fs::write(source.join("calm"), noise(10_000, 1)).expect("a file");
        fs::write(source.join("busy"), noise(6_000_000, 2)).expect("a file");
        let args = ["source", "target", "--with", way];
        let slowly = ["--bandwidth", "1M", "--workers", "1"];
        let mut slow = home.kura(&[&["replicate", "run"][..], &args, &slowly].concat());
        let slow = slow.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("kura");
        // Where the large file is written until it is whole, which takes six seconds.
        let is_begun = |name: &str| {
            name.starts_with(".busy.") || name.starts_with(".~kura~") && !name.starts_with(".~kura~marker")
        };
        eventually(Duration::from_mins(1), "the copy has begun", || {
            let mut files = fs::read_dir(home.path("target")).into_iter().flatten().flatten();
            files.any(|file| file.file_name().to_str().is_some_and(is_begun))
        });
        let busy = File::options().write(true).open(source.join("busy")).expect("the busy file");
        busy.write_all_at(b"changed", 100).expect("a change");
        let output = slow.wait_with_output().expect("the run");
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && complaint.contains("busy: source: it changed while"), "{way}: {complaint}");
        // kura has seen in time that it would not be whole.
        assert!(home.path("target/calm").exists() && home.path("target/busy").exists() == (way == "rsync"), "{way}");
        assert_eq!(run(&home, &args)["is_complete"], true);
        assert_same(&source, &home.path("target"));
    }
}

#[test]
fn a_file_that_is_written_twice_within_a_second_is_carried_twice() {
    for way in WAYS {
        let home = Home::new();
        let (source, args) = (home.path("source"), [&["source", "target"], way].concat());
        fs::create_dir(&source).expect("a directory");
        for (content, ns) in [("one", 100_000_000), ("two", 900_000_000)] {
            let file = File::create(source.join("file")).expect("a file");
            file.write_all_at(content.as_bytes(), 0).expect("its content");
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, ns)).expect("its time");
            run(&home, &args);
            assert_same(&source, &home.path("target"));
        }
    }
}

#[test]
fn where_few_files_may_be_open_more_are_allowed_as_far_as_the_system_lets_them() {
    let home = Home::new();
    let source = home.path("source");
    grow(&source);
    let kura = env!("CARGO_BIN_EXE_kura");
    let few = ["--nofile=16:4096", kura, "replicate", "run", "source", "target", "--workers", "10"];
    for _ in 0..2 {
        ok(tool("prlimit").args(few).current_dir(home.path(".")));
        assert_same(&source, &home.path("target"));
    }
}
