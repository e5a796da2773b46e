//! Every form is read; what is wrong is told with its place.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use tempfile::TempDir;

use crate::{Format, Op, Request, TraceError, open, write_blkparse, write_msr};

/// A folder whose files are traces.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a folder"))
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, content).expect("a file");
        path
    }
}

fn read(content: impl AsRef<[u8]>) -> Result<Vec<Request>, TraceError> {
    let folder = Folder::new();
    open(&folder.file("trace", content))?.collect()
}

/// The message, without the folder.
fn refusal(content: impl AsRef<[u8]>) -> String {
    let folder = Folder::new();
    let path = folder.file("trace", content);
    let error = open(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>).expect_err("refused");
    let message = error.to_string().replace(&format!("{}/", folder.0.path().display()), "");
    assert!(!message.contains('\n') && message.contains("; "), "one line with a remedy: {message}");
    message
}

fn request(at_ns: u64, op: Op, offset_bytes: u64, len_bytes: u32, response_ns: u64) -> Request {
    Request { at_ns, op, offset_bytes, len_bytes, response_ns }
}

const MSR: &str = "\
128166372003061629,web,0,Read,7014609920,24576,41286
128166372016382155,web,0,Write,1317441536,8192,1963
128166372026382245,web,0,Write,2436440064,4096,1835
";

fn msr_requests() -> Vec<Request> {
    vec![
        request(0, Op::Read, 7_014_609_920, 24576, 4_128_600),
        request(1_332_052_600, Op::Write, 1_317_441_536, 8192, 196_300),
        request(2_332_061_600, Op::Write, 2_436_440_064, 4096, 183_500),
    ]
}

/// Printed by blkparse 1.2.0 of the recording that `recording` gives.
const BLKPARSE: &str = "\
  8,0    0        3     0.000000000   100  Q   R 2048 + 8 [kura]
  8,0    0        4     0.000000100   100  G   R 2048 + 8 [kura]
  8,0    0        5     0.000000200   100  D   R 2048 + 8 [kura]
  8,0    1        1     0.000500200   100  C   R 2048 + 8 [0]
  8,0    1        2     0.000600000   100  Q  WS 4096 + 16 [kura]
  8,0    1        3     0.000600000   100  D  WS 4096 + 16 [kura]
  8,0    0        6     0.001000000   100  C  WS 4096 + 16 [0]
  8,0    0        7     0.001100000   100  Q FWS [kura]
  8,0    0        8     0.001100100   100  D  FN [kura]
  8,0    0        9     0.001200000   100  C FWS 0 [0]
  8,0    0       10     0.001300000   100  Q  DS 9000 + 2048 [kura]
  8,0    0       11     0.001300000   100  D  DS 9000 + 2048 [kura]
  8,0    0       12     0.001400000   100  C  DS 9000 + 2048 [0]
  8,0    0       13     0.001500000   100  Q FWFSM 9000 + 8 [kura]
  8,0    0       14     0.001500000   100  A  RA 9000 + 8 <- (8,1) 100
  8,0    0       15     0.001600000   100  P   N [kura]
  8,0    0        0     0.001700000     0  m   N hello message
  8,0    0       17     0.001800000   100  M   W 9000 + 8 [kura]
CPU0 (t):
 Reads Queued:           1,        4KiB\t Writes Queued:           3,     1028KiB

Total (t):
 Reads Queued:           1,        4KiB\t Writes Queued:           4,     1036KiB
Throughput (R/W): 4000KiB/s / 1032000KiB/s
Events (t): 18 entries
Skips: 0 forward (0 -   0.0%)
Input file t.blktrace.0 added
";

/// What `BLKPARSE` and `recording` tell of.
fn kernel_requests() -> Vec<Request> {
    vec![
        request(0, Op::Read, 2048 * 512, 4096, 500_200),
        request(600_000, Op::Write, 4096 * 512, 8192, 400_000),
        request(1_100_000, Op::Flush, 0, 0, 100_000),
        request(1_300_000, Op::Discard, 9000 * 512, 1 << 20, 100_000),
        // A write that flushes before it is done; neither completes in the recording.
        request(1_500_000, Op::Flush, 0, 0, 0),
        request(1_500_000, Op::Write, 9000 * 512, 4096, 0),
    ]
}

