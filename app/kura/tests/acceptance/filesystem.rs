//! A file system with a real tree goes in, is used, and comes back the same; images and benches' clients agree.

use crate::harness::{Home, fails, ok, tool, zeroes};
use crate::mounts::{BlockDevice, Mode, Mount};
use std::fs;
use std::path::Path;

/// The tree that goes into the file system.
const TREE: &str = "/usr/share";

const GIB: u64 = 1 << 30;

#[test]
fn a_real_tree_goes_in_is_mounted_and_comes_back() {
    let home = Home::new();
    let image = home.path("tree.ext4");
    let size_bytes = tree_image(&image);
    let _server = home.serve();
    let export = if size_bytes == GIB { "demo" } else { "tree" };
    if export == "tree" {
        home.ok(&["volume", "create", export, "--size", &size_bytes.to_string()]);
    }
    let uri = home.uri(export);

    ok(tool("nbdcopy").arg(&image).arg(&uri));
    assert_allocation(&uri, size_bytes);
    ok(tool("qemu-img").args(["compare", "-f", "raw", "-F", "raw"]).arg(&image).arg(&uri));

    {
        let device = BlockDevice::attach(&home, &uri, Mode::ReadOnly);
        ok(tool("e2fsck").args(["-f", "-n"]).arg(&device.path));
        let mount = Mount::new(&home, &device, Mode::ReadOnly);
        let files = assert_same_tree(Path::new(TREE), &mount.folder);
        assert!(files > 1000, "{TREE} has only {files} files: this is no real tree");
    }
    let written = home.path("written");
    make_small_tree(&written);
    {
        let device = BlockDevice::attach(&home, &uri, Mode::ReadWrite);
        let mount = Mount::new(&home, &device, Mode::ReadWrite);
        ok(tool("cp").args(["--archive", "--no-target-directory"]).arg(&written).arg(mount.folder.join("written")));
        fs::remove_dir_all(mount.folder.join("doc")).expect("removing a part of the tree");
    }
    {
        let device = BlockDevice::attach(&home, &uri, Mode::ReadOnly);
        ok(tool("e2fsck").args(["-f", "-n"]).arg(&device.path));
        let mount = Mount::new(&home, &device, Mode::ReadOnly);
        assert_same_tree(&written, &mount.folder.join("written"));
        assert!(!mount.folder.join("doc").exists());
    }

    let (qcow2, back) = (home.path("tree.qcow2"), home.path("back.raw"));
    ok(tool("qemu-img").args(["convert", "-f", "raw", "-O", "qcow2"]).arg(&uri).arg(&qcow2));
    ok(tool("qemu-img").args(["convert", "-f", "qcow2", "-O", "raw"]).arg(&qcow2).arg(&back));
    home.ok(&["volume", "create", "back", "--size", &size_bytes.to_string()]);
    let copy = home.uri("back");
    ok(tool("qemu-img").args(["convert", "-n", "-f", "qcow2", "-O", "raw"]).arg(&qcow2).arg(&copy));
    ok(tool("qemu-img").args(["compare", "-f", "raw", "-F", "raw"]).arg(&uri).arg(&back));
    ok(tool("qemu-img").args(["compare", "-f", "raw", "-F", "raw"]).arg(&back).arg(&copy));
    home.ok(&["check"]);
}

#[test]
fn fio_verifies_random_writes_over_four_connections() {
    let home = Home::new();
    let _server = home.serve();
    let fio = || {
        let mut fio = tool("fio");
        fio.args(["--name=verify", "--ioengine=nbd", "--bs=4k", "--rw=randwrite", "--iodepth=16", "--numjobs=4"]);
        fio.args(["--size=64M", "--offset_increment=256M", "--verify=crc32c", "--group_reporting"]);
        // It leaves the state of its verification where it runs.
        fio.arg(format!("--uri={}", home.uri("demo"))).current_dir(home.path(""));
        fio
    };
    ok(fio().arg("--do_verify=1"));
    // The check is one that can fail: after one block of the first job was overwritten, fio says so.
    ok(tool("qemu-io").args(["-f", "raw", "-c", "write -P 0x5a 1M 4k", &home.uri("demo")]));
    fails(fio().arg("--verify_only"));
}

/// An ext4 image of the tree: 1 GiB, or more where the tree asks for it.
fn tree_image(image: &Path) -> u64 {
    let used = ok(tool("du").args(["--summarize", "--block-size=1", TREE]));
    let used: u64 = used.split_whitespace().next().and_then(|word| word.parse().ok()).expect("du's figure");
    let size_bytes = (used + used / 4).next_multiple_of(GIB);
    zeroes(image, size_bytes);
    let entries = ok(tool("find").args([TREE, "-printf", "."])).len();
    let inodes = (entries + entries / 4).to_string();
    ok(tool("mkfs.ext4").args(["-q", "-F", "-N", &inodes, "-d", TREE]).arg(image));
    size_bytes
}

/// The map covers the export exactly, and tells data from holes.
fn assert_allocation(uri: &str, size_bytes: u64) {
    let map = ok(tool("nbdinfo").args(["--map", "--json", uri]));
    let map: serde_json::Value = serde_json::from_str(&map).expect("nbdinfo's map");
    let (mut end, mut data, mut holes) = (0, 0, 0);
    for run in map.as_array().expect("runs") {
        assert_eq!(run["offset"].as_u64(), Some(end), "the map has a gap or an overlap");
        let length = run["length"].as_u64().expect("a length");
        end += length;
        match run["type"].as_u64() {
            Some(0) => data += length,
            // Blocks that were never written, in an extent that was.
            Some(2) => {}
            Some(3) => holes += length,
            other => panic!("a run of type {other:?}"),
        }
    }
    assert_eq!(end, size_bytes);
    assert!(data > size_bytes / 16, "only {data} bytes are data");
    assert!(holes > 0, "nothing is a hole, though the image has free space");
}

fn make_small_tree(folder: &Path) {
    for number in 0..200u32 {
        let folder = folder.join(format!("folder-{}", number % 7));
        fs::create_dir_all(&folder).expect("a folder");
        let bytes: Vec<u8> = (0..number * 997).map(|at| (at.wrapping_mul(number | 1) >> 3) as u8).collect();
        fs::write(folder.join(number.to_string()), bytes).expect("a file");
    }
}

/// Compares two trees, byte by byte, and returns how many files there were.
fn assert_same_tree(ours: &Path, theirs: &Path) -> u64 {
    let mut files = 0;
    for entry in fs::read_dir(ours).unwrap_or_else(|error| panic!("{}: {error}", ours.display())) {
        let entry = entry.expect("an entry");
        let (path, copy) = (entry.path(), theirs.join(entry.file_name()));
        let kind = entry.file_type().expect("a file's type");
        if kind.is_dir() {
            files += assert_same_tree(&path, &copy);
        } else if kind.is_symlink() {
            let target = fs::read_link(&copy).unwrap_or_else(|_| differs(&copy));
            assert_eq!(fs::read_link(&path).expect("a link"), target, "{}", copy.display());
        } else {
            let bytes = fs::read(&copy).unwrap_or_else(|_| differs(&copy));
            if fs::read(&path).expect("a file") != bytes {
                differs(&copy);
            }
            files += 1;
        }
    }
    files
}

fn differs(copy: &Path) -> ! {
    panic!("{} is not what went in", copy.display());
}
