//! One load in every form that traces come in, and what is wrong in each form, as a user of the lab meets it.

use crate::harness::{Home, fails, ok, tool};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// A request each 2 ms, every third a read, over 64 MiB; all answered after half a millisecond.
#[derive(Clone, Copy)]
struct Request {
    us: u64,
    read: bool,
    offset: u64,
    len: u64,
}

const RESPONSE_US: u64 = 500;

fn load() -> Vec<Request> {
    let one = |at: u64| Request {
        us: at * 2000,
        read: at % 3 == 2,
        offset: at / 3 * 7919 % 16384 * 4096 + at % 3 / 2 * 512,
        len: 4096 * (1 + at % 4),
    };
    (0..400).map(one).collect()
}

fn lines(head: &str, line: impl Fn(&mut String, Request)) -> String {
    load().into_iter().fold(head.to_owned(), |mut text, request| {
        line(&mut text, request);
        text
    })
}

fn msr() -> String {
    lines("", |text, Request { us, read, offset, len }| {
        let op = if read { "Read" } else { "Write" };
        let (ticks, response) = (128_166_372_000_000_000 + us * 10, RESPONSE_US * 10);
        writeln!(text, "{ticks},host,0,{op},{offset},{len},{response}").expect("memory takes it");
    })
}

fn blkparse() -> String {
    lines("", |text, Request { us, read, offset, len }| {
        let op = if read { "R" } else { "WS" };
        for (event, us, who) in [("Q", us, "db"), ("C", us + RESPONSE_US, "0")] {
            let (s, us, sector, sectors) = (us / 1_000_000, us % 1_000_000, offset / 512, len / 512);
            writeln!(text, "  8,0    0        1 {s:5}.{us:06}000   100  {event} {op:>3} {sector} + {sectors} [{who}]")
                .expect("memory takes it");
        }
    })
}

/// What two processors recorded: one when requests came, the other when they were answered, and the reverse.
fn blktrace() -> [Vec<u8>; 2] {
    let mut files = [Vec::new(), Vec::new()];
    for (at, Request { us, read, offset, len }) in load().into_iter().enumerate() {
        for (file, us, what) in [(at % 2, us, 1_u32), (1 - at % 2, us + RESPONSE_US, 8)] {
            let category = if read { 1_u32 } else { 2 };
            let bytes = &mut files[file];
            bytes.extend(0x6561_7407_u32.to_le_bytes());
            bytes.extend(1_u32.to_le_bytes());
            bytes.extend((us * 1000).to_le_bytes());
            bytes.extend((offset / 512).to_le_bytes());
            for word in [len as u32, category << 16 | what, 100, 8 << 20, file as u32, 0] {
                bytes.extend(word.to_le_bytes());
            }
        }
    }
    files
}

fn iolog_3() -> String {
    lines("fio version 3 iolog\n0 /dev/sdb add\n0 /dev/sdb open\n", |text, Request { us, read, offset, len }| {
        let op = if read { "read" } else { "write" };
        writeln!(text, "{us} /dev/sdb {op} {offset} {len}").expect("memory takes it");
    })
}

fn iolog_2() -> String {
    lines("fio version 2 iolog\n/dev/sdb add\n/dev/sdb open\n", |text, Request { us, read, offset, len }| {
        let op = if read { "read" } else { "write" };
        if us > 0 {
            text.push_str("/dev/sdb wait 2000 0\n");
        }
        writeln!(text, "/dev/sdb {op} {offset} {len}").expect("memory takes it");
    })
}

