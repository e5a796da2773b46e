//! `kura lab replay`: traces through a node of models, as a user runs it.

use crate::harness::{Home, fails};
use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

/// A trace in MSR Cambridge form: a request each 2 ms, every third a read of what was written, over 64 MiB.
fn trace(requests: u64) -> String {
    (0..requests).fold(String::new(), |mut text, at| {
        let kind = if at % 3 == 2 { "Read" } else { "Write" };
        let offset = (at / 3 * 7919) % 16384 * 4096 + at % 3 / 2 * 512;
        let ticks = 128_166_372_000_000_000 + at * 20_000;
        let _ = writeln!(text, "{ticks},host,0,{kind},{offset},{},0", 4096 * (1 + at % 4));
        text
    })
}

fn home() -> Home {
    let home = Home::new();
    fs::write(home.path("t.csv"), trace(600)).expect("a trace");
    home
}

/// What `kura lab replay` says of the trace with these arguments.
fn replayed(home: &Home, args: &[&str]) -> Value {
    let text = home.ok(&[&["lab", "replay", "t.csv", "--json"], args].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}:\n{text}"))
}

#[test]
fn a_trace_replays_on_the_default_node_twice_the_same() {
    let home = home();
    let text = home.ok(&["lab", "replay", "t.csv"]);
    for word in ["600 requests", "read-modify", "RESPONSE", "P99.9", "slow5", "JOURNAL"] {
        assert!(text.contains(word), "no {word} in:\n{text}");
    }
    assert_eq!(home.ok(&["lab", "replay", "t.csv"]), text);
    let first = home.ok(&["lab", "replay", "t.csv", "--json", "-o", "one.json"]);
    assert_eq!(home.ok(&["lab", "replay", "t.csv", "--json", "-o", "other.json"]), first);
    let saved = fs::read_to_string(home.path("one.json")).expect("the summary");
    assert_eq!(saved, first);
    assert_eq!(fs::read_to_string(home.path("other.json")).expect("the summary"), saved);

    let result: Value = serde_json::from_str(&first).expect("JSON");
    let replay = &result["replay"];
    assert_eq!(replay["load"]["reads"], 200);
    assert_eq!(replay["write"]["count"], 400);
    assert_eq!(replay["node"]["disks"].as_array().map(Vec::len), Some(8));
    assert_eq!(
        (&replay["node"]["disks"][0]["model"], &replay["node"]["disks"][7]["model"]),
        (&"nvme".into(), &"hdd-7200".into())
    );
    let elapsed_ms = replay["elapsed_ns"].as_u64().map(|ns| ns / 1_000_000);
    assert!(elapsed_ms >= Some(1198) && elapsed_ms < Some(2000), "the last arrives at 1198 ms: {elapsed_ms:?}");
    assert_eq!(result["trace"]["requests"], 600);
    assert!(!home.data().exists(), "no server, no data");
}