/// Records of one processor, in either byte order.
struct Records {
    bytes: Vec<u8>,
    big_endian: bool,
}

impl Records {
    fn add(&mut self, time: u64, (sector, bytes): (u64, u32), (what, categories): (u16, u16), pdu: &[u8]) {
        let mut head = Vec::new();
        let mut word = |value: u64, len: usize| {
            let bytes = value.to_be_bytes();
            let word = bytes[8 - len..].iter().copied();
            if self.big_endian { head.extend(word) } else { head.extend(word.rev()) }
        };
        let (action, device) = (u64::from(categories) << 16 | u64::from(what), 8 << 20);
        let fields = [(0x6561_7407, 4), (1, 4), (time, 8), (sector, 8), (u64::from(bytes), 4), (action, 4)];
        let rest = [(100, 4), (device, 4), (0, 4), (0, 2), (pdu.len() as u64, 2)];
        fields.into_iter().chain(rest).for_each(|(value, len)| word(value, len));
        self.bytes.extend(head);
        self.bytes.extend(pdu);
    }
}

/// What two processors recorded.
fn recording(big_endian: bool) -> (Vec<u8>, Vec<u8>) {
    let [r, w, flush, sync, discard, fua, notify] = [1, 2, 4, 8, 1 << 13, 1 << 15, 1 << 10];
    let mut cpu0 = Records { bytes: Vec::new(), big_endian };
    let mut cpu1 = Records { bytes: Vec::new(), big_endian };
    cpu0.add(1_000_000, (0, 0), (0, notify), b"kura\0\0\0\0");
    cpu0.add(2_000_000, (2048, 4096), (1, r), &[]);
    cpu0.add(2_000_200, (2048, 4096), (7, r), &[]);
    cpu1.add(2_500_200, (2048, 4096), (8, r), &[]);
    cpu1.add(2_600_000, (4096, 8192), (1, w | sync), &[]);
    cpu0.add(3_000_000, (4096, 8192), (8, w | sync), &[]);
    cpu0.add(3_100_000, (0, 0), (1, w | sync | flush), &[]);
    cpu0.add(3_200_000, (0, 0), (8, w | sync | flush), &[]);
    cpu0.add(3_300_000, (9000, 1 << 20), (1, w | discard | sync), &[]);
    cpu0.add(3_400_000, (9000, 1 << 20), (8, w | discard | sync), &[]);
    cpu0.add(3_500_000, (9000, 4096), (1, w | sync | flush | fua), &[]);
    cpu0.add(3_700_000, (0, 0), (2, notify), b"hello message");
    (cpu0.bytes, cpu1.bytes)
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).expect("memory takes it");
    encoder.finish().expect("memory takes it")
}

#[test]
fn msr_is_read_with_and_without_a_heading_and_carriage_returns() {
    assert_eq!(read(MSR).expect("sound"), msr_requests());
    let dressed = format!("Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n{MSR}").replace('\n', "\r\n");
    assert_eq!(read(dressed).expect("sound"), msr_requests());
    let marked = [b"\xef\xbb\xbf", MSR.as_bytes()].concat();
    assert_eq!(read(gzip(&marked)).expect("sound"), msr_requests());
    assert!(refusal(b"\xff\xfe1\0,\0").starts_with("trace: this is text in UTF-16; make it UTF-8"));
}