/// A home with the load in every form.
fn home() -> Home {
    let home = Home::new();
    let write = |name: &str, bytes: &[u8]| fs::write(home.path(name), bytes).expect("a file");
    for name in ["t.csv", "gz.csv", "zst.csv"] {
        write(name, msr().as_bytes());
    }
    for name in ["t.txt", "zst.txt"] {
        write(name, blkparse().as_bytes());
    }
    write("two.log", iolog_2().as_bytes());
    write("three.log", iolog_3().as_bytes());
    let [one, other] = blktrace();
    // An idle processor leaves an empty file.
    write("disk.blktrace.0", b"");
    write("disk.blktrace.1", &one);
    write("disk.blktrace.2", &other);
    for (program, name) in [("gzip", "gz.csv"), ("gzip", "disk.blktrace.2"), ("zstd", "zst.csv"), ("zstd", "zst.txt")] {
        ok(tool(program).arg("-q").arg(home.path(name)));
    }
    home
}

const FORMS: [&str; 9] =
    ["t.csv", "gz.csv.gz", "zst.csv.zst", "t.txt", "zst.txt.zst", "disk", "disk.blktrace.2.gz", "two.log", "three.log"];

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

#[test]
fn one_load_in_every_form_is_one_load() {
    let home = home();
    let replayed = |name: &str| json(&home.ok(&["lab", "replay", name, "--json"]));
    let expected = replayed("t.csv");
    assert_eq!(
        (&expected["replay"]["load"]["requests"], &expected["replay"]["load"]["reads"]),
        (&400.into(), &133.into())
    );
    for name in FORMS {
        let found = replayed(name);
        assert_eq!(found["replay"]["load"], expected["replay"]["load"], "{name}");
        assert_eq!(found["replay"]["digest"], expected["replay"]["digest"], "{name}");
    }
    // So it is to the experiments, which find files for themselves.
    let traces = FORMS.map(|name| ["--trace", name]).concat();
    home.ok(&[&["lab", "run", "trace-anatomy"], &traces[..]].concat());
    let table = |number: usize| {
        fs::read_to_string(home.path(&format!("lab-report/trace-anatomy/trace-{number}-places.csv"))).expect("a table")
    };
    for number in 2..=FORMS.len() {
        assert_eq!(table(number), table(1), "{}", FORMS[number - 1]);
    }
}

/// The report of a trace says what a count by hand says.
#[test]
fn the_report_of_a_known_load_is_right() {
    let home = home();
    let said = json(&home.ok(&["lab", "replay", "t.csv", "--json"]))["trace"].clone();
    let load = load();
    let blocks: BTreeSet<u64> =
        load.iter().flat_map(|it| it.offset / 4096..(it.offset + it.len).div_ceil(4096)).collect();
    let mut regions = BTreeMap::new();
    for it in &load {
        *regions.entry(it.offset >> 20).or_insert(0_u64) += 1;
    }
    let end = load.iter().map(|it| it.offset + it.len).max().expect("requests");
    let mut busiest: Vec<u64> = regions.values().copied().collect();
    busiest.sort_unstable_by(|a, b| b.cmp(a));
    let of = end.div_ceil(1 << 20);
    let share = busiest.iter().take(of.div_ceil(10) as usize).sum::<u64>() as f64 / 400.0;

    assert_eq!((&said["requests"], &said["reads"], &said["writes"]), (&400.into(), &133.into(), &267.into()));
    assert_eq!(said["footprint_bytes"], blocks.len() as u64 * 4096);
    assert_eq!(said["address_span_bytes"], end);
    let fine = &said["concentration"][1];
    assert_eq!((&fine["regions"], &fine["touched"]), (&of.into(), &busiest.len().into()));
    let near = |value: &Value, expected: f64| {
        let value = value.as_f64().expect("a number");
        assert!((value - expected).abs() < 1e-9 * expected, "{value} and not {expected}");
    };
    near(&fine["busiest_10_percent_share"], share);
    near(&said["read_share"], 133.0 / 400.0);
    near(&said["rates"]["mean_per_s"], 400.0 / 0.798);
    near(&said["response_ns"]["mean"], 500_000.0);
}

