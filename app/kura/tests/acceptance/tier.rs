//! The fast tier of real files: data that goes up and down under load, through kills, and without a fast disk.

use crate::harness::{Home, Server, eventually, fails, ok, tool};
use crate::serving::{get, json};
use crate::snapshots::rest;
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// How long data may take to go up or down, and a load to make it do so.
const PATIENCE: Duration = Duration::from_mins(3);
/// Four slow disks, and two fast ones that hold a few hundred MiB beside the journals.
const POOL: &str = "
[pool]
controllers = 1
journal = '16M'
disks = [
    { path = 'fast0', class = 'fast', size = '256M' },
    { path = 'fast1', class = 'fast', size = '256M' },
    { path = 'slow0', class = 'slow', size = '1G' },
    { path = 'slow1', class = 'slow', size = '1G' },
    { path = 'slow2', class = 'slow', size = '1G' },
    { path = 'slow3', class = 'slow', size = '1G' },
]
[tier]
interval_ms = 200
";

fn home(tier: &str) -> Home {
    let home = Home::new();
    std::fs::write(home.path("kura.toml"), format!("{POOL}{tier}")).expect("a configuration");
    home
}

const CONFIG: [&str; 2] = ["--config", "kura.toml"];

/// fio over a part of a volume, 8 requests at once, that knows again what it wrote.
fn fio(home: &Home, volume: &str, part: &str, offset: &str) -> Command {
    let mut fio = tool("fio");
    fio.args([&format!("--name={part}"), "--ioengine=nbd", "--bs=4k", "--rw=randwrite", "--iodepth=8"]);
    fio.args(["--size=32M", &format!("--offset={offset}"), "--verify=crc32c", "--end_fsync=1"]);
    fio.arg(format!("--uri={}", home.uri(volume))).current_dir(home.path(""));
    fio
}

/// fio that writes a part over and over and verifies each pass, in the background.
fn busy(home: &Home, volume: &str, seconds: u32) -> Child {
    let mut fio = fio(home, volume, "busy", "96M");
    fio.args(["--do_verify=1", "--rate_iops=4000", "--time_based", &format!("--runtime={seconds}")]);
    fio.stdout(Stdio::null()).spawn().expect("fio")
}

/// Bytes of a volume in the fast tier, and of these what is newer there; or another number of its regions.
fn up(server: &Server, volume: &str, name: &str) -> u64 {
    let answer = get(server.port("http"), &format!("/api/v1/volumes/{volume}/heat"));
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    let heat: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    let regions = heat["regions"].as_array().expect("regions").iter();
    regions.map(|region| region[name].as_u64().expect("a number")).sum()
}

fn pin(home: &Home, volume: &str, to: &str) {
    home.ok(&["tier", "pin", volume, to]);
}

fn well(home: &Home) {
    let check = home.ok(&["check"]);
    assert!(check.contains("all is well"), "{check}");
}

