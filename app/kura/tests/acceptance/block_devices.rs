//! Pools of block devices: they carry them through kills, are nobody else's meanwhile, and may fail. Loop devices
//! stand in for disks, and want root.

use crate::array::fio;
use crate::harness::{Home, eventually, fails, ok, tool, zeroes};
use crate::serving::{json, volume};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A loop device on a file; detached when dropped.
struct Device {
    path: String,
    file: PathBuf,
}

impl Device {
    fn new(home: &Home, name: &str, size_bytes: u64) -> Self {
        let file = home.path(name);
        zeroes(&file, size_bytes);
        let path = ok(tool("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&file));
        Self { path: path.trim().to_owned(), file }
    }

    /// Takes the medium away: reads fail from now on.
    fn empty(&self) {
        fs::File::options().write(true).open(&self.file).and_then(|file| file.set_len(0)).expect("truncate");
    }

    /// Lets the kernel know what became of the medium: writes fail, too.
    fn notice(&self) {
        ok(tool("losetup").args(["--set-capacity", &self.path]));
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = tool("losetup").args(["--detach", &self.path]).status();
    }
}

/// A mounted device; unmounted when dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = tool("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// A pool of two fast and three slow devices.
fn pool(home: &Home) -> [Device; 5] {
    let devices = [("f0", 256), ("f1", 256), ("s0", 1024), ("s1", 1024), ("s2", 1024)]
        .map(|(name, mib)| Device::new(home, name, mib * MIB));
    let disks = devices.iter().zip(["--fast", "--fast", "--slow", "--slow", "--slow"]);
    let disks = disks.flat_map(|(device, class)| [class, &device.path]);
    let create = ["pool", "create", "--controllers", "2", "--journal", "16M"];
    home.ok(&create.into_iter().chain(disks).collect::<Vec<_>>());
    devices
}

/// fio at work on the second half of the volume `v`, of which something has arrived.
fn begun(home: &Home) -> Child {
    let allocated = || volume(home, "v")["allocated_bytes"].as_u64().expect("bytes");
    let before = allocated();
    let fio = fio(home, "during", "128M").arg("--do_verify=1").stdout(Stdio::null()).spawn().expect("fio");
    eventually(Duration::from_mins(1), "something is written", || allocated() > before);
    fio
}

#[test]
fn block_devices_carry_a_pool_through_kills() {
    let home = Home::new();
    let devices = pool(&home);
    let mut server = home.serve();
    let disks = json(&home, &["disk", "list"]);
    let disks = disks.as_array().expect("disks").iter().map(|disk| disk["path"].as_str().expect("a path"));
    assert_eq!(disks.collect::<Vec<_>>(), devices.each_ref().map(|device| device.path.as_str()));
    home.ok(&["volume", "create", "v", "--size", "256M", "--layout", "raid5"]);
    ok(fio(&home, "before", "0").arg("--do_verify=1"));
    let mut during = begun(&home);
    server.kill();
    assert!(!during.wait().expect("fio").success(), "the kill came when all was written");

    server = home.serve();
    assert!(server.said().contains("replayed"), "{}", server.said());
    ok(fio(&home, "before", "0").arg("--verify_only"));
    ok(fio(&home, "during", "128M").arg("--do_verify=1"));
    server.kill();
    let _server = home.serve();
    for (part, offset) in [("before", "0"), ("during", "128M")] {
        ok(fio(&home, part, offset).arg("--verify_only"));
    }
    let check = home.ok(&["check"]);
    assert!(check.contains("all is well"), "{check}");
    // The check is one that can fail.
    ok(tool("qemu-io").args(["-f", "raw", "-c", "write -P 0x5a 1M 4k", &home.uri("v")]));
    fails(fio(&home, "before", "0").arg("--verify_only"));
}

#[test]
fn block_devices_in_use_are_refused() {
    let home = Home::new();
    let devices = pool(&home);
    let mut server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    ok(tool("qemu-io").args(["-f", "raw", "-c", "write -P 0x5a 0 1M", &home.uri("v")]));
    let refused = |args: &[&str], why: &str| {
        let said = fails(&mut home.kura(args));
        assert!(said.contains(why) && said.trim_end().lines().count() == 1, "{args:?}: {said}");
    };

    // A pool of its own on them, this pool under another directory, and what a copy of the directory remembers.
    let slow = |device: &Device| format!("{{ path = '{}', class = 'slow' }}", device.path);
    let disks = devices.each_ref().map(slow).join(", ");
    fs::write(home.path("other.toml"), format!("pool.disks = [{disks}]\n")).expect("a configuration");
    let holder = format!("is in use by process {} ", server.pid());
    let no_doors = ["--nbd", "off", "--s3", "off", "--admin", "off"];
    refused(&[&["serve", "--data", "other", "--config", "other.toml"], &no_doors[..]].concat(), &holder);
    let paths = devices.each_ref().map(|device| device.path.as_str());
    refused(&[&["pool", "import", "--data", "imported"], &paths[..]].concat(), &holder);
    fs::create_dir(home.path("copy")).expect("a folder");
    for name in ["version", "disks.json"] {
        fs::copy(home.data().join(name), home.path("copy").join(name)).expect("a copy");
    }
    refused(&[&["serve", "--data", "copy"], &no_doors[..]].concat(), &holder);
    // What is not kura does not get them either.
    let said = fails(tool("wipefs").args(["--all", &devices[2].path]));
    assert!(said.contains("busy"), "{said}");

    let file_system = Device::new(&home, "ext4", 64 * MIB);
    ok(tool("mkfs.ext4").args(["-q", &file_system.path]));
    let mount = Mounted(home.path("mount"));
    fs::create_dir(&mount.0).expect("a mount point");
    ok(tool("mount").arg(&file_system.path).arg(&mount.0));
    fs::write(mount.0.join("file"), "content").expect("a file");
    let mounted = &file_system.path;
    refused(&["disk", "add", mounted, "--class", "slow", "--force"], "mounted");
    refused(&["pool", "create", "--data", "new", "--slow", mounted, "--force"], "mounted");

    assert!(server.is_alive());
    ok(tool("qemu-io").args(["-f", "raw", "-c", "read -P 0x5a 0 1M", &home.uri("v")]));
    drop(mount);
    ok(tool("e2fsck").args(["-f", "-n", mounted]));
    assert!(server.stop().success());
    // Nobody has them now.
    home.serve_with(&["--data", "copy"]);
}

#[test]
fn a_block_device_that_fails_under_the_server_is_told_and_done_without() {
    let home = Home::new();
    let devices = pool(&home);
    // What lies in the fast tier needs no slow disk, and would not miss one.
    fs::write(home.path("kura.toml"), "tier.policy = 'off'\n").expect("a configuration");
    let untiered = ["--config", "kura.toml"];
    let mut server = home.serve_with(&untiered);
    home.ok(&["volume", "create", "v", "--size", "256M", "--layout", "mirror"]);
    ok(fio(&home, "before", "0").arg("--do_verify=1"));
    let mut during = begun(&home);
    devices[2].empty();
    assert!(during.wait().expect("fio").success(), "what was written while a device failed is not what is read");
    let verified = || {
        for (part, offset) in [("before", "0"), ("during", "128M")] {
            ok(fio(&home, part, offset).arg("--verify_only"));
        }
    };
    verified();
    let is_told = || json(&home, &["status"])["problems"].to_string().contains(&devices[2].path);
    eventually(Duration::from_mins(1), "the status names the device", is_told);
    assert_eq!(json(&home, &["status"])["health"], "degraded");

    devices[2].notice();
    ok(fio(&home, "during", "128M").args(["--do_verify=1", "--randseed=7"]));
    ok(fio(&home, "before", "0").arg("--verify_only"));
    assert!(server.stop().success());
    let _server = home.serve_with(&untiered);
    assert!(is_told(), "{}", json(&home, &["status"])["problems"]);
    ok(fio(&home, "before", "0").arg("--verify_only"));
    ok(fio(&home, "during", "128M").args(["--verify_only", "--randseed=7"]));
}
