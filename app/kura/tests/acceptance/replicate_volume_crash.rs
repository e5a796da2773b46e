//! `kill -9` of the source, of the target and of the run itself, and the link cut, at random moments of copying a volume.
//!
//! The volume is still while a run goes on, so that each point has a known image. After every crash each point at the
//! target must be what the source was when its point was made, and the next run completes.

use crate::crash::Random;
use crate::harness::{Home, Server, eventually, fails};
use crate::link::Link;
use crate::nbd::{Client, FLUSH, TRIM, WRITE};
use crate::replicate_volume::{points, read};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 6144;
const ROUNDS: u32 = 14;

struct World {
    here: Home,
    there: Home,
    source: Server,
    target: Server,
    link: Link,
    random: Random,
    images: BTreeMap<String, Vec<u8>>,
}

impl World {
    fn new() -> Self {
        let (here, there) = (Home::new(), Home::new());
        let random = Random(std::process::id().into());
        println!("seed {}", random.0);
        let (source, target) = (here.serve(), there.serve());
        let link = Link::new();
        link.to.store(target.port("http"), Ordering::SeqCst);
        here.ok(&["volume", "create", "db", "--size", "24M"]);
        let url = format!("http://127.0.0.1:{}/copy", link.port);
        here.ok(&["replicate", "add", "dr", "volume:db", &url]);
        Self { here, there, source, target, link, random, images: BTreeMap::new() }
    }

    /// Writes and trims here and there, by noise, so that frames are large.
    fn work(&mut self) {
        let mut db = Client::connect(&self.here.socket(), "db").expect("a connection");
        for _ in 0..=self.random.below(12) {
            let (first, count) = (self.random.below(BLOCKS - 256), 1 + self.random.below(256));
            let (offset, len) = (first * BLOCK, (count * BLOCK) as u32);
            if self.random.below(4) == 0 {
                db.call(TRIM, 0, offset, len, &[]).expect("a trim");
            } else {
                let data: Vec<u8> = (0..len / 8).flat_map(|_| self.random.next().to_le_bytes()).collect();
                db.call(WRITE, 0, offset, len, &data).expect("a write");
            }
        }
        db.call(FLUSH, 0, 0, 0, &[]).expect("a flush");
    }

    /// A run that something happens to. Returns whether it was complete all the same.
    fn disturbed(&mut self) -> bool {
        // The process itself, not what would watch it.
        let mut run = Command::new(env!("CARGO_BIN_EXE_kura"))
            .args(["replicate", "run", "dr", "--quiet"])
            .current_dir(self.here.path("."))
            .stderr(Stdio::null())
            .spawn()
            .expect("kura");
        let chosen = self.random.below(5);
        if chosen == 0 {
            self.link.left_bytes.store(self.random.below(3 << 20), Ordering::SeqCst);
        }
        std::thread::sleep(Duration::from_millis(self.random.below(150)));
        match chosen {
            0 => {}
            1 => run.kill().expect("kill -9 of the run"),
            2 => self.source.kill(),
            3 => self.target.kill(),
            // Asked to stop, it does, although a transfer goes on.
            _ => assert!(self.target.stop().success()),
        }
        let done = run.wait().expect("the run");
        self.link.left_bytes.store(u64::MAX, Ordering::SeqCst);
        match chosen {
            2 => self.source = self.here.serve(),
            3 | 4 => {
                self.target = self.there.serve();
                self.link.to.store(self.target.port("http"), Ordering::SeqCst);
            }
            _ => {}
        }
        done.success()
    }

    /// Deletes what only the source has: what was under way cannot go on, and another transfer begins.
    fn forget(&self) {
        let own = |point: &String| point.split_once('@').map(|(_, own)| own.to_owned());
        let there: Vec<_> = points(&self.there, "copy").iter().map(own).collect();
        for point in points(&self.here, "db").iter().filter(|point| !there.contains(&own(point))) {
            // A run that was killed may have it open for a moment.
            let deleted = || self.here.kura(&["snapshot", "delete", point]).output().expect("kura").status.success();
            eventually(Duration::from_mins(1), "nobody has it open any more", deleted);
        }
    }

    /// Holds each point at the target, where there is one, to what the source was when it was made.
    fn judge(&mut self, image: &[u8], when: &str) {
        for point in points(&self.here, "db") {
            let own = point.split_once('@').expect("a point").1.to_owned();
            self.images.entry(own).or_insert_with(|| image.to_vec());
        }
        if !json_has_volume(&self.there) {
            return;
        }
        for point in points(&self.there, "copy") {
            let own = point.split_once('@').expect("a point").1;
            assert!(read(&self.there, &point) == self.images[own], "{point} is not what was copied, {when}");
        }
    }
}

#[test]
fn a_copy_is_whole_at_each_of_its_points_whatever_is_killed() {
    let mut world = World::new();
    let mut complete = 0;
    for round in 0..ROUNDS {
        world.work();
        let mut image = read(&world.here, "db");
        for attempt in 0..=world.random.below(2) {
            complete += u32::from(world.disturbed());
            world.judge(&image, &format!("round {round}, attempt {attempt}"));
            if json_has_volume(&world.there) && world.random.below(3) == 0 {
                world.forget();
                world.work();
                image = read(&world.here, "db");
            }
        }
    }
    println!("{complete} runs were complete although something was killed");
    let image = read(&world.here, "db");
    // On a slow machine hardly a run was complete before, and what a client has open is deleted by a later run.
    eventually(Duration::from_mins(2), "three points are kept, and nothing is left over", || {
        world.here.ok(&["replicate", "run", "dr"]);
        world.judge(&image, "at the end");
        (points(&world.here, "db").len(), points(&world.there, "copy").len()) == (1, 3)
    });
    assert!(world.here.ok(&["replicate", "verify", "dr"]).contains("nothing differs"));

    // Fail-over in the middle of a transfer: back to the last point, which the source has still.
    let mut db = Client::connect(&world.here.socket(), "db").expect("a connection");
    let noise: Vec<u8> = (0..1 << 17).flat_map(|_| world.random.next().to_le_bytes()).collect();
    db.call(WRITE, 0, 0, noise.len() as u32, &noise).expect("a write");
    world.link.left_bytes.store(100_000, Ordering::SeqCst);
    fails(&mut world.here.kura(&["replicate", "run", "dr"]));
    world.link.left_bytes.store(u64::MAX, Ordering::SeqCst);
    world.there.ok(&["replicate", "failover", "volume:copy"]);
    assert!(read(&world.there, "copy") == image, "the copy that was let go is not its last point");
    world.here.ok(&["check"]);
    world.there.ok(&["check"]);
}

fn json_has_volume(home: &Home) -> bool {
    crate::serving::json(home, &["volume", "list"]).as_array().expect("a list").iter().any(|one| one["name"] == "copy")
}
