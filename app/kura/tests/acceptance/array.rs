//! Volumes with parity on real files: a disk that fails under load, and what no array is made of; and the lab's
//! experiments on arrays.

use crate::harness::{Home, eventually, fails, ok, tool};
use crate::lab_report::every_figure_is_drawn;
use crate::serving::{json, volume};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// fio over a part of the volume `v`, 16 requests at once, that knows again what it wrote.
pub fn fio(home: &Home, part: &str, offset: &str) -> Command {
    let mut fio = tool("fio");
    fio.args([&format!("--name={part}"), "--ioengine=nbd", "--bs=4k", "--rw=randwrite", "--iodepth=16"]);
    fio.args(["--size=64M", &format!("--offset={offset}"), "--verify=crc32c", "--end_fsync=1"]);
    // It leaves the state of its verification where it runs.
    fio.arg(format!("--uri={}", home.uri("v"))).current_dir(home.path(""));
    fio
}

fn disk(home: &Home, id: u64) -> Option<Value> {
    let disks = json(home, &["disk", "list"]);
    disks.as_array().expect("a list").iter().find(|disk| disk["id"] == id).cloned()
}

/// Bytes on a disk that a rebuild has still to move; none where the pool has forgotten it.
fn to_move(home: &Home, id: u64) -> Option<u64> {
    disk(home, id).map(|disk| disk["unwanted_bytes"].as_u64().expect("bytes"))
}

#[test]
fn a_raid5_outlives_a_disk_its_file_and_a_kill_during_the_rebuild() {
    let home = Home::new();
    // Stripes over all disks, as asked: they have no place for a rebuild before another one comes. What lay on fast disks alone, a
    // rebuild would not have to copy.
    let text = "[pool]\nrebuild_rate = '16K'\nraid_width = 6\n[tier]\npolicy = 'off'\n";
    std::fs::write(home.path("kura.toml"), text).expect("a configuration");
    let slow = ["--config", "kura.toml"];
    let mut server = home.serve_with(&slow);
    home.ok(&["volume", "create", "v", "--size", "256M", "--layout", "raid5"]);
    ok(fio(&home, "before", "0").arg("--do_verify=1"));
    // What is in the write buffer still is not moved, and a rebuild does not rest for it.
    let dirty = |controller: &Value| controller["dirty_bytes"].as_u64().expect("bytes");
    let at_rest = || json(&home, &["controller", "list"]).as_array().expect("a list").iter().all(|of| dirty(of) == 0);
    eventually(Duration::from_mins(2), "all is at its place", at_rest);
    // Nor may the journal have it still: a start after the kill would read it into the write buffer again.
    assert!(server.stop().success());
    server = home.serve_with(&slow);
    let failed = disk(&home, 4).expect("a disk");
    let held = failed["data_bytes"].as_u64().expect("bytes") - failed["free_bytes"].as_u64().expect("bytes");
    assert!(held >= 12 * MIB, "{held} bytes on disk 4");

    // While it is written to, the disk fails, its file goes, and a new one takes its place.
    let mut during = fio(&home, "during", "128M").arg("--do_verify=1").stdout(Stdio::null()).spawn().expect("fio");
    home.ok(&["disk", "fail", "4"]);
    // New groups have a place on the failed disk too: four before, four now, of 20 MiB.
    eventually(Duration::from_mins(1), "all has a place", || volume(&home, "v")["allocated_bytes"] == 160 * MIB);
    let all = to_move(&home, 4).expect("it is still there");
    let path = home.path("").join(failed["path"].as_str().expect("a path"));
    std::fs::remove_file(path).expect("the file of the failed disk");
    home.ok(&["disk", "replace", "4", "spare", "--size", "4G", "--no-wait"]);
    assert!(during.wait().expect("fio").success(), "what was written while a disk failed is not what is read");
    ok(fio(&home, "before", "0").arg("--verify_only"));

    // At this rate it rests for four minutes after each group, of which a start moves one at once.
    eventually(Duration::from_mins(2), "the rebuild goes on", || to_move(&home, 4).is_none_or(|left| left < all));
    server.kill();
    server = home.serve_with(&slow);
    let left = to_move(&home, 4);
    assert!(left > Some(0), "the kill came in its middle: {left:?} of {all} left");
    ok(fio(&home, "during", "128M").arg("--verify_only"));
    server.kill();
    let _server = home.serve();
    eventually(Duration::from_mins(2), "the disk has left", || to_move(&home, 4).is_none());
    for (part, offset) in [("before", "0"), ("during", "128M")] {
        ok(fio(&home, part, offset).arg("--verify_only"));
    }
    let check = home.ok(&["check"]);
    assert!(check.contains("all is well"), "{check}");
    // And the new disk is as good as the old one was: another may go.
    home.ok(&["disk", "fail", "6"]);
    ok(fio(&home, "before", "0").arg("--verify_only"));
    // The check is one that can fail.
    ok(tool("qemu-io").args(["-f", "raw", "-c", "write -P 0x5a 1M 4k", &home.uri("v")]));
    fails(fio(&home, "before", "0").arg("--verify_only"));
}