#[test]
fn compression_is_known_by_content() {
    let (first, rest) = MSR.split_at(MSR.find('\n').expect("lines") + 5);
    let members = [gzip(first.as_bytes()), gzip(rest.as_bytes())].concat();
    let frames = [first, rest].map(|part| zstd::encode_all(part.as_bytes(), 1).expect("memory takes it")).concat();
    for compressed in [&members, &frames] {
        assert_eq!(read(compressed).expect("sound"), msr_requests());
        let cut = refusal(&compressed[..compressed.len() - 5]);
        assert!(cut.starts_with("trace: byte ") && cut.contains("the compressed stream is cut; "), "{cut}");
    }
    // As pzstd begins, and filled up with zeroes, as from a tape; more of them than are read at a time.
    let skippable = [&[0x5a, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4], &frames[..]].concat();
    let padded = [members, vec![0; 1 << 19]].concat();
    for dressed in [&skippable, &padded] {
        assert_eq!(read(dressed).expect("sound"), msr_requests());
    }
    assert!(
        refusal([&padded[..], b"something else"].concat())
            .contains("the file cannot be read on: invalid gzip header; ")
    );
    // Lines that were read whole before; incompressible, so that more than one chunk comes before the cut.
    let long: String = (0..40_000u64).fold(String::new(), |mut text, index| {
        let offset = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1;
        writeln!(text, "{index},h,0,Read,{offset},512,0").expect("memory takes it");
        text
    });
    let compressed = gzip(long.as_bytes());
    let cut = refusal(&compressed[..compressed.len() / 2]);
    let line: u64 = cut.split(':').nth(1).and_then(|line| line.parse().ok()).expect("a line");
    assert!((10_000..30_000).contains(&line) && cut.contains("the compressed stream is cut; "), "{cut}");
    assert!(refusal(b"\xfd7zXZ\0...").starts_with("trace: this is xz; "));
}

#[test]
fn blkparse_is_read_with_its_summary() {
    assert_eq!(read(BLKPARSE).expect("sound"), kernel_requests());
    let greeted = format!("Input file t.blktrace.0 added\n{BLKPARSE}");
    assert_eq!(read(greeted).expect("sound"), kernel_requests());
}

#[test]
fn blktrace_is_read_whole_or_by_processor_in_both_byte_orders() {
    for big_endian in [false, true] {
        let (cpu0, cpu1) = recording(big_endian);
        let folder = Folder::new();
        folder.file("disk.blktrace.0", &cpu0);
        folder.file("disk.blktrace.1", &cpu1);
        for name in ["disk.blktrace.0", "disk.blktrace.1", "disk.blktrace", "disk"] {
            let reader = open(&folder.0.path().join(name)).expect("opens");
            assert_eq!(reader.format(), Format::Blktrace);
            assert_eq!(reader.collect::<Result<Vec<_>, _>>().expect("sound"), kernel_requests(), "{name}");
        }
        // Out of order as a whole, by little: put in order.
        assert_eq!(read([cpu0, cpu1].concat()).expect("sound"), kernel_requests());
    }
}

#[test]
fn a_recording_is_read_whole_where_processors_were_idle_and_files_are_compressed() {
    let (cpu0, cpu1) = recording(false);
    let zstd = zstd::encode_all(&cpu0[..], 1).expect("memory takes it");
    let folder = Folder::new();
    let at = |name: &str| folder.0.path().join(name);
    let all = |name: &str| open(&at(name)).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    folder.file("disk.blktrace.0", "");
    folder.file("disk.blktrace.1.gz", gzip(&cpu1));
    folder.file("disk.blktrace.2.zst", zstd);
    for name in ["disk", "disk.blktrace", "disk.blktrace.0", "disk.blktrace.1.gz", "disk.blktrace.2.zst"] {
        assert_eq!(all(name).expect("sound"), kernel_requests(), "{name}");
        assert_eq!(crate::files(&at(name)).len(), 3, "{name}");
    }
    // A file beside them that has the shared name is a trace of its own.
    folder.file("disk", MSR);
    assert_eq!((all("disk").expect("sound"), crate::files(&at("disk"))), (msr_requests(), vec![at("disk")]));
    fs::remove_file(at("disk")).expect("removed");

    let said = |name: &str| all(name).expect_err("refused").to_string();
    folder.file("disk.blktrace.1", &cpu1);
    assert!(said("disk").contains("disk.blktrace.1.gz are of one processor; leave one"), "{}", said("disk"));
    for name in ["1", "1.gz", "2.zst"] {
        fs::remove_file(at(&format!("disk.blktrace.{name}"))).expect("removed");
    }
    assert!(said("disk").contains("the trace is empty; "), "{}", said("disk"));
    folder.file("disk.blktrace.1", BLKPARSE);
    assert!(said("disk").contains("blkparse text in several files"), "{}", said("disk"));
}