#[test]
fn addresses_are_fitted_in_every_way() {
    let home = home();
    let fitted = |how: &[&str]| json(&home.ok(&[&["lab", "replay", "t.csv", "--json", "--fit"], how].concat()));
    let volume = |result: &Value| result["replay"]["volume"]["size_bytes"].as_u64().expect("a size");
    let whole = json(&home.ok(&["lab", "replay", "t.csv", "--json"]));
    for how in [&["wrap", "--size", "16M"][..], &["scale", "--size", "16M"], &["compact"]] {
        let result = fitted(how);
        assert_eq!(result["replay"]["load"], whole["replay"]["load"], "{how:?}");
        assert_ne!(result["replay"]["digest"], whole["replay"]["digest"], "{how:?}: other places are served");
        assert!(volume(&result) < volume(&whole), "{how:?}");
    }
    let complaint = fails(&mut home.kura(&["lab", "replay", "t.csv", "--fit", "compact", "--size", "1M"]));
    assert!(complaint.starts_with("kura: t.csv: the regions the trace touches take"), "{complaint}");
}

/// Without a size the volume is as large as what the disks hold, and no trace fills them in its midst, whatever the layout keeps
/// beside the data.
#[test]
fn addresses_are_fitted_to_what_the_disks_hold() {
    let home = Home::new();
    let disk = |class: &str| format!("{{ model = 'nvme', class = '{class}', size = '64M' }}");
    let disks = ["fast", "slow", "slow", "slow", "slow"].map(disk).join(", ");
    let text = format!("[pool]\nextent = '1M'\njournal = '16M'\ndisks = [{disks}]\n");
    fs::write(home.path("small.toml"), text).expect("a configuration");
    let load = "load:uniform,size=1G,rate=2000,requests=20000";
    for (layout, data_bytes) in [("mirror", 120 << 20), ("raid5", 150 << 20), ("hot-mirror", 135 << 20)] {
        for how in ["wrap", "scale"] {
            let args = ["lab", "replay", load, "--config", "small.toml", "--layout", layout, "--fit", how, "--json"];
            let replay = json(&home.ok(&[&args[..], &["--prefill", "all"]].concat()))["replay"].clone();
            assert_eq!((&replay["load"]["requests"], &replay["errors"]), (&20_000.into(), &serde_json::json!({})));
            let size_bytes = replay["volume"]["size_bytes"].as_u64().expect("a size");
            assert!(size_bytes >= data_bytes && size_bytes < 256 << 20, "{layout} {how}: {size_bytes}");
            assert_eq!(replay["prefill_bytes"], size_bytes, "{layout} {how}");
        }
    }
    // A volume that they do not hold is refused before anything is written.
    let args = ["lab", "replay", load, "--config", "small.toml", "--fit", "wrap", "--size", "512M", "--prefill", "all"];
    let complaint = fails(&mut home.kura(&args));
    assert!(complaint.contains("the disks have room for") && complaint.lines().count() == 1, "{complaint}");
}

/// A log that fio itself wrote of what it did to a file: as many requests as it says it made, as long as it took.
#[test]
fn a_log_that_fio_wrote_is_replayed() {
    let home = Home::new();
    let mut fio = tool("fio");
    fio.args(["--name=load", "--filename=file", "--ioengine=psync", "--rw=randrw", "--rwmixread=40", "--size=16M"]);
    fio.args(["--bsrange=4k-64k", "--io_size=8M", "--rate_iops=200,200", "--fsync=16", "--write_iolog=fio.log"]);
    ok(fio.args(["--output-format=json", "--output=fio.json"]).current_dir(home.path("")));
    let read = |name: &str| fs::read_to_string(home.path(name)).expect("what fio wrote");
    assert!(read("fio.log").starts_with("fio version 3 iolog\n"), "{}", read("fio.log"));
    let told = json(&read("fio.json"))["jobs"][0].clone();
    let replayed = json(&home.ok(&["lab", "replay", "fio.log", "--verify", "--json"]))["replay"].clone();
    let load = &replayed["load"];
    for (kind, ours, bytes) in [("read", "reads", "read_bytes"), ("write", "writes", "written_bytes")] {
        assert_eq!((&load[ours], &load[bytes]), (&told[kind]["total_ios"], &told[kind]["io_bytes"]), "{kind}");
    }
    assert!(load["flushes"].as_u64() > Some(0) && load["flushes"] == told["sync"]["total_ios"], "{load}");
    assert_eq!((&replayed["errors"], &replayed["verify"]["mismatches"]), (&serde_json::json!({}), &0.into()));
    let (ours_ns, fios_ms) = (load["span_ns"].as_u64().expect("a time"), told["job_runtime"].as_u64().expect("a time"));
    let ours_ms = ours_ns / 1_000_000;
    assert!(ours_ms > fios_ms / 2 && ours_ms <= fios_ms + 1000, "{ours_ms} ms, and {fios_ms} ms by fio's clock");
}