#[test]
fn a_hot_mirror_outlives_a_disk_and_kills() {
    let home = Home::new();
    let mut server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "256M"]);
    assert_eq!(volume(&home, "v")["layout"], "hot-mirror", "six slow disks: nobody asked for another layout");
    ok(fio(&home, "before", "0").arg("--do_verify=1"));
    let mut during = fio(&home, "during", "128M").arg("--do_verify=1").stdout(Stdio::null()).spawn().expect("fio");
    home.ok(&["disk", "fail", "4"]);
    assert!(during.wait().expect("fio").success(), "what was written while a disk failed is not what is read");
    server.kill();
    server = home.serve();
    let verified = || {
        for (part, offset) in [("before", "0"), ("during", "128M")] {
            ok(fio(&home, part, offset).arg("--verify_only"));
        }
    };
    verified();
    // What was hot on the failed disk is written anew, and the stripes, which leave one of six disks out, have room on it. Then
    // another disk may go.
    eventually(Duration::from_mins(2), "all is whole again without a spare", || to_move(&home, 4) == Some(0));
    home.ok(&["disk", "fail", "6"]);
    server.kill();
    let _server = home.serve();
    verified();
    let status = json(&home, &["status"]);
    assert!(status["pool"]["hot_bytes"].as_u64() > Some(0), "what the hot area takes is told: {status}");
    let check = home.ok(&["check"]);
    assert!(check.contains("all is well"), "{check}");
}