#[test]
fn data_moves_both_ways_under_load_and_through_kills() {
    let home = home("");
    let mut server = home.serve_with(&CONFIG);
    for (volume, layout) in [("m", "mirror"), ("r", "raid5"), ("h", "hot-mirror")] {
        home.ok(&["volume", "create", volume, "--size", "128M", "--layout", layout]);
        ok(fio(&home, volume, "kept", "0").arg("--do_verify=1"));
        let mut load = busy(&home, volume, 6);
        for to in ["fast", "slow", "fast"] {
            pin(&home, volume, to);
            std::thread::sleep(Duration::from_millis(1500));
        }
        assert!(load.wait().expect("fio").success(), "{layout}: what was written while it moved is not what is read");
        eventually(PATIENCE, "all of it is up", || up(&server, volume, "valid_bytes") >= 32 * MIB);
        ok(fio(&home, volume, "kept", "0").arg("--verify_only"));
        // Killed on its way down, and up again.
        for to in ["slow", "fast", "slow"] {
            pin(&home, volume, to);
            ok(fio(&home, volume, "again", "64M").arg("--do_verify=1"));
            server.kill();
            server = home.serve_with(&CONFIG);
            ok(fio(&home, volume, "kept", "0").arg("--verify_only"));
            ok(fio(&home, volume, "again", "64M").arg("--verify_only"));
        }
        eventually(PATIENCE, "all of it is down", || up(&server, volume, "valid_bytes") == 0);
        ok(fio(&home, volume, "kept", "0").arg("--verify_only"));
        well(&home);
    }
    let metrics = get(server.port("http"), "/metrics");
    assert!(metrics.contains("kura_tier_reads_total{tier=\"fast\"}"), "{metrics}");
    // What the last start had to do may have been done before.
    pin(&home, "m", "fast");
    eventually(PATIENCE, "all of it is up", || up(&server, "m", "valid_bytes") >= 32 * MIB);
    pin(&home, "m", "slow");
    eventually(PATIENCE, "all of it is down", || up(&server, "m", "valid_bytes") == 0);
    let moves = json(&home, &["tier", "moves"]);
    let moves = moves.as_array().expect("a list");
    assert!(moves.iter().any(|one| one["to"] == "slow" && one["reason"] == "the volume is pinned"), "{moves:?}");
    // The check is one that can fail.
    ok(tool("qemu-io").args(["-f", "raw", "-c", "write -P 0x5a 1M 4k", &home.uri("m")]));
    fails(fio(&home, "m", "kept", "0").arg("--verify_only"));
}

#[test]
fn a_fast_disk_may_fail_during_moves() {
    let home = home("");
    let mut server = home.serve_with(&CONFIG);
    home.ok(&["volume", "create", "r", "--size", "128M", "--layout", "raid5"]);
    ok(fio(&home, "r", "kept", "0").arg("--do_verify=1"));
    pin(&home, "r", "fast");
    let mut load = busy(&home, "r", 5);
    eventually(PATIENCE, "the fast tier has what is newest", || up(&server, "r", "stale_bytes") > 0);
    home.ok(&["disk", "fail", "1"]);
    assert!(load.wait().expect("fio").success(), "what was written while a fast disk failed is not what is read");
    server.kill();
    server = home.serve_with(&CONFIG);
    ok(fio(&home, "r", "kept", "0").arg("--verify_only"));
    eventually(PATIENCE, "all of it is home", || up(&server, "r", "valid_bytes") == 0);
    let status = home.ok(&["tier", "status"]);
    assert!(status.contains("disk 0 is the only fast one"), "{status}");
    ok(fio(&home, "r", "kept", "0").arg("--verify_only"));
    well(&home);
    // With another one it goes up again, and that one may leave as it came.
    home.ok(&["disk", "add", "fast2", "--class", "fast", "--size", "256M"]);
    eventually(PATIENCE, "it is up again", || up(&server, "r", "valid_bytes") >= 32 * MIB);
    home.ok(&["disk", "remove", "1"]);
    ok(fio(&home, "r", "kept", "0").arg("--verify_only"));
    well(&home);
    server.kill();
    let _server = home.serve_with(&CONFIG);
    ok(fio(&home, "r", "kept", "0").arg("--verify_only"));
}