/// What is wrong, by the file's name: its bytes, and the place and the words of the complaint.
fn wrong() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let cut = |text: String| text.as_bytes()[..text.len() - 9].to_vec();
    let after = |text: String, line: &str| format!("{text}{line}\n").into_bytes();
    let [record, _] = blktrace();
    let mut old = record.clone();
    old[0] = 6;
    // Behind 400 records, one more, which is the first with a field changed: time, sector or device.
    let more = |at: usize, field: &[u8]| {
        let mut last = record[..48].to_vec();
        last[8..16].copy_from_slice(&900_000_000_u64.to_le_bytes());
        last[at..at + field.len()].copy_from_slice(field);
        [&record[..], &last].concat()
    };
    let late = "  8,0  0  1  0.000000000  100  Q  R 0 + 8 [db]";
    vec![
        ("cut.csv", cut(msr()), "cut.csv:400: the last line is cut"),
        ("cut.txt", cut(blkparse()), "cut.txt:800: the last line is cut"),
        ("cut.log", cut(iolog_3()), "cut.log:403: the last line is cut"),
        ("cut.blktrace.0", record[..record.len() - 9].to_vec(), "cut.blktrace.0: byte 19152: the last record is cut"),
        ("old.blktrace", old, "old.blktrace: byte 0: a record of version 6"),
        ("garbage.blktrace", [&record[..96], &[7; 96]].concat(), "garbage.blktrace: byte 96: no record"),
        // Events may be out of order by 10 ms; the last one of the others is of 798.5 ms.
        (
            "unsorted.blktrace",
            more(8, &787_000_000_u64.to_le_bytes()),
            "unsorted.blktrace: byte 19200: out of order: this is 0.011",
        ),
        (
            "far.blktrace",
            more(16, &(u64::MAX / 2).to_le_bytes()),
            "far.blktrace: byte 19200: sector 9223372036854775807 is beyond 8 EiB",
        ),
        (
            "second.blktrace",
            more(36, &(8_u32 << 20 | 1).to_le_bytes()),
            "second.blktrace: byte 19200: a request for a second device, 8,1",
        ),
        ("unsorted.csv", after(msr(), "128166371000000000,host,0,Read,0,512,0"), "unsorted.csv:401: out of order"),
        ("unsorted.txt", after(blkparse(), late), "unsorted.txt:801: out of order"),
        ("unsorted.log", after(iolog_3(), "1 /dev/sdb read 0 512"), "unsorted.log:404: out of order"),
        (
            "far.csv",
            after(msr(), "128166372990000000,host,0,Read,18446744073709551615,4096,0"),
            "far.csv:401: a read of 4096 bytes at 18446744073709551615",
        ),
        (
            "far.txt",
            after(blkparse(), "  8,0  0  1  9.000000000  100  Q  R 99999999999999999 + 8 [db]"),
            "far.txt:801: sector 99999999999999999 is beyond 8 EiB",
        ),
        (
            "far.log",
            after(iolog_3(), "9000000 /dev/sdb read 9223372036854775807 4096"),
            "far.log:404: a read of 4096 bytes at 9223372036854775807",
        ),
        (
            "second.txt",
            after(blkparse(), &late.replace("8,0", "8,1").replace("0.0", "9.0")),
            "second.txt:801: a request for a second",
        ),
        ("empty.csv", Vec::new(), "empty.csv: the trace is empty"),
        ("gap.csv", after(msr(), ""), "gap.csv:401: an empty line; remove it"),
        ("nothing.txt", b"CPU0 (t):\n".to_vec(), "nothing.txt: the form is not known"),
        ("nothing.log", b"fio version 3 iolog\n0 f add\n".to_vec(), "nothing.log: no request in this fio iolog"),
        ("words.txt", b"no trace at all\n".to_vec(), "words.txt: the form is not known"),
        ("wide.csv", b"\xff\xfe1\x002\x00,\x00".to_vec(), "wide.csv: this is text in UTF-16"),
        ("packed.csv", b"\xfd7zXZ\0 and so on".to_vec(), "packed.csv: this is xz; decompress it"),
    ]
}

