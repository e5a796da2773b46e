//! What clients do to a volume, recorded and exported as a trace.

use crate::clients::nbdsh;
use crate::harness::{Home, eventually, fails, ok, tool};
use crate::nbd::{self, Client};
use kura_trace::{Op, Request};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, SystemTime};

const KIB: u32 = 1024;

/// The requests of a trace, as kura's own readers understand it.
fn read(path: &Path) -> Vec<Request> {
    let reader = kura_trace::open(path).unwrap_or_else(|error| panic!("{error}"));
    reader.map(|request| request.unwrap_or_else(|error| panic!("{error}"))).collect()
}

/// What each request says but its times.
fn what(requests: &[Request]) -> Vec<(Op, u64, u32)> {
    requests.iter().map(|request| (request.op, request.offset_bytes, request.len_bytes)).collect()
}

/// Exports the recording of `demo` to a file, and returns its requests and what was said of it.
fn export(home: &Home, format: &str) -> (Vec<Request>, Value) {
    let (file, name) = (home.path("trace"), home.path("trace").display().to_string());
    let said = home.ok(&["trace", "export", "demo", "--format", format, "-o", &name, "--json"]);
    (read(&file), serde_json::from_str(&said).expect("JSON"))
}

fn list(home: &Home) -> Value {
    serde_json::from_str(&home.ok(&["trace", "list", "--json"])).expect("JSON")
}

const CLIENT: &str = r#"
import nbd
h.connect_uri(URI)
h.pwrite(b"x" * 4096, 8192)
h.pread(12288, 4096)
h.zero(65536, 2**20)
h.zero(65536, 2**20, nbd.CMD_FLAG_NO_HOLE)
h.trim(32768, 2**20)
h.flush()
h.pwrite(b"y" * 512, 512, nbd.CMD_FLAG_FUA)
h.pread(1024, 2**30 - 1024)
h.shutdown()
"#;

#[test]
fn a_trace_is_what_the_clients_did_in_order() {
    let home = Home::new();
    let _server = home.serve();
    let mut early = Client::connect(&home.socket(), "demo").expect("a client");
    early.call(nbd::WRITE, 0, 0, 512, &[1; 512]).expect("a write");

    let before = SystemTime::now();
    let said = home.ok(&["trace", "record", "demo"]);
    assert!(said.contains("memory") && said.lines().count() == 1, "{said}");
    early.call(nbd::READ, 0, 1024, 512, &[]).expect("a read");
    nbdsh(&home.uri("demo"), CLIENT);
    let expected = [
        (Op::Read, 1024, 512),
        (Op::Write, 8192, 4 * KIB),
        (Op::Read, 4096, 12 * KIB),
        (Op::Write, 1 << 20, 64 * KIB),
        (Op::Write, 1 << 20, 64 * KIB),
        (Op::Discard, 1 << 20, 32 * KIB),
        (Op::Flush, 0, 0),
        (Op::Write, 512, 512),
        (Op::Read, (1 << 30) - 1024, KIB),
    ];

    // It goes on while it is exported.
    let (requests, said) = export(&home, "blkparse");
    assert_eq!(what(&requests), expected);
    assert_eq!((&said["requests"], &said["overwritten"], &said["left_out"]), (&9.into(), &0.into(), &0.into()));
    assert!(requests.iter().all(|request| request.response_ns > 0), "{requests:#?}");
    assert!(requests.is_sorted_by_key(|request| request.at_ns));
    assert_eq!(list(&home)[0]["state"], "recording");
    early.call(nbd::FLUSH, 0, 0, 0, &[]).expect("a flush");
    home.ok(&["trace", "stop", "demo"]);
    early.call(nbd::READ, 0, 0, 512, &[]).expect("a read");
    drop(early);

    let (all, _) = export(&home, "blkparse");
    assert_eq!((&all[..9], all.len(), all[9].op), (&requests[..], 10, Op::Flush));
    let (few, said) = export(&home, "msr");
    let transfers: Vec<_> = expected.into_iter().filter(|(op, ..)| matches!(op, Op::Read | Op::Write)).collect();
    assert_eq!((what(&few), &said["left_out"]), (transfers, &3.into()));

    // MSR times are of day: ticks of 100 ns since 1601, here of the first request.
    let line = home.ok(&["trace", "export", "demo", "--format", "msr"]).lines().next().map(str::to_owned);
    let fields: Vec<_> = line.as_deref().unwrap_or_default().split(',').collect();
    assert_eq!(fields[1..6], ["demo", "0", "Read", "1024", "512"]);
    let since_1970 = Duration::from_nanos((fields[0].parse::<u64>().expect("ticks") - 116_444_736_000_000_000) * 100);
    let at = SystemTime::UNIX_EPOCH + since_1970;
    assert!(before - Duration::from_millis(1) < at && at < SystemTime::now(), "{at:?}");

    home.ok(&["trace", "delete", "demo"]);
    assert_eq!(list(&home), serde_json::json!([]));
}