/// What the mirrored area has beyond its share is there for who wants it while others write, and comes back after a kill.
#[test]
fn a_hot_mirror_borrows_what_is_free() {
    let home = Home::new();
    std::fs::write(home.path("kura.toml"), "[pool.hot]\nshare_permille = 1\n").expect("a configuration");
    let mut server = home.serve_with(&["--config", "kura.toml"]);
    for name in ["v", "w"] {
        home.ok(&["volume", "create", name, "--size", "256M"]);
    }
    let status = |key: &str| json(&home, &["pool", "status"])[key].as_u64().expect("bytes");
    // It is never quiet.
    let mut others = tool("fio");
    others.args(["--name=others", "--ioengine=nbd", "--bs=4k", "--rw=randwrite", "--iodepth=16", "--size=256M"]);
    others.args(["--time_based", "--runtime=600"]).arg(format!("--uri={}", home.uri("w")));
    let mut others =
        others.current_dir(home.path("")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("fio");
    ok(fio(&home, "before", "0").arg("--do_verify=0"));
    eventually(Duration::from_mins(2), "much is borrowed", || status("borrowed_bytes") > 128 * MIB);
    let extents = status("free_bytes") / status("extent_bytes") / 2;
    let size = format!("{}M", (extents - 12) * 4);
    home.ok(&["volume", "create", "thick", "--size", &size, "--thick", "--layout", "mirror"]);
    eventually(Duration::from_mins(2), "it is given back", || status("borrowed_bytes") < 128 * MIB);
    server.kill();
    assert!(!others.wait().expect("fio").success(), "the server was killed under it");
    let _server = home.serve();
    ok(fio(&home, "before", "0").arg("--verify_only"));
    eventually(Duration::from_mins(2), "nothing is borrowed", || status("borrowed_bytes") == 0);
    ok(fio(&home, "before", "0").arg("--verify_only"));
    let check = home.ok(&["check"]);
    assert!(check.contains("all is well"), "{check}");
}

#[test]
fn floating_data_and_parity_outlive_kills_and_a_disk() {
    let home = Home::new();
    let mut server = home.serve();
    let said = fails(&mut home.kura(&["volume", "create", "v", "--size", "64M", "--layout", "floating"]));
    assert!(said.contains("make a pool with pool.floating_percent, or choose another layout"), "{said}");
    server.kill();

    let home = Home::new();
    std::fs::write(home.path("kura.toml"), "[pool]\nfloating_percent = 11\n").expect("a configuration");
    let mut server = home.serve_with(&["--config", "kura.toml"]);
    home.ok(&["volume", "create", "v", "--size", "256M", "--layout", "floating"]);
    assert_eq!(volume(&home, "v")["layout"], "floating");
    ok(fio(&home, "before", "0").arg("--do_verify=1"));
    ok(tool("qemu-io").args(["-f", "raw", "-c", "write -P 0x5a 200M 1M", &home.uri("v")]));
    let verified = || {
        ok(fio(&home, "before", "0").arg("--verify_only"));
        ok(tool("qemu-io").args(["-f", "raw", "-c", "read -P 0x5a 200M 1M", &home.uri("v")]));
    };
    for turn in 0..2 {
        // All of it is written over, and floats.
        ok(fio(&home, "before", "0").arg("--do_verify=0").arg(format!("--randseed={turn}")));
        server.kill();
        server = home.serve();
        verified();
    }
    home.ok(&["disk", "fail", "4"]);
    eventually(Duration::from_mins(2), "all is whole again without a spare", || to_move(&home, 4) == Some(0));
    home.ok(&["disk", "fail", "6"]);
    server.kill();
    let _server = home.serve();
    verified();
    let check = home.ok(&["check"]);
    assert!(check.contains("all is well"), "{check}");
}

/// Configures a pool of slow disks: their paths and sizes.
pub fn pool(home: &Home, disks: &[(&str, &str)]) {
    let disk = |(path, size): &(&str, &str)| format!("{{ path = '{path}', class = 'slow', size = '{size}' }}");
    let disks: Vec<String> = disks.iter().map(disk).collect();
    std::fs::write(home.path("kura.toml"), format!("pool.disks = [{}]\n", disks.join(", "))).expect("a configuration");
}

#[test]
fn what_no_array_is_made_of_is_told() {
    let home = Home::new();
    let any = "127.0.0.1:0";
    let serve = ["serve", "--config", "kura.toml", "--nbd", any, "--s3", any, "--admin", any];
    pool(&home, &[("one", "512M"), ("./one", "512M"), ("two", "512M")]);
    let said = fails(&mut home.kura(&serve));
    assert!(said.contains("listed twice"), "{said}");
    assert!(!home.data().exists(), "nothing is made of it");

    pool(&home, &[("one", "512M"), ("two", "1G")]);
    let mut server = home.serve_with(&["--config", "kura.toml"]);
    let said = fails(&mut home.kura(&["volume", "create", "v", "--size", "64M", "--layout", "raid5"]));
    assert!(said.contains("raid5 needs 3 disks") && said.contains("add disks"), "{said}");
    assert!(server.log().contains("unlike sizes"), "{}", server.log());
    let said = home.ok(&["disk", "add", "three", "--class", "slow", "--size", "768M"]);
    assert!(said.contains("unlike sizes") && said.contains("512M"), "{said}");
    home.ok(&["volume", "create", "v", "--size", "64M", "--layout", "raid5"]);
    home.ok(&["volume", "create", "w", "--size", "64M"]);
    assert_eq!(volume(&home, "w")["layout"], "hot-mirror", "there are three disks now");
    ok(tool("qemu-io").args(["-f", "raw", "-c", "write -P 7 0 1M", &home.uri("v")]));
    home.ok(&["disk", "fail", "2"]);
    eventually(Duration::from_mins(1), "it is told what the rebuild waits for", || {
        home.ok(&["status"]).contains("which waits: too few disks of data: 3 are needed and 2 work")
    });
    assert!(home.ok(&["job", "list"]).contains("too few disks of data: 3 are needed"), "the job tells why");

    // A disk of another pool is neither taken in nor opened with this one.
    let other = Home::new();
    let mut stranger = other.serve();
    assert!(stranger.stop().success());
    let theirs = other.data().join("disks").join("slow0");
    let said = fails(&mut home.kura(&["disk", "add", theirs.to_str().expect("UTF-8"), "--class", "slow"]));
    assert!(said.contains("belongs to a pool") && said.contains("--force wipes it"), "{said}");
    assert!(server.stop().success());
    // It is not copied, which would write all of its size.
    std::fs::rename(&theirs, home.path("two")).expect("their disk in the place of one of ours");
    let said = fails(&mut home.kura(&serve));
    assert!(said.contains("another pool"), "{said}");
}

#[test]
fn unlike_sizes_are_told_where_all_disks_are_fast() {
    let home = Home::new();
    let disks = ["one", "two"].map(|path| format!("{{ path = '{path}', class = 'fast', size = '512M' }}"));
    std::fs::write(home.path("kura.toml"), format!("pool.disks = [{}]\n", disks.join(", "))).expect("a configuration");
    let mut server = home.serve_with(&["--config", "kura.toml"]);
    assert!(!server.log().contains("unlike sizes"), "{}", server.log());
    let said = home.ok(&["disk", "add", "three", "--class", "fast", "--size", "768M"]);
    assert!(said.contains("unlike sizes") && said.contains("512M"), "{said}");
    assert!(server.stop().success());
}

/// An experiment as a user runs it, on a load small enough for a test.
fn outcome(home: &Home, name: &str) -> Value {
    let load = "load:zipf,size=24M,reads=0.6,requests=1000000000";
    let said = home.ok(&["lab", "run", name, "--quick", "--json", "--trace", load]);
    serde_json::from_str(&said).expect("one JSON object")
}

#[test]
fn the_lab_compares_arrays() {
    let home = Home::new();
    let mut outcomes = Vec::new();
    for (name, figures) in [("array-response", &["response"][..]), ("array-rebuild", &["rebuild", "rebuild-time"])] {
        let outcome = outcome(&home, name);
        let criteria = outcome["criteria"].as_array().expect("criteria");
        assert!(criteria.len() >= 5, "{criteria:#?}");
        for figure in figures {
            let table = std::fs::read_to_string(home.path("lab-report").join(name).join(format!("{figure}.csv")));
            let table = table.expect("a table");
            for array in ["RAID5", "mirror, 1.5 x the disks", "mirror, 1.5 x the tracks"] {
                assert!(table.contains(array), "{array}: {table}");
            }
        }
        outcomes.push(outcome);
    }
    every_figure_is_drawn(&home, "lab-report", &outcomes);
}