#[test]
fn the_flags_say_what_is_replayed() {
    let home = home();
    let whole = replayed(&home, &[]);
    let window = replayed(&home, &["--from", "200ms", "--for", "100ms"]);
    assert_eq!(window["replay"]["load"]["requests"], 50);
    let fast = replayed(&home, &["--accelerate", "4"]);
    assert_eq!(
        fast["replay"]["load"]["span_ns"].as_u64(),
        whole["replay"]["load"]["span_ns"].as_u64().map(|ns| ns / 4)
    );
    let closed = replayed(&home, &["--closed-loop", "16", "--layout", "none", "--model", "slow=sata-ssd"]);
    assert_eq!(closed["replay"]["in_flight_max"], 16);
    assert_eq!(closed["replay"]["volume"]["layout"], "none");
    let read_mean_ns = |result: &Value| result["replay"]["read"]["mean_ns"].as_u64().expect("a mean");
    assert!(read_mean_ns(&closed) < read_mean_ns(&whole) / 10, "a disk that turns takes longer");
    // The requests of the first 300 ms warm up, however fast they come.
    for args in [
        &["--warm", "300ms"][..],
        &["--warm", "300ms", "--accelerate", "4"],
        &["--warm", "300ms", "--closed-loop", "8"],
    ] {
        let warm = replayed(&home, args)["replay"].clone();
        assert_eq!((&warm["load"]["requests"], &warm["warm_requests"]), (&600.into(), &150.into()), "{args:?}");
        assert_eq!((&warm["read"]["count"], &warm["write"]["count"]), (&150.into(), &300.into()), "{args:?}");
    }
    let told = home.ok(&["lab", "replay", "t.csv", "--warm", "300ms", "--layout", "hot-mirror"]);
    assert!(told.contains("450 requests at its times") && told.contains("after 150 to warm up"), "{told}");
    assert!(told.contains("layout hot-mirror"), "{told}");
    let unread = replayed(&home, &["--prefill", "none"]);
    assert_eq!(unread["replay"]["prefill_bytes"], 0);
    let fitted = replayed(&home, &["--fit", "scale", "--size", "16M"]);
    assert_eq!(fitted["replay"]["volume"]["size_bytes"], 16 << 20);
    let verified = replayed(&home, &["--verify"]);
    assert_eq!(verified["replay"]["verify"]["mismatches"], 0);
    assert!(verified["replay"]["verify"]["checked_bytes"].as_u64() > Some(4 << 20));
    assert_eq!(verified["replay"]["digest"], whole["replay"]["digest"], "to check takes no virtual time");
}

/// Shares of the capacity are of the volume's size where it is known: as asked for, or a load's own.
#[test]
fn shares_of_the_capacity_are_of_the_volume() {
    let home = home();
    let trace = |args: &[&str]| replayed(&home, args)["trace"].clone();
    let as_found = trace(&[]);
    assert_eq!(as_found["capacity_bytes"], as_found["address_span_bytes"]);
    let sized = trace(&["--size", "1G"]);
    assert_eq!(sized["capacity_bytes"], 1_u64 << 30);
    assert_eq!(
        (&sized["address_span_bytes"], &sized["concentration"][1]["regions"]),
        (&as_found["address_span_bytes"], &1024.into())
    );
    // The report is of the trace as it came, and a smaller volume that it is fitted to is not the recorded one.
    assert_eq!(trace(&["--fit", "scale", "--size", "1G"]), as_found);
    let text = home.ok(&["lab", "replay", "load:uniform,size=1G,requests=256", "--prefill", "none"]);
    assert!(text.contains("1 MiB in blocks of 4 KiB, 0.1 % of the capacity"), "{text}");
    assert!(text.contains("of 1,024 regions touched"), "{text}");
}

/// What a layout with parity does with writes is told, and it is all of them.
#[test]
fn what_the_array_writes_is_told() {
    let home = home();
    // More than the write buffer keeps.
    let load = "load:uniform,size=64M,rate=4000,requests=20000";
    let args = ["lab", "replay", load, "--layout", "hot-mirror", "--model", "slow=sata-ssd", "--prefill", "none"];
    let replay: Value = serde_json::from_str(&home.ok(&[&args[..], &["--json"]].concat())).expect("JSON");
    let blocks = |of: &str| {
        let controllers = replay["replay"]["controllers"].as_array().expect("controllers");
        controllers.iter().map(|one| one[of].as_u64().expect("a count")).sum::<u64>()
    };
    let buffered = blocks("dirty_bytes") / 4096;
    let arrived = blocks("hot_blocks") + blocks("cold_blocks");
    assert!(arrived > 0 && arrived + buffered <= blocks("written_bytes") / 4096, "{replay}");
    assert!(blocks("cooled_blocks") <= blocks("hot_blocks"), "{replay}");
    let told = home.ok(&args);
    assert!(told.contains("went to the hot area"), "{told}");
}