/// The files below a folder that hold results.
fn results(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { results(&path) } else { vec![path.display().to_string()] }).collect()
}

#[test]
fn what_is_wrong_in_any_form_is_one_line_and_nothing_is_left() {
    let home = home();
    let mut wrong = wrong();
    for (name, told) in [("gz.csv.gz", "cut.csv.gz:"), ("zst.csv.zst", "cut.csv.zst:")] {
        let bytes = fs::read(home.path(name)).expect("a trace");
        let name = told.strip_suffix(':').expect("a colon");
        wrong.push((name, bytes[..bytes.len() - 3].to_vec(), told));
    }
    for (name, bytes, _) in &wrong {
        fs::write(home.path(name), bytes).expect("a file");
    }
    // Nobody writes to it, and nobody waits for that.
    ok(tool("mkfifo").arg(home.path("pipe.csv")));
    wrong.push(("pipe.csv", Vec::new(), "pipe.csv: this is no file: a trace is read more than once; save it first"));
    fs::write(home.path("out.json"), "precious").expect("a file");
    let files = || fs::read_dir(home.path(".")).expect("the home").count();
    for (name, _, told) in &wrong {
        let before = files();
        for args in [
            &["lab", "replay", name, "-o", "out.json"][..],
            &["lab", "replay", name, "--closed-loop", "4", "-o", "none.json"],
            &["lab", "replay", name, "--policy", "default"],
            &["lab", "run", "trace-anatomy", "--trace", name, "-o", "report"],
        ] {
            let output = home.kura(args).output().expect("kura");
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{args:?}: {complaint}");
            assert_eq!(complaint.trim_end().lines().count(), 1, "{args:?}: {complaint}");
            assert!(complaint.starts_with("kura: ") && complaint.contains(told), "{args:?}: {complaint}");
        }
        assert_eq!(results(&home.path("report")), [""; 0], "{name}");
        let _ = fs::remove_dir_all(home.path("report"));
        assert_eq!(
            (fs::read_to_string(home.path("out.json")).expect("a file").as_str(), files()),
            ("precious", before)
        );
    }
}

#[test]
fn a_result_takes_no_place_of_what_it_is_of_and_none_half() {
    let home = home();
    fs::write(home.path("kura.toml"), "[pool]\n").expect("a configuration");
    let run = |trace: &str, output: &str| {
        fails(&mut home.kura(&["lab", "replay", trace, "--config", "kura.toml", "-o", output]))
    };
    for (trace, output) in [("t.csv", "./t.csv"), ("disk", "disk.blktrace.1"), ("t.csv", "kura.toml")] {
        let before = fs::read(home.path(output)).expect("what is read");
        let complaint = run(trace, output);
        assert!(complaint.contains(&format!("{output}: is read by this command: name another")), "{complaint}");
        assert_eq!((complaint.lines().count(), fs::read(home.path(output)).expect("what is read")), (1, before));
    }
    // A disk that is full.
    fs::write(home.path("out.json"), "precious").expect("a file");
    let files = || fs::read_dir(home.path(".")).expect("the home").count();
    let before = files();
    let mut full = tool("sh");
    full.args(["-c", "ulimit -f 0; trap '' XFSZ; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_kura")]);
    let complaint = fails(full.args(["lab", "replay", "t.csv", "-q", "-o", "out.json"]).current_dir(home.path("")));
    assert!(complaint.contains("out.json: ") && complaint.lines().count() == 1, "{complaint}");
    assert_eq!((fs::read_to_string(home.path("out.json")).expect("a file").as_str(), files()), ("precious", before));
}

