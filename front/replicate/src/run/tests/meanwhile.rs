//! What becomes of the source while a run is under way.

use super::*;

#[test]
fn what_others_may_not_read_is_not_carried_under_the_name_of_what_they_may() {
    for size in [8, 3 << 20] {
        let pair = Pair::new();
        let path = |name: &str| pair.source.join(name);
        for (name, byte, mode) in [("open", b'o', 0o644), ("secret", b's', 0o600)] {
            fs::write(path(name), vec![byte; size]).unwrap();
            fs::set_permissions(path(name), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        }
        let time = fs::metadata(path("open")).unwrap().modified().unwrap();
        fs::File::options().write(true).open(path("secret")).unwrap().set_modified(time).unwrap();
        let target = Target::Local(pair.copy.clone());
        let failures = pair.carried(&target, &Options::default(), None, || {
            fs::rename(path("secret"), path("open")).unwrap();
        });
        assert!(failures.iter().any(|failure| failure.path == b"open"), "{size}: {failures:?}");
        assert!(!pair.copy.join("open").exists() && pair.copy.join("d/file").exists(), "{size}");
    }
}

/// A file system of its own, gone with the test.
pub(super) struct Mounted(PathBuf);

impl Mounted {
    pub(super) fn at(path: PathBuf) -> Self {
        Self::by("mount -t tmpfs tmpfs", path)
    }

    /// One that answers nothing, as that of a server that is gone.
    pub(super) fn dead(path: PathBuf) -> Self {
        Self::by("exec 3<>/dev/fuse && mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 dead", path)
    }

    pub(super) fn by(mount: &str, path: PathBuf) -> Self {
        let script = format!("{mount} \"$0\"");
        assert!(Command::new("sh").args(["-c", &script]).arg(&path).status().unwrap().success());
        Self(path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn what_is_not_mounted_within_the_source_is_not_gone() {
    let ways = [(With::Kura, false, false), (With::Kura, true, false), (With::Rsync, false, false)];
    for (with, recheck, has_daemon) in ways.into_iter().chain([false, true].map(|recheck| (With::Rsync, recheck, true)))
    {
        let pair = Pair::new();
        let daemon = has_daemon.then(|| Daemon::of(&pair));
        let target = daemon.as_ref().map_or_else(|| Target::Local(pair.copy.clone()), |daemon| daemon.target("copy"));
        let options = Options { with: Some(with), recheck, ..Options::default() };
        let inner = pair.source.join("d/inner");
        fs::create_dir(&inner).unwrap();
        let mounted = Mounted::at(inner.clone());
        fs::create_dir(inner.join("deep")).unwrap();
        fs::write(inner.join("deep/file"), "contents").unwrap();
        assert!(pair.run(&target, &options).unwrap().is_complete);
        drop(mounted);
        fs::write(pair.source.join("new"), "new").unwrap();
        // Nor is it forgotten that something was mounted there.
        for _ in 0..3 {
            let told = pair.run(&target, &options).unwrap().failures;
            let is_told = told.iter().any(|it| it.path == b"d/inner" && it.cause.contains("mounted"));
            assert!(is_told, "{options:?}: {told:?}");
            assert!(pair.copy.join("d/inner/deep/file").exists() && pair.copy.join("new").exists());
        }
        let emptied = pair.run(&target, &Options { allow_empty: true, ..options.clone() }).unwrap();
        assert!(emptied.is_complete, "{options:?}: {:?}", emptied.failures);
        assert!(pair.copy.join("d/inner").exists() && !pair.copy.join("d/inner/deep").exists());
        assert!(pair.run(&target, &options).unwrap().is_complete);
    }
}

#[test]
fn that_something_was_mounted_is_not_forgotten_where_it_could_not_be_read() {
    for has_daemon in [false, true] {
        let pair = Pair::new();
        let daemon = has_daemon.then(|| Daemon::of(&pair));
        let target = daemon.as_ref().map_or_else(|| Target::Local(pair.copy.clone()), |daemon| daemon.target("copy"));
        let [usual, recheck] = [false, true].map(|recheck| Options { recheck, ..Options::default() });
        let (outer, inner) = (pair.source.join("outer"), pair.source.join("outer/inner"));
        let mount_outer = || {
            let mounted = Mounted::at(outer.clone());
            fs::create_dir(&inner).unwrap();
            mounted
        };
        let told = |options: &Options, path: &str, cause: &str| {
            let told = pair.run(&target, options).unwrap().failures;
            let is_told = told.iter().any(|it| it.path == path.as_bytes() && it.cause.contains(cause));
            assert!(is_told, "{target}, {options:?}: {told:?}");
            assert!(pair.copy.join("outer/inner/file").exists());
        };
        fs::create_dir(&outer).unwrap();
        let mounted = [mount_outer(), Mounted::at(inner.clone())];
        fs::write(inner.join("file"), "contents").unwrap();
        assert!(pair.run(&target, &usual).unwrap().is_complete);
        let [of_outer, of_inner] = mounted;
        drop((of_inner, of_outer));
        // Runs that ask the target, which does not tell what was mounted.
        told(&recheck, "outer", "mounted");
        let dead = Mounted::dead(outer.clone());
        told(&recheck, "outer", "connected");
        told(&usual, "outer", "connected");
        drop(dead);
        told(&usual, "outer", "mounted");
        let _mounted = mount_outer();
        told(&usual, "outer/inner", "mounted");
        told(&recheck, "outer/inner", "mounted");
    }
}

#[test]
fn what_moves_all_the_while_is_in_the_copy_or_told() {
    let pair = Pair::new();
    let [a, b] = ["a", "b"].map(|name| pair.source.join(name).join("moves"));
    fs::create_dir_all(&a).unwrap();
    fs::create_dir(pair.source.join("b")).unwrap();
    fs::write(a.join("file"), "").unwrap();
    let target = Target::Local(pair.copy.clone());
    let options = Options { durable: false, ..Options::default() };
    assert!(pair.run(&target, &options).unwrap().is_complete);
    let has_it = || ["a", "b"].iter().any(|name| pair.copy.join(name).join("moves/file").exists());
    std::thread::scope(|scope| {
        let until = Instant::now() + Duration::from_secs(4);
        let loses = || pair.run(&target, &options).unwrap().is_complete && !has_it();
        let mut runs = std::iter::from_fn(move || (Instant::now() < until).then(loses));
        let lost = scope.spawn(move || runs.any(|is_lost| is_lost));
        while !lost.is_finished() {
            for (from, to) in [(&a, &b), (&b, &a)] {
                fs::rename(from, to).unwrap();
                std::thread::sleep(Duration::from_micros(300));
            }
        }
        assert!(!lost.join().unwrap(), "complete without it");
    });
    assert!(pair.run(&target, &options).unwrap().is_complete && pair.copy.join("a/moves/file").exists());
}

#[test]
fn nothing_is_deleted_behind_rsync_where_a_directory_was_not_read() {
    let pair = Pair::new();
    let daemon = Daemon::of(&pair);
    let target = daemon.target("copy");
    assert!(pair.run(&target, &Options::default()).unwrap().is_complete);
    fs::write(pair.copy.join("stranger"), "").unwrap();
    let failures = pair.carried(&target, &Options::default(), None, || {});
    assert!(failures.is_empty() && !pair.copy.join("stranger").exists(), "{failures:?}");
    fs::write(pair.copy.join("stranger"), "").unwrap();
    // One that has a copy's own name stands for one that moved.
    fs::create_dir(pair.source.join(".kura-replica")).unwrap();
    let failures = pair.carried(&target, &Options::default(), None, || {});
    assert!(failures.iter().any(|failure| failure.cause.contains("not deleted")), "{failures:?}");
    assert!(pair.copy.join("stranger").exists());
}

#[test]
fn a_large_copy_that_is_written_in_place_stays_whole_where_its_source_cannot_be_read() {
    let pair = Pair::new();
    let (target, large) = (Target::Local(pair.copy.clone()), pair.source.join("large"));
    let options = Options { in_place: true, ..Options::default() };
    fs::write(&large, vec![7; 3 << 20]).unwrap();
    assert!(pair.run(&target, &options).unwrap().is_complete);
    fs::write(&large, vec![8; 2 << 20]).unwrap();
    let failures = pair.carried(&target, &options, pair.known(), || fs::remove_file(&large).unwrap());
    assert!(failures.iter().any(|failure| failure.path == b"large"), "{failures:?}");
    assert_eq!(fs::read(pair.copy.join("large")).unwrap(), vec![7; 3 << 20]);
}

#[test]
fn what_a_directory_leads_to_that_has_become_a_link_is_not_taken_for_carried() {
    for is_known in [false, true] {
        let pair = Pair::new();
        let target = Target::Local(pair.copy.clone());
        let options = Options { with: Some(With::Rsync), ..Options::default() };
        fs::write(pair.source.join("d/stays"), "").unwrap();
        assert!(pair.run(&target, &options).unwrap().is_complete);
        fs::write(pair.source.join("d/file"), "other contents").unwrap();
        let known = pair.known().filter(|_| is_known);
        let failures = pair.carried(&target, &options, known, || {
            let elsewhere = pair.folder.path().join("elsewhere");
            fs::rename(pair.source.join("d"), &elsewhere).unwrap();
            std::os::unix::fs::symlink(&elsewhere, pair.source.join("d")).unwrap();
        });
        let is_told = failures.iter().any(|it| it.path == b"d/file" && it.cause == crate::error::CHANGED);
        assert!(is_told, "{is_known}: {failures:?}");
        assert!(pair.copy.join("d/stays").exists() && !pair.copy.join("d").is_symlink(), "{is_known}");
    }
}

#[test]
fn a_copy_that_was_asked_what_it_has_is_known_from_then_on() {
    let pair = Pair::new();
    let target = Target::Local(pair.copy.clone());
    assert!(pair.run(&target, &Options::default()).unwrap().is_complete);
    settle();
    assert!(pair.run(&target, &Options::default()).unwrap().is_complete);
    fs::remove_file(pair.folder.path().join("job/catalogue")).unwrap();
    assert_eq!(pair.run(&target, &Options::default()).unwrap().files, 0);
    let run = Marker::read(&pair.copy).unwrap().unwrap().run;
    assert!(!run.is_nil() && pair.known().is_some_and(|known| known.run() == run));
}

#[test]
fn what_is_not_mounted_any_more_is_not_told_to_be_complete() {
    for (with, is_served) in [(Some(With::Kura), false), (Some(With::Rsync), false), (None, true)] {
        let pair = Pair::new();
        let (target, options) = pair.target(is_served);
        let options = Options { with, ..options };
        fs::create_dir(&pair.copy).unwrap();
        let mounted = Mounted::at(pair.copy.clone());
        assert!(pair.run(&target, &options).unwrap().is_complete);
        let marker = Marker { state: State::Unfinished, ..Marker::read(&pair.copy).unwrap().unwrap() };
        let carrier = options.carrier(&target);
        carrier.hold(false).unwrap();
        assert!(carrier.facts(false).unwrap().marker.is_some());
        drop(mounted);
        let carried = is_served.then(|| pair.carried_by(&*carrier, &options, None, || {}).unwrap_err());
        for told in carried.into_iter().chain([carrier.mark(&marker, true).unwrap_err()]) {
            assert!(told.to_string().contains("is it mounted"), "{target}, {with:?}: {told}");
        }
        // Nor is there anything where it was mounted.
        assert_eq!(fs::read_dir(&pair.copy).unwrap().count(), 0, "{target}, {with:?}");
    }
}

/// A file system in a file beside a pair's copy. What makes it sees no loop device that is mounted: `mkfs.btrfs` looks
/// at the file of each, and fails where one lies on a FUSE whose server is gone.
fn image(pair: &Pair, mib: u64, made_by: &str) -> PathBuf {
    let image = pair.folder.path().join("image");
    fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
    let unmount = r"sed -n 's/^.dev.loop[^ ]* \([^ ]*\).*/\1/p' /proc/self/mounts | xargs -r umount --lazy";
    let mut alone = Command::new("unshare");
    alone.args(["--mount", "sh", "-c", &format!("{unmount}; {made_by} \"$0\"")]).arg(&image);
    assert!(alone.status().unwrap().success());
    image
}

/// Blocks that are told from one another.
fn blocks() -> Vec<u8> {
    (0..768).flat_map(|number| format!("block {number:<4090}").into_bytes()).collect()
}

/// One of them rots on the disk of this image.
fn rot_a_block(image: &Path) {
    let mut disk = fs::read(image).unwrap();
    let rotten: Vec<_> = disk.windows(4096).enumerate().filter(|(_, it)| it.starts_with(b"block 300 ")).collect();
    let rotten: Vec<usize> = rotten.into_iter().map(|(at, _)| at).collect();
    assert!(!rotten.is_empty());
    for at in rotten {
        disk[at + 50] ^= 1;
    }
    fs::write(image, disk).unwrap();
}

#[test]
fn what_cannot_be_read_of_an_old_version_is_written_anew() {
    for in_place in [false, true] {
        let pair = Pair::new();
        let image = image(&pair, 128, "mkfs.btrfs -q");
        fs::create_dir(&pair.copy).unwrap();
        let mount = || Mounted::by(&format!("mount -o loop '{}'", image.display()), pair.copy.clone());
        let (target, large) = (Target::Local(pair.copy.clone()), pair.source.join("large"));
        let options = Options { in_place, adopt: true, ..Options::default() };
        let mut blocks = blocks();
        fs::write(&large, &blocks).unwrap();
        let mounted = mount();
        assert!(pair.run(&target, &options).unwrap().is_complete);
        drop(mounted);
        rot_a_block(&image);
        let _mounted = mount();
        assert!(fs::read(pair.copy.join("large")).is_err());
        blocks[0] ^= 1;
        fs::write(&large, &blocks).unwrap();
        let summary = pair.run(&target, &options).unwrap();
        assert!(summary.is_complete, "{in_place}: {:?}", summary.failures);
        assert!(fs::read(pair.copy.join("large")).unwrap() == blocks, "{in_place}");
    }
}

#[test]
fn what_cannot_be_read_of_the_source_is_told_as_its_own() {
    let pair = Pair::new();
    let image = image(&pair, 128, "mkfs.btrfs -q");
    let mount = || Mounted::by(&format!("mount -o loop '{}'", image.display()), pair.source.clone());
    let mounted = mount();
    fs::write(pair.source.join("large"), blocks()).unwrap();
    drop(mounted);
    rot_a_block(&image);
    let _mounted = mount();
    let told = pair.run(&Target::Local(pair.copy.clone()), &Options::default()).unwrap().failures;
    assert!(matches!(&told[..], [one] if one.path == b"large" && one.cause.starts_with("source: Input")), "{told:?}");
}

#[test]
fn what_is_mounted_in_a_copy_is_made_durable_with_it() {
    for with in [With::Kura, With::Rsync] {
        let pair = Pair::new();
        let image = image(&pair, 16, "mkfs.ext4 -q -F");
        let inner = pair.copy.join("d");
        fs::create_dir_all(&inner).unwrap();
        let _mounted = Mounted::by(&format!("mount -o loop '{}'", image.display()), inner.clone());
        fs::remove_dir(inner.join("lost+found")).unwrap();
        fs::write(pair.source.join("d/file"), "durable contents".repeat(1000)).unwrap();
        let options = Options { with: Some(with), adopt: true, ..Options::default() };
        assert!(pair.run(&Target::Local(pair.copy.clone()), &options).unwrap().is_complete);
        // What a power cut would leave.
        let is_there = fs::read(&image).unwrap().windows(32).any(|bytes| bytes == *b"durable contentsdurable contents");
        assert!(is_there, "{with:?}");
    }
}

/// A relay that loses the second of its connections, a worker's, when it has carried so many bytes of the source's.
fn losing(to: std::net::SocketAddr, after_bytes: u64) -> std::net::SocketAddr {
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = relay.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, from) in relay.incoming().map_while(std::result::Result::ok).enumerate() {
            let there = TcpStream::connect(to).unwrap();
            let most = if number == 1 { after_bytes } else { u64::MAX };
            let both = |stream: &TcpStream| stream.try_clone().unwrap();
            for (mut from, mut to, most) in [(both(&there), both(&from), u64::MAX), (from, there, most)] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut std::io::Read::by_ref(&mut from).take(most), &mut to);
                    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
                });
            }
        }
    });
    address
}