#[test]
fn what_is_hot_goes_up_by_itself_and_why_is_told() {
    let home = home("policy = 'otf-ast'\nsublun = '4M'\n");
    let text = std::fs::read_to_string(home.path("kura.toml")).expect("the configuration");
    let text = text.replace("interval_ms = 200", "t = 1\nc = 2\no = 3\ni = 0");
    std::fs::write(home.path("kura.toml"), text).expect("a configuration");
    let server = home.serve_with(&CONFIG);
    home.ok(&["volume", "create", "v", "--size", "256M"]);
    ok(fio(&home, "v", "all", "0").arg("--do_verify=1"));
    let hot = |offset: &str| {
        let mut fio = tool("fio");
        fio.args(["--name=hot", "--ioengine=nbd", "--bs=4k", "--rw=randread", "--iodepth=4", "--size=8M"]);
        fio.args(["--rate_iops=1000", "--time_based", "--runtime=10", &format!("--offset={offset}")]);
        ok(fio.arg(format!("--uri={}", home.uri("v"))).current_dir(home.path("")));
    };
    // Once is enough on a machine that has ten seconds for it. Without a load nothing moves.
    eventually(PATIENCE, "it is up, and read there", || {
        hot("8M");
        json(&home, &["tier", "status"])["fast_reads"].as_u64() > Some(1000)
    });
    let why = home.ok(&["tier", "why", "v", "--offset", "8M"]);
    assert!(why.contains("% of the volume's I/O"), "{why}");
    let moves = home.ok(&["tier", "moves"]);
    assert!(moves.contains("in a row"), "{moves}");
    // The load goes elsewhere, and it goes down.
    eventually(PATIENCE, "it is down, and what is hot now is up", || {
        hot("24M");
        let is_down = home.ok(&["tier", "why", "v", "--offset", "8M"]).contains("in the slow tier");
        is_down && up(&server, "v", "valid_bytes") > 0
    });
    home.ok(&["tier", "set", "v", "--floor", "4M", "--ceiling", "16M"]);
    let rules = home.ok(&["tier", "why", "v"]);
    assert!(rules.contains("floor 4M") && rules.contains("ceiling 16M"), "{rules}");
    let rules = home.ok(&["tier", "rules"]);
    let of_v = rules.lines().find(|line| line.starts_with("v ")).expect("a line");
    assert!(of_v.ends_with("the policy decides; floor 4M, ceiling 16M"), "{rules}");
    let rules = json(&home, &["tier", "rules"]);
    let of_v = rules.as_array().expect("a list").iter().find(|one| one["volume"] == "v").expect("an item");
    assert_eq!((&of_v["floor_bytes"], &of_v["ceiling_bytes"]), (&(4 << 20).into(), &(16 << 20).into()), "{rules}");
    ok(fio(&home, "v", "all", "0").arg("--verify_only"));
}