#[test]
fn a_small_memory_keeps_the_newest_requests() {
    let home = Home::new();
    let _server = home.serve();
    home.ok(&["trace", "record", "demo", "--memory", "64K"]);
    let mut client = Client::connect(&home.socket(), "demo").expect("a client");
    let (sent, kept) = (3000, 2048);
    for at in 0..sent {
        client.call(nbd::READ, 0, at * 512, 512, &[]).expect("a read");
    }
    let (requests, said) = export(&home, "msr");
    let offsets: Vec<_> = requests.iter().map(|request| request.offset_bytes).collect();
    assert_eq!(offsets, (sent - kept..sent).map(|at| at * 512).collect::<Vec<_>>());
    assert_eq!((&said["requests"], &said["overwritten"]), (&kept.into(), &(sent - kept).into()));
    let recording = &list(&home)[0];
    assert_eq!((&recording["requests"], &recording["overwritten"]), (&sent.into(), &(sent - kept).into()));
    let told = home.kura(&["trace", "export", "demo"]).output().expect("an export");
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.lines().count() == 1 && told.contains("the oldest 952 requests"), "{told}");

    // A terminal is told how far an export is.
    let command = format!("stty cols 120; {} trace export demo -o out.txt", env!("CARGO_BIN_EXE_kura"));
    let shown = ok(tool("script").args(["-q", "-e", "-c", &command, "/dev/null"]).current_dir(home.path("")));
    assert!(shown.contains(" of 2048 requests, ") && shown.contains(" left"), "{shown}");

    // A reader that has seen enough is no failure.
    let script = "set -o pipefail; \"$0\" trace export demo --quiet | head -n 1";
    let seen = ok(tool("bash").args(["-c", script, env!("CARGO_BIN_EXE_kura")]).current_dir(home.path("")));
    assert!(seen.lines().count() == 1 && seen.contains("  Q "), "{seen}");
}

#[test]
fn every_request_of_a_load_is_there_and_an_export_does_not_wait_for_its_end() {
    let home = Home::new();
    let _server = home.serve();
    home.ok(&["trace", "record", "demo"]);
    let result = home.path("fio.json");
    let mut fio = tool("fio");
    fio.args([
        "--name=load",
        "--ioengine=nbd",
        "--rw=randrw",
        "--rwmixread=40",
        "--bs=4k",
        "--iodepth=16",
        "--size=1G",
    ]);
    // Some forty seconds, in which it is looked at three times. To keep to a rate, fio would not sleep between requests but look
    // at the clock all the time.
    fio.args(["--io_size=120M", "--runtime=300", "--thinktime=20000", "--thinktime_blocks=16"]);
    fio.args(["--output-format=json", "--allow_file_create=0"]);
    fio.arg(format!("--uri={}", home.uri("demo"))).arg(format!("--output={}", result.display()));
    let mut load = fio.spawn().expect("fio");
    eventually(Duration::from_mins(2), "a load that is recorded", || list(&home)[0]["requests"].as_u64() > Some(1000));
    let (early, _) = export(&home, "blkparse");
    let seen = Some(early.len() as u64);
    eventually(Duration::from_mins(2), "more of the load", || list(&home)[0]["requests"].as_u64() > seen);
    let (next, _) = export(&home, "blkparse");
    assert!(load.try_wait().expect("fio").is_none(), "the load was over before it was looked at");
    assert!(early.len() >= 1000 && next.len() > early.len());
    // What was in flight then has its response time by now.
    assert_eq!(what(&early), what(&next[..early.len()]));
    assert!(load.wait().expect("fio").success());

    let text = std::fs::read_to_string(&result).expect("fio's result");
    let told: Value = serde_json::from_str(&text[text.find('{').expect("JSON")..]).expect("fio's result");
    let (requests, _) = export(&home, "blkparse");
    for (op, side) in [(Op::Read, "read"), (Op::Write, "write")] {
        let recorded = requests.iter().filter(|request| request.op == op).count() as u64;
        assert_eq!(told["jobs"][0][side]["total_ios"].as_u64(), Some(recorded), "{side}");
    }
    assert!(requests.iter().filter(|request| request.op != Op::Flush).all(|request| request.len_bytes == 4 * KIB));
    assert!(requests.iter().all(|request| request.response_ns > 0), "all are answered");
}