#[test]
fn fio_logs_are_read() {
    let timed = "fio version 3 iolog\n33 /dev/sdb add\n185 /dev/sdb open\n195 /dev/sdb read 61440 4096\n\
        490 /dev/sdb write 774144 4096\n500 /dev/sdb trim 0 65536\n510 /dev/sdb datasync 0 0\n600 /dev/sdb close\n";
    let expected = |times: [u64; 4]| {
        vec![
            request(times[0], Op::Read, 61440, 4096, 0),
            request(times[1], Op::Write, 774_144, 4096, 0),
            request(times[2], Op::Discard, 0, 65536, 0),
            request(times[3], Op::Flush, 0, 0, 0),
        ]
    };
    assert_eq!(read(timed).expect("sound"), expected([0, 295_000, 305_000, 315_000]));
    let waiting = "fio version 2 iolog\n/dev/sdb add\n/dev/sdb open\n/dev/sdb read 61440 4096\n\
        /dev/sdb wait 250 0\n/dev/sdb write 774144 4096\n/dev/sdb trim 0 65536\n/dev/sdb sync 0 0\n/dev/sdb close\n";
    assert_eq!(read(waiting).expect("sound"), expected([0, 250_000, 250_000, 250_000]));
}

#[test]
fn merged_and_split_requests_find_their_completions() {
    let trace = "\
  8,0    0        1     0.000000000     1  Q   W 0 + 8 [a]
  8,0    0        2     0.000001000     1  Q   W 8 + 8 [a]
  8,0    0        3     0.000002000     1  Q   R 100 + 16 [a]
  8,0    0        4     0.000003000     1  Q   W 0 + 8 [a]
  8,0    0        5     0.000010000     0  C   W 0 + 16 [0]
  8,0    0        6     0.000020000     0  C   R 100 + 8 [0]
  8,0    0        7     0.000030000     0  C   R 108 + 8 [0]
  8,0    0        8     0.000040000     0  C   W 0 + 8 [0]
";
    let responses: Vec<u64> = read(trace).expect("sound").iter().map(|request| request.response_ns).collect();
    // Both merged ones end with what they became; the split one with its last part; the overwrite with its own.
    assert_eq!(responses, [10_000, 9_000, 28_000, 37_000]);
}

#[test]
fn requests_that_overlap_find_their_completions() {
    let trace = "\
  8,0    0        1     0.000000000     1  Q   W 0 + 100 [a]
  8,0    0        2     0.000001000     1  Q   W 8 + 8 [a]
  8,0    0        3     0.000002000     1  Q   W 40 + 8 [a]
  8,0    0        4     0.000010000     0  C   W 50 + 50 [0]
  8,0    0        5     0.000020000     0  C   W 8 + 8 [0]
  8,0    0        6     0.000030000     0  C   W 40 + 8 [0]
  8,0    0        7     0.000040000     0  C   W 0 + 50 [0]
";
    let responses: Vec<u64> = read(trace).expect("sound").iter().map(|request| request.response_ns).collect();
    // The long one ends with its other half; those inside it with what is just theirs.
    assert_eq!(responses, [40_000, 19_000, 28_000]);
}

#[test]
fn who_never_completes_holds_up_no_more_than_a_bounded_queue() {
    let mut trace = String::new();
    let mut line = |us: u64, event: &str, op: &str, sector: u64| {
        let (seconds, us) = (us / 1_000_000, us % 1_000_000);
        writeln!(trace, "  8,0  0  1  {seconds}.{us:06}000  1  {event}  {op} {sector} + 8 [a]")
            .expect("memory takes it");
    };
    (0..6000).for_each(|index| line(index, "Q", "R", index * 8));
    // By now the first have been given out; the last still wait.
    line(6000, "C", "R", 0);
    line(6000, "C", "R", 5999 * 8);
    let responses: Vec<u64> = read(trace).expect("sound").iter().map(|request| request.response_ns).collect();
    assert_eq!((responses.len(), responses[0], responses[5999]), (6000, 0, 1000));
}