#[test]
fn a_single_fast_disk_serves_reads_where_it_is_named() {
    let home = home("");
    let text = std::fs::read_to_string(home.path("kura.toml")).expect("the configuration");
    let alone = text.replace("    { path = 'fast1', class = 'fast', size = '256M' },\n", "");
    std::fs::write(home.path("kura.toml"), &alone).expect("a configuration");
    let ports = ["serve", "--nbd", "127.0.0.1:0", "--s3", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let text = fails(home.kura(&ports).args(CONFIG));
    assert!(text.contains("fast0 is the only fast disk") && text.contains("tier.single_disk"), "{text}");
    let (fast, slow) = (home.path("f").display().to_string() + "=256M", home.path("s").display().to_string() + "=256M");
    let other = home.path("other").display().to_string();
    let text = fails(&mut home.kura(&["pool", "create", "--data", &other, "--fast", &fast, "--slow", &slow]));
    assert!(text.contains("the only fast disk") && text.contains("--single-fast"), "{text}");
    // One that is made all the same.
    let off = format!("{alone}policy = 'off'\n");
    std::fs::write(home.path("kura.toml"), off).expect("a configuration");
    assert!(home.serve_with(&CONFIG).stop().success());
    std::fs::write(home.path("kura.toml"), &alone).expect("a configuration");
    let mut server = home.serve_with(&CONFIG);
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    ok(fio(&home, "v", "kept", "0").arg("--do_verify=1"));
    pin(&home, "v", "fast");
    let status = home.ok(&["tier", "status"]);
    assert!(status.contains("the only fast one") && status.contains("tier.single_disk"), "{status}");
    assert_eq!(up(&server, "v", "valid_bytes"), 0, "nothing goes there unless it is said");
    assert!(server.stop().success());
    std::fs::write(home.path("kura.toml"), format!("{alone}single_disk = 'fast0'\n")).expect("a configuration");
    server = home.serve_with(&CONFIG);
    eventually(PATIENCE, "it is up", || up(&server, "v", "valid_bytes") >= 32 * MIB);
    ok(fio(&home, "v", "again", "32M").arg("--do_verify=1"));
    ok(fio(&home, "v", "kept", "0").arg("--verify_only"));
    assert_eq!(up(&server, "v", "stale_bytes"), 0, "writes go home too");
    server.kill();
    let _server = home.serve_with(&CONFIG);
    ok(fio(&home, "v", "again", "32M").arg("--verify_only"));
    well(&home);
}

/// What lies on a single fast disk lies on slow ones too: without it the server starts, and says so.
#[test]
fn a_single_fast_disk_may_be_away() {
    let home = Home::new();
    let slow = |n: u8| format!("{{ path = 'slow{n}', class = 'slow', size = '512M' }}");
    let pool =
        format!("demo = 0\npool.controllers = 1\npool.journal = '16M'\npool.disks = [{}, {}]\n", slow(0), slow(1));
    std::fs::write(home.path("kura.toml"), &pool).expect("a configuration");
    let mut server = home.serve_with(&CONFIG);
    home.ok(&["disk", "add", &home.path("fast").display().to_string(), "--class", "fast", "--size", "256M"]);
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    ok(fio(&home, "v", "kept", "0").arg("--do_verify=1"));
    assert!(server.stop().success());
    std::fs::write(home.path("kura.toml"), format!("{pool}tier.single_disk = 'fast'\n")).expect("a configuration");
    server = home.serve_with(&CONFIG);
    pin(&home, "v", "fast");
    eventually(PATIENCE, "it is up", || up(&server, "v", "valid_bytes") >= 32 * MIB);
    server.kill();
    std::fs::rename(home.path("fast"), home.path("gone")).expect("no fast disk");
    server = home.serve_with(&CONFIG);
    ok(fio(&home, "v", "kept", "0").arg("--verify_only"));
    assert!(home.ok(&["tier", "status"]).contains("there is no working disk of the fast class"));
    home.ok(&["disk", "remove", "2"]);
    assert!(server.stop().success());
    let _server = home.serve_with(&CONFIG);
    ok(fio(&home, "v", "kept", "0").arg("--verify_only"));
    well(&home);
}

#[test]
fn a_file_is_as_slow_as_its_model() {
    let home = Home::new();
    let slow = "{ path = 'slow0', class = 'slow', size = '256M', model = { constant = { service_ns = 2_000_000 } } }";
    let pool = format!("demo = 0\n[pool]\ncontrollers = 1\njournal = '16M'\ndisks = [{slow}]\n");
    std::fs::write(home.path("kura.toml"), pool).expect("a configuration");
    let mut server = home.serve_with(&CONFIG);
    home.ok(&["volume", "create", "v", "--size", "64M", "--layout", "none"]);
    ok(fio(&home, "v", "kept", "0").arg("--do_verify=1"));
    assert!(server.stop().success(), "what was in the buffer is at its place");
    let _server = home.serve_with(&CONFIG);
    let mut reads = tool("fio");
    reads.args(["--name=reads", "--ioengine=nbd", "--bs=4k", "--rw=randread", "--size=32M", "--io_size=200k"]);
    let told = ok(reads.args(["--output-format=json", &format!("--uri={}", home.uri("v"))]));
    let told: Value = serde_json::from_str(&told[told.find('{').expect("JSON")..]).expect("JSON");
    let quickest = told["jobs"][0]["read"]["clat_ns"]["min"].as_u64().expect("a number");
    assert!(quickest >= 2_000_000, "a read took {quickest} ns");
    ok(fio(&home, "v", "kept", "0").arg("--verify_only"));
}

#[test]
fn what_cannot_be_is_refused_with_its_line() {
    let home = Home::new();
    let refused = |tier: &str| {
        std::fs::write(home.path("kura.toml"), tier).expect("a configuration");
        let said = fails(&mut home.kura(&["config", "check", "kura.toml"]));
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    for (tier, line, named) in [
        ("[tier]\npolicy = 'otf-ast'\nm = 140\n", ":3:", "0 to 99"),
        ("[tier]\npolicy = 'otf-ast'\nt = 0\n", ":3:", "interval_s (t)"),
        ("[tier]\npolicy = 'clever'\n", ":2:", "no such policy: clever"),
        ("[tier]\npolicy = 'otf-ast'\nsublun = '3M'\n", ":3:", "power of two"),
        ("[tier]\nspeed = 3\n", ":2:", "speed"),
        ("[tier]\nsingle_disk = 7\n", ":2:", "the path of the only fast disk"),
    ] {
        let said = refused(tier);
        assert!(said.contains(line) && said.contains(named), "{tier}: {said}");
    }
    // More fast bytes than slow ones.
    let disks = [("f0", "fast", "1G"), ("f1", "fast", "1G"), ("s0", "slow", "512M"), ("s1", "slow", "512M")];
    let disks = disks.map(|(path, class, size)| format!("{{ path = '{path}', class = '{class}', size = '{size}' }}"));
    let text = format!("pool.journal = '16M'\npool.controllers = 1\npool.disks = [{}]\n", disks.join(", "));
    std::fs::write(home.path("kura.toml"), text).expect("a configuration");
    let _server = home.serve_with(&CONFIG);
    let status = home.ok(&["tier", "status"]);
    assert!(status.contains("a fast tier is smaller than what lies under it"), "{status}");
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    let said = fails(&mut home.kura(&["tier", "set", "v", "--floor", "2G", "--ceiling", "1G"]));
    assert!(said.contains("above a ceiling"), "{said}");
    two_rules_at_a_time_are_both_kept(&home);
    let said = fails(&mut home.kura(&["tier", "why", "v", "--offset", "1G"]));
    assert!(said.contains("is beyond its end"), "{said}");
    let said = fails(&mut home.kura(&["tier", "pin", "nobody", "fast"]));
    assert!(said.contains("no such volume"), "{said}");
}

fn two_rules_at_a_time_are_both_kept(home: &Home) {
    for round in 1..=10 {
        home.ok(&["tier", "set", "v", "--floor", "0", "--ceiling", "0"]);
        let (floor, ceiling) = (format!("{round}M"), format!("{}M", 16 + round));
        let set =
            |option: &str, size: &str| home.kura(&["tier", "set", "v", option, size, "-q"]).spawn().expect("kura");
        let mut both = [set("--floor", &floor), set("--ceiling", &ceiling)];
        assert!(both.iter_mut().all(|one| one.wait().expect("kura").success()));
        let why = home.ok(&["tier", "why", "v"]);
        assert!(why.contains(&format!("floor {floor}")) && why.contains(&format!("ceiling {ceiling}")), "{why}");
    }
    // What a change does not name stays, and the answer has all of it.
    let (status, said) = rest(home, "PATCH", "volumes/v/tier", r#"{"floor_bytes": 4194304}"#).expect("an answer");
    let rules: Value = serde_json::from_str(&said).expect("rules");
    assert_eq!((status, &rules["floor_bytes"], &rules["ceiling_bytes"]), (200, &(4 << 20).into(), &(26 << 20).into()));
    let (status, said) = rest(home, "PATCH", "volumes/v/tier", r#"{"pin": "fast"}"#).expect("an answer");
    assert!(status == 400 && said.contains("a pinned volume has no floor"), "{said}");
    home.ok(&["tier", "pin", "v", "fast"]);
    let none = serde_json::json!({ "floor_bytes": 0, "ceiling_bytes": 0 });
    assert_eq!(json(home, &["tier", "pin", "v", "none"]), none);
    // So does one that takes back what was said.
    home.ok(&["tier", "pin", "v", "fast"]);
    let (_, said) = rest(home, "PATCH", "volumes/v/tier", r#"{"pin": null}"#).expect("an answer");
    assert_eq!(serde_json::from_str::<Value>(&said).expect("rules"), none);
}
