//! The clients people use, each doing what it does.

use crate::harness::{Home, eventually, fails, ok, tool};
use crate::serving::get;
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

/// Runs a script of `nbdsh` with the export's URI in it, by the Python that Debian's libnbd is for.
pub fn nbdsh(uri: &str, script: &str) {
    ok(tool("/usr/bin/python3").args(["-m", "nbd", "-c", &format!("URI = {uri:?}"), "-c", script]));
}

#[test]
fn nbdinfo_lists_what_there_is_and_what_it_can_do() {
    let home = Home::new();
    let server = home.serve();
    home.ok(&["volume", "create", "logs", "--size", "64M"]);
    let list = ok(tool("nbdinfo").args(["--json", "--list", &home.uri("")]));
    let list: Value = serde_json::from_str(&list).expect("nbdinfo's list");
    assert_eq!(list["protocol"], "newstyle-fixed");
    assert_eq!(list["structured"], true);
    let exports = list["exports"].as_array().expect("exports");
    let names: Vec<_> = exports.iter().filter_map(|export| export["export-name"].as_str()).collect();
    assert_eq!(names, ["demo", "logs"]);
    for export in exports {
        assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
        assert_eq!(export["is_read_only"], false);
        for can in
            ["can_cache", "can_df", "can_fast_zero", "can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"]
        {
            assert_eq!(export[can], true, "{can}");
        }
    }
    let port = server.port("nbd").to_string();
    let listed = ok(tool("nbd-client").args(["-l", "127.0.0.1", &port]));
    assert!(listed.lines().any(|line| line.trim() == "demo") && listed.contains("logs"), "{listed}");
    fails(tool("nbdinfo").arg(home.uri("absent")));
}

#[test]
fn qemu_io_writes_reads_zeroes_and_discards() {
    let home = Home::new();
    let _server = home.serve();
    let script = [
        "write -P 0x11 0 1M",
        "write -P 0x22 4k 4k",
        "write -P 0x33 1000 3000",
        "read -P 0x11 0 1000",
        "read -P 0x33 1000 3000",
        "read -P 0x11 4000 96",
        "read -P 0x22 4k 4k",
        "write -f -P 0x44 512 512",
        "flush",
        "aio_write -P 0x55 8M 2M",
        "aio_write -P 0x66 10M 2M",
        "aio_flush",
        "read -P 0x55 8M 2M",
        "read -P 0x66 10M 2M",
        "write -z 9M 64k",
        "read -P 0 9M 64k",
        "write -z -u 10M 1M",
        "read -P 0 10M 1M",
        "read -P 0x66 11M 1M",
        "discard 0 1M",
        "read -P 0 0 1M",
        "write -P 0x77 1073741823 1",
        "read -P 0x77 1073741823 1",
        "read -P 0 900M 32M",
    ];
    let qemu_io = |commands: &[&str]| {
        let mut qemu_io = tool("qemu-io");
        qemu_io.args(["-f", "raw"]).args(commands.iter().flat_map(|command| ["-c", command])).arg(home.uri("demo"));
        qemu_io
    };
    let said = ok(&mut qemu_io(&script));
    assert!(!said.contains("failed"), "{said}");
    // The script would notice: a wrong pattern is an error.
    assert!(qemu_io(&["read -P 0x12 8M 4k"]).output().is_ok_and(|output| !output.status.success()));
}