#[test]
fn disorder_is_mended_where_recorders_cause_it_and_refused_elsewhere() {
    let events = |times_us: &[u64]| {
        times_us.iter().fold(String::new(), |mut text, time_us| {
            let (seconds, us) = (time_us / 1_000_000, time_us % 1_000_000);
            writeln!(text, "  8,0  0  1  {seconds}.{us:06}000  1  Q  R 0 + 8 [a]").expect("memory takes it");
            text
        })
    };
    let mut times: Vec<u64> = (0..5000).map(|index| 100_000 + index * 100).collect();
    times.swap(3000, 3099);
    let found = read(events(&times)).expect("9.9 ms are borne");
    assert!(found.is_sorted_by_key(|request| request.at_ns) && found.len() == times.len());
    times.swap(4000, 4101);
    let message = refusal(events(&times));
    assert!(message.starts_with("trace:4102: out of order: this is 0.010100000 s before"), "{message}");
    // More than a thousand in that time.
    let mut dense: Vec<u64> = (0..5000).map(|index| 100_000 + index).collect();
    dense.swap(1000, 3000);
    assert!(refusal(events(&dense)).contains("out of order"));

    let unsorted = MSR.replace("128166372016382155", "128166372003061628");
    let message = refusal(unsorted);
    assert!(message.starts_with("trace:2: out of order: this is 0.000000100 s before"), "{message}");
    assert!(message.contains("sort -s -n"), "{message}");
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    let after = |line: &str| refusal(format!("{MSR}{line}"));
    for (line, told) in [
        ("128166372026382246,web,0,Write,2436440064,40", "trace:4: the last line is cut"),
        ("128166372026382246,web,0,Write,2436440064\n", "trace:4: 5 fields instead of 7"),
        ("128166372026382246,web,0,Write,1,2,3,4\n", "trace:4: 8 fields instead of 7"),
        ("128166372026382246,web,0,Erase,0,4096,0\n", "trace:4: 'Erase' is neither Read nor Write"),
        ("128166372026382246,web,0,Write,0,0,0\n", "trace:4: a write of 0 bytes at 0"),
        ("128166372026382246,web,0,Write,-1,512,0\n", "trace:4: the offset is '-1', not a whole number"),
        ("128166372026382246,web,0,Write,0,4294967296,0\n", "trace:4: a request of 4294967296 bytes"),
        (
            "128166372026382246,web,0,Read,9223372036854775807,1,0\n",
            "trace:4: a read of 1 bytes at 9223372036854775807 reaches",
        ),
        ("128166372026382246,web,0,Read,18446744073709551615,4096,0\n", "trace:4: a read of 4096 bytes at"),
        ("128166372026382246,web,0,Read,99999999999999999999,4096,0\n", "trace:4: the offset is"),
        ("18446744073709551615,web,0,Read,0,4096,0\n", "trace:4: the timestamp of"),
        ("128166372026382246,web,1,Read,0,4096,0\n", "trace:4: volume web,1 after web,0"),
        ("\n", "trace:4: an empty line; remove it"),
    ] {
        let message = after(line);
        assert!(message.starts_with(told), "{line:?}: {message}");
    }
    let after = |line: &str| refusal(format!("fio version 3 iolog\n1 f read 0 4096\n{line}\n"));
    for (line, told) in [
        ("2 f read 0", "trace:3: no length in '2 f read 0'"),
        ("2 f read 0 4096 junk", "trace:3: 6 fields in '2 f read 0 4096 junk', not 5 at most"),
        ("2 f wait 10", "trace:3: 'wait' is not an action"),
        ("2 g read 0 4096", "trace:3: file g after f"),
        ("18446744073709551615 f read 0 4096", "trace:3: a time of"),
    ] {
        let message = after(line);
        assert!(message.starts_with(told), "{line:?}: {message}");
    }
    let first = "  8,0    0        1     0.000000000     1  Q   W 0 + 8 [a]\n";
    for (line, told) in [
        ("  8,16   0        1     0.000000001     1  Q   W 0 + 8 [a]", "trace:2: a request for a second device, 8,16"),
        ("  8,0    0        1     0.1     1  Q   W 0 + 8 [a]", "trace:2: '0.1' is not a time"),
        ("  8,0    0        1     0.000000001     1  Q", "trace:2: no flags"),
        ("  8,0    0        1     0.000000001     1  Q   W 8 [a]", "trace:2: a sector without '+ sectors'"),
        ("  8,0    0        1     0.000000001     1  Q   W 8 8 [a]", "trace:2: a sector without '+ sectors'"),
        ("  8,0    0        1     0.000000001     1  Q   W 8", "trace:2: a sector without '+ sectors'"),
        ("  8,0    0        1     0.000000001     1  Q   W 0 + 0 [a]", "trace:2: a request of 0 sectors"),
        ("  8,0    0        1     0.000000001     1  Q   W 18446744073709551615 + 8 [a]", "trace:2: sector"),
        (
            "CPU0 (t):\n\n  8,0    0        1     0.000000001     1  Q   W 0 + 8 [a]",
            "trace:4: an event after the summary",
        ),
        ("what", "trace:2: 'what' is not an event"),
    ] {
        let message = refusal(format!("{first}{line}\n"));
        assert!(message.starts_with(told), "{line:?}: {message}");
    }
}