/// A dry run of a policy ends however long nothing happens, and refuses what no policy can tell apart.
#[test]
fn a_policy_is_not_asked_where_it_rests() {
    let home = home();
    // From 1601 to 2007, and then a place that is asked for again and again.
    let line = |ticks: u64, offset: u64| format!("{ticks},host,0,Read,{offset},4096,0\n");
    let busy: String = (0..3000).map(|at| line(128_166_372_000_000_000 + at * 1_000_000, at % 512 * 4096)).collect();
    fs::write(home.path("old.csv"), format!("{}{busy}", line(0, 900 << 20))).expect("a trace");
    for policy in ["default", "otf-ast"] {
        let said = json(
            &home.ok(&["lab", "replay", "old.csv", "--policy", policy, "--fast", "4G", "--size", "64G", "--json"]),
        );
        assert_eq!(said["requests"], 3001, "{policy}");
        let moves = said["moves"].as_array().expect("moves");
        let is_late = |it: &Value| it["at_s"].as_f64() > Some(1.28e10) && it["to"] == "fast";
        assert!(policy == "otf-ast" || moves.iter().any(is_late), "{policy}: {said}");
    }
    fs::write(home.path("far.csv"), line(1, 1 << 60)).expect("a trace");
    for (args, told) in [
        (
            &["far.csv", "--policy", "default"][..],
            "far.csv: request 1 reaches to byte 1152921504606851072, and a policy",
        ),
        (&["t.csv", "--policy", "default", "--size", "1M"], "t.csv: request "),
        (&["two.log", "--policy", "default", "--fast", "1K"], "two.log: --fast 1K: the policy's regions have 4M"),
    ] {
        let complaint = fails(&mut home.kura(&[&["lab", "replay"], args].concat()));
        assert!(complaint.contains(told) && complaint.trim_end().lines().count() == 1, "{args:?}: {complaint}");
    }
    assert!(
        home.ok(&["lab", "replay", "far.csv", "--policy", "default", "--fit", "compact", "--size", "1G"])
            .contains("of 1 requests")
    );
}

/// On a terminal there is a bar with the time left over everything that may take long.
#[test]
fn passes_over_a_trace_show_how_far_they_are() {
    let home = home();
    let shown = |args: &str| {
        let command = format!("stty cols 120; {} {args}", env!("CARGO_BIN_EXE_kura"));
        ok(tool("script").args(["-q", "-e", "-c", &command, "/dev/null"]).current_dir(home.path("")))
    };
    // A bar is drawn a few times a second: what comes behind a first pass takes longer than that.
    for (args, passes) in [
        ("lab replay t.csv --fit scale --size 16M", &["fit"][..]),
        ("lab replay load:zipf,size=1G,requests=100000 --model slow=nvme", &["survey", "replay"]),
        ("lab replay load:zipf,requests=1000000,rate=5000 --policy default", &["survey", "policy"]),
        ("lab run device-model --again", &["device-model"]),
    ] {
        let said = shown(args);
        for pass in passes {
            let is_drawn = ["\u{2588}", "\u{2591}"].iter().any(|piece| said.contains(&format!("{pass} {piece}")));
            assert!(is_drawn && said.contains(" left"), "{args}: no {pass} in\n{said}");
        }
        let quiet = shown(&format!("{args} --quiet"));
        assert!(!quiet.contains(" left"), "{quiet}");
    }
}