#[test]
fn what_makes_no_sense_is_refused_in_a_line_and_nothing_is_half_written() {
    let home = Home::new();
    let _server = home.serve();
    let refused = |args: &[&str], why: &str| {
        let said = fails(&mut home.kura(args));
        assert!(said.lines().count() == 1 && said.contains(why), "{args:?}: {said}");
    };
    let file = home.path("out.csv").display().to_string();
    for verb in ["stop", "export", "delete"] {
        refused(&["trace", verb, "demo"], "nothing is recorded");
    }
    for verb in ["record", "stop", "export", "delete"] {
        refused(&["trace", verb, "absent"], "volume absent: no such volume");
    }
    refused(&["trace", "record", "demo", "--memory", "63K"], "at least 64 KiB");
    refused(&["trace", "record", "demo", "--memory", "5G"], "at most 4 GiB");
    home.ok(&["trace", "record", "demo", "--memory", "64K"]);
    refused(&["trace", "record", "demo"], "already");
    refused(&["trace", "export", "demo"], "no requests are recorded yet");
    ok(tool("qemu-io").args(["-f", "raw", "-c", "write 0 4k"]).arg(home.uri("demo")));
    refused(&["trace", "export", "demo", "--json"], "-o");
    refused(&["trace", "export", "demo", "-o", "/dev/null"], "is not a file");
    refused(&["trace", "export", "demo", "-o", &home.path("absent/out.csv").display().to_string()], "absent");

    // A file that is there stays as it is when an export fails, and nothing is left beside it.
    std::fs::write(&file, "precious").expect("a file");
    refused(&["trace", "export", "absent", "-o", &file], "no such volume");
    let files = || std::fs::read_dir(home.path("")).expect("the home").count();
    let before = files();
    let mut full = tool("sh");
    full.args(["-c", "ulimit -f 0; trap '' XFSZ; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_kura")]);
    full.args(["trace", "export", "demo", "-o", &file]).current_dir(home.path(""));
    let said = fails(&mut full);
    assert!(said.contains("could not be written") && said.lines().count() == 1, "{said}");
    assert_eq!((std::fs::read_to_string(&file).expect("the file").as_str(), files()), ("precious", before));
    home.ok(&["trace", "export", "demo", "-o", &file]);
    assert_eq!(what(&read(Path::new(&file))), [(Op::Write, 0, 4 * KIB), (Op::Flush, 0, 0)]);
    let script = "exec \"$0\" trace export demo > /dev/full";
    let said = fails(tool("sh").args(["-c", script, env!("CARGO_BIN_EXE_kura")]).current_dir(home.path("")));
    assert!(said.lines().count() == 1 && said.contains("could not be written"), "{said}");

    // A volume takes its recording along.
    home.ok(&["volume", "delete", "demo"]);
    assert_eq!(list(&home), serde_json::json!([]));
}