#[test]
fn what_is_wrong_is_told_with_its_byte() {
    let (cpu0, _) = recording(false);
    // A record without the name that comes first, which has 8 bytes behind its head.
    assert!(
        refusal(&cpu0[..cpu0.len() - 20])
            .starts_with(&format!("trace: byte {}: the last record is cut", cpu0.len() - 61))
    );
    assert!(refusal(&cpu0[..60]).starts_with("trace: byte 56: the last record is cut"));
    assert!(refusal(&cpu0[..50]).starts_with("trace: byte 0: the last record is cut"));
    let garbage = [&cpu0[..56 + 48], &[7; 100]].concat();
    assert!(refusal(garbage).starts_with("trace: byte 104: no record: magic 0x07070707"));
    let mut old = cpu0.clone();
    old[0] = 6;
    assert!(refusal(old).starts_with("trace: byte 0: a record of version 6; version 7 is read"));
}

#[test]
fn what_is_no_trace_is_refused() {
    assert!(refusal("").starts_with("trace: the trace is empty; "));
    for unknown in [&b"hello\n"[..], b"\0\x01\x02\xff", b"{\"a\": 1}\n", b"1,2\n", b"\n\n\n"] {
        let message = refusal(unknown);
        assert!(message.contains("the form is not known") && message.contains("MSR Cambridge CSV"), "{message}");
    }
    assert!(
        refusal("Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n").contains("no request in this MSR")
    );
    assert!(refusal("  8,0  0  1  0.000000000  1  D  W 0 + 8 [a]\n").contains("no request in this blkparse text"));
    assert!(refusal(vec![b'1'; 1 << 20]).contains("the form is not known"));
    let long = [MSR.as_bytes(), &vec![b'1'; 1 << 20]].concat();
    assert!(refusal(long).starts_with("trace:4: the line is longer than"));
    let folder = Folder::new();
    let said = |path: &PathBuf| open(path).err().expect("refused").to_string();
    assert!(said(&folder.0.path().to_path_buf()).contains("this is a directory; "));
    assert!(said(&folder.0.path().join("none")).contains("could not be opened: No such file"));
}

/// Requests as they may be recorded: in order, on sectors, times in ticks.
fn some_requests() -> impl Strategy<Value = Vec<Request>> {
    let op = prop_oneof![4 => Just(Op::Read), 4 => Just(Op::Write), 1 => Just(Op::Discard), 1 => Just(Op::Flush)];
    let one = (0..50_000u64, op, 0..1u64 << 40, 1..2048u32, 0..100_000u64);
    prop::collection::vec(one, 1..60).prop_map(|list| {
        let mut at_ns = 0;
        let mut requests: Vec<Request> = Vec::new();
        for (gap, op, sector, sectors, response) in list {
            let flush = op == Op::Flush;
            let (offset_bytes, len_bytes) = if flush { (0, 0) } else { (sector * 512, sectors * 512) };
            requests.push(Request { at_ns, op, offset_bytes, len_bytes, response_ns: response * 100 });
            at_ns += gap * 100;
        }
        requests
    })
}

