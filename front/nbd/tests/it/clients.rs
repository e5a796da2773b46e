//! The clients people use, against a real listener. A tool that is missing is a failure.

use crate::certificates::Certificates;
use crate::serve::{Running, Volume, serve};
use kura_nbd::{Address, Limits, Tls, TlsKeys};
use rand::{Rng, SeedableRng};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const VOLUMES: [Volume; 2] = [
    Volume { name: "disk", size_bytes: 64 * MIB, read_only: false },
    Volume { name: "tape", size_bytes: MIB, read_only: true },
];

/// Payloads smaller than the default, which libnbd would refuse itself.
fn limits() -> Limits {
    Limits { payload_bytes: 32 << 20, ..Limits::default() }
}

struct Served {
    _running: Running,
    folder: TempDir,
    address: Address,
}

impl Served {
    fn unix(volumes: &[Volume]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = Address::Unix(folder.path().join("nbd.sock"));
        let running = serve(&address, volumes, Tls::Off, limits()).unwrap();
        Self { _running: running, folder, address }
    }

    fn tcp(tls: Tls) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let running = serve(&Address::Tcp("127.0.0.1:0".into()), &VOLUMES, tls, limits()).unwrap();
        let address = running.address.clone();
        Self { _running: running, folder, address }
    }

    fn uri(&self, export: &str) -> String {
        match &self.address {
            Address::Tcp(host) => format!("nbd://{host}/{export}"),
            Address::Unix(path) => format!("nbd+unix:///{export}?socket={}", path.display()),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Runs a command line that must succeed, and returns what it printed.
fn ok(line: &[&str]) -> String {
    let (success, printed) = run(line);
    assert!(success, "{line:?} failed:\n{printed}");
    printed
}

/// Runs a command line that must fail, and returns what it printed.
fn fails(line: &[&str]) -> String {
    let (success, printed) = run(line);
    assert!(!success, "{line:?} succeeded:\n{printed}");
    printed
}

fn run(line: &[&str]) -> (bool, String) {
    // The tools' Python modules belong to the system's Python.
    let path = format!("/usr/bin:/usr/sbin:{}", std::env::var("PATH").unwrap_or_default());
    let output = Command::new("timeout").arg("300").args(line).env("PATH", path).output();
    let output = output.unwrap_or_else(|error| panic!("{line:?}: {error}"));
    assert_ne!(output.status.code(), Some(127), "{} is not installed", line[0]);
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
}

/// A file of noise with long runs of zeroes in it.
fn image(path: &Path, size_bytes: u64) {
    let mut bytes = vec![0; size_bytes as usize];
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(size_bytes);
    for piece in bytes.chunks_mut(300_000).step_by(2) {
        random.fill_bytes(piece);
    }
    std::fs::write(path, bytes).unwrap();
}

fn same(one: &Path, other: &Path) {
    let equal = std::fs::read(one).unwrap() == std::fs::read(other).unwrap();
    assert!(equal, "{} and {} differ", one.display(), other.display());
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

#[test]
fn nbdinfo_lists_and_describes() {
    let served = Served::unix(&VOLUMES);
    let list = json(&ok(&["nbdinfo", "--list", "--json", &served.uri("")]));
    assert_eq!((&list["protocol"], &list["structured"]), (&"newstyle-fixed".into(), &true.into()));
    let exports = list["exports"].as_array().unwrap();
    let names: Vec<_> = exports.iter().map(|export| export["export-name"].as_str().unwrap()).collect();
    assert_eq!(names, ["disk", "tape"]);
    assert_eq!(exports[0]["description"], "disk in memory");
    assert_eq!(exports[0]["export-size"], 64 * MIB);
    assert_eq!(exports[0]["contexts"][0], "base:allocation");
    let can =
        ["can_cache", "can_df", "can_fast_zero", "can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"];
    for feature in can {
        assert_eq!(exports[0][feature], true, "{feature}");
    }
    assert_eq!((&exports[0]["is_read_only"], &exports[1]["is_read_only"]), (&false.into(), &true.into()));
    for (size, bytes) in [("minimum", 1), ("preferred", 4096), ("maximum", 32 * MIB)] {
        assert_eq!(exports[0][format!("block_size_{size}")], bytes);
    }
    fails(&["nbdinfo", &served.uri("cloud")]);
    let printed = ok(&["nbd-client", "-l", "-unix", &served.file("nbd.sock").display().to_string()]);
    assert!(printed.contains("disk") && printed.contains("tape"), "{printed}");
}

#[test]
fn nbdinfo_maps_what_qemu_io_wrote() {
    let served = Served::unix(&VOLUMES);
    let uri = served.uri("disk");
    ok(&[
        "qemu-io",
        "-f",
        "raw",
        "-c",
        "write -P 7 1M 1M",
        "-c",
        "write -z -u 1M 64k",
        "-c",
        "discard 1216k 64k",
        &uri,
    ]);
    let map = json(&ok(&["nbdinfo", "--map", "--json", &uri]));
    let runs: Vec<_> =
        map.as_array().unwrap().iter().map(|run| (run["length"].as_u64(), run["type"].as_u64())).collect();
    let expected = [(MIB + 65536, 3), (128 * 1024, 0), (65536, 3), (MIB - 256 * 1024, 0), (62 * MIB, 3)];
    assert_eq!(runs, expected.map(|(len, kind)| (Some(len), Some(kind))));
}

#[test]
fn qemu_io_reads_back_what_it_wrote() {
    let served = Served::unix(&VOLUMES);
    let script = "write -P 1 0 16M; write -f -P 2 4k 4k; write -P 3 5000 3; write -z 8M 1M; flush; \
        read -P 2 4k 904; read -P 3 5000 3; read -P 1 16k 4M; read -P 0 8M 1M; read -P 1 9M 7M; read -P 0 16M 48M; \
        aio_write -P 9 20M 8M; aio_write -P 8 30M 8M; aio_flush; aio_read -P 9 20M 8M; aio_read -P 8 30M 8M; aio_flush; \
        discard 20M 8M; read -P 0 20M 8M";
    let commands: Vec<_> = script.split(';').flat_map(|command| ["-c", command.trim()]).collect();
    let printed = ok(&[&["qemu-io", "-f", "raw"][..], &commands, &[&served.uri("disk")]].concat());
    assert!(!printed.contains("fail"), "{printed}");
    let refused = fails(&["qemu-io", "-f", "raw", "-c", "write 0 4k", &served.uri("tape")]);
    assert!(refused.contains("Permission denied"), "{refused}");
}

#[test]
fn nbdcopy_and_qemu_img_bring_back_what_they_stored() {
    let served = Served::unix(&VOLUMES);
    let uri = served.uri("disk");
    let (first, second, cow) = (served.file("first"), served.file("second"), served.file("cow.qcow2"));
    let [from, to, middle] = [&first, &second, &cow].map(|path| path.display().to_string());
    image(&first, 64 * MIB);
    ok(&["nbdcopy", "--flush", "--connections=4", &from, &uri]);
    ok(&["nbdcopy", "--connections=4", &uri, &to]);
    same(&first, &second);
    ok(&["qemu-img", "convert", "-f", "raw", "-O", "qcow2", &uri, &middle]);
    let empty = Served::tcp(Tls::Off);
    ok(&["qemu-img", "convert", "-n", "-f", "qcow2", "-O", "raw", &middle, &empty.uri("disk")]);
    ok(&["qemu-img", "compare", "-f", "raw", "-F", "raw", &from, &empty.uri("disk")]);
}

#[test]
fn libnbd_gets_what_it_asks_for() {
    let served = Served::unix(&VOLUMES);
    let script = r#"
def refused(what, number):
    try:
        what()
    except nbd.Error as error:
        assert error.errno == number, (error.errno, number)
    else:
        raise AssertionError("not refused")

h.set_strict_mode(0)
h.set_request_block_size(True)
h.add_meta_context("base:allocation")
h.connect_uri(URI)
size = h.get_size()
h.pwrite(b"x" * 10000, 4095, nbd.CMD_FLAG_FUA)
assert h.pread(10000, 4095) == b"x" * 10000

chunks = []
def chunk(data, offset, status, error):
    chunks.append((offset, len(data), status))
h.pread_structured(1 << 20, 0, chunk)
assert [c for c in chunks if c[2] == nbd.READ_DATA] == [(0, 16384, nbd.READ_DATA)], chunks
assert any(c[2] == nbd.READ_HOLE for c in chunks), chunks
del chunks[:]
h.pread_structured(1 << 20, 0, chunk, nbd.CMD_FLAG_DF)
assert chunks == [(0, 1 << 20, nbd.READ_DATA)], chunks

found = []
h.block_status(1 << 20, 0, lambda context, offset, entries, error: found.extend(entries))
assert found == [16384, 0, (1 << 20) - 16384, 3], found

h.trim(4096, 0, nbd.CMD_FLAG_FUA)
h.zero(4096, 4096, nbd.CMD_FLAG_NO_HOLE)
h.zero(4096, 8192, nbd.CMD_FLAG_FAST_ZERO)
refused(lambda: h.zero(4096, 8192, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE), 'ENOTSUP')
h.cache(size, 0)
h.flush()
refused(lambda: h.pread(1, size), 'EINVAL')
refused(lambda: h.pwrite(b"x", size), 'ENOSPC')
refused(lambda: h.zero(1, size), 'ENOSPC')
refused(lambda: h.trim(1, size), 'EINVAL')
refused(lambda: h.pread(33 << 20, 0), 'EOVERFLOW')
refused(lambda: h.pwrite(b"x" * (33 << 20), 0), 'EINVAL')
assert h.pread(4096, 12288) == b"x" * 1807 + b"\0" * 2289
h.shutdown()

# Without anything modern: simple replies, and the export chosen by its name alone.
old = nbd.NBD()
old.set_request_structured_replies(False)
old.set_strict_mode(0)
old.set_export_name("tape")
old.set_opt_mode(True)
old.connect_unix(SOCKET)
old.opt_go()
assert not old.get_structured_replies_negotiated() and old.is_read_only()
assert old.pread(4096, 100) == b"\0" * 4096
refused(lambda: old.pwrite(b"x", 0), 'EPERM')
refused(lambda: old.pread(33 << 20, 0), 'EINVAL')
old.shutdown()
"#;
    let socket = served.file("nbd.sock");
    let constants = format!("URI, SOCKET = {:?}, {:?}", served.uri("disk"), socket.display().to_string());
    ok(&["nbdsh", "-c", "import nbd", "-c", &constants, "-c", script]);
}

#[test]
fn fio_verifies_random_writes_over_four_connections() {
    let served = Served::unix(&VOLUMES);
    let uri = format!("--uri={}", served.uri("disk"));
    ok(&[
        "fio",
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=16",
        "--numjobs=4",
        "--size=16m",
        "--offset_increment=16m",
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--fsync=64",
    ]);
}

#[test]
fn clients_encrypt_and_show_their_certificates() {
    let certificates = Certificates::make();
    let file = |name| certificates.file(name);
    let keys = TlsKeys::load(&file("server-cert.pem"), &file("server-key.pem"), Some(&file("ca-cert.pem"))).unwrap();
    let served = Served::tcp(Tls::Required(keys));
    let host = served.address.to_string();
    let folder = certificates.folder().display().to_string();
    let uri = format!("nbds://{host}/disk?tls-certificates={folder}");
    let info = json(&ok(&["nbdinfo", "--json", &uri]));
    assert_eq!(info["TLS"], true);

    let (first, second) = (served.file("first"), served.file("second"));
    let [from, to] = [&first, &second].map(|path| path.display().to_string());
    image(&first, 64 * MIB);
    ok(&["nbdcopy", &from, &uri]);
    let port = host.rsplit(':').next().unwrap();
    let object = format!("tls-creds-x509,id=tls0,endpoint=client,dir={folder}");
    let options =
        format!("driver=nbd,server.type=inet,server.host=127.0.0.1,server.port={port},export=disk,tls-creds=tls0");
    ok(&["qemu-img", "convert", "--object", &object, "--image-opts", &options, "-O", "raw", &to]);
    same(&first, &second);

    // In the clear, and without a certificate.
    fails(&["nbdinfo", &served.uri("disk")]);
    std::fs::remove_file(file("client-cert.pem")).unwrap();
    std::fs::remove_file(file("client-key.pem")).unwrap();
    fails(&["nbdinfo", &uri]);
}