#[test]
fn what_a_lost_worker_has_done_is_not_done_again() {
    let pair = Pair::new();
    for directory in 0..40 {
        fs::create_dir(pair.source.join(directory.to_string())).unwrap();
        fs::write(pair.source.join(directory.to_string()).join("file"), vec![7; 500_000]).unwrap();
    }
    let (Target::Tcp { address, .. }, options) = pair.target(true) else { panic!() };
    let address = losing(address.parse().unwrap(), 7_000_000);
    let target = format!("kura://{address}/copy").parse().unwrap();
    // Slow enough that replies are not behind.
    let summary = pair.run(&target, &Options { workers: 2, bandwidth: Some(20_000_000), ..options }).unwrap();
    assert!(summary.is_complete, "{:?}", summary.failures);
    assert!((20_000_000..23_000_000).contains(&summary.sent_bytes), "{} bytes", summary.sent_bytes);
}

#[test]
fn what_finds_no_room_is_not_told_as_carried() {
    let pair = Pair::new();
    fs::create_dir(&pair.copy).unwrap();
    let _mounted = Mounted::by("mount -t tmpfs -o size=2m tmpfs", pair.copy.clone());
    fs::write(pair.source.join("large"), vec![7; 4 << 20]).unwrap();
    let options = Options { adopt: true, ..Options::default() };
    let summary = pair.run(&Target::Local(pair.copy.clone()), &options).unwrap();
    assert_eq!((summary.files, summary.bytes, summary.failed), (1, 8, 1), "{:?}", summary.failures);
}