#[test]
fn what_is_written_looks_as_blkparse_prints_it() {
    let mut text = Vec::new();
    write_blkparse(kernel_requests().into_iter().take(4).map(Ok), "kura", &mut text).expect("memory takes it");
    let expected = "  8,0    0        1     0.000000000     0  Q   R 2048 + 8 [kura]
  8,0    0        2     0.000000000     0  D   R 2048 + 8 [kura]
  8,0    0        3     0.000500200     0  C   R 2048 + 8 [0]
  8,0    0        4     0.000600000     0  Q   W 4096 + 16 [kura]
  8,0    0        5     0.000600000     0  D   W 4096 + 16 [kura]
  8,0    0        6     0.001000000     0  C   W 4096 + 16 [0]
  8,0    0        7     0.001100000     0  Q FWS [kura]
  8,0    0        8     0.001100000     0  D  FN [kura]
  8,0    0        9     0.001200000     0  C FWS 0 [0]
  8,0    0       10     0.001300000     0  Q   D 9000 + 2048 [kura]
  8,0    0       11     0.001300000     0  D   D 9000 + 2048 [kura]
  8,0    0       12     0.001400000     0  C   D 9000 + 2048 [0]
";
    assert_eq!(String::from_utf8(text).expect("text"), expected);
}

#[test]
fn progress_is_in_bytes_of_the_files() {
    let folder = Folder::new();
    let compressed = gzip(MSR.as_bytes());
    let mut reader = open(&folder.file("trace", &compressed)).expect("opens");
    assert_eq!(reader.by_ref().count(), 3);
    assert_eq!(reader.progress(), (compressed.len() as u64, compressed.len() as u64));
}

proptest! {
    #[test]
    fn msr_comes_back_as_it_was_written(requests in some_requests()) {
        let kept: Vec<Request> = requests.iter().copied().filter(|r| matches!(r.op, Op::Read | Op::Write)).collect();
        prop_assume!(!kept.is_empty());
        let mut text = Vec::new();
        let written = write_msr(requests.iter().copied().map(Ok), "host", 1, &mut text).expect("memory takes it");
        prop_assert_eq!(written.requests, kept.len() as u64);
        prop_assert_eq!(written.left_out, (requests.len() - kept.len()) as u64);
        let begin_ns = kept[0].at_ns;
        let kept: Vec<Request> = kept.into_iter().map(|r| Request { at_ns: r.at_ns - begin_ns, ..r }).collect();
        prop_assert_eq!(read(text).expect("sound"), kept);
    }

    #[test]
    fn blkparse_comes_back_as_it_was_written(requests in some_requests()) {
        // Completions of flushes do not say whose they are: here, one flush ends before the next begins.
        let mut flushed_ns = 0;
        let alone = |request: &Request| {
            if request.op != Op::Flush {
                return true;
            }
            let fits = request.response_ns > 0 && request.at_ns > flushed_ns;
            flushed_ns = if fits { request.at_ns + request.response_ns } else { flushed_ns };
            fits
        };
        let requests: Vec<Request> = requests.into_iter().filter(alone).collect();
        prop_assume!(!requests.is_empty());
        let mut text = Vec::new();
        write_blkparse(requests.iter().copied().map(Ok), "kura", &mut text).expect("memory takes it");
        let begin_ns = requests[0].at_ns;
        let requests: Vec<Request> = requests.into_iter().map(|r| Request { at_ns: r.at_ns - begin_ns, ..r }).collect();
        prop_assert_eq!(read(text).expect("sound"), requests);
    }

    #[test]
    fn no_bytes_are_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), kind in 0..4usize, cut in 0..2000usize) {
        let format = [Format::Msr, Format::Blkparse, Format::Blktrace, Format::Iolog][kind];
        let begin: Vec<u8> = match format {
            Format::Msr => MSR.into(),
            Format::Blkparse => BLKPARSE.into(),
            Format::Blktrace => recording(cut % 2 == 0).0,
            Format::Iolog => "fio version 3 iolog\n1 f read 0 4096\n".into(),
        };
        let read = read([&begin[..cut.min(begin.len())], &bytes].concat());
        for request in read.into_iter().flatten() {
            prop_assert!(i64::try_from(request.end_bytes()).is_ok());
        }
    }

    #[test]
    fn a_changed_byte_is_no_panic(kind in 0..3usize, place in 0..10_000usize, byte in any::<u8>()) {
        let mut bytes = match kind { 0 => MSR.into(), 1 => BLKPARSE.into(), _ => recording(false).0 };
        let place = place % bytes.len();
        bytes[place] = byte;
        let _ = read(bytes).map(|requests| requests.len());
    }
}