#[test]
fn nbdsh_meets_the_protocol_at_its_edges() {
    let home = Home::new();
    let _server = home.serve();
    let script = r#"
import errno, nbd
h.add_meta_context("base:allocation")
h.connect_uri(URI)
assert h.get_structured_replies_negotiated()
assert h.can_meta_context("base:allocation")
size = h.get_size()

# Every length and alignment around a block's border.
for at in (0, 1, 511, 512, 4095, 4096, 4097):
    for length in (1, 511, 513, 4095, 4096, 4097, 70000):
        data = bytes((at + i) % 251 for i in range(length))
        h.pwrite(data, 2**20 + at, nbd.CMD_FLAG_FUA)
        assert h.pread(length, 2**20 + at) == data, (at, length)

# A read may be asked for in one piece, and may come in many.
h.pwrite(b"x" * 2**20, 2**24)
chunks = []
h.pread_structured(2**21, 2**24, lambda data, at, kind, error: chunks.append((at, len(data), kind)))
assert sum(length for _, length, _ in chunks) == 2**21, chunks
h.pread_structured(2**21, 2**24, lambda *chunk: 0, nbd.CMD_FLAG_DF)

# Allocation: zeroes that keep their space are no hole, zeroes that do not are one.
def extents(at, length):
    found = []
    h.block_status(length, at, lambda context, offset, entries, error: found.extend(entries))
    return list(zip(found[0::2], found[1::2]))
assert extents(2**29, 2**20)[0][1] == nbd.STATE_HOLE | nbd.STATE_ZERO
h.pwrite(b"y" * 2**23, 2**29)
assert extents(2**29, 2**20)[0][1] == 0
h.zero(2**23, 2**29, nbd.CMD_FLAG_NO_HOLE)
assert extents(2**29, 2**20)[0][1] & nbd.STATE_HOLE == 0
assert h.pread(2**23, 2**29) == bytes(2**23)
h.zero(2**23, 2**29)
assert extents(2**29, 2**20)[0][1] == nbd.STATE_HOLE | nbd.STATE_ZERO
h.zero(2**20, 2**29, nbd.CMD_FLAG_FAST_ZERO)
h.cache(2**20, 2**24)
h.trim(2**20, 2**24, nbd.CMD_FLAG_FUA)
h.flush()

# What makes no sense is refused, and the connection goes on.
h.set_strict_mode(0)
def refused(call, *errors):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum in errors, error
    else:
        raise AssertionError("this should have been refused")
refused(lambda: h.pread(4096, size), errno.EINVAL)
refused(lambda: h.pread(4096, size - 1), errno.EINVAL)
refused(lambda: h.pwrite(b"z" * 4096, size - 1), errno.ENOSPC, errno.EINVAL)
refused(lambda: h.trim(4096, size), errno.EINVAL, errno.ENOSPC)
refused(lambda: h.zero(4096, size), errno.EINVAL, errno.ENOSPC)
refused(lambda: h.pread(4096, 0, 1 << 15), errno.EINVAL)
assert h.pread(1, size - 1) == b"\0"
h.shutdown()
"#;
    nbdsh(&home.uri("demo"), script);
}

#[test]
fn a_read_only_volume_refuses_writes() {
    let home = Home::new();
    let _server = home.serve();
    home.ok(&["volume", "create", "sealed", "--size", "16M", "--read-only"]);
    let uri = home.uri("sealed");
    ok(tool("nbdinfo").args(["--is", "read-only", &uri]));
    let script = r"
import errno
h.set_strict_mode(0)
h.connect_uri(URI)
for call in (lambda: h.pwrite(b'x', 0), lambda: h.trim(4096, 0), lambda: h.zero(4096, 0)):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == errno.EPERM, error
    else:
        raise AssertionError('a write to a read-only volume')
assert h.pread(4096, 0) == bytes(4096)
";
    nbdsh(&uri, script);
}

#[test]
fn qemu_goes_on_through_restarts_under_load() {
    let home = Home::new();
    let mut server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "512M"]);
    let socket = home.socket();
    let node = format!("driver=nbd,server.type=unix,server.path={},export=v,reconnect-delay=120", socket.display());
    // Flushes take their time, and writes go on beside them.
    let writes = ["-w", "--pattern=0x5a", "--flush-interval=64", "--no-drain"];
    for (command, direction) in [("write", &writes[..]), ("read", &[])] {
        let mut bench = tool("qemu-img");
        bench.args(["bench", "-t", "none", "-c", "131072", "-d", "32", "-s", "4096"]).args(direction);
        let bench = bench.args(["--image-opts", &node]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut bench = bench.expect("qemu-img");
        let served = format!("kura_nbd_requests_total{{command=\"{command}\"}} ");
        let is_busy = || {
            let metrics = get(server.port("http"), "/metrics");
            let count = metrics.lines().find_map(|line| line.strip_prefix(&served)?.parse::<u64>().ok());
            count.is_some_and(|count| count > 1000)
        };
        eventually(Duration::from_mins(1), "requests are served", is_busy);
        assert!(server.stop().success());
        assert!(bench.try_wait().expect("qemu-img").is_none(), "it ended before the server did");
        server = home.serve();
        let output = bench.wait_with_output().expect("qemu-img");
        assert!(output.status.success(), "{command}: {output:?}");
    }
    ok(tool("qemu-io").args(["-f", "raw", "-c", "read -P 0x5a 0 512M", &home.uri("v")]));
}