/// A result that was saved says what made it: its command gives the same bytes again.
#[test]
fn a_result_says_what_made_it() {
    let home = home();
    fs::rename(home.path("t.csv"), home.path("a trace.csv")).expect("another name");
    let args =
        ["a trace.csv", "--from", "200ms", "--for", "500ms", "--accelerate", "2", "--fit", "scale", "--size", "16M"];
    home.ok(&[&["lab", "replay", "-o", "one.json", "--model", "slow=sata-ssd", "--quiet"], &args[..]].concat());
    let one = fs::read_to_string(home.path("one.json")).expect("a result");
    let result: Value = serde_json::from_str(&one).expect("JSON");
    let made_by = &result["made_by"];
    let commit = home.ok(&["lab", "run", "replicate-contention", "--json"]);
    let commit: Value = serde_json::from_str(&commit).expect("JSON");
    assert_eq!(made_by["commit"], commit["commit"]);
    assert_eq!(made_by["window"], serde_json::json!({ "from_ns": 200_000_000, "for_ns": 500_000_000 }));
    assert_eq!((&made_by["acceleration"], &made_by["fit"]), (&2.0.into(), &"scale".into()));
    assert_eq!(made_by["source"]["trace"]["name"], "a trace.csv");
    assert_eq!(made_by["form"], "MSR Cambridge CSV");

    let line = made_by["command"].as_str().expect("a command").strip_prefix("kura ").expect("kura");
    let again = format!("exec {} {line} -o again.json --quiet", env!("CARGO_BIN_EXE_kura"));
    crate::harness::ok(crate::harness::tool("sh").args(["-c", &again]).current_dir(home.path("")));
    assert_eq!(fs::read_to_string(home.path("again.json")).expect("a result"), one, "{line}");
    // Another trace of the same name is told apart.
    let hash = || replayed_as(&home, "a trace.csv")["made_by"]["source"]["trace"]["xxh3"].clone();
    let before = hash();
    fs::write(home.path("a trace.csv"), trace(601)).expect("another trace");
    assert_ne!(hash(), before);
}

/// A trace that goes away while it is replayed takes no result with it.
#[test]
fn a_trace_may_go_while_it_is_replayed() {
    let home = Home::new();
    fs::write(home.path("t.csv"), trace(60_000)).expect("a trace");
    let args = ["lab", "replay", "t.csv", "--for", "60s", "--model", "slow=nvme", "--json"];
    let expected = home.ok(&args);
    let mut kura = home.kura(&args).stdout(Stdio::piped()).spawn().expect("kura");
    // It is open when a thread reads it ahead. (The process is a child of what ends it when it takes too long.)
    let folder = home.path("").canonicalize().expect("a home");
    let is_reading = || {
        let processes = fs::read_dir("/proc").expect("processes").flatten();
        let here = processes.filter(|it| fs::read_link(it.path().join("cwd")).is_ok_and(|cwd| cwd == folder));
        let threads = here.filter_map(|it| fs::read_dir(it.path().join("task")).ok()).flatten().flatten();
        threads.map(|it| fs::read_to_string(it.path().join("comm"))).any(|name| name.is_ok_and(|it| it == "requests\n"))
    };
    while !is_reading() && kura.try_wait().expect("kura").is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    fs::remove_file(home.path("t.csv")).expect("the trace");
    let output = kura.wait_with_output().expect("kura");
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout) == expected);
}

fn replayed_as(home: &Home, trace: &str) -> Value {
    serde_json::from_str(&home.ok(&["lab", "replay", trace, "--json"])).expect("JSON")
}

#[test]
fn the_node_is_that_of_a_configuration() {
    let home = home();
    let disks = "{ model = 'nvme', class = 'fast', size = '256M' }, { path = '/nowhere/disk', class = 'slow', size = '1G' }, \
                 { model = { constant = { service_ns = 5_000_000, channels = 1 } }, class = 'slow', size = '1G' }";
    fs::write(home.path("kura.toml"), format!("[pool]\ncontrollers = 2\ndisks = [{disks}]\n"))
        .expect("a configuration");
    let result = replayed(&home, &["--config", "kura.toml"]);
    let node = &result["replay"]["node"];
    assert_eq!((&node["controllers"], &node["disks"][1]["model"]), (&2.into(), &"hdd-7200".into()));
    assert_eq!(node["disks"][2]["model"]["constant"]["service_ns"], 5_000_000);
    let refused = fails(&mut home.kura(&["serve", "--config", "kura.toml"]));
    assert!(refused.contains("kura.toml:3:") && refused.contains("kura lab replay"), "{refused}");
}

