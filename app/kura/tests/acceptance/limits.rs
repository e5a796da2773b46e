//! What a configuration allows an NBD client, and what becomes of one that asks for more.

use crate::clients::nbdsh;
use crate::harness::{Home, fails, ok, tool};

#[test]
fn a_request_is_as_large_as_the_configuration_allows() {
    let home = Home::new();
    std::fs::write(home.path("kura.toml"), "[nbd]\nrequest_bytes = \"1M\"\n").expect("a configuration");
    let _server = home.serve_with(&["--config", "kura.toml"]);
    let script = r#"
import errno
h.set_strict_mode(0)
h.connect_uri(URI)
most = 2**20
assert h.get_block_size(nbd.SIZE_MAXIMUM) == most
data = bytes(i * 7 % 251 for i in range(most))
h.pwrite(data, 4096)
assert h.pread(most, 4096) == data
for call in (lambda: h.pread(most + 1, 0), lambda: h.pwrite(data + b"x", 0), lambda: h.pwrite(data * 8, 0)):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum in (errno.EINVAL, errno.EOVERFLOW), error
    else:
        raise AssertionError("more than is allowed")
    # It was refused, nothing of it was done, and the connection goes on.
    assert h.pread(most, 4096) == data and h.pread(4096, 0) == bytes(4096)
# What carries no data is not bounded by it.
h.zero(8 * most, 0)
h.trim(8 * most, 0)
h.shutdown()
"#;
    nbdsh(&home.uri("demo"), script);
    // A client that heeds what is announced cuts its requests up.
    let qemu_io = |command: &str| ok(tool("qemu-io").args(["-f", "raw", "-c", command, &home.uri("demo")]));
    qemu_io("write -P 0x5a 0 16M");
    qemu_io("read -P 0x5a 0 16M");
}

/// Data that is slow to come, from disks that take half a second for anything, keeps out what could be told at once
/// when it is all that may be in flight, and only then.
#[test]
fn as_many_requests_are_served_at_once_as_the_configuration_allows() {
    let home = Home::new();
    let slow = "class = 'slow', size = '256M', model = { constant = { service_ns = 500_000_000, channels = 64 } }";
    let fast = "class = 'fast', size = '128M'";
    let disks = format!(
        "{{ path = 'f0', {fast} }}, {{ path = 'f1', {fast} }}, {{ path = 's0', {slow} }}, {{ path = 's1', {slow} }}"
    );
    let config = format!("demo = '64M'\npool.journal = '16M'\npool.disks = [{disks}]\nnbd.in_flight = 4\n");
    std::fs::write(home.path("kura.toml"), config).expect("a configuration");
    let serve = || home.serve_with(&["--config", "kura.toml"]);
    let mut server = serve();
    ok(tool("qemu-io").args(["-f", "raw", "-c", "write -P 7 0 1M", &home.uri("demo")]));
    assert!(server.stop().success());
    let _server = serve();
    let script = r#"
h.connect_uri(URI)
def first(slow, at):
    order = []
    told = lambda what: lambda error: order.append(what)
    pending = [h.aio_pread(nbd.Buffer(4096), at + i * 4096, told("disk")) for i in range(slow)]
    # A hole: no disk knows anything of it.
    pending.append(h.aio_pread(nbd.Buffer(4096), 2**25, told("hole")))
    while pending := [request for request in pending if not h.aio_command_completed(request)]:
        h.poll(-1)
    return order[0]
assert first(3, 0) == "hole"
assert first(4, 2**16) == "disk"
assert first(3, 2**17) == "hole"
h.shutdown()
"#;
    nbdsh(&home.uri("demo"), script);
    for (value, remedy) in [("0", "1 and 4096"), ("4097", "1 and 4096")] {
        std::fs::write(home.path("wrong.toml"), format!("nbd.in_flight = {value}\n")).expect("a configuration");
        let said = fails(&mut home.kura(&["config", "check", "wrong.toml"]));
        assert!(said.contains("wrong.toml:1:") && said.contains(remedy), "{said}");
    }
}