/// Every key that a server reads for its pool and tiers says something of the node, too.
#[test]
fn every_key_of_the_pool_and_its_tiers_counts() {
    let home = home();
    let text = "[pool]\nextent = '2M'\njournal = '32M'\nwrite_buffer = '8M'\nrebuild_rate = '1M'\nrebuild_width = 7\n\
                scatter = false\nraid_width = 4\nsaving = 'copy'\nwhen_full = 'drop-oldest'\nsharing = 'message'\ndisk_timeout_s = 11\n\
                disk_queue = 3\n[pool.hot]\ncold_age = 9\n[tier]\npolicy = 'otf-ast'\nregion = '8M'\ni = 5.0\n";
    fs::write(home.path("all.toml"), text).expect("a configuration");
    let node = replayed(&home, &["--config", "all.toml"])["replay"]["node"].clone();
    let expected: [(&str, Value); 15] = [
        ("extent_bytes", (2 << 20).into()),
        ("journal_bytes", (32 << 20).into()),
        ("write_buffer_bytes", (8 << 20).into()),
        ("rebuild_bytes_per_s", (1 << 20).into()),
        ("rebuild_width", 7.into()),
        ("scatter", false.into()),
        ("raid_width", 4.into()),
        ("saving", "copy".into()),
        ("when_full", "drop-oldest".into()),
        ("sharing", "message".into()),
        ("disk_timeout_s", 11.into()),
        ("disk_queue", 3.into()),
        ("hot/cold_age", 9.into()),
        ("tier/settings/policy", "otf-ast".into()),
        ("tier/settings/region_bytes", (8 << 20).into()),
    ];
    for (key, value) in expected {
        assert_eq!(node.pointer(&format!("/{key}")), Some(&value), "{key} in {node:#}");
    }
    // A pool that fills up is told as a server would.
    fs::write(home.path("warn.toml"), "[pool]\nwarn_at_percent = [10, 90]\n").expect("a configuration");
    let full = ["lab", "replay", "load:uniform,size=2G,requests=9", "--prefill", "all", "--config", "warn.toml"];
    assert!(home.ok(&full).contains("are used, 10% is passed"), "{}", home.ok(&full));
}

/// What a configuration says of its tiers and its disks' patience happens.
#[test]
fn tiers_and_patience_are_those_of_the_configuration() {
    let home = Home::new();
    // A region that is read ten times a second for five minutes, and two days later a read of it.
    let text = (0..3001_u64).fold(String::new(), |mut text, at| {
        let ticks = 128_166_372_000_000_000 + at * 1_000_000 + at / 3000 * 2 * 864_000_000_000;
        let _ = writeln!(text, "{ticks},host,0,Read,{},4096,0", (40 << 20) + at % 512 * 4096);
        text
    });
    fs::write(home.path("t.csv"), text).expect("a trace");
    let tiered = replayed(&home, &[])["replay"].clone();
    assert!(tiered["tier"]["fast_reads"].as_u64() > Some(2500), "{:#}", tiered["tier"]);
    assert!(tiered["disks"][0]["reads"].as_u64() > Some(1000), "fast0 serves: {:#}", tiered["disks"]);
    let told = home.ok(&["lab", "replay", "t.csv"]);
    assert!(told.contains("policy worth") && told.contains("of 3001 ("), "{told}");

    fs::write(home.path("off.toml"), "[tier]\npolicy = 'off'\n").expect("a configuration");
    let off = replayed(&home, &["--config", "off.toml"])["replay"].clone();
    assert_eq!((&off["tier"], &off["disks"][0]["reads"]), (&Value::Null, &0.into()));
    assert!(off["read"]["mean_ns"].as_u64() > tiered["read"]["mean_ns"].as_u64().map(|mean| mean * 2));

    // A disk that leaves a request without an answer for four times as long as the configuration says is one that fails.
    let slow = "{ model = { constant = { service_ns = 2_000_000_000, channels = 1 } }, class = 'slow', size = '1G' }";
    let patient = |seconds: u64| {
        let text = format!(
            "[pool]\ndisk_timeout_s = {seconds}\ndisks = [{{ model = 'nvme', class = 'fast', size = '1G' }}, {slow}]\n"
        );
        fs::write(home.path("slow.toml"), text).expect("a configuration");
        let args = ["lab", "replay", "t.csv", "--for", "1s", "--layout", "none", "--config", "slow.toml", "--json"];
        let output = home.kura(&args).output().expect("kura");
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["replay"]["errors"].clone()
    };
    assert_eq!(patient(30), serde_json::json!({}));
    assert_ne!(patient(3), serde_json::json!({}));
}

/// What no node can be made of is one line, with its place.
#[test]
fn a_configuration_that_makes_no_node_is_told_in_one_line() {
    let home = home();
    for (text, told) in [
        ("[tier]\npolicy = 'magic'\n", "no such policy: magic"),
        ("[tier]\nhalf_life_s = 0\n", "half_life_s = 0"),
        ("[tier]\nsingle_disk = '/nowhere'\n", "tier.single_disk: /nowhere is not a disk of the pool"),
        ("[pool]\nsharing = 'fairly'\n", "no such value: fairly"),
        ("[pool]\nrebuild_speed = 1\n", "no such key: rebuild_speed"),
        ("[tier]\nregion = '1G'\nhalf = 1\n", "unknown field"),
    ] {
        fs::write(home.path("wrong.toml"), text).expect("a configuration");
        let complaint = fails(&mut home.kura(&["lab", "replay", "t.csv", "--config", "wrong.toml", "-o", "out.json"]));
        assert!(complaint.contains(told) && complaint.trim_end().lines().count() == 1, "{text}: {complaint}");
        assert!(!home.path("out.json").exists());
    }
}

#[test]
fn a_generated_load_stands_for_a_trace() {
    let home = Home::new();
    let load = "load:zipf,size=1G,rate=500,seconds=5,seed=3";
    let text = home.ok(&["lab", "replay", load, "--model", "slow=nvme", "--json"]);
    assert_eq!(home.ok(&["lab", "replay", load, "--model", "slow=nvme", "--json"]), text);
    let result: Value = serde_json::from_str(&text).expect("JSON");
    let digest = |seed: &str| {
        let text = home.ok(&["lab", "replay", "load:uniform,seconds=1", "--json", "--seed", seed]);
        serde_json::from_str::<Value>(&text).expect("JSON")["replay"]["digest"].clone()
    };
    assert_ne!(digest("1"), digest("2"), "the seed is that of a load that names none");
    assert!((2000..3000).contains(&result["replay"]["load"]["requests"].as_u64().expect("a number")), "{text}");
}

#[test]
fn bad_input_is_one_line_and_nothing_is_left() {
    let home = home();
    let line = |at: u64, offset: u64| format!("{},h,0,Read,{offset},4096,0\n", 1_000_000 + at);
    let unsorted: String = (0..3000).map(|at| line(90_000 - at * 10, 0)).collect();
    let files = [
        ("empty.csv", String::new()),
        ("words.txt", "no trace at all\n".to_owned()),
        ("cut.csv", format!("{}1000002,h,0,Read", line(1, 0))),
        ("unsorted.csv", unsorted),
        ("huge.csv", line(1, u64::MAX - 8191)),
        ("wide.csv", line(1, 1 << 50)),
    ];
    for (name, text) in files {
        fs::write(home.path(name), text).expect("a file");
    }
    let cases: [(&[&str], &[&str]); 14] = [
        (&["empty.csv"], &["empty.csv"]),
        (&["words.txt"], &["words.txt"]),
        (&["cut.csv"], &["cut.csv:2"]),
        (&["unsorted.csv"], &["unsorted.csv:"]),
        (&["huge.csv"], &["huge.csv"]),
        (&["wide.csv"], &["wide.csv: request 1 reaches", "compact"]),
        (&["nowhere.csv"], &["nowhere.csv"]),
        (&["load:nothing"], &["kura: load:nothing: no such load"]),
        (&["load:zipf,seconds=0"], &["never ends"]),
        (&["t.csv", "--from", "1h"], &["t.csv", "window"]),
        (&["t.csv", "--size", "1M"], &["t.csv: request", "larger volume"]),
        (&["t.csv", "--accelerate", "1e-300"], &["t.csv: request 2", "292 years"]),
        (&["t.csv", "--warm", "1h"], &["1.198 s into the trace, before it is warm at 3600.000 s"]),
        (&["t.csv", "--config", "nowhere.toml"], &["nowhere.toml"]),
    ];
    for (args, words) in cases {
        let complaint = fails(&mut home.kura(&[&["lab", "replay", "-o", "out.json"], args].concat()));
        assert_eq!(complaint.lines().count(), 1, "{args:?}: {complaint}");
        assert!(words.iter().all(|word| complaint.contains(word)), "{args:?}: {complaint}");
        assert!(!complaint.contains("panicked"), "{args:?}: {complaint}");
    }
    let left = fs::read_dir(home.path(".")).expect("the folder").filter_map(Result::ok);
    let left: Vec<_> =
        left.map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().contains("out")).collect();
    assert!(left.is_empty(), "half-written: {left:?}");
    for (args, told) in [
        (&["--fit", "squeeze"][..], "no way to fit"),
        (&["--accelerate", "0"], "a number above 0"),
        (&["--from", "600years"], "a trace lasts 584 years at most"),
        (&["--for", "18446744074s"], "a trace lasts 584 years at most"),
        (&["--policy", "magic"], "there are worth, otf-ast, static; default is worth"),
        (&["--policy", "worth", "--layout", "raid5"], "--layout"),
        (&["--policy", "worth", "--prefill", "all"], "--prefill"),
        (&["--policy", "worth", "--warm", "1s"], "--warm"),
        (&["--policy", "worth", "--seed", "2"], "nothing is random but a generated load"),
    ] {
        let output = home.kura(&[&["lab", "replay", "t.csv"], args].concat()).output().expect("kura");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && complaint.contains(told), "{args:?}: {complaint}");
    }
    for (path, why) in [("no/such/folder/out.json", "No such file"), ("/dev/null", "is not a file")] {
        let complaint = fails(&mut home.kura(&["lab", "replay", "t.csv", "-o", path]));
        assert!(complaint.contains(&format!("{path}: {why}")), "{complaint}");
    }
}

/// A policy decides over a trace without a node: what it would move, why, and what the fast tier would serve.
#[test]
fn a_tiering_policy_tells_what_it_would_move() {
    let home = Home::new();
    // A region of 4 MiB that is read ten times a second, another that is read once.
    let text = (0..6000_u64).fold(String::new(), |mut text, at| {
        let offset = if at == 3000 { 900 << 20 } else { (40 << 20) + at % 512 * 4096 };
        let _ = writeln!(text, "{},host,0,Read,{offset},4096,0", 128_166_372_000_000_000 + at * 1_000_000);
        text
    });
    fs::write(home.path("hot.csv"), text).expect("a trace");
    let told = |args: &[&str]| -> Value {
        let text = home.ok(&[&["lab", "replay", "hot.csv", "--json"], args].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}:\n{text}"))
    };
    let ours = told(&["--policy", "default", "--fast", "16M"]);
    assert_eq!(ours["requests"], 6000);
    assert!(ours["fast_share"].as_f64() > Some(0.98), "{ours}");
    let first = &ours["moves"][0];
    assert_eq!(
        (&first["to"], &first["regions"]["start"], &first["reason"]["because"]),
        (&"fast".into(), &10.into(), &"worth".into())
    );
    // Its parameters are those of the configuration that names it.
    fs::write(home.path("k.toml"), "[tier]\npolicy = \"otf-ast\"\nregion = \"8M\"\ni = 5.0\n")
        .expect("a configuration");
    let papers = told(&["--policy", "otf-ast", "--fast", "16M", "--config", "k.toml"]);
    assert_eq!((&papers["settings"]["region_bytes"], &papers["moves"][0]["at_s"]), (&(8 << 20).into(), &180.0.into()));
    assert_eq!(papers["moves"][0]["reason"]["because"], "streak");
    let text = home.ok(&["lab", "replay", "hot.csv", "--policy", "otf-ast", "--fast", "16M", "--config", "k.toml"]);
    // No pool moves less than an extent, whoever names the policy.
    fs::write(home.path("e.toml"), "[pool]\nextent = \"64M\"\n").expect("a configuration");
    let coarse = told(&["--policy", "worth", "--fast", "128M", "--config", "e.toml"]);
    assert_eq!(coarse["settings"]["region_bytes"], 64 << 20, "{coarse}");
    assert!(text.contains("a candidate 3 intervals in a row") && text.contains("% of 6000 requests"), "{text}");
    // It says what made it, in a file too, and the command of that makes it again.
    let made = home.ok(&["lab", "replay", "hot.csv", "--policy", "worth", "--fast", "16M", "-o", "one.json", "--json"]);
    assert_eq!(fs::read_to_string(home.path("one.json")).expect("a result"), made);
    let made: Value = serde_json::from_str(&made).expect("JSON");
    assert_eq!((&made["moves"], &made["made_by"]["form"]), (&ours["moves"], &"MSR Cambridge CSV".into()));
    let line = made["made_by"]["command"].as_str().expect("a command").strip_prefix("kura ").expect("kura");
    let again: Vec<&str> = line.split(' ').chain(["-o", "two.json", "--quiet"]).collect();
    home.ok(&again);
    let read = |name: &str| fs::read_to_string(home.path(name)).expect("a result");
    assert_eq!(read("two.json"), read("one.json"));
    // Where nothing moves it is told why.
    for (policy, why) in [("otf-ast", "below 50 requests/s"), ("static", "until it was trained for 6000 s")] {
        let text = home.ok(&["lab", "replay", "hot.csv", "--policy", policy, "--size", "64G"]);
        assert!(text.starts_with("nothing would move: ") && text.contains(why), "{text}");
    }
    // The disks of a configuration are the fast tier: of two, each has a copy.
    let disk = |class: &str, size: &str| format!("{{ model = 'nvme', class = '{class}', size = '{size}' }}");
    let disks = |fast: &[&str]| {
        let fast = fast.iter().map(|size| disk("fast", size));
        let disks: Vec<_> = fast.chain([disk("slow", "8G"), disk("slow", "8G")]).collect();
        fs::write(home.path("d.toml"), format!("[pool]\njournal = '64M'\ndisks = [{}]\n", disks.join(", ")))
            .expect("a configuration");
    };
    disks(&["512M", "512M"]);
    let fast_bytes = told(&["--policy", "worth", "--config", "d.toml"])["fast_bytes"].as_u64().expect("a size");
    assert!((400 << 20..450 << 20).contains(&fast_bytes), "{fast_bytes}");
    disks(&["512M"]);
    for (args, wrong) in [
        (
            &["--policy", "worth", "--config", "d.toml"][..],
            "nothing would go up on this node: disk 0 is the only fast one",
        ),
        (&["--policy", "worth", "--fast", "1K"], "--fast 1K: the policy's regions have 4M"),
        (&["--policy", "worth", "--fast", "1T"], "--fast 1T: the volume has"),
    ] {
        let complaint = fails(&mut home.kura(&[&["lab", "replay", "hot.csv"], args].concat()));
        assert!(complaint.contains(wrong), "{complaint}");
    }
}
